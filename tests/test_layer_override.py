"""Faster ways are taken within the steps, and nowhere else."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfmirror import models
from tfmirror.models import layer_override
from tfmirror.parallel import batch_statistics, gradients


def doubled(layer, inputs):
    return 2 * type(layer).call(layer, inputs)


def test_an_override_has_its_effect_in_its_block_and_thread_alone():
    layer = keras.layers.Activation("linear")
    layer_override.override_call(layer, doubled)
    seen = {}

    def call(name):
        seen[name] = float(layer(tf.ones([])))

    call("before")
    with layer_override.faster_calls():
        call("within")
        thread = threading.Thread(target=call, args=("another thread",))
        thread.start()
        thread.join()
        with layer_override.faster_calls():
            call("twice within")
        call("still within")
    call("after")
    layer_override.restore_call(layer)
    with layer_override.faster_calls():
        call("restored")
    assert seen == {
        "before": 1, "within": 2, "another thread": 1, "twice within": 2,
        "still within": 2, "after": 1, "restored": 1,
    }  # fmt: skip


def test_an_error_ends_the_block():
    layer = keras.layers.Activation("linear")
    layer_override.override_call(layer, doubled)
    with pytest.raises(KeyError), layer_override.faster_calls():
        raise KeyError
    assert float(layer(tf.ones([]))) == 1


def ops_of(function, model, num_arguments=2):
    """Returns the operations of a function of (weights, state, images, labels)."""
    values = [
        [tf.constant(v.numpy()) for v in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    images = tf.zeros([2, *model.input_shape[1:]], tf.uint8)
    batch = (images, tf.zeros([2], tf.int32))[:num_arguments]
    traced = tf.function(function, autograph=False).get_concrete_function(
        model, *values, *batch
    )
    graphs = [traced.graph, *traced.graph._functions.values()]
    return [
        op for g in graphs if hasattr(g, "get_operations") for op in g.get_operations()
    ]


def test_a_training_step_computes_batch_norm_with_the_fused_kernel():
    model = models.build("probe", (12, 12, 1), 10)
    for function in (
        gradients.microbatch_gradients,
        batch_statistics.microbatch_statistics,
    ):
        ops = ops_of(function, model)
        assert any(op.type == "FusedBatchNormV3" for op in ops), function


def test_both_passes_leave_out_unneeded_pixels():
    model = models.build("cnn", (28, 28, 1), 10)
    for function, number in (
        (gradients.microbatch_gradients, 2),
        (gradients.inference_logits, 1),
    ):
        ops = ops_of(function, model, number)
        sides = [op.outputs[0].shape[1] for op in ops if op.type == "Conv2D"]
        assert sides[:2] == [24, 8], function


def test_plain_calls_are_kerass_own():
    model = models.build("cnn", (28, 28, 1), 10)
    images = np.random.default_rng(0).uniform(size=(2, 28, 28, 1)).astype(np.float32)
    traced = tf.function(lambda x: model(x), autograph=False)
    graph = traced.get_concrete_function(tf.constant(images)).graph
    sides = [
        op.outputs[0].shape[1] for op in graph.get_operations() if op.type == "Conv2D"
    ]
    assert sides == [26, 9]
