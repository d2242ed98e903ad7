"""Ends a run whose step hangs, and prints what is known, instead of waiting for ever.

watchdog = Watchdog(seconds_per_step=60, describe=lambda: ["replica 0: 7 steps taken"])
with watchdog.guard(num_steps=10):
    ...                                            # at most 600 seconds
"""

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

EXIT_CODE = 1
# The description may itself wait for a device that hangs.
SECONDS_TO_DESCRIBE = 5.0


class Watchdog:
    """Ends the process with code 1 if a call that it guards takes too long."""

    def __init__(
        self, seconds_per_step: float, describe: Callable[[], Iterable[str]]
    ) -> None:
        """Sets the limit.

        Args:
          seconds_per_step: 0: no limit.
          describe: returns lines about the replicas, to be printed at the end.
        """
        self._seconds_per_step, self._describe = seconds_per_step, describe

    @contextlib.contextmanager
    def guard(self, num_steps: int) -> Iterator[None]:
        """Guards a call of `num_steps` steps."""
        if not self._seconds_per_step:
            yield
            return
        seconds = self._seconds_per_step * num_steps
        timer = threading.Timer(seconds, self._give_up, (num_steps, seconds))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self, num_steps: int, seconds: float) -> None:
        """Prints what is known, and ends the process."""
        print(
            f"error: {num_steps} training steps have taken more than {seconds:g} s "
            "(step_timeout); the run ends here",
            file=sys.stderr,
            flush=True,
        )
        described = threading.Thread(target=self._print_description, daemon=True)
        described.start()
        described.join(SECONDS_TO_DESCRIBE)
        if described.is_alive():
            print("no answer from the devices", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        os._exit(EXIT_CODE)

    def _print_description(self) -> None:
        """Prints the lines about the replicas."""
        for line in self._describe():
            print(line, file=sys.stderr, flush=True)
