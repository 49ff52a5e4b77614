"""The gallery: what a folder keeps, what is run again, and what survives an interruption."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import xarray as xr
from exhibits import RUNS, Exhibit, Extreme, First, Second, Third
from listeners import Listener, on_the_page

import bulkedge.version
from bulkedge.cli import main
from bulkedge.lab.gallery import folder, read
from bulkedge.lab.gallery.folder import Gallery
from bulkedge.lab.gallery.run import command_for, origin_of, reproduce
from bulkedge.lab.studies.base import studies
from bulkedge.lab.studies.laws.edge import LawsEdge
from bulkedge.support.errors import DomainError, StoreError
from bulkedge.support.files import lock_folder, seal, to_json, unseal

TESTS = Path(__file__).parent


def runs(*exhibits, folder, **options):
    """How often each study was run in one call; the results; and what was told."""
    listener, before = Listener(), RUNS.copy()
    results = reproduce(exhibits, folder, watcher=listener, **options)
    return [RUNS[each.name()] - before[each.name()] for each in exhibits], results, listener


# -- what is kept, what is run -----------------------------------------------------------------------------------------


def test_a_single_study_joins_those_that_are_there(tmp_path):
    reproduce([First(), Third(failing=2)], tmp_path)
    assert on_the_page(tmp_path) == (
        ["exhibits/first", "exhibits/third"],
        ["holds"] * 5 + ["fails"] * 2 + ["holds"] * 3,
    )
    results = reproduce([Second()], tmp_path)
    assert [each.name for each in results] == ["exhibits/second"]
    names, verdicts = on_the_page(tmp_path)
    assert names == ["exhibits/first", "exhibits/second", "exhibits/third"]
    assert verdicts == ["holds"] * 10 + ["fails"] * 2 + ["holds"] * 3


def test_the_page_is_named_after_its_study_or_after_all_of_them(tmp_path):
    reproduce([First()], tmp_path)
    assert "<title>bulkedge: exhibits/first</title>" in (tmp_path / "index.html").read_text()
    reproduce([Second()], tmp_path)
    assert "<title>bulkedge: reproduced claims</title>" in (tmp_path / "index.html").read_text()


def test_the_order_on_the_page_is_that_of_the_names_not_of_the_runs(tmp_path):
    for study in (Third(), First(), Second()):
        reproduce([study], tmp_path)
    assert on_the_page(tmp_path)[0] == ["exhibits/first", "exhibits/second", "exhibits/third"]


def test_what_is_there_is_kept_and_is_what_was_run(tmp_path):
    ran, first, _ = runs(First(failing=1), Second(), folder=tmp_path, seed=4)
    assert ran == [1, 1]
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ran, second, listener = runs(First(failing=1), Second(), folder=tmp_path, seed=4)
    assert ran == [0, 0]
    assert second == first
    assert [step.kept for step, _ in listener.finished] == [True, True]
    assert listener.begun == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"study": First(size=6)}, "parameters"),
        ({"study": First(rates=(1.0, float("inf")))}, "parameters"),
        ({"seed": 1}, "seed"),
        ({"version": "9.9"}, "version"),
        ({"sources": "other"}, "sources"),
    ],
)
def test_what_is_of_another_origin_is_run_again(tmp_path, monkeypatch, change, differs):
    reproduce([First(), Second()], tmp_path)
    if "version" in change:
        monkeypatch.setattr("bulkedge.lab.gallery.run.__version__", change["version"])
    if "sources" in change:
        monkeypatch.setattr("bulkedge.lab.gallery.run.sources", lambda: change["sources"])
    study, seed = change.get("study", First()), change.get("seed", 0)
    ran, (result,), listener = runs(study, folder=tmp_path, seed=seed)
    assert ran == [1]
    assert listener.begun[0].replaces == (differs,)
    assert (result.origin.seed, result.origin.parameters["size"]) == (seed, study.size)
    assert read(tmp_path / First.name(), First.name()) == result
    assert runs(study, folder=tmp_path, seed=seed)[0] == [0]
    # the other study was not touched; and the way back is a change too
    assert runs(First(), Second(), folder=tmp_path)[0] == ([0, 1] if differs in {"version", "sources"} else [1, 0])


def test_again_runs_also_what_is_there(tmp_path):
    reproduce([First()], tmp_path)
    assert runs(First(), folder=tmp_path, again=True)[0] == [1]


def test_the_sources_tell_an_edited_package_from_the_released_one(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "laws.py").write_text("first = 1\n")
    monkeypatch.setattr(folder, "__file__", str(package / "lab" / "gallery" / "folder.py"))
    digest = folder.sources.__wrapped__
    before = digest()
    assert digest() == before
    (package / "laws.py").write_text("first = 2\n")
    assert digest() != before


def test_results_of_other_code_say_so_on_the_page(tmp_path, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("bulkedge.lab.gallery.run.__version__", "0.0.1")
        reproduce([First()], tmp_path)
    with monkeypatch.context() as edited:
        edited.setattr("bulkedge.lab.gallery.run.sources", lambda: "other")
        reproduce([Second()], tmp_path)
    reproduce([Third()], tmp_path)
    page = (tmp_path / "index.html").read_text()
    made_by = re.findall(r'<p class="outdated">Made by (.*?)\.</p>', page)
    assert made_by == ["version 0.0.1", f"other sources of version {bulkedge.version.__version__}"]
    assert "2 of 3 studies were made by other code" in page
    assert [claim["version"] for claim in json.loads((tmp_path / "claims.json").read_text())][::5] == [
        "0.0.1",
        bulkedge.version.__version__,
        bulkedge.version.__version__,
    ]
    reproduce([First(), Second()], tmp_path)
    assert "outdated" not in (tmp_path / "index.html").read_text().split("</style>")[1]


def test_the_page_links_a_scan_that_lies_beside_it(tmp_path):
    reproduce([First()], tmp_path)
    assert "scan.html" not in (tmp_path / "index.html").read_text()
    (tmp_path / "scan.html").write_text("a page")
    reproduce([First()], tmp_path)  # which is kept
    assert '<a href="scan.html">' in (tmp_path / "index.html").read_text()
    assert (tmp_path / "scan.html").read_text() == "a page"


def test_the_page_names_all_seeds(tmp_path):
    reproduce([First()], tmp_path, seed=3)
    assert "seed 3." in (tmp_path / "index.html").read_text()
    reproduce([Second()], tmp_path, seed=1)
    assert "seeds 1, 3." in (tmp_path / "index.html").read_text()
    assert [claim["seed"] for claim in json.loads((tmp_path / "claims.json").read_text())] == [3] * 5 + [1] * 5


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
def test_seeds_that_are_none(tmp_path, seed):
    with pytest.raises(DomainError, match="seed = "):
        reproduce([First()], tmp_path, seed=seed)


def test_a_claim_survives_its_record_whatever_its_numbers(tmp_path):
    (first,) = reproduce([Extreme()], tmp_path)
    (kept,) = reproduce([Extreme()], tmp_path)
    assert [claim.verdict for claim in kept.claims] == [claim.verdict for claim in first.claims]
    assert repr(kept) == repr(first)
    json.loads((tmp_path / Extreme.name() / "record.json").read_text(), parse_constant=pytest.fail)
    json.loads((tmp_path / "claims.json").read_text(), parse_constant=pytest.fail)


def test_an_origin_tells_numbers_that_json_has_not():
    assert origin_of(First(rates=(1.0, float("inf"))), 2).parameters["rates"] == [1.0, "inf"]


def test_files_that_others_laid_into_a_study_stay(tmp_path):
    reproduce([First()], tmp_path)
    (tmp_path / First.name() / "notes.txt").write_text("mine")
    assert runs(First(), folder=tmp_path)[0] == [0]
    assert runs(First(), folder=tmp_path, seed=1)[0] == [1]
    assert (tmp_path / First.name() / "notes.txt").read_text() == "mine"


def test_a_second_process_is_kept_out(tmp_path):
    with lock_folder(tmp_path), pytest.raises(StoreError, match="written by another process"):
        reproduce([First()], tmp_path)


# -- the time left -----------------------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_earlier_runs_or_the_average_of_this_one(tmp_path):
    studies_, names = (First(), Second(), Third()), [each.name() for each in (First, Second, Third)]
    _, _, listener = runs(*studies_, folder=tmp_path)
    assert [(step.number, step.total, step.study) for step in listener.begun] == [
        (k + 1, 3, names[k]) for k in range(3)
    ]
    assert listener.begun[0].left is None
    (_, one), (second, two), (last, _) = listener.finished
    assert listener.begun[1].left == 2 * one.seconds
    assert second.left == (one.seconds + two.seconds) / 2
    assert last.left == 0
    for name, seconds in zip(names, (10.0, 200.0, 3000.0), strict=True):
        seal(tmp_path / name, "record.json", unseal(tmp_path / name, "record.json") | {"seconds": seconds})
    _, _, listener = runs(*studies_, folder=tmp_path, again=True)
    assert [step.left for step in listener.begun] == [3210.0, 3200.0, 3000.0]
    assert [step.left for step, _ in listener.finished] == [3200.0, 3000.0, 0]
    _, _, listener = runs(*studies_, folder=tmp_path)
    assert [step.left for step, _ in listener.finished] == [0, 0, 0]


# -- damage ------------------------------------------------------------------------------------------------------------


OLDER = {
    "statement": "mean",
    "place": "here",
    "predicted": 0.0,
    "measured": 1.0,
    "error": 0.1,
    "tolerance": 0.5,
    "reason": "half",
    "relation": "=",
    "holds": False,
}
"""A claim as records had it before claims had rivals."""


def damage(folder, how):
    """Damage the result of a study in one way."""
    record = folder / "record.json"
    content = json.loads(record.read_text())
    if how.startswith("without "):
        path = folder / how.removeprefix("without ")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    elif how.startswith("record without "):
        del content[how.removeprefix("record without ")]
        record.write_text(json.dumps(content))
    else:
        path, text = {
            "cut": (record, record.read_text()[:100]),
            "empty": (record, ""),
            "a list": (record, "[1]"),
            "claims are text": (record, json.dumps(content | {"claims": ["a"]})),
            "claims of an older version": (record, json.dumps(content | {"claims": [OLDER]})),
            "seed is text": (record, json.dumps(content | {"seed": "x"})),
            "another study": (record, json.dumps(content | {"study": "exhibits/second"})),
            "figure": (folder / "figure.png", "not a figure"),
            "data": (next((folder / "data.zarr" / "values").rglob("0")), "not data"),
        }[how]
        path.write_text(text)


@pytest.mark.parametrize(
    "how",
    [
        *(
            f"without {name}"
            for name in ("record.json", "figure.png", "figure.pdf", "data.zarr", "data.zarr/zarr.json")
        ),
        *(f"record without {key}" for key in ("study", "claims", "chosen", "bulkedge_checksum")),
        "claims of an older version",
        *("cut", "empty", "a list", "claims are text", "seed is text", "another study", "figure", "data"),
    ],
)
def test_a_damaged_result_is_reported_left_out_and_run_again(tmp_path, how):
    (before,) = reproduce([First()], tmp_path)
    damage(tmp_path / First.name(), how)
    _, _, listener = runs(Second(), folder=tmp_path)
    (complaint,) = listener.complaints
    assert complaint.startswith(f"exhibits/first in {tmp_path} is damaged (")
    assert complaint.endswith("it is left out of the page until it is run again")
    assert on_the_page(tmp_path)[0] == ["exhibits/second"]
    ran, (after,), listener = runs(First(), folder=tmp_path)
    assert ran == [1]
    assert listener.complaints[0].endswith("it is run again")
    assert after.claims == before.claims
    assert on_the_page(tmp_path)[0] == ["exhibits/first", "exhibits/second"]
    assert runs(First(), folder=tmp_path)[2].complaints == []


# -- interruptions -----------------------------------------------------------------------------------------------------

STEPS = """
import os, shutil, sys
from pathlib import Path
import xarray as xr
from exhibits import First, Second
from bulkedge.lab.gallery.run import reproduce

