"""Every result on the disk is whole or not there, whatever ends its writer; damage to any of its files is refused."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from toys import Fragile

from bulkedge.lab.gallery.folder import Gallery, Origin, Reproduction, read
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.sweeps import SerialExecutor, Sweep, open_sweep, run
from bulkedge.models import load_scan
from bulkedge.models.scanning.results import Scan
from bulkedge.support.errors import StoreError
from bulkedge.support.estimates import Estimate
from bulkedge.support.files import remove_folder, replace_file

ROOT = Path(__file__).parent.parent
DATA = xr.Dataset(
    {
        "kind": ("item", np.array(["sink", "local head"])),
        "spectrum": (("item", "level"), np.array([[0.0, np.nan], [2.0, 3.0]])),
        "beta": ("item", np.array([0.0, 1.5])),
    },
    coords={"level": [0.25, 0.5], "module": ("item", np.array(["h.0", "h.1"]))},
    attrs={"model": "toy"},
)
SWEEP = Sweep(Fragile(), {"rate": (1, 3)}, repetitions=2)


def write_gallery(place, seconds=1.0):
    claim = Claim("mean", "ours", Estimate(0.1, 1.0), 0.0, Rival("far", float("inf")))
    origin = Origin("paper/figure", {"size": 3}, 0, "1", "x")
    result = Reproduction(origin, "shows", "bulkedge", seconds, 3, 4, (claim,), {"size": "ours"})
    Gallery.opened(place).add(result, DATA, b"an image", b"a document")


def read_gallery(place):
    whole = read(place / "paper" / "figure", "paper/figure")
    data = xr.open_zarr(place / "paper" / "figure" / "data.zarr", consolidated=False)
    return [[repr(whole), float(data.beta.sum())]]


def write_watch(place):
    from bulkedge.models import Watch

    Watch.save(SimpleNamespace(data=DATA, alarms=(), _log=SimpleNamespace(declared=())), place)


def read_watch(place):
    from bulkedge.models import load_watch

    return [load_watch(place).to_dict()]


def read_sweep(place):
    data = open_sweep(place).load()
    return [[tuple(i), float(data.value.values[tuple(i)])] for i in np.argwhere(data.status.values == 1)]


WRITERS = {
    "file": (lambda place: replace_file(place, "text of a page" * 1000), lambda place: [place.read_text()]),
    "scan": (lambda place: Scan(DATA).save(place), lambda place: [load_scan(place).data.to_dict()]),
    "watch": (write_watch, read_watch),
    "gallery": (write_gallery, read_gallery),
    "sweep": (lambda place: run(SWEEP, place, SerialExecutor()), read_sweep),
}
"""Who writes results, and who reads them back."""
CHECKED = ["scan", "watch", "gallery"]
"""Those that are refused when a file was damaged; sweeps run damaged cells again, see sweeps/test_damage.py."""


def needs(name):
    if name == "watch":
        pytest.importorskip("torch")


def seen(name, place):
    """What a reader finds in a place, as a set of texts; what is not there yet is nothing."""
    there = place / "paper" / "figure" if name == "gallery" else place
    # before its first cell a sweep may say that it has none; the others must not be damaged
    try:
        return {json.dumps(each, sort_keys=True) for each in WRITERS[name][1](place)} if there.exists() else set()
    except StoreError:
        assert name == "sweep"
        return set()


# -- whatever ends the writer ------------------------------------------------------------------------------------------

KILLER = """
import os, sys
from pathlib import Path
from test_files import WRITERS, needs

CHANGES, WRITING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir"), os.O_WRONLY | os.O_RDWR | os.O_CREAT
for line in sys.stdin:
    name, steps, place = line.split()
    needs(name)
    child = os.fork()
    if not child:
        done = 0
        def step(event, arguments):
            global done
            if event in CHANGES or event == "open" and (arguments[2] or 0) & WRITING:
                if done == int(steps):
                    os._exit(1)
                done += 1
        sys.addaudithook(step)
        WRITERS[name][0](Path(place))
        os.write(1, f"{done}\\n".encode())
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("killed", flush=True)
"""
"""Ends a writer before its n-th change to the disk: a process, as an exception would leave Zarr's threads behind."""


