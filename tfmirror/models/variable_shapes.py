"""The shapes of a model's variables, without the memory that the variables take.

shapes = variable_shapes(lambda: models.build("cnn", (28, 28, 1), 10))
"""

from collections.abc import Callable

import keras

from tfmirror.models.own_thread import in_own_thread


def variable_shapes(build: Callable[[], keras.Model]) -> list[tuple[int, ...]]:
    """Returns the shapes of the variables of `build()`, in the model's order.

    Nothing is allocated, so `build` may use sizes that a file claims.

    Raises:
      whatever `build` raises.
    """

    def build_and_look() -> list[tuple[int, ...]]:
        # In this scope Keras puts off the values of new variables.
        with keras.StatelessScope(initialize_variables=False):
            return [tuple(variable.shape) for variable in build().variables]

    return in_own_thread(build_and_look)
