"""The runs of a sweep as a table and as a grid of numbers.

choices = [{"gpus": "1", "seed": "0"}, {"gpus": "2", "seed": "0"}]
make_table(choices, [0.91, 0.90])
"""

TITLE = "test accuracy after the last epoch"


def varying(choices):
    """Returns the names of the settings that differ between `choices`, in order."""
    return [n for n in choices[0] if len({choice[n] for choice in choices}) > 1]


def make_table(choices, accuracies):
    """Returns a Markdown table: a row for each of `choices`, its varying settings.

    Args:
      choices: a {setting: text} for each run, of the same settings.
      accuracies: of each run.
    """
    names = varying(choices)
    rows = [names + ["test accuracy"], ["---"] * (len(names) + 1)]
    for choice, accuracy in zip(choices, accuracies, strict=True):
        rows.append([*(choice[n] or "recipe" for n in names), f"{accuracy:.4f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def make_grid(choices, accuracies, gap):
    """Returns the arguments of plots.draw_heat_map: a column for each value of the last
    varying setting, a row for each combination of the others.

    Args:
      choices, accuracies: as of `make_table`.
      gap: what stands where there is no run.
    """
    *row_names, column_name = varying(choices) or list(choices[0])[-1:]

    def row_of(choice):
        return ", ".join(f"{n} {choice[n] or 'recipe'}" for n in row_names)

    rows = list(dict.fromkeys(map(row_of, choices)))
    columns = list(dict.fromkeys(choice[column_name] for choice in choices))
    values = [[gap] * len(columns) for _ in rows]
    for choice, accuracy in zip(choices, accuracies, strict=True):
        row, column = rows.index(row_of(choice)), columns.index(choice[column_name])
        values[row][column] = accuracy
    return values, rows, columns, "", column_name, TITLE
