"""Random crops and mirror images, drawn on the device from a seed.

augment = make_augment(flips=True, seed=0)
images = augment(images, draw=7)        # the same for the same seed and draw
"""

import tensorflow as tf

# He et al., Deep residual learning (2015), section 4.2: four pixels of padding on
# images of 32 pixels.
PADDING_OF_SIDE = 1 / 8


def make_augment(flips, seed):
    """Returns a function of (images, draw) that gives images of the same shape.

    What it draws depends on `seed`, `draw` and the image's place among `images` alone.

    Args:
      flips: whether to mirror half of the images left to right.
      seed: of the run.
    """

    def augment(images, draw):
        pair = tf.stack([tf.constant(seed, tf.int32), tf.cast(draw, tf.int32)])
        crop_seed, flip_seed = _split(pair)
        images = random_crop(images, crop_seed)
        return random_flip(images, flip_seed) if flips else images

    return augment


def random_crop(images, seed):
    """Returns `images` [b, H, W, C], each shifted within zeros around it.

    Args:
      seed: [2] integers.
    """
    for axis, axis_seed in zip((1, 2), _split(seed), strict=True):
        side = images.shape[axis]
        pad = round(side * PADDING_OF_SIDE)
        paddings = [[pad, pad] if k == axis else [0, 0] for k in range(4)]
        offsets = tf.random.stateless_uniform(
            [tf.shape(images)[0], 1], axis_seed, 0, 2 * pad + 1, tf.int32
        )
        kept = offsets + tf.range(side)  # [b, side]
        images = tf.gather(tf.pad(images, paddings), kept, axis=axis, batch_dims=1)
    return images


def random_flip(images, seed):
    """Returns `images` [b, H, W, C], about half of them mirrored left to right.

    Args:
      seed: [2] integers.
    """
    is_flipped = tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed) < 0.5
    return tf.where(is_flipped, tf.reverse(images, axis=[2]), images)


def _split(seed):
    """Returns two seeds of one, [2] integers each."""
    return tf.unstack(tf.random.experimental.stateless_split(seed, 2))
