"""Compares training runs in one HTML page with one picture.

python -m tfmirror.report runs/one runs/two
python -m tfmirror.report runs/* --html_file=comparison.html

The page contains the picture; the picture is also written as a PNG file next to it.
"""

import dataclasses
import typing

from tfmirror import command, errors, files, metrics
from tfmirror.settings import positional_arguments, setting

if typing.TYPE_CHECKING:
    from tfmirror.reporting import comparison


@dataclasses.dataclass(frozen=True)
class ReportConfig:
    """All settings of a report."""

    run_dirs: tuple[str, ...] = positional_arguments("RUN_DIR...")
    html_file: str = setting(
        "report.html",
        "page to write; its picture is also written next to it as PNG",
        group="Output",
    )


def check(settings: ReportConfig) -> None:
    """Raises InputError unless there are run directories and a page to write."""
    got = settings.run_dirs
    errors.require(got, "arguments", got, "one run directory or more")
    name = settings.html_file
    errors.require(
        name.endswith(".html"), "html_file", name, "a name that ends in .html"
    )


def main(settings: ReportConfig) -> None:
    """Writes the page and the picture; prints the comparison and both paths."""
    from tfmirror.reporting import comparison, page, plots
    from tfmirror.rundir import reader

    html_file = errors.expand_path("html_file", settings.html_file)
    is_met = html_file.parent.is_dir()
    errors.require(is_met, "html_file", str(html_file), "in an existing folder")
    runs = [reader.read(path, command.print_to_stderr) for path in settings.run_dirs]
    picture = plots.to_png(plots.draw_curves(runs))
    try:
        files.write_bytes(html_file.with_suffix(".png"), picture)
        files.write_text(html_file, page.make_page(runs, picture))
    except OSError as error:
        raise errors.InputError(
            f"html_file can't be written: {error.filename!r}: {error.strerror}"
        ) from error
    for row in comparison.compare(runs):
        print(describe(row))
    print(f"wrote {html_file} and {html_file.with_suffix('.png')}")


def describe(row: "comparison.Row") -> str:
    """Returns one run of the comparison as a line."""
    replicas = metrics.replicas_text(row.run.num_replicas)
    parts = [f"{row.number} {row.run.name}: {replicas}, {row.state}"]
    if len(row.run.starts) > 1:
        parts.append(f"{len(row.run.starts)} starts")
    if row.images_per_second:
        parts.append(f"{row.images_per_second:,.0f} images/s")
        parts.append(f"speed-up {row.speed_up:.2f} over run {row.baseline}")
        parts.append(f"test accuracy {row.final_accuracy:.4f}")
    if row.final_top5 is not None:
        parts.append(f"top-5 {row.final_top5:.4f}")
    return ", ".join(parts)


if __name__ == "__main__":
    command.run(main, ReportConfig, __doc__, check=check, needs_tensorflow=False)
