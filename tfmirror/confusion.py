"""Which classes a model mistakes for which: the confusion matrix, and each class.

found = Confusion.of(counts, class_names=("shirt", "dress"))
found.classes[0].accuracy, found.classes[0].precision
print("\n".join(found.lines()))
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_CLASSES = 2000  # a matrix of float32 for each microbatch: 16 MB
MOST_IN_TABLE = 20  # classes in the matrix of a terminal
LONGEST_LABEL = 24  # characters


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """What was counted of one class. None: there is nothing to divide by."""

    number: int  # in [0, K)
    label: str  # number and name, for people
    num_examples: int  # of this class
    num_predicted: int  # examples that were taken for this class
    num_correct: int

    @property
    def accuracy(self) -> float | None:
        """Share of the class's examples that are right (recall), in [0, 1]."""
        return self.num_correct / self.num_examples if self.num_examples else None

    @property
    def precision(self) -> float | None:
        """Share of the examples taken for this class that are right, in [0, 1]."""
        return self.num_correct / self.num_predicted if self.num_predicted else None


@dataclasses.dataclass(frozen=True, eq=False)
class Confusion:
    """A confusion matrix of K classes."""

    counts: np.ndarray  # [K, K] int64: examples of class i that were taken for class j
    class_names: tuple[str, ...]  # of the first classes, maybe of none

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.counts)

    @property
    def num_examples(self) -> int:
        """Examples in all."""
        return int(self.counts.sum())

    @property
    def num_correct(self) -> int:
        """Examples that were taken for the class that they are of."""
        return int(np.trace(self.counts))

    @property
    def labels(self) -> list[str]:
        """The number and, if known, the name of each class, in printable characters."""
        known = dict(enumerate(self.class_names))
        return [_label(k, known.get(k, "")) for k in range(self.num_classes)]

    @property
    def classes(self) -> list[ClassResult]:
        """The result of each class, in order."""
        sums = zip(
            self.labels,
            self.counts.sum(axis=1).tolist(),
            self.counts.sum(axis=0).tolist(),
            np.diagonal(self.counts).tolist(),
            strict=True,
        )
        return [ClassResult(k, *values) for k, values in enumerate(sums)]

    def worst(self, number: int) -> list[tuple[int, int, int]]:
        """Returns the most frequent confusions, at most `number`, as (class, taken for,
        examples); of equally frequent ones the lower class comes first.
        """
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        order = np.argsort(-wrong, axis=None, kind="stable")[:number]
        found = (divmod(int(k), self.num_classes) for k in order)
        return [(i, j, int(wrong[i, j])) for i, j in found if wrong[i, j]]

    def lines(self) -> list[str]:
        """Returns tables for a terminal: each class, then the confusions."""
        rows = [
            [
                one.label,
                f"{one.num_examples:,}",
                f"{one.num_correct:,}",
                _share(one.accuracy),
                _share(one.precision),
            ]
            for one in self.classes
        ]
        titles = ["class", "examples", "correct", "accuracy", "precision"]
        return [*_aligned([titles, *rows]), "", *self._confusion_lines()]

    def _confusion_lines(self) -> list[str]:
        """Returns the matrix as a table, or its largest entries if it is large."""
        if self.num_classes <= MOST_IN_TABLE:
            head = ["", *map(str, range(self.num_classes))]
            rows = zip(self.labels, self.counts.tolist(), strict=True)
            table = [head, *([label, *map(str, row)] for label, row in rows)]
            return ["rows: class; columns: what it was taken for", *_aligned(table)]
        worst = [
            [self.labels[i], self.labels[j], f"{count:,}"]
            for i, j, count in self.worst(MOST_IN_TABLE)
        ]
        titles = ["most frequent confusions", "taken for", "examples"]
        return _aligned([titles, *worst], num_left=2)

    def to_json(self) -> dict[str, Any]:
        """Returns the matrix and each class's result as a value for JSON."""
        names = dict(enumerate(self.class_names))
        return {
            "classes": [
                {
                    "class": one.number,
                    "name": names.get(one.number, ""),
                    "num_examples": one.num_examples,
                    "num_predicted": one.num_predicted,
                    "num_correct": one.num_correct,
                    "accuracy": one.accuracy,
                    "precision": one.precision,
                }
                for one in self.classes
            ],
            "confusion_matrix": self.counts.tolist(),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Confusion":
        """Returns the Confusion that `to_json` gave as `value`.

        Raises:
          ValueError: `value` is something else.
        """
        try:
            names = [one["name"] for one in value["classes"]]
            counts = np.array(value["confusion_matrix"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no confusion matrix in it: {error!r}") from error
        is_square = counts.shape == (len(names),) * 2 and len(names) > 0
        if not is_square or counts.dtype != np.int64 or counts.min() < 0:
            raise ValueError("its confusion matrix is not one of whole numbers")
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a class in it has a name that is no text")
        return cls(counts, tuple(names))

    def dumps(self, **beside: Any) -> str:
        """Returns the JSON text of `to_json` and of the values `beside` it."""
        return json.dumps(beside | self.to_json()) + "\n"


def _label(number: int, name: str) -> str:
    """Returns how a class is called where people read, with its name cut if long."""
    shown = "".join(c if c.isprintable() else "?" for c in name)
    text = f"{number} {shown}" if shown and shown != str(number) else str(number)
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"


def _share(value: float | None) -> str:
    """Returns a share with four digits, or a dash where there is none."""
    return "–" if value is None else f"{value:.4f}"


def _aligned(rows: Sequence[Sequence[str]], num_left: int = 1) -> list[str]:
    """Returns rows of text as lines of columns, the first ones of them flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * num_left + [str.rjust] * (len(widths) - num_left)
    return [
        "  ".join(
            side(text, width)
            for side, text, width in zip(sides, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
