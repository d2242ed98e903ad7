"""Pictures of runs, as matplotlib figures that no screen is needed for.

save(draw_curves([runs.read("runs/first")]), "curves.png")
"""

import io
import itertools
import pathlib
import warnings

import matplotlib
import numpy as np
from matplotlib import figure, ticker

PIXELS_PER_INCH = 150
LONGEST_LABEL = 48  # characters
QUANTITIES = {"loss": "mean loss (nats)", "accuracy": "accuracy"}
STYLES = {"evaluation": "-", "training": "--"}
AXES = {
    "epochs": "epochs of training",
    "seconds": "seconds of training and evaluation",
}
COLORS = matplotlib.color_sequences["tab10"]


def draw_curves(runs):
    """Returns a Figure of loss and accuracy of `runs`, against epochs and seconds.

    Solid lines are of the evaluation set, dashed ones of the training set.
    """
    drawn = figure.Figure(figsize=(10, 6.6), layout="constrained")
    axes = drawn.subplots(2, 2, sharey="row")
    for row, (quantity, label) in zip(axes, QUANTITIES.items(), strict=True):
        for ax, against in zip(row, AXES, strict=True):
            _draw_quantity(ax, runs, quantity, against)
            _label(ax, AXES[against])
        row[0].set_ylabel(label)
    _draw_legend(drawn, axes[0, 0], runs)
    return drawn


def draw_accuracy(runs):
    """Returns a Figure of the evaluation accuracy of `runs` against epochs."""
    drawn = figure.Figure(figsize=(7, 4.6), layout="constrained")
    ax = drawn.subplots()
    for number, run in enumerate(runs, start=1):
        _draw_line(ax, run.values("epoch"), run.values("eval_accuracy"), number)
    _label(ax, AXES["epochs"])
    ax.set_ylabel("test accuracy")
    _draw_legend(drawn, ax, runs, styles={})
    return drawn


def draw_scaling(series, ideal_grows):
    """Returns a Figure of speed and efficiency against the number of replicas.

    Args:
      series: {label: {replicas: images a second}}.
      ideal_grows: whether N replicas ideally take N times as many images as one.
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


def _growth(num_replicas, fewest, ideal_grows):
    """Returns how many times the speed of the fewest replicas is ideal."""
    return num_replicas / fewest if ideal_grows else 1.0


def draw_heat_map(values, rows, columns, row_title, column_title, title):
    """Returns a Figure of a table of numbers, as colours and in digits.

    Args:
      values: [len(rows), len(columns)], NaN where there is none.
      rows, columns: labels.
    """
    values = np.asarray(values, dtype=float)
    size = 2.2 + 0.95 * len(columns), 1.8 + 0.5 * len(rows)
    drawn = figure.Figure(figsize=(max(5, size[0]), max(3, size[1])))
    drawn.set_layout_engine("constrained")
    ax = drawn.subplots()
    image = ax.imshow(values, aspect="auto", cmap="viridis")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_xlabel(column_title)
    ax.set_ylabel(row_title)
    ax.set_title(title, fontsize="medium")
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            is_dark = image.norm(value) < 0.6
            ax.text(
                column,
                row,
                f"{value:.4f}",
                ha="center",
                va="center",
                color="white" if is_dark else "black",
            )
    drawn.colorbar(image, ax=ax)
    return drawn


def save(drawn, path):
    """Writes a Figure as the PNG file `path`."""
    pathlib.Path(path).write_bytes(to_png(drawn))


def to_png(drawn):
    """Returns the PNG file of a Figure."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawn.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    return buffer.getvalue()


def label_of(number, run):
    """Returns what a legend calls a run: its number, then its name or its start."""
    name = run.name
    if len(name) > LONGEST_LABEL:
        name = name[: LONGEST_LABEL - 1] + "…"
    return f"{number}  {name}"


def _draw_quantity(ax, runs, quantity, against):
    """Draws evaluation and training of one quantity, a colour for each run."""
    for number, run in enumerate(runs, start=1):
        x = run.values("epoch") if against == "epochs" else run.seconds[1:]
        _draw_line(ax, x, run.values(f"train_{quantity}"), number, "--")
        _draw_line(ax, x, run.values(f"eval_{quantity}"), number)


def _draw_line(ax, x, y, number, style="-"):
    """Draws one line, with a dot for each epoch while they can be told apart."""
    ax.plot(
        x,
        y,
        style,
        color=COLORS[(number - 1) % len(COLORS)],
        marker="o" if len(x) <= 20 else None,
        markersize=3,
        linewidth=1.5 if style == "-" else 1,
    )


def _label(ax, x_label):
    """Labels the axis below, with ticks at whole numbers, and draws a grid."""
    ax.set_xlabel(x_label)
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.grid(alpha=0.3)


def _draw_legend(drawn, ax, runs, styles=STYLES):
    """Draws a legend below: a colour for each run, a style for each set."""
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
