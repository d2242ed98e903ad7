"""A whole training run: from settings to a run directory.

summary = train(config.TrainConfig(gpus=2, dataset="digits"))
summary["final_eval_accuracy"], summary["weights_sha256"]
"""

import contextlib
import dataclasses
import functools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

from tfmirror import config, errors, model_source
from tfmirror.data import streaming
from tfmirror.data.datasets import ImageDataset
from tfmirror.diagnostics import drift, non_finite
from tfmirror.models import keras_defaults
from tfmirror.parallel import step_loop
from tfmirror.parallel.segments import Segment
from tfmirror.parallel.step_loop import StepTotals
from tfmirror.reporting import plots
from tfmirror.rundir import checkpoints, directory, environment, resume, workdir
from tfmirror.rundir.state import PassProgress, RunProgress
from tfmirror.training import first_files, interruption, loop, progress, setup, watchdog
from tfmirror.training.checkpointer import Checkpointer
from tfmirror.training.setup import TrainingSetup
from tfmirror.training.terminal import Terminal

OnProgress = Callable[[Any, float], None]


@keras_defaults.scope()
def train(
    settings: config.TrainConfig,
    *,
    model: model_source.Build | None = None,
    dataset: ImageDataset | None = None,
) -> dict[str, Any]:
    """Trains with `settings`; returns the content of summary.json, and "workdir".

    Writes nothing but a lock before it has checked settings, devices and data. With
    resume="auto" a finished run is not run again.

    Args:
      settings: those of tfmirror.train.
      model: function of (input_shape, num_classes) that returns a Keras model, from
        images [b, H, W, C] float32 in [0, 1] to logits [b, K]; None: settings.model.
        It is called on each start of the run, also on a resume.
      dataset: such as datasets.from_splits makes; None: settings.dataset.

    Raises:
      InputError: a setting is wrong, the model or the data can't be used, or another
        process trains in the same run directory.
      TrainingStoppedError: a step is not finite, replicas have drifted, or a file can't
        be written.
      InterruptedRunError: the process received a signal to end.
    """
    settings, given = _with_given(settings, model, dataset)
    config.check(settings)
    if settings.resume != "auto":
        workdir.check_is_free(settings.workdir)
    terminal = Terminal()
    chosen, resolved = setup.choose(settings, given)
    with contextlib.ExitStack() as locks:
        # Before anything is read: another process may be training there.
        locks.enter_context(workdir.lock_to_continue(settings))
        previous = resume.find(resolved, terminal.print_line)
        if previous.summary:
            terminal.print_line(f"finished already: {previous.directory}")
            return previous.summary | {"workdir": str(previous.directory)}
        now = environment.describe(chosen)
        for line in resume.environment_changes(previous.starts, now):
            terminal.print_line(line)
        if not previous.directory:
            workdir.check_is_free(settings.workdir)
        training_setup = setup.prepare(resolved, chosen, previous.state, given)
        resume.check_initial_weights(previous, training_setup.initial_weights_sha256)
        for line in progress.schedule_lines(training_setup, previous.state):
            terminal.print_line(line)
        if not (folder := previous.directory):
            folder = workdir.create(settings.workdir, _default_name(resolved))
            locks.enter_context(workdir.lock_new(folder))
        data = training_setup.dataset
        with (
            directory.stops_on_os_errors(folder),
            streaming.stops_on_unreadable_files(data.train, data.eval),
        ):
            watch = interruption.Watch()
            run = Run(training_setup, folder, previous, terminal=terminal, watch=watch)
            summary = run.complete()
    return summary | {"workdir": str(folder)}


def _with_given(
    settings: config.TrainConfig,
    model: model_source.Build | None,
    dataset: ImageDataset | None,
) -> tuple[config.TrainConfig, setup.Given]:
    """Returns the settings with the names of what is given, and what is given.

    Raises:
      InputError: a setting says something else, or the model's file can't be loaded.
    """
    source = None
    if model is not None:
        usual = config.TrainConfig().model
        expected = f"left at {usual!r}, since a model is given"
        errors.require(settings.model == usual, "model", settings.model, expected)
        source = model_source.of_function(model)
        settings = dataclasses.replace(settings, model=source.name)
    elif isinstance(settings.model, str) and model_source.is_own(settings.model):
        config.check(settings)
        source = model_source.load(settings.model)
    if dataset is not None:
        is_met = isinstance(dataset, ImageDataset)
        errors.require(is_met, "dataset", dataset, "one of datasets.from_splits")
        expected = "empty, since a dataset is given"
        errors.require(not settings.data_dir, "data_dir", settings.data_dir, expected)
        settings = dataclasses.replace(settings, dataset=dataset.name)
    return settings, setup.Given(source, dataset)


def _default_name(settings: config.ResolvedConfig) -> str:
    """Returns the first part of the name of a run directory without a --workdir."""
    model = model_source.function_name(settings.model) or settings.model
    name = f"{model}-{settings.dataset}".replace("/", "-")
    return f"{name}-{settings.gpus}replicas"


