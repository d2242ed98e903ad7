"""Totals of a pass over examples: sums and counts until the last moment.

totals = Totals(loss_sum=230.2, num_correct=12, num_examples=100)
totals.mean_loss, totals.accuracy                   # 2.302, 0.12
"""

import dataclasses
import hashlib
import statistics

# Key of an epoch's record, as in summary.json's "epochs" -> metric name, as in
# metrics.jsonl and TensorBoard.
NAMES = {
    "train_loss": "train/loss",
    "train_accuracy": "train/accuracy",
    "eval_loss": "eval/loss",
    "eval_accuracy": "eval/accuracy",
    "train_seconds": "train/seconds",
    "eval_seconds": "eval/seconds",
    "images_per_second": "train/images_per_second",
}


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over examples, each example once."""

    loss_sum: float  # nats
    num_correct: int
    num_examples: int

    @property
    def mean_loss(self):
        """Mean cross-entropy per example in nats."""
        return self.loss_sum / self.num_examples

    @property
    def accuracy(self):
        """Correct over counted examples, in [0, 1]."""
        return self.num_correct / self.num_examples


def replicas_text(count):
    """Returns "1 replica", "2 replicas", ..."""
    return f"{count} replica{'' if count == 1 else 's'}"


def median_and_range(values, digits=4):
    """Returns "median (least to most)" of several runs' figures, for tables."""
    median, least, most = (
        f"{value:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least} to {most})"


def weights_sha256(variables):
    """Returns the SHA-256 (hex) of the bytes of all `variables`, in order.

    Two runs with equal digests ended with the same bits in every variable.
    """
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()
