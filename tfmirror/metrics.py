"""Totals of a pass over examples, and the digest of a model's weights.

Totals are sums and counts, so that those of parts of a pass can be added.

totals = Totals(loss_sum=230.2, num_correct=12, num_examples=100)
totals.mean_loss, totals.accuracy                   # 2.302, 0.12
"""

import dataclasses
import hashlib
import typing
from collections.abc import Iterable

if typing.TYPE_CHECKING:
    import keras

# The key of a metric in summary.json's "epochs", and its name in metrics.jsonl and
# TensorBoard.
NAMES = {
    "train_loss": "train/loss",
    "train_accuracy": "train/accuracy",
    "eval_loss": "eval/loss",
    "eval_accuracy": "eval/accuracy",
    "eval_top5_accuracy": "eval/top5_accuracy",  # where `counts_top5`
    "train_seconds": "train/seconds",
    "eval_seconds": "eval/seconds",
    "images_per_second": "train/images_per_second",
    "learning_rate": "train/learning_rate",
    "skipped_steps": "train/skipped_steps",
}
SEED_NAME = "seed_generator_state"  # of a keras.random.SeedGenerator's variable
# Keys that a record may lack: those of earlier versions do, or there is no such metric.
ADDED = ("learning_rate", "skipped_steps", "eval_top5_accuracy")

# With so few classes the label is nearly always among the five likeliest.
MOST_CLASSES_WITHOUT_TOP5 = 10


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over examples, in which each example counts once."""

    loss_sum: float  # of the cross-entropies, in nats
    num_correct: int
    num_examples: int
    num_top5: int = 0  # examples whose label is among the five likeliest, if counted

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy per example in nats."""
        return self.loss_sum / self.num_examples

    @property
    def accuracy(self) -> float:
        """Share of the examples that are classified correctly, in [0, 1]."""
        return self.num_correct / self.num_examples

    @property
    def top5_accuracy(self) -> float:
        """Share of the examples whose label is among the five likeliest classes."""
        return self.num_top5 / self.num_examples


def counts_top5(num_classes: int) -> bool:
    """Returns whether `Totals.num_top5` is counted with `num_classes` classes."""
    return num_classes > MOST_CLASSES_WITHOUT_TOP5


def replicas_text(count: int) -> str:
    """Returns "1 replica", "2 replicas", ..."""
    return f"{count} replica{'' if count == 1 else 's'}"


def weights_sha256(variables: "Iterable[keras.Variable]") -> str:
    """Returns the SHA-256 of the bytes of all `variables`, in order, in hexadecimal.

    Models of the same shapes have equal digests only if all their variables have the
    same bits. Seeds of random layers are left out: a saved model has none.
    """
    digest = hashlib.sha256()
    for variable in variables:
        if variable.name != SEED_NAME:
            digest.update(variable.numpy().tobytes())
    return digest.hexdigest()
