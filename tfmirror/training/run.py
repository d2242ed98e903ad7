"""A whole training run: from settings to a run directory.

summary = train(config.TrainConfig(gpus=2, dataset="digits"))
summary["final_eval_accuracy"], summary["weights_sha256"]
"""

import dataclasses
import functools
import statistics
import time

from tfmirror import config, errors
from tfmirror.diagnostics import drift
from tfmirror.parallel import step
from tfmirror.reporting import plots
from tfmirror.rundir import checkpoints, directory, environment, reader, resume
from tfmirror.rundir import state as states
from tfmirror.training import interruption, loop, progress, setup, terminal, watchdog


def train(settings):
    """Trains as `settings` say; returns what summary.json holds, and "workdir".

    Nothing is written before settings, devices and data are found to be right. With
    resume="auto" a run that is finished already is not run again.

    Args:
      settings: config.TrainConfig.

    Raises:
      InputError: a wrong setting, or data that can't be had.
      TrainingStoppedError: a step is not finite, replicas have drifted, or a file can't
        be written.
      InterruptedRunError: the process was asked to end.
    """
    config.check(settings)
    if settings.resume != "auto":
        directory.check_is_free(settings.workdir)
    show = terminal.Terminal()
    chosen, settings = setup.choose(settings)
    earlier = resume.find(settings, show.line)
    if earlier.summary:
        show.line(f"finished already: {earlier.directory}")
        return earlier.summary | {"workdir": str(earlier.directory)}
    now = environment.describe(chosen)
    for line in resume.environment_changes(earlier.environment, now):
        show.line(line)
    if not earlier.directory:
        directory.check_is_free(settings.workdir)
    training_setup = setup.prepare(settings, chosen, earlier.state)
    name = f"{settings.model}-{settings.dataset}".replace("/", "-")
    folder = earlier.directory or directory.create(
        settings.workdir, f"{name}-{training_setup.devices.num_replicas}replicas"
    )
    position = earlier.state.position if earlier.state else states.RunProgress()
    with directory.lock(folder), directory.stops_on_os_errors(folder):
        with interruption.Watch() as watch:
            summary = Run(training_setup, folder, position, show, watch).complete()
    return summary | {"workdir": str(folder)}


