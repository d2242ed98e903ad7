"""Lays training runs over each other, in one HTML page and one picture.

python -m tfmirror.report runs/one runs/two
python -m tfmirror.report runs/* --html_file=comparison.html

The page needs nothing beside it; the picture in it is also written as a PNG file.
"""

from tfmirror import command, command_config, errors, metrics


def main(settings):
    """Writes the page and the picture; prints where, and the comparison."""
    from tfmirror.reporting import comparison, page, plots
    from tfmirror.rundir import reader

    html_file = errors.expand_path("html_file", settings.html_file)
    if not html_file.parent.is_dir():
        raise errors.InputError(
            f"html_file must be in a folder that exists: got {str(html_file)!r}"
        )
    read = [reader.read(path) for path in settings.run_dirs]
    picture = plots.to_png(plots.draw_curves(read))
    try:
        html_file.with_suffix(".png").write_bytes(picture)
        html_file.write_text(page.make_page(read, picture), encoding="utf-8")
    except OSError as error:
        raise errors.InputError(
            f"html_file can't be written: {error.filename!r}: {error.strerror}"
        ) from error
    for row in comparison.compare(read):
        print(describe(row))
    print(f"wrote {html_file} and {html_file.with_suffix('.png')}")


def describe(row):
    """Returns a comparison.Row as a line."""
    replicas = metrics.replicas_text(row.run.num_replicas)
    parts = [f"{row.number} {row.run.name}: {replicas}, {row.state}"]
    if row.images_per_second:
        parts.append(f"{row.images_per_second:,.0f} images/s")
        parts.append(f"speed-up {row.speed_up:.2f} over run {row.baseline}")
        parts.append(f"test accuracy {row.final_accuracy:.4f}")
    return ", ".join(parts)


if __name__ == "__main__":
    command.run(
        main,
        command_config.ReportConfig,
        __doc__,
        command_config.check_report,
        needs_tensorflow=False,
    )
