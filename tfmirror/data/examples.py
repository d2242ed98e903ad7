"""Images with labels, held once: NumPy and TensorFlow read the same memory.

examples = Examples(images, labels)
images, labels = examples.variables()               # on the host
"""

import dataclasses
import typing
from collections.abc import Callable

import numpy as np

if typing.TYPE_CHECKING:
    import hashlib

    import tensorflow as tf


class ExampleSource(typing.Protocol):
    """E images with their labels, in a fixed order, wherever the images are."""

    @property
    def images(self) -> np.ndarray:
        """All images, [E, H, W, C] uint8; those that are not held are read for it."""

    @property
    def labels(self) -> np.ndarray:
        """Labels, [E] int32 in [0, K)."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C)."""

    def __len__(self) -> int:
        """Returns E, the number of examples."""

    def first(self, number: int) -> "ExampleSource":
        """Returns the first `number` examples."""

    def read(self, indices: np.ndarray) -> "tuple[np.ndarray, np.ndarray]":
        """Returns images [n, H, W, C] uint8 and labels [n] int32 at `indices`, [n]."""

    def batches(
        self,
        counter: "tf.data.Dataset",
        indices: "Callable[[tf.Tensor], tf.Tensor]",
    ) -> "tf.data.Dataset":
        """Returns a dataset of the examples that `indices` chooses for each number.

        Args:
          counter: numbers, int64 scalars.
          indices: function of a number that returns indices [n] int64; n may be 0.

        Returns:
          Elements (images [n, H, W, C] uint8, labels [n] int32), in the order of
          `counter`.
        """

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Adds all images and labels to a digest, and shapes and dtypes."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """E images and their labels, in the same order: an ExampleSource in memory.

    With the first call of `variables` TensorFlow takes over: the arrays are then views
    of its memory. So any number of pipelines, on any number of devices, hold one copy.
    """

    images: np.ndarray  # [E, H, W, C] uint8
    labels: np.ndarray  # [E] int32 in [0, K)
    # SHA-256 of each image, [E, 32] uint8, if its source knows them.
    digests: np.ndarray | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    _variables: "list[tf.Variable]" = dataclasses.field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        """Returns E, the number of examples."""
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(H, W, C)."""
        return self.images.shape[1:]

    def first(self, number: int) -> "Examples":
        """Returns the first `number` examples."""
        digests = None if self.digests is None else self.digests[:number]
        return Examples(self.images[:number], self.labels[:number], digests)

    def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns images [n, H, W, C] uint8 and labels [n] int32 at `indices`, [n]."""
        return self.images[indices], self.labels[indices]

    def batches(
        self,
        counter: "tf.data.Dataset",
        indices: "Callable[[tf.Tensor], tf.Tensor]",
    ) -> "tf.data.Dataset":
        """Returns a dataset of the chosen examples; see ExampleSource."""
        import tensorflow as tf

        images, labels = self.variables()

        def gather(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            chosen = indices(number)
            return tf.gather(images.value(), chosen), tf.gather(labels.value(), chosen)

        return counter.map(gather)

    def update_digest(self, digest: "hashlib._Hash") -> None:
        """Adds all images and labels to a digest, and shapes and dtypes."""
        if self.digests is not None:
            update_digest(digest, self.image_shape, self.digests, self.labels)
            return
        for array in (self.images, self.labels):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)

    def variables(self) -> "tuple[tf.Variable, tf.Variable]":
        """Returns images and labels as variables on the host, always the same ones.

        Read them with `value()`, which does not copy. They are variables because
        tf.data copies the tensors that a pipeline captures, but not the variables.
        """
        if not self._variables:
            for name in ("images", "labels"):
                tensor, variable = _on_host(getattr(self, name))
                # Not a tensor over NumPy's memory: a thread of TensorFlow may be the
                # one that frees it, without Python's lock.
                object.__setattr__(self, name, np.asarray(memoryview(tensor)))
                self._variables.append(variable)
        images, labels = self._variables
        return images, labels


def update_digest(
    digest: "hashlib._Hash",
    image_shape: tuple[int, ...],
    digests: np.ndarray,
    labels: np.ndarray,
) -> None:
    """Adds images of which only digests are at hand to a digest, and their labels.

    Args:
      image_shape: (H, W, C).
      digests: [E, 32] uint8, SHA-256 of the pixels of each image.
      labels: [E] int32.
    """
    digest.update(f"digests{image_shape}{labels.dtype}{labels.shape}".encode())
    digest.update(np.ascontiguousarray(digests).data)
    digest.update(np.ascontiguousarray(labels).data)


def _on_host(array: np.ndarray) -> "tuple[tf.Tensor, tf.Variable]":
    """Returns a copy of an array on the host as a tensor, and a variable of it."""
    import tensorflow as tf  # the PyTorch peer does without

    with tf.device("CPU"):
        tensor = tf.constant(array)
        return tensor, tf.Variable(tensor, trainable=False)
