"""Exports a trained model for programs that know nothing of tfmirror.

python -m tfmirror.export runs/first --saved_model=serving/shoes/1
python -m tfmirror.export runs/first/checkpoints/best.npz --keras_file=best.keras

The Keras file maps images in [0, 1] to logits. The SavedModel, which TensorFlow Serving
loads, takes 8-bit images [b, H, W, C] and gives "classes" [b] and "probabilities"
[b, K].
"""

from tfmirror import command, command_config, errors


def main(settings):
    """Writes what is asked for; prints what was written."""
    from tfmirror.inference import export, loading

    found = loading.find(settings.model_path, command.print_line)
    targets = [
        (settings.keras_file, export.write_keras),
        (settings.saved_model, export.write_saved_model),
    ]
    asked = [(errors.expand_path("a path", n), write) for n, write in targets if n]
    for path, _ in asked:
        check_is_free(path)
    errors.require(
        len({path for path, _ in asked}) == len(asked),
        "saved_model",
        settings.saved_model,
        "another path than keras_file",
    )
    model = loading.build(found)
    for path, write in asked:
        try:
            write(model, path)
        except (OSError, export.SaveError) as error:
            why = getattr(error, "strerror", None) or error
            raise errors.InputError(f"{path} can't be written: {why}") from error
        print(f"wrote {path}: {found.settings['model']} of {found.source}")


def check_is_free(path):
    """Raises InputError if something is at `path`, or no folder for it."""
    errors.require(not path.exists(), "a path to write", str(path), "a new one")
    folder = path.parent
    errors.require(
        folder.is_dir(), "a path to write", str(path), "in a folder there is"
    )


if __name__ == "__main__":
    command.run(
        main, command_config.ExportConfig, __doc__, check=command_config.check_export
    )
