"""A whole training run: from settings to a run directory.

summary = train(config.TrainConfig(gpus=2, dataset="digits"))
summary["final_eval_accuracy"], summary["weights_sha256"]
"""

import dataclasses
import functools
import statistics
import time

from tfmirror import config
from tfmirror.parallel import drift, step
from tfmirror.reporting import plots, runs
from tfmirror.training import (
    checkpoints,
    environment,
    interruption,
    loop,
    records,
    resuming,
    terminal,
    watchdog,
    writers,
)
from tfmirror.training import job as jobs
from tfmirror.training import state as states


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
        writers.check_is_free(settings.workdir)
    show = terminal.Terminal()
    chosen, settings = jobs.choose(settings)
    earlier = resuming.find(settings, show.line)
    if earlier.summary:
        show.line(f"finished already: {earlier.directory}")
        return earlier.summary | {"workdir": str(earlier.directory)}
    now = environment.describe(chosen)
    for line in resuming.environment_changes(earlier.environment, now):
        show.line(line)
    if not earlier.directory:
        writers.check_is_free(settings.workdir)
    job = jobs.prepare(settings, chosen, earlier.state)
    name = f"{settings.model}-{settings.dataset}".replace("/", "-")
    directory = earlier.directory or writers.create(
        settings.workdir, f"{name}-{job.devices.num_replicas}replicas"
    )
    position = earlier.state.position if earlier.state else states.Position()
    with writers.lock(directory), writers.stops_on_os_errors(directory):
        with interruption.Watch() as watch:
            summary = Run(job, directory, position, show, watch).complete()
    return summary | {"workdir": str(directory)}


