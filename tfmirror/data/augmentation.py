"""Random crops and mirror images, drawn on the device from a seed.

augment = make_augment(flips=True, seed=0, kind="resized_crop")
images = augment(images, 7)     # always the same for one seed, index and image
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tfmirror import errors

# He et al., Deep residual learning (2015), section 4.2: four pixels of padding on
# images of 32 pixels.
PADDING_FRACTION = 1 / 8

# Szegedy et al., Going deeper with convolutions (2015), section 6: crops of 8 % to
# 100 % of the area, with a ratio of width to height of 3/4 to 4/3. The ratio's
# logarithm is uniform, and ten attempts are made, as in torchvision's
# RandomResizedCrop.
CROP_AREA = 0.08, 1.0
CROP_RATIO = 3 / 4, 4 / 3
ATTEMPTS = 10
# Units of a bilinear weight: 255 times its square is less than 2^24, up to which
# float32 holds every whole number.
WEIGHT = 256

# (images [b, H, W, C], microbatch_index) -> images [b, H, W, C]
Augment = Callable[[tf.Tensor, int | tf.Tensor], tf.Tensor]


def make_augment(flips: bool, seed: int, kind: str = "crop") -> Augment:
    """Returns a function that augments the images of one microbatch.

    The function takes `images`, [b, H, W, C] of any dtype, and `microbatch_index`, an
    integer scalar that counts the microbatches of the whole run (it is cast to int32).
    It returns images of the same shape and dtype. Its random numbers depend only on
    `seed`, `microbatch_index` and an image's position in the microbatch.

    Args:
      flips: whether to mirror each image left to right with probability 1/2.
      seed: the run's seed, in the range of int32.
      kind: a key of CROPS: which crop is made first.
    """
    errors.require_one_of(CROPS, "augment", kind)

    def augment(images: tf.Tensor, microbatch_index: int | tf.Tensor) -> tf.Tensor:
        pair = tf.stack(
            [tf.constant(seed, tf.int32), tf.cast(microbatch_index, tf.int32)]
        )
        crop_seed, flip_seed = _split(pair)
        images = CROPS[kind](images, crop_seed)
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


def random_resized_crop(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns a random part of each image, enlarged to the size of the image.

    Args:
      images: [b, H, W, C] uint8; H and W must be known.
      seed: [2] int32.
    """
    height, width = images.shape[1:3]
    boxes = draw_boxes(tf.shape(images)[0], height, width, seed)
    return enlarge(images, boxes)


def draw_boxes(
    number: int | tf.Tensor, height: int, width: int, seed: tf.Tensor
) -> tf.Tensor:
    """Returns random parts of images, as rows (top, left, height, width) in pixels.

    The area's share is uniform in CROP_AREA, the logarithm of width / height in the one
    of CROP_RATIO, and the place is uniform. Of ATTEMPTS draws the first that fits in
    the image counts; if none does, it is the largest box of an allowed ratio, in the
    middle.

    Args:
      number: of images, b.
      height, width: of an image, in pixels.
      seed: [2] int32.

    Returns:
      [b, 4] int32.
    """
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 4))
    logs = [math.log(ratio) for ratio in CROP_RATIO]
    uniform = tf.random.stateless_uniform
    areas = height * width * uniform([number, ATTEMPTS], seeds[0], *CROP_AREA)
    ratios = tf.exp(uniform([number, ATTEMPTS], seeds[1], *logs))
    sizes = tf.round(tf.sqrt(tf.stack([areas / ratios, areas * ratios], axis=2)))
    fit = tf.reduce_all((sizes >= 1) & (sizes <= [height, width]), axis=2)
    first = tf.argmax(tf.cast(fit, tf.int32), axis=1)
    sizes = tf.gather(sizes, first, axis=1, batch_dims=1)  # [b, 2]
    places = tf.stack([uniform([number], s) for s in seeds[2:]], axis=1)
    # Below the number of places: the largest of the random numbers is 1 - 2^-23.
    places = tf.floor(places * ([height + 1, width + 1] - sizes))
    drawn = tf.cast(tf.concat([places, sizes], axis=1), tf.int32)
    any_fits = tf.reduce_any(fit, axis=1, keepdims=True)
    return tf.where(any_fits, drawn, [_middle_box(height, width)])


def _middle_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Returns the largest box of a ratio in CROP_RATIO, in the middle of an image."""
    least, most = CROP_RATIO
    tall, wide = min(height, round(width / least)), min(width, round(height * most))
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def enlarge(images: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    """Returns a part of each image, enlarged to the size of the image.

    Between the centres of pixels values are bilinear, with weights in multiples of
    1 / WEIGHT; beyond the outermost centres of the part they are those of its edge.
    Results are rounded to whole numbers. All steps before are exact in float32, so no
    optimizer or device can change a bit.

    Args:
      images: [b, H, W, C] uint8; H and W must be known.
      boxes: [b, 4] int32, as of `draw_boxes`.
    """
    top, left, heights, widths = tf.unstack(boxes, axis=1)
    values = _resample(images, top, heights, axis=1)
    values = _resample(values, left, widths, axis=2)
    return tf.cast(tf.round(values / WEIGHT**2), images.dtype)


def _resample(
    images: tf.Tensor, begin: tf.Tensor, size: tf.Tensor, *, axis: int
) -> tf.Tensor:
    """Returns the pixels [begin, begin + size) of an axis, stretched over all of it.

    Args:
      images: [b, H, W, C] of any dtype.
      begin, size: [b] int32, in pixels, of each image.

    Returns:
      WEIGHT times the values, [b, H, W, C] float32.
    """
    side = images.shape[axis]
    begin, size = begin[:, tf.newaxis], size[:, tf.newaxis]
    # Where the centre of each new pixel lies among the centres of the part's pixels, in
    # units of 1 / (2 side): [b, side].
    positions = (2 * tf.range(side) + 1) * size - side
    positions = tf.clip_by_value(positions, 0, 2 * side * (size - 1))
    low = positions // (2 * side)
    weights = (WEIGHT * (positions % (2 * side)) + side) // (2 * side)
    shape = [-1, side, 1, 1] if axis == 1 else [-1, 1, side, 1]
    weights = tf.cast(tf.reshape(weights, shape), tf.float32)
    below, above = (
        tf.cast(tf.gather(images, begin + k, axis=axis, batch_dims=1), tf.float32)
        for k in (low, tf.minimum(low + 1, size - 1))
    )
    return below * (WEIGHT - weights) + above * weights


# Kinds of `make_augment`.
CROPS: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "crop": random_crop,
    "resized_crop": random_resized_crop,
}


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
