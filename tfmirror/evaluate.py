"""Evaluates a trained model on any number of devices: the accuracy is its run's.

python -m tfmirror.evaluate runs/first
python -m tfmirror.evaluate runs/first/checkpoints/best.npz --gpus=4
python -m tfmirror.evaluate runs/first --per_class --plot_file=confusion.png

Data and settings are those of the run; flags override them.
"""

import dataclasses
import json
import pathlib
import typing

from tfmirror import command, errors, files, folder_settings, metrics, model_source
from tfmirror.settings import check_fields, positional_arguments, setting, setting_of
from tfmirror.train_config import TrainConfig

if typing.TYPE_CHECKING:
    from tfmirror import confusion
    from tfmirror.rundir import loading, state

FROM_RUN = "from the run"


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """All settings of an evaluation. None: taken from the run."""

    arguments: tuple[str, ...] = positional_arguments("RUN_DIR|CHECKPOINT")
    model: str = setting(
        "",
        model_source.HELP_OF_RUN,
        group="Model",
        check_choice=model_source.check_of_run,
    )
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
    per_class: bool = setting(
        False,
        "show for each class how many of its examples are right (accuracy, or recall), "
        "how many of those taken for it are right (precision), and which class is "
        "taken for which. Of a finished run and its own data they are also written to "
        "per_class.json in its directory, for report",
        group="Output",
    )
    plot_file: str = setting(
        "",
        "PNG file to draw the confusion matrix in; needs per_class; empty: none",
        group="Output",
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
    if name := settings.plot_file:
        errors.require(name.endswith(".png"), "plot_file", name, "a name in .png")
        errors.check_new_file("plot_file", name)
        if not settings.per_class:
            raise errors.InputError(
                f"plot_file needs per_class: got plot_file={name!r}; add --per_class"
            )


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
    from tfmirror.inference import evaluation
    from tfmirror.parallel import devices
    from tfmirror.rundir import loading

    log = command.print_to_stderr if settings.json else command.print_line
    chosen = devices.set_up(settings.gpus, settings.device_type)
    # Threads must be set before the model is loaded: loading starts TensorFlow, which
    # then keeps its threads.
    evaluation.configure_process(loading.read_settings(settings.model_path), chosen)
    own_model = model_source.load(settings.model) if settings.model else None
    found = loading.find(settings.model_path, log, own_model)
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
    arguments = found, dataset, chosen, on.global_batch_size
    with streaming.stops_on_unreadable_files(dataset.eval):
        if settings.per_class:
            reached, of_classes = evaluation.evaluate_per_class(*arguments)
        else:
            reached, of_classes = evaluation.evaluate(*arguments), None
    report = describe(reached, found.num_classes)
    if found.class_names:
        report["class_names"] = list(found.class_names)
    log(line_of(report))
    if of_classes:
        report |= of_classes.to_json()
        for line in ["", *of_classes.lines()]:
            log(line)
        if settings.plot_file:
            _draw(of_classes, settings.plot_file)
            log(f"wrote {settings.plot_file}")
        if _is_of_run(settings, on, found):
            _keep(of_classes, pathlib.Path(found.source).parent, log)
    if settings.json:
        print(json.dumps(report))


def _draw(of_classes: "confusion.Confusion", plot_file: str) -> None:
    """Draws the confusion matrix.

    Raises:
      InputError: the file can't be written.
    """
    from tfmirror.reporting import confusion_plot, plots

    path = errors.expand_path("plot_file", plot_file)
    try:
        plots.save(confusion_plot.draw(of_classes), path)
    except OSError as error:
        raise errors.InputError(
            f"plot_file can't be written: {str(path)!r}: {error.strerror}"
        ) from error


def _is_of_run(
    settings: EvaluateConfig, on: ResolvedEvaluateConfig, found: "loading.Trained"
) -> bool:
    """Returns whether the final model of a run was evaluated on the run's own data.

    The folder of the data may be another one, since data can be moved.
    """
    from tfmirror.rundir import directory

    is_final = pathlib.Path(found.source).name == directory.MODEL
    names = ("dataset", "limit_eval_examples")
    return is_final and all(getattr(on, n) == found.settings[n] for n in names)


def _keep(
    of_classes: "confusion.Confusion", folder: pathlib.Path, log: typing.Any
) -> None:
    """Writes per_class.json into a run directory; if it can't, that is a warning."""
    from tfmirror.rundir import reader

    path = folder / reader.PER_CLASS
    summary = reader.read_summary(folder, log) or {}
    if summary.get("num_eval_examples") != of_classes.num_examples:
        log(f"other data than the run's: {path} is not written")
        return
    text = of_classes.dumps(weights_sha256=summary["weights_sha256"])
    try:
        files.write_text(path, text)
        log(f"wrote {path}")
    except OSError as error:
        log(
            f"warning: {path} can't be written ({error.strerror}): report won't show it"
        )


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
