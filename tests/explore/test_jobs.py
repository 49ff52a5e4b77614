"""What follows in the background, and the server that it is for."""

import socket
import sys
import threading
import time
from dataclasses import dataclass

import pytest
from commands import bulkedge

from bulkedge.lab.explore.jobs import Jobs, RecentResults
from bulkedge.lab.explore.room import Room
from bulkedge.support.domains import Integers, parameter
from bulkedge.support.errors import DomainError

pytest.importorskip("dash")

from bulkedge.lab.explore import app as application
from bulkedge.lab.explore.app import HOST, free_port, make_server

GO = threading.Event()


@dataclass(frozen=True)
class Slow(Room):
    """Waits."""

    name = "slow"
    size: int = parameter(Integers(0, 100), "size", 1)

    def theory(self):
        if self.size == 13:
            raise DomainError("thirteen is not known")
        return []

    def draw(self, rng):
        GO.wait(60)
        if self.size == 12:
            raise ZeroDivisionError("a fault")
        return self.size

    @property
    def draws(self):
        return 3


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.setattr("bulkedge.lab.explore.jobs.REST", 0.01)
    GO.set()
    made = Jobs(apart=False)
    yield made
    GO.set()
    made.stop()


def until(condition):
    end = time.monotonic() + 60  # a hang, not a slow machine
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_job_runs_to_its_end_and_is_remembered(jobs):
    job = jobs.of("page", Slow())
    until(lambda: job.done)
    assert (job.samples, job.problem, job.running) == ([1, 1, 1], "", False)
    assert jobs.of("page", Slow()) is job
    again = jobs.of("another page", Slow())
    assert again.samples == [1, 1, 1]


def test_other_parameters_cancel_a_job_before_its_next_draw(jobs):
    GO.clear()
    first = jobs.of("page", Slow(size=2))
    until(lambda: jobs.theories.get(Slow(size=2)) is not None)
    second = jobs.of("page", Slow(size=3))
    assert first.cancelled.is_set()
    assert not first.done  # nobody waited for the draw that is under way
    GO.set()
    until(lambda: second.done and first.done)
    assert len(first.samples) <= 1
    assert second.samples == [3, 3, 3]


def test_faults_are_told_on_the_page(jobs):
    known, fault = jobs.of("a", Slow(size=13)), jobs.of("b", Slow(size=12))
    until(lambda: known.done and fault.done)
    assert known.problem == "thirteen is not known"
    assert fault.problem == "ZeroDivisionError: a fault"
    assert "thirteen" in application.status(Slow(size=13), known, exact=True)


def test_a_stopped_job_says_how_far_it_came_and_can_begin_again(jobs):
    GO.clear()
    job = jobs.of("page", Slow(size=5))
    job.cancelled.set()
    GO.set()
    until(lambda: job.done)
    assert "Stopped after" in application.status(Slow(size=5), job, exact=True)[0]
    jobs.again("page")
    assert jobs.of("page", Slow(size=5)) is not job


def test_few_results_and_pages_are_kept(jobs):
    kept = RecentResults(2)
    for size in (1, 2, 3):
        kept.put(Slow(size=size), size)
    assert [kept.get(Slow(size=size)) for size in (1, 2, 3)] == [None, 2, 3]
    for number in range(40):
        jobs.of(str(number), Slow(size=1))
    assert len(jobs.pages) <= 32


def test_pages_cannot_ask_for_what_is_no_room():
    for bad in ({}, {"room": "heads"}, {"room": "heads", "values": {"beta": "9"}}, {"room": "x", "values": {}}):
        with pytest.raises(DomainError):
            application.room_of(bad)


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client():
    server = make_server(0, apart=False)
    yield server.app.test_client(), server.port
    server.app.config["JOBS"].stop()
    server.server_close()


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1:{}", 200), ("localhost:{}", 200), ("evil.example:{}", 403)])
def test_only_this_machine_is_answered(client, host, code):
    web, port = client
    root = web.get("/", headers={"Host": host.format(port)})
    assert (root.status_code, root.headers.get("Location")) == ((302, "/course") if code == 200 else (403, None))
    course = web.get("/course", headers={"Host": host.format(port)})
    assert course.status_code == code
    answer = web.get("/heads", headers={"Host": host.format(port)})
    assert answer.status_code == code
    if code == 200:
        assert "https://" not in course.get_data(as_text=True)
        text, policy = answer.get_data(as_text=True), answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "https://" not in text
        assert 'href="/style.css"' in text


def test_too_much_is_refused(client):
    web, port = client
    sent = web.post(
        "/_dash-update-component",
        data=b"x",
        headers={"Host": f"127.0.0.1:{port}", "Content-Length": str(10**9), "Content-Type": "application/json"},
    )
    assert sent.status_code in {400, 413}


def test_a_taken_port_gives_the_next():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    with pytest.raises(DomainError):
        make_server(70_000)


def test_without_dash_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dash", None)
    for name in [name for name in sys.modules if name.startswith("bulkedge.lab.explore.") and "app" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("bulkedge.lab.explore.app", raising=False)
    result = bulkedge("explore", "--no-browser", code=1)
    assert "pip install 'bulkedge[explore]'" in result.output
