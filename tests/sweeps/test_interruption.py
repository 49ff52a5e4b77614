"""Sweeps survive SIGKILL and Ctrl-C, and leave no processes behind."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from folders import same_files
from toys import Toy

from bulkedge.lab.sweeps import SerialExecutor, Sweep, open_sweep, run

TESTS = Path(__file__).parent.parent
SWEEP = "Sweep(Toy(pause=0.02), {'rate': (0.5, 1.0, 1.5, 2.0), 'size': (3, 5)}, repetitions=25)"
SCRIPT = f"""
import sys
from toys import Toy
from bulkedge.lab.sweeps import Sweep, local_processes, run
if __name__ == "__main__":
    run({SWEEP}, sys.argv[1], local_processes(2))
"""
FORKS = f"""
import os, sys
from toys import Toy
from bulkedge.lab.sweeps import SerialExecutor, Sweep, run
for folder in sys.stdin:
    child = os.fork()
    if not child:
        run({SWEEP}, folder.strip(), SerialExecutor())
        os._exit(0)
    print(child, flush=True)
    print("killed" if os.waitpid(child, 0)[1] else "done", flush=True)
"""
"""Imports once, then runs the sweep in a process of its own for each folder that it is told: quick to start."""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "sweep.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    finish(folder)
    return folder


def start(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)], env=environment, stderr=subprocess.DEVNULL, text=True, **options
    )


def finish(folder):
    run(eval(SWEEP, {"Sweep": Sweep, "Toy": Toy}), folder, SerialExecutor())  # noqa: S307  # the text of the scripts


def done(folder):
    return int((open_sweep(folder).status == 1).sum()) if (folder / "results.zarr" / "status").exists() else 0


def written(folder):
    """When the record of finished cells was written last: cheaper to ask for than the cells."""
    times = [0]
    for path in (folder / "results.zarr" / "status" / "c").rglob("*"):
        with suppress(FileNotFoundError):  # replaced just now
            times.append(path.stat().st_mtime_ns)
    return max(times)


def wait_for_cells(folder, seconds=60.0):
    before, end = written(folder), time.monotonic() + seconds
    while written(folder) == before and time.monotonic() < end:
        time.sleep(0.02)


def group_is_empty(group):
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ten_kills_at_random_moments(uninterrupted, tmp_path):
    """Of the process that writes; workers have a test of their own."""
    rng, reached = random.Random(), []  # other moments each time
    with start("-c", FORKS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as forks:
        for _ in range(10):
            forks.stdin.write(f"{tmp_path}\n")
            forks.stdin.flush()
            child = int(forks.stdout.readline())
            if rng.random() < 0.7:
                wait_for_cells(tmp_path, 2.0)  # in vain if none are left
            time.sleep(rng.uniform(0.0, 0.6))
            with suppress(ProcessLookupError):  # it had finished
                os.kill(child, signal.SIGKILL)
            assert forks.stdout.readline() in {"killed\n", "done\n"}
            reached.append(done(tmp_path))
        forks.stdin.close()
    assert reached == sorted(reached), "a finished cell was lost"
    assert reached[-1] > 0
    finish(tmp_path)
    assert same_files(uninterrupted, tmp_path)


def test_a_kill_leaves_no_workers_behind(script, uninterrupted, tmp_path):
    with start(script, tmp_path, start_new_session=True) as process:
        wait_for_cells(tmp_path)
        process.kill()
    assert group_is_empty(process.pid), "workers outlived the process that started them"
    assert 0 < done(tmp_path) < 200
    with start(script, tmp_path) as process:
        assert process.wait() == 0
    assert same_files(uninterrupted, tmp_path)


@pytest.mark.always
def test_ctrl_c_keeps_what_is_finished(script, uninterrupted, tmp_path):
    with start(script, tmp_path, start_new_session=True) as process:
        wait_for_cells(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) != 0
    assert done(tmp_path) > 0
    assert group_is_empty(process.pid)
    finish(tmp_path)
    assert same_files(uninterrupted, tmp_path)
