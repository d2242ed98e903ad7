"""The gradient of a convolution's kernel as matrix products, where that is faster.

    use_matrix_products(model)              # each Conv2D that gains, in bfloat16 on CPU

oneDNN's own kernel for it reaches a fifth of what the processor's matrix units can do
when images are small and channels are many, as in the last stages of a ResNet. A kernel
of k x k is k^2 matrices [C, D]; the gradient of each is one product of the images,
shifted by its offset, with the gradients of the outputs:

    dL/dK[i, j] = sum over b, y, x of X[b, s y + i, s x + j, :]^T dL/dY[b, y, x, :]
"""

import keras
import tensorflow as tf

from tfmirror import hardware
from tfmirror.models import layer_override

# Measured (BUILD_NOTES.md): with units for bfloat16 matrices (AMX) faster up to 14x14
# outputs, with bfloat16 vectors (AVX-512) up to 7x7. Above, shifted copies cost more
# than the products save; in float32 they do at most sizes.
LARGEST_SIDE_OF_MATRIX_UNITS = 14
LARGEST_SIDE = 7
DTYPE = "bfloat16"


def use_matrix_products(model):
    """Lets every Conv2D of `model` that gains by it take its gradient in that way.

    The layer's `call` is replaced, see `layer_calls`. Values and gradients are the same
    to rounding.
    """
    has_units = hardware.cpu_has_any(hardware.BFLOAT16_MATRIX_FLAGS)
    largest_side = LARGEST_SIDE_OF_MATRIX_UNITS if has_units else LARGEST_SIDE
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and _gains(layer, largest_side):
            layer_override.replace(layer, _call)


def _gains(layer, largest_side):
    """Returns whether `layer` is served, and faster for it."""
    is_plain = (
        layer.compute_dtype == DTYPE
        and layer.data_format == "channels_last"
        and layer.padding == "same"
        and layer.dilation_rate == (1, 1)
        and layer.groups == 1
        and layer.strides[0] == layer.strides[1]
    )
    return is_plain and max(layer.output.shape[1:3]) <= largest_side


def _call(layer, inputs):
    """Does what `layer`'s own `call` does."""
    outputs = convolve(inputs, tf.cast(layer.kernel, inputs.dtype), layer.strides[0])
    if layer.use_bias:
        outputs = tf.nn.bias_add(outputs, tf.cast(layer.bias, outputs.dtype))
    return layer.activation(outputs) if layer.activation else outputs


def convolve(images, kernel, stride):
    """Returns images [b, H, W, C] convolved with kernel [h, w, C, D], SAME padding."""

    @tf.custom_gradient
    def convolution(images, kernel):
        def gradient(upstream):
            of_images = tf.raw_ops.Conv2DBackpropInput(
                input_sizes=tf.shape(images),
                filter=kernel,
                out_backprop=upstream,
                strides=[1, stride, stride, 1],
                padding="SAME",
            )
            sides = kernel.shape[:2]
            return of_images, kernel_gradient(images, upstream, sides, stride)

        return tf.nn.conv2d(images, kernel, stride, "SAME"), gradient

    return convolution(images, kernel)


def kernel_gradient(images, upstream, sides, stride):
    """Returns dL/dK [h, w, C, D] of a convolution padded as SAME.

    Args:
      images: [b, H, W, C], what was convolved, with known shape but for b.
      upstream: [b, ceil(H / stride), ceil(W / stride), D], dL/d(outputs).
      sides: (h, w) of the kernel.
      stride: of both axes.
    """
    height, width, channels = images.shape[1:]
    out_height, out_width, out_channels = upstream.shape[1:]
    pads = [
        _padding(height, out_height, sides[0], stride),
        _padding(width, out_width, sides[1], stride),
    ]
    padded = tf.pad(images, [[0, 0], *pads, [0, 0]])
    # With strides, pixels that one offset of the kernel meets lie beside each other.
    grid = tf.nn.space_to_depth(padded, stride) if stride > 1 else padded
    rows = tf.reshape(upstream, [-1, out_channels])
    products = []
    for i in range(sides[0]):
        for j in range(sides[1]):
            y, x = i // stride, j // stride
            first = (i % stride * stride + j % stride) * channels
            met = grid[:, y : y + out_height, x : x + out_width, :]
            met = met[..., first : first + channels]
            columns = tf.reshape(met, [-1, channels])
            products.append(tf.matmul(columns, rows, transpose_a=True))
    return tf.reshape(tf.stack(products), [*sides, channels, out_channels])


def _padding(side, out_side, kernel_side, stride):
    """Returns [before, after] of SAME, filled up to a multiple of `stride`."""
    total = max((out_side - 1) * stride + kernel_side - side, 0)
    before = total // 2
    filled = -(-(side + total) // stride) * stride
    return [before, filled - side - before]
