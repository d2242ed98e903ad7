"""The verification holds here, fails where it should, and says by how much."""

import errno
import json

import numpy as np
import pytest
from helpers import watch_threads

from tfmirror import command, files, flags, verify
from tfmirror.data import pipeline
from tfmirror.diagnostics import drift, verification
from tfmirror.parallel import devices, reduction


def call(*argv):
    return command.run_and_return_exit_code(
        verify.main, verify.VerifyConfig, "", check=verify.check, argv=list(argv)
    )


@pytest.mark.parametrize(
    ("expected", "found", "tolerance", "is_met", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, True, "same bits"),
        ([1.0, 2.0], [1.0, 2.002], 0.0, False, "differs by 1.0e-03"),
        ([1.0, 2.0], [1.0, 2.002], 0.01, True, "differs by 1.0e-03"),
        ([1.0, 2.0], [1.0, np.nan], 0.01, False, "differs by nan"),
        ([np.nan], [np.nan], 0.0, True, "same bits"),
        ([0.0], [-0.0], 0.0, False, "differs by 0.0e+00"),  # equal, but not to the bit
        ([0.0], [0.002], 0.0, False, "differs by 2.0e-03"),
    ],
)
def test_compare(expected, found, tolerance, is_met, text):
    outcome = verification.compare([np.array(expected)], [np.array(found)], tolerance)
    assert outcome == verification.Outcome(is_met, text)


def test_what_a_model_has_not_is_said():
    outcome = verification.compare("cnn has no dropout", "cnn has no dropout", 0.0)
    assert outcome == verification.Outcome(True, "n/a: cnn has no dropout")


@pytest.mark.parametrize(
    ("expected", "found"),
    [("no dropout", [np.zeros(2)]), ([np.zeros(2)], "no dropout"), ("a", "b")],
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
        is_evaluation = len(examples) == verification.NUM_EVAL_EXAMPLES
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
    assert out.endswith("all 14 claims hold\n")
    # All training data are shuffled: the order must not depend on the replicas either.
    assert seeds == {(False, 0), (True, None)}
    assert set(compiled) == {2} and kept_apart == [verification.NUM_MICROBATCHES]


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

    one = verification.observe(1, "cnn", "cpu")
    monkeypatch.setattr(reduction, "tree_sum", backwards)
    observe = verification.observe
    monkeypatch.setattr(
        verification, "observe", lambda n, *rest: one if n == 1 else observe(n, *rest)
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
    none, one = map(verification.describe_drifts, ([], drifted))
    assert verification.compare(none, none, 0.0).is_met
    assert not verification.compare(none, one, 0.0).is_met


@pytest.mark.parametrize(
    "argv",
    [["--gpus=1"], ["--gpus=9"], ["--model=typo"], ["--json_file=/no/such/x.json"]]
    + [["--json_file=."]],
)
def test_wrong_flags_are_one_line(capsys, argv):
    assert call(*argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
