"""What tf.distribute adds to our data sets."""

import functools

from helpers import (
    build_linear,
    build_optimizer,
    make_examples,
    make_plan,
    make_strategy,
)
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfmirror.parallel import segments, step


def test_device_datasets_are_not_tuned(monkeypatch):
    """TensorFlow still makes them by the function that is wrapped."""
    original = multi_device_iterator_ops._create_device_dataset
    original = getattr(original, "__wrapped__", original)
    calls = []

    def record(*args, **kwargs):
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    monkeypatch.setattr(multi_device_iterator_ops, "_create_device_dataset", record)
    strategy = make_strategy(2)
    model = build_linear(strategy)
    optimizer = build_optimizer(strategy, model)
    segments.make_segments(
        strategy,
        make_examples(16, shape=(4, 4, 1)),
        [make_plan((4, 4), 2)],
        functools.partial(step.make_train_steps, strategy, model, optimizer),
    )
    assert len(calls) == 2  # one a replica
    args, kwargs = calls[0]
    assert original(*args, **kwargs).options().autotune.enabled is not False
    wrapped = multi_device_iterator_ops._create_device_dataset
    assert wrapped(*args, **kwargs).options().autotune.enabled is False