STEPS = [(Path, "rename"), (Path, "write_bytes"), (Path, "write_text"), (os, "replace"), (shutil, "rmtree"),
         (xr.Dataset, "to_zarr")]

def stop_after(left):
    for owner, name in STEPS:
        def step(*arguments, original=getattr(owner, name), **options):
            nonlocal left
            if left == 0:
                os._exit(1)
            left -= 1
            return original(*arguments, **options)
        setattr(owner, name, step)

for line in sys.stdin:
    steps, folder = line.split(maxsplit=1)
    child = os.fork()
    if not child:
        stop_after(int(steps))
        reproduce([First(), Second()], folder.strip())
        os._exit(0)
    print("stopped" if os.waitpid(child, 0)[1] else "finished", flush=True)
"""
"""Reproduces two studies in a process of its own for each folder it is told, and ends it after so many steps on disk.

The process must end: whoever only raises an exception leaves the threads behind on which Zarr writes.
"""


@pytest.mark.processes
def test_stopped_at_any_step_a_run_loses_no_result_that_was_there_and_goes_on(tmp_path):
    """After each number of steps: the old result or the new one, never neither, and the next run mends the rest."""
    wanted = [First(), Second()]
    template, undisturbed = tmp_path / "template", tmp_path / "undisturbed"
    old = reproduce([First()], template, seed=9)[0]
    expected = [each.claims for each in reproduce(wanted, undisturbed)]
    with subprocess.Popen(
        [sys.executable, "-c", STEPS], cwd=TESTS, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        for steps in range(100):
            folder = tmp_path / f"after-{steps}"
            shutil.copytree(template, folder)
            process.stdin.write(f"{steps} {folder}\n")
            process.stdin.flush()
            end = process.stdout.readline().strip()
            assert end in ("stopped", "finished")
            found = Gallery.opened(folder)
            assert found.damaged == {}
            assert found.results["exhibits/first"].claims in (old.claims, expected[0])
            new = {name for name, result in found.results.items() if result.origin.seed == 0}
            ran, results, listener = runs(*wanted, folder=folder)
            assert ran == [int(study.name() not in new) for study in wanted]
            assert [each.claims for each in results] == expected
            assert listener.complaints == []
            assert on_the_page(folder)[0] == ["exhibits/first", "exhibits/second"]
            assert [path for path in folder.rglob(".*") if path.name != ".lock"] == []
            if end == "finished":
                break
        process.stdin.close()
    assert end == "finished"
    assert steps > 20


SCRIPT = """
import sys, time
import bulkedge.lab.studies.base
from exhibits import First, Sleeper
from bulkedge.cli import main

