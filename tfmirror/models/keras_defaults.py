"""Keras' own defaults, whatever the user's keras.json or program has set.

    @scope()
    def build(...):
        ...

Keras reads data types, layout and epsilon from process-wide settings: when layers are
made, and again when they are traced. So all that makes or traces layers, optimizers
and schedules runs in a scope.
"""

import contextlib
from collections.abc import Iterator

import keras
from keras.src.backend.common import global_state

from tfmirror import errors

BACKEND = "tensorflow"
FLOATX = "float32"
EPSILON = 1e-7
IMAGE_DATA_FORMAT = "channels_last"
NAME_COUNTERS = "object_name_uids"


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Gives Keras its defaults in a block or, as a decorator, in a function.

    Afterwards Keras has the user's settings again. They hold for the whole process, so
    two threads must not enter scopes at the same time. Scopes may be nested.

    Raises:
      InputError: Keras runs on another backend than TensorFlow.
    """
    backend = keras.config.backend()
    if backend != BACKEND:
        raise errors.InputError(
            f"Keras' backend must be {BACKEND}: got {backend!r}; set "
            f"KERAS_BACKEND={BACKEND} before Keras is imported"
        )
    kept = (
        keras.config.floatx(),
        keras.config.epsilon(),
        keras.config.image_data_format(),
        keras.config.dtype_policy(),
    )
    try:
        _set(FLOATX, EPSILON, IMAGE_DATA_FORMAT, FLOATX)
        yield
    finally:
        _set(*kept)


@contextlib.contextmanager
def names_of_a_new_process() -> Iterator[None]:
    """Gives layers that are made in a block the names that a new process would give.

    Keras counts names such as dense_1 over all that a process makes, and a state is
    restored by names. So a model would have other names when it is built again. Keras'
    only public way, `clear_session`, drops all that it keeps for the user's program.
    This replaces the counters in its global state (Keras 3.15.1,
    backend/common/global_state.py and utils/naming.py);
    `test_a_model_has_the_same_names_when_it_is_built_again` fails when they change.
    """
    kept = global_state.get_global_attribute(NAME_COUNTERS)
    global_state.set_global_attribute(NAME_COUNTERS, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(NAME_COUNTERS, kept)


def _set(
    floatx: str,
    epsilon: float,
    image_data_format: str,
    dtype_policy: str | keras.DTypePolicy,
) -> None:
    """Gives Keras these settings."""
    keras.config.set_floatx(floatx)
    keras.config.set_epsilon(epsilon)
    keras.config.set_image_data_format(image_data_format)
    keras.config.set_dtype_policy(dtype_policy)
