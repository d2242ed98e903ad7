"""The IDX reader returns what was written, and refuses damaged files in one line."""

import gzip
import os
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from helpers import faults, idx_bytes

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
        ("a.gz", packed(with_shape(2**31, 28, 28)), "more than the 67,108,864 that"),
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


def peak_of_refusing(path, says):
    """Asserts that read_idx refuses a file; returns the most memory that it took."""
    tracemalloc.start()
    try:
        with pytest.raises(errors.InputError, match=says) as error:
            idx.read_idx(path, 3)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_a_small_packed_file_that_fills_the_memory_is_refused_unread(tmp_path):
    """A million black images of 28x28: 784 MB in a file of less than 1 MB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    header = struct.pack(">4B3I", 0, 0, 8, 3, 10**6, 28, 28)
    pieces = [packer.compress(header)]
    pieces += [packer.compress(bytes(784 * 1000)) for _ in range(1000)]
    (tmp_path / "a.gz").write_bytes(b"".join(pieces) + packer.flush())
    says = "announces 784,000,000 bytes of values, more than the"
    assert peak_of_refusing(tmp_path / "a.gz", says) < 10**6


def test_a_packed_file_that_is_longer_than_its_header_says_is_not_read_on(tmp_path):
    """100 MB behind the values of ARRAY."""
    (tmp_path / "a.gz").write_bytes(packed(WHOLE + bytes(10**8)))
    assert peak_of_refusing(tmp_path / "a.gz", "got more") < 10**6


def test_a_short_packed_file_takes_no_more_than_it_holds(tmp_path):
    """Its header announces 60 MB, which the system gives only as they are filled."""
    (tmp_path / "a.gz").write_bytes(packed(with_shape(6 * 10**5, 10, 10)))
    read = []

    class Watched(np.ndarray):
        def __setitem__(self, where, value):
            read.append(where)
            super().__setitem__(where, value)

    with pytest.raises(errors.InputError, match="expected 60,000,000 .* got 60"):
        idx.read_idx(tmp_path / "a.gz", 3)
    with idx._open(tmp_path / "a.gz") as file:
        file.read(16)
        values = np.empty(10**6, np.uint8).view(Watched)
        assert idx._read_into(file, values) == 60
    assert read == [slice(0, 60)]


def test_highly_packed_data_of_ordinary_size_are_read(tmp_path):
    """Black images of 28x28, packed 1,000 to one."""
    black = np.zeros((20_000, 28, 28), np.uint8)
    (tmp_path / "a.gz").write_bytes(packed(idx_bytes(black)))
    np.testing.assert_array_equal(idx.read_idx(tmp_path / "a.gz", 3), black)


def test_a_file_larger_than_the_memory_is_refused(tmp_path):
    """A file with a hole: it takes no disk."""
    with open(tmp_path / "a", "wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**9, 2**3))
        file.truncate(16 + 2**43)
    assert peak_of_refusing(tmp_path / "a", "must have at most") < 10**6


@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(errors.InputError, match="must be a regular file"):
        idx.read_idx(tmp_path / name, 3)
