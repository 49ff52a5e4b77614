"""Sweeps run to the end, whatever runs them and whatever goes wrong."""

import json
import os
import resource
import shutil
import stat
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from folders import same_files
from toys import Fragile, Labelled, Toy

from bulkedge.lab.sweeps import SerialExecutor, StoreError, Sweep, failures, local_processes, open_sweep, run

SWEEP = Sweep(Toy(), {"rate": (0.5, 1.0, 2.0), "kind": ("normal", "uniform")}, repetitions=2)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial")
    run(SWEEP, folder, SerialExecutor())
    return folder


def test_results_are_labelled_by_the_grid(serial):
    data = open_sweep(serial)
    assert data["values"].dims == ("rate", "kind", "repetition", "index")
    assert data.kind.values.tolist() == ["normal", "uniform"]
    assert data["values"].attrs["units"] == "one"
    one = data.sel(rate=2.0, kind="uniform", repetition=1)
    assert one["mean"] == one["values"].mean()
    assert bool((data.status == 1).all())
    assert data.attrs["sweep"]["study"] == "toys.Toy"


def test_a_cell_is_the_study_run_with_its_own_stream(serial):
    cell = SWEEP.cell((1, 0, 1))
    alone = cell.make_study().run(np.random.default_rng(cell.seed))
    stored = open_sweep(serial).isel(rate=1, kind=0, repetition=1)
    assert np.array_equal(stored["values"], alone["values"])


def test_two_processes_write_the_same_bytes(serial, tmp_path):
    with local_processes(2) as executor:
        run(SWEEP, tmp_path, executor)
    assert same_files(serial, tmp_path)


def test_threads_write_the_same_bytes(serial, tmp_path):
    with ThreadPoolExecutor(3) as executor:
        run(SWEEP, tmp_path, executor)
    assert same_files(serial, tmp_path)


def test_a_finished_sweep_is_not_run_again(serial):
    class Refusing(SerialExecutor):
        def submit(self, fn, /, *args, **kwargs):
            raise AssertionError("nothing is left to do")

    assert run(SWEEP, serial, Refusing()).done == SWEEP.size


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Sweep(Toy(), {"rate": (0.5, 1.0)}, 2), "axes = "),
        (Sweep(Toy(size=6), SWEEP.axes, 2), "parameters = "),
        (Sweep(Toy(), SWEEP.axes, 3), "repetitions = 2 there, 3 here"),
        (Sweep(Toy(), SWEEP.axes, 2, seed=1), "seed = 0 there, 1 here"),
    ],
)
def test_a_store_of_another_sweep_is_refused(serial, other, message):
    with pytest.raises(StoreError, match=message):
        run(other, serial, SerialExecutor())


def test_a_store_of_another_version_is_refused(serial, monkeypatch):
    monkeypatch.setattr("bulkedge.lab.sweeps.grid.__version__", "9.9")
    with pytest.raises(StoreError, match=r"bulkedge = .* there, '9.9' here"):
        run(SWEEP, serial, SerialExecutor())