class Run:
    """A run on its way: a job, where it stands, and what is written of it."""

    def __init__(self, job, directory, position, show, watch):
        """`position` is where `job` stands; `watch` tells when to end."""
        self.job, self.directory, self.position = job, directory, position
        self.show, self.watch = show, watch
        self.writer = writers.RunWriter(
            directory, position.records, job.steps_per_epoch
        )
        every, unit = config.parse_interval(job.settings.checkpoint_every)
        self.checkpoint_epochs = every if unit == "epoch" else 0
        self.checkpoint_steps = every if unit == "step" else 0
        self.writes_checkpoints = every > 0
        self.best_accuracy = checkpoints.best_accuracy(directory / "checkpoints")

    def complete(self):
        """Trains to the end; returns what summary.json holds."""
        job, settings = self.job, self.job.settings
        with self.writer:
            for text in records.first_lines(job):
                self.show.line(text)
            self.show.line(f"run directory: {self.directory}")
            # Of the run that this one makes longer; left there, it would seem whole.
            (self.directory / "summary.json").unlink(missing_ok=True)
            self.writer.write_json("config.json", dataclasses.asdict(settings))
            self.writer.write_json(
                "environment.json", environment.describe(job.devices)
            )
            if self.position != states.Position() and self.writes_checkpoints:
                # Killed before the next one, it would else begin anew in a new folder,
                # and in the old one go on with the settings of before.
                self._mark_if_best(self._checkpoint(self.position.point))
            trace_seconds = _trace(job)
            self.show.line(f"traced and compiled in {trace_seconds:.1f} s")
            periodics = self._make_periodics()
            while self.position.num_epochs < settings.epochs:
                self._complete_epoch(periodics)
            job.update.finish()
            summary = records.summarize(job, trace_seconds, self.position.records)
            writers.save_model(job.model, self.directory / writers.MODEL)
            draw(self.directory)
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

        Not kept in `self`: a cycle of references would leave the job, and iterators
        whose deletion takes the longer the older they are, to the garbage collector.
        """
        job, steps = self.job, self.position.num_steps(self.job.steps_per_epoch)
        check = make_drift_check(job, self.show)
        return [
            loop.Periodic(job.settings.check_drift_every, check, steps),
            loop.Periodic(self.checkpoint_steps, self._checkpoint_within_epoch, steps),
        ]

    def _complete_epoch(self, periodics):
        """Trains and evaluates to the end of the epoch that the run stands in."""
        job, epochs = self.job, self.job.settings.epochs
        epoch = self.position.num_epochs + 1
        point = self.position.point
        dog = watchdog.Watchdog(job.settings.step_timeout, job.describe_replicas)
        run_pass = functools.partial(
            loop.run_pass, steps_per_loop=job.settings.steps_per_loop, guard=dog.guard
        )
        totals = step.make_totals(
            point.totals.loss_sum, point.totals.num_correct, point.num_steps
        )
        num_examples = len(job.dataset.train)
        with self.show.epoch_progress(epoch, epochs, num_examples) as on_progress:
            try:
                trained = run_pass(
                    job.train_segments,
                    totals,
                    start=point,
                    periodics=periodics,
                    on_call=functools.partial(self._after_call, on_progress),
                )
            except loop.NotFiniteError as error:
                raise self._stopped(error.num_steps) from error
        try:
            evaluated = run_pass(
                job.eval_segments,
                step.zero_totals(),
                # Asked to end, it goes on with the evaluation, from its beginning.
                on_call=lambda _: self._after_call(None, trained),
            )
        except loop.NotFiniteError as error:
            raise config.TrainingStoppedError(
                f"the loss of the evaluation after epoch {epoch} is not finite; a "
                "lower --learning_rate or --clip_norm may help"
            ) from error
        record = records.epoch_record(epoch, trained, evaluated)
        self.position = states.Position((*self.position.records, record))
        self.writer.write_epoch(epoch * job.steps_per_epoch, record)
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
            raise config.InterruptedRunError(f"{where}; no checkpoint was asked for")
        path = self._checkpoint(point)
        raise config.InterruptedRunError(
            f"{where}; wrote {path}; --workdir='{self.directory}' --resume=auto goes on"
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
        is_last = num_epochs == self.job.settings.epochs
        if self._is_best() or is_due or is_last:
            self._mark_if_best(self._checkpoint(loop.START))

    def _is_best(self):
        """Returns whether the run stands after an epoch better than `best` in it."""
        if not self.position.records or self.position.point != loop.START:
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
            self.directory / "checkpoints",
            states.capture(self.job, position),
            self.job.settings.keep,
        )

    def _stopped(self, num_steps):
        """Returns the error of a step that is not finite, after so many of the pass."""
        epoch = self.position.num_epochs
        number = epoch * self.job.steps_per_epoch + num_steps + 1
        found = self.job.find_not_finite(epoch, num_steps)
        listed = "; ".join(finding.describe() for finding in found[:3])
        listed = listed or "only the sum over the microbatches"
        return config.TrainingStoppedError(
            f"step {number} (epoch {epoch + 1}) was not taken, since it is not finite: "
            f"{listed}; a lower --learning_rate or --clip_norm may help"
        )


def draw(directory):
    """Draws the curves of the run in `directory` into its folder plots/."""
    folder = directory / "plots"
    folder.mkdir(exist_ok=True)
    plots.save(plots.draw_curves([runs.read(directory)]), folder / "curves.png")


def _trace(job):
    """Traces all that the run will call; returns the seconds it took."""
    start = time.monotonic()
    loop.trace(job.train_segments + job.eval_segments, step.zero_totals())
    return time.monotonic() - start


def make_drift_check(job, show):
    """Returns a function of the steps taken that stops or resyncs drifted replicas."""
    find_drifts = drift.make_check(job.strategy, job.variables)

    def check(steps_taken, point):
        drifts = find_drifts()
        if not drifts:
            return
        listed = "; ".join(d.describe() for d in drifts)
        what = f"after step {steps_taken} replicas differ from replica 0: {listed}"
        if job.settings.on_drift == "stop":
            raise config.TrainingStoppedError(what)
        drift.resync(job.strategy, [job.variables[d.name] for d in drifts])
        show.line(f"{what}; resynced from replica 0")

    return check
