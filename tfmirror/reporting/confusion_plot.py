"""Draws a confusion matrix as a picture.

plots.save(draw(found), "confusion.png")
"""

import numpy as np
from matplotlib import axes, colors, figure

from tfmirror.confusion import MOST_IN_TABLE, Confusion

MOST_LABELS = 60  # classes whose names still fit at the axes
LIGHT = 0.4  # share of the colour scale above which white text is readable


def draw(found: Confusion) -> figure.Figure:
    """Returns a figure of the matrix.

    Rows are classes, columns are what their examples were taken for. The colour of an
    entry is its share of the row's examples; a row of a class without examples is
    white. With few classes the counts stand in the cells.
    """
    sums = found.counts.sum(axis=1, keepdims=True)
    shares = found.counts / np.maximum(sums, 1)
    shown = min(found.num_classes, MOST_LABELS)
    side = 2.6 + 0.42 * max(shown if shown <= MOST_IN_TABLE else shown / 2.4, 5)
    drawn = figure.Figure(figsize=(side + 0.8, side), layout="constrained")
    ax = drawn.subplots()
    # Rare confusions are to be seen beside a diagonal near 1.
    scale = colors.PowerNorm(0.5, vmin=0, vmax=1)
    image = ax.imshow(shares, cmap="Blues", norm=scale, interpolation="nearest")
    if found.num_classes <= MOST_LABELS:
        _name_classes(ax, found.labels)
    if found.num_classes <= MOST_IN_TABLE:
        _write_counts(ax, found.counts, np.asarray(scale(shares)))
    ax.set_xlabel("taken for")
    ax.set_ylabel("class")
    right, examples = found.num_correct, found.num_examples
    ax.set_title(f"{right:,} of {examples:,} correct", fontsize="medium")
    drawn.colorbar(image, ax=ax, label="share of the class's examples", shrink=0.8)
    return drawn


def _name_classes(ax: axes.Axes, labels: list[str]) -> None:
    """Writes the classes at both axes."""
    size = "small" if len(labels) <= MOST_IN_TABLE else "xx-small"
    ax.set_xticks(range(len(labels)), labels, rotation=90, fontsize=size)
    ax.set_yticks(range(len(labels)), labels, fontsize=size)
    for text in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        text.set_parse_math(False)  # a name may hold dollar signs


def _write_counts(ax: axes.Axes, counts: np.ndarray, shades: np.ndarray) -> None:
    """Writes each count that is not 0 into its cell.

    Args:
      shades: [K, K], the place of each cell on the colour scale, 0 being white.
    """
    size = 8 if counts.max() < 10_000 else 6
    for (row, column), count in np.ndenumerate(counts):
        if count:
            color = "white" if shades[row, column] > 1 - LIGHT else "black"
            text = ax.text(column, row, str(count), ha="center", va="center")
            text.set(color=color, fontsize=size)
