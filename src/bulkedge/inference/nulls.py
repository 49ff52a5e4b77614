"""What a spectrum would look like without structure, and how surprising another one is, in one number or as a whole.

A null is a law or a simulation. Both answer the same two questions: what the largest value exceeds at a given level,
and the p-value of a statistic. A simulated p-value knows how many draws are behind it: from n draws none is below
``1/(n + 1)``. :func:`null_of` takes the law only where its p-values were measured to be right.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from bulkedge.ensembles.base import Ensemble
from bulkedge.ensembles.gaussian import GaussianProduct, GaussianSum, Wigner, Wishart
from bulkedge.inference.comparison import compare, in_one_unit
from bulkedge.inference.linear_statistics import (
    ESTIMATED,
    FEWEST,
    KURTOSIS,
    Assumed,
    GoodnessOfFit,
    chebyshev_sums,
    degrees,
    law_fit,
)
from bulkedge.laws import attention
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.distribution import Distribution, StepDistribution
from bulkedge.laws.law import COUNT, LEVEL, Law
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Each, Instance, Integers, shown, takes
from bulkedge.support.errors import DomainError, RegimeWarning, UnitError
from bulkedge.support.progress import track

Statistic = Literal["largest", "distance"] | Callable[[Spectrum], float]
NAMED = Choice(("largest", "distance"))
DRAWS, SEED = Integers(1, 10**6), Integers(0, 2**128)
ENSEMBLE = Instance(Ensemble)
CALIBRATED = (Wigner, Wishart, GaussianProduct, GaussianSum)
"""Ensembles whose largest value follows Tracy-Widom closely enough: false alarms are 0.5 to 1.1 of the level from 0.001
to 0.1 (tests/limits/test_false_alarms.py, table in docs/nulls.md)."""


class PValue(NamedTuple):
    """Probability of a statistic at least as large under the null, and its number of draws (None: a limit law).

    >>> from bulkedge.laws import MarchenkoPastur
    >>> value, draws = LawNull(MarchenkoPastur(0.5), size=100).p_value(Spectrum.of([1.0, 3.1], unit="values"))
    >>> round(value, 4), draws
    (0.0026, None)
    """

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
            What was measured, in the unit of the null or one that converts to it exactly, as for
            :func:`~bulkedge.compare`.
        statistic : {"largest", "distance"} or callable
            The largest value, the Kolmogorov distance to :attr:`distribution`, or any function of a spectrum whose
            large values speak against the null.

        Returns
        -------
        PValue
            With the number of draws behind it.
        """

    def _in_own_unit(self, spectrum: Spectrum) -> Spectrum:
        """The spectrum in the unit of the null, or an error that says what to call instead."""
        found, other = in_one_unit(spectrum, self.distribution)
        if other is not self.distribution:
            raise UnitError(
                f"the null is of {self.distribution.unit}, the spectrum of {spectrum.unit}: "
                "take LawNull(law.squared(), size)"
            )
        return found


