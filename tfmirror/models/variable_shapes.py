"""The shapes of a model's variables, without the memory that the variables take.

shapes = variable_shapes(lambda: models.build("cnn", (28, 28, 1), 10))
"""

import threading
from collections.abc import Callable

import keras


def variable_shapes(build: Callable[[], keras.Model]) -> list[tuple[int, ...]]:
    """Returns the shapes of the variables of `build()`, in the model's order.

    Nothing is allocated, so `build` may use sizes that a file claims.

    Raises:
      whatever `build` raises.
    """
    outcome: list[list[tuple[int, ...]] | BaseException] = []

    def build_and_note() -> None:
        try:
            # In this scope Keras puts off the values of new variables.
            with keras.StatelessScope(initialize_variables=False):
                model = build()
                outcome.append([tuple(v.shape) for v in model.variables])
        except BaseException as error:
            outcome.append(error)

    # Keras keeps, for each thread, a list of variables that still need values, and
    # counters for their names. In a thread of its own they end with it.
    thread = threading.Thread(target=build_and_note)
    thread.start()
    thread.join()
    (found,) = outcome
    if isinstance(found, BaseException):
        raise found
    return found
