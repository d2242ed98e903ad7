"""What a run prints: lines, and a progress bar if the output is a terminal.

terminal = Terminal()
terminal.print_line("devices: CPU:0, CPU:1")
    with terminal.epoch_progress(epoch=1, num_epochs=5, num_examples=60000) as show:
        show(totals, seconds)                      # after every call of the steps
"""

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from rich import console, progress

from tfmirror import metrics


class _Output:
    """Standard output, or a file. Once its terminal is closed, its text is dropped.

    A run must not fail with what it can't show: the signal of a closed terminal
    (SIGHUP) follows, and ends it with a checkpoint.
    """

    def __init__(self, file: TextIO | None) -> None:
        """`file` is the output; None: what standard output is at the time."""
        self._given = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given or sys.stdout, name)

    def write(self, text: str) -> int:
        """Writes text; returns its length."""
        with _terminal_may_be_closed():
            (self._given or sys.stdout).write(text)
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered."""
        with _terminal_may_be_closed():
            (self._given or sys.stdout).flush()


@contextlib.contextmanager
def _terminal_may_be_closed() -> Iterator[None]:
    """Passes over the error of a write to a closed terminal."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class _Console(console.Console):
    """A console that lets the command decide what happens on a broken pipe."""

    def on_broken_pipe(self) -> None:
        """Raises the current BrokenPipeError again; rich would exit here."""
        raise


class Terminal:
    """Prints lines, and progress bars if the output is a terminal."""

    def __init__(self, file: TextIO | None = None) -> None:
        """`file` is the output; None: standard output."""
        output = cast(TextIO, _Output(file))
        self._console = _Console(file=output, highlight=False, soft_wrap=True)

    def print_line(self, text: str) -> None:
        """Prints one line."""
        self._console.print(text, markup=False)

    @contextlib.contextmanager
    def epoch_progress(
        self, epoch: int, num_epochs: int, num_examples: int
    ) -> Iterator[Callable[[metrics.Totals, float], None] | None]:
        """Yields a function (totals so far, seconds) that moves this epoch's bar.

        None if the output is not a terminal.
        """
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


def progress_numbers(totals: metrics.Totals, seconds: float) -> str:
    """Returns the text next to the bar: means over the epoch so far."""
    return (
        f"loss {totals.mean_loss:.4f} acc {totals.accuracy:.4f}  "
        f"{totals.num_examples / seconds:,.0f} images/s"
    )


def epoch_line(record: dict[str, Any], num_epochs: int) -> str:
    """Returns the line of a finished epoch.

    It has at most 80 columns if no step was skipped and there is no top-5 accuracy.

    Args:
      record: one entry of summary.json's "epochs".
    """
    width = len(str(num_epochs))
    parts = [
        f"{part} loss {record[f'{part}_loss']:.4f} acc {record[f'{part}_accuracy']:.4f}"
        for part in ("train", "eval")
    ]
    if (top5 := record.get("eval_top5_accuracy")) is not None:
        parts[-1] += f" top-5 {top5:.4f}"
    number = f"{record['epoch']:{width}}/{num_epochs}"
    line = f"epoch {number}  {'  '.join(parts)}  {record['train_seconds']:.1f} s"
    skipped = record.get("skipped_steps", 0)
    return f"{line}  {skipped} steps skipped" if skipped else line
