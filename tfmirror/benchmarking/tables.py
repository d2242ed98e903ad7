"""Shows measurements as Markdown tables and as values for JSON.

print(speed_table(measurements))
json.dumps([to_json(m) for m in measurements])
"""

import dataclasses
import typing
from collections.abc import Iterable, Sequence

from tfmirror import hardware, tables
from tfmirror.benchmarking.rounds import Measurement, Ratio
from tfmirror.benchmarking.scaling import Prediction

MEBIBYTE = 2**20
UNKNOWN = "-"


def comparison_line(cores: str, hardware_grows: bool) -> str:
    """Returns one line on the hardware of N replicas, and their ideal speed.

    Args:
      cores: "shared" or "one_each", as of the setting.
      hardware_grows: whether N replicas have N times the hardware of one.
    """
    num_cores = hardware.num_cores()
    if cores == "one_each":
        return (
            f"one core for each replica, of {num_cores} cores: ideally N replicas are "
            "N times as fast as one"
        )
    if hardware_grows:
        return "one GPU for each replica: ideally N replicas are N times as fast as one"
    return (
        f"all replicas share the same {num_cores} cores: ideally N replicas are as "
        "fast as one"
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; empty if it has no rows."""
    if not rows:
        return ""
    return tables.markdown(titles, rows)


def speed_table(measurements: Iterable[Measurement]) -> str:
    """Returns the table of speeds, with a row for each measurement."""
    rows = []
    for m in measurements:
        speed, lowest, highest = m.images_per_second, min(m.speeds), max(m.speeds)
        share, peak_bytes = m.share_of_peak_flops, m.peak_bytes
        rows.append(
            [
                m.workload.name,
                f"{speed:,.0f} ({lowest:,.0f} to {highest:,.0f})",
                f"{speed / m.workload.num_replicas:,.0f}",
                f"{m.step_seconds * 1e3:.2f}",
                f"{m.start_seconds:.1f}",
                f"{m.info.trace_seconds:.1f}",
                f"{peak_bytes / MEBIBYTE:,.0f}" if peak_bytes else UNKNOWN,
                f"{share:.0%} of {m.peak_flops / 1e9:,.0f}"
                if share and m.peak_flops
                else UNKNOWN,
            ]
        )
    titles = [
        "workload",
        "images/s: median (range)",
        "images/s per replica",
        "ms per step",
        "start, s",
        "of which tracing, s",
        "peak memory, MiB",
        "share of the matrix-multiply peak, GFLOP/s",
    ]
    return _table(titles, rows)


def step_parts_table(measurements: Iterable[Measurement]) -> str:
    """Returns the table of the parts of a step, each measured alone, in milliseconds.

    The rest is the whole step less compute and reduction: the input is prepared while
    the devices compute.
    """
    rows = []
    for m in measurements:
        if parts := m.step_parts:
            compute, reduction = parts.compute_seconds, parts.reduction_seconds
            rest = m.step_seconds - compute - reduction
            seconds = (m.step_seconds, parts.input_seconds, compute, reduction, rest)
            rows.append([m.workload.name, *(f"{s * 1e3:.2f}" for s in seconds)])
    titles = [
        "ms per step",
        "whole",
        "input alone",
        "compute",
        "reduction",
        "rest",
    ]
    return _table(titles, rows)


def ratio_table(ratios: Iterable[Ratio]) -> str:
    """Returns the table of Ratios, with a row for each."""
    rows = [
        [
            r.workload.name,
            r.baseline.name,
            f"{r.median:.2f} ({r.lowest:.2f} to {r.highest:.2f})",
            f"{r.ideal:g}" if r.ideal else UNKNOWN,
        ]
        for r in ratios
    ]
    titles = ["workload", "baseline", "ratio of speeds: median (range)", "ideal"]
    return _table(titles, rows)


def prediction_table(predictions: Iterable[Prediction]) -> str:
    """Returns the table of predictions, with their errors where N was measured."""
    rows = []
    for p in predictions:
        speed, measured = p.images_per_second, p.measured_images_per_second
        error = UNKNOWN
        if measured:
            error = f"{speed / measured - 1:+.0%} of {measured:,.0f} measured"
        counts = [str(p.num_replicas), f"{speed:,.0f}", f"{p.efficiency:.0%}"]
        rows.append([p.fitted_on, *counts, error])
    titles = ["fitted on", "replicas", "predicted images/s", "efficiency", "error"]
    return _table(titles, rows)


def to_json(measurement: Measurement) -> dict[str, typing.Any]:
    """Returns a measurement as values for JSON, with its derived values."""
    derived = {
        "images_per_second": measurement.images_per_second,
        "step_seconds": measurement.step_seconds,
        "share_of_peak_flops": measurement.share_of_peak_flops,
    }
    return dataclasses.asdict(measurement) | derived