if __name__ == "__main__":
    bulkedge.lab.studies.base.studies = lambda: {each.name(): each for each in (First, Sleeper)}
    main(["reproduce", "--out", sys.argv[1], "--workers", sys.argv[2]])
"""


@pytest.mark.parametrize(
    ("signal_", "code", "workers"),
    [(signal.SIGKILL, -signal.SIGKILL, 2), (signal.SIGINT, 130, 1), (signal.SIGINT, 130, 2)],
)
def test_a_stopped_process_leaves_what_it_finished(tmp_path, signal_, code, workers):
    """And no process behind: the pipe would stay open, and the test would wait for it until it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(workers)], env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while not (tmp_path / "index.html").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal_)
    _, told = process.communicate(timeout=30)
    assert process.returncode == code
    assert ("the same command goes on from there" in told) == (signal_ == signal.SIGINT)
    assert on_the_page(tmp_path)[0] == ["exhibits/first"]
    assert runs(First(), Second(), folder=tmp_path)[0] == [0, 1]


# -- the dataset, the command and the page -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    reproduce([LawsEdge(size=50, draws=200)], folder, seed=3)
    reproduce([Third(failing=1)], folder)
    return folder


def test_the_dataset_comes_back(gallery):
    data = xr.open_zarr(gallery / "laws" / "edge" / "data.zarr", consolidated=False)
    assert (data.attrs["study"], data.attrs["seed"]) == ("laws/edge", 3)
    assert float(data["mean"]) == float(LawsEdge(size=50, draws=200).simulate(3)["mean"])


def test_the_command_is_the_one_that_was_run():
    assert command_for(LawsEdge(size=50, level=0.1), 3) == "bulkedge reproduce laws/edge --size 50 --level 0.1 --seed 3"
    command = command_for(Exhibit(kind="two words", rates=(0.5, float("inf"))), 0)
    assert command == "bulkedge reproduce exhibits/exhibit --rates 0.5,inf --kind 'two words' --seed 0"


@pytest.mark.parametrize("name", studies())
def test_the_command_of_a_study_is_read_back_as_the_study(name):
    study = studies()[name].preset("paper")
    _, command, *arguments = shlex.split(command_for(study, 7))
    with main.commands[command].make_context(command, arguments) as context:
        given = {key: context.params[key] for key in study.parameters() if context.params[key] is not None}
        assert type(study)(**given) == study
        assert context.params["seed"] == 7


def test_json_that_has_to_come_back():
    assert json.loads(to_json({"a": (float("nan"), float("-inf"), 1.5, True)}, exact=True)) == {
        "a": ["nan", "-inf", 1.5, True]
    }
    assert json.loads(to_json([float("nan"), float("inf")])) == [None, None]