@dataclass(frozen=True)
class LawNull(Null):
    """A law as the null, for matrices with a given number of values.

    Laws of attention are close in the bulk, but their edge is not calibrated: of fresh heads of 64 tokens at beta = 1,
    45 % have a p-value below 0.05. For these a :class:`~bulkedge.support.errors.RegimeWarning` names
    :func:`null_of`, which simulates.

    >>> from bulkedge.laws import MarchenkoPastur
    >>> round(LawNull(MarchenkoPastur(0.5), size=100).edge(level=0.05), 3)
    2.98

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

    def __post_init__(self) -> None:
        """Warn of laws whose p-values are not calibrated."""
        if _is_of_attention(self.law):
            warnings.warn(
                f"law = {shown(self.law)} is of attention, and its edge is not calibrated: up to 45 % of fresh heads "
                "were beyond it at level 0.05. Simulate the null instead: be.null_of(ensemble, size)",
                RegimeWarning,
                stacklevel=3,
            )

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

    @takes(spectrum=Instance(Spectrum))
    def p_value(self, spectrum: Spectrum, statistic: Statistic = "largest") -> PValue:
        """For the largest value only: of other statistics a law does not say how they fluctuate."""
        spectrum = self._in_own_unit(spectrum)
        if not isinstance(statistic, str) or statistic != "largest":
            raise DomainError(
                f"statistic = {shown(statistic)}: a law knows the fluctuations of the largest value alone; take a "
                "SimulatedNull for others"
            )
        scale = self.law.edge_scale * self.size ** (-2 / 3)
        beyond = (float(spectrum.values[-1]) - self.law.edge) / scale
        return PValue(float(TracyWidom(self.dyson).sf(beyond)), None)


def _is_of_attention(law: Any) -> bool:
    """Whether a law is of attention, or an image or a mixture of such laws."""
    if isinstance(law, tuple):
        return any(map(_is_of_attention, law))
    if not isinstance(law, Law):
        return False
    parts = (getattr(law, each.name) for each in fields(law)) if is_dataclass(law) else ()
    return type(law).__module__.startswith(attention.__name__) or any(map(_is_of_attention, parts))


@dataclass(frozen=True, eq=False)
class SimulatedNull(Null):
    """Drawn spectra as the null.

    >>> from bulkedge.ensembles import Wishart
    >>> null = SimulatedNull.of(Wishart(20, 40), draws=19, rng=np.random.default_rng(0))
    >>> null.draws, round(null.edge(level=0.1), 2)
    (19, 2.93)

    Parameters
    ----------
    members : sequence of Spectrum
        Independent draws, of one unit and size.
    """

    members: tuple[Spectrum, ...]

    def __post_init__(self) -> None:
        """Check that the draws are alike."""
        members = Each(Instance(Spectrum), 10**6).check("members", self.members)
        if len({(each.unit, each.size) for each in members}) > 1:
            raise DomainError("members must be spectra of one unit and size, one at least")
        object.__setattr__(self, "members", members)

    @classmethod
    def of(cls, ensemble: Ensemble, draws: int = 19, rng: Any = 0) -> SimulatedNull:
        """Draw from an ensemble; a process draws the same ensemble and seed only once.

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
        return _pool(self.members)

    def edge(self, level: float = 0.05) -> float:
        """Order statistic of the largest values of draws: a further draw exceeds it with at most that probability."""
        rank = LEVEL.check("level", level) * (self.draws + 1)
        if rank < 1 - 1e-9:
            raise DomainError(f"level = {level:g} needs {int(np.ceil(1 / level)) - 1} draws; there are {self.draws}")
        return float(np.sort([each.values[-1] for each in self.members])[self.draws - int(rank + 1e-9)])

    @takes(spectrum=Instance(Spectrum))
    def p_value(self, spectrum: Spectrum, statistic: Statistic = "largest") -> PValue:
        """``(1 + draws as large)/(1 + draws)``, which is exact whatever the distribution.

        For the distance each of the draws, and the spectrum, is compared with all the others together: under the null
        all of these are alike.
        """
        own, others = self._measure(self._in_own_unit(spectrum), statistic)
        return PValue(float((1 + np.sum(others >= own)) / (1 + self.draws)), self.draws)

    def _measure(self, spectrum: Spectrum, statistic: Statistic) -> tuple[float, Real]:
        if callable(statistic):
            return float(statistic(spectrum)), np.array([statistic(each) for each in self.members])
        if NAMED.check("statistic", statistic) == "largest":
            return float(spectrum.values[-1]), np.array([each.values[-1] for each in self.members])
        everything = (*self.members, spectrum)
        distances = [compare(each, _pool(everything[:k] + everything[k + 1 :])).ks for k, each in enumerate(everything)]
        return float(distances[-1]), np.array(distances[:-1])


def _pool(spectra: Sequence[Spectrum]) -> StepDistribution:
    values, weights = (np.concatenate([getattr(each, name) for each in spectra]) for name in ("values", "weights"))
    return StepDistribution(values, weights, spectra[0].unit)


