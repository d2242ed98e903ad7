"""Training processes that are killed at any moment lose nothing but time."""

import json
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("killed_runs.py")


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [8, pytest.param(300, marks=pytest.mark.hours)])
def test_killed_again_and_again_it_ends_with_the_same_bits(
    num_kills, tmp_path, record_property
):
    """Some kills come while another process tries to get the run's lock."""
    process = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path / "run"), str(num_kills), "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    counts = json.loads(process.stdout.splitlines()[-1])
    record_property("shown", f"killed runs: {counts}")
    assert counts["kills"] == num_kills
    assert counts["refused, in use"] > 0
    killed, whole = (tmp_path / name for name in ("run", "run.whole"))
    summaries = [json.loads((f / "summary.json").read_text()) for f in (killed, whole)]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    losses = [[e["train_loss"] for e in summary["epochs"]] for summary in summaries]
    assert losses[0] == losses[1] and len(losses[0]) == counts["epochs"]
    lines = (killed / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == counts["epochs"]
    assert not list(killed.glob("checkpoints/*.unfinished"))