class Run:
    """A run on its way: its set-up, where it stands, and what is written of it."""

    def __init__(self, training_setup, folder, position, show, watch):
        """`position` is where `training_setup` stands; `watch` tells when to end."""
        self.setup, self.folder, self.position = training_setup, folder, position
        self.show, self.watch = show, watch
        self.writer = directory.RunWriter(
            folder, position.records, training_setup.steps_per_epoch
        )
        every, unit = config.parse_interval(training_setup.settings.checkpoint_every)
        self.checkpoint_epochs = every if unit == "epoch" else 0
        self.checkpoint_steps = every if unit == "step" else 0
        self.writes_checkpoints = every > 0
        self.best_accuracy = checkpoints.best_accuracy(folder / "checkpoints")

    def complete(self):
        """Trains to the end; returns what summary.json holds."""
        training_setup, settings = self.setup, self.setup.settings
        with self.writer:
            for text in progress.first_lines(training_setup):
                self.show.line(text)
            self.show.line(f"run directory: {self.folder}")
            # Of the run that this one makes longer; left there, it would seem whole.
            (self.folder / "summary.json").unlink(missing_ok=True)
            self.writer.write_json("config.json", dataclasses.asdict(settings))
            self.writer.write_json(
                "environment.json", environment.describe(training_setup.devices)
            )
            if self.position != states.RunProgress() and self.writes_checkpoints:
                # Killed before the next one, it would else begin anew in a new folder,
                # and in the old one go on with the settings of before.
                self._mark_if_best(self._checkpoint(self.position.point))
            trace_seconds = _trace(training_setup)
            self.show.line(f"traced and compiled in {trace_seconds:.1f} s")
            periodics = self._make_periodics()
            while self.position.num_epochs < settings.epochs:
                self._complete_epoch(periodics)
            training_setup.optimizer.finish()
            summary = progress.summarize(
                training_setup, trace_seconds, self.position.records
            )
            directory.save_model(training_setup.model, self.folder / directory.MODEL)
            draw(self.folder)
            # Last: where it is, a run is whole.
            self.writer.write_json("summary.json", summary)
        speed = statistics.median(
            record["images_per_second"] for record in summary["epochs"]
        )
        self.show.line(f"training speed {speed:,.0f} images/s (median of the epochs)")
        accuracy = summary["final_eval_accuracy"]
        self.show.line(f"final evaluation accuracy {accuracy:.4f}")
        return summary

    def _make_periodics(self):
        """Returns what is to be done after every so many steps, in this order.

        Not kept in `self`: a cycle of references would leave the set-up, and iterators
        whose deletion takes the longer the older they are, to the garbage collector.
        """
        training_setup, steps = (
            self.setup,
            self.position.num_steps(self.setup.steps_per_epoch),
        )
        check = make_drift_check(training_setup, self.show)
        return [
            loop.Periodic(training_setup.settings.check_drift_every, check, steps),
            loop.Periodic(self.checkpoint_steps, self._checkpoint_within_epoch, steps),
        ]

    def _complete_epoch(self, periodics):
        """Trains and evaluates to the end of the epoch that the run stands in."""
        training_setup, epochs = self.setup, self.setup.settings.epochs
        epoch = self.position.num_epochs + 1
        point = self.position.point
        dog = watchdog.Watchdog(
            training_setup.settings.step_timeout, training_setup.describe_replicas
        )
        run_pass = functools.partial(
            loop.run_pass,
            steps_per_loop=training_setup.settings.steps_per_loop,
            guard=dog.guard,
        )
        totals = step.make_totals(
            point.totals.loss_sum, point.totals.num_correct, point.num_steps
        )
        num_examples = len(training_setup.dataset.train)
        with self.show.epoch_progress(epoch, epochs, num_examples) as on_progress:
            try:
                trained = run_pass(
                    training_setup.train_segments,
                    totals,
                    start=point,
                    periodics=periodics,
                    on_call=functools.partial(self._after_call, on_progress),
                )
            except loop.NotFiniteError as error:
                raise self._stopped(error.num_steps) from error
        try:
            evaluated = run_pass(
                training_setup.eval_segments,
                step.zero_totals(),
                # Asked to end, it goes on with the evaluation, from its beginning.
                on_call=lambda _: self._after_call(None, trained),
            )
        except loop.NotFiniteError as error:
            raise errors.TrainingStoppedError(
                f"the loss of the evaluation after epoch {epoch} is not finite; a "
                "lower --learning_rate or --clip_norm may help"
            ) from error
        record = progress.epoch_record(epoch, trained, evaluated)
        self.position = states.RunProgress((*self.position.records, record))
        self.writer.write_epoch(epoch * training_setup.steps_per_epoch, record)
        self._checkpoint_after_epoch()
        self.show.line(terminal.epoch_line(record, epochs))

    def _after_call(self, on_progress, point):
        """Shows the progress; ends the run if that was asked for."""
        if on_progress:
            on_progress(point.totals, point.seconds)
        if not self.watch.is_asked:
            return
        where = f"interrupted after step {point.num_steps} of epoch "
        where += str(self.position.num_epochs + 1)
        if not self.writes_checkpoints:
            raise errors.InterruptedRunError(f"{where}; no checkpoint was asked for")
        path = self._checkpoint(point)
        raise errors.InterruptedRunError(
            f"{where}; wrote {path}; --workdir='{self.folder}' --resume=auto goes on"
        )

    def _checkpoint_within_epoch(self, steps_taken, point):
        """Writes a checkpoint after so many steps."""
        self._checkpoint(point)

    def _checkpoint_after_epoch(self):
        """Writes a checkpoint if one is due, or if it is the best or the last."""
        if not self.writes_checkpoints:
            return
        num_epochs = self.position.num_epochs
        is_due = self.checkpoint_epochs and num_epochs % self.checkpoint_epochs == 0
        is_last = num_epochs == self.setup.settings.epochs
        if self._is_best() or is_due or is_last:
            self._mark_if_best(self._checkpoint(states.START_OF_PASS))

    def _is_best(self):
        """Returns whether the run stands after an epoch better than `best` in it."""
        if not self.position.records or self.position.point != states.START_OF_PASS:
            return False
        return self.position.records[-1]["eval_accuracy"] > self.best_accuracy

    def _mark_if_best(self, path):
        """Makes the checkpoint at `path`, where the run stands, `best` if it is."""
        if self._is_best():
            checkpoints.mark_best(path)
            self.best_accuracy = self.position.records[-1]["eval_accuracy"]

    def _checkpoint(self, point):
        """Writes a checkpoint at a Point of the epoch; returns its path."""
        position = dataclasses.replace(self.position, point=point)
        return checkpoints.write(
            self.folder / "checkpoints",
            states.capture(self.setup, position),
            self.setup.settings.keep,
        )

    def _stopped(self, num_steps):
        """Returns the error of a step that is not finite, after so many of the pass."""
        epoch = self.position.num_epochs
        number = epoch * self.setup.steps_per_epoch + num_steps + 1
        found = self.setup.find_not_finite(epoch, num_steps)
        listed = "; ".join(finding.describe() for finding in found[:3])
        listed = listed or "only the sum over the microbatches"
        return errors.TrainingStoppedError(
            f"step {number} (epoch {epoch + 1}) was not taken, since it is not finite: "
            f"{listed}; a lower --learning_rate or --clip_norm may help"
        )


def draw(folder):
    """Draws the curves of the run in `folder` into its folder plots/."""
    (folder / "plots").mkdir(exist_ok=True)
    drawn = plots.draw_curves([reader.read(folder)])
    plots.save(drawn, folder / "plots" / "curves.png")


def _trace(training_setup):
    """Traces all that the run will call; returns the seconds it took."""
    start = time.monotonic()
    loop.trace(
        training_setup.train_segments + training_setup.eval_segments, step.zero_totals()
    )
    return time.monotonic() - start


def make_drift_check(training_setup, show):
    """Returns a function of the steps taken that stops or resyncs drifted replicas."""
    find_drifts = drift.make_check(training_setup.strategy, training_setup.variables)

    def check(steps_taken, point):
        drifts = find_drifts()
        if not drifts:
            return
        listed = "; ".join(d.describe() for d in drifts)
        what = f"after step {steps_taken} replicas differ from replica 0: {listed}"
        if training_setup.settings.on_drift == "stop":
            raise errors.TrainingStoppedError(what)
        drift.resync(
            training_setup.strategy, [training_setup.variables[d.name] for d in drifts]
        )
        show.line(f"{what}; resynced from replica 0")

    return check
