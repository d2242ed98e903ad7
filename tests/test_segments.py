"""What tf.distribute adds to our data sets."""

import functools

from helpers import build_linear, build_update, make_examples, make_plan, make_strategy
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfmirror.parallel import segments, step


def test_device_datasets_are_not_tuned(monkeypatch):
    """TensorFlow still makes them by the function that is wrapped."""
    original = multi_device_iterator_ops._create_device_dataset
    if hasattr(original, "is_untuned"):
        original = original.__closure__[0].cell_contents
    made = []

    def record(*args, **kwargs):
        made.append(original(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(multi_device_iterator_ops, "_create_device_dataset", record)
    strategy = make_strategy(2)
    model = build_linear(strategy)
    update = build_update(strategy, model)
    segments.make_segments(
        strategy,
        make_examples(16, shape=(4, 4, 1)),
        [make_plan((4, 4), 2)],
        functools.partial(step.make_train_steps, strategy, model, update),
    )
    assert len(made) == 2  # one a replica
    wrapped = multi_device_iterator_ops._create_device_dataset
    assert wrapped.is_untuned and wrapped is not record
