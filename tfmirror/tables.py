"""Markdown tables.

print(markdown(["replicas", "images/s"], [[1, "5,000"], [2, "9,100"]]))
"""

import statistics
from collections.abc import Iterable, Sequence


def markdown(titles: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns a Markdown table without a newline at its end.

    Args:
      rows: as many cells in each as there are titles; each is shown by str().
    """
    return "\n".join([head(titles), *map(row, rows)])


def head(titles: Sequence[str]) -> str:
    """Returns the two lines above the rows of a table."""
    return f"{row(titles)}\n{row(['---'] * len(titles))}"


def row(cells: Iterable[object]) -> str:
    """Returns one line of a table, for tables that are printed as results come in."""
    return f"| {' | '.join(map(str, cells))} |"


def median_and_range(values: Sequence[float], digits: int = 4) -> str:
    """Returns "median (lowest to highest)" of one or more values.

    Args:
      digits: decimal places.
    """
    median, lowest, highest = (
        f"{value:.{digits}f}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({lowest} to {highest})"
