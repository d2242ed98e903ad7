"""The smallest complete use of the library: three training steps on two replicas.

python examples/minimal.py

Prints the mean loss of each step, which falls, and one replica's local gradient.
"""

import keras

from tfmirror import models
from tfmirror.data import datasets
from tfmirror.diagnostics import inspection
from tfmirror.parallel import devices, microbatches, optimizers, segments, step
from tfmirror.parallel.step_loop import zero_totals

NUM_REPLICAS, NUM_MICROBATCHES, GLOBAL_BATCH_SIZE = 2, 4, 128

# Data: arrays of images and labels. Devices: GPUs, or logical CPU devices without any.
train = datasets.load("digits").train
strategy = devices.make_strategy(devices.set_up(NUM_REPLICAS))

# Model and optimizer: whatever is made in the strategy's scope is mirrored.
keras.utils.set_random_seed(0)
with strategy.scope():
    model = models.build("cnn", train.images.shape[1:], num_classes=10)
    optimizer = optimizers.MirroredOptimizer(keras.optimizers.SGD(0.3), model)

# How an epoch is cut: full global batches first, then the last one, which is smaller.
per_replica = microbatches.share_out(NUM_REPLICAS, NUM_MICROBATCHES)
plans = microbatches.plan_epoch(
    len(train), GLOBAL_BATCH_SIZE, per_replica, in_fixed_tree=True
)

# The step: forward pass, backward pass, reduction and update, compiled.
full_batches, _ = segments.make_segments(
    strategy,
    train,
    plans,
    lambda plan: step.make_train_steps(strategy, model, optimizer, plan),
    shuffle_seed=0,
)
for number in range(1, 4):
    totals = full_batches.run(1, zero_totals())
    mean_loss = totals.loss_sum.numpy() / GLOBAL_BATCH_SIZE
    print(f"step {number}: mean loss {mean_loss:.4f}")

# A look inside: what replica 1's own examples contribute to the gradient.
view = inspection.inspect(strategy, model, train.images[:8], train.labels[:8])
kernel = view.variable("conv1/kernel")
print("local gradient of conv1/kernel, channel 0, on", view.devices[1])
print(kernel.local_gradients[1][:, :, 0, 0])
print("both replicas hold the same weights:", kernel.weight_drift == 0)
