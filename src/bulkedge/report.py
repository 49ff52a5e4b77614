"""Run studies and keep what people look at: datasets, figures, claims, and one page that holds them all.

What a folder holds already, from the same code with the same parameters and seed, is not run again; so a run that was
stopped goes on where it was, and single studies join those that are there.
"""

from __future__ import annotations

import io
import json
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bulkedge.domains import Integers, parameters
from bulkedge.errors import BulkedgeError
from bulkedge.files import locked
from bulkedge.gallery import Gallery, Origin, Reproduction, sources
from bulkedge.records import written
from bulkedge.studies.base import Study
from bulkedge.version import __version__

DPI = 200
PIXELS_PER_INCH = 115
"""On the page."""
SEEDS = Integers(0, 2**63 - 1)


@dataclass(frozen=True)
class Step:
    """Where a run stands: which study of how many, and the seconds left, as far as that can be told.

    ``kept`` says that the folder holds the study already; ``replaces``, in what an earlier result of it differs.
    """

    number: int
    total: int
    study: str
    left: float | None
    kept: bool = False
    replaces: tuple[str, ...] = ()


class Watcher(Protocol):
    """Is told how a run goes."""

    def complain(self, sentence: str) -> None:
        """Something in the folder is damaged.

        Parameters
        ----------
        sentence : str
            What is damaged, and what becomes of it.
        """

    def begin(self, step: Step) -> None:
        """A study begins.

        Parameters
        ----------
        step : Step
            Which study of how many, and the time left from here.
        """

    def finish(self, step: Step, result: Reproduction) -> None:
        """A study is done, or was there already; the step has the time left after it.

        Parameters
        ----------
        step : Step
            Which study of how many, whether it was kept, and the time left after it.
        result : Reproduction
            Its result.
        """


class Silent:
    """Does not pass it on."""

    def complain(self, sentence: str) -> None:
        """Nothing."""

    def begin(self, step: Step) -> None:
        """Nothing."""

    def finish(self, step: Step, result: Reproduction) -> None:
        """Nothing."""


def reproduce(
    studies: Iterable[Study], folder: str | Path, seed: int = 0, *, again: bool = False, watcher: Watcher | None = None
) -> list[Reproduction]:
    """Run studies that a folder does not hold yet, and make its page of all that it holds then.

    Parameters
    ----------
    studies : iterable of Study
        What to run.
    folder : path
        Where to write; each study has a folder of its name in it. An earlier result of the same study is replaced,
        unless it has the same parameters and seed and was made by the same code: then it is kept. Results of other
        studies stay, and stay on the page.
    seed : int
        Seed of every study.
    again : bool
        Whether to run also what would be kept.
    watcher : Watcher, optional
        Is told of each study as it begins and ends.

    Returns
    -------
    list of Reproduction
        The results of the studies asked for, in their order.

    Raises
    ------
    StoreError
        If another process is writing into the folder.
    """
    seed = SEEDS.check("seed", seed)
    root = Path(folder)
    with locked(root):
        run = _Run(Gallery.opened(root), list(studies), seed, again, watcher or Silent())
        try:
            return run.all()
        finally:
            run.gallery.write_page()


