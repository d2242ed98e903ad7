"""Images of a folder are the same in memory and read when needed; damage is named."""

import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys

import image_files
import numpy as np
import PIL.Image
import pytest
import tensorflow as tf
from helpers import make_call

from tfmirror import config, errors, hardware, inspect_replicas, train
from tfmirror.data import (
    conversion,
    datasets,
    folder_source,
    image_digests,
    pipeline,
    streaming,
)
from tfmirror.data.image_folder import Options

SIZE = (16, 12)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The tests' cache is a folder of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """40 JPEG files of two classes and ten odd images, in no splits."""
    image_files.write_folder(tmp_path / "images", 40)
    image_files.write_odd(tmp_path / "images/c00", np.random.default_rng(0))
    return tmp_path / "images"


def load(folder, in_memory, **limits):
    options = Options(SIZE, eval_fraction=0.2, in_memory=in_memory)
    return datasets.load("folder", str(folder), options=options, **limits)


def expected_pixels(path, size=SIZE):
    """Returns what Pillow makes of a plain JPEG file, [H, W, 3]."""
    with PIL.Image.open(path) as image:
        return np.asarray(image.resize(size[::-1], PIL.Image.Resampling.BILINEAR))


def test_images_and_labels_are_those_of_the_files(folder):
    found = load(folder, "yes")
    assert found.class_names == ("c00", "c01") and found.num_classes == 2
    assert len(found.train) + len(found.eval) == 50
    files = load(folder, "no").train.files
    for k, path in enumerate(files.paths):
        assert found.train.labels[k] == int(path[:3] == "c01")
        if "odd" not in path:
            expected = expected_pixels(folder / path)
            np.testing.assert_array_equal(found.train.images[k], expected)


def batches(examples):
    """Returns the per-replica batches of two epochs, some of them empty."""
    read = pipeline.per_replica_batches(
        examples,
        first=1,
        per_replica_batch_sizes=(5, 0, 3),
        batches_per_epoch=3,
        shuffle_seed=4,
    )
    return [(x.numpy(), y.numpy()) for x, y in itertools.islice(read, 18)]


def test_streamed_batches_are_those_in_memory(folder):
    memory, streamed = load(folder, "yes"), load(folder, "no")
    assert isinstance(streamed.train, streaming.StreamedExamples)
    pairs = zip(batches(memory.train), batches(streamed.train), strict=True)
    for (x, y), (streamed_x, streamed_y) in pairs:
        np.testing.assert_array_equal(streamed_x, x)
        np.testing.assert_array_equal(streamed_y, y)
    assert datasets.sha256(streamed) == datasets.sha256(memory)
    np.testing.assert_array_equal(streamed.eval.images, memory.eval.images)
    for source in (memory.train, streamed.train):
        images, labels = source.first(9).read(np.array([7, 0, 7]))
        np.testing.assert_array_equal(images, memory.train.images[[7, 0, 7]])
        np.testing.assert_array_equal(labels, memory.train.labels[[7, 0, 7]])


