"""Whatever call to the file system fails, a run loses nothing but time.

Every call with which a run writes (open, write, sync, rename, link, unlink, mkdir) is
counted. One after the other fails with ENOSPC, EIO or EACCES, or the process dies
there; what is left is resumed, and ends as the run of which no call failed.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import faulty_runs
import pytest

HERE = pathlib.Path(__file__).resolve().parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Path of file_faults.so."""
    compiler = shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("needs a C compiler, cc, and Linux")
    path = tmp_path_factory.mktemp("library") / "file_faults.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    source = HERE / "file_faults.c"
    subprocess.run(
        [compiler, *flags, "-o", path, source, "-ldl", "-lpthread"], check=True
    )
    return path


def start(library, arguments, **variables):
    """Runs Python with the library preloaded; returns the finished process."""
    preloaded = {faulty_runs.LIBRARY: str(library), "LD_PRELOAD": str(library)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | preloaded | variables,
        capture_output=True,
        text=True,
    )


def run_scenario(library, folder, scenario, every, shift):
    """Returns what faulty_runs.main returns, from a process of its own."""
    arguments = [scenario, every, shift]
    done = start(library, [HERE / "faulty_runs.py", folder, *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# A thinned sample from various starts, and all of them.
@pytest.mark.parametrize(
    "every", [24, pytest.param(1, marks=pytest.mark.hours)], ids=["some", "all"]
)
@pytest.mark.parametrize("scenario", faulty_runs.SCENARIOS)
def test_whichever_call_fails_the_run_resumes_to_the_same_bits(
    scenario, every, library, tmp_path, record_property
):
    shift = 1 + 3 * list(faulty_runs.SCENARIOS).index(scenario) % every
    found = run_scenario(library, tmp_path, scenario, every, shift)
    calls = ", ".join(f"{number} {name}" for name, number in found["calls"].items())
    total = sum(found["calls"].values())
    record_property(
        "shown",
        f"{scenario}: {total} calls ({calls}), every {every} from {shift}: "
        f"{sum(found['trials'].values())} trials, {len(found['faults'])} faults",
    )
    assert total > 60 and {"death", *faulty_runs.CUTS} <= set(found["trials"])
    assert not found["faults"], "\n".join(found["faults"])
    assert not found["unraisable"]


def train(library, folder, **variables):
    """Trains in a process that counts calls below `folder`; returns it at its end."""
    arguments = [
        "-m", "tfmirror.train", *faulty_runs.ARGUMENTS, "--gpus=1", "--epochs=1",
        f"--workdir={folder / 'run'}",
    ]  # fmt: skip
    return start(library, arguments, FILE_FAULTS_ROOT=str(folder), **variables)


def names(folder):
    """Returns the names below `folder`, without hosts and times."""
    return sorted(
        re.sub(r"tfevents\..*", "tfevents", str(path.relative_to(folder)))
        for path in folder.rglob("*")
    )


@pytest.mark.parametrize("point", [3, 20, 40])
def test_a_process_killed_at_a_call_leaves_what_the_frozen_disk_leaves(
    point, library, tmp_path
):
    killed, frozen = tmp_path / "killed", tmp_path / "frozen"
    killed.mkdir(), frozen.mkdir()
    done = train(library, killed, FILE_FAULTS_POINT=str(point))
    assert done.returncode == -9
    done = train(library, frozen, FILE_FAULTS_POINT=str(point), FILE_FAULTS_FROZEN="1")
    assert done.returncode != -9
    assert names(killed) == names(frozen)
    done = train(library, killed)
    assert done.returncode == 0, done.stderr
    assert not list(killed.rglob("*.unfinished*"))


# What strace calls what the library counts.
SYSTEM_CALLS = {
    "openat": "open", "open": "open", "creat": "open", "write": "write",
    "pwrite64": "write", "writev": "write", "sendfile": "write", "fsync": "sync",
    "fdatasync": "sync", "rename": "rename", "renameat": "rename",
    "renameat2": "rename", "link": "link", "linkat": "link", "symlink": "link",
    "unlink": "unlink", "unlinkat": "unlink", "rmdir": "unlink", "mkdir": "mkdir",
    "mkdirat": "mkdir", "ftruncate": "truncate", "truncate": "truncate",
    "copy_file_range": "write", "pwritev": "write", "pwritev2": "write",
    "fallocate": "write", "symlinkat": "link", "mknod": "open", "openat2": "open",
}  # fmt: skip


def test_the_library_counts_every_call_that_the_kernel_sees(library, tmp_path):
    tracer = shutil.which("strace")
    if not tracer:
        pytest.skip("needs strace")
    root, log, calls = tmp_path / "root", tmp_path / "log", tmp_path / "calls"
    root.mkdir()
    arguments = [
        tracer, "-f", "--seccomp-bpf", "-y", "-qq", "-s", "0", "-e",
        f"trace={','.join(SYSTEM_CALLS)}", "-o", log,
        "-E", f"LD_PRELOAD={library}", "-E", f"FILE_FAULTS_ROOT={root}",
        "-E", f"FILE_FAULTS_CALLS={calls}",
        sys.executable, "-m", "tfmirror.train", *faulty_runs.ARGUMENTS, "--gpus=1",
        "--epochs=1", f"--workdir={root / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(arguments, capture_output=True, text=True)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    counted = collections.Counter(
        line.split()[0] for line in calls.read_text().splitlines()
    )
    assert counted["write"] > 10
    assert seen_by_the_kernel(log.read_text(), root) == counted


def seen_by_the_kernel(log, root):
    """Returns the number of calls below `root` in strace's log, by their names."""
    seen = collections.Counter()
    for line in log.splitlines():
        match = re.match(r"\d+ +(\w+)\((.*)", line)
        if not match or str(root) not in match[2]:
            continue
        name, rest = match[1], match[2]
        if name.startswith("open") and not re.search(r"O_WRONLY|O_RDWR|O_CREAT", rest):
            continue
        seen[SYSTEM_CALLS[name]] += 1
    return seen
