"""The IDX reader returns what was written, and refuses damaged files in one line."""

import gzip
import pathlib
import struct

import numpy as np
import pytest
from helpers import faults, idx_bytes, make_examples, write_idx_folder

from tfmirror import errors
from tfmirror.data import idx


def packed(content):
    """Returns `content` compressed with gzip, with the same bytes in every process."""
    return gzip.compress(content, mtime=0)


ARRAY = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
WHOLE = idx_bytes(ARRAY)


@pytest.mark.parametrize(("name", "pack"), [("a.gz", packed), ("a", bytes)])
def test_reads_back_what_was_written(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(WHOLE))
    np.testing.assert_array_equal(idx.read_idx(tmp_path / name, 3), ARRAY)


def with_shape(*shape):
    """Returns an IDX file of ARRAY's values with `shape` in its header."""
    return (
        struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + ARRAY.tobytes()
    )


HTML = b"<!DOCTYPE html><html><body>404 Not Found</body></html>"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.gz", packed(WHOLE)[:-20], "cut short"),
        ("a.gz", packed(WHOLE)[:-3], "cut short"),
        ("a.gz", packed(WHOLE)[:12], "cut short"),
        ("a.gz", b"", "not an IDX file"),
        ("a.gz", HTML, "not a valid gzip file"),
        ("a.gz", packed(HTML), "not an IDX file: it starts with b'<!DO'"),
        ("a.gz", packed(WHOLE)[:-8] + bytes(8), "not a valid gzip file"),  # CRC
        ("a", HTML, "not an IDX file"),
        ("a", b"", "not an IDX file"),
        ("a", WHOLE[:3], "not an IDX file"),
        ("a", WHOLE[:9], "cut short in its header"),
        ("a", WHOLE[:-1], "cut short|expected 60 bytes"),
        ("a", WHOLE + b"x", "got more"),
        ("a.gz", packed(WHOLE + b"x"), "got more"),
        ("a", with_shape(6, 4, 3), "expected 72 bytes"),
        ("a.gz", packed(with_shape(6, 4, 3)), "expected 72 bytes.*got 60"),
        ("a", with_shape(2**32 - 1, 2**32 - 1, 2**32 - 1), "cut short: its header"),
        ("a.gz", packed(with_shape(2**31, 28, 28)), "cut short: its header"),
        ("a", with_shape(0, 4, 3), "at least one example"),
        ("a", with_shape(20, 3), "expected 3 dimensions, got 2"),
        ("a", idx_bytes(ARRAY, type_code=0x0D), "got float32"),
        ("a", idx_bytes(ARRAY, type_code=0x07), "not an IDX file"),
    ],
)
def test_damaged_and_unexpected_files_are_refused(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(errors.InputError, match=says) as error:
        idx.read_idx(tmp_path / name, 3)
    assert str(tmp_path / name) in str(error.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(errors.InputError, match="can't be read: No such file"):
        idx.read_idx(tmp_path / "missing", 3)
    with pytest.raises(errors.InputError, match="can't be read: Is a directory"):
        idx.read_idx(tmp_path, 3)


@pytest.mark.parametrize("joint", ["-", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_finds_the_four_files_under_all_their_names(tmp_path, joint, packed):
    examples = make_examples(3)
    write_idx_folder(tmp_path, examples, examples, joint, packed)
    found = idx.find_idx_files(tmp_path)
    assert set(found) == set(idx.STEMS)
    assert all(path.is_file() for path in found.values())


def test_a_folder_without_idx_files_gives_none_and_a_missing_file_is_named(tmp_path):
    assert idx.find_idx_files(tmp_path) is None
    examples = make_examples(3)
    write_idx_folder(tmp_path, examples, examples)
    pathlib.Path(tmp_path, "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(errors.InputError, match="t10k-labels-idx1-ubyte.gz is missing"):
        idx.find_idx_files(tmp_path)


def test_every_fault_of_a_packed_file_is_recognised_or_harmless(
    tmp_path, record_property
):
    path, count, harmless = tmp_path / "a.gz", 0, []
    other = packed(idx_bytes(ARRAY[:4]))
    for what, damaged in faults(packed(WHOLE), other):
        path.write_bytes(damaged)
        count += 1
        try:
            found = idx.read_idx(path, 3)
        except errors.InputError:
            continue
        if what != "another file's":  # undamaged, but other data
            np.testing.assert_array_equal(found, ARRAY, what)
        harmless.append(what)
    assert count == 76 and len(harmless) < 15
    record_property(
        "shown", f"{count} faults of a packed IDX file, {len(harmless)} harmless"
    )
