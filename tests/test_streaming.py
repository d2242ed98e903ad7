"""A run on an image folder gives the same bits in memory and read when needed."""

import csv
import io
import json
import pathlib

import image_files
import numpy as np
import PIL.Image
import pytest
from helpers import make_call, write_idx_folder

from tfmirror import config, errors, evaluate, predict
from tfmirror.data import conversion, datasets, image_folder
from tfmirror.training import interruption, run

pytestmark = pytest.mark.training

FOLDER = {
    "dataset": "folder",
    "image_size": "28x28",
    "eval_fraction": 0.2,
    "global_batch_size": 32,
    "microbatches": 2,
    "learning_rate": 0.05,
    "epochs": 2,
    "device_type": "cpu",
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """120 JPEG files of three classes and ten odd images, in no splits."""
    place = tmp_path_factory.mktemp("data") / "images, ü"
    image_files.write_folder(place, 120, 3, sides=(20, 60))
    image_files.write_odd(place / "c00", np.random.default_rng(0))
    return place


def settings(folder, workdir, **changes):
    values = FOLDER | {"data_dir": str(folder), "workdir": str(workdir)} | changes
    return config.TrainConfig(**values)


@pytest.fixture(scope="module")
def in_memory(folder, tmp_path_factory):
    """The run directory and the summary of a run on two replicas, in memory."""
    place = tmp_path_factory.mktemp("runs") / "memory"
    return place, run.train(settings(folder, place, gpus=2, data_in_memory="yes"))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_streamed_run_has_the_bits_of_one_in_memory(
    folder, in_memory, tmp_path, num_replicas
):
    streamed = run.train(
        settings(folder, tmp_path, gpus=num_replicas, data_in_memory="no")
    )
    assert streamed["weights_sha256"] == in_memory[1]["weights_sha256"]
    for ours, theirs in zip(streamed["epochs"], in_memory[1]["epochs"], strict=True):
        assert ours["eval_loss"] == theirs["eval_loss"]


def test_an_interrupted_run_goes_on_with_the_same_bits_streamed_or_not(
    folder, in_memory, tmp_path, monkeypatch
):
    """Begun streamed on one replica, asked to end in its first epoch; then in memory
    on two."""
    asked = []

    class AskedOnce(interruption.Watch):
        @property
        def is_asked(self):
            return not asked.append(0) and len(asked) == 2

    with monkeypatch.context() as patch:
        patch.setattr(interruption, "Watch", AskedOnce)
        with pytest.raises(errors.InterruptedRunError, match="of epoch 1;"):
            run.train(
                settings(
                    folder, tmp_path, gpus=1, data_in_memory="no", steps_per_loop=1
                )
            )
    resumed = run.train(
        settings(folder, tmp_path, gpus=2, data_in_memory="yes", resume="auto")
    )
    assert resumed["weights_sha256"] == in_memory[1]["weights_sha256"]


def test_a_run_on_other_images_is_not_resumed(folder, in_memory, tmp_path):
    other = tmp_path / "other"
    image_files.write_folder(other, 120, 3, sides=(20, 60), seed=1)
    with pytest.raises(errors.InputError, match="trained on other data"):
        run.train(
            settings(
                other, tmp_path / "new", gpus=2, resume=str(in_memory[0]), epochs=2
            )
        )


@pytest.mark.slow
def test_png_files_give_the_bits_of_idx_files_in_their_order(tmp_path):
    """PNG is lossless, so with the order of the folder nothing differs."""
    digits = datasets.load("digits", limit_train_examples=96, limit_eval_examples=40)
    parts = {}
    for split, name in (("train", "train"), ("eval", "test")):
        examples, order = getattr(digits, split), []
        for k in range(len(examples)):
            path = f"{examples.labels[k]}/{k}.png"
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            image = PIL.Image.fromarray(examples.images[k, ..., 0])
            image.save(tmp_path / name / path)
            order.append((image_folder.path_hash(path), k))
        parts[split] = datasets.Examples(
            *examples.read(np.array([k for _, k in sorted(order)]))
        )
    idx = write_idx_folder(tmp_path / "idx", parts["train"], parts["eval"])
    plain = {"image_size": "", "eval_fraction": 0.0, "gpus": 2, "epochs": 1}
    digests = [
        run.train(
            settings(
                tmp_path, tmp_path / mode, channels=1, data_in_memory=mode, **plain
            )
        )["weights_sha256"]
        for mode in ("yes", "no")
    ]
    from_idx = run.train(
        settings(idx, tmp_path / "from idx", **plain | {"dataset": "own"})
    )
    assert digests == [from_idx["weights_sha256"]] * 2


call_predict = make_call(predict.main, predict.PredictConfig, predict.check)
call_evaluate = make_call(evaluate.main, evaluate.EvaluateConfig, evaluate.check)


def test_the_names_of_the_classes_are_kept_with_the_run(in_memory):
    place, summary = in_memory
    names = ["c00", "c01", "c02"]
    assert summary["class_names"] == names
    assert json.loads((place / "summary.json").read_text())["class_names"] == names


@pytest.mark.parametrize("what", ["run", "checkpoint"])
def test_predict_converts_images_and_names_their_classes(
    folder, in_memory, capsys, what
):
    model = in_memory[0] / ("checkpoints/best.npz" if what == "checkpoint" else "")
    if what == "checkpoint":  # the best may not be the last: its rows are its own
        model = sorted(pathlib.Path(in_memory[0], "checkpoints").glob("*.npz"))[-1]
    paths = [folder / "c01/0001.jpg", folder / "c00/odd cmyk.jpeg"]
    paths += [folder / "c00/odd frames.gif", folder / "c00/odd alpha.png"]
    code, out, err = call_predict(capsys, model, *paths)
    assert code == 0
    assert err == (
        "image files are resized to 28x28 and converted to RGB, as in the training\n"
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["file"] for row in rows] == [str(path) for path in paths]
    for row in rows:
        assert row["class_name"] == f"c{int(row['class']):02}"
    code, out, _ = call_predict(capsys, model, *paths, "--format=json")
    assert [r["class_name"] for r in json.loads(out)] == [r["class_name"] for r in rows]


def test_predict_gives_the_model_what_training_gave_it(
    folder, in_memory, capsys, tmp_path
):
    """A PNG of the converted pixels is predicted like the file that they are of."""
    path = folder / "c00/odd lying.JPG"
    pixels = conversion.read(path, (28, 28, 3))
    PIL.Image.fromarray(pixels).save(tmp_path / "a.png")
    _, out, _ = call_predict(
        capsys, in_memory[0], path, tmp_path / "a.png", "--format=json"
    )
    first, second = json.loads(out)
    assert first["probabilities"] == second["probabilities"]


def test_predict_names_a_file_that_is_no_image(in_memory, capsys, tmp_path):
    (tmp_path / "a.jpg").write_text("<html>")
    code, out, err = call_predict(capsys, in_memory[0], tmp_path / "a.jpg")
    assert (code, out) == (2, "") and "a.jpg: can't be read as an image" in err


def test_evaluate_takes_the_images_that_the_run_evaluated(in_memory, capsys):
    code, out, _ = call_evaluate(capsys, in_memory[0], "--json")
    found = json.loads(out)
    assert code == 0 and found["class_names"] == ["c00", "c01", "c02"]
    last = in_memory[1]["epochs"][-1]
    assert found["num_eval_examples"] == in_memory[1]["num_eval_examples"]
    assert found["eval_accuracy"] == last["eval_accuracy"]
    _, out, _ = call_evaluate(capsys, in_memory[0])
    assert "\nclasses: c00, c01, c02\n" in out


def test_evaluate_takes_other_images_by_the_names_of_the_classes(
    in_memory, capsys, tmp_path
):
    """Two of the three classes; all of the images, since there are no splits."""
    image_files.write_folder(tmp_path, 8, 2)
    (tmp_path / "c00").rename(tmp_path / "c02")
    argv = [in_memory[0], f"--data_dir={tmp_path}", "--eval_fraction=0", "--json"]
    code, out, _ = call_evaluate(capsys, *argv)
    assert code == 0 and json.loads(out)["num_eval_examples"] == 8
    (tmp_path / "c02").rename(tmp_path / "dogs")
    code, out, err = call_evaluate(capsys, *argv)
    assert (code, out) == (2, "") and "unknown: dogs" in err


def test_evaluate_refuses_a_fraction_of_other_data(finished_run, capsys):
    code, _, err = call_evaluate(capsys, finished_run, "--eval_fraction=0.5")
    assert code == 2 and "eval_fraction has an effect with dataset=folder alone" in err
