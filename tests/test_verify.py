"""The verification holds here, fails where it should, and says by how much."""

import json

import numpy as np
import pytest
from helpers import watch_threads

from tfmirror import command, command_config, verify
from tfmirror.parallel import reduction, verification


def call(*argv):
    return command.exit_code(
        verify.main,
        command_config.VerifyConfig,
        "",
        command_config.check_verify,
        list(argv),
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
    ],
)
def test_compare(expected, found, tolerance, is_met, text):
    outcome = verification.compare([np.array(expected)], [np.array(found)], tolerance)
    assert outcome == verification.Outcome(is_met, text)


def test_what_a_model_has_not_is_said():
    outcome = verification.compare("cnn has no dropout", None, 0.0)
    assert outcome == verification.Outcome(True, "n/a: cnn has no dropout")


@pytest.mark.parametrize(
    ("most", "expected"), [(2, [2]), (3, [2, 3]), (5, [2, 4, 5]), (8, [2, 4, 8])]
)
def test_replica_counts(most, expected):
    assert verify.replica_counts(most) == expected


@pytest.mark.parametrize(
    ("most", "columns"),
    [(2, ["2"]), pytest.param(5, ["2", "4", "5"], marks=pytest.mark.slow)],
)
def test_all_claims_hold(capsys, tmp_path, monkeypatch, most, columns):
    compiled, kept_apart = watch_threads(monkeypatch)
    path = tmp_path / "verified.json"
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
    assert set(compiled) == {2} and kept_apart == [verification.NUM_MICROBATCHES]


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
    "argv",
    [["--gpus=1"], ["--gpus=9"], ["--model=vgg"], ["--json_file=/no/such/x.json"]],
)
def test_wrong_flags_are_one_line(capsys, argv):
    assert call(*argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
