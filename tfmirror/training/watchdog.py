"""Gives up a run whose step hangs, and says what is known, instead of waiting for ever.

with Watchdog(seconds_per_step=60, describe=...) as watchdog:
    with watchdog.guard(num_steps=10):
        ...                                        # at most 600 seconds
"""

import contextlib
import faulthandler
import os
import sys
import threading

EXIT_CODE = 1
# For the description itself, which may wait for a device that hangs.
SECONDS_TO_DESCRIBE = 5.0


class Watchdog:
    """Ends the process with code 1 when what it guards takes too long."""

    def __init__(self, seconds_per_step, describe):
        """`describe` gives lines on the replicas; `seconds_per_step` 0: no limit."""
        self._seconds_per_step, self._describe = seconds_per_step, describe

    @contextlib.contextmanager
    def guard(self, num_steps):
        """Guards the call of so many steps."""
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

    def _give_up(self, num_steps, seconds):
        """Prints what is known, and ends the process."""
        print(
            f"error: {num_steps} training steps have taken more than {seconds:g} s "
            "(step_timeout); the run is given up",
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

    def _print_description(self):
        """Prints what the replicas look like."""
        for line in self._describe():
            print(line, file=sys.stderr, flush=True)
