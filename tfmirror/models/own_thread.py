"""Builds models without a trace in the names of those that are built later.

found = in_own_thread(lambda: keras.saving.load_model(path).get_weights())

Keras keeps, for each thread, counters for the names of layers and variables, and a list
of variables that still need values. In a thread of its own they end with it.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(function: Callable[[], T]) -> T:
    """Returns what `function` returns in a thread of its own, and waits for it.

    Raises:
      whatever `function` raises.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure
    return results[0]