@pytest.fixture(scope="module")
def killer():
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", KILLER],
        cwd=Path(__file__).parent,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:

        def kill(name, steps, place):
            process.stdin.write(f"{name} {steps} {place}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        yield kill
        process.stdin.close()


def stop_everywhere(killer, name, folder, most):
    """Kill a writer before some of its changes, and read and write afterwards."""
    needs(name)
    write, whole = WRITERS[name][0], folder / "whole"
    changes = int(killer(name, 10**6, whole))
    assert changes > 1
    # the last steps are those at which a draft takes its place
    for step in sorted({*range(0, changes, -(-changes // most)), *range(max(changes - most, 0), changes)}):
        place = folder / str(step)
        assert killer(name, step, place) == "killed"
        found = seen(name, place)
        assert found <= seen(name, whole)
        if not found or name not in ("scan", "watch"):  # which never replace one
            write(place)
        assert seen(name, place) == seen(name, whole)
        assert [path for path in folder.rglob(".*") if path.name != ".lock"] == []


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["file", "scan", "gallery"])
def test_a_writer_that_is_killed_leaves_all_or_nothing(killer, tmp_path, name):
    """And the next call finds nothing in its way."""
    stop_everywhere(killer, name, tmp_path, most=4)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_is_killed_at_any_step_leaves_all_or_nothing(killer, tmp_path, name):
    """A sweep leaves whole cells."""
    stop_everywhere(killer, name, tmp_path, most=1000)


# -- damage ------------------------------------------------------------------------------------------------------------

DAMAGES = {
    "removed": lambda path, _: path.unlink(),
    "cut": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "empty": lambda path, _: path.write_bytes(b""),
    "zeros": lambda path, data: path.write_bytes(bytes(len(data))),
    "flipped": lambda path, data: path.write_bytes(data[:5] + bytes([data[5] ^ 1]) + data[6:]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_damage_to_any_file_is_refused(tmp_path, name):
    needs(name)
    place = tmp_path / "whole"
    WRITERS[name][0](place)
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        for damage in DAMAGES.values():
            damage(path, data)
            with pytest.raises(StoreError, match=r"missing|not those that were written|not readable|no checksum"):
                WRITERS[name][1](place)
            path.write_bytes(data)
    assert seen(name, place)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("name", CHECKED)
def test_a_pipe_in_the_place_of_any_file_is_refused_and_not_waited_for(tmp_path, name):
    needs(name)
    place = tmp_path / "whole"
    WRITERS[name][0](place)
    added = [place / "added"] * (name != "gallery")  # which checks the files that it wrote
    for path in [each for each in place.rglob("*") if each.is_file()] + added:
        data = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(StoreError, match="missing"):
            WRITERS[name][1](place)
        path.unlink()
        if data is not None:
            path.write_bytes(data)
    assert seen(name, place)


@pytest.mark.parametrize("name", ["scan", "watch"])
def test_what_was_never_written_is_refused_with_the_remedy(tmp_path, name):
    needs(name)
    DATA[["beta"]].drop_vars("module").to_zarr(tmp_path / "plain", zarr_format=3, consolidated=False)
    for place in (tmp_path, tmp_path / "nothing", tmp_path / "plain"):
        with pytest.raises(StoreError, match=r"is not .* wrote \(.*\); save it again, or put it back"):
            WRITERS[name][1](place)
    with pytest.raises(StoreError, match="there already"):
        WRITERS[name][0](tmp_path)


WRITES = re.compile(r"\.(write_(text|bytes)|to_(zarr|netcdf|file))\(|\b(np|torch)\.save|open\([^)]*\"[wxa]b?\+?\"")
KNOWN = {
    "src/bulkedge/support/files.py",
    "src/bulkedge/lab/sweeps/loop.py",  # notes of a worker, in a folder of their own
    "src/bulkedge/lab/matrix_files.py",  # what users are told to write
    "tools/mutants.py",  # changes the sources, and back
    "tools/explore_tables.py",  # goes on from its drafts
    "tools/explore_pictures.py",  # a stream
    "benchmarks/watch_alarms.py",  # likewise
    "benchmarks/trainability_gpu.py",  # appends lines
    "benchmarks/decoder.py",  # weights, by torch: into a draft that takes the old one's place
}


def test_nobody_writes_past_this_layer():
    paths = (each for folder in ("src", "tools", "benchmarks") for each in (ROOT / folder).rglob("*.py"))
    assert {path.relative_to(ROOT).as_posix() for path in paths if WRITES.search(path.read_text())} == KNOWN


# -- folders that are removed while threads of an interrupted call still write into them -------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_folder_is_removed_while_files_come_and_go_in_it(tmp_path, seed):
    folder = tmp_path / "draft" / "data"
    folder.mkdir(parents=True)
    for number in range(200):
        (folder / f"{number}.partial").touch()

    def finish():
        for number in range(seed, 200):
            try:
                (folder / f"{number}.partial").rename(folder / f"{number}")
            except FileNotFoundError:
                continue

    writer = threading.Thread(target=finish)
    writer.start()
    remove_folder(folder.parent)
    writer.join()
    assert not folder.parent.exists()


def test_what_is_not_there_is_no_fault_and_what_is_no_folder_is(tmp_path):
    remove_folder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        remove_folder(tmp_path / "file")
