"""The command predict: a row for each image, in order, the same on any devices."""

import csv
import io
import json
import os
import shutil

import keras
import numpy as np
import PIL.Image
import pytest
from helpers import idx_bytes, make_call

from tfmirror import predict
from tfmirror.data import datasets

IMAGES = datasets.load("digits").eval.images[:150]  # more than two pieces of 64


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """An image file, an IDX file of 148 images, and another image file."""
    folder = tmp_path_factory.mktemp("images of, digits")
    for k in (0, 149):
        PIL.Image.fromarray(IMAGES[k, ..., 0]).save(folder / f"{k}.png")
    (folder / "many").write_bytes(idx_bytes(IMAGES[1:149, ..., 0]))
    return [str(folder / name) for name in ("0.png", "many", "149.png")]


call = make_call(predict.main, predict.PredictConfig, predict.check)


@pytest.fixture(scope="module")
def expected(finished_run):
    """Probabilities of all IMAGES by plain Keras, [150, 10]."""
    model = keras.models.load_model(finished_run / "model.keras")
    logits = model.predict(IMAGES * np.float32(1 / 255), batch_size=64, verbose=0)
    return keras.ops.convert_to_numpy(keras.ops.softmax(logits))


def test_csv_has_a_row_an_image_in_order(finished_run, files, expected, capsys):
    code, out, err = call(capsys, finished_run, *files)
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["file"] for row in rows] == [files[0], *[files[1]] * 148, files[2]]
    assert [int(row["index"]) for row in rows] == [0, *range(148), 0]
    assert [int(row["class"]) for row in rows] == expected.argmax(axis=1).tolist()
    assert len(set(row["class"] for row in rows)) > 1
    found = np.float32([row["probability"] for row in rows])
    np.testing.assert_array_equal(found, expected.max(axis=1))


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_json_has_the_bits_of_plain_keras(
    finished_run, files, expected, capsys, num_replicas
):
    gpus = f"--gpus={num_replicas}"
    code, out, _ = call(capsys, finished_run, *files, "--format=json", gpus)
    found = [row["probabilities"] for row in json.loads(out)]
    assert code == 0
    np.testing.assert_array_equal(np.float32(found), expected)


def test_an_output_file_is_written_whole(finished_run, files, tmp_path, capsys):
    path = tmp_path / "predicted, ü.csv"
    code, out, err = call(capsys, finished_run, files[0], f"--output_file={path}")
    assert (code, out) == (0, "") and f"wrote {path}: 1 predictions" in err
    _, printed, _ = call(capsys, finished_run, files[0])
    assert path.read_text() == printed
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "a run directory or checkpoint, and then"),
        (["{run}"], "a run directory or checkpoint, and then"),
        (["{run}", "{file}", "gone.png"], "gone.png is not a file"),
        (["{file}", "{file}"], "a run directory or a checkpoint is expected"),
        (["{run}", "{file}", "--format=xml"], "format must be one of csv, json"),
        (["{run}", "{file}", "--output_file={run}/a/b"], "in an existing folder"),
        (
            ["{run}", "{file}", "--output_file={run}"],
            "a file in an existing folder",
        ),
        (["{run}", "{file}", "--output_file=."], "a file in an existing folder"),
        (["{run}", "{file}", "--output_file=/proc/a"], "output_file can't be written"),
        (["{run}", "x" * 300], "can't be used: File name too long"),
        (["~nobody_there", "{file}"], "names an unknown user"),
    ],
)
def test_wrong_input_is_one_line(finished_run, files, capsys, argv, says):
    before = sorted(finished_run.parent.rglob("*"))
    filled = [
        a.replace("{run}", str(finished_run)).replace("{file}", files[0]) for a in argv
    ]
    code, out, err = call(capsys, *filled)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and says in err
    assert sorted(finished_run.parent.rglob("*")) == before


@pytest.mark.parametrize("table", ["csv", "json"])
def test_a_file_name_that_is_not_utf8_is_written_as_it_is(
    finished_run, files, tmp_path, capsys, table
):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    shutil.copy(files[0], name)
    written = tmp_path / "table"
    argv = [f"--format={table}", f"--output_file={written}"]
    code, out, _ = call(capsys, finished_run, name, *argv)
    assert (code, out) == (0, "")
    if table == "csv":
        assert written.read_bytes().splitlines()[1].startswith(os.fsencode(name))
    else:
        assert json.loads(written.read_text())[0]["file"] == name
