"""What a spectrum would look like without structure, and how surprising another one is beside it.

A null is a law where there is one, and a simulation where there is none. Both answer the same two questions: what the
largest value exceeds at a given level, and the p-value of a statistic. A simulated p-value knows how many draws are
behind it: from n draws none is below ``1/(n + 1)``.

>>> import numpy as np
>>> from bulkedge.ensembles import Wishart
>>> from bulkedge.laws import MarchenkoPastur
>>> from bulkedge.spectra import Spectrum
>>> model = Wishart(dim=60, samples=120)
>>> nulls = [LawNull(MarchenkoPastur(0.5), 60), SimulatedNull.of(model, draws=99, rng=np.random.default_rng(0))]
>>> found = Spectrum.of([*np.linspace(0.1, 2.5, 59), 3.2], "eigenvalues")
>>> [(round(null.p_value(found).value, 6), null.draws) for null in nulls]
[(0.001591, None), (0.01, 99)]
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from bulkedge.ensembles.base import Ensemble
from bulkedge.inference.comparison import compare
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Distribution, StepDistribution
from bulkedge.laws.law import LEVEL, Law
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Instance, Integers
from bulkedge.support.errors import DomainError, RegimeWarning, UnitError
from bulkedge.support.progress import track

Statistic = Literal["largest", "distance"] | Callable[[Spectrum], float]
NAMED = Choice(("largest", "distance"))
DRAWS, SEED = Integers(1, 10**6), Integers(0, 2**128)
ENSEMBLE = Instance(Ensemble)


class PValue(NamedTuple):
    """Probability of a statistic as large under the null, and the draws behind it; None means a limit law."""

    value: float
    draws: int | None


class Null(ABC):
    """The spectrum of a matrix without structure."""

    @property
    @abstractmethod
    def distribution(self) -> Distribution:
        """The distribution of its values."""

    @property
    @abstractmethod
    def draws(self) -> int | None:
        """How many draws are behind it; None for a law."""

    @abstractmethod
    def edge(self, level: float = 0.05) -> float:
        """What the largest value exceeds with probability ``level``.

        Parameters
        ----------
        level : float
            Probability of a false alarm, between 0 and 1: that of a spectrum without structure reaching beyond.

        Returns
        -------
        float
            The value, in the unit of the null's spectrum.
        """

    @abstractmethod
    def p_value(self, spectrum: Spectrum, statistic: Statistic = "largest") -> PValue:
        """Probability that the statistic of a draw is at least that of the spectrum.

        Parameters
        ----------
        spectrum : Spectrum
            What was measured, in the unit of the null.
        statistic : {"largest", "distance"} or callable
            The largest value, the Kolmogorov distance to :attr:`distribution`, or any function of a spectrum whose
            large values speak against the null.

        Returns
        -------
        PValue
            With the number of draws behind it.
        """

    def _require_unit(self, spectrum: Spectrum) -> None:
        if spectrum.unit is not self.distribution.unit:
            raise UnitError(f"the null is of {self.distribution.unit}, the spectrum of {spectrum.unit}: convert it")


@dataclass(frozen=True)
class LawNull(Null):
    """A law as the null, for matrices with a given number of values.

    Parameters
    ----------
    law : Law
        The law of the bulk; it must end with a square-root edge, whose fluctuations are known.
    size : int
        Number of values.
    dyson : {1, 2, 4}
        Symmetry class of the matrix.
    """

    law: Law
    size: int
    dyson: int = 1

    @property
    def distribution(self) -> Distribution:
        """The law."""
        return self.law

    @property
    def draws(self) -> None:
        """None."""
        return

    def edge(self, level: float = 0.05) -> float:
        """Quantile of the largest of ``size`` values in the Tracy-Widom limit."""
        return self.law.finite_edge(self.size, level, self.dyson)

    def p_value(self, spectrum: Spectrum, statistic: Statistic = "largest") -> PValue:
        """For the largest value only: of other statistics a law does not say how they fluctuate."""
        self._require_unit(spectrum)
        if statistic != "largest":
            raise DomainError(
                f"statistic = {statistic!r}: a law knows the fluctuations of the largest value alone; take a "
                "SimulatedNull for others"
            )
        scale = self.law.edge_scale * self.size ** (-2 / 3)
        beyond = (float(spectrum.values[-1]) - self.law.edge) / scale
        return PValue(float(TracyWidom(self.dyson).sf(beyond)), None)


@dataclass(frozen=True, eq=False)
class SimulatedNull(Null):
    """Drawn spectra as the null.

    Parameters
    ----------
    members : sequence of Spectrum
        Independent draws, of one unit and size.
    """

    members: tuple[Spectrum, ...]

    def __post_init__(self) -> None:
        """Check that the draws are alike."""
        members = tuple(self.members)
        if not members or len({(each.unit, each.size) for each in members}) > 1:
            raise DomainError("members must be spectra of one unit and size, one at least")
        object.__setattr__(self, "members", members)

    @classmethod
    def of(cls, ensemble: Ensemble, draws: int = 19, rng: Any = 0) -> SimulatedNull:
        """Draw from an ensemble; the same ensemble and seed are drawn once in a process.

        Parameters
        ----------
        ensemble : Ensemble
            The random matrix.
        draws : int
            How many; 19 are the fewest that reach a level of 5 %.
        rng : int, numpy.random.Generator or torch.Generator
            A seed, whose draws are kept for the next call, or a generator.

        Returns
        -------
        SimulatedNull
            The null of so many draws.
        """
        ENSEMBLE.check("ensemble", ensemble)
        draws = DRAWS.check("draws", draws)
        if isinstance(rng, int | np.integer):
            return _simulated_null(ensemble, draws, SEED.check("rng", rng))
        return cls(tuple(ensemble.spectrum(rng) for _ in track(range(draws), "null")))

    @property
    def draws(self) -> int:
        """Members."""
        return len(self.members)

    @cached_property
    def distribution(self) -> Distribution:
        """All draws together."""
        values = np.concatenate([each.values for each in self.members])
        weights = np.concatenate([each.weights for each in self.members])
        return StepDistribution(values, weights, self.members[0].unit)

    def edge(self, level: float = 0.05) -> float:
        """Order statistic of the largest values of the draws: a further draw exceeds it with that probability or less.

        Raises
        ------
        DomainError
            If the draws are too few for the level.
        """
        rank = LEVEL.check("level", level) * (self.draws + 1)
        if rank < 1 - 1e-9:
            raise DomainError(f"level = {level:g} needs {int(np.ceil(1 / level)) - 1} draws; there are {self.draws}")
        return float(np.sort([each.values[-1] for each in self.members])[self.draws - int(rank + 1e-9)])

    def p_value(self, spectrum: Spectrum, statistic: Statistic = "largest") -> PValue:
        """``(1 + draws as large)/(1 + draws)``, which is exact whatever the distribution.

        For the distance each of the draws, and the spectrum, is compared with all the others together: under the null
        all of these are alike.
        """
        self._require_unit(spectrum)
        own, others = self._measure(spectrum, statistic)
        return PValue(float((1 + np.sum(others >= own)) / (1 + self.draws)), self.draws)

    def _measure(self, spectrum: Spectrum, statistic: Statistic) -> tuple[float, Real]:
        if callable(statistic):
            return float(statistic(spectrum)), np.array([statistic(each) for each in self.members])
        if NAMED.check("statistic", statistic) == "largest":
            return float(spectrum.values[-1]), np.array([each.values[-1] for each in self.members])
        everything = (*self.members, spectrum)
        distances = [compare(each, _pool(everything, k)).ks for k, each in enumerate(everything)]
        return float(distances[-1]), np.array(distances[:-1])


def _pool(spectra: Sequence[Spectrum], left_out: int) -> StepDistribution:
    kept = [each for k, each in enumerate(spectra) if k != left_out]
    return StepDistribution(
        np.concatenate([each.values for each in kept]), np.concatenate([each.weights for each in kept]), kept[0].unit
    )


@lru_cache(maxsize=64)
def _simulated_null(ensemble: Ensemble, draws: int, seed: int) -> SimulatedNull:
    return SimulatedNull.of(ensemble, draws, np.random.default_rng(seed))


def null_of(ensemble: Ensemble, size: int, draws: int = 19, rng: Any = 0) -> Null:
    """The law of an ensemble as the null if it has one that is to be trusted at its edge, and a simulation otherwise.

    Parameters
    ----------
    ensemble : Ensemble
        The random matrix.
    size : int
        Number of values of a draw, for the fluctuations at the edge.
    draws : int
        Draws of the simulation, where there is no law.
    rng : int or generator
        Seed or source of the simulation.

    Returns
    -------
    Null
        :class:`LawNull` or :class:`SimulatedNull`.

    Examples
    --------
    >>> from bulkedge.ensembles import Wishart
    >>> null = null_of(Wishart(dim=60, samples=120), size=60)
    >>> type(null).__name__, round(null.edge(level=0.05), 3)
    ('LawNull', 3.006)
    """
    ENSEMBLE.check("ensemble", ensemble)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegimeWarning)
        try:
            law: Any = ensemble.law()
        except (DomainError, RegimeWarning):
            law = None
    if isinstance(law, Law) and law.has_soft_edge:
        return LawNull(law, size)
    return SimulatedNull.of(ensemble, draws, rng)
