"""Computes the gradient of a convolution's kernel as matrix products, which is faster.

    use_matrix_products(model)      # in bfloat16 Conv2D layers that gain speed, on CPUs

oneDNN's own kernel for this gradient reaches a fifth of the speed of the processor's
matrix units when images are small and channels are many, as in the last stages of a
ResNet. A kernel of size k x k consists of k^2 matrices [C, D]. The gradient of each is
one matrix product of the images, shifted by its offset, with the gradients of the
outputs. With s the stride:

    dL/dK[i, j] = sum over b, y, x of X[b, s y + i, s x + j, :]^T dL/dY[b, y, x, :]
"""

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfmirror import hardware
from tfmirror.models import layer_override, nested_layers

# Measured (BUILD_NOTES.md): matrix products are faster up to 14x14 outputs with units
# for bfloat16 matrices (AMX), and up to 7x7 with bfloat16 vectors (AVX-512). For larger
# outputs, and for float32 at most sizes, the shifted copies cost more than is saved.
LARGEST_SIDE_OF_MATRIX_UNITS = 14
LARGEST_SIDE = 7
DTYPE = "bfloat16"


def use_matrix_products(model: keras.Model) -> None:
    """Makes every Conv2D of `model` that gains speed use `convolve`.

    Overrides the layers' `call`; `layer_override.restore_call` undoes it for one layer.
    Outputs and gradients are the same up to rounding.

    Args:
      model: a built model. A subclass's `call` may do more, and is left as it is.
    """
    has_units = hardware.cpu_has_any(hardware.BFLOAT16_MATRIX_FLAGS)
    largest_side = LARGEST_SIDE_OF_MATRIX_UNITS if has_units else LARGEST_SIDE
    for layer in nested_layers.all_layers(model):
        if type(layer) is keras.layers.Conv2D and _gains(layer, largest_side):
            layer_override.override_call(layer, _call)


def _gains(layer: keras.layers.Conv2D, largest_side: int) -> bool:
    """Returns whether `convolve` supports a built layer, and is faster for it.

    Args:
      layer: the layer.
      largest_side: largest height or width of the outputs at which it is faster.
    """
    is_supported = (
        layer.compute_dtype == DTYPE
        and layer.data_format == "channels_last"
        and layer.padding == "same"
        and layer.dilation_rate == (1, 1)
        and layer.groups == 1
        and layer.strides[0] == layer.strides[1]
    )
    return is_supported and max(_output_sides(layer), default=math.inf) <= largest_side


def _output_sides(layer: keras.layers.Conv2D) -> tuple[int, ...]:
    """Returns (H', W') of a layer's outputs; empty if they are not the same for all."""
    try:
        return tuple(layer.output.shape[1:3])
    except (AttributeError, ValueError):  # called several times, or within a layer
        return ()


def _call(layer: keras.layers.Conv2D, inputs: tf.Tensor) -> tf.Tensor:
    """Returns what the layer's own `call` does, [b, H, W, C] to [b, H', W', D]."""
    outputs = convolve(inputs, tf.cast(layer.kernel, inputs.dtype), layer.strides[0])
    if layer.use_bias:
        outputs = tf.nn.bias_add(outputs, tf.cast(layer.bias, outputs.dtype))
    return layer.activation(outputs) if layer.activation else outputs


def convolve(images: tf.Tensor, kernel: tf.Tensor, stride: int) -> tf.Tensor:
    """Returns a convolution whose gradient is computed by `kernel_gradient`.

    Args:
      images: [b, H, W, C], with known H, W and C.
      kernel: [h, w, C, D], of the same dtype.
      stride: of both axes, 1 or more.

    Returns:
      [b, ceil(H / stride), ceil(W / stride), D], padded as SAME.
    """

    @tf.custom_gradient
    def convolution(
        images: tf.Tensor, kernel: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            image_gradient = tf.raw_ops.Conv2DBackpropInput(
                input_sizes=tf.shape(images),
                filter=kernel,
                out_backprop=upstream,
                strides=[1, stride, stride, 1],
                padding="SAME",
            )
            sides = kernel.shape[:2]
            return image_gradient, kernel_gradient(
                images, upstream, sides, stride=stride
            )

        return tf.nn.conv2d(images, kernel, stride, "SAME"), gradient

    return convolution(images, kernel)


def kernel_gradient(
    images: tf.Tensor, upstream: tf.Tensor, sides: Sequence[int], *, stride: int
) -> tf.Tensor:
    """Returns the gradient of a convolution's kernel, dL/dK [h, w, C, D].

    Args:
      images: [b, H, W, C], the inputs of the convolution, with known H, W and C.
      upstream: [b, ceil(H / stride), ceil(W / stride), D], dL/dY.
      sides: (h, w) of the kernel.
      stride: of both axes, 1 or more.
    """
    height, width, channels = images.shape[1:]
    out_height, out_width, out_channels = upstream.shape[1:]
    pads = [
        _padding(height, out_height, sides[0], stride=stride),
        _padding(width, out_width, sides[1], stride=stride),
    ]
    padded = tf.pad(images, [[0, 0], *pads, [0, 0]])
    # With a stride, one offset of the kernel meets every s-th pixel. In `grid` these
    # pixels are neighbours, and an offset's remainder modulo s selects the channels.
    grid = tf.nn.space_to_depth(padded, stride) if stride > 1 else padded
    rows = tf.reshape(upstream, [-1, out_channels])
    products = []
    for i in range(sides[0]):
        for j in range(sides[1]):
            y, x = i // stride, j // stride
            first = (i % stride * stride + j % stride) * channels
            shifted = grid[:, y : y + out_height, x : x + out_width, :]
            shifted = shifted[..., first : first + channels]
            columns = tf.reshape(shifted, [-1, channels])
            products.append(tf.matmul(columns, rows, transpose_a=True))
    return tf.reshape(tf.stack(products), [*sides, channels, out_channels])


def _padding(side: int, out_side: int, kernel_side: int, *, stride: int) -> list[int]:
    """Returns SAME's padding of one axis, enlarged to a multiple of `stride` pixels.

    Args:
      side: of the images, pixels.
      out_side: of the outputs, pixels.
      kernel_side: of the kernel, pixels.
      stride: of the convolution.

    Returns:
      [pixels before, pixels after]; their sum plus `side` is a multiple of `stride`.
    """
    total = max((out_side - 1) * stride + kernel_side - side, 0)
    before = total // 2
    padded_side = -(-(side + total) // stride) * stride
    return [before, padded_side - side - before]