class Run:
    """A run on its way: its setup, its progress, and the files it writes."""

    def __init__(
        self,
        training_setup: TrainingSetup,
        folder: pathlib.Path,
        previous: resume.PreviousRun,
        *,
        terminal: Terminal,
        watch: interruption.Watch,
    ) -> None:
        """Writes the first files of the run directory, and opens the others.

        Args:
          folder: the run directory.
          previous: what is resumed; `training_setup` has its state.
          watch: says when the run is asked to end.
        """
        self.setup, self.folder = training_setup, folder
        self.terminal, self.watch = terminal, watch
        state = previous.state
        self.progress = state.position if state else RunProgress()
        say = terminal.print_line
        self.checkpointer = Checkpointer(
            training_setup, folder / checkpoints.FOLDER, say
        )
        first_files.write(training_setup, self.checkpointer, folder, previous, say)
        self.writer = directory.RunWriter(
            folder, self.progress.records, training_setup.steps_per_epoch
        )

    def complete(self) -> dict[str, Any]:
        """Trains to the end; returns the content of summary.json."""
        with self.writer:
            self._print_first_lines()
            trace_seconds = _trace(self.setup)
            self.terminal.print_line(f"traced and compiled in {trace_seconds:.1f} s")
            periodics = self._make_periodics()
            # Before, there is nothing to save, and a signal may end the process.
            with self.watch:
                while self.progress.num_epochs < self.setup.settings.epochs:
                    self._complete_epoch(periodics)
                return self._finish(trace_seconds)

    def _print_first_lines(self) -> None:
        """Prints what the run is about to do, and where."""
        for text in progress.first_lines(self.setup):
            self.terminal.print_line(text)
        self.terminal.print_line(f"run directory: {self.folder}")

    def _finish(self, trace_seconds: float) -> dict[str, Any]:
        """Writes the model, the plot and the summary; returns the summary."""
        self.setup.optimizer.finish()
        summary = progress.summarize(self.setup, trace_seconds, self.progress.records)
        directory.save_model(self.setup.model, self.folder / directory.MODEL)
        self._draw()
        self.writer.sync()
        # Last: a run with a summary is finished.
        self.writer.write_json("summary.json", summary)
        speed = statistics.median(e["images_per_second"] for e in summary["epochs"])
        self.terminal.print_line(
            f"training speed {speed:,.0f} images/s (median of the epochs)"
        )
        accuracy = summary["final_eval_accuracy"]
        self.terminal.print_line(f"final evaluation accuracy {accuracy:.4f}")
        return summary

    def _draw(self) -> None:
        """Draws the curves; a failure is a warning, since the run is trained."""
        try:
            plots.draw_run(self.folder)
        # Matplotlib raises many kinds of errors, for example for a damaged font.
        except Exception as error:
            why = " ".join(str(error).split()) or type(error).__name__
            self.terminal.print_line(
                f"warning: the curves are not drawn ({why}); to draw them later: "
                f"python -m tfmirror.report '{self.folder}'"
            )

    def _make_periodics(self) -> list[loop.Periodic]:
        """Returns what to do after every K steps, in this order.

        Not kept in `self`: a cycle of references would leave the setup to the garbage
        collector, and iterators take longer to delete the older they are.
        """
        settings = self.setup.settings
        steps = self.progress.num_steps(self.setup.steps_per_epoch)

        def write_checkpoint(steps_taken: int, reached: PassProgress) -> None:
            self._check_variables(steps_taken)
            self.checkpointer.write(self._at(reached))

        return [
            loop.Periodic(
                settings.check_drift_every,
                make_drift_check(self.setup, self.terminal),
                steps,
            ),
            loop.Periodic(self.checkpointer.every_steps, write_checkpoint, steps),
        ]

    def _complete_epoch(self, periodics: list[loop.Periodic]) -> None:
        """Trains and evaluates to the end of the epoch in which the run is."""
        epoch = self.progress.num_epochs + 1
        trained = self._train_epoch(epoch, periodics)
        evaluated = self._evaluate(epoch, trained)
        self._check_variables(epoch * self.setup.steps_per_epoch)
        rate = self.setup.optimizer.learning_rate()
        num_classes = self.setup.model.output_shape[-1]
        record = progress.epoch_record(epoch, trained, evaluated, rate, num_classes)
        self.progress = RunProgress((*self.progress.records, record))
        self.writer.write_epoch(epoch * self.setup.steps_per_epoch, record)
        self.checkpointer.write_after_epoch(self.progress)
        for line in progress.epoch_lines(record, self.setup):
            self.terminal.print_line(line)

    def _train_epoch(self, epoch: int, periodics: list[loop.Periodic]) -> PassProgress:
        """Takes the training steps that are left of the epoch."""
        start = self.progress.point
        totals = step_loop.make_totals(
            start.totals.loss_sum,
            start.totals.num_correct,
            start.num_steps,
            num_skipped=start.num_skipped,
        )
        with self.terminal.epoch_progress(
            epoch, self.setup.settings.epochs, len(self.setup.dataset.train)
        ) as on_progress:
            try:
                return self._run_pass(
                    self.setup.train_segments,
                    totals,
                    start=start,
                    periodics=periodics,
                    on_call=functools.partial(self._after_call, on_progress),
                )
            except loop.NotFiniteError as error:
                raise self._stopped(error.num_steps) from error

    def _evaluate(self, epoch: int, trained: PassProgress) -> PassProgress:
        """Evaluates the model after the epoch's training steps."""
        try:
            return self._run_pass(
                self.setup.eval_segments,
                step_loop.zero_totals(),
                # A run that ends here resumes with the evaluation, from its beginning.
                on_call=lambda _: self._after_call(None, trained),
            )
        except loop.NotFiniteError as error:
            raise errors.TrainingStoppedError(
                f"the loss of the evaluation after epoch {epoch} is not finite, or "
                "batch norm's statistics for it; a lower learning_rate or a clip_norm "
                "may help"
            ) from error

    def _run_pass(
        self, segments: list[Segment], totals: StepTotals, **arguments: Any
    ) -> PassProgress:
        """Runs the steps of `segments` with the settings' limits."""
        settings = self.setup.settings
        dog = watchdog.Watchdog(settings.step_timeout, self.setup.describe_replicas)

        return loop.run_pass(
            segments,
            totals,
            steps_per_loop=settings.steps_per_loop,
            guards=(
                lambda segment: dog.guard(segment.num_finished),
                lambda segment: self.watch.calling(segment.ask_to_stop),
            ),
            is_asked_to_stop=lambda: self.watch.is_asked,
            **arguments,
        )

    def _after_call(
        self, on_progress: OnProgress | None, reached: PassProgress
    ) -> None:
        """Ends the run if it was asked to end; else shows the progress."""
        if not self.watch.is_asked:
            if on_progress:
                on_progress(reached.totals, reached.seconds)
            return
        where = f"interrupted after step {reached.num_steps} of epoch "
        where += str(self.progress.num_epochs + 1)
        if not self.checkpointer.is_enabled:
            raise errors.InterruptedRunError(
                f"{where}; wrote no checkpoint, since checkpoint_every is empty"
            )
        path = self.checkpointer.write(self._at(reached))
        raise errors.InterruptedRunError(
            f"{where}; wrote {path}; to continue, call again with "
            f"--workdir='{self.folder}' --resume=auto"
        )

    def _check_variables(self, steps_taken: int) -> None:
        """Raises TrainingStoppedError if a variable is not finite after a step."""
        if names := non_finite.variables(self.setup.variables):
            raise errors.TrainingStoppedError(
                f"after step {steps_taken} these are not finite: "
                f"{', '.join(names[:3])}; a lower learning_rate or a clip_norm may help"
            )

    def _at(self, reached: PassProgress) -> RunProgress:
        """Returns the run's progress within the current epoch."""
        return dataclasses.replace(self.progress, point=reached)

    def _stopped(self, num_steps: int) -> errors.TrainingStoppedError:
        """Returns the error of a step that is not finite.

        Args:
          num_steps: steps taken in the epoch before it.
        """
        epoch = self.progress.num_epochs
        number = epoch * self.setup.steps_per_epoch + num_steps + 1
        found = self.setup.find_non_finite(epoch, num_steps)
        listed = "; ".join(finding.describe() for finding in found[:3])
        listed = listed or "only the sum over the microbatches"
        return errors.TrainingStoppedError(
            f"step {number} (epoch {epoch + 1}) was not taken, since it is not finite: "
            f"{listed}; a lower learning_rate or a clip_norm may help"
        )


def _trace(training_setup: TrainingSetup) -> float:
    """Traces all that the run will call; returns the seconds it took."""
    start = time.monotonic()
    segments = training_setup.train_segments + training_setup.eval_segments
    loop.trace(segments, step_loop.zero_totals())
    return time.monotonic() - start


def make_drift_check(
    training_setup: TrainingSetup, terminal: Terminal
) -> Callable[[int, PassProgress], None]:
    """Returns a function of the steps taken that stops or resyncs drifted replicas."""
    find_drifts = drift.make_check(training_setup.strategy, training_setup.variables)

    def check(steps_taken: int, reached: PassProgress) -> None:
        drifts = find_drifts()
        if not drifts:
            return
        listed = "; ".join(d.describe() for d in drifts)
        what = f"after step {steps_taken} replicas differ from replica 0: {listed}"
        if training_setup.settings.on_drift == "stop":
            raise errors.TrainingStoppedError(what)
        drifted = [training_setup.variables[d.name] for d in drifts]
        drift.resync(training_setup.strategy, drifted)
        terminal.print_line(f"{what}; resynced from replica 0")

    return check
