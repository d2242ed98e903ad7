"""Everything that a run trains with, from its settings.

chosen, settings = choose(config.TrainConfig(gpus=2))
training_setup = prepare(settings, chosen)
training_setup.train_segments[0].run(10, step.zero_totals())
"""

import dataclasses
import functools

import keras

from tfmirror import config, errors, models, recipes
from tfmirror.data import augmentation, datasets, pipeline
from tfmirror.diagnostics import non_finite
from tfmirror.models import kernel_gradient
from tfmirror.parallel import (
    devices,
    microbatches,
    optimizers,
    segments,
    step,
    sync_batch_norm,
)
from tfmirror.rundir import resume
from tfmirror.rundir import state as states
from tfmirror.training import schedules


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """Everything that a run trains with, built and not yet traced."""

    settings: config.TrainConfig  # resolved
    devices: devices.Devices
    dataset: datasets.ImageDataset
    strategy: object  # tf.distribute.MirroredStrategy
    model: keras.Model
    optimizer: optimizers.MirroredOptimizer
    train_plans: tuple[microbatches.BatchPlan, ...]
    train_segments: list[segments.Segment]
    eval_segments: list[segments.Segment]

    @property
    def variables(self):
        """All variables by name: the model's, the optimizer's, and those beside."""
        model = {v.path: v for v in self.model.variables}
        return model | self.optimizer.named_variables

    @property
    def steps_per_epoch(self):
        """Training steps in a pass over the training examples."""
        return sum(segment.num_steps for segment in self.train_segments)

    @functools.cached_property
    def data_sha256(self):
        """Digest of all images and labels."""
        return datasets.sha256(self.dataset)

    def find_not_finite(self, num_epochs, num_steps):
        """Returns non_finite.Findings of the step after so many epochs and steps."""
        batch = num_steps
        for plan in self.train_plans:
            if batch < plan.num_batches:
                break
            batch -= plan.num_batches
        images, labels = pipeline.global_batch(
            self.dataset.train, plan, num_epochs, batch, self.settings.seed
        )
        find = non_finite.make_finder(
            self.strategy, self.model, self.optimizer, plan, make_augment(self.settings)
        )
        return find(images, labels)

    def describe_replicas(self):
        """Yields a line for each replica: its device, and the steps it has taken."""
        counts = self.strategy.experimental_local_results(
            self.optimizer.keras_optimizer.iterations.value
        )
        for replica_id, count in enumerate(counts):
            name = self.devices.names[replica_id]
            yield f"replica {replica_id} on {name}: {int(count.numpy())} steps taken"


def choose_threads(settings):
    """Sets TensorFlow's threads for the one run of a process, unless `settings` do.

    Args:
      settings: checked config.TrainConfig.

    Raises:
      InputError: the machine has not the devices that are asked for.
    """
    if not settings.intra_op_threads:
        chosen = devices.choose(settings.gpus, settings.device_type)
        fixed = config.num_fixed_microbatches(settings)
        devices.use_one_thread_per_op(chosen, fixed or chosen.num_replicas)


def choose(settings):
    """Returns (devices.Devices, resolved settings) of checked `settings`.

    Raises:
      InputError: the machine has not what is asked for, or a batch is too small for it.
    """
    devices.set_threads(settings.intra_op_threads, settings.inter_op_threads)
    chosen = devices.choose(settings.gpus, settings.device_type)
    return chosen, config.resolve(settings, chosen.num_replicas)


def prepare(settings, chosen, state=None):
    """Returns the TrainingSetup of resolved `settings`: data, model and steps.

    Args:
      chosen: devices.Devices of the replicas.
      state: RunState to stand in; None: at the beginning.

    Raises:
      InputError: what is asked for doesn't fit the data, or `state` neither.
    """
    explicit = config.parse_shares(settings.microbatches_per_replica)
    shares = microbatches.share_out(
        chosen.num_replicas, settings.microbatches, explicit
    )
    dataset = datasets.load(
        settings.dataset,
        settings.data_dir,
        settings.limit_train_examples,
        settings.limit_eval_examples,
    )
    if settings.deterministic:
        devices.use_deterministic_operations()
    if not state:
        return assemble(settings, chosen, dataset, shares, states.RunProgress())
    resume.check_progress(state, settings, datasets.sha256(dataset))
    training_setup = assemble(settings, chosen, dataset, shares, state.position)
    try:
        states.restore(training_setup, state)
    except ValueError as error:
        raise errors.InputError(f"the checkpoint does not fit: {error}") from error
    return training_setup


def assemble(settings, chosen, dataset, shares, position):
    """Returns the TrainingSetup of resolved `settings` on chosen devices."""
    train_plans = plan(settings, shares, dataset.train)
    eval_plans = plan(settings, shares, dataset.eval)
    is_sync = settings.batch_norm == "sync"
    if is_sync:
        sync_batch_norm.check_plans(train_plans)
    strategy = devices.make_strategy(chosen, settings.all_reduce)
    steps_per_epoch = sum(plan.num_batches for plan in train_plans)
    model, optimizer = build(settings, strategy, dataset, steps_per_epoch)
    max_concurrent = devices.max_concurrent_microbatches(chosen)
    if chosen.are_stand_ins:
        kernel_gradient.use_matrix_products(model)
    make_train = functools.partial(
        step.make_train_steps,
        strategy,
        model,
        optimizer,
        augment=make_augment(settings),
        has_cross_replica_ops=is_sync,
        pack_bytes=round(settings.pack_mb * 2**20),
        max_concurrent=max_concurrent,
    )
    make_eval = functools.partial(
        step.make_eval_steps,
        strategy,
        model,
        weights=optimizer.evaluated_variables,
        max_concurrent=max_concurrent,
    )
    return TrainingSetup(
        settings,
        chosen,
        dataset,
        strategy,
        model,
        optimizer,
        train_plans=train_plans,
        train_segments=segments.make_segments(
            strategy,
            dataset.train,
            train_plans,
            make_train,
            settings.seed,
            position.num_epochs,
            position.point.num_steps,
        ),
        eval_segments=segments.make_segments(
            strategy, dataset.eval, eval_plans, make_eval
        ),
    )


def plan(settings, shares, examples):
    """Returns the BatchPlans of a pass over `examples`."""
    return microbatches.plan_epoch(
        len(examples),
        settings.global_batch_size,
        shares,
        in_fixed_tree=settings.microbatches > 0,
    )


def make_augment(settings):
    """Returns what changes training images, as `settings` say; None: nothing does."""
    if not settings.augment:
        return None
    flips = settings.dataset in recipes.DATASETS_TO_FLIP
    return augmentation.make_augment(flips, settings.seed)


def build(settings, strategy, dataset, steps_per_epoch):
    """Returns (model, MirroredOptimizer) of resolved `settings`."""
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = models.build(
            settings.model,
            dataset.train.images.shape[1:],
            dataset.num_classes,
            settings.precision,
            settings.init,
        )
        learning_rate = schedules.make_schedule(
            settings.schedule,
            config.scaled_learning_rate(settings),
            num_steps=settings.epochs * steps_per_epoch,
            warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
        )
        optimizer = optimizers.make_optimizer(
            settings.optimizer,
            learning_rate,
            settings.momentum,
            settings.weight_decay,
            settings.clip_norm,
        )
        optimizer = optimizers.MirroredOptimizer(
            optimizer,
            model,
            ema_decay=settings.ema_decay,
            scales_loss=settings.precision == "float16",
        )
    if settings.batch_norm == "sync":
        sync_batch_norm.synchronize(model)
    return model, optimizer
