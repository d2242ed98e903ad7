"""Signals that ask a run to end: the first after the step, the second at once.

with Watch() as watch:
    ...
    if watch.is_asked: ...
"""

import os
import signal
import threading
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130


class Watch:
    """Notes the first SIGINT or SIGTERM; the second ends the process with code 130.

    Python runs its signal handlers only between two calls into TensorFlow, which may
    take long. So a thread listens, and gets every signal through a pipe at once.
    Outside the main thread, where signals can't be caught, this does nothing.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}

    @property
    def is_asked(self) -> bool:
        """Whether the run was asked to end."""
        return self._asked.is_set()

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._old_descriptor = signal.set_wakeup_fd(self._writing)
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        if not self._handlers:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_descriptor)
        os.close(self._writing)  # which ends the thread

    def _listen(self) -> None:
        """Reads signals until the writing end is closed."""
        while received := os.read(self._reading, 1):
            if received[0] not in SIGNALS:
                continue
            if self._asked.is_set():
                os._exit(EXIT_CODE)
            self._asked.set()
        os.close(self._reading)
