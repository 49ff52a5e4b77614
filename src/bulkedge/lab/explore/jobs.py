"""What follows a slider in the background: the law itself where a table was drawn first, then simulations.

A page has one job at a time. Another choice of parameters cancels it before the next draw, and nothing that a page asks
for waits for it: laws and draws are computed in another process, at a lower priority.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any, Generic, NamedTuple, TypeVar

from bulkedge.lab.explore.room import SEEDS, Room, Trace
from bulkedge.lab.sweeps import local_processes, stop
from bulkedge.support.errors import BulkedgeError, RegimeWarning, UnresolvedError

REST = 0.25  # seconds that parameters rest before anything is computed for them: nothing is, while a slider moves
MOST_PAGES = 32
DRAWS = "draws"  # the bench of laws and simulations
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
WARNINGS_LOCK = Lock()


class Theory(NamedTuple):
    """What theory says, where it says of itself that it ends, and numbers that need no simulation."""

    curves: list[Trace]
    cautions: tuple[str, ...]
    facts: dict[str, str]


class RecentResults(Generic[Key, Value]):
    """The last few results, by what they are of."""

    def __init__(self, most: int = 64) -> None:
        self.most, self.lock = most, Lock()
        self.found: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """What is known of something."""
        with self.lock:
            if key in self.found:
                self.found.move_to_end(key)
            return self.found.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a result, and forget the oldest."""
        with self.lock:
            self.found[key] = value
            while len(self.found) > self.most:
                self.found.popitem(last=False)


@dataclass(eq=False)
class PageJob:
    """What is computed for one room, and how far it is."""

    room: Room
    seed: int = 0  # of the first simulation; the others have the next
    samples: list[Any] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    steps: int = 0  # grows with every result, so that a page knows whether there is something new
    done: bool = False
    cancelled: Event = field(default_factory=Event)

    @property
    def running(self) -> bool:
        """Whether results may still come."""
        return not self.done and not self.cancelled.is_set()


class Jobs:
    """Jobs of all open pages."""

    def __init__(self, *, apart: bool = True) -> None:
        self.threads = ThreadPoolExecutor(8, thread_name_prefix="explore")
        self.apart = apart
        self.benches: dict[str, Executor] = {DRAWS: self._start_bench()}
        self.pages: OrderedDict[str, PageJob] = OrderedDict()
        self.unfinished: set[PageJob] = set()  # also those that no page has any more
        self.lock = Lock()
        self.theories: RecentResults[Room, Theory] = RecentResults()
        self.samples: RecentResults[tuple[Room, int], tuple[list[Any], dict[str, str]]] = RecentResults()

    def _start_bench(self) -> Executor:
        if not self.apart:
            return ThreadPoolExecutor(1)
        work = local_processes(1)
        if hasattr(os, "nice"):  # slower than what is looked at; the process starts while the browser opens
            work.submit(os.nice, 10)
        return work

    def of(self, page: str, room: Room, seed: int = 0) -> PageJob:
        """The job of a page; a new one, if its parameters have changed."""
        with self.lock:
            job = self.pages.get(page)
            if job is not None:
                if (job.room, job.seed) == (room, seed):
                    return job
                job.cancelled.set()
            samples, facts = self.samples.get((room, seed)) or ([], {})
            job = self.pages[page] = PageJob(room, seed, list(samples), facts)
            self.pages.move_to_end(page)
            while len(self.pages) > MOST_PAGES:
                self.pages.popitem(last=False)[1].cancelled.set()
            self.unfinished.add(job)
        self.threads.submit(self._follow, job)
        return job

    def compute(self, work: Callable[..., Value], *arguments: Any, bench: str = DRAWS) -> Value:
        """Compute something apart, and wait for it."""
        with self.lock:
            at = self.benches.get(bench) or self._start_bench()
            self.benches[bench] = at
        try:
            return at.submit(work, *arguments).result()
        except BrokenExecutor as error:
            with self.lock:
                if self.benches[bench] is at:  # of several that wait only one starts another
                    self.benches[bench] = self._start_bench()
            raise UnresolvedError(
                "the process that computes has ended, perhaps for want of memory; another one is started"
            ) from error

    def again(self, page: str) -> int | None:
        """Forget the job of a page: it goes on where it was stopped, or has other draws if it was done."""
        with self.lock:
            job = self.pages.pop(page, None)
            if job is None:
                return None
            job.cancelled.set()
            whole = len(job.samples) >= job.room.draws
            return (job.seed + job.room.draws) % SEEDS.high if whole else job.seed

    def stop(self) -> None:
        """Cancel everything."""
        with self.lock:
            for job in self.unfinished:
                job.cancelled.set()
            benches = list(self.benches.values())
        for each in benches:
            stop(each, wait=False)
        self.threads.shutdown(wait=False, cancel_futures=True)

    def theory(self, room: Room) -> Theory:
        """The theory of a room, computed once."""
        found = self.theories.get(room) or theory_of(room)
        self.theories.put(room, found)
        return found

    def _follow(self, job: PageJob) -> None:
        """Ask the process for one thing after another, until all is there or nobody wants it."""
        try:
            if job.cancelled.wait(REST):
                return
            if self.theories.get(job.room) is None:
                self.theories.put(job.room, self.compute(theory_of, job.room))
            job.steps += 1
            while len(job.samples) < job.room.draws and not job.cancelled.is_set():
                drawn, job.facts = self.compute(_draw, job.room, job.seed, list(job.samples))
                job.samples.append(drawn)
                job.steps += 1
            self.samples.put((job.room, job.seed), (list(job.samples), job.facts))
        except CancelledError:
            pass
        except BulkedgeError as error:
            job.problem = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of a room is shown on its page
            job.problem = f"{type(error).__name__}: {error}"
        finally:
            job.steps += 1
            job.done = True
            with self.lock:
                self.unfinished.discard(job)


def theory_of(room: Room) -> Theory:
    """The theory of a room, with what it warns of."""
    # filters of warnings are those of the whole process: one theory at a time
    with WARNINGS_LOCK, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RegimeWarning)
        curves, facts = room.theory(), room.facts([])
    cautions = dict.fromkeys(str(each.message) for each in heard if issubclass(each.category, RegimeWarning))
    return Theory(curves, tuple(cautions), facts)


def _draw(room: Room, seed: int, before: Sequence[Any]) -> tuple[Any, dict[str, str]]:
    """One more simulation, and what all of them say together; what theory warns of is told with the theory."""
    drawn = room.simulate(seed + len(before))
    with WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)
        return drawn, room.facts([*before, drawn])
