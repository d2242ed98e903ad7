"""Training runs of which one system call fails, and what is left of them.

    python faulty_runs.py FOLDER SCENARIO EVERY SHIFT   # file_faults.so preloaded

It counts the calls with which the run of a scenario writes below its folder. Each
EVERY-th of them, from the call SHIFT, fails in each way of KINDS, in a run of its own;
then the run is resumed where nothing fails. Prints one JSON object.

So that a run takes a fraction of a second, it has a small network that is traced once
for all runs, and its picture is not drawn, but written.
"""

import collections
import contextlib
import ctypes
import dataclasses
import errno
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import sys
import traceback
from unittest import mock

LIBRARY = "FILE_FAULTS_LIBRARY"  # variable of the environment: path of file_faults.so
ONCE, FULL, SHORT, FROZEN, TORN = range(5)  # the enum in file_faults.c
# Name of a way to fail: (number for the library, error).
KINDS = {
    "ENOSPC": (ONCE, errno.ENOSPC),
    "EIO": (ONCE, errno.EIO),
    "EACCES": (ONCE, errno.EACCES),
    "full disk": (FULL, 0),  # every later call that needs room fails too
    "short write": (SHORT, 0),  # half is written, and the call says so
    "death": (FROZEN, 0),  # no later call has an effect
    "torn write": (TORN, 0),  # the same after half of a write
}
# Ways in which a power cut may lose what a death leaves.
CUTS = ("cut: names kept", "cut: names lost")
ARGUMENTS = (
    "--microbatches=2", "--global_batch_size=16", "--limit_train_examples=40",
    "--limit_eval_examples=16", "--momentum=0.9", "--learning_rate=0.02",
    "--checkpoint_every=2steps", "--keep=2", "--steps_per_loop=1", "--resume=auto",
)  # fmt: skip
PICTURE = b"stands for a picture\n" * 4
MAY_LACK = {"plots/curves.png"}  # after a run that said that it could not draw it
OF_DEVICES = ("devices", "num_replicas")


class Disk:
    """The calls that write below a folder; one of them can fail."""

    def __init__(self):
        self._library = ctypes.CDLL(os.environ[LIBRARY])
        self._library.file_faults_calls.restype = ctypes.c_char_p

    @contextlib.contextmanager
    def failing(self, folder, point=0, kind="EIO"):
        """Lets call `point` below `folder` fail within the block; 0: none does.

        Yields a list that holds (name, path below the folder) of each call at the end.
        """
        calls = []
        self._library.file_faults_watch(str(folder).encode())
        self._library.file_faults_arm(point, *KINDS[kind])
        try:
            yield calls
        finally:
            _close_to_disk(folder)
            lines = self._library.file_faults_calls().decode().splitlines()
            self._library.file_faults_watch(b"")
            calls += [
                tuple(line.replace(f"{folder}", ".").split(" ", 1)) for line in lines
            ]


