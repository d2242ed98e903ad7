"""Evaluates a trained model on any number of devices: the accuracy is its run's.

python -m tfmirror.evaluate runs/first
python -m tfmirror.evaluate runs/first/checkpoints/best.npz --gpus=4

Data and settings are those of the run; flags override them.
"""

import dataclasses
import json
import typing

from tfmirror import command, errors, folder_settings
from tfmirror.settings import check_fields, positional_arguments, setting, setting_of
from tfmirror.train_config import TrainConfig

if typing.TYPE_CHECKING:
    from tfmirror.rundir import state

FROM_RUN = "from the run"


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """All settings of an evaluation. None: taken from the run."""

    arguments: tuple[str, ...] = positional_arguments("RUN_DIR|CHECKPOINT")
    dataset: str | None = setting_of(TrainConfig, "dataset", None, none_means=FROM_RUN)
    data_dir: str | None = setting_of(
        TrainConfig, "data_dir", None, none_means=FROM_RUN
    )
    limit_eval_examples: int | None = setting_of(
        TrainConfig, "limit_eval_examples", None, none_means=FROM_RUN
    )
    eval_fraction: float | None = setting_of(
        TrainConfig, "eval_fraction", None, none_means=FROM_RUN
    )
    gpus: int = setting_of(TrainConfig, "gpus")
    device_type: str = setting_of(TrainConfig, "device_type")
    global_batch_size: int | None = setting_of(
        TrainConfig,
        "global_batch_size",
        None,
        help="examples per step over all replicas",
        none_means=FROM_RUN,
    )
    json: bool = setting(False, "print one JSON object instead of text", group="Output")

    @property
    def model_path(self) -> str:
        """The run directory or checkpoint."""
        return self.arguments[0]


def check(settings: EvaluateConfig) -> None:
    """Raises InputError at the first setting that is wrong on any machine."""
    got = settings.arguments
    errors.require(len(got) == 1, "arguments", got, "one run directory or checkpoint")
    check_fields(settings)
    folder_settings.check(settings.dataset, settings)


@dataclasses.dataclass(frozen=True)
class ResolvedEvaluateConfig:
    """What to evaluate on: the settings that the flags or the run decide."""

    dataset: str
    data_dir: str
    limit_eval_examples: int
    global_batch_size: int
    eval_fraction: float = 0.0  # runs from before image folders have none


def resolve(
    settings: EvaluateConfig, run_settings: dict[str, typing.Any]
) -> ResolvedEvaluateConfig:
    """Returns what to evaluate on; what the flags leave open is as in the run.

    Another dataset than the run's is searched in the standard folders and used as a
    whole, unless flags say otherwise.

    Args:
      settings: ones that `check` accepts.
      run_settings: {name: value} of the run.
    """
    names = [field.name for field in dataclasses.fields(ResolvedEvaluateConfig)]
    values = {name: run_settings[name] for name in names if name in run_settings}
    if settings.dataset not in (None, values["dataset"]):
        values |= {"data_dir": "", "limit_eval_examples": 0, "eval_fraction": 0.0}
    given = {name: getattr(settings, name) for name in names}
    values |= {name: value for name, value in given.items() if value is not None}
    resolved = ResolvedEvaluateConfig(**values)
    folder_settings.check(resolved.dataset, resolved)
    return resolved


def main(settings: EvaluateConfig) -> None:
    """Prints the accuracy and the loss over the evaluation examples."""
    from tfmirror.data import datasets, image_folder, streaming
    from tfmirror.inference import evaluation, loading
    from tfmirror.parallel import devices

    log = command.print_to_stderr if settings.json else command.print_line
    chosen = devices.set_up(settings.gpus, settings.device_type)
    # Threads must be set before the model is loaded: loading starts TensorFlow, which
    # then keeps its threads.
    evaluation.configure_process(loading.read_settings(settings.model_path), chosen)
    found = loading.find(settings.model_path, log)
    on = resolve(settings, found.settings)
    *image_size, channels = found.input_shape
    dataset = datasets.load(
        on.dataset,
        on.data_dir,
        limit_eval_examples=on.limit_eval_examples,
        options=image_folder.Options(
            image_size=tuple(image_size),
            channels=channels,
            eval_fraction=on.eval_fraction,
            class_names=found.class_names,
        ),
    )
    log(f"model: {found.settings['model']} of {found.source}")
    log(f"data: {dataset.name}, {len(dataset.eval):,} evaluation examples")
    log(f"source: {dataset.source}")
    if found.class_names:
        log(f"classes: {', '.join(found.class_names)}")
    log(f"devices: {chosen.describe()}")
    with streaming.stops_on_unreadable_files(dataset.eval):
        reached = evaluation.evaluate(found, dataset, chosen, on.global_batch_size)
    report = describe(reached)
    if found.class_names:
        report["class_names"] = list(found.class_names)
    log(
        f"eval loss {report['eval_loss']:.4f} acc {report['eval_accuracy']:.4f}  "
        f"{report['num_correct']:,} of {report['num_eval_examples']:,} correct  "
        f"{report['eval_seconds']:.1f} s"
    )
    if settings.json:
        print(json.dumps(report))


def describe(reached: "state.PassProgress") -> dict[str, typing.Any]:
    """Returns the result of a pass over the evaluation examples, for JSON."""
    totals = reached.totals
    return {
        "eval_loss": totals.mean_loss,
        "eval_accuracy": totals.accuracy,
        "num_correct": totals.num_correct,
        "num_eval_examples": totals.num_examples,
        "eval_seconds": reached.seconds,
    }


if __name__ == "__main__":
    command.run(main, EvaluateConfig, __doc__, check=check)
