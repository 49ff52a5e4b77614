"""What follows a slider in the background: the law itself where a table was drawn first, then simulations.

A page has one job at a time. Another choice of parameters cancels it before the next draw, and nothing that a page asks
for waits for it: laws and draws are computed in another process, at a lower priority.
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any, Generic, NamedTuple, TypeVar

from bulkedge.errors import BulkedgeError, RegimeWarning, UnresolvedError
from bulkedge.explore.curves import Curve
from bulkedge.explore.room import Room
from bulkedge.sweeps import local_processes, stop

REST = 0.25
"""Seconds that parameters rest before anything is computed for them: nothing is, while a slider moves."""
MOST_PAGES, MOST_KEPT = 32, 64
Value = TypeVar("Value")


LISTENING = Lock()


class Theory(NamedTuple):
    """What theory says, and where it says of itself that it ends."""

    curves: list[Curve]
    cautions: tuple[str, ...]


class Kept(Generic[Value]):
    """The last few results, by the room that they are of."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        self.most, self.lock = most, Lock()
        self.found: OrderedDict[Room, Value] = OrderedDict()

    def get(self, room: Room) -> Value | None:
        """What is known of a room.

        Parameters
        ----------
        room : Room
            With its parameters.

        Returns
        -------
        object, optional
            None if it was not computed, or is forgotten.
        """
        with self.lock:
            if room in self.found:
                self.found.move_to_end(room)
            return self.found.get(room)

    def put(self, room: Room, value: Value) -> None:
        """Keep a result, and forget the oldest.

        Parameters
        ----------
        room : Room
            With its parameters.
        value : object
            The result.
        """
        with self.lock:
            self.found[room] = value
            while len(self.found) > self.most:
                self.found.popitem(last=False)


@dataclass(eq=False)
class Job:
    """What is computed for one room, and how far it is."""

    room: Room
    samples: list[Any] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    steps: int = 0
    """Grows with every result, so that a page knows whether there is something new."""
    done: bool = False
    cancelled: Event = field(default_factory=Event)

    @property
    def running(self) -> bool:
        """Whether results may still come."""
        return not self.done and not self.cancelled.is_set()


class Jobs:
    """Jobs of all open pages.

    Parameters
    ----------
    apart : bool
        Whether to compute in a process apart; otherwise in a thread of this one, which is started at once.
    """

    def __init__(self, *, apart: bool = True) -> None:
        self.threads = ThreadPoolExecutor(8, thread_name_prefix="explore")
        self.apart = apart
        self.work = self._started()
        self.pages: OrderedDict[str, Job] = OrderedDict()
        self.lock = Lock()
        self.theories: Kept[Theory] = Kept()
        self.samples: Kept[tuple[list[Any], dict[str, str]]] = Kept()

    def _started(self) -> Executor:
        if not self.apart:
            return ThreadPoolExecutor(1)
        work = local_processes(1)
        work.submit(_calm)  # the process starts while the browser opens
        return work

    def of(self, page: str, room: Room) -> Job:
        """The job of a page; a new one, if its parameters have changed.

        Parameters
        ----------
        page : str
            Name of the page.
        room : Room
            What it shows now.

        Returns
        -------
        Job
            Perhaps not begun yet.
        """
        with self.lock:
            job = self.pages.get(page)
            if job is not None and job.room == room:
                return job
            if job is not None:
                job.cancelled.set()
            known = self.samples.get(room)
            job = self.pages[page] = Job(room, list(known[0]), known[1]) if known else Job(room)
            self.pages.move_to_end(page)
            while len(self.pages) > MOST_PAGES:
                self.pages.popitem(last=False)[1].cancelled.set()
        self.threads.submit(self._follow, job)
        return job

    def computed(self, work: Callable[..., Value], *arguments: Any) -> Value:
        """Compute something apart, and wait for it.

        Parameters
        ----------
        work : callable
            What to compute.
        *arguments : object
            Its arguments.

        Returns
        -------
        object
            Its result.

        Raises
        ------
        UnresolvedError
            If the process ended over it; another one is started.
        """
        try:
            return self.work.submit(work, *arguments).result()
        except BrokenExecutor as error:
            self.work = self._started()
            raise UnresolvedError(
                "the process that computes has ended, perhaps for want of memory; another one is started"
            ) from error

    def again(self, page: str) -> None:
        """Forget the job of a page, so that it is begun anew.

        Parameters
        ----------
        page : str
            Name of the page.
        """
        with self.lock:
            job = self.pages.pop(page, None)
            if job is not None:
                job.cancelled.set()

    def stop(self) -> None:
        """Cancel everything."""
        with self.lock:
            for job in self.pages.values():
                job.cancelled.set()
        stop(self.work, wait=False)
        self.threads.shutdown(wait=False, cancel_futures=True)

    def theory(self, room: Room) -> Theory:
        """The theory of a room, computed once.

        Parameters
        ----------
        room : Room
            With its parameters.

        Returns
        -------
        Theory
            Not to be changed.
        """
        found = self.theories.get(room)
        if found is None:
            found = theory_of(room)
            self.theories.put(room, found)
        return found

    def _follow(self, job: Job) -> None:
        """Ask the process for one thing after another, until all is there or nobody wants it."""
        try:
            if job.cancelled.wait(REST):
                return
            if self.theories.get(job.room) is None:
                self.theories.put(job.room, self.computed(theory_of, job.room))
            job.steps += 1
            while len(job.samples) < job.room.draws and not job.cancelled.is_set():
                drawn, facts = self.computed(_draw, job.room, list(job.samples))
                job.samples.append(drawn)
                job.facts = facts
                job.steps += 1
            self.samples.put(job.room, (list(job.samples), job.facts))
        except CancelledError:
            pass
        except BulkedgeError as error:
            job.problem = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of a room is told on its page, where it can be seen
            job.problem = f"{type(error).__name__}: {error}"
        finally:
            job.steps += 1
            job.done = True


def _calm() -> None:
    """Be slower than what is looked at; called in the process."""
    with suppress(OSError, AttributeError):
        os.nice(10)


def theory_of(room: Room) -> Theory:
    """The theory of a room, with what it warns of.

    Parameters
    ----------
    room : Room
        With its parameters.

    Returns
    -------
    Theory
        Its curves and cautions.
    """
    # filters of warnings are those of the whole process: one theory at a time
    with LISTENING, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RegimeWarning)
        curves = room.theory()
    cautions = dict.fromkeys(str(each.message) for each in heard if issubclass(each.category, RegimeWarning))
    return Theory(curves, tuple(cautions))


def _draw(room: Room, before: Sequence[Any]) -> tuple[Any, dict[str, str]]:
    """One more simulation, and what all of them say together; what theory warns of is told with the theory."""
    drawn = room.simulate(len(before))
    with LISTENING, warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)
        return drawn, room.facts([*before, drawn])
