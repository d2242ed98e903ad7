"""The verification holds here, fails where it should, and says by how much."""

import errno
import json
from pathlib import Path

import numpy as np
import own_models
import pytest
from helpers import watch_threads

from tfmirror import command, files, flags, verify
from tfmirror.data import pipeline
from tfmirror.diagnostics import drift, observation, verification
from tfmirror.parallel import devices, reduction


def call(*argv):
    return command.run_and_return_exit_code(
        verify.main, verify.VerifyConfig, "", check=verify.check, argv=list(argv)
    )


@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "is_met", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, True, "same bits"),
        ([1.0, 2.0], [1.0, 2.002], 0.0, False, "differs by 1.0e-03, first in b"),
        ([1.0, 2.0], [1.0, 2.002], 0.01, True, "differs by 1.0e-03"),
        ([1.0, 2.0], [1.0, np.nan], 0.01, False, "differs by inf, first in b"),
        ([np.nan], [np.nan], 0.0, True, "same bits"),
        (
            [0.0],
            [-0.0],
            0.0,
            False,
            "differs by 0.0e+00, first in b",
        ),  # equal, but not to the bit
        ([0.0], [0.002], 0.0, False, "differs by 2.0e-03, first in b"),
        ([0.0], [0.0, 0.0], 0.0, False, "differs by inf, first in b"),
    ],
)
def test_compare(expected, found, tolerance, is_met, text):
    one = {"a": np.ones(2), "b": np.array(expected), "c": np.zeros(1)}
    other = one | {"b": np.array(found)}
    outcome = verification.compare(one, other, tolerance)
    assert outcome == verification.Outcome(is_met, text)


def test_what_a_model_has_not_is_said():
    outcome = verification.compare("cnn has no dropout", "cnn has no dropout", 0.0)
    assert outcome == verification.Outcome(True, "n/a: cnn has no dropout")


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("no dropout", {"": np.zeros(2)}),
        ({"": np.zeros(2)}, "no dropout"),
        ("a", "b"),
        ({"a": np.zeros(2)}, {"b": np.zeros(2)}),
    ],
)
def test_what_only_one_side_has_is_no_agreement(expected, found):
    assert not verification.compare(expected, found, 0.0).is_met


@pytest.mark.parametrize(
    ("most", "expected"), [(2, [2]), (3, [2, 3]), (5, [2, 4, 5]), (8, [2, 4, 8])]
)
def test_replica_counts(most, expected):
    assert verify.replica_counts(most) == expected


@pytest.mark.training
@pytest.mark.parametrize(
    ("most", "columns"),
    [(2, ["2"]), pytest.param(5, ["2", "4", "5"], marks=pytest.mark.slow)],
)
def test_all_claims_hold(capsys, tmp_path, monkeypatch, most, columns):
    compiled, kept_apart = watch_threads(monkeypatch)
    path = tmp_path / "verified.json"
    make_batches, seeds = pipeline.per_replica_batches, set()

    def watched(examples, **options):
        is_evaluation = len(examples) == observation.NUM_EVAL_EXAMPLES
        seeds.add((is_evaluation, options.get("shuffle_seed")))
        return make_batches(examples, **options)

    monkeypatch.setattr(pipeline, "per_replica_batches", watched)
    code = call(f"--gpus={most}", f"--json_file={path}")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    rows = json.loads(path.read_text())
    assert [row["claim"] for row in rows] == list(verification.CLAIMS)
    for row in rows:
        cells = row["replicas"]
        assert list(cells) == columns and row["claim"] in out
        expected = {"same bits"} if row["tolerance"] == 0 else None
        assert expected is None or {c["outcome"] for c in cells.values()} == expected
    numbers = {2: "1 and 2", 5: "1, 2, 4 and 5"}[most]
    assert out.endswith(
        f"all 14 claims hold: probe does the same on {numbers} replicas\n"
    )
    # All training data are shuffled: the order must not depend on the replicas either.
    assert seeds == {(False, 0), (True, None)}
    assert set(compiled) == {2} and kept_apart == [observation.NUM_MICROBATCHES]


