"""Archives of arrays are refused before they take more memory than they have."""

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from tfmirror import archives

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def npy(header):
    """Returns a `.npy` file of ARRAY's bytes with any header."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + ARRAY.tobytes()


def header(shape="(3, 4)", descr="'<f4'"):
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def archive_of(content, **options):
    """Returns a ZipFile with the member a.npy."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        archive.writestr("a.npy", content)
    return zipfile.ZipFile(buffer), len(buffer.getvalue())


@pytest.mark.parametrize(
    "array", [ARRAY, ARRAY.T, np.array(7), np.zeros((0, 3), np.int32)]
)
def test_reads_what_numpy_wrote(array):
    buffer = io.BytesIO()
    np.savez(buffer, a=array)
    archive = zipfile.ZipFile(buffer)
    archives.check_stored(archive, len(buffer.getvalue()))
    found = archives.read_array(archive, "a.npy")
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (npy(header("(35184372088832,)")), "announces 140,737,488,355,328 bytes"),
        (npy(header(f"({2**62}, {2**62})")), "announces"),
        (npy(header("(4, 4)")), "announces 64 bytes and has 48"),
        (npy(header("(3, 3)")), "announces 36 bytes and has 48"),
        (npy(header("(-3, -4)")), "."),
        (npy(header("()", "'|V2147483647'")), "announces 2,147,483,647"),
        (npy(header("(1,)", "'|O'")), "holds Python objects"),
        (npy(header("(3, 4)", "[('a', '|O'), ('b', '<f4')]")), "Python objects"),
        (npy("(" * 110), "no header of an array"),
        (npy(header()).replace(b"NUMPY\1", b"NUMPY\3"), "no header of an array"),
        (b"\x93NUMPY", "."),
        (b"no array", "."),
    ],
)
def test_a_header_that_does_not_fit_its_values_takes_no_memory(content, says):
    archive, num_bytes = archive_of(content)
    archives.check_stored(archive, num_bytes)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=says):
            archives.read_array(archive, "a.npy")
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_packed_members_are_refused_unread():
    """100 MB of zeros in 100 kB."""
    archive, num_bytes = archive_of(bytes(10**8), compression=zipfile.ZIP_DEFLATED)
    assert num_bytes < 10**6
    with pytest.raises(ValueError, match=r"a\.npy in it is packed"):
        archives.check_stored(archive, num_bytes)


def test_members_that_share_their_bytes_are_refused():
    archive, num_bytes = archive_of(npy(header()))
    archive.filelist += archive.filelist * 9
    with pytest.raises(ValueError, match="announces 1,760 bytes and has"):
        archives.check_stored(archive, num_bytes)
