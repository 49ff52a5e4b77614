"""What a study is: frozen parameters, a labelled dataset, claims that it can refute, and a figure.

A study is a frozen dataclass in a file of its own, ``studies/<paper>/<figure>.py``; that path is its name. Its
parameters are declared with :func:`bulkedge.support.domains.parameter`, whose default is the quick size and whose
``paper`` or ``ours`` value is that of ``--paper``.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, ClassVar, Literal, Self

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import bulkedge.lab.studies as package
from bulkedge.lab.studies.claims import NO_NUMBER, Claim, Relation, average, difference, follows, share, sign
from bulkedge.plots.style import marks, styled
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Parametric, parameters
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track
from bulkedge.version import __version__

# what studies are written with, in one place
__all__ = ["NO_NUMBER", "Claim", "Claims", "Estimate", "Real", "Relation", "Study", "average", "dataset", "difference",
           "exponent", "find", "follows", "mean_marks", "ready", "share", "sign", "standard_error", "studies",
           "to_install", "track"]  # fmt: skip

Preset = Literal["quick", "paper"]
Claims = Iterator[Claim]


class Study(Parametric, ABC):
    """A named experiment.

    One that needs an optional package names it in ``requires``, as its module is called, and imports it when it runs.
    ``small`` has the parameters with which a test runs it in about a second. ``caption`` stands under the figure,
    in two sentences: what is drawn, and what to look at.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    small: ClassVar[dict[str, Any]] = {}
    caption: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.caption = " ".join(cls.caption.split())

    @abstractmethod
    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Simulate and compute: variables with labelled dimensions, and a ``units`` attribute where they have one.

        Parameters
        ----------
        rng : numpy.random.Generator
            The source of all randomness of the study; the same seed gives the same dataset.

        Returns
        -------
        xarray.Dataset
            What the claims and the figure are made from.
        """

    def statements(self, data: xr.Dataset) -> Iterator[Claim]:
        """What a study implements for :meth:`claims`: one claim after the other.

        Parameters
        ----------
        data : xarray.Dataset
            What :meth:`run` returned, for a study of these parameters.

        Returns
        -------
        iterator of Claim
            Each with the number that is predicted, the measured one with its error, and what a rival predicts.
        """
        raise NotImplementedError(f"{self.name()} has no claims")

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """What the dataset says of the paper's statements.

        Parameters
        ----------
        data : xarray.Dataset
            What :meth:`run` returned, for a study of these parameters.

        Returns
        -------
        list of Claim
            All that :meth:`statements` yields.
        """
        return list(self.statements(data))

    @classmethod
    def preset(cls, which: Preset = "quick", /, **changes: Any) -> Self:
        """The study at one of its two sizes, with some parameters changed.

        Parameters
        ----------
        which : {"quick", "paper"}
            The defaults, made for a look in seconds, or the sizes of the paper's own figure, which are ours where the
            paper gives none.
        **changes : object
            Parameters that differ from the preset, by name.

        Returns
        -------
        Study
            A study of this class.

        Raises
        ------
        DomainError
            If a parameter is outside its domain.

        Examples
        --------
        >>> edge = find("laws/edge")[0]
        >>> edge.preset("paper").parameters() == edge().parameters()
        False
        """
        at_paper = {each.name: each.large for each in parameters(cls) if each.large is not MISSING}
        return cls(**((at_paper if which == "paper" else {}) | changes))

    @classmethod
    def name(cls) -> str:
        """``paper/figure``, from where the study is defined; elsewhere, its module and class."""
        module = cls.__module__
        if module.startswith(package.__name__ + "."):
            return module.removeprefix(package.__name__ + ".").replace(".", "/").replace("_", "-")
        return f"{module}.{cls.__qualname__}"

    @classmethod
    def missing(cls) -> tuple[str, ...]:
        """Which of the packages it needs are not installed."""
        return tuple(package for package in cls.requires if find_spec(package) is None)

    @classmethod
    def summary(cls) -> str:
        """What the study shows, in a sentence."""
        return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")

    def parameters(self) -> dict[str, Any]:
        """The declared parameters with their values."""
        return {each.name: getattr(self, each.name) for each in parameters(type(self))}

    def chosen(self) -> dict[str, str]:
        """Who chose the value of each parameter.

        Returns
        -------
        dict of str to str
            From its name to ``"paper"`` for the value that the paper gives, ``"ours"`` for the one we chose for the
            paper's size, ``"quick"`` for another default, and ``"given"`` for any other.

        Examples
        --------
        >>> find("laws/edge")[0](size=50, draws=100_000).chosen()
        {'size': 'given', 'draws': 'ours', 'level': 'ours'}
        """
        own = type(self)
        large, quick, values = own.preset("paper").parameters(), own.preset("quick").parameters(), self.parameters()
        found = {}
        for each in parameters(own):
            value, name = values[each.name], each.name
            if each.large is not MISSING and value == large[name]:
                found[name] = each.source
            else:
                found[name] = "quick" if value == quick[name] else "given"
        return found

    def simulate(self, seed: int) -> xr.Dataset:
        """Run, and record in the dataset what made it.

        Parameters
        ----------
        seed : int
            Seed of NumPy's default generator, which :meth:`run` gets.

        Returns
        -------
        xarray.Dataset
            That of :meth:`run`, with the attributes ``study``, ``parameters`` (as JSON), ``seed`` and ``bulkedge`` (the
            version), and ``warnings`` where a study goes beyond what a law is good for.
        """
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", RegimeWarning)
            data = self.run(np.random.default_rng(seed))
        beyond = [str(each.message) for each in heard if issubclass(each.category, RegimeWarning)]
        for each in heard:
            if not issubclass(each.category, RegimeWarning):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        made_by = {"study": self.name(), "parameters": json.dumps(self.parameters()), "seed": seed}
        warned = {"warnings": "\n".join(dict.fromkeys(beyond))} if beyond else {}
        return data.assign_attrs(made_by | {"bulkedge": __version__} | warned)

    def figure(self, data: xr.Dataset) -> Figure:
        """Draw a dataset; a study that is only swept over needs no figure.

        Parameters
        ----------
        data : xarray.Dataset
            What :meth:`run` returned, for a study of these parameters.

        Returns
        -------
        matplotlib Figure
            Made with :mod:`bulkedge.plots.style`.
        """
        raise NotImplementedError(f"{self.name()} has no figure")

    def plot(self, data: xr.Dataset) -> Figure:
        """The figure of a dataset, in the style of all figures.

        Parameters
        ----------
        data : xarray.Dataset
            What :meth:`run` returned, for a study of these parameters.

        Returns
        -------
        matplotlib Figure
            What :meth:`figure` draws.
        """
        with styled():
            return self.figure(data)


@cache
def studies() -> dict[str, type[Study]]:
    """Every study of the package, by its name.

    Returns
    -------
    dict of str to type
        Classes of studies by their names.

    Examples
    --------
    >>> sorted(studies())[:2]
    ['equivalence/breakdown', 'equivalence/bulk']
    """
    found = {}
    for folder in iter_modules(package.__path__, package.__name__ + "."):
        if not folder.ispkg:
            continue
        for each in iter_modules(import_module(folder.name).__path__, folder.name + "."):
            for _, member in inspect.getmembers(import_module(each.name), inspect.isclass):
                if issubclass(member, Study) and member.__module__ == each.name:
                    found[member.name()] = member
    return dict(sorted(found.items()))


def find(name: str) -> list[type[Study]]:
    """The study of that name, or all studies of the paper of that name, or all.

    >>> [study.name() for study in find("laws")]
    ['laws/bulk', 'laws/edge', 'laws/transition']
    """
    chosen = [study for known, study in studies().items() if name in ("", known, known.split("/")[0])]
    if not chosen:
        raise DomainError(f"study = {name!r} is unknown; there are {', '.join(studies())}")
    return chosen


def to_install(missing: tuple[str, ...]) -> str:
    """What to tell pip for optional packages."""
    try:
        lines = metadata.requires("bulkedge") or []
    except metadata.PackageNotFoundError:  # run from its source
        lines = []
    found = (re.match(r"([\w.-]+).*extra == ['\"](?!test|docs)([\w-]+)['\"]", line) for line in lines)
    extra_of = {each[1].replace("-", "_").lower(): each[2] for each in found if each}
    extras = sorted({extra_of[each] for each in missing if each in extra_of})
    others = [each for each in missing if each not in extra_of]
    return " ".join([f"'bulkedge[{','.join(extras)}]'"] * bool(extras) + others)


def ready(name: str) -> tuple[list[type[Study]], list[str]]:
    """The studies of that name that can run here, and sentences about those that cannot.

    A study that was asked for by its own name and cannot run, or a paper none of whose studies can, is an error.
    """
    chosen, lacking = [], dict[tuple[str, ...], list[str]]()
    for study in find(name):
        if missing := study.missing():
            lacking.setdefault(missing, []).append(study.name())
        else:
            chosen.append(study)
    sentences = [
        f"{', '.join(names)}: not without {' and '.join(missing)} (pip install {to_install(missing)})"
        for missing, names in lacking.items()
    ]
    if not chosen:
        raise DomainError("; ".join(sentences))
    return chosen, sentences


def dataset(*, coords: Any = None, attrs: Any = None, **variables: Any) -> xr.Dataset:
    """Named variables: each a number, or dimensions and values, and then what it is, in words."""
    for name, each in variables.items():
        if isinstance(each, tuple) and len(each) == 3 and isinstance(each[2], str):
            variables[name] = (*each[:2], {"long_name": each[2]})
    return xr.Dataset(variables, coords, attrs)


def exponent(x: Any, y: Any) -> float:
    """The exponent of a power law through positive numbers: the slope of their logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def standard_error(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over draws."""
    return values.std("draw", ddof=1) / values.sizes["draw"] ** 0.5


def mean_marks(axes: Axes, x: Any, values: xr.DataArray, **look: Any) -> None:
    """Draw the means over draws, with their standard errors as bars."""
    marks(axes, x, values.mean("draw"), standard_error(values), **look)
