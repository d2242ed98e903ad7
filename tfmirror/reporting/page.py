"""A report as one HTML page that needs nothing beside it: no script, no network.

html = make_page(runs, to_png(draw_curves(runs)))
"""

import base64
import datetime
import importlib.resources

import jinja2

from tfmirror.reporting import comparison

TEMPLATE = "page.html"


def make_page(runs, curves_png):
    """Returns the page that lays `runs` over each other.

    Whatever a run's name or settings hold is escaped.

    Args:
      runs: of runs.read, at least one.
      curves_png: bytes of the picture of their curves.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"number": _number, "time": _time, "value": _value}
    source = importlib.resources.files(__package__) / TEMPLATE
    template = environment.from_string(source.read_text(encoding="utf-8"))
    return template.render(
        rows=comparison.compare(runs),
        differing=comparison.differing_settings(runs),
        picture=base64.b64encode(curves_png).decode("ascii"),
    )


def _number(value, spec):
    """Returns a number as `spec` says, or a dash for None."""
    return "–" if value is None else format(value, spec)


def _time(seconds):
    """Returns a duration as h:mm:ss, or with tenths of seconds if it is short."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _value(value):
    """Returns a setting as people write it as a flag."""
    if value in ("", None):
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)