def _close_to_disk(folder):
    """Lets nothing that is still open reach files below `folder` later."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/"):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, int(name), inheritable=False)
                os.close(null)


class SyncedDisk:
    """What a disk surely holds: synced bytes of files and names in folders."""

    def __init__(self, root):
        """All that is below `root` now counts as synced."""
        self.root, self.bytes, self.names, self._kept = root, {}, {}, []
        for folder, _, names in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                descriptor = os.open(path, os.O_RDONLY)
                self._note(descriptor)
                os.close(descriptor)

    @contextlib.contextmanager
    def following(self):
        """Notes what is synced within the block."""
        real = os.fsync

        def fsync(descriptor):
            real(descriptor)
            self._note(descriptor)

        with mock.patch("os.fsync", fsync):
            yield
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept.clear()

    def _note(self, descriptor):
        # Kept open, so that no other file gets its number.
        self._kept.append(os.dup(descriptor))
        path, number = f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_ino
        if os.path.isdir(path):
            self.names[number] = {
                name: os.lstat(f"{path}/{name}").st_ino for name in os.listdir(path)
            }
        else:
            self.bytes[number] = pathlib.Path(path).read_bytes()

    def leave(self, target, names_are_kept):
        """Writes what a power cut may leave of the root as the folder `target`.

        Args:
          names_are_kept: bytes that were not synced are lost, but all names are there;
            otherwise the names are lost too.
        """
        root, kinds = os.lstat(self.root).st_ino, {}
        names = dict(self.names)
        for folder, inner, files in os.walk(self.root):
            number = os.lstat(folder).st_ino
            found = {
                name: os.lstat(f"{folder}/{name}").st_ino for name in (*inner, *files)
            }
            kinds |= {found[name]: "folder" for name in inner} | {number: "folder"}
            if names_are_kept:
                names[number] = found
        kinds |= {number: "folder" for number in self.names}
        self._leave(target, root, names, kinds)

    def _leave(self, target, number, names, kinds):
        if kinds.get(number) == "folder":
            target.mkdir()
            for name, inner in names.get(number, {}).items():
                self._leave(target / name, inner, names, kinds)
        else:
            target.write_bytes(self.bytes.get(number, b""))


@dataclasses.dataclass
class Outcome:
    """How a command ended."""

    code: int | None  # None: an exception that it does not turn into a line
    out: str
    err: str


def call(folder, *arguments):
    """Runs tfmirror.train in this process, in the folder `folder`/run."""
    from tfmirror import command, config, train

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command.run_and_return_exit_code(
                train.main,
                config.TrainConfig,
                "",
                check=config.check,
                argv=[*ARGUMENTS, *arguments, f"--workdir={folder / 'run'}"],
            )
        except Exception:
            code = None
            traceback.print_exc()
    return Outcome(code, out.getvalue(), err.getvalue())


def build_small(input_shape, num_classes, initializer):
    """Returns a small network with batch norm."""
    import keras

    layers = [
        keras.Input(input_shape, name="images"),
        keras.layers.Conv2D(4, 5, strides=3, name="conv"),
        keras.layers.BatchNormalization(name="norm"),
        keras.layers.ReLU(name="relu"),
        keras.layers.GlobalAveragePooling2D(name="pool"),
        keras.layers.Dense(num_classes, name="logits"),
    ]
    return keras.Sequential(layers, name="small")


@contextlib.contextmanager
def made_fast():
    """Traces each network once, and replaces drawing, within the block."""
    from tfmirror import models
    from tfmirror.parallel import segments
    from tfmirror.reporting import plots
    from tfmirror.rundir import state
    from tfmirror.training import setup

    made, assemble, make_segments = {}, setup.assemble, segments.make_segments

    def assemble_once(
        settings,
        chosen,
        dataset,
        per_replica,
        *,
        model,
        position=state.START_OF_RUN,
        source=None,
    ):
        key = (chosen.num_replicas, settings.epochs)
        if key not in made:
            built = assemble(
                settings, chosen, dataset, per_replica, model=model, position=position
            )
            made[key] = built, {n: v.numpy() for n, v in built.variables.items()}
        built, values = made[key]
        for name, variable in built.variables.items():
            variable.assign(values[name])
        steps = iter([segment.steps for segment in built.train_segments])
        return dataclasses.replace(
            built,
            settings=settings,
            train_segments=make_segments(
                built.strategy,
                dataset.train,
                built.train_plans,
                lambda plan: next(steps),
                shuffle_seed=settings.seed,
                epochs=position.num_epochs,
                steps=position.point.num_steps,
            ),
        )

    with (
        mock.patch.dict(models.BUILDERS, cnn=build_small),
        mock.patch.object(setup, "assemble", assemble_once),
        mock.patch.object(plots, "to_png", lambda drawn: PICTURE),
    ):
        yield


def contents(folder):
    """Returns what is to be the same in two runs, by the names of the files.

    Of summary.json and metrics.jsonl all but times and devices, of a checkpoint its
    steps and the digest of its variables, of other files that they can be read.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        name = str(path.relative_to(folder))
        try:
            found[_plain_name(name)] = _read(path, name)
        except Exception as error:
            found[name] = f"UNREADABLE: {error!r}"
    return found


