"""Exports a trained model for programs that know nothing of tfmirror.

python -m tfmirror.export runs/first --saved_model=serving/shoes/1
python -m tfmirror.export runs/first/checkpoints/best.npz --keras_file=best.keras

The Keras file takes float images in [0, 1] and returns logits. The SavedModel, for
TensorFlow Serving, takes uint8 images [b, H, W, C] and returns "classes" [b] and
"probabilities" [b, K].
"""

import dataclasses
import pathlib

from tfmirror import command, errors, model_source
from tfmirror.settings import check_fields, positional_arguments, setting


@dataclasses.dataclass(frozen=True)
class ExportConfig:
    """All settings of an export."""

    arguments: tuple[str, ...] = positional_arguments("RUN_DIR|CHECKPOINT")
    model: str = setting(
        "",
        model_source.HELP_OF_RUN,
        group="Model",
        check_choice=model_source.check_of_run,
    )
    keras_file: str = setting(
        "", "Keras file to write, NAME.keras; empty: none", group="Output"
    )
    saved_model: str = setting(
        "",
        "folder to write, which TensorFlow Serving loads; empty: none",
        group="Output",
    )

    @property
    def model_path(self) -> str:
        """The run directory or checkpoint."""
        return self.arguments[0]


def check(settings: ExportConfig) -> None:
    """Raises InputError unless there is one model to export, and a path to write."""
    got = settings.arguments
    errors.require(len(got) == 1, "arguments", got, "one run directory or checkpoint")
    check_fields(settings)
    name = settings.keras_file
    for of in ("keras_file", "saved_model"):
        errors.require_utf8(of, getattr(settings, of))
    is_met = not name or name.endswith(".keras")
    errors.require(is_met, "keras_file", name, "a name that ends in .keras")
    if not (name or settings.saved_model):
        raise errors.InputError(
            "export needs a path to write: got none; give keras_file, saved_model or "
            "both"
        )


def main(settings: ExportConfig) -> None:
    """Writes the files that are asked for, and prints what was written."""
    from tfmirror.inference import export
    from tfmirror.rundir import loading

    own_model = model_source.load(settings.model) if settings.model else None
    found = loading.find(settings.model_path, command.print_line, own_model)
    targets = [
        ("keras_file", settings.keras_file, export.write_keras),
        ("saved_model", settings.saved_model, export.write_saved_model),
    ]
    wanted = [(check_is_free(n, text), write) for n, text, write in targets if text]
    if len({path for path, _ in wanted}) < len(wanted):
        raise errors.InputError(
            "saved_model must be another path than keras_file: got "
            f"{settings.saved_model!r} for both"
        )
    model = loading.build(found)
    for path, write in wanted:
        try:
            write(model, path)
        except (OSError, export.SaveError) as error:
            reason = getattr(error, "strerror", None) or error
            raise errors.InputError(f"{path} can't be written: {reason}") from error
        print(f"wrote {path}: {found.settings['model']} of {found.source}")


def check_is_free(name: str, text: str) -> pathlib.Path:
    """Returns the path of something to write.

    Args:
      name: the setting, for the message of the error.
      text: the path as it was given.

    Raises:
      InputError: something exists at that path, or its folder does not exist.
    """
    path = errors.expand_path(name, text)
    errors.require(not path.exists(), name, text, "a path where nothing exists yet")
    errors.require(path.parent.is_dir(), name, text, "in an existing folder")
    return path


if __name__ == "__main__":
    command.run(main, ExportConfig, __doc__, check=check)