def test_a_store_of_another_commit_goes_on_with_a_warning(tmp_path, monkeypatch):
    """After a reinstall: the version comes from git. Numbers stay those that were checked when they were written."""
    monkeypatch.setattr("bulkedge.lab.sweeps.grid.__version__", "0.2.dev3")
    run(SWEEP, tmp_path / "a", SerialExecutor())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    chunks = (tmp_path / "b" / "results.zarr" / "values" / "c").rglob("*")
    next(each for each in chunks if each.is_file()).unlink()  # a cell to be run again
    monkeypatch.setattr("bulkedge.lab.sweeps.grid.__version__", "0.2.dev40")
    with pytest.warns(UserWarning, match=r"begun at another commit \(bulkedge = '0.2.dev3' there, '0.2.dev40' here\)"):
        outcome = run(SWEEP, tmp_path / "b", SerialExecutor())
    assert (outcome.done, outcome.damaged) == (SWEEP.size, 1)
    assert same_files(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr("bulkedge.lab.sweeps.grid.__version__", "0.3.dev1")
    with pytest.raises(StoreError, match="bulkedge = "):
        run(SWEEP, tmp_path / "b", SerialExecutor())


def test_a_failing_cell_is_recorded_and_the_rest_goes_on(tmp_path, monkeypatch):
    sweep = Sweep(Fragile(), {"rate": (1, 2, 3)}, repetitions=2)
    outcome = run(sweep, tmp_path, SerialExecutor())
    assert (outcome.done, outcome.failed) == (4, 2)
    record = failures(tmp_path)["[2, 1]"]
    assert record["parameters"] == {"rate": 3}
    assert record["error"] == "ArithmeticError: three is too much"
    assert "toys.py" in record["traceback"]
    assert np.isnan(open_sweep(tmp_path).value.sel(rate=3)).all()

    assert run(sweep, tmp_path, SerialExecutor()).failed == 2  # not run again unless asked
    (tmp_path / "mended").touch()
    monkeypatch.setenv("TOYS_MENDED", str(tmp_path / "mended"))
    outcome = run(sweep, tmp_path, SerialExecutor(), retry_failed=True)
    assert (outcome.done, outcome.failed) == (6, 0)
    assert failures(tmp_path) == {}
    assert np.isfinite(open_sweep(tmp_path).value).all()


@pytest.mark.parametrize("seconds", [0.1, 1e9], ids=["usual batches", "large ones"])
def test_a_worker_that_dies_is_reported_and_the_finished_cells_are_kept(tmp_path, monkeypatch, seconds):
    """Those of its own batch, too: of the large ones the second has a cell that is finished and two that kill."""
    monkeypatch.setattr("bulkedge.lab.sweeps.loop.BATCH_SECONDS", seconds)
    sweep = Sweep(Fragile(), {"rate": (1, 2, 4)}, repetitions=2)
    with pytest.raises(BrokenExecutor), local_processes(1) as executor:
        run(sweep, tmp_path, executor)
    status = open_sweep(tmp_path).status
    assert (status.sel(rate=[1, 2]) == 1).all()
    assert (status.sel(rate=4) == 0).all()


class Breaking(Executor):
    """Runs the first batch, and is broken from the second on: by the submission itself, or by what it returns."""

    def __init__(self, *, at_once):
        self.at_once, self.batches = at_once, 0

    def submit(self, work, /, *arguments, **named):
        self.batches += 1
        future = Future()
        if self.batches == 1:
            future.set_result(work(*arguments, **named))
        elif self.at_once:
            raise BrokenExecutor("gone")
        else:
            future.set_exception(BrokenExecutor("gone"))
        return future


@pytest.mark.parametrize("at_once", [True, False])
def test_what_landed_beside_the_batch_that_broke_is_kept(tmp_path, at_once):
    """Whichever of the two is looked at first: in eight runs the broken one is first in some."""
    for place in range(8):
        folder = tmp_path / str(place)
        with pytest.raises(BrokenExecutor, match="gone"):
            run(Sweep(Toy(), {"rate": (1, 2)}), folder, Breaking(at_once=at_once), width=1)
        assert open_sweep(folder).status.values.ravel().tolist() == [1, 0]


def test_an_inner_dimension_without_labels_may_grow(tmp_path):
    sweep = Sweep(Toy(), {"size": (2, 7, 4)})
    run(sweep, tmp_path, SerialExecutor())
    data = open_sweep(tmp_path)
    assert data.sizes["index"] == 7
    assert np.isfinite(data["values"]).sum("index").values.ravel().tolist() == [2, 7, 4]


def test_labels_of_inner_dimensions_are_kept(tmp_path):
    run(Sweep(Labelled(), {}, 2), tmp_path, SerialExecutor())
    data = open_sweep(tmp_path)
    assert data.place.values.tolist() == [0, 1, 2]
    assert data.name.values.tolist() == ["left", "right"]


def test_labels_that_were_not_written_to_the_end_are_written_again(tmp_path):
    sweep = Sweep(Labelled(), {}, 2)
    run(sweep, tmp_path / "whole", SerialExecutor())
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "results.zarr" / "name" / "c")
    shutil.rmtree(tmp_path / "cut" / "results.zarr" / "repetition" / "c")
    shutil.rmtree(tmp_path / "cut" / "results.zarr" / "status" / "c")
    (tmp_path / "cut" / "results.zarr" / "value" / "zarr.0123.partial").touch()
    run(sweep, tmp_path / "cut", SerialExecutor())
    assert same_files(tmp_path / "whole", tmp_path / "cut")


def test_a_folder_in_use_is_refused(tmp_path):
    class Nested(SerialExecutor):
        def submit(self, fn, /, *args, **kwargs):
            with pytest.raises(StoreError, match="being written by another process"):
                run(SWEEP, tmp_path, SerialExecutor())
            return super().submit(fn, *args, **kwargs)

    assert run(SWEEP, tmp_path, Nested()).done == SWEEP.size


@pytest.mark.parametrize("victim", ["zarr.json", "status/zarr.json", "values/zarr.json", "rate/zarr.json"])
def test_a_store_that_cannot_be_read_is_refused(tmp_path, victim):
    run(SWEEP, tmp_path, SerialExecutor())
    (tmp_path / "results.zarr" / victim).write_bytes(b"\x00not what it was")
    with pytest.raises(StoreError, match="cannot be read"):
        run(SWEEP, tmp_path, SerialExecutor())


def test_cells_whose_status_is_lost_are_run_again(tmp_path, serial):
    run(SWEEP, tmp_path, SerialExecutor())
    (tmp_path / "results.zarr" / "status/c/0/0/0").write_bytes(b"\x00not what it was")
    assert run(SWEEP, tmp_path, SerialExecutor()).damaged == SWEEP.size
    assert same_files(serial, tmp_path)


def test_damaged_failures_are_refused(tmp_path):
    run(SWEEP, tmp_path, SerialExecutor())
    (tmp_path / "failures.json").write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        run(SWEEP, tmp_path, SerialExecutor())


def test_a_full_disk_stops_the_sweep_and_a_later_run_resumes(tmp_path, serial):
    """A limit on the size of files stands for a disk that is full: the kernel refuses the write in the same way."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    sweep = Sweep(Toy(size=1000), {"rate": (1.0, 2.0)})
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
        with pytest.raises(OSError, match="File too large"):
            run(sweep, tmp_path, SerialExecutor())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not (open_sweep(tmp_path).status == 1).any()
    assert run(sweep, tmp_path, SerialExecutor()).done == 2
    assert np.isfinite(open_sweep(tmp_path)["values"]).all()


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        run(SWEEP, tmp_path / "file" / "inside", SerialExecutor())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_an_os_error(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(PermissionError):
        run(SWEEP, tmp_path / "inside", SerialExecutor())


def test_there_is_no_sweep_in_an_empty_folder(tmp_path):
    with pytest.raises(StoreError, match="holds no sweep"):
        open_sweep(tmp_path)


def test_the_manifest_is_json(serial):
    found = json.loads((Path(serial) / "results.zarr" / "zarr.json").read_text())
    assert found["attributes"]["sweep"] == SWEEP.manifest()
