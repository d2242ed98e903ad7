"""The loop around a step, seen and ended by another thread while it runs."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tfmirror.parallel import microbatches, step_loop

HANGS = 600  # seconds after which a test fails instead of waiting for ever


class Gate:
    """A step that begins, and then waits until it is let through."""

    def __init__(self):
        self.begun, self.open = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, images, labels):
        def wait():
            self.begun.release()
            assert self.open.acquire(timeout=HANGS)
            return np.float32(1)

        loss = tf.ensure_shape(tf.numpy_function(wait, [], tf.float32), [])
        return step_loop.StepResult(loss, tf.constant(2.0), goes_on=loss > 0)

    def wait_until_begun(self):
        assert self.begun.acquire(timeout=HANGS)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def call(gate):
    """(the loop, a function that starts a call of 1,000 steps in a thread)."""
    (plan,) = microbatches.plan_epoch(2, 2, (1,), in_fixed_tree=False)
    steps = step_loop.make_step_loop(gate, plan)
    batches = iter(tf.data.Dataset.from_tensors((0, 0)).repeat())
    steps(batches, tf.constant(0, tf.int64), step_loop.zero_totals())
    found = []

    def run():
        number = tf.constant(1000, tf.int64)
        found.append(steps(batches, number, step_loop.zero_totals()))

    def start():
        found.clear()
        thread = threading.Thread(target=run)
        thread.start()
        return lambda: (thread.join(HANGS), found[0])[1]

    return steps, start


@pytest.mark.parametrize("num_steps", [1, 4])
def test_a_request_to_stop_ends_the_call_after_the_current_step(gate, call, num_steps):
    steps, start = call
    finish = start()
    for _ in range(num_steps - 1):
        gate.wait_until_begun()
        gate.open.release()
    gate.wait_until_begun()
    steps.ask_to_stop()  # while the last step runs
    gate.open.release()
    totals = finish()
    expected = [num_steps, 2 * num_steps, num_steps, 0, 0]
    assert [int(value) for value in totals] == expected
    assert steps.num_finished() == num_steps
    assert not gate.begun.acquire(blocking=False)  # no other step has begun


def test_a_request_before_a_call_lets_it_take_one_step(gate, call):
    steps, start = call
    steps.ask_to_stop()
    gate.open.release()
    assert int(start()().num_steps) == 1


def test_finished_steps_are_seen_while_a_step_hangs(gate, call):
    steps, start = call
    finish = start()
    for number in range(3):
        gate.wait_until_begun()
        assert steps.num_finished() == number
        gate.open.release()
    gate.wait_until_begun()
    assert steps.num_finished() == 3
    steps.ask_to_stop()
    gate.open.release()
    finish()
    assert steps.num_finished() == 4
