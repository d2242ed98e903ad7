"""Prepared data of others can neither run code nor fill the memory."""

import json
import os
import struct
import sys
import zlib

import numpy as np
import pytest
import tensorflow as tf
from helpers import make_examples
from test_tfds_source import prepare

from tfmirror import errors
from tfmirror.data import datasets, tfds_files

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLES = make_examples(3)


@pytest.fixture
def prepared(tmp_path):
    """Folder of the files of a prepared dataset, own_set."""
    prepare(tmp_path, "own_set", {"train": EXAMPLES, "test": EXAMPLES})
    return tmp_path / "own_set" / "1.0.0"


def load(prepared):
    return datasets.load("own_set", str(prepared.parents[1]))


def refuses(prepared, says):
    """Asserts that the dataset is refused in one line."""
    with pytest.raises(errors.InputError, match=says) as error:
        load(prepared)
    assert "\n" not in str(error.value)


def test_the_module_that_a_description_names_is_not_imported(prepared, monkeypatch):
    module = prepared.parent / "module_of_others.py"
    module.write_text(f"open({str(prepared.parent / 'ran')!r}, 'w')\nclass F: pass\n")
    monkeypatch.syspath_prepend(str(prepared.parent))
    file = prepared / "features.json"
    text = file.read_text()
    for name in ("pythonClassName", "type"):
        features = json.loads(text)
        features[name] = "module_of_others.F"
        file.write_text(json.dumps(features))
        refuses(prepared, "must name classes of tensorflow-datasets alone")
    features = json.loads(text)
    features["featuresDict"]["features"]["image"]["pythonClassName"] = "module_of_o.F"
    file.write_text(json.dumps(features))
    refuses(prepared, "must name classes of tensorflow-datasets alone")
    assert not (prepared.parent / "ran").exists()
    assert "module_of_others" not in sys.modules


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_a_description_that_fills_the_memory_is_refused(prepared, name):
    os.truncate(prepared / name, 2**40)
    refuses(prepared, f"{name} must have at most 33,554,432 bytes")


def test_a_deeply_nested_description_is_refused(prepared):
    (prepared / "features.json").write_text("[" * 10**5)
    refuses(prepared, r"features.json: damaged")


def test_a_named_pipe_is_refused_and_not_waited_for(prepared):
    (shard,) = prepared.glob("*-test.tfrecord*")
    shard.unlink()
    os.mkfifo(shard)
    refuses(prepared, "must be a regular file")


def masked_crc(data):
    """Returns the checksum of TFRecord files."""
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_record_that_announces_more_than_its_file_has_is_refused(prepared):
    """The checksum of its length is right, so TensorFlow would believe it."""
    (shard,) = prepared.glob("*-test.tfrecord*")
    content = shard.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert struct.unpack("<I", content[8:12])[0] == masked_crc(content[:8])
    head = struct.pack("<Q", 2**45)
    shard.write_bytes(head + struct.pack("<I", masked_crc(head)) + content[12:])
    refuses(prepared, f"a record of {2**45:,} bytes, more than the file has left")


def test_more_examples_than_fit_into_memory_are_refused(prepared):
    file = prepared / "dataset_info.json"
    info = json.loads(file.read_text())
    for split in info["splits"]:
        split["shardLengths"] = [str(2**40)]
    file.write_text(json.dumps(info))
    refuses(
        prepared, "own_set must fit into memory: got 1,099,511,627,776 train images"
    )


def png(width, height):
    """Returns a grey PNG file of black pixels."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(width + 1) * height, 9)
    start = tfds_files.PNG_START + chunk(b"IHDR", head)
    return start + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def write_records(shard, images):
    """Writes a shard with encoded images, all of label 0."""
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for image in images:
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def test_an_image_of_another_size_is_refused_undecoded(prepared, monkeypatch):
    """A black image of 6,000 x 6,000 pixels takes 36 MB, and its file 35 kB."""
    (shard,) = prepared.glob("*-test.tfrecord*")
    write_records(shard, [png(28, 28)] * 3)
    np.testing.assert_array_equal(load(prepared).eval.images, 0)
    decoded = []
    decode_image = tf.image.decode_image

    def decode_and_note(contents, **options):
        tf.py_function(lambda c: decoded.append(len(c.numpy())), [contents], [])
        return decode_image(contents, **options)

    monkeypatch.setattr(tf.image, "decode_image", decode_and_note)
    bomb = png(6000, 6000)
    assert len(bomb) < 50_000
    write_records(shard, [png(28, 28), bomb, png(28, 28)])
    refuses(prepared, "an image is not of 28x28 pixels")
    assert len(bomb) not in decoded


@pytest.mark.parametrize("encode", [tf.io.encode_jpeg, tf.io.encode_png])
def test_the_size_in_the_head_of_a_file_is_read(encode):
    image = encode(np.zeros((20, 30, 1), np.uint8))
    assert tfds_files.check_encoded(image, 20, 30) == image
    for height, width in ((30, 20), (20, 20), (20, 31)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="an image is not of"):
            tfds_files.check_encoded(image, height, width)


@pytest.mark.parametrize("content", [b"", b"GIF89a" + bytes(50), b"BM" + bytes(50)])
def test_other_formats_are_refused(content):
    with pytest.raises(tf.errors.InvalidArgumentError, match="neither PNG nor JPEG"):
        tfds_files.check_encoded(tf.constant(content), 20, 30)


def test_mnist_under_another_name_is_recognised_in_any_order(tmp_path, mnist_folder):
    mnist = datasets.load("mnist", mnist_folder).eval
    part = datasets.Examples(mnist.images[49::-1], mnist.labels[49::-1])
    prepare(tmp_path, "own_set", {"train": part, "test": EXAMPLES})
    source = datasets.load("own_set", str(tmp_path)).source
    assert source.endswith("training images are a part of the test images of mnist")