@lru_cache(maxsize=64)
def _simulated_null(ensemble: Ensemble, draws: int, seed: int) -> SimulatedNull:
    return SimulatedNull.of(ensemble, draws, np.random.default_rng(seed))


def null_of(ensemble: Ensemble, size: int, draws: int = 19, rng: Any = 0) -> Null:
    """The null of an ensemble: its law if the p-values are calibrated, and a simulation otherwise.

    Those of Gaussian matrices are (:class:`~bulkedge.ensembles.Wigner`, :class:`~bulkedge.ensembles.Wishart`,
    :class:`~bulkedge.ensembles.GaussianProduct`, :class:`~bulkedge.ensembles.GaussianSum`) where some sixteen values
    or more are near the edge. Attention has large entries and approximate laws, whose p-values are not.

    Parameters
    ----------
    ensemble : Ensemble
        The random matrix.
    size : int
        Number of values of a draw, for the fluctuations at the edge.
    draws : int
        Draws of the simulation, where it is one.
    rng : int or generator
        Seed or source of the simulation; the draws of a seed are kept.

    Returns
    -------
    Null
        :class:`LawNull` or :class:`SimulatedNull`.

    Examples
    --------
    >>> from bulkedge.ensembles import SoftmaxAttention, Wishart
    >>> null = null_of(Wishart(dim=60, samples=120), size=60)
    >>> type(null).__name__, round(null.edge(level=0.05), 3)
    ('LawNull', 3.006)
    >>> null_of(SoftmaxAttention(tokens=64, head_dim=32), size=64).draws
    19
    """
    size = COUNT.check("size", size)
    if isinstance(ENSEMBLE.check("ensemble", ensemble), CALIBRATED):
        law = ensemble.law()
        # they were calibrated up to this width of the fluctuation, relative to the edge: that of about 16 values
        if law.has_soft_edge and law.edge_scale * size ** (-2 / 3) <= 0.1 * law.edge:
            return LawNull(law, size)
    return SimulatedNull.of(ensemble, draws, rng)


@takes(spectrum=Instance(Spectrum), dyson=Choice((1, 2, 4)), kurtosis=KURTOSIS, estimated=ESTIMATED, draws=DRAWS)
def goodness_of_fit(  # noqa: PLR0913 - what is compared, what is known of the entries, and how to simulate
    spectrum: Spectrum,
    law: Law | Ensemble | Null,
    *,
    dyson: int = 1,
    kurtosis: float = 0.0,
    estimated: Sequence[str] = (),
    draws: int = 199,
    rng: Any = 0,
) -> GoodnessOfFit:
    """Test whether a whole spectrum fits a law or an ensemble.

    The test looks at sums of Chebyshev polynomials over the values. For a symmetric matrix with independent entries
    (``Semicircle``) and for a sample covariance of white noise (``MarchenkoPastur``) their fluctuations are known. Any
    other ensemble is simulated.

    Parameters
    ----------
    spectrum : Spectrum
        All values of one matrix.
    law : Law, Ensemble or Null
        What they should follow. A law without known fluctuations is refused: pass its ensemble, which is simulated, or
        a :class:`~bulkedge.SimulatedNull`.
    dyson : {1, 2, 4}
        Symmetry class of the matrix: 1 for real entries, 2 for complex ones.
    kurtosis : float
        Excess kurtosis of the entries (off the diagonal, of a symmetric matrix): 0 for Gaussian ones, -1.2 for uniform
        ones.
    estimated : sequence of str
        Parameters of the law that were estimated from this spectrum, such as ``("scale",)``.
    draws : int
        Spectra to simulate, where it is necessary; 19 or more.
    rng : int or generator
        Seed or source of the simulation. The draws of a seed are kept.

    Returns
    -------
    GoodnessOfFit
        The p-value as ``.value``, its ``statistic`` and ``draws``, and ``words``.

    Raises
    ------
    DomainError
        If no calibrated p-value is known: for other laws, for fewer than 20 values, or for a spectrum that was
        estimated instead of computed.

    Notes
    -----
    Outliers of the two laws are set aside, and what their signals do to the other values is subtracted: values beyond
    ``finite_edge`` at level 0.01, on both sides for a symmetric matrix. A simulated test takes all values as they are.
    Measured rates of rejection are in docs/goodness_of_fit.md.

    Examples
    --------
    >>> from bulkedge.ensembles import Wishart
    >>> from bulkedge.laws import MarchenkoPastur
    >>> measured = Wishart(dim=100, samples=200).spectrum(np.random.default_rng(0))
    >>> print(goodness_of_fit(measured, MarchenkoPastur(0.5)).words)
    The spectrum fits: p = 0.25.
    >>> print(goodness_of_fit(measured, MarchenkoPastur(0.45)).words)
    The spectrum does not fit: p = 0.00011.
    """
    if spectrum.error or len(spectrum.values) < spectrum.size:
        raise DomainError("spectrum was estimated, not computed: goodness_of_fit needs all values of the matrix")
    if isinstance(law, Wigner | Wishart):
        law = law.law()
    elif isinstance(law, Ensemble):
        law = SimulatedNull.of(law, draws, rng)
    if isinstance(law, SimulatedNull):
        if len(estimated) or kurtosis:
            raise DomainError("estimated and kurtosis are of laws; a simulation has its own entries and parameters")
        return simulated_fit(spectrum, law)
    if not isinstance(law, Law):
        raise DomainError(f"law = {shown(law)} is not a law, an ensemble or a simulated null")
    measured, law = in_one_unit(spectrum, law)  # type: ignore[assignment]
    reach = law.reach(measured.size, 0.01, dyson)  # one spectrum in a hundred without structure loses a value to it
    found = law_fit(measured.values, law, Assumed(reach, dyson, kurtosis, tuple(dict.fromkeys(estimated))))
    if found is None:
        raise DomainError(
            f"no calibrated p-value is known for {len(measured.values)} values and {law!r}: it takes {FEWEST} values "
            "or more (27 if two parameters were estimated), and Semicircle, QuarterCircle or MarchenkoPastur. Pass the "
            "ensemble instead, which is simulated"
        )
    return found


