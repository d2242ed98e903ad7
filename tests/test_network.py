"""Nothing of tfmirror talks to anything, unless a dataset is to be downloaded."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.training

# Python code can't look a name up, connect or send; what C++ code opened and kept would
# be seen at the end. A socket alone is none of it: urllib3 makes one when it is
# imported, to see whether there is IPv6.
FORBIDDING = """
import os, sys
CALLS = ("connect", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")
def refuse(event, arguments):
    if event in [f"socket.{call}" for call in CALLS]:
        os.write(2, f"{event} {arguments}".encode())
        os._exit(9)
sys.addaudithook(refuse)
"""
SEEN = """
links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
assert not [n for n in links if os.path.exists(n) and "socket" in os.readlink(n)]
"""
TRAIN = """
from tfmirror import config
from tfmirror.training import run
settings = config.TrainConfig(epochs=1, limit_train_examples=128, workdir=sys.argv[1])
run.train(settings)
"""
OTHERS = """
from tfmirror import evaluate, export, inspect_replicas, predict, report
folder = sys.argv[1]
evaluate.main(evaluate.EvaluateConfig(arguments=(folder,)))
images = predict.PredictConfig(arguments=(folder, sys.argv[2]))
predict.main(images)
export.main(export.ExportConfig(arguments=(folder,), saved_model=folder + "/saved"))
inspect_replicas.main(inspect_replicas.InspectConfig())
report.main(report.ReportConfig(run_dirs=(folder,), html_file=folder + "/report.html"))
"""


HANGS = 600  # seconds after which a test fails instead of waiting for ever


def run(program, *arguments):
    """Runs a program that may not open a socket; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-c", FORBIDDING + program + SEEN, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANGS,
    )


@pytest.mark.slow
def test_a_run_and_all_that_follows_it_make_no_call(tmp_path):
    from helpers import idx_bytes, make_examples

    (tmp_path / "images").write_bytes(idx_bytes(make_examples(3).images[..., 0]))
    done = run(TRAIN + OTHERS, tmp_path / "run", tmp_path / "images")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "final evaluation accuracy" in done.stdout
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket(type=2).sendto(b'', ('127.0.0.1', 9))",
        "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')",
    ],
)
def test_a_call_would_be_noticed(program):
    done = run(program)
    assert done.returncode == 9 and "socket." in done.stderr


def test_a_socket_that_is_no_pythons_would_be_noticed():
    done = run("import ctypes; assert ctypes.CDLL(None).socket(2, 1, 0) > 0")
    assert done.returncode == 1 and "AssertionError" in done.stderr
