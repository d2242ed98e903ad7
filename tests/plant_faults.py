"""Plants faults in copies of the package, one at a time, and shows what finds them.

    python tests/plant_faults.py                 # every fault; prints a table
    python tests/plant_faults.py step files      # those whose module has such a name

Each fault is a mistake that somebody could make: an exchanged name, a lost factor, a
check left out. A fault is caught if a test of `make test` fails. The tests that are
named beside a fault run first. If all of them pass, the whole of `make test` runs.

`test_plant_faults.py` checks that every fault below still fits the package's text.
"""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("tfmirror", "tests", "experiments", "examples", "docs")
COPIED_FILES = ("pyproject.toml", "README.md", "BUILD_NOTES.md", "CONTRIBUTING.md")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A piece of text of one module, and the wrong text in its place."""

    module: str  # path from the project's root
    right: str  # occurs once
    wrong: str
    tests: str  # names of test files that run first, without test_ and .py


FAULTS = (
    # data
    Fault(
        "tfmirror/data/examples.py",
        "tf.gather(labels.value(), chosen)",
        "tf.gather(labels.value(), chosen[::-1])",
        "pipeline",
    ),
    Fault(
        "tfmirror/data/pipeline.py",
        "tf.range(begin + starts[replica], begin + starts[replica + 1])",
        "tf.range(begin + starts[0], begin + starts[replica + 1] - starts[replica])",
        "pipeline",
    ),
    Fault(
        "tfmirror/data/augmentation.py",
        "kept = offsets + tf.range(side)",
        "kept = offsets[:1] + tf.range(side) + 0 * offsets",
        "augmentation",
    ),
    # models
    Fault(
        "tfmirror/models/unused_pixels.py",
        "(size - 1) * dilation + 1",
        "size * dilation",
        "unused_pixels",
    ),
    Fault(
        "tfmirror/models/fused_batch_norm.py",
        "biased = variance * ((count - 1) / count)",
        "biased = variance",
        "fused_batch_norm",
    ),
    Fault(
        "tfmirror/models/resnet18.py",
        "        x = convolution(1, stride,",
        "        x = convolution(3, stride,",
        "models",
    ),
    # rundir
    Fault(
        "tfmirror/rundir/checkpoints.py",
        "if content[-DIGEST_LENGTH:] != _digest(content[:-DIGEST_LENGTH]):",
        "if len(content[-DIGEST_LENGTH:]) != DIGEST_LENGTH:",
        "checkpoints",
    ),
    Fault(
        "tfmirror/rundir/resume.py",
        "if n not in allowed and now[n] != previous[n]",
        "if n not in allowed and bool(now[n]) != bool(previous[n])",
        "resume",
    ),
    Fault(
        "tfmirror/files.py",
        "        sync_tree(unfinished)\n        unfinished.replace(path)\n",
        "        unfinished.replace(path)\n        sync_tree(path)\n",
        "files",
    ),
    # reporting
    Fault(
        "tfmirror/reporting/plots.py",
        '_draw_line(ax, x, run.values(f"train_{quantity}"), number, "--")',
        '_draw_line(ax, x, run.values(f"eval_{quantity}"), number, "--")',
        "reporting",
    ),
    # parallel
    Fault(
        "tfmirror/parallel/step.py",
        "microbatch_index = step * plan.num_microbatches + k",
        "microbatch_index = step + k",
        "step same_bits",
    ),
    Fault(
        "tfmirror/parallel/step.py",
        "num_nonempty = sum(size > 0 for size in plan.microbatch_sizes)",
        "num_nonempty = plan.num_microbatches",
        "step",
    ),
    Fault(
        "tfmirror/parallel/reduction.py",
        "        high = whole\n",
        "        high = num_leaves\n",
        "reduction",
    ),
    Fault(
        "tfmirror/parallel/optimizers.py",
        "gradients = [gradient / scale for gradient in gradients]",
        "gradients = list(gradients)",
        "optimizers",
    ),
    Fault(
        "tfmirror/parallel/sync_batch_norm.py",
        "(variances + (means - mean) ** 2)",
        "variances",
        "sync_batch_norm",
    ),
    # diagnostics
    Fault(
        "tfmirror/diagnostics/drift.py",
        "odd = 2 * tf.range(tf.size(bits, tf.int64), dtype=tf.int64) + 1",
        "odd = 2 * tf.range(tf.size(bits, tf.int64), dtype=tf.int64)",
        "drift",
    ),
    Fault(
        "tfmirror/diagnostics/observation.py",
        "make_steps, shuffle_seed=0\n",
        "make_steps, shuffle_seed=None\n",
        "verify",
    ),
    # training
    Fault(
        "tfmirror/training/schedules.py",
        "decay_steps = max(1, num_steps - warmup_steps)",
        "decay_steps = max(1, num_steps)",
        "schedules",
    ),
    Fault(
        "tfmirror/training/loop.py",
        "return self.every - self.steps % self.every if self.every else math.inf",
        "return self.every if self.every else math.inf",
        "loop",
    ),
    Fault(
        "tfmirror/training/progress.py",
        '"eval_accuracy": evaluated.totals.accuracy',
        '"eval_accuracy": trained.totals.accuracy',
        "run evaluate",
    ),
    # inference
    Fault(
        "tfmirror/inference/prediction.py",
        "return np.concatenate(predicted)[: len(images)]",
        "return np.concatenate(predicted[::-1])[: len(images)]",
        "predict",
    ),
    Fault(
        "tfmirror/inference/evaluation.py",
        'in_fixed_tree=settings["microbatches"] > 0 or not is_as_trained',
        "in_fixed_tree=False",
        "evaluate",
    ),
    # benchmarking
    Fault(
        "tfmirror/benchmarking/rounds.py",
        "of_rounds = [speed / baseline_speed for speed, baseline_speed in pairs]",
        "of_rounds = [baseline_speed / speed for speed, baseline_speed in pairs]",
        "benchmark",
    ),
    Fault(
        "tfmirror/benchmarking/flops.py",
        "return 3 * sum(forward) - forward[0]",
        "return 2 * sum(forward) - forward[0]",
        "benchmark",
    ),
    # commands and settings
    Fault(
        "tfmirror/evaluate.py",
        'values |= {"data_dir": "", "limit_eval_examples": 0, "eval_fraction": 0.0}',
        'values |= {"data_dir": "", "eval_fraction": 0.0}',
        "evaluate",
    ),
    Fault(
        "experiments/time_to_accuracy.py",
        "for seed in range(settings.num_seeds)",
        "for seed in [0] * settings.num_seeds",
        "experiments",
    ),
    Fault(
        "tfmirror/inspect_replicas.py",
        "return array[..., channel].tolist()",
        "return array[..., 0].tolist()",
        "inspect_replicas",
    ),
    Fault(
        "tfmirror/predict.py",
        "zip(names, counts, strict=True)",
        "zip(names, sorted(counts), strict=True)",
        "predict",
    ),
    # what fails in silence
    Fault(
        "tfmirror/data/images.py",
        "PIL.ImageOps.exif_transpose(image)",
        "image",
        "images",
    ),
    Fault(
        "tfmirror/parallel/optimizers.py",
        "return self.loss_scaler.value() > 1",
        "return self.loss_scaler.value() > 0",
        "optimizers",
    ),
    Fault(
        "tfmirror/parallel/batch_statistics.py",
        "[value / (1 - share) for value, share in zip(new, kept, strict=True)]",
        "[value for value, share in zip(new, kept, strict=True)]",
        "batch_statistics",
    ),
    Fault(
        "tfmirror/training/run.py",
        "        self._check_variables(epoch * self.setup.steps_per_epoch)\n",
        "",
        "run",
    ),
    Fault(
        "tfmirror/models/layer_override.py",
        "    _in_this_thread.is_faster = True\n",
        "",
        "layer_override",
    ),
    Fault(
        "tfmirror/models/own_model.py",
        "np.abs(sums - 1).max() <= SUM_TOLERANCE",
        "(sums - 1).max() <= SUM_TOLERANCE",
        "own_model",
    ),
    Fault(
        "tfmirror/rundir/resume.py",
        "if names[0] != names[1] or digests[0] != digests[1]:",
        "if names[0] != names[1]:",
        "own_runs",
    ),
    Fault(
        "tfmirror/parallel/gradients.py",
        "objective = loss + images.shape[0] * added_loss(added)",
        "objective = loss + added_loss(added)",
        "model_state",
    ),
    Fault(
        "tfmirror/data/pipeline.py",
        "CIPHER_ROUNDS = 10",
        "CIPHER_ROUNDS = 4",
        "order",
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the tests said of one fault."""

    fault: Fault
    failed: str  # the first test that failed; empty: none did
    seconds: float


