"""Checks that the replicas' copies of the variables are still equal, to the bit.

    check = make_check(strategy, {"cnn/conv1/kernel": variable, ...})
    check()                                # [], or a Drift for each variable

Each device computes a digest of its copies, and only the digests are compared. So a
check costs one pass over the weights and moves a few bytes between devices.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import keras
import numpy as np
import tensorflow as tf

from tfmirror.parallel import replicas

# Odd, so that multiplying by it maps 64-bit integers one to one (Knuth, TAOCP 6.4).
MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
UNSIGNED_OF_SIZE = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


@dataclasses.dataclass(frozen=True)
class Drift:
    """A variable whose copies on some replicas differ from replica 0's."""

    name: str
    replicas: tuple[int, ...]
    # Absolute, of any of their elements to replica 0's; may be nan.
    largest_difference: float

    def describe(self) -> str:
        """Returns one clause for people."""
        listed = ", ".join(map(str, self.replicas))
        return f"{self.name} of replica {listed} by {self.largest_difference:.3g}"


def digest(value: tf.Tensor) -> tf.Tensor:
    """Returns a scalar int64 that changes if any one element of `value` changes.

    The sum of (bits of element i) times an odd number that belongs to i, modulo 2**64.
    A change in one element changes its product, since odd factors have inverses.
    Changes in several cancel with a chance of about 2**-64.
    """
    bits = tf.bitcast(value, UNSIGNED_OF_SIZE[value.dtype.size])
    bits = tf.reshape(tf.cast(bits, tf.int64), [-1])
    odd = 2 * tf.range(tf.size(bits, tf.int64), dtype=tf.int64) + 1
    return tf.reduce_sum(bits * (odd * MULTIPLIER))


def make_check(
    strategy: tf.distribute.Strategy, variables: Mapping[str, keras.Variable]
) -> Callable[[], list[Drift]]:
    """Returns a compiled check of {name: variable}, which lists the drifts."""
    names, values = list(variables), list(variables.values())

    def replica_digests():
        return tf.stack([digest(value) for value in replicas.read(values)])

    digests = tf.function(lambda: strategy.run(replica_digests), autograph=False)

    def check():
        rows = replicas.local_values(strategy, digests())
        table = np.stack([row.numpy() for row in rows])  # [N, variables]
        differs = table != table[0]
        return [
            _measure(strategy, names[k], values[k], np.flatnonzero(differs[:, k]))
            for k in np.flatnonzero(differs.any(axis=0))
        ]

    return check


def _measure(
    strategy: tf.distribute.Strategy,
    name: str,
    variable: keras.Variable,
    replica_ids: np.ndarray,
) -> Drift:
    """Returns the Drift of one variable, whose copies it fetches and compares."""
    copies = [v.numpy() for v in replicas.local_values(strategy, variable.value)]
    differences = [
        np.abs(copies[r].astype(np.float64) - copies[0].astype(np.float64)).max()
        for r in replica_ids
    ]
    return Drift(name, tuple(int(r) for r in replica_ids), float(np.max(differences)))


def resync(
    strategy: tf.distribute.Strategy, variables: Iterable[keras.Variable]
) -> None:
    """Copies the bits of `variables` on replica 0 to all other replicas."""
    for variable in variables:
        first, *others = replicas.local_values(strategy, variable.value)
        for copy in others:
            copy.assign(first)
