"""A sweep on a Dask cluster: a scheduler and two workers, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import same_files

from bulkedge.lab.sweeps import open_sweep

pytest.importorskip("distributed")
TESTS = Path(__file__).parent.parent
ARGUMENTS = ["sweep", "laws/transition", "--grid", "size=100,150", "--seeds", "3", "--draws", "2", "--strengths", "5"]


def python(*arguments):
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "0",
    }
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def cluster(tmp_path):
    """The address of a running scheduler with two workers."""
    card = tmp_path / "scheduler.json"
    common = ("--scheduler-file", str(card), "--no-dashboard")
    processes = [python("-m", "dask", "scheduler", "--host", "127.0.0.1", "--port", "0", *common)]
    try:
        for _ in range(300):
            if card.exists():
                break
            time.sleep(0.1)
        processes += [python("-m", "dask", "worker", "--nthreads", "1", *common) for _ in range(2)]
        yield json.loads(card.read_text())["address"], processes[0]
    finally:
        for process in processes[::-1]:
            process.terminate()
        for process in processes:
            process.communicate()


def sweep(folder, *options):
    with python("-m", "bulkedge", *ARGUMENTS, "--out", str(folder), *options) as process:
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "6 of 6 cells done, 0 failed" in output


def test_serial_processes_and_cluster_write_the_same_bytes(cluster, tmp_path):
    sweep(tmp_path / "serial", "--workers", "1")
    sweep(tmp_path / "processes", "--workers", "2")
    sweep(tmp_path / "cluster", "--cluster", cluster[0])
    assert same_files(tmp_path / "serial", tmp_path / "processes")
    assert same_files(tmp_path / "serial", tmp_path / "cluster")


def test_a_scheduler_that_dies_is_a_message_and_what_was_finished_is_kept(cluster, tmp_path):
    address, scheduler = cluster
    arguments = ["sweep", "laws/edge", "--grid", "size=200:299:1", "--draws", "1000", "--out", str(tmp_path / "sweep")]
    with python("-m", "bulkedge", *arguments, "--cluster", address) as process:
        while not any((tmp_path / "sweep").glob("results.zarr/status/c/*/*")):
            assert process.poll() is None
            time.sleep(0.1)
        scheduler.kill()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the scheduler is gone" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert 0 < (open_sweep(tmp_path / "sweep").status == 1).sum() < 100
