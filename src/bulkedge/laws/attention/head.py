"""The spectrum of a head's attention at any inverse temperature, causal or not: from flat heads to one-hot rows (ours).

Flat heads are a sum of low-rank terms and noise (:mod:`bulkedge.laws.attention.finite_head`). Sharp ones have a few
large entries in each row besides, and cavity equations on the graph of these (:mod:`bulkedge.laws.engine.cavity`), with
the same low-rank terms in them, know both. The law takes the one that is nearer to draws. Causal heads have cavity
equations of their own (:mod:`bulkedge.laws.engine.masked_cavity`).

>>> HeadLaw(beta=3.0, head_dim=64, tokens=4096).accuracy < 0.02
True
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

from bulkedge.laws.attention.causal_head import CausalHeadLaw
from bulkedge.laws.attention.finite_head import MOST_DEVIATION, FiniteHeadLaw, check_norms, finite_size
from bulkedge.laws.attention.head_graph import causal_graph, head_graph
from bulkedge.laws.attention.sharp_head import TOLERANCE, LogTable, table_of
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.cavity import Cavity
from bulkedge.laws.engine.masked_cavity import MaskedCavity
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import RegimeWarning

FEW, MANY = 512, 2048  # rows of the graph, and where single entries dominate their rows
MOST_FLAT = 4.0  # inverse temperature up to which there is a law of flat heads
LOW_DIMENSION, FARTHER, ONE_HOT = 16, 0.01, 30.0
"""Dimension below which strong entries are no tree: near keys have near neighbours. Tables are then up to 0.2 away from
draws, and the law of flat heads follows them up to MOST_FLAT. At larger beta draws are farther by less than FARTHER for
each dimension that is missing; that fades until rows are nearly one-hot."""
DEVIATIONS = ((1.0, 0.016), (1.5, 0.008), (3.0, 0.008), (4.0, 0.012), (6.0, 0.02), (12.0, 0.02), (30.0, 0.022))
"""Inverse temperatures, and how far draws were found to be from the sharp law, besides finite size."""
CAUSAL_DEVIATIONS = (
    (1.0, 0.008),
    (2.0, 0.01),
    (3.0, 0.014),
    (4.0, 0.014),
    (6.0, 0.022),
    (8.0, 0.07),
    (12.0, 0.12),
    (30.0, 0.2),
)
"""The same for causal heads."""
MOST_CAUSAL = 5.0  # inverse temperature from which the law of causal heads warns
CAUSAL_ROWS = 1024  # rows of the graph of a causal head
SHALLOW, DEEP = 1e-8, 80.0
"""Tables of causal heads are solved for down to the first, over the mean. Below, the distribution function is one over
a linear function of ``log x``, as for triangular matrices, down to the exponential of minus the second."""
LEAST = 1e-5  # share of the mass that is spread evenly over the intervals of a table
CLOSEST = 1e-5  # distance of points of the table in ``log x``
RISE = 0.05  # by which a table rises from point to point, at most
STEEPEST = 10  # root with which the density may begin at zero, at most: of higher ones, floating point loses mass


@dataclass(frozen=True)
class HeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A = softmax(beta S) of T tokens and C its mean, at any beta.

    Tokens see all others, and C is ``uu'``, or with ``causal`` themselves and earlier ones only. Scores are those of
    Gaussian queries and keys, or of normalised ones with ``qk_norm``. Where it is nearer, this is the law of flat
    heads, :class:`~bulkedge.laws.attention.finite_head.FiniteHeadLaw` or
    :class:`~bulkedge.laws.attention.causal_head.CausalHeadLaw`. Else it is the solution of cavity equations with terms
    of low rank, as a table of some forty points: the distribution function is interpolated in ``log x``, and the
    density is its derivative. It has no sharp end on the right then, since single large entries reach far: ``edge`` is
    the last point of the table, beyond which less than 0.0004 of the mass lies. One value in T is zero, an atom.

    The first evaluation solves the equations, in four to eight seconds, at any number of tokens. Equal parameters
    give equal numbers in every process. :attr:`accuracy` is the Kolmogorov distance that draws keep. In fewer than 16
    dimensions the law of flat heads is nearer up to beta = 4; beyond, and for causal heads beyond beta = 5, a
    :class:`~bulkedge.support.errors.RegimeWarning` says how far draws are.

    >>> law = HeadLaw(beta=0.5, head_dim=64, tokens=1024)
    >>> round(law.edge, 3), law.is_flat
    (7.653, True)
    """

    unit = Unit.SQUARED

    beta: float = parameter(Interval(1e-3, 50), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 10**6), "number of tokens T")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)
    causal: bool = parameter(Choice((False, True)), "whether tokens see no later ones", default=False)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        check_norms(self.head_dim, qk_norm=self.qk_norm)
        why = ""
        if self.beta > MOST_FLAT and self._loops > MOST_DEVIATION:
            why = f"keys in fewer than {LOW_DIMENSION} dimensions have neighbours"
        elif self.causal and self.beta > MOST_CAUSAL:
            why = "low degrees are left out of causal heads so sharp"
        if why:
            warnings.warn(
                f"HeadLaw at head_dim = {self.head_dim} and beta = {self.beta:g}: the Kolmogorov distance of draws is "
                f"up to {self.accuracy:.2g}, because {why}. Simulate instead (be.null_of)",
                RegimeWarning,
                stacklevel=3,
            )

    @property
    def matrix(self) -> str:
        """The normalised matrix."""
        return CausalHeadLaw.matrix if self.causal else FiniteHeadLaw.matrix

    @cached_property
    def _flat(self) -> FiniteHeadLaw | CausalHeadLaw | None:
        """The law of flat heads, where it is nearer to draws."""
        if self.beta > MOST_FLAT:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            family = CausalHeadLaw if self.causal else FiniteHeadLaw
            law = family(self.beta, self.head_dim, self.tokens, self.qk_norm)
        near = self.head_dim < LOW_DIMENSION or law.accuracy <= self._table_accuracy
        return law if near else None

    @property
    def is_flat(self) -> bool:
        """Whether this is the law of flat heads, with an edge, and not a table."""
        return self._flat is not None

    @property
    def _table_accuracy(self) -> float:
        betas, distances = np.array(CAUSAL_DEVIATIONS if self.causal else DEVIATIONS).T
        # besides, what a table leaves out: two terms of rank one
        found = float(np.interp(self.beta, betas, distances)) + finite_size(self.tokens) + 2 / self.tokens
        return found + self._loops

    @property
    def _loops(self) -> float:
        """How much farther a table is because of its few dimensions."""
        fading = np.clip((ONE_HOT - self.beta) / (ONE_HOT - MOST_FLAT), 0.0, 1.0)
        return float(FARTHER * max(LOW_DIMENSION - self.head_dim, 0) * fading)

    @property
    def accuracy(self) -> float:
        """Kolmogorov distance that draws were not found to exceed (docs/laws/sharp_head.md, "Keys and queries")."""
        return self._flat.accuracy if self._flat else self._table_accuracy

    @property
    def atoms(self) -> PointMasses:
        """The zero of the constant vector, where the law is a table."""
        return self._flat.atoms if self._flat else ((0.0, 1 / self.tokens),)

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """What the largest value exceeds with probability ``level``; of causal heads, that of the first rows."""
        if not self.causal:
            return super().finite_edge(n, level, dyson)
        beta = min(self.beta, MOST_FLAT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            law = CausalHeadLaw(beta, self.head_dim, self.tokens, self.qk_norm, self.beta)
        return law.finite_edge(n, level, dyson)

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``."""
        return self.finite_edge(n, level, dyson) if self.causal else super().reach(n, level, dyson)

    def _bulk(self) -> BulkDensity | None:
        if self._flat:
            return self._flat._bulk()
        return tabulated(_solve(self), 1 - 1 / self.tokens)


@lru_cache(maxsize=64)
def _solve(law: HeadLaw) -> LogTable:
    """The table of a head, once in a process."""
    head = law.beta, law.head_dim, law.tokens
    if not law.causal:
        graph = head_graph(*head, qk_norm=law.qk_norm, sizes=(FEW, MANY))
        return table_of(Cavity(graph, TOLERANCE), law.beta, law.tokens, RISE)
    cavity = MaskedCavity(causal_graph(*head, qk_norm=law.qk_norm, size=CAUSAL_ROWS), TOLERANCE)
    return deepened(table_of(cavity, law.beta, law.tokens, RISE, SHALLOW), float(np.log(cavity.mean)) - DEEP)


def deepened(table: LogTable, lowest: float) -> LogTable:
    """A table that goes on downwards as one over a linear function of the logarithm."""
    logs, masses = table.knots()
    slope = (1 / masses[1] - 1 / masses[0]) / (logs[1] - logs[0])
    more = np.linspace(lowest, logs[0], 8)[:-1]
    return LogTable(np.append(more, logs), np.append(1 / (1 / masses[0] + slope * (more - logs[0])), masses))


def tabulated(table: LogTable, mass: float) -> BulkDensity:
    """Density of a table of so much mass: each of its intervals is one of the support, and they touch."""
    logs, masses = table.knots()
    # on intervals closer to rounding than this a density would lose mass
    kept = np.append(np.diff(logs) > CLOSEST, True)
    logs, masses = logs[kept], masses[kept]
    # where the table is flat, a little mass keeps quantiles apart
    masses = masses + LEAST * (np.linspace(0.0, 1.0, len(masses)) - masses)
    # the density falls to zero at the last point
    slopes = np.append(PchipInterpolator(logs, masses).derivative()(logs[:-1]), 0.0)
    places, slope = np.exp(logs), CubicHermiteSpline(logs, masses, slopes).derivative()
    # below the table there is a power of x, as nearly that of the table as an edge at zero can have
    order = int(np.clip(round(1 / table.power), 1, STEEPEST))
    first = mass * masses[0] / places[0] ** (1 / order) / order

    def density(x: Real) -> tuple[Real, Real]:
        inside = mass * np.maximum(slope(np.log(np.maximum(x, places[0]))), 0.0) / x
        found = np.where(x < places[0], first * x ** (1 / order - 1), inside)
        return found, 64 * EPS * (found + mass / x)

    ends: list[Any] = [(Edge.hard(0.0, order) if order > 1 else Edge.plain(0.0), Edge.plain(float(places[0])))]
    ends += [(Edge.plain(float(a)), Edge.plain(float(b))) for a, b in pairwise(places)]
    return ends, density