def simulated_fit(spectrum: Spectrum, null: SimulatedNull) -> GoodnessOfFit:
    """The fit of a spectrum among simulated ones: the rank of its distance from the mean of all of them."""
    own, _ = in_one_unit(spectrum, null.distribution)
    if own.unit is not null.members[0].unit or own.size != null.members[0].size:
        first = null.members[0]
        raise DomainError(
            f"spectrum has {own.size} {own.unit}, the simulated ones {first.size} {first.unit}: they must be alike"
        )
    distances, freedom = exchangeable_distances(np.stack([each.values for each in (*null.members, own)]))
    value = float(np.mean(distances >= distances[-1] * (1 - 1e-9)))
    return GoodnessOfFit(value, float(distances[-1]), freedom, null.draws)


def exchangeable_distances(values: Real, covariates: Real | None = None) -> tuple[Real, int]:
    """Squared distances of rows of values from the mean of all, in units of their common covariance.

    All rows are treated alike, so that under the null each is equally likely to be the farthest, whatever the law is.
    ``covariates`` (rows, q) are estimates made from each row's matrix, whose linear effect is removed.
    """
    low, high = np.median(values[:, 0]), np.median(values[:, -1])
    rows = len(values)
    # simulated spectra for each linear statistic: fewer do not show the covariance
    count = max(1, min(degrees(values.shape[1]), rows // 8))
    points = (2 * values - low - high) / max(high - low, np.finfo(float).tiny)
    sums = np.stack([chebyshev_sums(each, count) for each in points])
    sums -= sums.mean(axis=0)
    if covariates is not None:
        effects = covariates - covariates.mean(axis=0)
        sums -= effects @ np.linalg.lstsq(effects, sums, rcond=None)[0]
    left, sizes, _ = np.linalg.svd(sums, full_matrices=False)
    kept = sizes > 1e-9 * max(sizes[0], 1e-300)
    return np.asarray((left[:, kept] ** 2).sum(axis=1) * (rows - 1)), int(kept.sum())
