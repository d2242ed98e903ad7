"""Signals that ask a process to end: the first in good order, the second at once.

with Watch() as watch, watch.calling(segment.ask_to_stop):
    ...
    if watch.is_asked: ...

with Watch(raises=True):
    ...                      # the first signal raises KeyboardInterrupt
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_CODE = 130


class Watch:
    """Notes the first signal of SIGNALS; the second ends the process with code 130.

    Python runs its signal handlers only between two calls into TensorFlow, which may
    take long. So a thread listens, and gets every signal through a pipe at once.
    A signal that the process was started to ignore, as SIGHUP by nohup, stays ignored.
    Outside the main thread, where signals can't be caught, this does nothing.

    One may be used within another: the inner one then gets the signals.
    """

    def __init__(self, *, raises: bool = False) -> None:
        """Nothing is caught yet.

        Args:
          raises: whether the first signal also raises KeyboardInterrupt in the main
            thread, with the signal's name in its message.
        """
        self._raises = raises
        self._asked = threading.Event()
        self._handlers: dict[signal.Signals, Any] = {}
        self._lock = threading.Lock()
        self._to_call: Callable[[], None] | None = None

    @property
    def is_asked(self) -> bool:
        """Whether the process was asked to end."""
        return self._asked.is_set()

    @contextlib.contextmanager
    def calling(self, function: Callable[[], None]) -> Iterator[None]:
        """Calls `function` in another thread when the process is asked to end.

        If it was asked before, the function is called now.
        """
        with self._lock:
            self._to_call = function
            if self._asked.is_set():
                function()
        try:
            yield
        finally:
            with self._lock:
                self._to_call = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._old_descriptor = signal.set_wakeup_fd(self._writing)
        self._old_hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
        threading.Thread(target=self._listen, daemon=True).start()
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._old_hook
        signal.set_wakeup_fd(self._old_descriptor)
        os.close(self._writing)  # which ends the thread

    def _handle(self, number: int, frame: Any) -> None:
        """Handles a signal in the main thread, once Python gets to it."""
        if self._raises:
            self._raises = False
            self._asked.set()
            raise KeyboardInterrupt(f"interrupted by {signal.Signals(number).name}")

    def _on_unraisable(self, unraisable: Any) -> None:
        """Ends the process if Python drops the handler's exception.

        It does where it has no caller to raise it in, such as in `__del__`.
        """
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            os.write(2, f"error: {unraisable.exc_value}\n".encode())
            os._exit(EXIT_CODE)
        self._old_hook(unraisable)

    def _listen(self) -> None:
        """Reads signals until the writing end is closed."""
        was_asked = False
        while received := os.read(self._reading, 1):
            if received[0] not in SIGNALS:
                continue
            if was_asked:
                os._exit(EXIT_CODE)
            was_asked = True
            with self._lock:
                self._asked.set()
                if self._to_call:
                    self._to_call()
        os.close(self._reading)