def plant(fault: Fault, root: pathlib.Path) -> None:
    """Plants a fault in the copy of the project at `root`.

    Raises:
      ValueError: the right text does not occur once in the module.
    """
    path = root / fault.module
    text = path.read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise ValueError(
            f"{fault.module} must hold this text once: got "
            f"{text.count(fault.right)} times {fault.right!r}"
        )
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")


def find(fault: Fault) -> Outcome:
    """Runs the tests on a copy with one fault until one of them fails."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, root / name)
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, root / name)
        plant(fault, root)
        first = [f"tests/test_{name}.py" for name in fault.tests.split()]
        failed = _first_failure(root, first) or _first_failure(root, ["tests"])
    return Outcome(fault, failed, time.monotonic() - began)


def _first_failure(root: pathlib.Path, paths: list[str]) -> str:
    """Returns the name of the first test that fails; empty if none does."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--numprocesses=2", *paths]
        + ["--deselect=tests/test_plant_faults.py", "-p", "no:cacheprovider"],
        cwd=root,
        env=None,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if not found:  # no test failed: there was none, or it could not be imported
        raise RuntimeError(f"pytest could not run the tests: {done.stdout[-2000:]}")
    return found[1].removeprefix("tests/")


def main(names: list[str]) -> int:
    """Plants the faults in modules of these names, or all; prints a table."""
    chosen = [f for f in FAULTS if not names or pathlib.Path(f.module).stem in names]
    print("| module | wrong | caught by | s |\n|---|---|---|---|", flush=True)
    outcomes = []
    for fault in chosen:
        outcome = find(fault)
        outcomes.append(outcome)
        wrong = " ".join(fault.wrong.split()).replace("|", "\\|")
        print(
            f"| {fault.module.removeprefix('tfmirror/')} | `{wrong}` | "
            f"{outcome.failed or '**nothing**'} | {outcome.seconds:.0f} |",
            flush=True,
        )
    caught = sum(bool(outcome.failed) for outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} caught")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
