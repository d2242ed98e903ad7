"""Examples whose images are read from their files each time that they are needed.

examples = StreamedExamples(files, (64, 64, 3), digests)
"""

import atexit
import contextlib
import dataclasses
import time
import typing
from collections.abc import Callable, Iterator

import numpy as np

from tfmirror import errors, hardware
from tfmirror.data import conversion
from tfmirror.data.examples import ExampleSource, update_digest
from tfmirror.data.image_folder import ImageFiles

if typing.TYPE_CHECKING:
    import hashlib

    import tensorflow as tf

QUIET_SECONDS = 0.1  # without a call, after which no thread of TensorFlow comes again
MOST_BATCHES_AT_ONCE = 16  # that are read at the same time; they take memory


@dataclasses.dataclass(frozen=True)
class StreamedExamples:
    """E image files and their labels: an ExampleSource that holds no images.

    All files have been read once, without fault.
    """

    files: ImageFiles
    image_shape: tuple[int, ...]  # (H, W, C) that the images are converted to
    digests: np.ndarray  # [E, 32] uint8, SHA-256 of the pixels of each image
    # Why a file could not be read again, from any thread.
    problems: list[str] = dataclasses.field(default_factory=list, compare=False)

    def __len__(self) -> int:
        """Returns E, the number of examples."""
        return len(self.files)

    @property
    def images(self) -> np.ndarray:
        """All images, [E, H, W, C] uint8, read from their files."""
        return self.read_images(np.arange(len(self)))

    @property
    def labels(self) -> np.ndarray:
        """Labels, [E] int32 in [0, K)."""
        return self.files.labels

    def first(self, number: int) -> "StreamedExamples":
        """Returns the first `number` examples."""
        return dataclasses.replace(
            self, files=self.files.chosen(slice(number)), digests=self.digests[:number]
        )

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns images [n, H, W, C] uint8 and labels [n] int32 at `indices`, [n]."""
        return self.read_images(indices), self.labels[indices]

    def read_images(self, indices: np.ndarray) -> np.ndarray:
        """Returns images [n, H, W, C] uint8 at `indices`, [n]; for many threads.

        Raises:
          UnreadableError: a file can't be read any more; `problems` says which.
        """
        return self._convert(indices, self._contents(indices))

    def _contents(self, indices: np.ndarray) -> list[bytes]:
        """Returns the contents of files, each one whole."""
        contents: list[bytes] = []
        try:
            for index in indices.tolist():
                contents.append(conversion.read_bytes(self.files.path(index)))
        except conversion.UnreadableError as error:
            self._note(indices[len(contents)], error)
            raise
        return contents

    def _convert(self, indices: np.ndarray, contents: list[bytes]) -> np.ndarray:
        """Returns images [n, H, W, C] uint8 of the contents of files."""
        images = np.empty((len(contents), *self.image_shape), np.uint8)
        for k, content in enumerate(contents):
            try:
                images[k] = conversion.convert(content, self.image_shape)
            except conversion.UnreadableError as error:
                self._note(indices[k], error)
                raise
        return images

    def _note(self, index: int, error: Exception) -> None:
        """Notes in `problems` why a file can't be read."""
        self.problems.append(f"{self.files.path(index)} ({error})")

    def _read_undecoded(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the contents of files, [n], if all are plain PNG; else their images.

        What is not returned is empty.
        """
        with _at_exit.calling():
            contents = self._contents(indices)
            if contents and all(
                conversion.is_plain_png(c, self.image_shape) for c in contents
            ):
                return np.array(contents, object), np.empty((0, 0, 0, 0), np.uint8)
            return np.empty(0, object), self._convert(indices, contents)

    def batches(
        self,
        counter: "tf.data.Dataset",
        indices: "Callable[[tf.Tensor], tf.Tensor]",
    ) -> "tf.data.Dataset":
        """Returns a dataset of the chosen examples; see ExampleSource."""
        import tensorflow as tf

        conversion.ignore_pillow_warnings()
        _at_exit.register()
        with tf.device("CPU"):
            labels = tf.constant(self.labels)

        def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = indices(number)
            contents, images = tf.numpy_function(
                self._read_undecoded, [chosen], (tf.string, tf.uint8)
            )
            contents = tf.ensure_shape(contents, [None])
            # Python's lock is held by one thread at a time. TensorFlow needs none, and
            # gives the same pixels.
            images = tf.cond(
                tf.size(contents) > 0,
                lambda: _decode_png(contents, self.image_shape),
                lambda: images,
            )
            shape = [*chosen.shape, *self.image_shape]
            return tf.ensure_shape(images, shape), tf.gather(labels, chosen)

        at_once = min(hardware.num_cores(), MOST_BATCHES_AT_ONCE)
        return counter.map(read, num_parallel_calls=at_once, deterministic=True)

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Adds all images and labels to a digest, and shapes and dtypes."""
        update_digest(digest, self.image_shape, self.digests, self.labels)


class _AtExit:
    """Keeps TensorFlow's threads out of Python while it ends.

    A thread that enters Python then never returns, and the deletion of an iterator that
    is still there waits for it for ever (TensorFlow 2.21).
    """

    def __init__(self) -> None:
        """Registers nothing yet."""
        self._is_registered = self._is_ending = False
        self._last_call = 0.0
        self._running: set[object] = set()

    def register(self) -> None:
        """Lets the end of Python wait for the threads; the first call counts."""
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._end)

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Notes that a thread is in Python; raises an error while Python ends."""
        if self._is_ending:
            self._last_call = time.monotonic()
            raise conversion.UnreadableError("the process ends")
        running = object()
        self._running.add(running)
        try:
            yield
        finally:
            self._running.discard(running)
            self._last_call = time.monotonic()

    def _end(self) -> None:
        """Waits until what the pipelines hold in advance is filled, with errors."""
        self._is_ending, self._last_call = True, time.monotonic()
        while self._running or time.monotonic() - self._last_call < QUIET_SECONDS:
            time.sleep(QUIET_SECONDS / 10)


_at_exit = _AtExit()


def _decode_png(contents: "tf.Tensor", shape: tuple[int, ...]) -> "tf.Tensor":
    """Returns the images [n, H, W, C] of PNG files [n] of this shape."""
    import tensorflow as tf

    def decode(content: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.io.decode_png(content, shape[-1]), shape)

    signature = tf.TensorSpec(shape, tf.uint8)
    return tf.map_fn(decode, contents, fn_output_signature=signature)


@contextlib.contextmanager
def stops_on_unreadable_files(*sources: ExampleSource) -> Iterator[None]:
    """Turns what TensorFlow raises for a file that is gone into one line.

    Raises:
      TrainingStoppedError: a file of streamed examples can't be read any more.
    """
    import tensorflow as tf

    try:
        yield
    # Others, such as that of a run that was asked to end, stay as they are.
    except (tf.errors.OpError, conversion.UnreadableError) as error:
        streamed = [s for s in sources if isinstance(s, StreamedExamples)]
        problems = [problem for source in streamed for problem in source.problems]
        if streamed and not problems and "DecodePng" in str(error):
            # TensorFlow does not say which file it was.
            problems = ["a PNG file (damaged since it was checked)"]
        if not problems:
            raise
        raise errors.TrainingStoppedError(
            f"an image can't be read any more, {problems[0]}: put it back as it was, "
            "and resume the run, which first checks the images that have changed"
        ) from error
