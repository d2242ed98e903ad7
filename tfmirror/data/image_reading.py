"""Reads all images of a folder once: into memory, or to find those that can't be read.

read = read_all(files, (64, 64, 3), is_resized=True, is_kept=True)
read.images, read.digests                           # [E, 64, 64, 3], [E, 32] uint8
read.problems                                       # {path: why it can't be read}
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich import console, progress

from tfmirror import hardware
from tfmirror.data import conversion, image_digests
from tfmirror.data.image_folder import ImageFiles

NUM_AT_ONCE = 32  # images that a thread reads before it tells of them


@dataclasses.dataclass(frozen=True)
class Read:
    """What became of E image files."""

    images: np.ndarray | None  # [E, H, W, C] uint8; None: not kept
    digests: np.ndarray  # [E, 32] uint8, SHA-256 of the pixels of each image
    problems: dict[str, str]  # path -> why the file can't be read
    other_sizes: dict[str, str]  # path -> HxW of an image that must not be resized


def read_all(
    files: ImageFiles, shape: Sequence[int], *, is_resized: bool, is_kept: bool
) -> Read:
    """Returns the images of all files, or just whether all can be read.

    If they are not kept, files that `image_digests` knows are not read again. On a
    terminal, standard error shows how far it is.

    Args:
      shape: (H, W, C) that the images are converted to.
      is_resized: whether images of another size are resized.
      is_kept: whether the images are wanted.
    """
    key = f"{list(shape)} {is_resized}"
    known = image_digests.load(files, key)
    before = known.is_known.copy()
    images = np.empty((len(files), *shape), np.uint8) if is_kept else None
    problems: dict[str, str] = {}
    other_sizes: dict[str, str] = {}

    def read(index: int) -> None:
        path = files.path(index)
        known.is_known[index] = False
        try:
            pixels = conversion.read(path, shape, is_resized=is_resized)
        except conversion.OtherSizeError as error:
            other_sizes[path] = str(error)
            return
        except conversion.UnreadableError as error:
            problems[path] = str(error)
            return
        if images is not None:
            images[index] = pixels
        digest = hashlib.sha256(np.ascontiguousarray(pixels).data).digest()
        known.digests[index] = np.frombuffer(digest, np.uint8)
        known.is_known[index] = True

    with conversion.quiet_pillow():
        _for_each(read, np.arange(len(files)) if is_kept else np.flatnonzero(~before))
    if (known.is_known & ~before).any():
        image_digests.save(files, key, known)
    return Read(images, known.digests, _sorted(problems), _sorted(other_sizes))


def _sorted(texts: dict[str, str]) -> dict[str, str]:
    """Returns a dictionary in the order of its keys."""
    return dict(sorted(texts.items()))


def _for_each(read: Callable[[int], None], indices: np.ndarray) -> None:
    """Calls `read` for each index, in as many threads as there are cores."""
    spans = [
        indices[k : k + NUM_AT_ONCE].tolist()
        for k in range(0, len(indices), NUM_AT_ONCE)
    ]

    def read_span(span: list[int]) -> int:
        for index in span:
            read(index)
        return len(span)

    with concurrent.futures.ThreadPoolExecutor(hardware.num_cores()) as pool:
        try:
            with _shown_progress(len(indices)) as advance:
                for number in pool.map(read_span, spans):
                    advance(number)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _shown_progress(number: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of images read since it was called."""
    # Not standard output, which may be one JSON object.
    output = console.Console(stderr=True, highlight=False)
    columns = (
        progress.TextColumn("reading images"),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.completed:,}/{task.total:,}"),
        progress.TimeRemainingColumn(compact=True),
    )
    is_hidden = not output.is_terminal
    with progress.Progress(
        *columns, console=output, transient=True, disable=is_hidden
    ) as bar:
        task = bar.add_task("", total=number)
        yield lambda more: bar.advance(task, more)
