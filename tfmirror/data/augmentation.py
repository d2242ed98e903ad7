"""Random crops and mirror images, drawn on the device from a seed.

augment = make_augment(flips=True, seed=0)
images = augment(images, 7)     # always the same for one seed, index and image
"""

from collections.abc import Callable

import tensorflow as tf

# He et al., Deep residual learning (2015), section 4.2: four pixels of padding on
# images of 32 pixels.
PADDING_FRACTION = 1 / 8

# (images [b, H, W, C], microbatch_index) -> images [b, H, W, C]
Augment = Callable[[tf.Tensor, int | tf.Tensor], tf.Tensor]


def make_augment(flips: bool, seed: int) -> Augment:
    """Returns a function that augments the images of one microbatch.

    The function takes `images`, [b, H, W, C] of any dtype, and `microbatch_index`, an
    integer scalar that counts the microbatches of the whole run (it is cast to int32).
    It returns images of the same shape and dtype. Its random numbers depend only on
    `seed`, `microbatch_index` and an image's position in the microbatch.

    Args:
      flips: whether to mirror each image left to right with probability 1/2.
      seed: the run's seed, in the range of int32.
    """

    def augment(images: tf.Tensor, microbatch_index: int | tf.Tensor) -> tf.Tensor:
        pair = tf.stack(
            [tf.constant(seed, tf.int32), tf.cast(microbatch_index, tf.int32)]
        )
        crop_seed, flip_seed = _split(pair)
        images = random_crop(images, crop_seed)
        return random_flip(images, flip_seed) if flips else images

    return augment


def random_crop(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns each image shifted by a random number of pixels, with zeros moved in.

    Shifts are whole pixels, uniform in [-p, p] with p = `PADDING_FRACTION` of the side,
    drawn for each image and each axis.

    Args:
      images: [b, H, W, C] of any dtype; H and W must be known.
      seed: [2] int32.
    """
    for axis, axis_seed in zip((1, 2), _split(seed), strict=True):
        side = images.shape[axis]
        pad = round(side * PADDING_FRACTION)
        paddings = [[pad, pad] if k == axis else [0, 0] for k in range(4)]
        offsets = tf.random.stateless_uniform(
            [tf.shape(images)[0], 1], axis_seed, 0, 2 * pad + 1, tf.int32
        )
        kept = offsets + tf.range(side)  # [b, side]
        images = tf.gather(tf.pad(images, paddings), kept, axis=axis, batch_dims=1)
    return images


def random_flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns the images, each mirrored left to right with probability 1/2.

    Args:
      images: [b, H, W, C] of any dtype.
      seed: [2] int32.
    """
    is_flipped = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed) < 0.5
    return tf.where(is_flipped, tf.reverse(images, axis=[2]), images)


def _split(seed: tf.Tensor) -> list[tf.Tensor]:
    """Returns two independent seeds, [2] int32 each, derived from one."""
    return tf.unstack(tf.random.experimental.stateless_split(seed, 2))
