"""Draws runs as matplotlib figures, without a screen.

save(draw_curves([reader.read("runs/first")]), "curves.png")
"""

import io
import itertools
import pathlib
import warnings
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib import axes, figure, ticker

from tfmirror import files
from tfmirror.rundir import reader
from tfmirror.rundir.reader import RunRecord

PIXELS_PER_INCH = 150
LONGEST_LABEL = 48  # characters
QUANTITIES = {"loss": "mean loss (nats)", "accuracy": "accuracy"}
STYLES = {"evaluation": "-", "training": "--"}
AXES = {
    "epochs": "epochs of training",
    "seconds": "seconds of training and evaluation",
}
COLORS = matplotlib.color_sequences["tab10"]
DARK = 0.6  # share of the colour scale below which white text is readable


def draw_curves(runs: Sequence[RunRecord]) -> figure.Figure:
    """Returns a figure of loss, accuracy and learning rate, against epochs and seconds.

    Solid lines show the evaluation set, dashed lines the training set. The learning
    rate is the one at the end of each epoch.
    """
    drawn = figure.Figure(figsize=(10, 8.4), layout="constrained")
    grid = drawn.subplots(3, 2, sharey="row", height_ratios=(3, 3, 2))
    for ax, against in zip(grid[2], AXES, strict=True):
        for number, run in enumerate(runs, start=1):
            _draw_line(ax, _x_of(run, against), run.values("learning_rate"), number)
        _label(ax, AXES[against])
    grid[2, 0].set_ylabel("learning rate")
    for row, (quantity, label) in zip(grid[:2], QUANTITIES.items(), strict=True):
        for ax, against in zip(row, AXES, strict=True):
            _draw_quantity(ax, runs, quantity, against)
            _label(ax, AXES[against])
        row[0].set_ylabel(label)
    _draw_legend(drawn, grid[0, 0], runs)
    return drawn


def draw_run(folder: pathlib.Path) -> None:
    """Draws the curves of the run in `folder` into its plots/curves.png.

    Raises:
      InputError, OSError: the run can't be read, or the picture can't be written.
    """
    files.make_folder(folder / "plots")
    save(draw_curves([reader.read(folder)]), folder / "plots" / "curves.png")


def draw_accuracy(runs: Sequence[RunRecord]) -> figure.Figure:
    """Returns a figure of the evaluation accuracy of `runs` against epochs."""
    drawn = figure.Figure(figsize=(7, 4.6), layout="constrained")
    ax = drawn.subplots()
    for number, run in enumerate(runs, start=1):
        _draw_line(ax, run.values("epoch"), run.values("eval_accuracy"), number)
    _label(ax, AXES["epochs"])
    ax.set_ylabel("test accuracy")
    _draw_legend(drawn, ax, runs, styles={})
    return drawn


def draw_scaling(
    series: Mapping[str, Mapping[int, float]], ideal_grows: bool
) -> figure.Figure:
    """Returns a figure of speed and efficiency against the number of replicas.

    Args:
      series: {label: {number of replicas: images per second}}.
      ideal_grows: whether N replicas are ideally N times as fast as one, as with a GPU
        each, or as fast as one, as with shared cores.
    """
    drawn = figure.Figure(figsize=(10, 4.2), layout="constrained")
    speed_axes, efficiency_axes = drawn.subplots(1, 2)
    for color, (label, speeds) in zip(itertools.cycle(COLORS), series.items()):
        counts = sorted(speeds)
        ideal = [speeds[counts[0]] * _growth(n, counts[0], ideal_grows) for n in counts]
        found = [speeds[n] for n in counts]
        speed_axes.plot(counts, found, "o-", color=color, label=label)
        speed_axes.plot(counts, ideal, ":", color=color)
        shares = [a / b for a, b in zip(found, ideal, strict=True)]
        efficiency_axes.plot(counts, shares, "o-", color=color)
    efficiency_axes.axhline(1.0, linestyle=":", color="black")
    for ax, label in (
        (speed_axes, "training speed (images/s)"),
        (efficiency_axes, "share of the ideal"),
    ):
        _label(ax, "replicas")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
    speed_axes.plot([], [], ":", color="black", label="ideal")
    speed_axes.legend(fontsize="small")
    return drawn


