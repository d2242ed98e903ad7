"""Proves on your own devices that N replicas do what one does, claim by claim.

python -m tfmirror.verify --gpus=8
python -m tfmirror.verify --gpus=4 --model=cnn --json_file=verified.json

Each cell of the table says whether N replicas gave the same bits as one, or else by how
much the largest entry differs. Exit code 4: a claim does not hold.
"""

import dataclasses
import functools
import time
import types
import typing
from collections.abc import Mapping

from tfmirror import (
    command,
    errors,
    files,
    folder_settings,
    metrics,
    model_source,
)
from tfmirror.diagnostics import verification
from tfmirror.recipes import RECIPES
from tfmirror.settings import check_fields, setting, setting_of
from tfmirror.train_config import TrainConfig

# {number of replicas: {claim: its outcome}}
Outcomes = dict[int, dict[str, verification.Outcome]]

# The batches have eight microbatches; more replicas would be left without any.
MOST_REPLICAS = 8


@dataclasses.dataclass(frozen=True)
class VerifyConfig:
    """All settings of a verification."""

    model: str = setting_of(
        TrainConfig,
        "model",
        "probe",
        help="model to verify with; probe is a small network with convolution, batch "
        "norm, dropout and a dense layer; FILE.py:FUNCTION or package.module:FUNCTION "
        "is a model of your own",
        choices=("probe", *sorted(RECIPES)),
    )
    gpus: int = setting_of(
        TrainConfig,
        "gpus",
        help=f"largest number of replicas, from 2 to {MOST_REPLICAS}, one per GPU; on "
        "a machine without a GPU, one per logical CPU device",
        zero_means=f"all GPUs up to {MOST_REPLICAS}, or {MOST_REPLICAS} logical CPU "
        "devices without a GPU",
    )
    device_type: str = setting_of(TrainConfig, "device_type")
    image_size: str = setting(
        "28x28",
        "height x width of the synthetic images, pixels, such as 96x96",
        group="Data",
    )
    channels: int = setting(
        1, "channels of the synthetic images", group="Data", minimum=1, maximum=16
    )
    json_file: str = setting(
        "", "file to write the table to as JSON; empty: none", group="Output"
    )


def check(settings: VerifyConfig) -> None:
    """Raises InputError at the first setting that is wrong on any machine."""
    check_fields(settings)
    gpus = settings.gpus
    errors.require(gpus != 1, "gpus", gpus, "at least 2, to be compared with one")
    errors.require(gpus <= MOST_REPLICAS, "gpus", gpus, f"at most {MOST_REPLICAS}")
    image_shape(settings)
    if settings.json_file:
        errors.check_new_file("json_file", settings.json_file)


def image_shape(settings: VerifyConfig) -> tuple[int, int, int]:
    """Returns the shape (H, W, C) of the images to verify with.

    Raises:
      InputError: image_size is something else than two numbers of pixels.
    """
    size = settings.image_size
    errors.require(size, "image_size", size, "height x width, such as 96x96")
    height, width = folder_settings.parse_size(size)
    return height, width, settings.channels


def main(settings: VerifyConfig) -> None:
    """Prints the table; raises ClaimFailedError if a claim does not hold."""
    from tfmirror.diagnostics import observation
    from tfmirror.parallel import devices, runtime

    chosen = devices.set_up(num_gpus(settings, devices), settings.device_type)
    # The same threads as in a training run with this number of fixed microbatches.
    runtime.configure(chosen, observation.NUM_MICROBATCHES)
    if not chosen.are_stand_ins:
        runtime.use_deterministic_operations()
    print(f"model: {settings.model}\ndevices: {chosen.describe()}", flush=True)
    outcomes = verify(settings, replica_counts(chosen.num_replicas), observation)
    print_table(outcomes, verification.CLAIMS)
    try:
        if settings.json_file:
            path = errors.check_new_file("json_file", settings.json_file)
            files.write_json(path, table_rows(outcomes, verification.CLAIMS))
    finally:  # a failed claim is reported even if the file can't be written
        check_outcomes(outcomes)
    *first, last = outcomes
    numbers = f"{', '.join(map(str, (1, *first)))} and {last}"
    print(
        f"all {len(verification.CLAIMS)} claims hold: {settings.model} does the same "
        f"on {numbers} replicas"
    )


