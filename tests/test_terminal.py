"""The exact lines that people read."""

import io

import pytest
from rich import console

from tfmirror import metrics
from tfmirror.training import terminal

RECORD = {
    "epoch": 3, "train_loss": 0.52345, "train_accuracy": 0.75, "eval_loss": 0.25,
    "eval_accuracy": 0.8751, "train_seconds": 2.04, "eval_seconds": 0.46,
    "images_per_second": 12345.6,
}  # fmt: skip


def test_epoch_line():
    assert terminal.epoch_line(RECORD, num_epochs=10) == (
        "epoch  3/10  train loss 0.5234 acc 0.7500  eval loss 0.2500 acc 0.8751  2.0 s"
    )


def test_the_line_of_an_epoch_has_the_top_5_accuracy_where_there_is_one():
    line = terminal.epoch_line(RECORD | {"eval_top5_accuracy": 0.98765}, num_epochs=10)
    assert " eval loss 0.2500 acc 0.8751 top-5 0.9877  2.0 s" in line


def test_progress_numbers():
    totals = metrics.Totals(loss_sum=50.0, num_correct=90, num_examples=100)
    assert terminal.progress_numbers(totals, seconds=0.01) == (
        "loss 0.5000 acc 0.9000  10,000 images/s"
    )


def test_there_is_no_bar_where_output_is_not_a_terminal():
    output = io.StringIO()
    show = terminal.Terminal(output)
    with show.epoch_progress(1, 5, 100) as on_progress:
        assert on_progress is None
    show.print_line("data: [bold]mnist[/bold] " + "x" * 200)
    assert output.getvalue() == "data: [bold]mnist[/bold] " + "x" * 200 + "\n"


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_fits_a_terminal_and_leaves_no_line_behind(width):
    output = io.StringIO()
    show = terminal.Terminal(output)
    show._console = console.Console(file=output, force_terminal=True, width=width)
    with show.epoch_progress(2, 5, 60000) as on_progress:
        on_progress(metrics.Totals(3000.0, 29000, 30000), 4.0)
    written = output.getvalue()
    assert (
        "2/5" in written and "30,000/60,000" in written and "7,500 images/s" in written
    )
    assert written.endswith("\x1b[2K")  # the last thing done is to clear the line