def _growth(num_replicas: int, fewest: int, ideal_grows: bool) -> float:
    """Returns the ideal speed in multiples of that of the fewest replicas."""
    return num_replicas / fewest if ideal_grows else 1.0


def draw_heat_map(
    values: Sequence[Sequence[float]] | np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    column_title: str,
    title: str,
) -> figure.Figure:
    """Returns a figure of a table of numbers, as colours and in digits.

    Args:
      values: [len(rows), len(columns)]; NaN: no value.
      rows: label of each row.
      columns: label of each column.
    """
    numbers = np.asarray(values, dtype=float)
    size = 2.2 + 0.95 * len(columns), 1.8 + 0.5 * len(rows)
    drawn = figure.Figure(figsize=(max(5, size[0]), max(3, size[1])))
    drawn.set_layout_engine("constrained")
    ax = drawn.subplots()
    image = ax.imshow(numbers, aspect="auto", cmap="viridis")
    shades = np.asarray(image.norm(numbers))  # 0: darkest, 1: lightest
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_xlabel(column_title)
    ax.set_title(title, fontsize="medium")
    for (row, column), value in np.ndenumerate(numbers):
        if np.isfinite(value):
            color = "white" if shades[row, column] < DARK else "black"
            text = f"{value:.4f}"
            ax.text(column, row, text, ha="center", va="center", color=color)
    drawn.colorbar(image, ax=ax)
    return drawn


def save(drawn: figure.Figure, path: str | pathlib.Path) -> None:
    """Writes a figure as a PNG file, complete and on the disk, or not at all.

    Raises:
      OSError: it can't be written.
    """
    files.write_bytes(pathlib.Path(path), to_png(drawn))


def to_png(drawn: figure.Figure) -> bytes:
    """Returns a figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Characters of a name that the font lacks are shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    return buffer.getvalue()


def label_of(number: int, run: RunRecord) -> str:
    """Returns the label of a run in a legend: its number and its name, maybe cut."""
    name = run.name
    if len(name) > LONGEST_LABEL:
        name = name[: LONGEST_LABEL - 1] + "…"
    return f"{number}  {name}"


def _draw_quantity(
    ax: axes.Axes, runs: Sequence[RunRecord], quantity: str, against: str
) -> None:
    """Draws one quantity in training and evaluation, with a colour for each run.

    Args:
      quantity: a key of QUANTITIES.
      against: a key of AXES.
    """
    for number, run in enumerate(runs, start=1):
        x = _x_of(run, against)
        _draw_line(ax, x, run.values(f"train_{quantity}"), number, "--")
        _draw_line(ax, x, run.values(f"eval_{quantity}"), number)


def _x_of(run: RunRecord, against: str) -> list[float]:
    """Returns the end of each epoch on the x axis `against`, a key of AXES."""
    return run.values("epoch") if against == "epochs" else run.seconds[1:]


def _draw_line(
    ax: axes.Axes,
    x: Sequence[float],
    y: Sequence[float],
    number: int,
    style: str = "-",
) -> None:
    """Draws one line of run `number`, with a dot for each epoch if there are few."""
    ax.plot(
        x,
        y,
        style,
        color=COLORS[(number - 1) % len(COLORS)],
        marker="o" if len(x) <= 20 else None,
        markersize=3,
        linewidth=1.5 if style == "-" else 1,
    )


def _label(ax: axes.Axes, x_label: str) -> None:
    """Labels the x axis, with ticks at whole numbers, and draws a grid."""
    ax.set_xlabel(x_label)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.grid(alpha=0.3)


def _draw_legend(
    drawn: figure.Figure,
    ax: axes.Axes,
    runs: Sequence[RunRecord],
    styles: Mapping[str, str] = STYLES,
) -> None:
    """Draws a legend below the axes: a colour for each run, a style for each set."""
    handles, labels = [], []
    for number, run in enumerate(runs, start=1):
        (line,) = ax.plot([], [], color=COLORS[(number - 1) % len(COLORS)])
        handles.append(line)
        labels.append(label_of(number, run))
    for name, style in styles.items():
        handles += ax.plot([], [], style, color="black")
        labels.append(name)
    widest = max(map(len, labels))
    columns = 4 if widest < 20 else 3 if widest < 30 else 2
    legend = drawn.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize="small"
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may hold dollar signs