def num_gpus(settings: VerifyConfig, devices: types.ModuleType) -> int:
    """Returns how many devices to verify on.

    Args:
      settings: ones that `check` accepts.
      devices: tfmirror.parallel.devices, which imports TensorFlow.

    Raises:
      InputError: the machine has one GPU, with nothing to compare it to.
    """
    found = settings.gpus or devices.count_gpus(settings.device_type) or MOST_REPLICAS
    if found == 1:
        raise errors.InputError(
            "gpus must be at least 2, to be compared with one: got 1, the only GPU of "
            "this machine; device_type=cpu uses logical CPU devices"
        )
    return min(found, MOST_REPLICAS)


def check_outcomes(outcomes: Outcomes) -> None:
    """Raises ClaimFailedError, which names the failed claims, if there are any."""
    failed = [
        f"{claim} on {n} replicas {outcome.text}"
        for n, by_claim in outcomes.items()
        for claim, outcome in by_claim.items()
        if not outcome.is_met
    ]
    if failed:
        raise errors.ClaimFailedError("; ".join(failed))


def print_table(outcomes: Outcomes, claims: Mapping[str, float]) -> None:
    """Prints a row for each claim, with a column for each number of replicas.

    Args:
      outcomes: what was found.
      claims: {claim: tolerance}.
    """
    from rich import box, console, table

    columns = [f"N = {n}" for n in outcomes]
    grid = table.Table("claim", "promised", *columns, box=box.SIMPLE)
    for claim, tolerance in claims.items():
        cells = [outcomes[n][claim] for n in outcomes]
        marked = [c.text if c.is_met else f"FAILS: {c.text}" for c in cells]
        grid.add_row(claim, promise(tolerance), *marked)
    output = console.Console()
    if not output.is_terminal:
        output = console.Console(width=140)
    with output.capture() as rendered:
        output.print(grid)
    print(rendered.get(), end="")


def replica_counts(most: int) -> list[int]:
    """Returns the numbers of replicas to compare with one: powers of two and `most`."""
    powers = [n for n in (2, 4, 8) if n < most]
    return [*powers, most]


def promise(tolerance: float) -> str:
    """Returns what a claim promises, for the table."""
    return "same bits" if tolerance == 0 else f"within {tolerance:.0e}"


def verify(
    settings: VerifyConfig, counts: list[int], observation: types.ModuleType
) -> Outcomes:
    """Returns the outcome of every claim on each number of replicas against one.

    Args:
      settings: model, images and type of device.
      counts: numbers of replicas.
      observation: tfmirror.diagnostics.observation, which imports TensorFlow.
    """
    model: str | model_source.ModelSource = settings.model
    if model_source.is_own(settings.model):
        model = model_source.load(settings.model)
    dataset = observation.make_dataset(image_shape(settings))
    observe = functools.partial(
        observation.observe,
        model=model,
        device_type=settings.device_type,
        dataset=dataset,
    )
    observed = {}
    for n in (1, *counts):
        start = time.monotonic()
        observed[n] = observe(n)
        seconds = time.monotonic() - start
        print(f"{metrics.replicas_text(n)}: 20 steps in {seconds:.0f} s", flush=True)
    one = observed.pop(1)
    outcomes = {}
    for n, seen in observed.items():
        outcomes[n] = {
            claim: verification.compare(one[claim], seen[claim], tolerance)
            for claim, tolerance in verification.CLAIMS.items()
        }
    return outcomes


def table_rows(
    outcomes: Outcomes, claims: Mapping[str, float]
) -> list[dict[str, typing.Any]]:
    """Returns the table as plain values for JSON."""
    return [
        {
            "claim": claim,
            "tolerance": tolerance,
            "replicas": {
                str(n): {
                    "is_met": by_claim[claim].is_met,
                    "outcome": by_claim[claim].text,
                }
                for n, by_claim in outcomes.items()
            },
        }
        for claim, tolerance in claims.items()
    ]


if __name__ == "__main__":
    command.run(main, VerifyConfig, __doc__, check=check)
