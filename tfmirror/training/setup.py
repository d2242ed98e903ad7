"""Everything that a run trains with, built from its settings.

chosen, resolved = choose(config.TrainConfig(gpus=2))
training_setup = prepare(resolved, chosen)
training_setup.train_segments[0].run(10, step_loop.zero_totals())
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfmirror import config, errors, model_source, models, recipes
from tfmirror.data import augmentation, datasets, image_folder, pipeline
from tfmirror.data.datasets import ImageDataset
from tfmirror.data.examples import ExampleSource
from tfmirror.diagnostics import non_finite
from tfmirror.model_source import ModelSource
from tfmirror.models import freezing, kernel_gradient, own_model, variable_names
from tfmirror.parallel import (
    batch_statistics,
    devices,
    eval_step,
    gradients,
    microbatches,
    model_state,
    optimizers,
    runtime,
    segments,
    step,
    sync_batch_norm,
)
from tfmirror.parallel.devices import Devices
from tfmirror.parallel.microbatches import BatchPlan
from tfmirror.parallel.optimizers import MirroredOptimizer
from tfmirror.rundir import resume
from tfmirror.rundir import state as states
from tfmirror.rundir.state import START_OF_RUN, RunProgress, RunState
from tfmirror.training import initial_weights, schedules
from tfmirror.training.initial_weights import InitialWeights


@dataclasses.dataclass(frozen=True)
class TrainingSetup:
    """Everything that a run trains with, built and not yet traced."""

    settings: config.ResolvedConfig
    devices: Devices
    dataset: ImageDataset
    strategy: tf.distribute.Strategy
    model: keras.Model
    optimizer: MirroredOptimizer
    train_plans: tuple[BatchPlan, ...]
    train_segments: list[segments.Segment]
    # Batch norm's statistics are estimated first, for averaged weights.
    eval_segments: list[segments.Segment]
    initial: InitialWeights = InitialWeights()

    @property
    def initial_weights_sha256(self) -> str:
        """Digest of the weights that the run began with; empty: none were given."""
        return self.initial.sha256

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All variables by name: the model's, the optimizer's, and moving averages."""
        names = variable_names.names_of(self.model)
        model = dict(zip(names, self.model.variables, strict=True))
        return model | self.optimizer.named_variables

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; (): not known."""
        return self.dataset.class_names

    @property
    def steps_per_epoch(self) -> int:
        """Training steps in a pass over the training examples."""
        return sum(segment.num_steps for segment in self.train_segments)

    @functools.cached_property
    def data_sha256(self) -> str:
        """Digest of all images and labels."""
        return datasets.sha256(self.dataset)

    def find_non_finite(
        self, num_epochs: int, num_steps: int
    ) -> list[non_finite.Finding]:
        """Returns what is not finite in the step that follows these.

        Args:
          num_epochs: finished epochs.
          num_steps: steps taken in the epoch after them.
        """
        batch = num_steps
        for plan in self.train_plans:
            if batch < plan.num_batches:
                break
            batch -= plan.num_batches
        images, labels = pipeline.global_batch(
            self.dataset.train,
            first=plan.first,
            global_batch_size=plan.global_batch_size,
            epoch=num_epochs,
            batch=batch,
            shuffle_seed=self.settings.seed,
        )
        find = non_finite.make_finder(
            self.strategy,
            self.model,
            self.optimizer,
            plan,
            augment=make_augment(self.settings),
            label_smoothing=self.settings.label_smoothing,
        )
        return find(images, labels)

    def describe_replicas(self) -> Iterator[str]:
        """Yields a line for each replica: its device, and the steps it has taken."""
        counts = self.strategy.experimental_local_results(
            self.optimizer.keras_optimizer.iterations.value
        )
        for replica_id, count in enumerate(counts):
            name = self.devices.names[replica_id]
            yield f"replica {replica_id} on {name}: {int(count.numpy())} steps taken"


@dataclasses.dataclass(frozen=True)
class Given:
    """What is used in place of what the settings would find by name; None: nothing."""

    model: ModelSource | None = None
    dataset: ImageDataset | None = None


NOTHING_GIVEN = Given()


def choose(
    settings: config.TrainConfig, given: Given = NOTHING_GIVEN
) -> tuple[Devices, config.ResolvedConfig]:
    """Returns the devices and the resolved settings; configures the process for them.

    Args:
      settings: checked with config.check.
      given: its model, if there is one, is the one that `settings` name.

    Raises:
      InputError: the machine lacks devices that `settings` ask for, a batch is too
        small, or threads are given but TensorFlow runs with other ones.
    """
    chosen = devices.set_up(settings.gpus, settings.device_type)
    sha256 = given.model.sha256 if given.model else ""
    resolved = config.resolve(settings, chosen.num_replicas, sha256)
    runtime.configure(
        chosen,
        resolved.microbatches or chosen.num_replicas,
        intra_op_threads=settings.intra_op_threads,
        inter_op_threads=settings.inter_op_threads,
    )
    return chosen, resolved


def prepare(
    settings: config.ResolvedConfig,
    chosen: Devices,
    state: RunState | None = None,
    given: Given = NOTHING_GIVEN,
) -> TrainingSetup:
    """Returns the TrainingSetup: data, model and steps.

    Args:
      chosen: the devices of the replicas.
      state: to start from; None: start at the beginning, with the initial weights.
      given: what the caller has already, besides the settings.

    Raises:
      InputError: the settings or the state do not fit the data, or the initial weights
        the model.
    """
    per_replica = microbatches.share_out(
        chosen.num_replicas, settings.microbatches, settings.microbatches_per_replica
    )
    source = None
    if settings.initial_weights and not state:
        source = initial_weights.read(
            settings.initial_weights, new_head=settings.new_head, own_model=given.model
        )
    dataset = load_data(settings, given.dataset)
    model = given.model or settings.model
    if settings.deterministic:
        runtime.use_deterministic_operations()
    if not state:
        return assemble(
            settings, chosen, dataset, per_replica, model=model, source=source
        )
    resume.check_progress(state, settings, datasets.sha256(dataset))
    if settings.ema_decay:
        optimizers.check_averages(state.variables)
    training_setup = assemble(
        settings, chosen, dataset, per_replica, model=model, position=state.position
    )
    try:
        states.restore(training_setup, state)
    except ValueError as error:
        raise errors.InputError(f"the checkpoint does not fit: {error}") from error
    began_with = InitialWeights(state.settings.get("initial_weights_sha256", ""))
    return dataclasses.replace(training_setup, initial=began_with)


def load_data(
    settings: config.ResolvedConfig, given: ImageDataset | None
) -> ImageDataset:
    """Returns the data that a run trains on: those that are given, or else by name.

    Raises:
      InputError: they can't be had, or are not as ImageDataset describes them.
    """
    limits = {
        "limit_train_examples": settings.limit_train_examples,
        "limit_eval_examples": settings.limit_eval_examples,
    }
    if given:
        return datasets.limited(datasets.check(given), **limits)
    options = image_folder.Options(
        image_size=settings.image_size,
        channels=settings.channels,
        eval_fraction=settings.eval_fraction,
        in_memory=settings.data_in_memory,
    )
    return datasets.load(settings.dataset, settings.data_dir, options=options, **limits)


def assemble(
    settings: config.ResolvedConfig,
    chosen: Devices,
    dataset: ImageDataset,
    microbatches_per_replica: Sequence[int],
    *,
    model: str | ModelSource,
    position: RunProgress = START_OF_RUN,
    source: initial_weights.Source | None = None,
) -> TrainingSetup:
    """Returns the TrainingSetup on chosen devices with loaded data.

    Args:
      model: what models.build takes.
      position: where in the run the data start.
      source: weights to start with; None: new ones.
    """
    train_plans = plan(settings, microbatches_per_replica, dataset.train)
    eval_plans = plan(settings, microbatches_per_replica, dataset.eval)
    if settings.batch_norm == "sync":
        sync_batch_norm.check_plans(train_plans)
    strategy = devices.make_strategy(chosen, settings.all_reduce)
    steps_per_epoch = sum(plan.num_batches for plan in train_plans)
    trained, optimizer, initial = build(
        settings, strategy, dataset, steps_per_epoch, model=model, source=source
    )
    if chosen.are_stand_ins:
        kernel_gradient.use_matrix_products(trained)
    max_concurrent = runtime.max_concurrent_microbatches(chosen)
    of_training: dict[str, Any] = {
        "augment": make_augment(settings),
        "has_cross_replica_ops": settings.batch_norm == "sync",
        "pack_bytes": settings.pack_bytes,
        "max_concurrent": max_concurrent,
    }
    make_train_steps = functools.partial(
        step.make_train_steps,
        strategy,
        trained,
        optimizer,
        label_smoothing=settings.label_smoothing,
        **of_training,
    )
    make_statistics_steps = functools.partial(
        batch_statistics.make_statistics_steps,
        strategy,
        trained,
        weights=optimizer.evaluated_variables,
        statistics=optimizer.statistics,
        **of_training,
    )
    make_eval_steps = functools.partial(
        eval_step.make_eval_steps,
        strategy,
        trained,
        weights=optimizer.evaluated_variables,
        state=optimizer.evaluated_state,
        max_concurrent=max_concurrent,
    )
    train_segments = segments.make_segments(
        strategy,
        dataset.train,
        train_plans,
        make_train_steps,
        shuffle_seed=settings.seed,
        epochs=position.num_epochs,
        steps=position.point.num_steps,
    )
    eval_segments = segments.make_segments(
        strategy, dataset.eval, eval_plans, make_eval_steps
    )
    if optimizer.statistics:
        eval_segments[:0] = batch_statistics.make_segments(
            strategy,
            dataset.train,
            train_plans,
            make_statistics_steps,
            shuffle_seed=settings.seed,
            epochs=position.num_epochs,
        )
    return TrainingSetup(
        settings,
        chosen,
        dataset,
        strategy,
        trained,
        optimizer,
        train_plans,
        train_segments,
        eval_segments,
        initial,
    )


def plan(
    settings: config.ResolvedConfig,
    microbatches_per_replica: Sequence[int],
    examples: ExampleSource,
) -> tuple[BatchPlan, ...]:
    """Returns the BatchPlans of a pass over `examples`."""
    return microbatches.plan_epoch(
        len(examples),
        settings.global_batch_size,
        microbatches_per_replica,
        in_fixed_tree=settings.microbatches > 0,
    )


def make_augment(settings: config.ResolvedConfig) -> gradients.Augment | None:
    """Returns the function that changes training images; None: nothing does."""
    if settings.augment == "none":
        return None
    flips = settings.dataset in recipes.DATASETS_TO_FLIP
    return augmentation.make_augment(flips, settings.seed, settings.augment)


def build(
    settings: config.ResolvedConfig,
    strategy: tf.distribute.Strategy,
    dataset: ImageDataset,
    steps_per_epoch: int,
    *,
    model: str | ModelSource,
    source: initial_weights.Source | None = None,
) -> tuple[keras.Model, MirroredOptimizer, InitialWeights]:
    """Returns the model and its optimizer, mirrored on the strategy's devices.

    The third value says what was taken of the weights in `source`.

    Args:
      model: what models.build takes.
      source: weights to start with; None: new ones.
    """
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        built = models.build(
            model,
            dataset.train.image_shape,
            dataset.num_classes,
            precision=settings.precision,
            init=settings.init or None,
        )
        if model_source.is_own(settings.model):
            own_model.check_outputs(built)
        initial = source.assign(built) if source else InitialWeights()
        freezing.freeze(built, errors.split_names(settings.freeze))
        # Refuses what can't be trained, before files are made.
        model_state.rules_of(built)
        learning_rate = schedules.of_run(settings, steps_per_epoch)
        optimizer = optimizers.make_optimizer(
            settings.optimizer,
            learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            clip_norm=settings.clip_norm,
        )
        mirrored = MirroredOptimizer(
            optimizer,
            built,
            ema_decay=settings.ema_decay,
            scales_loss=settings.precision == "float16",
        )
    if settings.batch_norm == "sync":
        sync_batch_norm.synchronize(built)
    return built, mirrored, initial
