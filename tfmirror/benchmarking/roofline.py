"""Measures how fast the devices multiply large matrices: a limit for any model.

matrix_multiply_flops(["CPU:0", "CPU:1"], "float32")             # FLOP/s
"""

import statistics
import time
from collections.abc import Sequence

import tensorflow as tf

MATRIX_SIDE = 2048
PRODUCTS = 4  # on each device in one call


def matrix_multiply_flops(device_names: Sequence[str], precision: str) -> float:
    """Returns the FLOP/s of large matrix products on all devices at the same time.

    Args:
      device_names: GPUs, or logical CPU devices, which share the cores and threads of
        the process as they do in training.
      precision: data type of the matrices, such as "float32".
    """
    side = MATRIX_SIDE
    matrices = {}
    for name in device_names:
        with tf.device(name):
            normal = tf.random.stateless_normal([2, side, side], [0, 1])
            # Scaled, so that products are about as large as their factors.
            matrices[name] = tf.unstack(tf.cast(normal / side**0.5, precision))

    @tf.function
    def multiply() -> tf.Tensor:
        corners = []
        for name, (a, product) in matrices.items():
            with tf.device(name):
                for _ in range(PRODUCTS):
                    product = tf.matmul(a, product)
                corners.append(product[0, 0])
        return tf.add_n(corners)

    float(multiply())  # traces and warms up
    times = []
    for _ in range(3):
        start = time.perf_counter()
        float(multiply())
        times.append(time.perf_counter() - start)
    return len(matrices) * PRODUCTS * 2 * side**3 / statistics.median(times)
