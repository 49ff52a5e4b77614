"""Sweeps survive SIGKILL and Ctrl-C, and leave no processes behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import same_files
from toys import Toy

from bulkedge.sweeps import SerialExecutor, Sweep, open_sweep, run

TESTS = Path(__file__).parent.parent
SWEEP = "Sweep(Toy(pause=0.05), {'rate': (0.5, 1.0, 1.5, 2.0), 'size': (3, 5)}, repetitions=25)"
SCRIPT = f"""
import sys
from toys import Toy
from bulkedge.sweeps import Sweep, local_processes, run
if __name__ == "__main__":
    run({SWEEP}, sys.argv[1], local_processes(2))
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "sweep.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(eval(SWEEP, {"Sweep": Sweep, "Toy": Toy}), folder, SerialExecutor())  # noqa: S307  # the text of the script
    return folder


def start(script, folder):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    )


def done(folder):
    return int((open_sweep(folder).status == 1).sum()) if (folder / "results.zarr" / "status").exists() else 0


def group_is_empty(group):
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def finish(script, folder):
    with start(script, folder) as process:
        assert process.wait() == 0


def test_ten_kills_at_random_moments(script, uninterrupted, tmp_path):
    rng, reached = random.Random(), []  # other moments each time
    for _ in range(10):
        with start(script, tmp_path) as process:
            before, patient = done(tmp_path), rng.random() < 0.7
            while patient and done(tmp_path) == before and process.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0.0, 0.6))
            process.kill()
        assert group_is_empty(process.pid), "workers outlived the process that started them"
        reached.append(done(tmp_path))
    assert reached == sorted(reached), "a finished cell was lost"
    assert reached[-1] > 0
    finish(script, tmp_path)
    assert same_files(uninterrupted, tmp_path)


def test_ctrl_c_keeps_what_is_finished(script, uninterrupted, tmp_path):
    with start(script, tmp_path) as process:
        while done(tmp_path) == 0:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=20) != 0
    assert done(tmp_path) > 0
    assert group_is_empty(process.pid)
    finish(script, tmp_path)
    assert same_files(uninterrupted, tmp_path)
