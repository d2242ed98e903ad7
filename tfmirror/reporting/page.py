"""Makes a report as one HTML page that needs no other file, script or network.

html = make_page(runs, to_png(draw_curves(runs)))
"""

import base64
import datetime
import importlib.resources
from collections.abc import Sequence
from typing import Any

import jinja2

from tfmirror.confusion import Confusion
from tfmirror.reporting import comparison, confusion_plot, history, plots
from tfmirror.rundir.reader import RunRecord

TEMPLATE = "page.html"


def make_page(runs: Sequence[RunRecord], curves_png: bytes) -> str:
    """Returns the HTML page that compares `runs`.

    The names and settings of the runs are escaped.

    Args:
      runs: at least one.
      curves_png: the picture of their curves, as a PNG file.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"number": _number, "time": _time, "value": _value}
    source = importlib.resources.files(__package__) / TEMPLATE
    template = environment.from_string(source.read_text(encoding="utf-8"))
    rows = comparison.compare(runs)
    return template.render(
        rows=rows,
        has_top5=any(row.final_top5 is not None for row in rows),
        starts=history.history(runs),
        classes=[
            (row, row.run.confusion, _confusion_picture(row.run.confusion))
            for row in rows
            if row.run.confusion
        ],
        differing=comparison.differing_settings(runs),
        picture=base64.b64encode(curves_png).decode("ascii"),
    )


def _confusion_picture(found: Confusion) -> str:
    """Returns the picture of a confusion matrix as a PNG file in base64."""
    png = plots.to_png(confusion_plot.draw(found))
    return base64.b64encode(png).decode("ascii")


def _number(value: float | None, spec: str) -> str:
    """Returns a number in the format `spec`, or a dash for None."""
    return "–" if value is None else format(value, spec)


def _time(seconds: float) -> str:
    """Returns a duration as h:mm:ss, or as 12.3 s if it is below a minute."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _value(value: Any) -> str:
    """Returns a setting in the form that it has as a flag, or a dash if it is empty."""
    if value in ("", None):
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)
