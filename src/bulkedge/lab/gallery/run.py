"""Run studies and keep what people look at: datasets, figures, claims, and one page that holds them all.

What a folder holds already, from the same code with the same parameters and seed, is not run again; so a run that was
stopped goes on where it was, and single studies join those that are there. Studies run in this process or in several;
only this one writes.
"""

from __future__ import annotations

import io
import json
import shlex
import time
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from bulkedge.lab.gallery.folder import Gallery, Origin, Reproduction, sources
from bulkedge.lab.gallery.page import write_pages
from bulkedge.lab.studies.base import Study
from bulkedge.support.domains import Integers, parameters
from bulkedge.support.errors import BulkedgeError
from bulkedge.support.files import lock_folder, to_json
from bulkedge.support.threads import SerialExecutor, available_cores, local_processes, one_thread, stop
from bulkedge.version import __version__

SEEDS, WORKERS = Integers(0, 2**63 - 1), Integers(1, 10_000)


@dataclass(frozen=True)
class StudyStep:
    """Where a run stands: which study of how many, and the seconds left, as far as they are known.

    ``kept`` says that the folder holds the study already; ``replaces``, in what an earlier result of it differs;
    ``at_once``, how many studies are running, in as many processes.
    """

    number: int
    total: int
    study: str
    left: float | None
    kept: bool = False
    replaces: tuple[str, ...] = ()
    at_once: int = 1


class Watcher:
    """Hears how a run goes; this one keeps it to itself."""

    def complain(self, sentence: str) -> None:
        """Something in the folder is damaged, or a study warned."""

    def begin(self, step: StudyStep) -> None:
        """A study begins."""

    def finish(self, step: StudyStep, result: Reproduction) -> None:
        """A study is done, or was there already; the step has the time left after it."""

    def fail(self, step: StudyStep, error: Exception) -> None:
        """A study raised; the run goes on with the others."""


class ReproductionError(BulkedgeError):
    """Some studies raised; the others were run, and are in the folder."""

    def __init__(self, errors: dict[str, Exception], results: list[Reproduction]) -> None:
        self.errors, self.results = errors, results
        raised = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in errors.items())
        super().__init__(f"{len(errors)} of {len(errors) + len(results)} studies raised: {raised}")


def reproduce(  # noqa: PLR0913  # three of them by name
    studies: Iterable[Study],
    folder: str | Path,
    seed: int = 0,
    *,
    again: bool = False,
    workers: int | None = 1,
    watcher: Watcher | None = None,
) -> list[Reproduction]:
    """Run studies that a folder does not hold yet, and make its page of all that it holds then."""
    seed = SEEDS.check("seed", seed)
    width = available_cores() if workers is None else WORKERS.check("workers", workers)
    root = Path(folder)
    with lock_folder(root):
        run = _Run(Gallery.opened(root), list(studies), seed, again, width, watcher or Watcher())
        try:
            return run.all()
        finally:
            run.write_pages()


@dataclass(frozen=True)
class _Finished:
    """All that is written of a study, as it comes from the process that ran it."""

    result: Reproduction
    data: xr.Dataset
    image: bytes
    document: bytes
    warned: tuple[str, ...]


def _finished(study: Study, seed: int) -> _Finished:
    """Run and draw a study, with one thread."""
    start = time.perf_counter()
    with one_thread(study.requires), warnings.catch_warnings(record=True) as caught:
        data = study.simulate(seed)
        figure, image, document = study.plot(data), io.BytesIO(), io.BytesIO()
        figure.savefig(image, format="png", dpi=200)
        figure.savefig(document, format="pdf", metadata={"CreationDate": None})
        claims = tuple(study.claims(data))
    seconds = time.perf_counter() - start
    width, height = (round(115 * inches) for inches in figure.get_size_inches())  # pixels on the page
    origin, command = origin_of(study, seed), command_for(study, seed)
    result = Reproduction(
        origin, study.summary(), command, seconds, width, height, claims, study.chosen(), study.caption
    )
    beyond = [f"RegimeWarning: {each}" for each in data.attrs.get("warnings", "").splitlines()]
    warned = tuple(dict.fromkeys([*beyond, *(f"{each.category.__name__}: {each.message}" for each in caught)]))
    return _Finished(result, data, image.getvalue(), document.getvalue(), warned)


