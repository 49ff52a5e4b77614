"""Studies in several processes: the same bytes, errors that stop no other study, and the time left."""

import json
from concurrent.futures import BrokenExecutor

import pytest
from exhibits import First, Second, Third
from folders import same_files
from listeners import Listener, on_the_page

from bulkedge.lab.gallery.run import ReproductionError, reproduce
from bulkedge.lab.studies.laws.edge import LawsEdge
from bulkedge.lab.studies.laws.transition import LawsTransition
from bulkedge.support.errors import DomainError, UnresolvedError


@pytest.mark.always
def test_several_processes_write_the_same_bytes_as_one(tmp_path):
    wanted = [Third(), LawsTransition(size=60, draws=2, strengths=5), First(failing=1), LawsEdge(size=50, draws=200)]
    one, two = tmp_path / "one", tmp_path / "two"
    results = [reproduce(wanted, folder, seed=3, workers=workers) for folder, workers in ((one, 1), (two, 2))]
    assert [each.name for each in results[1]] == [study.name() for study in wanted]
    assert [each.claims for each in results[0]] == [each.claims for each in results[1]]
    for study in wanted:
        for name in ("figure.png", "figure.pdf"):
            assert (one / study.name() / name).read_bytes() == (two / study.name() / name).read_bytes()
        assert same_files(one / study.name() / "data.zarr", two / study.name() / "data.zarr")
    assert (one / "claims.json").read_bytes() == (two / "claims.json").read_bytes()
    assert on_the_page(one) == on_the_page(two)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_that_raises_does_not_stop_the_others(tmp_path, workers):
    listener = Listener()
    wanted = [First(trouble="bug"), Second(), Third(trouble="unresolved"), LawsEdge(size=50, draws=200)]
    with pytest.raises(ReproductionError, match=r"2 of 4 studies raised: .*: a bug") as raised:
        reproduce(wanted, tmp_path, workers=workers, watcher=listener)
    assert [each.name for each in raised.value.results] == ["exhibits/second", "laws/edge"]
    assert {name: type(error) for name, error in raised.value.errors.items()} == {
        "exhibits/first": ValueError,
        "exhibits/third": UnresolvedError,
    }
    assert on_the_page(tmp_path)[0] == ["laws/edge", "exhibits/second"]
    told = [*listener.finished, *listener.failed]
    assert sorted(step.number for step, _ in told) == [1, 2, 3, 4]
    assert sorted(step.study for step, _ in listener.failed) == ["exhibits/first", "exhibits/third"]
    note = "while running bulkedge reproduce exhibits/third --trouble unresolved --seed 0"
    assert raised.value.errors["exhibits/third"].__notes__ == [note]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("workers", [1, 2])
def test_warnings_of_a_study_are_told_once_by_its_name(tmp_path, workers, capfd):
    listener = Listener()
    reproduce([First(trouble="warning"), Second()], tmp_path, workers=workers, watcher=listener)
    assert listener.complaints == ["exhibits/first warned: RegimeWarning: on thin ice"]
    assert "thin ice" not in capfd.readouterr().err


def test_the_time_left_is_shared_by_the_processes(tmp_path):
    wanted = (First(), Second(), Third())
    reproduce(wanted, tmp_path)
    for study, seconds in zip(wanted, (1000.0, 4000.0, 3000.0), strict=True):
        path = tmp_path / study.name() / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": seconds}))
    listener = Listener()
    reproduce(wanted, tmp_path, again=True, workers=2, watcher=listener)
    assert [step.study for step in listener.begun[:2]] == ["exhibits/second", "exhibits/third"]  # the longest first
    assert listener.begun[0].left == 4000.0
    assert [step.at_once for step in listener.begun[:2]] == [1, 2]
    assert [step.number for step, _ in listener.finished] == [1, 2, 3]
    assert listener.finished[-1][0].left == 0


def test_a_worker_that_is_killed_is_told(tmp_path):
    with pytest.raises(BrokenExecutor):
        reproduce([First(trouble="die"), Second(trouble="die")], tmp_path, workers=2)


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_workers_that_are_none(tmp_path, workers):
    with pytest.raises(DomainError, match="workers = "):
        reproduce([First()], tmp_path, workers=workers)
