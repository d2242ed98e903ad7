"""Whether the replicas' copies of the variables are still equal, to the bit.

    check = make_check(strategy, {"cnn/conv1/kernel": variable, ...})
    check()                                            # [] or a Drift for each variable

Copies are digested where they are and only the digests compared, so that a check costs
one pass over the weights and moves next to nothing between devices.
"""

import dataclasses

import numpy as np
import tensorflow as tf

# Odd, so that multiplying by it maps 64-bit integers one to one (Knuth, TAOCP 6.4).
MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
UNSIGNED_OF_SIZE = {1: tf.uint8, 2: tf.uint16, 4: tf.uint32, 8: tf.uint64}


@dataclasses.dataclass(frozen=True)
class Drift:
    """A variable of which some replicas' copies differ from the first one's."""

    name: str
    replicas: tuple[int, ...]
    largest_difference: float  # absolute, of any of them to the first; may be nan

    def describe(self):
        """Returns one clause for people."""
        listed = ", ".join(map(str, self.replicas))
        return f"{self.name} of replica {listed} by {self.largest_difference:.3g}"


def digest(value):
    """Returns a scalar int64 that another value of one bit's difference never has.

    The sum of (bits of element i) times an odd number of i's own, modulo 2**64. A
    change in one element changes its product, since odd factors have inverses; changes
    in several cancel with a chance of 2**-64 or so.
    """
    bits = tf.bitcast(value, UNSIGNED_OF_SIZE[value.dtype.size])
    bits = tf.reshape(tf.cast(bits, tf.int64), [-1])
    odd = 2 * tf.range(tf.size(bits, tf.int64), dtype=tf.int64) + 1
    return tf.reduce_sum(bits * (odd * MULTIPLIER))


def make_check(strategy, variables):
    """Returns a compiled check of {name: variable}: () -> list of Drift."""
    names, values = list(variables), list(variables.values())

    def replica_digests():
        return tf.stack([digest(tf.convert_to_tensor(v.value)) for v in values])

    digests = tf.function(lambda: strategy.run(replica_digests), autograph=False)

    def check():
        rows = strategy.experimental_local_results(digests())
        table = np.stack([row.numpy() for row in rows])  # [N, variables]
        differs = table != table[0]
        return [
            _measure(strategy, names[k], values[k], np.flatnonzero(differs[:, k]))
            for k in np.flatnonzero(differs.any(axis=0))
        ]

    return check


def _measure(strategy, name, variable, replicas):
    """Returns the Drift of one variable, whose copies are fetched and compared."""
    copies = [v.numpy() for v in strategy.experimental_local_results(variable.value)]
    differences = [
        np.abs(copies[r].astype(np.float64) - copies[0].astype(np.float64)).max()
        for r in replicas
    ]
    return Drift(name, tuple(int(r) for r in replicas), float(np.max(differences)))


def resync(strategy, variables):
    """Gives every replica's copy of `variables` the bits of the first replica's."""
    for variable in variables:
        first, *others = strategy.experimental_local_results(variable.value)
        for copy in others:
            copy.assign(first)