def write_noise(folder, rng):
    """Writes 40 PNG files of SIZE, of two classes."""
    for k in range(40):
        (folder / f"c{k % 2}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (*SIZE, 3)).astype(np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"c{k % 2}/{k}.png")


def test_a_png_file_that_is_damaged_later_stops_the_run(tmp_path):
    write_noise(tmp_path / "images", np.random.default_rng(0))
    examples = load(tmp_path / "images", "no").train
    path = pathlib.Path(examples.files.path(3))
    content = bytearray(path.read_bytes())
    content[60:100] = bytes(40)
    read = iter(
        pipeline.per_replica_batches(
            examples, first=0, per_replica_batch_sizes=(8,), batches_per_epoch=1
        )
    )
    path.write_bytes(content)
    with pytest.raises(errors.TrainingStoppedError, match="more, a PNG file .damaged"):
        with streaming.stops_on_unreadable_files(examples):
            for _ in range(50):
                next(read)


def test_streamed_png_files_that_need_no_conversion_are_those_in_memory(tmp_path):
    """The first two batches need none, and the last one has an image that does."""
    rng = np.random.default_rng(0)
    write_noise(tmp_path / "images", rng)
    memory, streamed = load(tmp_path / "images", "yes"), load(tmp_path / "images", "no")
    last = pathlib.Path(streamed.train.files.path(len(streamed.train) - 1))
    with PIL.Image.open(last) as image:
        image.save(last, dpi=(72, 72))
    pairs = zip(batches(memory.train), batches(streamed.train), strict=True)
    for (x, y), (streamed_x, streamed_y) in pairs:
        np.testing.assert_array_equal(streamed_x, x)
        np.testing.assert_array_equal(streamed_y, y)


def test_the_digest_covers_pixels_labels_and_order(folder):
    digests = {datasets.sha256(load(folder, "no"))}
    content = (folder / "c00/0000.jpg").read_bytes()
    (folder / "c00/0000.jpg").write_bytes((folder / "c01/0001.jpg").read_bytes())
    digests.add(datasets.sha256(load(folder, "no")))
    (folder / "c00/0000.jpg").write_bytes(content)
    assert datasets.sha256(load(folder, "no")) in digests and len(digests) == 2
    (folder / "c00/0000.jpg").rename(folder / "c01/0000.jpg")
    digests.add(datasets.sha256(load(folder, "yes")))
    (folder / "c01/0000.jpg").rename(folder / "c01/another.jpg")
    digests.add(datasets.sha256(load(folder, "yes")))
    assert len(digests) == 4


def test_a_limit_takes_the_first_examples_and_reads_no_others(folder, monkeypatch):
    whole = load(folder, "yes")
    seen, read = [], conversion.read
    monkeypatch.setattr(
        conversion,
        "read",
        lambda path, *a, **k: seen.append(path) or read(path, *a, **k),
    )
    for in_memory in ("yes", "no"):
        cut = load(folder, in_memory, limit_train_examples=7, limit_eval_examples=3)
        np.testing.assert_array_equal(cut.train.images, whole.train.images[:7])
        np.testing.assert_array_equal(cut.eval.labels, whole.eval.labels[:3])
    assert len(set(seen)) == 10
    with pytest.raises(errors.InputError, match="limit_train_examples must be at most"):
        load(folder, "no", limit_train_examples=99)


@pytest.fixture
def num_read(monkeypatch):
    """A function that returns how many files have been read since its last call."""
    seen, read = [], conversion.read

    def note(path, *args, **kwargs):
        seen.append(path)
        return read(path, *args, **kwargs)

    monkeypatch.setattr(conversion, "read", note)

    def count():
        number = len(seen)
        seen.clear()
        return number

    return count


def test_what_was_read_is_remembered_until_it_changes(folder, num_read):
    before = datasets.sha256(load(folder, "no"))
    assert num_read() == 50
    assert datasets.sha256(load(folder, "no")) == before and num_read() == 0
    os.utime(folder / "c00/0000.jpg", ns=(0, 0))  # its pixels are the same
    assert datasets.sha256(load(folder, "no")) == before and num_read() == 1
    load(folder, "no", limit_train_examples=3)
    image_files.write_folder(folder, 2, seed=7)  # two files are replaced
    assert datasets.sha256(load(folder, "no")) != before and num_read() == 2
    load(folder, "yes")
    assert num_read() == 50


def test_another_size_or_rule_is_read_anew(folder, num_read, monkeypatch):
    load(folder, "no")
    num_read()
    options = Options((12, 16), eval_fraction=0.2, in_memory="no")
    datasets.load("folder", str(folder), options=options)
    assert num_read() == 50
    monkeypatch.setattr(conversion, "VERSION", conversion.VERSION + 1)
    load(folder, "no")
    assert num_read() == 50


@pytest.mark.parametrize("spoil", ["damaged", "a file", "read-only", "no home"])
def test_a_cache_that_cannot_be_used_is_done_without(
    folder, tmp_path, num_read, monkeypatch, spoil
):
    cache = tmp_path / "cache/tfmirror"
    if spoil == "damaged":
        load(folder, "no")
        (saved,) = cache.iterdir()
        saved.write_bytes(saved.read_bytes()[:-40])
    elif spoil == "a file":
        cache.parent.mkdir()
        cache.touch()
    elif spoil == "read-only":
        monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        monkeypatch.setenv("HOME", "/proc/nowhere")
    num_read()
    load(folder, "no")
    assert num_read() == 50


def test_the_cache_stands_where_the_system_wants_it(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert image_digests._cache_folder() == pathlib.Path("/some/where/tfmirror")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/me")
    assert image_digests._cache_folder() == pathlib.Path("/home/me/.cache/tfmirror")


call = make_call(train.main, config.TrainConfig, config.check)


@pytest.mark.parametrize("in_memory", ["yes", "no"])
def test_all_damaged_images_are_named_together_and_nothing_is_written(
    folder, tmp_path, monkeypatch, capsys, in_memory
):
    damaged = image_files.write_damaged(folder / "c01", folder / "c00/0000.jpg")
    (folder / "c00/gone.png").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "c00/pipe.png")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    code, out, err = call(
        capsys, "--dataset=folder", f"--data_dir={folder}", "--image_size=16x12",
        "--eval_fraction=0.2", f"--data_in_memory={in_memory}", "--gpus=2",
    )  # fmt: skip
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "8 of 58 images can't be read" in err and "odd" not in err
    for path in [*damaged, folder / "c00/gone.png", folder / "c00/pipe.png"]:
        assert str(path) in err
    assert list((tmp_path / "cwd").iterdir()) == []


def test_without_a_size_all_images_must_have_one(tmp_path):
    folder = tmp_path / "images"
    image_files.write_folder(folder, 6, sides=(20, 20))
    options = Options(eval_fraction=0.3)
    found = datasets.load("folder", str(folder), options=options)
    assert found.train.image_shape == (20, 20, 3)
    image_files.write_folder(folder, 1, sides=(30, 30))
    with pytest.raises(errors.InputError, match="needed .* [15] of 6 images that are"):
        datasets.load("folder", str(folder), options=options)


def test_images_of_half_the_available_memory_are_held(folder, monkeypatch):
    num_bytes = 50 * SIZE[0] * SIZE[1] * 3
    for available, kind in (
        (2 * num_bytes, datasets.Examples),
        (2 * num_bytes - 2, streaming.StreamedExamples),
    ):
        monkeypatch.setattr(hardware, "available_memory", lambda n=available: n)
        loaded = load(folder, "auto")
        assert type(loaded.train) is kind
        assert ("in memory" in loaded.source) == (kind is datasets.Examples)


def test_more_than_the_machine_has_is_not_held(monkeypatch):
    monkeypatch.setattr(folder_source.files, "memory_bytes", lambda: 2**30)
    with pytest.raises(errors.InputError, match="data_in_memory must be auto or no"):
        folder_source._fits_in_memory(2**30 + 1, "yes")
    assert folder_source._fits_in_memory(2**30, "yes")
    assert not folder_source._fits_in_memory(2**30 + 1, "no")


@pytest.mark.parametrize("change", ["removed", "damaged"])
def test_a_file_that_changes_later_stops_the_run_by_name(folder, change):
    examples = load(folder, "no").train
    path = pathlib.Path(examples.files.path(3))
    read = iter(
        pipeline.per_replica_batches(
            examples, first=0, per_replica_batch_sizes=(8,), batches_per_epoch=1
        )
    )
    path.unlink() if change == "removed" else path.write_bytes(b"damaged")
    with pytest.raises(errors.TrainingStoppedError) as error:
        with streaming.stops_on_unreadable_files(examples):
            for _ in range(50):
                next(read)
    assert f"can't be read any more, {path} (" in str(error.value)
    assert "\n" not in str(error.value)


def test_other_errors_pass_through():
    with pytest.raises(tf.errors.UnknownError):
        with streaming.stops_on_unreadable_files(make_examples_without_problems()):
            raise tf.errors.UnknownError(None, None, "another")


def test_a_run_that_was_asked_to_end_says_so_although_a_file_has_changed(folder):
    examples = load(folder, "no").train
    examples.problems.append("a file that was read in advance")
    with pytest.raises(errors.InterruptedRunError, match="after step 3; wrote"):
        with streaming.stops_on_unreadable_files(examples):
            raise errors.InterruptedRunError("interrupted after step 3; wrote x")


def make_examples_without_problems():
    return datasets.load("digits", limit_train_examples=3).train


def test_the_digest_of_arrays_is_as_it_was():
    """Runs from before image folders must find their data unchanged."""
    digits = datasets.load("digits")
    digest = hashlib.sha256()
    for part in (digits.train, digits.eval):
        for array in (part.images, part.labels):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    assert datasets.sha256(digits) == digest.hexdigest()


def test_inspect_replicas_takes_images_of_a_folder(folder, capsys):
    """The labels are those of the first examples, two on each replica."""
    call_inspect = make_call(
        inspect_replicas.main, inspect_replicas.InspectConfig, inspect_replicas.check
    )
    arguments = ["--gpus=2", "--dataset=folder", f"--data_dir={folder}"]
    sizes = ["--image_size=24x20", "--channels=1", "--eval_fraction=0.2"]
    code, out, _ = call_inspect(capsys, *arguments, *sizes, "--json")
    options = Options((24, 20), channels=1, eval_fraction=0.2)
    train_labels = datasets.load("folder", str(folder), options=options).train.labels
    assert code == 0
    assert sum(json.loads(out)["labels"], []) == train_labels[:4].tolist()
    code, _, err = call_inspect(capsys, "--image_size=24x20")
    assert code == 2 and "image_size has an effect with dataset=folder alone" in err


FLAT = """
import pathlib, sys
import numpy as np, PIL.Image
from tfmirror.data import datasets, pipeline
from tfmirror.data.image_folder import Options

def resident():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096

folder, options = sys.argv[1], Options((96, 96), eval_fraction=0.1, in_memory="no")
examples = datasets.load("folder", folder, options=options).train
batches = iter(pipeline.per_replica_batches(
    examples, first=0, per_replica_batch_sizes=(16, 16), batches_per_epoch=10,
    shuffle_seed=0,
))
before, sizes = resident(), []
for k in range(400):
    next(batches)
    sizes.append(resident())
print(max(sizes) - before, max(sizes[100:]) - min(sizes[100:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="reads Linux's /proc"
)
def test_streaming_takes_little_memory_and_no_more_with_time(tmp_path):
    """20 epochs of 320 images and more: 9 MB as they are trained on, each epoch."""
    image_files.write_folder(tmp_path / "images", 360, sides=(200, 300))
    process = subprocess.run(
        [sys.executable, "-c", FLAT, str(tmp_path / "images")],
        capture_output=True,
        text=True,
        check=True,
    )
    taken, growth = map(int, process.stdout.split())
    assert taken < 200 * 2**20 and growth < 50 * 2**20


@pytest.mark.slow
def test_three_thousand_images_of_forty_classes_are_read(tmp_path, capsys, monkeypatch):
    """Of 200 to 1,000 pixels a side, ten of them odd and six damaged."""
    images = tmp_path / "images"
    image_files.main(images)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    arguments = ["--dataset=folder", f"--data_dir={images}", "--image_size=64x64"]
    code, out, err = call(capsys, *arguments, "--gpus=2")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "6 of 3,096 images can't be read" in err and "odd" not in err
    assert list((tmp_path / "cwd").iterdir()) == []
    for name in (
        "cut.jpg",
        "empty.png",
        "text.jpg",
        "zeros.png",
        "cut.gif",
        "head.png",
    ):
        assert str(images / "train/c01" / name) in err
        (images / "train/c01" / name).unlink()
    options = Options((64, 64), in_memory="no")
    loaded = datasets.load("folder", str(images), options=options)
    assert (len(loaded.train), len(loaded.eval)) == (3010, 80)
    assert loaded.num_classes == 40
    for k in (0, 1000, 3009):
        path = pathlib.Path(loaded.train.files.path(k))
        if "odd" not in path.name:
            (found,), _ = loaded.train.read(np.array([k]))
            np.testing.assert_array_equal(found, expected_pixels(path, (64, 64)))


ENDS = """
import sys
from tfmirror.data import datasets, pipeline
from tfmirror.data.image_folder import Options

options = Options((256, 256), eval_fraction=0.1, in_memory="no")
examples = datasets.load("folder", sys.argv[1], options=options).train
batches = iter(pipeline.per_replica_batches(
    examples, first=0, per_replica_batch_sizes=(8, 8), batches_per_epoch=2
))
next(batches)
print("ends")
"""


@pytest.mark.training
def test_a_process_ends_while_a_pipeline_reads(tmp_path):
    """It would wait for a thread that can't enter Python any more."""
    image_files.write_folder(tmp_path / "images", 30, sides=(200, 300))
    process = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "images")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, "ends\n")
