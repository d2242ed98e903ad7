"""What a run shows while it goes on: a progress bar on a terminal, and lines.

with Terminal() as terminal:
    terminal.line("devices: CPU:0, CPU:1")
    with terminal.epoch_progress(epoch=1, num_epochs=5, num_examples=60000) as show:
        show(totals, seconds)                      # after every call of the steps
"""

import contextlib

from rich import console, progress


class _Console(console.Console):
    """A console that leaves it to the command how to end when its reader has left."""

    def on_broken_pipe(self):
        """Raises the BrokenPipeError on which it is called; rich would exit here."""
        raise


class Terminal:
    """Prints lines, and progress bars where output is a terminal."""

    def __init__(self, file=None):
        self._console = _Console(file=file, highlight=False, soft_wrap=True)

    def line(self, text):
        """Prints one line."""
        self._console.print(text, markup=False)

    @contextlib.contextmanager
    def epoch_progress(self, epoch, num_epochs, num_examples):
        """Yields a function (metrics.Totals, seconds) that moves this epoch's bar."""
        if not self._console.is_terminal:
            yield None
            return
        columns = (
            progress.TextColumn("epoch {task.fields[epoch]}"),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.completed:,}/{task.total:,}"),
            progress.TextColumn("{task.fields[numbers]}"),
            progress.TimeRemainingColumn(compact=True),
        )
        with progress.Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(
                "", total=num_examples, epoch=f"{epoch}/{num_epochs}", numbers=""
            )

            def show(totals, seconds):
                numbers = progress_numbers(totals, seconds)
                bar.update(task, completed=totals.num_examples, numbers=numbers)

            yield show


def progress_numbers(totals, seconds):
    """Returns what stands beside the bar: means over the epoch so far."""
    return (
        f"loss {totals.mean_loss:.4f} acc {totals.accuracy:.4f}  "
        f"{totals.num_examples / seconds:,.0f} images/s"
    )


def epoch_line(record, num_epochs):
    """Returns the line of a finished epoch; it fits 80 columns.

    Args:
      record: one entry of summary.json's "epochs".
    """
    width = len(str(num_epochs))
    parts = [
        f"{part} loss {record[f'{part}_loss']:.4f} acc {record[f'{part}_accuracy']:.4f}"
        for part in ("train", "eval")
    ]
    number = f"{record['epoch']:{width}}/{num_epochs}"
    return f"epoch {number}  {'  '.join(parts)}  {record['train_seconds']:.1f} s"
