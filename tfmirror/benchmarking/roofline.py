"""How fast the devices multiply matrices, which a model can't exceed.

matrix_product_rate(["CPU:0", "CPU:1"], "float32")      # operations a second
"""

import statistics
import time

import tensorflow as tf

MATRIX_SIDE = 2048
PRODUCTS = 4  # of each device in one call


def matrix_product_rate(device_names, precision):
    """Returns operations a second of large matrix products, on all devices at once.

    Args:
      device_names: logical CPU devices, which share the cores and threads of the
        process as they do in training, or GPUs.
    """
    side = MATRIX_SIDE
    factors = {}
    for name in device_names:
        with tf.device(name):
            normal = tf.random.stateless_normal([2, side, side], [0, 1])
            # So that products stay as large as their factors.
            factors[name] = tf.unstack(tf.cast(normal / side**0.5, precision))

    @tf.function
    def multiply():
        corners = []
        for name, (a, product) in factors.items():
            with tf.device(name):
                for _ in range(PRODUCTS):
                    product = tf.matmul(a, product)
                corners.append(product[0, 0])
        return tf.add_n(corners)

    float(multiply())
    times = []
    for _ in range(3):
        start = time.perf_counter()
        float(multiply())
        times.append(time.perf_counter() - start)
    return len(factors) * PRODUCTS * 2 * side**3 / statistics.median(times)
