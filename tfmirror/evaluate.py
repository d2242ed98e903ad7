"""Evaluates a trained model on any number of devices: the accuracy is its run's.

python -m tfmirror.evaluate runs/first
python -m tfmirror.evaluate runs/first/checkpoints/best.npz --gpus=4

Data and settings are those of the run; flags override them.
"""

import dataclasses
import json
import typing

from tfmirror import command, errors, metrics
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


@dataclasses.dataclass(frozen=True)
class ResolvedEvaluateConfig:
    """What to evaluate on: the settings that the flags or the run decide."""

    dataset: str
    data_dir: str
    limit_eval_examples: int
    global_batch_size: int


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
    values = {name: run_settings[name] for name in names}
    if settings.dataset not in (None, values["dataset"]):
        values |= {"data_dir": "", "limit_eval_examples": 0}
    given = {name: getattr(settings, name) for name in names}
    values |= {name: value for name, value in given.items() if value is not None}
    return ResolvedEvaluateConfig(**values)


def main(settings: EvaluateConfig) -> None:
    """Prints the accuracy and the loss over the evaluation examples."""
    from tfmirror.data import datasets
    from tfmirror.inference import evaluation, loading
    from tfmirror.parallel import devices

    log = command.print_to_stderr if settings.json else command.print_line
    chosen = devices.set_up(settings.gpus, settings.device_type)
    # Threads must be set before the model is loaded: loading starts TensorFlow, which
    # then keeps its threads.
    evaluation.configure_process(loading.read_settings(settings.model_path), chosen)
    found = loading.find(settings.model_path, log)
    on = resolve(settings, found.settings)
    dataset = datasets.load(
        on.dataset, on.data_dir, limit_eval_examples=on.limit_eval_examples
    )
    log(f"model: {found.settings['model']} of {found.source}")
    log(f"data: {dataset.name}, {len(dataset.eval):,} evaluation examples")
    log(f"source: {dataset.source}")
    log(f"devices: {chosen.describe()}")
    reached = evaluation.evaluate(found, dataset, chosen, on.global_batch_size)
    report = describe(reached, found.num_classes)
    log(line_of(report))
    if settings.json:
        print(json.dumps(report))


def line_of(report: dict[str, typing.Any]) -> str:
    """Returns what `describe` gives, as a line for people."""
    top5 = report.get("eval_top5_accuracy")
    return (
        f"eval loss {report['eval_loss']:.4f} acc {report['eval_accuracy']:.4f}"
        f"{'' if top5 is None else f' top-5 {top5:.4f}'}  "
        f"{report['num_correct']:,} of {report['num_eval_examples']:,} correct  "
        f"{report['eval_seconds']:.1f} s"
    )


def describe(reached: "state.PassProgress", num_classes: int) -> dict[str, typing.Any]:
    """Returns the result of a pass over the evaluation examples, for JSON.

    Args:
      num_classes: of the model; with more than ten there is a top-5 accuracy.
    """
    totals = reached.totals
    top5 = {}
    if metrics.counts_top5(num_classes):
        top5["eval_top5_accuracy"] = totals.top5_accuracy
    return {
        "eval_loss": totals.mean_loss,
        "eval_accuracy": totals.accuracy,
        **top5,
        "num_correct": totals.num_correct,
        "num_eval_examples": totals.num_examples,
        "eval_seconds": reached.seconds,
    }


if __name__ == "__main__":
    command.run(main, EvaluateConfig, __doc__, check=check)
