"""What was measured, as Markdown tables and plain values."""

import dataclasses

from tfmirror import hardware

MEGABYTE = 2**20
UNKNOWN = "-"


def comparison_line(settings, ideal_grows):
    """Returns which comparison is made: what N replicas have that one has not."""
    cores = hardware.num_cores()
    if settings.cores == "one_each":
        return f"one core a replica, of {cores}: N replicas ideally are N times as fast"
    if ideal_grows:
        return "one GPU a replica: N replicas ideally are N times as fast"
    return (
        f"the same {cores} cores for any number of replicas: N replicas ideally are as "
        "fast as one"
    )


def _table(titles, rows):
    """Returns a Markdown table; empty if it has no rows."""
    if not rows:
        return ""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def speed_table(measured):
    """Returns the table of speeds, a row for each Measured."""
    rows = []
    for m in measured:
        speeds = f"{m.median:,.0f} ({min(m.speeds):,.0f} to {max(m.speeds):,.0f})"
        share, peak = m.share_of_roof, m.peak_bytes
        rows.append(
            [
                m.work.name,
                speeds,
                f"{m.median / m.work.num_replicas:,.0f}",
                f"{m.step_seconds * 1e3:.2f}",
                f"{m.start_seconds:.1f}",
                f"{m.ready['trace_seconds']:.1f}",
                f"{peak / MEGABYTE:,.0f}" if peak else UNKNOWN,
                f"{share:.0%} of {m.roof / 1e9:,.0f}" if share else UNKNOWN,
            ]
        )
    titles = [
        "work",
        "images/s: median (range)",
        "per replica",
        "ms a step",
        "start, s",
        "of it tracing, s",
        "peak memory, MB",
        "of the roof, GFLOP/s",
    ]
    return _table(titles, rows)


def parts_table(measured):
    """Returns the table of the parts of a step, each on its own, in milliseconds."""
    rows = []
    for m in measured:
        if m.parts:
            parts = [m.parts[name] for name in ("input", "compute", "reduction")]
            rest = m.step_seconds - parts[1] - parts[2]
            cells = [f"{seconds * 1e3:.2f}" for seconds in (*parts, rest)]
            rows.append([m.work.name, f"{m.step_seconds * 1e3:.2f}", *cells])
    titles = ["ms of a step", "whole", "input alone", "compute", "reduction", "rest"]
    return _table(titles, rows)


def ratio_table(ratios):
    """Returns the table of Ratios, turn by turn."""
    rows = [
        [
            r.of.name,
            r.against.name,
            f"{r.median:.2f} ({r.least:.2f} to {r.most:.2f})",
            f"{r.ideal:g}" if r.ideal else UNKNOWN,
        ]
        for r in ratios
    ]
    titles = ["work", "against", "times as fast: median (range)", "ideal"]
    return _table(titles, rows)


def prediction_table(predicted):
    """Returns the table of predictions, and of their errors where N was measured."""
    rows = []
    for p in predicted:
        speed, seen = p["images_per_second"], p["measured"]
        error = f"{speed / seen - 1:+.0%} of {seen:,.0f} measured" if seen else UNKNOWN
        efficiency = f"{p['efficiency']:.0%}"
        counted = [str(p["num_replicas"]), f"{speed:,.0f}", efficiency, error]
        rows.append([p["fitted_on"], *counted])
    titles = ["fitted on", "replicas", "images/s, predicted", "efficiency", "error"]
    return _table(titles, rows)


def plain(measured):
    """Returns a Measured as plain values for JSON."""
    derived = {
        "images_per_second": measured.median,
        "step_seconds": measured.step_seconds,
        "share_of_roof": measured.share_of_roof,
    }
    return dataclasses.asdict(measured) | derived
