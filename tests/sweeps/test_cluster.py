"""A sweep on a Dask cluster: a scheduler and two workers, each a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from folders import same_files

pytest.importorskip("distributed")
TESTS = Path(__file__).parent.parent
ARGUMENTS = ["sweep", "laws/transition", "--grid", "size=100,150", "--seeds", "3", "--draws", "2", "--strengths", "5"]


def python(*arguments):
    environment = os.environ | {"PYTHONPATH": str(TESTS), "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "0"}
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
        yield json.loads(card.read_text())["address"]
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
    sweep(tmp_path / "cluster", "--cluster", cluster)
    assert same_files(tmp_path / "serial", tmp_path / "processes")
    assert same_files(tmp_path / "serial", tmp_path / "cluster")
