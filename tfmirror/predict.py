"""Predicts the class of images, in the order in which they are given.

python -m tfmirror.predict runs/first shoe.png bag.png
python -m tfmirror.predict runs/first t10k-images-idx3-ubyte.gz --format=json

The first argument is a run directory or a checkpoint; all others are image files
(whatever Pillow reads) or IDX files of images. Without --output_file, the table is
printed.
"""

import csv
import io
import json

from tfmirror import command, command_config, errors


def main(settings):
    """Prints or writes an entry for each image."""
    import numpy as np

    from tfmirror.data import images
    from tfmirror.inference import loading, prediction
    from tfmirror.parallel import devices
    from tfmirror.rundir import checkpoints

    if settings.output_file:
        path = errors.check_new_file("output_file", settings.output_file)
    chosen = devices.choose(settings.gpus, settings.device_type)
    found = loading.find(settings.arguments[0], command.print_to_stderr)
    files = settings.arguments[1:]
    read = [images.read(file, found.input_shape) for file in files]
    strategy = devices.make_strategy(chosen)
    model = loading.build(found, strategy)
    probabilities = prediction.predict(strategy, model, np.concatenate(read))
    text = FORMATS[settings.format](entries(files, map(len, read), probabilities))
    if not settings.output_file:
        print(text, end="")
        return
    try:
        checkpoints.write_file(path, text.encode())
    except OSError as error:
        raise errors.InputError(
            f"output_file can't be written: {error.strerror}"
        ) from error
    command.print_to_stderr(f"wrote {path}: {len(probabilities):,} predictions")


def entries(files, counts, probabilities):
    """Yields an entry for each image: where it is from, its class, how probable.

    Args:
      files: names of the files.
      counts: images in each of them.
      probabilities: [E, K] of all images.
    """
    rows = iter(probabilities)
    for file, count in zip(files, counts, strict=True):
        for position in range(count):
            row = next(rows)
            yield {
                "file": file,
                "index": position,
                "class": int(row.argmax()),
                "probability": float(str(row.max())),  # no digits beyond float32's
                "probabilities": [float(str(p)) for p in row],
            }


def to_csv(predicted):
    """Returns entries as CSV, with the probability of the class that is predicted."""
    buffer = io.StringIO()
    columns = ["file", "index", "class", "probability"]
    table = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(predicted)
    return buffer.getvalue()


def to_json(predicted):
    """Returns entries as a JSON list, with the probability of every class."""
    return json.dumps(list(predicted), indent=1) + "\n"


FORMATS = {"csv": to_csv, "json": to_json}


if __name__ == "__main__":
    command.run(
        main,
        command_config.PredictConfig,
        __doc__,
        check=command_config.check_predict,
    )
