"""A run of a model of the user's own: the same bits, resumed, and used afterwards."""

import csv
import io
import json
import pathlib
import shutil

import keras
import numpy as np
import own_models
import pytest
from helpers import make_call, make_examples

from tfmirror import config, errors, evaluate, export, predict
from tfmirror.data import datasets
from tfmirror.rundir import checkpoints
from tfmirror.training import run

FILE = pathlib.Path(own_models.__file__)
SMALL = f"{FILE}:small"

call_evaluate = make_call(evaluate.main, evaluate.EvaluateConfig, evaluate.check)
call_predict = make_call(predict.main, predict.PredictConfig, predict.check)
call_export = make_call(export.main, export.ExportConfig, export.check)

pytestmark = pytest.mark.training


def train(folder, model=SMALL, dataset=None, **settings):
    """Returns the summary of a short run with 4 microbatches a batch.

    Args:
      model: a name, or a function.
    """
    settings = {
        "gpus": 2,
        "device_type": "cpu",
        "microbatches": 4,
        "global_batch_size": 32,
        "epochs": 2,
        "limit_train_examples": 75,
        "limit_eval_examples": 45,
        "workdir": str(folder),
    } | settings
    if callable(model):
        return run.train(config.TrainConfig(**settings), model=model, dataset=dataset)
    return run.train(config.TrainConfig(model=model, **settings), dataset=dataset)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run directory of own_models.small on two replicas, named by its file."""
    folder = tmp_path_factory.mktemp("own") / "run"
    train(folder)
    return folder


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("num_replicas", [1, 4])
def test_the_weights_have_the_same_bits_on_any_number_of_replicas(
    finished, tmp_path, num_replicas
):
    summary = train(tmp_path / "run", gpus=num_replicas)
    assert summary["num_replicas"] == num_replicas
    assert summary_of(finished)["num_replicas"] == 2
    assert summary["weights_sha256"] == summary_of(finished)["weights_sha256"]


def test_a_function_from_python_is_the_same_run(finished, tmp_path):
    summary = train(tmp_path / "run", own_models.small)
    assert summary["weights_sha256"] == summary_of(finished)["weights_sha256"]
    assert summary["model"] == "own_models:small"
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (
        recorded["model_sha256"]
        == json.loads((finished / "config.json").read_text())["model_sha256"]
    )


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_run_is_resumed_by_another_name_of_the_same_function(
    finished, tmp_path, num_replicas
):
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("summary.json", "model.keras", "checkpoints/best.npz"):
        (folder / name).unlink()
    first, last = sorted(folder.glob("checkpoints/step-*.npz"))
    last.unlink()
    summary = train(folder, own_models.small, gpus=num_replicas, resume="auto")
    assert summary["weights_sha256"] == summary_of(finished)["weights_sha256"]


def test_another_function_or_another_file_does_not_resume_it(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    changed = tmp_path / "own_models.py"
    changed.write_text(FILE.read_text() + "# changed\n")
    settings = {"resume": "auto", "epochs": 3, "resume_override": "epochs"}
    for model, says in (
        (
            f"{changed}:small",
            "the run to resume has the model .*give the same function",
        ),
        (f"{FILE}:unbuilt", "the run to resume has the model .*give the same function"),
        ("cnn", "the run to resume had other settings: model "),
    ):
        with pytest.raises(errors.InputError, match=says):
            train(folder, model, **settings)
    assert summary_of(folder) == summary_of(finished)


def test_what_is_refused_leaves_nothing(tmp_path):
    with pytest.raises(errors.InputError, match="ends in softmax"):
        train(tmp_path / "run", f"{FILE}:softmax")
    with pytest.raises(errors.InputError, match="model must be left at 'cnn', since"):
        settings = config.TrainConfig(model=SMALL, workdir=str(tmp_path / "run"))
        run.train(settings, model=own_models.small)
    assert list(tmp_path.iterdir()) == []


# Used afterwards.


@pytest.mark.parametrize("model", [[], [f"--model={SMALL}"]])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_evaluate_gives_the_figures_of_the_run(finished, capsys, model, num_replicas):
    gpus = f"--gpus={num_replicas}"
    code, out, _ = call_evaluate(capsys, str(finished), gpus, "--json", *model)
    report, record = json.loads(out), summary_of(finished)["epochs"][-1]
    assert code == 0 and report["num_eval_examples"] == 45
    assert report["eval_loss"] == record["eval_loss"]


@pytest.mark.parametrize("call", [call_evaluate, call_export, call_predict])
def test_a_checkpoint_needs_the_function_and_its_own(finished, tmp_path, capsys, call):
    checkpoint = str(finished / "checkpoints" / "best.npz")
    more = {
        call_export: [f"--keras_file={tmp_path / 'a.keras'}"],
        call_predict: [str(tmp_path / "image.png")],
        call_evaluate: [],
    }[call]
    for model, says in (
        ([], f"that tfmirror does not have: give --model={SMALL}, whose code"),
        ([f"--model={FILE}:unbuilt"], f"the run's model is {SMALL} of a file"),
        (["--model=cnn"], "model must be FILE.py:FUNCTION or package.module:FUNCTION"),
    ):
        code, _, err = call(capsys, checkpoint, *more, *model)
        assert (code, err.count("\n")) == (2, 1) and says in err
    assert list(tmp_path.iterdir()) == []


def test_a_function_is_refused_for_a_model_of_this_package(finished_run, capsys):
    code, _, err = call_evaluate(capsys, str(finished_run), f"--model={SMALL}")
    assert code == 2 and "the run's model is cnn, which is built in: remove" in err


def test_layers_of_the_users_own_need_the_function(tmp_path, capsys):
    folder = tmp_path / "run"
    train(folder, f"{FILE}:subclass", epochs=1)
    code, _, err = call_evaluate(capsys, str(folder))
    assert code == 2 and err.count("\n") == 1
    assert f"give --model={FILE}:subclass, whose code then runs" in err
    model = f"--model={FILE}:subclass"
    code, out, _ = call_evaluate(capsys, str(folder), model, "--json")
    record = summary_of(folder)["epochs"][-1]
    assert code == 0 and json.loads(out)["eval_loss"] == record["eval_loss"]


def test_it_predicts_and_exports_what_plain_keras_computes(finished, tmp_path, capsys):
    data = make_examples(5)
    np.save(tmp_path / "unused.npy", data.images)
    from PIL import Image

    names = [str(tmp_path / f"{k}.png") for k in range(5)]
    for name, image in zip(names, data.images, strict=True):
        Image.fromarray(image[..., 0]).save(name)
    code, out, _ = call_predict(capsys, str(finished), *names)
    rows = list(csv.DictReader(io.StringIO(out)))
    plain = keras.models.load_model(finished / "model.keras", safe_mode=True)
    logits = plain.predict(data.images / np.float32(255), verbose=0)
    assert code == 0 and [int(r["class"]) for r in rows] == list(logits.argmax(1))
    file = tmp_path / "exported.keras"
    model = [f"--model={SMALL}", f"--keras_file={file}"]
    code, _, _ = call_export(capsys, str(finished / "checkpoints" / "best.npz"), *model)
    exported = keras.models.load_model(file, safe_mode=True)
    assert code == 0 and len(exported.layers) == len(plain.layers)


# Data from Python.


def make_dataset(num_classes=10, label=None, **changes):
    splits = {}
    for split, number in (("train", 75), ("eval", 45)):
        examples = make_examples(number, seed=number)
        if label is not None:
            changes["labels"] = np.full(number, label)
        arrays = {"images": examples.images, "labels": examples.labels % num_classes}
        splits[split] = tuple((arrays | changes).values())
    return datasets.from_splits(
        "mine", splits, source="a test", num_classes=num_classes
    )


def test_data_from_python_are_trained_on_and_recorded(tmp_path):
    data = make_dataset(3)
    summaries = [
        train(tmp_path / f"{n}", dataset=data, gpus=n, limit_eval_examples=40)
        for n in (1, 2)
    ]
    one, two = summaries
    assert one["weights_sha256"] == two["weights_sha256"]
    assert (two["dataset"], two["num_classes"]) == ("mine", 3)
    assert (two["num_train_examples"], two["num_eval_examples"]) == (75, 40)
    state, _ = checkpoints.latest(tmp_path / "2" / "checkpoints", pytest.fail)
    limited = datasets.limited(data, limit_train_examples=0, limit_eval_examples=40)
    assert state.data_sha256 == datasets.sha256(limited)


IMAGES = make_examples(4).images


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"images": IMAGES / np.float32(255)},
            r"float32 of shape .*in \[0, 1\]: multip",
        ),
        ({"images": IMAGES.astype(int)}, r"images \[E, H, W, C\] uint8 .*got int64"),
        ({"images": IMAGES[..., 0]}, r"got uint8 of shape \[4, 28, 28\]"),
        ({"images": IMAGES[:0]}, r"got uint8 of shape \[0, 28, 28, 1\]"),
        ({"images": IMAGES}, r"expected 4 labels \[E\] int32, one for each image, got"),
        (
            {"label": 3},
            r"expected labels in \[0, 3\), got 3 at example 0",
        ),
        ({"label": 0.5}, "labels must be whole numbers"),
    ],
)
def test_wrong_data_from_python_are_refused(tmp_path, changes, says):
    with pytest.raises(errors.InputError, match=says):
        train(tmp_path / "run", dataset=make_dataset(3, **changes))
    assert list(tmp_path.iterdir()) == []


def test_data_of_another_kind_are_refused(tmp_path):
    arrays = make_examples(4)
    with pytest.raises(errors.InputError, match="dataset must be one of datasets.from"):
        train(tmp_path / "run", dataset=(arrays.images, arrays.labels))


def test_a_folder_of_data_is_refused_beside_data_from_python(tmp_path):
    with pytest.raises(errors.InputError, match="data_dir must be empty, since a data"):
        train(tmp_path / "run", dataset=make_dataset(), data_dir=str(tmp_path))