@pytest.mark.slow
def test_a_sum_in_another_order_is_found_and_named(capsys, monkeypatch):
    """Replicas that finish the tree from right to left: every sum after it differs."""
    tree_sum = reduction.tree_sum

    def backwards(block, sums, num_leaves):
        if len(sums) > 1 and block[1] > 1:
            blocks = sorted(sums, reverse=True)
            total = sums[blocks[0]]
            for other in blocks[1:]:
                total = reduction.tf.nest.map_structure(
                    reduction.tf.add, total, sums[other]
                )
            return total
        return tree_sum(block, sums, num_leaves)

    one = observation.observe(1, "cnn", "cpu")
    monkeypatch.setattr(reduction, "tree_sum", backwards)
    observe = observation.observe
    monkeypatch.setattr(
        observation,
        "observe",
        lambda n, **options: one if n == 1 else observe(n, **options),
    )
    code = call("--gpus=4", "--model=cnn")
    out, err = capsys.readouterr()
    assert code == command.EXIT_CLAIM_FAILED == 4
    assert err.startswith("error: gradient on 4 replicas differs by")
    assert "FAILS: differs by" in out and "n/a: cnn has no dropout" in out


@pytest.mark.parametrize(
    ("found", "argv", "expected"),
    [(0, [], 8), (2, [], 2), (9, [], 8), (1, ["--gpus=3"], 3)],
)
def test_as_many_gpus_as_there_are(monkeypatch, found, argv, expected):
    monkeypatch.setattr(devices, "count_gpus", lambda device_type: found)
    settings = flags.parse(argv, verify.VerifyConfig)
    assert verify.num_gpus(settings, devices) == expected


def test_one_gpu_is_not_compared_with_itself(monkeypatch, capsys):
    monkeypatch.setattr(devices, "count_gpus", lambda device_type: 1)
    assert call() == 2
    assert (
        "at least 2, to be compared with one: got 1, the only"
        in capsys.readouterr().err
    )


def test_what_does_not_hold_is_said_though_the_file_cannot_be_written(
    capsys, monkeypatch, tmp_path
):
    def full_disk(path, content):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    fails = dict.fromkeys(verification.CLAIMS, verification.Outcome(False, "differs"))
    monkeypatch.setattr(verify, "verify", lambda *_: {2: fails})
    monkeypatch.setattr(files, "write_json", full_disk)
    argv = ["--gpus=2", f"--json_file={tmp_path / 'x.json'}"]
    assert call(*argv) == command.EXIT_CLAIM_FAILED
    holds = dict.fromkeys(verification.CLAIMS, verification.Outcome(True, "same bits"))
    monkeypatch.setattr(verify, "verify", lambda *_: {2: holds})
    assert call(*argv) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_copy_of_another_sign_of_zero_is_no_equal_copy():
    drifted = [drift.Drift("kernel", (1,), largest_difference=0.0)]
    names = ["bias", "kernel"]
    none, one = (observation.describe_drifts(d, names) for d in ([], drifted))
    assert verification.compare(none, none, 0.0).is_met
    outcome = verification.compare(none, one, 0.0)
    assert not outcome.is_met and outcome.text.endswith("first in kernel")


@pytest.mark.parametrize(
    "argv",
    [["--gpus=1"], ["--gpus=9"], ["--model=typo"], ["--json_file=/no/such/x.json"]]
    + [["--json_file=."]],
)
def test_wrong_flags_are_one_line(capsys, argv):
    assert call(*argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


OWN = Path(own_models.__file__)


@pytest.mark.slow
@pytest.mark.training
def test_a_model_of_the_users_own_is_proved(capsys):
    model = f"--model={OWN}:of_9x12x3"
    code = call("--gpus=2", model, "--image_size=9x12", "--channels=3")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "n/a: batch norm and dropout see each replica's examples apart" in out
    assert "all 14 claims hold: " in out


@pytest.mark.training
def test_what_breaks_a_claim_is_named(capsys):
    code = call("--gpus=2", f"--model={OWN}:drawn_with_numpy")
    out, err = capsys.readouterr()
    assert code == command.EXIT_CLAIM_FAILED
    assert "outputs of every layer, logits on 2 replicas differs by" in err
    assert "first in noise;" in err  # the layer before it is the same
    assert "gradient on 2 replicas differs by" in err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--image_size=28"], "image_size must be height x width in pixels"),
        (["--image_size=0x3"], "image_size must be height x width"),
        (["--channels=0"], "channels must be at least 1"),
        (["--model=no_such.py:f"], "model must be of an existing file"),
        ([f"--model={OWN}:softmax"], "ends in softmax"),
        ([f"--model={OWN}:small", "--image_size=2x2"], "raised ValueError in line"),
    ],
)
def test_what_can_not_be_verified_is_refused(capsys, argv, says):
    assert call("--gpus=2", *argv) == 2
    out, err = capsys.readouterr()
    assert says in err and err.count("\n") == 1
