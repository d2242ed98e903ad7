"""Signals that ask a run to end: the first one kindly, the second one at once.

with Watch() as watch:
    ...
    if watch.is_asked: ...
"""

import os
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODE = 130


class Watch:
    """Notes the first SIGINT or SIGTERM; the second ends the process with code 130.

    Python runs its signal handlers only between two calls into TensorFlow, which may be
    long. So a thread listens, to which every signal is written as it comes. Outside the
    main thread, where signals can't be caught, this does nothing.
    """

    def __init__(self):
        self._asked = threading.Event()
        self._handlers = {}

    @property
    def is_asked(self):
        """Whether the run was asked to end."""
        return self._asked.is_set()

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._old_descriptor = signal.set_wakeup_fd(self._writing)
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *exception):
        if not self._handlers:
            return
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_descriptor)
        os.close(self._writing)  # which ends the thread

    def _listen(self):
        """Reads signals until there is nobody to write them."""
        while received := os.read(self._reading, 1):
            if received[0] not in SIGNALS:
                continue
            if self._asked.is_set():
                os._exit(EXIT_CODE)
            self._asked.set()
        os.close(self._reading)
