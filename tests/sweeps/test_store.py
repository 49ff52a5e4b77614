"""The store: cells by label, the same files whoever comes first, and nothing through symbolic links."""

import itertools
import os
import random

import numpy as np
import pytest
import xarray as xr
from folders import same_files
from toys import Described, Empty, Odd, Toy

from bulkedge.lab.sweeps import SerialExecutor, StoreError, Sweep, failures, open_sweep, run
from bulkedge.lab.sweeps.read import cell_checksum
from bulkedge.lab.sweeps.store import LARGEST_CHUNK, Store, _inner_chunks, clear_drafts


class Shuffled(SerialExecutor):
    """Runs cells at once and hands them back in another order."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def submit(self, fn, /, *args, **kwargs):
        future = super().submit(fn, *args, **kwargs)
        self.random.shuffle(future.result())  # the list that the sweep will get
        return future


class Counting(SerialExecutor):
    """Counts the cells that were run, since it was made last."""

    cells = 0

    def __init__(self):
        type(self).cells = 0

    def submit(self, fn, /, *args, **kwargs):
        type(self).cells += len(args[0])
        return super().submit(fn, *args, **kwargs)


class Backwards(Sweep):
    """The same cells, last first."""

    def indices(self):
        return reversed(list(super().indices()))

    def with_axes_in_order(self, axes):
        super().with_axes_in_order(axes)
        return self


def interrupted(sweep, folder, after):
    """Run a sweep that stops after so many batches."""

    class Stopping(SerialExecutor):
        left = after

        def submit(self, fn, /, *args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        run(sweep, folder, Stopping())


AXES = {"rate": (0.5, 1.0), "size": (2, 3, 4), "kind": ("normal", "uniform")}


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)))
def test_axes_in_another_order_are_the_same_sweep(tmp_path, order):
    whole = Sweep(Toy(), AXES, repetitions=2)
    run(whole, tmp_path / "whole", SerialExecutor())
    interrupted(whole, tmp_path / "resumed", after=3)
    other = {name: AXES[name][::-1] for name in order}
    outcome = run(Sweep(Toy(), other, repetitions=2), tmp_path / "resumed", SerialExecutor())
    assert (outcome.cells, outcome.done) == (24, 24)
    assert same_files(tmp_path / "whole", tmp_path / "resumed")


def test_axes_are_told_apart_by_name_where_their_values_agree(tmp_path):
    one = Sweep(Toy(), {"rate": (1.0, 2.0), "pause": (0.0, 0.001)})
    run(one, tmp_path, SerialExecutor())
    with pytest.raises(StoreError, match="axes = "):
        run(Sweep(Toy(), {"pause": (1.0, 2.0), "rate": (0.0, 0.001)}), tmp_path, SerialExecutor())


GROWING = Sweep(Toy(), {"size": (1, 900, 3, 40, 7)}, repetitions=2)


def test_an_array_that_grows_has_the_same_files_whoever_comes_first(tmp_path):
    run(GROWING, tmp_path / "forwards", SerialExecutor())
    run(Backwards(Toy(), GROWING.axes, 2), tmp_path / "backwards", SerialExecutor())
    assert same_files(tmp_path / "forwards", tmp_path / "backwards")
    for seed in range(3):
        run(GROWING, tmp_path / str(seed), Shuffled(seed))
        assert same_files(tmp_path / "forwards", tmp_path / str(seed))
    chunks = [path for path in (tmp_path / "forwards/results.zarr/values/c").rglob("*") if path.is_file()]
    assert len(chunks) == GROWING.size


def test_an_array_that_grows_keeps_its_numbers(tmp_path):
    run(GROWING, tmp_path, SerialExecutor())
    stored = open_sweep(tmp_path)["values"]
    for index in GROWING.indices():
        cell = GROWING.cell(index)
        alone = cell.make_study().run(np.random.default_rng(cell.seed))["values"]
        assert np.array_equal(stored.values[index][: alone.size], alone)
        assert np.isnan(stored.values[index][alone.size :]).all()


class KilledError(BaseException):
    """Stands for SIGKILL: nothing is written after it."""


@pytest.mark.parametrize("moment", ["copied", "moved away", "moved in"])
def test_a_process_killed_while_an_array_moves_loses_nothing(tmp_path, moment):
    run(GROWING, tmp_path / "whole", SerialExecutor())
    steps, dead = iter(["copied", "moved away"]), []
    rename, admit = type(tmp_path).rename, Store.admit

    def die(*_):
        dead.append(True)
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(tmp_path), "rename", lambda *each: die() if next(steps) == moment else rename(*each))
        patch.setattr("bulkedge.lab.sweeps.store.remove_folder", die)
        patch.setattr(Store, "admit", lambda *each: die() if dead else admit(*each))  # the dead do not try again
        with pytest.raises(KilledError):
            run(GROWING, tmp_path / "killed", SerialExecutor())
    assert (tmp_path / "killed" / "drafts").exists()
    outcome = run(GROWING, tmp_path / "killed", Counting())
    assert (outcome.done, outcome.damaged) == (GROWING.size, 0)
    assert Counting.cells == GROWING.size - 2, "a finished cell was lost"
    assert same_files(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("inner", [(), (0,), (1,), (1000,), (3, 1000), (5000, 5000), (10**8,)])
def test_chunks_depend_on_the_shape_alone_and_stay_small(inner):
    chunks = _inner_chunks(inner)
    assert np.prod(chunks, dtype=float) <= LARGEST_CHUNK
    whole = all(chunk >= length for chunk, length in zip(chunks, inner, strict=True))
    assert whole == (np.prod(inner, dtype=float) <= LARGEST_CHUNK)


def test_attributes_are_those_that_all_cells_share(tmp_path):
    sweep = Sweep(Described(), {"place": (0, 1, 2)})
    run(sweep, tmp_path / "one", SerialExecutor())
    run(Backwards(Described(), sweep.axes), tmp_path / "two", SerialExecutor())
    assert same_files(tmp_path / "one", tmp_path / "two")
    data = open_sweep(tmp_path / "one")
    assert data["wait"].attrs == {"units": "days"}
    assert data["wait"].values.ravel().tolist() == [1.5, 1.5, 1.5]  # numbers, not dates


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dimensions", "the variable plain has 2 dimensions here, and 1 elsewhere"),
        ("names", "the variable plain has the dimensions"),
        ("labels", "the dimension k has other labels in another cell"),
        ("no labels", "the dimension k has no labels here, and some in another cell"),
        ("axis", "the name of an axis or record: plain"),
        ("record", "the name of an axis or record: checksum"),
        ("path", "cannot be the name of a file"),
        ("huge", r"whole numbers over 2\*\*53"),
        ("text", "a sweep stores real numbers"),
        ("dates", "a sweep stores numbers and text"),
    ],
)
def test_a_cell_that_does_not_fit_has_failed_and_the_rest_goes_on(tmp_path, fault, message):
    sweep = Sweep(Odd(fault=fault), {"place": (0, 1, 2, 3)})
    outcome = run(sweep, tmp_path / fault, SerialExecutor())
    assert (outcome.done, outcome.failed) == (3, 1)
    (record,) = failures(tmp_path / fault).values()
    assert record["parameters"]["place"] == 1
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(record["error"])
    data = open_sweep(tmp_path / fault)
    assert data.status.values.ravel().tolist() == [1, 2, 1, 1]
    assert np.isfinite(data["value"].sel(place=[0, 2, 3])).all()
    assert np.isnan(data["value"].sel(place=1)).all()


def test_results_that_could_not_be_written_are_tried_again(tmp_path, monkeypatch):
    whole, calls = Store.write, itertools.count()

    def full(self, finished, failed):
        if next(calls) == 0:
            raise OSError(28, "No space left on device")
        whole(self, finished, failed)

    monkeypatch.setattr(Store, "write", full)
    with pytest.raises(OSError, match="No space"):
        run(Sweep(Toy(), {"size": (2, 3)}), tmp_path, SerialExecutor())
    assert (open_sweep(tmp_path).status == 1).sum() >= 1


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links here")
def test_nothing_is_written_through_symbolic_links(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "sweep"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".lock").symlink_to(victim)
    with pytest.raises(StoreError, match="is a symbolic link"):
        run(Sweep(Empty(), {}), folder, SerialExecutor())
    assert victim.read_text() == "precious"
    (folder / ".lock").unlink()
    (folder / ".failures.json.draft").symlink_to(victim)
    (folder / "failures.json").symlink_to(tmp_path / "missing")
    (folder / "drafts").symlink_to(tmp_path)
    run(Sweep(Odd(fault="text"), {"place": (0, 1)}), folder, SerialExecutor())
    assert victim.read_text() == "precious"
    assert len(failures(folder)) == 1
    assert not (tmp_path / "missing").exists()


def test_a_link_to_a_file_that_is_not_there_is_not_a_lock(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "missing")
    with pytest.raises(StoreError, match="is a symbolic link"):
        run(Sweep(Empty(), {}), tmp_path, SerialExecutor())
    assert not (tmp_path / "missing").exists()


def test_drafts_that_were_not_finished_are_removed(tmp_path):
    (tmp_path / "drafts" / "values.new" / "c").mkdir(parents=True)
    (tmp_path / "drafts" / "values.old").mkdir()
    (tmp_path / "results.zarr" / "values").mkdir(parents=True)
    clear_drafts(tmp_path)
    assert not (tmp_path / "drafts").exists()
    assert (tmp_path / "results.zarr" / "values").exists()


def test_a_store_of_an_older_format_is_refused(tmp_path):
    sweep = Sweep(Empty(), {})
    run(sweep, tmp_path, SerialExecutor())
    path = tmp_path / "results.zarr" / "zarr.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(StoreError, match="format"):
        run(sweep, tmp_path, SerialExecutor())
    with pytest.raises(StoreError, match="format"):
        open_sweep(tmp_path)


def test_the_checksum_sees_every_number_name_and_place():
    rng = np.random.default_rng(0)
    values = rng.random((3, 4))
    base = {"x": (("j", "k"), values)}
    seen = {cell_checksum(b"one", base)}
    for index in np.ndindex(3, 4):
        other = values.copy()
        other[index] = np.nextafter(other[index], 2.0)
        seen.add(cell_checksum(b"one", {"x": (("j", "k"), other)}))
        other[index] = np.nan
        seen.add(cell_checksum(b"one", {"x": (("j", "k"), other)}))
    seen |= {
        cell_checksum(b"two", base),
        cell_checksum(b"one", base, {"j"}),
        cell_checksum(b"one", {"y": base["x"]}),
        cell_checksum(b"one", {"x": (("k", "j"), values)}),
        cell_checksum(b"one", {"x": (("j", "k"), values.reshape(4, 3))}),
        cell_checksum(b"one", {"x": (("j", "k"), values.T)}),
        cell_checksum(b"one", {}),
    }
    assert len(seen) == 1 + 24 + 7
    padded = np.full((5, 8), np.nan)
    padded[:3, :4] = values
    assert cell_checksum(b"one", {"x": (("j", "k"), padded), "y": ((), np.array(np.nan))}) in seen


def test_a_dataset_opened_twice_is_identical(tmp_path):
    run(GROWING, tmp_path, SerialExecutor())
    xr.testing.assert_identical(open_sweep(tmp_path), open_sweep(tmp_path, verify=False))
