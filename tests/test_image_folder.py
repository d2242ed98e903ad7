"""Classes, splits and the order of examples follow from the paths, by stated rules."""

import os
import pathlib

import numpy as np
import pytest

from tfmirror import errors
from tfmirror.data import image_folder
from tfmirror.data.image_folder import Options

TENTH = Options(eval_fraction=0.1)


def touch(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()


def labelled(files, names):
    """Returns {path: name of its class}."""
    labels = [names[label] for label in files.labels]
    return dict(zip(files.paths, labels, strict=True))


@pytest.mark.parametrize("evaluation", ["val", "test"])
def test_folders_train_and_val_or_test_hold_a_folder_for_each_class(
    tmp_path, evaluation
):
    touch(tmp_path, "train/b/1.png", "train/a/2.JPG", "train/a/deep/er/3.gif")
    touch(tmp_path, f"{evaluation}/a/4.bmp", f"{evaluation}/b/5.jpeg")
    touch(tmp_path, "train/a/.hidden.png", "train/.cache/x.png", "train/a/readme.txt")
    found = image_folder.find(tmp_path, Options())
    assert found.class_names == ("a", "b") and found.num_passed_over == 1
    assert labelled(found.splits["train"], found.class_names) == {
        "a/2.JPG": "a", "a/deep/er/3.gif": "a", "b/1.png": "b",
    }  # fmt: skip
    assert labelled(found.splits["eval"], "ab") == {"a/4.bmp": "a", "b/5.jpeg": "b"}
    assert (
        pathlib.Path(found.splits["eval"].path(0)).parent.parent
        == tmp_path / evaluation
    )
    assert found.splits["train"].labels.dtype == np.int32


def test_val_is_taken_before_test(tmp_path):
    touch(tmp_path, *(f"{s}/{c}/1.png" for s in ("train", "val", "test") for c in "ab"))
    files = image_folder.find(tmp_path, Options()).splits["eval"]
    assert files.folder == tmp_path / "val"


def test_an_added_file_moves_no_other_to_another_split(tmp_path):
    touch(tmp_path, *(f"{c}/{k}.png" for c in "ab" for k in range(300)))
    before = image_folder.find(tmp_path, TENTH).splits
    touch(tmp_path, *(f"{c}/{k}.png" for c in "ab" for k in range(300, 400)))
    after = image_folder.find(tmp_path, TENTH).splits
    for split in ("train", "eval"):
        old, new = before[split].paths, after[split].paths
        assert set(old) <= set(new)
        assert [path for path in new if path in set(old)] == list(old)  # in order
    assert 0.06 < len(after["eval"]) / 800 < 0.14  # 4 standard deviations
    assert not set(after["train"].paths) & set(after["eval"].paths)
    assert len(after["train"]) + len(after["eval"]) == 800


def test_the_first_examples_are_of_all_classes(tmp_path):
    touch(tmp_path, *(f"{c}/{k}.png" for c in "abcd" for k in range(100)))
    labels = image_folder.find(tmp_path, TENTH).splits["train"].labels
    assert np.bincount(labels[:80]).min() >= 8


def test_links_are_followed_and_a_loop_is_refused(tmp_path):
    touch(tmp_path, "elsewhere/a/1.png", "d/b/2.png", "d/b/3.png")
    (tmp_path / "d/a").symlink_to(tmp_path / "elsewhere/a")
    (tmp_path / "d/b/4.png").symlink_to(tmp_path / "d/b/2.png")
    files = image_folder._read_classes(tmp_path / "d").paths
    assert files["a"] == ["a/1.png"]
    assert sorted(files["b"]) == ["b/2.png", "b/3.png", "b/4.png"]
    (tmp_path / "d/b/loop").symlink_to(tmp_path / "d")
    with pytest.raises(errors.InputError, match="loop.* a folder that it is in itself"):
        image_folder.find(tmp_path / "d", TENTH)


def test_a_trained_model_is_evaluated_on_its_own_classes(tmp_path):
    """Numbers are those of the model, also where some classes have no images."""
    touch(tmp_path, "c/1.png", "a/2.png")
    found = image_folder.find(tmp_path, Options(class_names=("a", "b", "c")))
    assert labelled(found.splits["eval"], "abc") == {"a/2.png": "a", "c/1.png": "c"}
    assert len(found.splits["train"]) == 0
    touch(tmp_path, "d/1.png")
    with pytest.raises(errors.InputError, match="the 3 classes .* unknown: d; rename"):
        image_folder.find(tmp_path, Options(class_names=("a", "b", "c")))


@pytest.mark.parametrize(
    ("paths", "options", "says"),
    [
        ([], TENTH, "at least two: got none"),
        (["a/1.png"], TENTH, "a sub-folder for each class, at least two: got a"),
        (["a/1.png", "b/2.png"], Options(), "no folders train and val: add these, or"),
        (["1.png", "a/1.png", "b/1.png"], TENTH, "got 1.png in none; move it"),
        (["a/1.png", "b/1.txt"], TENTH, "each class must have an image .*none in b"),
        (["train/a/1.png", "train/b/2.png"], Options(), "no folder val or test: add"),
        (
            ["val/a/1.png", "val/b/2.png"],
            Options(),
            "a folder val, but no folder train",
        ),
        (
            ["train/a/1.png", "train/b/2.png", "val/b/3.png", "val/c/4.png"],
            Options(),
            "must have the 2 classes .* got 2, unknown: c; missing: a; rename",
        ),
        (
            [f"{s}/{c}/1.png" for s in ("train", "val") for c in "ab"],
            TENTH,
            "eval_fraction must be 0 for a folder that has its own folder train",
        ),
        (["a/1.png", "b/1.png"], Options(eval_fraction=1e-6), "must be larger"),
        (["a/1.png", "b/1.png"], Options(eval_fraction=0.999), "which leaves none of"),
        (["a\n/1.png", "b/1.png"], TENTH, r"printed: got 'a\\n'; rename"),
    ],
)
def test_a_folder_of_another_form_is_refused_in_one_line(
    tmp_path, paths, options, says
):
    touch(tmp_path, *paths)
    with pytest.raises(errors.InputError, match=says) as error:
        image_folder.find(tmp_path, options)
    assert "\n" not in str(error.value)


def test_a_name_that_is_not_utf8_is_refused_for_a_class_and_fine_for_a_file(tmp_path):
    touch(tmp_path, "a/1.png", "b/1.png", os.fsdecode(b"b/\xff.png"))
    found = image_folder.find(tmp_path, Options(class_names=("a", "b")))
    assert len(found.splits["eval"]) == 3
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(errors.InputError, match="a name in UTF-8"):
        image_folder.find(tmp_path, TENTH)
