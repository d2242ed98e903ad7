"""What is promised of N replicas, and whether two observations keep the promise.

one, two = (observation.observe(n, "probe", "cpu") for n in (1, 2))
compare(one["gradient"], two["gradient"], tolerance=0.0)     # Outcome
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

# Claim -> largest difference relative to the largest entry; 0: the same bits are
# promised. Without a fixed tree float32 sums are in another order.
CLAIMS = {
    "order of examples": 0.0,
    "outputs of every layer, logits": 0.0,
    "dropout masks": 0.0,
    "gradient": 0.0,
    "gradient, added by the strategy": 1e-5,
    "weights after a clipped step": 0.0,
    "batch-norm state": 0.0,
    "optimizer slots": 0.0,
    "weights after 19 steps": 0.0,
    "weights after an uneven last batch": 0.0,
    "moving average of the weights": 0.0,
    "training loss and accuracy": 0.0,
    "evaluation, some replicas without examples": 0.0,
    "all replicas equal after 20 steps": 0.0,
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One cell of the table."""

    is_met: bool
    text: str


# What was observed: arrays by name (of a variable or a layer, or ""), in the order in
# which they are computed; or a text that says why there are none.
Observation = Mapping[str, np.ndarray] | str


def compare(expected: Observation, found: Observation, tolerance: float) -> Outcome:
    """Returns the Outcome of comparing two observations.

    Args:
      tolerance: largest difference allowed, relative to the largest entry; 0: the bits
        must be equal.
    """
    if isinstance(expected, str) or isinstance(found, str):
        # The model decides what can't be observed, so both sides must say the same.
        if isinstance(expected, str) and expected == found:
            return Outcome(True, f"n/a: {expected}")
        return Outcome(False, "observed on one side only")
    if list(expected) != list(found):
        return Outcome(False, "other variables were observed")
    differing = [n for n in found if expected[n].tobytes() != found[n].tobytes()]
    if not differing:
        return Outcome(True, "same bits")
    largest = max(relative_difference(expected[n], found[n]) for n in differing)
    is_met = 0 < tolerance and largest <= tolerance
    text = f"differs by {largest:.1e}"
    where = differing[0]
    return Outcome(is_met, text if is_met or not where else f"{text}, first in {where}")


def relative_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest difference of two arrays, relative to the largest entry.

    It is infinite if they differ in shape, or if a difference is not a number.
    """
    if expected.shape != found.shape:
        return math.inf
    largest = np.abs(expected.astype(np.float64) - found).max()
    relative = float(largest / (np.abs(expected).max() or 1.0))
    return math.inf if math.isnan(relative) else relative
