"""What a sweep is: a study, axes of parameters, repetitions, and a root seed.

>>> from bulkedge.lab.studies.laws.edge import LawsEdge
>>> sweep = Sweep(LawsEdge(), {"size": parse_axis(LawsEdge, "size", "100:300:100")}, repetitions=2)
>>> sweep.axes, sweep.shape
({'size': (100, 200, 300)}, (3, 2))
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from itertools import product
from typing import Any

import numpy as np

from bulkedge.lab.studies.base import Study
from bulkedge.support.domains import Domain, Each, Integers, Text, parameters
from bulkedge.support.errors import DomainError
from bulkedge.version import __version__

REPETITION = "repetition"
MOST_VALUES = 100_000
FORMAT = 2  # of the store: 1 had no checksums, and its axes had no order
CellIndex = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One study of a sweep: its place in the grid, and all that it takes to run it anywhere."""

    index: CellIndex
    study: Study
    changes: dict[str, Any]
    seed: np.random.SeedSequence

    def make_study(self) -> Study:
        """The study with the parameters of this cell."""
        return replace(self.study, **self.changes)  # type: ignore[type-var]  # every concrete study is a dataclass


class Sweep:
    """A grid of studies.

    >>> from bulkedge.lab.studies.laws.edge import LawsEdge
    >>> Sweep(LawsEdge(), {"size": (100, 200)}, repetitions=3).shape
    (2, 3)

    Parameters
    ----------
    study : Study
        The study, with the parameters that stay fixed.
    axes : mapping of str to sequence
        Values for each parameter that is swept.
    repetitions : int
        Independent repetitions of each point of the grid.
    seed : int
        The root of all random streams.
    """

    def __init__(self, study: Study, axes: Mapping[str, Sequence[Any]], repetitions: int = 1, seed: int = 0) -> None:
        self.study = study
        self.axes = {name: _check_values(type(study), name, values) for name, values in axes.items()}
        self.repetitions = Integers(1, 10**9).check("repetitions", repetitions)
        self.seed = Integers(0, 2**63 - 1).check("seed", seed)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, repetitions last."""
        return (*self.axes, REPETITION)

    @property
    def shape(self) -> CellIndex:
        """Lengths of the axes."""
        return (*(len(values) for values in self.axes.values()), self.repetitions)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def manifest(self) -> dict[str, Any]:
        """All that the numbers depend on; two sweeps with the same manifest have the same cells."""
        fixed = {name: value for name, value in self.study.parameters().items() if name not in self.axes}
        return {
            "format": FORMAT,
            "study": self.study.name(),
            "parameters": json.loads(json.dumps(fixed)),
            "axes": json.loads(json.dumps(list(self.axes.items()))),  # a list: places in the store go by this order
            "repetitions": self.repetitions,
            "seed": self.seed,
            "bulkedge": __version__,
        }

    def with_axes_in_order(self, axes: Any) -> Sweep:
        """The same cells with axes and values in the order of a manifest, if it has the same; else this sweep.

        Streams depend on what a cell is and not on its place, so the order in which a grid is named changes no number.

        Parameters
        ----------
        axes : iterable of (name, values)
            Axes as a manifest has them.

        Returns
        -------
        Sweep
            The same study, repetitions and seed.
        """
        try:
            order = {name: tuple(values) for name, values in axes}
        except (TypeError, ValueError):
            return self
        same = order.keys() == self.axes.keys() and all(
            len(values) == len(self.axes[name]) and set(values) == set(self.axes[name])
            for name, values in order.items()
        )
        return Sweep(self.study, order, self.repetitions, self.seed) if same else self

    def indices(self) -> Iterator[CellIndex]:
        """The places of all cells, one at a time."""
        return product(*(range(length) for length in self.shape))

    def cell(self, index: CellIndex) -> Cell:
        """One cell of the grid: a study with the parameters of its place, and a random stream.

        Parameters
        ----------
        index : tuple of int
            Place on each axis, and the number of the repetition last.

        Returns
        -------
        Cell
            The study's changed parameters there, and a random stream that depends on them and not on the place.
        """
        changes = {name: values[k] for (name, values), k in zip(self.axes.items(), index[:-1], strict=True)}
        label = json.dumps([self.study.name(), sorted(changes.items()), index[-1]])
        words = np.frombuffer(hashlib.sha256(label.encode()).digest(), dtype="<u4")
        stream = np.random.SeedSequence(self.seed, spawn_key=tuple(words.tolist()))
        return Cell(index, self.study, changes, stream)


def _domain(study: type[Study], name: str) -> Domain:
    known = {each.name: each.domain for each in parameters(study) if not isinstance(each.domain, Each)}
    if name not in known:
        near = get_close_matches(name, known)
        remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
        raise DomainError(f"{name} is not a parameter of {study.name()} that can be an axis; {remedy}")
    return known[name]


def _check_values(study: type[Study], name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    domain = _domain(study, name)
    checked = tuple(domain.check(name, value) for value in values)
    if not checked:
        raise DomainError(f"the axis {name} has no values")
    if len(set(checked)) < len(checked):
        raise DomainError(f"the axis {name} has equal values: {list(values)!r}")
    return checked


def parse_axis(study: type[Study], name: str, text: str) -> tuple[Any, ...]:
    """Read ``first:last:step`` (the last included, if it is reached) or values separated by commas.

    Texts have no ranges: a colon is part of one.

    Parameters
    ----------
    study : type
        Class of the study.
    name : str
        One of its parameters.
    text : str
        ``"0.1:0.5:0.1"`` or ``"0.1,0.2,0.4"``; in ranges, decimal numbers are added exactly.

    Returns
    -------
    tuple
        The values, checked.

    Raises
    ------
    DomainError
        If the study has no such parameter, or a value is outside its domain.

    Examples
    --------
    >>> from bulkedge.lab.studies.laws.edge import LawsEdge
    >>> parse_axis(LawsEdge, "size", "100:300:100"), parse_axis(LawsEdge, "size", "64, 128")
    ((100, 200, 300), (64, 128))
    """
    domain = _domain(study, name)
    if ":" not in text or isinstance(domain, Text):
        return _check_values(study, name, [domain.parse(name, part.strip()) for part in text.split(",")])
    try:
        first, last, step = (Decimal(part) for part in text.split(":"))
        count = math.floor((last - first) / step) + 1  # not int(), which calls a step in the wrong direction none
    except (ValueError, ArithmeticError):
        raise DomainError(f"{name}={text}: a range is first:last:step with a step that is not zero") from None
    if not 1 <= count <= MOST_VALUES:
        raise DomainError(
            f"{name}={text}: the range has {max(count, 0)} values; between 1 and {MOST_VALUES} are possible, "
            "and the step leads from the first towards the last"
        )
    return _check_values(study, name, [domain.parse(name, str(first + k * step)) for k in range(count)])
