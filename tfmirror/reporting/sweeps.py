"""Shows the runs of a sweep as a table and as a heat map.

choices = [{"gpus": "1", "seed": "0"}, {"gpus": "2", "seed": "0"}]
make_table(choices, accuracies=[0.91, 0.90])
"""

import math
from collections.abc import Sequence

from matplotlib import figure

from tfmirror import tables
from tfmirror.reporting import plots

TITLE = "test accuracy after the last epoch"


def varying(choices: Sequence[dict[str, str]]) -> list[str]:
    """Returns the names of the settings that differ between `choices`, in order."""
    return [n for n in choices[0] if len({choice[n] for choice in choices}) > 1]


def make_table(choices: Sequence[dict[str, str]], accuracies: Sequence[float]) -> str:
    """Returns a Markdown table: a row for each run, a column for each varying setting.

    Args:
      choices: {setting: text} for each run, all with the same settings; an empty text
        stands for the recipe's value.
      accuracies: of each run, in [0, 1].
    """
    names = varying(choices)
    rows = [
        [*(choice[n] or "recipe" for n in names), f"{accuracy:.4f}"]
        for choice, accuracy in zip(choices, accuracies, strict=True)
    ]
    return tables.markdown([*names, "test accuracy"], rows)


def draw(
    choices: Sequence[dict[str, str]], accuracies: Sequence[float]
) -> figure.Figure:
    """Returns a heat map of the accuracies.

    It has a column for each value of the last varying setting, and a row for each
    combination of the others.

    Args:
      choices: {setting: text} for each run, all with the same settings.
      accuracies: of each run, in [0, 1].
    """
    *row_names, column_name = varying(choices) or list(choices[0])[-1:]

    def row_of(choice: dict[str, str]) -> str:
        return ", ".join(f"{n} {choice[n] or 'recipe'}" for n in row_names)

    rows = list(dict.fromkeys(map(row_of, choices)))
    columns = list(dict.fromkeys(choice[column_name] for choice in choices))
    values = [[math.nan] * len(columns) for _ in rows]
    for choice, accuracy in zip(choices, accuracies, strict=True):
        row, column = rows.index(row_of(choice)), columns.index(choice[column_name])
        values[row][column] = accuracy
    return plots.draw_heat_map(
        values, rows=rows, columns=columns, column_title=column_name, title=TITLE
    )
