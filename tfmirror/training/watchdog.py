"""Ends a run whose step hangs, and prints what is known, instead of waiting for ever.

watchdog = Watchdog(seconds=60, describe=lambda: ["replica 0: 7 steps taken"])
with watchdog.guard(segment.num_finished):
    ...                      # a call of any number of steps, each at most 60 seconds
"""

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator

EXIT_CODE = 1
# The description may itself wait for a device that hangs.
SECONDS_TO_DESCRIBE = 5.0
# How often the steps are looked at: at least so many times within the limit.
LOOKS_WITHIN_LIMIT = 20
MAX_SECONDS_BETWEEN_LOOKS = 1.0


class Watchdog:
    """Ends the process with code 1 if a call that it guards hangs in a step."""

    def __init__(self, seconds: float, describe: Callable[[], Iterable[str]]) -> None:
        """Sets the limit.

        Args:
          seconds: time in which a guarded call must finish one step more; 0: no limit.
          describe: returns lines about the replicas, to be printed at the end.
        """
        self._seconds, self._describe = seconds, describe

    @contextlib.contextmanager
    def guard(self, num_finished: Callable[[], int]) -> Iterator[None]:
        """Guards a call of many steps.

        Args:
          num_finished: returns a number that grows with each step of the call; another
            thread calls it while the call runs.
        """
        if not self._seconds:
            yield
            return
        has_ended = threading.Event()
        watching = threading.Thread(
            target=self._watch, args=(num_finished, has_ended), daemon=True
        )
        watching.start()
        try:
            yield
        finally:
            has_ended.set()
            watching.join()

    def _watch(
        self, num_finished: Callable[[], int], has_ended: threading.Event
    ) -> None:
        """Looks at the steps until the call has ended; gives up if none is finished."""
        pause = min(MAX_SECONDS_BETWEEN_LOOKS, self._seconds / LOOKS_WITHIN_LIMIT)
        seen, since = num_finished(), time.monotonic()
        while not has_ended.wait(pause):
            found = num_finished()
            if found != seen:
                seen, since = found, time.monotonic()
            elif time.monotonic() - since > self._seconds:
                self._give_up()

    def _give_up(self) -> None:
        """Prints what is known, and ends the process."""
        print(
            f"error: a step has taken more than {self._seconds:g} s (step_timeout); "
            "the run ends here",
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