@dataclass
class _Run:
    """The studies of one call: those that are kept first, then the others as they finish."""

    gallery: Gallery
    studies: Sequence[Study]
    seed: int
    again: bool
    width: int
    watcher: Watcher
    results: dict[int, Reproduction] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    todo: deque[int] = field(default_factory=deque)
    flying: dict[Future[_Finished], tuple[int, float]] = field(default_factory=dict)
    spent: float = 0.0
    ran: int = 0

    def all(self) -> list[Reproduction]:
        """Run or keep each."""
        wanted = {study.name() for study in self.studies}
        for name, reason in sorted(self.gallery.damaged.items()):
            remedy = "it is run again" if name in wanted else "it is left out of the page until it is run again"
            self.watcher.complain(f"{name} in {self.gallery.root} is damaged ({reason}): {remedy}")
        kept = {index: found for index in range(len(self.studies)) if (found := self._stored_result(index)) is not None}
        self.todo.extend(index for index in range(len(self.studies)) if index not in kept)
        for index, result in kept.items():
            self._done(index, result, kept=True)
        self._run(min(self.width, len(self.todo)))
        results = [self.results[index] for index in sorted(self.results)]
        if self.errors:
            raise ReproductionError(self.errors, results) from next(iter(self.errors.values()))
        return results

    def write_pages(self) -> None:
        """Write the pages of all that the folder holds now."""
        write_pages(self.gallery.root, self.gallery.results.values())

    def _run(self, width: int) -> None:
        """Keep so many processes busy until nothing is left to do."""
        if width > 1:
            self.todo = deque(sorted(self.todo, key=lambda index: -(self._before(index) or 0.0)))  # the longest first
        executor = local_processes(width) if width > 1 else SerialExecutor()
        try:
            while self.todo or self.flying:
                while self.todo and len(self.flying) < max(width, 1):
                    self._begin(executor)
                landed, _ = wait(self.flying, return_when=FIRST_COMPLETED)
                for future in landed:
                    self._land(future)
        finally:
            stop(executor)

    def _begin(self, executor: Executor) -> None:
        index, study = self.todo[0], self.studies[self.todo[0]]
        self.watcher.begin(self._step(index, ahead=1))
        self.todo.popleft()
        self.flying[executor.submit(_finished, study, self.seed)] = index, time.monotonic()

    def _land(self, future: Future[_Finished]) -> None:
        index, _ = self.flying.pop(future)
        study, error = self.studies[index], future.exception()
        if error is not None and (isinstance(error, BrokenExecutor) or not isinstance(error, Exception)):
            raise error
        if isinstance(error, Exception):
            error.add_note(f"while running {command_for(study, self.seed)}")
            self.errors[study.name()] = error
            self.watcher.fail(self._step(index), error)
            return
        found = future.result()
        for sentence in found.warned:
            self.watcher.complain(f"{study.name()} warned: {sentence}")
        self.spent, self.ran = self.spent + found.result.seconds, self.ran + 1
        replaces = self._replaces(index)
        self.gallery.add(found.result, found.data, found.image, found.document)
        self.write_pages()
        self._done(index, found.result, replaces=replaces)

    def _done(self, index: int, result: Reproduction, **what: Any) -> None:
        self.results[index] = result
        self.watcher.finish(self._step(index, **what), result)

    def _step(self, index: int, ahead: int = 0, **what: Any) -> StudyStep:
        """Where the run stands; ``ahead`` counts the study that is about to begin."""
        done = len(self.results) + len(self.errors)
        what.setdefault("replaces", () if what.get("kept") else self._replaces(index))
        at_once = max(len(self.flying) + ahead, 1)
        return StudyStep(
            done + ahead, len(self.studies), self.studies[index].name(), self._seconds_left(), at_once=at_once, **what
        )

    def _replaces(self, index: int) -> tuple[str, ...]:
        """In what the earlier result of a study differs from the one that is wanted."""
        study = self.studies[index]
        earlier = self.gallery.results.get(study.name())
        return tuple(earlier.origin.differences(origin_of(study, self.seed))) if earlier else ()

    def _stored_result(self, index: int) -> Reproduction | None:
        """The result that stands for the study, if there is one."""
        study = self.studies[index]
        found = None if self.again else self.gallery.results.get(study.name())
        return found if found is not None and found.origin == origin_of(study, self.seed) else None

    def _before(self, index: int) -> float | None:
        """Seconds that a study took before with these parameters, or else those of this run on average."""
        study = self.studies[index]
        before = self.gallery.results.get(study.name())
        if before is not None and before.origin.parameters == origin_of(study, self.seed).parameters:
            return before.seconds
        return self.spent / self.ran if self.ran else None

    def _seconds_left(self) -> float | None:
        """Seconds until all is done: the work shared among the processes, and no less than the longest study."""
        begun = dict(self.flying.values())
        times = []
        for index in [*begun, *self.todo]:
            if (seconds := self._before(index)) is None:
                return None
            elapsed = time.monotonic() - begun[index] if index in begun else 0.0
            times.append(max(seconds - elapsed, 0.0))
        return max(sum(times) / max(min(self.width, len(times)), 1), *times) if times else 0.0


def origin_of(study: Study, seed: int) -> Origin:
    """What the result of a study will say of where it is from."""
    return Origin(study.name(), json.loads(to_json(study.parameters(), exact=True)), seed, __version__, sources())


def command_for(study: Study, seed: int) -> str:
    """The command that runs a study as it is."""
    options = []
    for each in parameters(type(study)):
        value = getattr(study, each.name)
        if value != each.default:
            options += [f"--{each.name.replace('_', '-')}", as_option(value)]
    return shlex.join(["bulkedge", "reproduce", study.name(), *options, "--seed", str(seed)])


def as_option(value: Any) -> str:
    """A parameter as the command line reads it: members separated by commas, tuples of tuples by semicolons.

    >>> as_option(((1, 2), (3, 4))), as_option((0.5, 1.0)), as_option("causal")
    ('1,2;3,4', '0.5,1.0', 'causal')
    """
    if not isinstance(value, tuple):
        return str(value)
    return (";" if any(isinstance(each, tuple) for each in value) else ",").join(map(as_option, value))