@dataclass
class _Run:
    """The studies of one call, one after another."""

    gallery: Gallery
    studies: Sequence[Study]
    seed: int
    again: bool
    watcher: Watcher
    spent: float = 0.0
    ran: int = 0

    def all(self) -> list[Reproduction]:
        """Run or keep each."""
        wanted = {study.name() for study in self.studies}
        for name, reason in sorted(self.gallery.damaged.items()):
            remedy = "it is run again" if name in wanted else "it is left out of the page until it is run again"
            self.watcher.complain(f"{name} in {self.gallery.root} is damaged ({reason}): {remedy}")
        return [self._one(index) for index in range(len(self.studies))]

    def _one(self, index: int) -> Reproduction:
        study = self.studies[index]
        kept = self._kept(study)
        earlier = self.gallery.results.get(study.name())
        replaces = tuple(earlier.origin.differences(origin_of(study, self.seed))) if earlier and not kept else ()
        place = (index + 1, len(self.studies), study.name())
        if kept is None:
            self.watcher.begin(Step(*place, self._left(self.studies[index:]), replaces=replaces))
            try:
                result = self._add(study)
            except BulkedgeError as error:
                error.add_note(f"while running {command_for(study, self.seed)}")
                raise
        else:
            result = kept
        left = self._left(self.studies[index + 1 :])
        self.watcher.finish(Step(*place, left, kept=kept is not None, replaces=replaces), result)
        return result

    def _kept(self, study: Study) -> Reproduction | None:
        """The result that stands for the study, if there is one."""
        found = None if self.again else self.gallery.results.get(study.name())
        return found if found is not None and found.origin == origin_of(study, self.seed) else None

    def _add(self, study: Study) -> Reproduction:
        start = time.perf_counter()
        data = study.simulate(self.seed)
        figure, image, document = study.plot(data), io.BytesIO(), io.BytesIO()
        figure.savefig(image, format="png", dpi=DPI)
        figure.savefig(document, format="pdf", metadata={"CreationDate": None})
        width = round(PIXELS_PER_INCH * figure.get_size_inches()[0])
        claims = tuple(study.claims(data))
        seconds = time.perf_counter() - start
        self.spent, self.ran = self.spent + seconds, self.ran + 1
        origin, command = origin_of(study, self.seed), command_for(study, self.seed)
        result = Reproduction(origin, study.summary(), command, seconds, width, claims, study.chosen())
        return self.gallery.add(result, data, image.getvalue(), document.getvalue())

    def _left(self, studies: Sequence[Study]) -> float | None:
        """Seconds that studies will take: as long as they took before, or else as long as those of this run on average.

        None if neither tells.
        """
        total = 0.0
        for study in studies:
            if self._kept(study):
                continue
            before = self.gallery.results.get(study.name())
            if before is not None and before.origin.parameters == origin_of(study, self.seed).parameters:
                total += before.seconds
            elif self.ran:
                total += self.spent / self.ran
            else:
                return None
        return total


def origin_of(study: Study, seed: int) -> Origin:
    """What the result of a study will say of where it is from.

    Parameters
    ----------
    study : Study
        With its parameters.
    seed : int
        The seed it would be run with.

    Returns
    -------
    Origin
        With the version of the package, and the digest of its sources as they are now.
    """
    return Origin(study.name(), json.loads(written(study.parameters(), exact=True)), seed, __version__, sources())


def command_for(study: Study, seed: int) -> str:
    """The command that runs a study as it is.

    Parameters
    ----------
    study : Study
        With its parameters; those that differ from their defaults become options.
    seed : int
        The seed it is run with.

    Returns
    -------
    str
        A line for a shell, quoted where needed.
    """
    options = []
    for each in parameters(type(study)):
        value = getattr(study, each.name)
        if value != each.default:
            options += [f"--{each.name.replace('_', '-')}", as_option(value)]
    return shlex.join(["bulkedge", "reproduce", study.name(), *options, "--seed", str(seed)])


def as_option(value: Any) -> str:
    """A parameter as the command line reads it: members separated by commas, tuples of tuples by semicolons.

    Parameters
    ----------
    value : object
        A parameter in its canonical form: a number, a name, a tuple of these, or a tuple of tuples.

    Returns
    -------
    str
        What :meth:`bulkedge.domains.Domain.parse` reads back.

    Examples
    --------
    >>> as_option(((1, 2), (3, 4))), as_option((0.5, 1.0)), as_option("causal")
    ('1,2;3,4', '0.5,1.0', 'causal')
    """
    if not isinstance(value, tuple):
        return str(value)
    return (";" if any(isinstance(each, tuple) for each in value) else ",").join(map(as_option, value))
