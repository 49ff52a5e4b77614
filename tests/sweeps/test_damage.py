"""Whatever happens to the files of a sweep is noticed or harmless: no wrong number is ever shown as one of a cell."""

import random
import shutil
from contextlib import suppress

import numpy as np
import pytest
import xarray as xr
import zarr
from toys import Fragile, Labelled, Toy

from bulkedge.lab.sweeps import SerialExecutor, StoreError, Sweep, open_sweep, run

SWEEPS = {
    "ragged": Sweep(Toy(), {"size": (2, 7, 4), "kind": ("normal", "uniform")}, repetitions=2),
    "labelled": Sweep(Labelled(), {"size": (3,)}, repetitions=3),
    "failing": Sweep(Fragile(), {"rate": (1, 3, 2)}, repetitions=2),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Finished stores and their datasets."""
    found = {}
    for name, sweep in SWEEPS.items():
        folder = tmp_path_factory.mktemp(name)
        run(sweep, folder, SerialExecutor())
        found[name] = folder, open_sweep(folder).load()
    return found


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("bulkedge.lab.sweeps.read.LOOK_SECONDS", 0.0)


def flip(rng, path, _):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 3))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def truncate(rng, path, _):
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def zero(rng, path, _):
    path.write_bytes(bytes(len(path.read_bytes())))


def exchange(rng, path, files):
    path.write_bytes(rng.choice(files).read_bytes())


def digit(rng, path, _):
    """Another digit in the text of a description: the flips that parse."""
    data = bytearray(path.read_bytes())
    places = [k for k, byte in enumerate(data) if chr(byte).isalnum()]
    if places:
        data[rng.choice(places)] = ord(rng.choice("0123456789abcxyz"))
    path.write_bytes(data)


def remove(rng, path, _):
    path.unlink()


def remove_folder(rng, path, _):
    shutil.rmtree(path.parent)


FAULTS = (flip, flip, truncate, zero, exchange, digit, digit, remove, remove_folder)


def same_where_done(found, right):
    """Cells that are called done are right, and the others have no numbers."""
    for name in right.data_vars:
        if name == "status":
            continue
        if not (found.status == 1).any():  # then there are no labels of inner dimensions either
            assert name not in found or np.isnan(found[name]).all()
            continue
        shown = found[name].where(found.status == 1)
        xr.testing.assert_identical(shown.drop_attrs(), found[name].drop_attrs())
        xr.testing.assert_identical(shown.drop_attrs(), right[name].where(found.status == 1).drop_attrs())
        assert found[name].attrs == right[name].attrs
    assert not (found.data_vars.keys() - right.data_vars.keys())


def hurt(rng, folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    for _ in range(rng.choice((1, 1, 2))):
        victim = rng.choice(files)
        if victim.exists():
            rng.choice(FAULTS)(rng, victim, [path for path in files if path.exists()])


def results(folder, sweep):
    """All files but the labels of the axes, which the sweep itself has."""
    kept = (path for path in folder.rglob("*") if path.is_file() and not set(path.parts) & set(sweep.dims))
    return {path: path.read_bytes() for path in kept}


def check(whole, name, seed, tmp_path):
    source, right = whole[name]
    folder = tmp_path / str(seed)
    shutil.copytree(source, folder)
    hurt(random.Random(seed), folder)
    with suppress(StoreError):
        same_where_done(open_sweep(folder).load(), right)
    before = results(folder, SWEEPS[name])
    try:
        run(SWEEPS[name], folder, SerialExecutor())
    except StoreError:
        assert results(folder, SWEEPS[name]) == before  # a store that is refused is left alone
    else:
        xr.testing.assert_identical(open_sweep(folder).load(), right)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", SWEEPS)
def test_random_damage_is_noticed_or_harmless(whole, name, tmp_path):
    for seed in range(12):
        check(whole, name, seed, tmp_path)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("ragged", 323),  # checksums gone and a description damaged: it was refused with the checksums made anew
        ("labelled", 419),  # status gone and labels unreadable: likewise
        ("failing", 456),  # labels of an axis with another name: kept, and then refused by whoever reads
        ("ragged", 522),  # a chunk of no length: cells were forgotten before the store was refused
        ("labelled", 903),  # the length of a text, damaged: more memory than there is
        ("labelled", 385),  # longer than its labels: the sweep went on, and could not be opened
    ],
)
def test_damage_that_once_did_harm(whole, name, seed, tmp_path):
    check(whole, name, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_lot_of_random_damage_is_noticed_or_harmless(whole, name, tmp_path):
    for seed in range(12, 1012):
        check(whole, name, seed, tmp_path)


def chunks_of(folder, name):
    return sorted(path for path in (folder / "results.zarr" / name / "c").rglob("*") if path.is_file())


@pytest.fixture
def copy(whole, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(whole["ragged"][0], folder)
    return folder


def test_a_flipped_bit_is_reported_and_the_cell_computed_again(copy, whole):
    values = zarr.open_array(copy / "results.zarr" / "values", mode="r+")
    values[2, 1, 1, 0] = np.nextafter(values[2, 1, 1, 0], 1.0)
    with pytest.raises(StoreError, match=r"\(size=4, kind=uniform, repetition=1\) is not what was written"):
        open_sweep(copy)
    outcome = run(SWEEPS["ragged"], copy, SerialExecutor())
    assert (outcome.done, outcome.damaged) == (12, 1)
    xr.testing.assert_identical(open_sweep(copy).load(), whole["ragged"][1])
    assert run(SWEEPS["ragged"], copy, SerialExecutor()).damaged == 0


@pytest.mark.parametrize(("name", "cells"), [("values", 1), ("mean", 12), ("checksum", 12)])
def test_a_deleted_chunk_is_not_a_cell_of_nan(copy, whole, name, cells):
    chunks_of(copy, name)[0].unlink()
    with pytest.raises(StoreError, match="not what was written"):
        open_sweep(copy)
    assert run(SWEEPS["ragged"], copy, SerialExecutor()).damaged == cells
    xr.testing.assert_identical(open_sweep(copy).load(), whole["ragged"][1])


def test_a_store_that_lost_its_manifest_is_not_adopted(copy):
    (copy / "results.zarr" / "zarr.json").unlink()
    other = Sweep(Toy(), SWEEPS["ragged"].axes, repetitions=2, seed=1)
    for sweep in (other, SWEEPS["ragged"]):
        with pytest.raises(StoreError, match=r"has lost its zarr\.json"):
            run(sweep, copy, SerialExecutor())


def test_numbers_of_another_seed_are_not_adopted_with_another_manifest(copy, tmp_path):
    other = Sweep(Toy(), SWEEPS["ragged"].axes, repetitions=2, seed=1)
    run(other, tmp_path / "other", SerialExecutor())
    shutil.copy(tmp_path / "other" / "results.zarr" / "zarr.json", copy / "results.zarr" / "zarr.json")
    with pytest.raises(StoreError, match="not what was written"):
        open_sweep(copy)
    assert run(other, copy, SerialExecutor()).damaged == 12
    xr.testing.assert_identical(open_sweep(copy).load(), open_sweep(tmp_path / "other").load())


def test_numbers_of_a_cell_that_was_not_finished_are_not_shown(copy):
    for path in chunks_of(copy, "status"):
        path.unlink()
    data = open_sweep(copy)
    assert (data.status == 0).all()
    assert np.isnan(data["values"]).all()
    assert np.isnan(data["mean"]).all()
    assert data["values"].attrs == {"units": "one"}


def test_a_folder_that_cannot_be_read_is_not_called_damaged(copy, monkeypatch):
    def refuse(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("zarr.open_group", refuse)
    with pytest.raises(PermissionError):
        open_sweep(copy)
    with pytest.raises(PermissionError):
        run(SWEEPS["ragged"], copy, SerialExecutor())


def test_an_error_of_the_machine_is_not_called_damaged(copy, monkeypatch):
    def exhausted(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr("zarr.open_group", exhausted)
    with pytest.raises(MemoryError):
        open_sweep(copy)


def test_what_cannot_be_understood_is_refused_without_advice_to_delete_it(copy):
    path = copy / "results.zarr" / "values" / "zarr.json"
    path.write_text(path.read_text().replace('"zstd"', '"codec_of_tomorrow"'))
    for attempt in (lambda: open_sweep(copy), lambda: run(SWEEPS["ragged"], copy, SerialExecutor())):
        with pytest.raises(StoreError, match="cannot be read") as caught:
            attempt()
        assert "delete" not in str(caught.value)


def test_without_verification_opening_reads_no_numbers(copy):
    chunks_of(copy, "values")[0].write_bytes(b"nonsense")
    assert open_sweep(copy, verify=False).sizes["index"] == 7
