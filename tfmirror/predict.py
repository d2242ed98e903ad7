"""Predicts the class of images, in the order in which they are given.

python -m tfmirror.predict runs/first shoe.png bag.png
python -m tfmirror.predict runs/first t10k-images-idx3-ubyte.gz --format=json

The first argument is a run directory or a checkpoint. The others are image files (BMP,
JPEG, PNG, TIFF or WebP), which are turned as their EXIF orientation says, or IDX files
of images. For a model of an image folder, image files (also GIF) are resized and
converted as they were in its training.
"""

import csv
import dataclasses
import io
import json
import typing
from collections.abc import Iterable, Iterator, Sequence

from tfmirror import command, errors, files, folder_settings, model_source
from tfmirror.settings import check_fields, positional_arguments, setting, setting_of
from tfmirror.train_config import TrainConfig

if typing.TYPE_CHECKING:
    import numpy as np

# What is predicted for one image, by name.
Entry = dict[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class PredictConfig:
    """All settings of predictions."""

    arguments: tuple[str, ...] = positional_arguments("RUN_DIR|CHECKPOINT FILE...")
    model: str = setting(
        "",
        model_source.HELP_OF_RUN,
        group="Model",
        check_choice=model_source.check_of_run,
    )
    gpus: int = setting_of(TrainConfig, "gpus")
    device_type: str = setting_of(TrainConfig, "device_type")
    format: str = setting(
        "csv",
        "format of the table. csv: file, index of the image in the file, class, "
        "probability of that class, and its name if the run knows it; json: the same "
        "and the probability of every class",
        group="Output",
        choices=("csv", "json"),
    )
    output_file: str = setting(
        "", "file to write; empty: print the table", group="Output"
    )


def check(settings: PredictConfig) -> None:
    """Raises InputError at the first setting that is wrong on any machine."""
    got = settings.arguments
    expected = "a run directory or checkpoint, and then one file or more"
    errors.require(len(got) >= 2, "arguments", got, expected)
    check_fields(settings)


def main(settings: PredictConfig) -> None:
    """Prints or writes an entry for each image."""
    import numpy as np

    from tfmirror.data import images
    from tfmirror.inference import prediction
    from tfmirror.parallel import devices, runtime
    from tfmirror.rundir import loading

    if settings.output_file:
        path = errors.check_new_file("output_file", settings.output_file)
    chosen = devices.set_up(settings.gpus, settings.device_type)
    if chosen.are_stand_ins:
        runtime.keep_freed_memory()
    own_model = model_source.load(settings.model) if settings.model else None
    found = loading.find(settings.arguments[0], command.print_to_stderr, own_model)
    names = settings.arguments[1:]
    is_converted = found.settings["dataset"] == folder_settings.FOLDER
    read = [
        images.read(name, found.input_shape, is_converted=is_converted)
        for name in names
    ]
    if is_converted:
        height, width, channels = found.input_shape
        command.print_to_stderr(
            f"image files are resized to {height}x{width} and converted to "
            f"{'grey' if channels == 1 else 'RGB'}, as in the training"
        )
    strategy = devices.make_strategy(chosen)
    model = loading.build(found, strategy)
    probabilities = prediction.predict(strategy, model, np.concatenate(read))
    predicted = entries(names, map(len, read), probabilities, found.class_names)
    text = FORMATS[settings.format](predicted)
    if not settings.output_file:
        print(text, end="")
        return
    try:
        files.write_text(path, text)
    except OSError as error:
        raise errors.InputError(
            f"output_file can't be written: {error.strerror}"
        ) from error
    command.print_to_stderr(f"wrote {path}: {len(probabilities):,} predictions")


def entries(
    names: Sequence[str],
    counts: Iterable[int],
    probabilities: "np.ndarray",
    class_names: Sequence[str] = (),
) -> Iterator[Entry]:
    """Yields an entry for each image: its file, its class and the probabilities.

    Args:
      names: of the files.
      counts: number of images in each file.
      probabilities: [E, K] float32 in [0, 1], of the images of all files in order.
      class_names: [K]; empty: the entries hold none.
    """
    rows = iter(probabilities)
    for name, count in zip(names, counts, strict=True):
        for index in range(count):
            row = next(rows)
            number = int(row.argmax())
            yield {
                "file": name,
                "index": index,
                "class": number,
                **({"class_name": class_names[number]} if class_names else {}),
                # Through text, for no more digits than float32 has.
                "probability": float(str(row.max())),
                "probabilities": [float(str(p)) for p in row],
            }


def to_csv(predicted: Iterable[Entry]) -> str:
    """Returns entries as CSV, with the probability of the predicted class only."""
    buffer = io.StringIO()
    predicted = list(predicted)
    columns = ["file", "index", "class", "probability"]
    if "class_name" in predicted[0]:
        columns.insert(columns.index("class") + 1, "class_name")
    table = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(predicted)
    return buffer.getvalue()


def to_json(predicted: Iterable[Entry]) -> str:
    """Returns entries as a JSON list, with the probability of every class."""
    return json.dumps(list(predicted), indent=1) + "\n"


FORMATS = {"csv": to_csv, "json": to_json}


if __name__ == "__main__":
    command.run(main, PredictConfig, __doc__, check=check)