def _plain_name(name):
    return re.sub(r"events\.out\.tfevents\..*", "events", name)


def _read(path, name):
    import keras

    from tfmirror.rundir import checkpoints

    if name.endswith(".npz"):
        state = checkpoints.read(path)
        digest = hashlib.sha256()
        for variable in state.variables.values():
            digest.update(variable.tobytes())
        return state.num_steps, digest.hexdigest()
    if name == "summary.json":
        return _without_times(json.loads(path.read_text()))
    if name.endswith(".jsonl"):
        lines = path.read_text().splitlines()
        return [_without_times(json.loads(line)) for line in lines]
    if name.endswith(".json"):
        json.loads(path.read_text())
    if name.endswith(".keras"):
        model = keras.saving.load_model(path, compile=False)
        weights = b"".join(array.tobytes() for array in model.get_weights())
        return hashlib.sha256(weights).hexdigest()
    if "tfevents" in name:
        return _count_events(path)
    if name.endswith(".png"):
        return path.read_bytes() == PICTURE
    return "is there"


def _count_events(path):
    """Returns how many whole records a file of TensorBoard events has."""
    import tensorflow as tf

    return sum(1 for _ in tf.data.TFRecordDataset(str(path)))


def _without_times(value):
    if isinstance(value, list):
        return [_without_times(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        k: _without_times(v)
        for k, v in value.items()
        if k not in OF_DEVICES and "second" not in k
    }


def differences(expected, got):
    """Returns a line for each name of which two `contents` differ."""
    return [
        f"{name}: {_short(got, name)}, expected {_short(expected, name)}"
        for name in sorted({*expected, *got})
        if expected.get(name) != got.get(name)
    ]


def _short(values, name):
    text = str(values.get(name, "not there"))
    return text if len(text) < 100 else f"{text[:100]}..."


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A run whose calls fail, and what was in its folder before."""

    arguments: tuple[str, ...]
    before: tuple[str, ...] | None = None  # arguments of a run that died
    died_at: float = 1.0  # after this part of its calls; 1: it ended
    damage: tuple[str, ...] = ()  # files of it that are cut in half then


SCENARIOS = {
    "new": Scenario(("--gpus=1", "--epochs=2")),
    "resumed": Scenario(("--gpus=2", "--epochs=2"), ("--gpus=1", "--epochs=2"), 0.6),
    "continued": Scenario(
        ("--gpus=1", "--epochs=3", "--resume_override=epochs"),
        ("--gpus=1", "--epochs=2"),
    ),
    "damaged": Scenario(
        ("--gpus=1", "--epochs=2"),
        ("--gpus=1", "--epochs=2"),
        damage=("summary.json", "checkpoints/step-000000006.npz"),
    ),
}


class Trial:
    """One scenario: its calls, and what it leaves if nothing fails."""

    def __init__(self, disk, folder, scenario):
        self.disk, self.folder, self.scenario = disk, folder, scenario
        self._numbers = iter(range(10**9))
        self.before = self._prepare()
        root = self._fresh()
        with disk.failing(root) as calls:
            outcome = call(root, *scenario.arguments)
        self.calls, self.expected = calls, contents(root / "run")
        if outcome.code != 0:
            raise RuntimeError(f"it fails where no call does: {outcome}")
        shutil.rmtree(root)

    def _prepare(self):
        root = self.folder / "before"
        root.mkdir()
        if not self.scenario.before:
            return root
        with self.disk.failing(root) as calls:
            call(root, *self.scenario.before)
        if self.scenario.died_at < 1:
            shutil.rmtree(root / "run")
            point = int(len(calls) * self.scenario.died_at)
            with self.disk.failing(root, point, "death"):
                call(root, *self.scenario.before)
        for name in self.scenario.damage:
            path = root / "run" / name
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return root

    def _fresh(self):
        root = self.folder / f"run{next(self._numbers)}"
        shutil.copytree(self.before, root)
        return root

    def fail(self, point, kind):
        """Lets call `point` fail; yields (what followed, faults), maybe several."""
        root = self._fresh()
        synced = SyncedDisk(root)
        with self.disk.failing(root, point, kind), synced.following():
            outcome = call(root, *self.scenario.arguments)
        if kind == "death":
            for cut in CUTS:
                after = self.folder / f"run{next(self._numbers)}"
                synced.leave(after, names_are_kept=cut == CUTS[0])
                yield cut, self._resume(after, ())
        faults = [] if kind in ("death", "torn write") else self._judge(root, outcome)
        may_lack = MAY_LACK if "warning" in outcome.out + outcome.err else ()
        yield kind, faults + self._resume(root, may_lack)

    def _judge(self, root, outcome):
        """Returns what is wrong with how a run ended of which a call failed."""
        said, faults = outcome.err, []
        if outcome.code not in (0, 2, 3):
            last = said.strip().splitlines()[-1:] or [""]
            return [f"exit code {outcome.code}: {last[0]}"]
        if outcome.code:
            if not said.startswith("error: ") or said.count("\n") != 1:
                faults.append(f"not one line: {said!r}")
            if outcome.code == 3 and "--resume" not in said:
                faults.append(f"does not say what to do: {said!r}")
            if re.search(r"checkpoints[^;]*(complete|whole)", said):
                kept = contents(root / "run" / "checkpoints").values()
                if not any(isinstance(value, tuple) for value in kept):
                    faults.append(f"there is no checkpoint: {said!r}")
        elif said:
            faults.append(f"says on standard error: {said!r}")
        else:
            lines = differences(self.expected, contents(root / "run"))
            if "warning" in outcome.out:
                lines = [line for line in lines if line.split(":")[0] not in MAY_LACK]
            faults += [f"exit code 0, but {line}" for line in lines]
        return faults

    def _resume(self, root, may_lack):
        """Resumes a run where no call fails; returns what is wrong then."""
        (root / "run").parent.mkdir(exist_ok=True)
        outcome = call(root, *self.scenario.arguments)
        if outcome.code != 0:
            last = outcome.err.strip().splitlines()[-1:] or [""]
            return [f"resumed: exit code {outcome.code}: {last[0]}"]
        expected, got = dict(self.expected), contents(root / "run")
        for name in set(may_lack) - set(got):
            expected.pop(name, None)
        shutil.rmtree(root)
        return [f"resumed: {line}" for line in differences(expected, got)]


def main(folder, scenario, every, shift):
    """Prints the counts and the faults of one scenario."""
    from tfmirror.parallel import devices

    devices.set_up(8, "cpu")
    unraisable = []
    sys.unraisablehook = lambda args: unraisable.append(repr(args.exc_value))
    folder, counts, faults = pathlib.Path(folder).resolve(), collections.Counter(), []
    with made_fast():
        trial = Trial(Disk(), folder, SCENARIOS[scenario])
        for point in range(shift, len(trial.calls) + 1, every):
            name, path = trial.calls[point - 1]
            for kind in KINDS:
                if kind in ("short write", "torn write") and name != "write":
                    continue
                for what, found in trial.fail(point, kind):
                    counts[what] += 1
                    where = f"{scenario} {point} {name} {_plain_name(path)}: {what}: "
                    faults += [where + fault for fault in found]
    return {
        "calls": collections.Counter(name for name, _ in trial.calls),
        "listed": trial.calls,
        "trials": counts,
        "faults": faults,
        "unraisable": unraisable,
    }


if __name__ == "__main__":
    where, which, every, shift = sys.argv[1:]
    print(json.dumps(main(where, which, int(every), int(shift))))
