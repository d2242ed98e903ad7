"""Zip archives of arrays that may be hostile: sizes are checked before memory is taken.

    with zipfile.ZipFile(path) as archive:
        check_stored(archive, path.stat().st_size)
        array = read_array(archive, "variable0.npy")

An array's header may announce any size, and a packed member may unfold to a thousand
times its own size. tfmirror and Keras write members unpacked.
"""

import math
import zipfile

import numpy as np

HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def check_stored(archive: zipfile.ZipFile, num_bytes: int) -> None:
    """Raises ValueError unless all members together fit into the archive.

    Args:
      archive: open for reading.
      num_bytes: size of the whole archive.
    """
    members = archive.infolist()
    for member in members:
        if (
            member.compress_type != zipfile.ZIP_STORED
            or member.file_size != member.compress_size
        ):
            raise ValueError(f"{member.filename} in it is packed")
    total = sum(member.file_size for member in members)
    if total > num_bytes:  # such as many members that share their bytes
        raise ValueError(f"it announces {total:,} bytes and has {num_bytes:,}")


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Returns the array in the `.npy` member `name` of a checked archive.

    Raises:
      KeyError: there is no such member.
      ValueError: it is no array of numbers of the size that its header announces.
    """
    member = archive.getinfo(name)
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            shape, _, dtype = HEADER_READERS[version](file)
        except (
            Exception
        ) as error:  # NumPy parses it as Python, with many kinds of errors
            raise ValueError(f"{name} has no header of an array") from error
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which could run code")
        announced = math.prod(shape) * dtype.itemsize
        held = member.file_size - file.tell()
    if announced != held:
        raise ValueError(f"{name} announces {announced:,} bytes and has {held:,}")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
