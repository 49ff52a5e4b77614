"""Attention at any temperature: squared singular values from a bulk to one-hot rows, for independent scores (ours).

Rows of ``A = softmax(beta S)``, with independent standard normal scores S, are dense for small beta and have a few
large entries for large beta. The law follows from cavity equations (:mod:`bulkedge.laws.engine.cavity`;
docs/theory/sharp.md derives them) on a graph that is made once for each beta and number of tokens:

- The largest scores of a row are order statistics of T normal numbers, drawn with their joint law. What is left of the
  row, given the last of them, adds its mean to the normaliser and its variance to the row's noise.
- Every large weight goes to a column. Columns are all alike and independent of the row, so that the weights that a
  column gets are a Poisson process: sorted by size, weights go to the columns in the order of N such processes.
- Weights b of the rest of a row are its mean there: ``A - b 1'`` differs from A by rank one, which no law sees.

Uniform numbers behind this are points of a Sobol sequence, moved by a fixed shift, so that equal parameters give equal
numbers, and so that N rows and columns represent all of them much better than N draws.

>>> SharpHeadLaw(beta=1.0, tokens=2000).cdf([0.1, 1.0, 10.0]).round(2)
array([0.16, 0.48, 1.  ])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.special import betaincinv, gammaincinv, log_ndtr, ndtri

from bulkedge.laws.distribution import Distribution, PointMasses, Unit
from bulkedge.laws.engine.cavity import Cavity, CavityEquations, Degrees, Graph, HalfCircle
from bulkedge.support.arrays import EPS, BoolArray, Real
from bulkedge.support.domains import REAL, Integers, Interval, Parametric, parameter

FEW, MANY = 512, 2048
"""Rows of the graph where no entry is more than a fifth of its row, and where some are: other points of the
sequence change the distribution function by 0.0005 then, and by 0.004."""
EDGES = 8  # edges of a row, in the mean; 16 change the distribution function by less than 0.001 where it is above 0.02
TOLERANCE = 2e-4  # absolute tolerance of the distribution function at a point
RISE, NARROW, TABLE = 0.04, 1e-3, 128
"""Between two points of the table the distribution function rises by at most ``RISE``, unless they are closer than
``NARROW`` in ``log x``; there are at most ``TABLE`` points."""
STEPS_FROM, NEXT_TO_STEPS, STEEPER = 8.0, (NARROW / 2, 2e-5, 1e-7), 6
"""Inverse temperature from which there are points next to multiples of T, at these distances in ``log x``; there angles
gather at the positive axis with a larger power."""
DEEPEST = 1e-60  # smallest value that a table has a point for, over the mean


class LogTable:
    """A distribution function between tabulated points: monotone cubics in ``log x``, and a power of x below.

    >>> table = LogTable(np.log([0.01, 1.0, 4.0]), np.array([0.1, 0.5, 1.0]))
    >>> table.cdf(np.log([1.0, 4.0, 5.0]))
    array([0.5, 1. , 1. ])
    """

    def __init__(self, logs: Real, masses: Real) -> None:
        self._logs, self.masses = logs, masses
        self._between = PchipInterpolator(logs, masses)
        # a table that begins flat has no power of its own
        self.power = max(float(np.log(masses[1] / masses[0]) / (logs[1] - logs[0])), 1e-3)

    def knots(self) -> tuple[Real, Real]:
        """The points of the table, and the mass up to each."""
        return self._logs, self.masses

    def cdf(self, log: Real) -> Real:
        """The mass up to the exponential of each argument."""
        first, last = self._logs[[0, -1]]
        tail = self.masses[0] * np.exp(self.power * np.minimum(log - first, 0.0))
        inside = self._between(np.clip(log, first, last))
        return np.where(log < first, tail, np.where(log > last, 1.0, inside))

    def log_quantile(self, level: Real) -> Real:
        """Logarithm of the point at which the mass reaches each level, by bisection; minus infinity at zero."""
        low, high = np.full(level.shape, self._logs[0]), np.full(level.shape, self._logs[-1])
        for _ in range(60):
            middle = (low + high) / 2
            reached = self._between(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        with np.errstate(divide="ignore"):
            tail = self._logs[0] + np.log(level / self.masses[0]) / self.power
        return np.where(level < self.masses[0], tail, high)


class NormalScores(NamedTuple):
    """Normal scores, times a spread."""

    spread: Any  # (N,) standard deviation of the scores of each row, or one of all

    def largest(self, tail: Real) -> Real:
        """Scores over the spread that are exceeded with these probabilities."""
        return np.asarray(-ndtri(tail))

    def below(self, last: Real, order: int) -> Real:
        """Logarithm of the mean of ``exp(order * spread * s)`` over scores s below the last."""
        shift = order * self.spread
        return np.asarray(shift**2 / 2 + log_ndtr(last - shift) - log_ndtr(last))


class SphereScores(NamedTuple):
    """Cosines of independent directions, times ``sqrt(dim)`` and the spread."""

    spread: float
    dim: int

    def largest(self, tail: Real) -> Real:
        """Scores over the spread that are exceeded with these probabilities."""
        half = (self.dim - 1) / 2
        return np.asarray((1 - 2 * betaincinv(half, half, tail)) * self.dim**0.5)

    def below(self, last: Real, order: int) -> Real:
        """Logarithm of the mean of ``exp(order * spread * s)`` over scores s below the last."""
        angle = np.pi / 2 + np.linspace(1, -1, 8001) * min(np.pi / 2 - 1e-9, 18 / self.dim**0.5)
        score = np.cos(angle) * self.dim**0.5
        logs = (self.dim - 2) * np.log(np.sin(angle))
        sums = [_log_integral(logs + each * self.spread * score) for each in (order, 0)]
        first, second = (np.interp(last, score[1:], each) for each in sums)
        return np.asarray(first - second)


def _log_integral(logs: Real) -> Real:
    """Logarithms of running sums of exponentials, by the trapezium rule."""
    return np.asarray(np.logaddexp.accumulate(np.logaddexp(logs[1:], logs[:-1])))


class SoftmaxRows(NamedTuple):
    """N rows of softmax weights of T scores."""

    weights: Real  # (N, m) the largest weights of each row, in decreasing order
    # first, second: (N,) sum of all other weights and the sum of their squares, in the mean over rows with the same
    # largest scores
    first: Real
    second: Real
    scores: Real  # (N, m) scores of the largest weights, over their spread
    log_normaliser: Real  # (N,)
    spread: Any  # standard deviation of scores, of each row or of all


@dataclass(frozen=True)
class SharpHeadLaw(Parametric, Distribution):
    """Squared singular values of ``sqrt(T) (A - 1/T)``, A the softmax of independent scores with any spread beta.

    For small beta it is the Marchenko-Pastur law of ratio one and mean ``exp(beta**2) - 1``; for large beta it tends to
    T times the Poisson law of rate one. One value in T is zero, since rows sum to zero: that is an atom.

    The distribution function is the same in every process. It is accurate to 0.001 where rows are dense and to about
    0.005 where they are not, besides terms of order 1/T (up to 0.02 at 64 tokens). Single draws of 1000 tokens are
    0.003 (beta 0.5) to 0.02 (beta 10) away from it, as far as from each other.

    It is no :class:`~bulkedge.laws.law.Law`: a table is solved for when it is first asked for, in one to six seconds,
    and there is no density and no edge. Scores of keys and queries are not independent (docs/laws/sharp_head.md).

    >>> SharpHeadLaw(beta=1.0, tokens=2000).ppf([0.5, 0.9]).round(1)
    array([1.1, 4.5])
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - 1/T), A the softmax of independent scores"

    beta: float = parameter(Interval(0.1, 50), "inverse temperature: standard deviation of the scores")
    tokens: int = parameter(Integers(64, 10**6), "number of tokens T")

    @property
    def atoms(self) -> PointMasses:
        """The zero of the constant vector."""
        return ((0.0, 1 / self.tokens),)

    def mean(self) -> float:
        """Mean of the squared singular values: ``T E sum_j A_ij**2 - 1`` for a row i."""
        return self.tokens * float(_squares(_rows(self.beta, self.tokens, MANY, 0), self.tokens).mean())

    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x, from the table; zero below zero."""
        points = REAL.check("x", x)
        mass = np.where(np.isnan(points), np.nan, np.where(points > 0, 1.0, 0.0))
        inside = (points > 0) & np.isfinite(points)
        if inside.any():
            mass[inside] = self._table.cdf(np.log(points[inside]))
        return np.where(points >= 0, 1 / self.tokens + (1 - 1 / self.tokens) * mass, mass)[()]

    def ppf(self, q: ArrayLike) -> Any:
        """Smallest x with ``cdf(x) >= q``, from the same table; nan outside [0, 1]."""
        levels = REAL.check("q", q)
        valid = (levels >= 0) & (levels <= 1)
        result = np.full(levels.shape, np.nan)
        above = np.clip((levels[valid] * self.tokens - 1) / (self.tokens - 1), 0.0, 1.0)
        if above.size:
            result[valid] = np.exp(self._table.log_quantile(above))
        return result[()]

    @property
    def _table(self) -> LogTable:
        return _solve_table(self)


@lru_cache(maxsize=64)
def _solve_table(law: SharpHeadLaw) -> LogTable:
    """The table of a law, once in a process."""
    return table_of(Cavity(sharp_graph(law.beta, law.tokens), TOLERANCE), law.beta, law.tokens)


def table_of(
    cavity: CavityEquations, beta: float, tokens: int, rise_allowed: float = RISE, deepest: float = DEEPEST
) -> LogTable:
    """The table of a graph's values: points outwards from the mean, then the steepest intervals halved."""
    circle, mean = HalfCircle.nodes(12), cavity.mean

    def mass(log: float) -> float:
        return min(max(cavity.mass(float(np.exp(log)), circle), 0.0), 1.0)

    found = {np.log(mean): mass(np.log(mean))}
    if beta > STEPS_FROM:
        found |= _steps(cavity, tokens)
    while found[max(found)] < 1 - 2 * TOLERANCE:
        found[max(found) + 0.7] = mass(max(found) + 0.7)
    step = 2.0
    while found[min(found)] > 0.004 and min(found) > np.log(mean * deepest):
        found[min(found) - step] = mass(min(found) - step)
        step *= 1.3
    while len(found) < TABLE:
        # next to an edge on the right the function bends most
        rises = [
            ((found[b] - found[a]) * (3.0 if found[b] > 0.95 else 1.0), a, b)
            for a, b in pairwise(sorted(found))
            if b - a > 1.01 * NARROW
        ]
        rise, low, high = max(rises)
        if rise < rise_allowed:
            break
        found[(low + high) / 2] = mass((low + high) / 2)
    logs = np.array(sorted(found))
    masses = np.maximum.accumulate([found[log] for log in logs.tolist()])
    masses[-1] = 1.0
    return LogTable(logs, masses)


def _steps(cavity: CavityEquations, tokens: int) -> dict[float, float]:
    """The distribution function next to the first multiples of T, where it rises most."""
    # values lie on all scales about a multiple: rows leave a little to other columns, and columns get that of others
    found: dict[float, float] = {}
    circle = HalfCircle.nodes(24, STEEPER)
    for log in np.log(tokens * np.arange(1.0, 5.0)).tolist():
        for side in (-1, 1):
            close = NEXT_TO_STEPS if log < np.log(2.5 * tokens) else NEXT_TO_STEPS[:1]
            masses = [float(np.clip(cavity.mass(np.exp(log + side * each), circle), 0.0, 1.0)) for each in close]
            places = np.append(close, np.geomspace(close[0], close[-1], 2 * len(close) - 1)[1:-1:2])
            between = np.interp(np.log(places), np.log(close[::-1]), masses[::-1])
            found |= dict(zip((log + side * places).tolist(), between.tolist(), strict=True))
    return found


def sharp_graph(
    beta: float, tokens: int, stream: int = 0, sizes: tuple[int, int] = (FEW, MANY), uneven: float = 0.0
) -> Graph:
    """Rows of attention with independent scores, as strong entries and noise; column rates have variance ``uneven``."""
    rows = _rows(beta, tokens, sizes[0], stream)
    if dominated(rows, tokens):
        rows = _rows(beta, tokens, sizes[1], stream)
    strong = _strong_entries(rows, tokens)
    first = rows.first + np.where(strong, 0.0, rows.weights).sum(axis=1)
    second = rows.second + np.where(strong, 0.0, rows.weights**2).sum(axis=1)
    counts = strong.sum(axis=1)
    mean = first / (tokens - counts)
    ends = np.repeat(np.arange(len(counts)), counts)
    weights = rows.weights[strong]
    squares = tokens * (weights - mean[ends]) ** 2
    noise = tokens * np.maximum(second - first * mean, 0.0)
    # the mean of the edges is of rank one too: what it adds to the row's variance is taken off the noise, if it can be
    excess = np.bincount(ends, squares) + noise - tokens * _squares(rows, tokens)
    columns, left = edge_columns(weights, len(counts), stream, uneven), np.maximum(noise - excess, noise / 2)
    alike = np.zeros(len(counts), dtype=np.intp)
    return Graph(ends, columns, squares, left[:, None], alike, Degrees.none(len(counts), len(ends)))


def _rows(beta: float, tokens: int, size: int, stream: int) -> SoftmaxRows:
    """Weights of rows of independent scores."""
    count = min(48, tokens // 2)  # scores that are drawn one by one
    return softmax_rows(NormalScores(beta), tokens, sobol_points(size, count + 1, 2 * stream))


def softmax_rows(scores: NormalScores | SphereScores, tokens: Any, uniform: Real) -> SoftmaxRows:
    """Weights of rows of so many tokens, one number or one a row: the largest first, and zeros where there are few."""
    # order statistics of uniform numbers are sums of exponential ones over the sum of all
    most = uniform.shape[1] - 1
    count = np.clip(np.rint(tokens * np.ones(len(uniform))) - 1, 1, most).astype(np.intp)
    sums = np.cumsum(-np.log(uniform[:, :-1]), axis=1)
    end = np.take_along_axis(sums, count[:, None] - 1, axis=1)
    largest = scores.largest(
        np.minimum(sums / (end + gammaincinv(tokens + 1 - count, uniform[:, -1])[:, None]), 1 - EPS)
    )
    last, left = np.take_along_axis(largest, count[:, None] - 1, axis=1)[:, 0], np.log(tokens - count)
    # sums of exp(k beta s) over scores s below the last one; logarithms, since exp(beta**2) may overflow
    one, two = (left + scores.below(last, k) for k in (1, 2))
    logs = np.where(np.arange(most) < count[:, None], np.reshape(scores.spread, (-1, 1)) * largest, -np.inf)
    normaliser = np.logaddexp(np.logaddexp.reduce(logs, axis=1), one)
    weights = np.exp(logs - normaliser[:, None])
    first, second = np.exp(one - normaliser), np.exp(two - 2 * normaliser)
    return SoftmaxRows(weights, first, second, largest, normaliser, scores.spread)


def dominated(rows: SoftmaxRows, tokens: int) -> bool:
    """Whether the largest entry is a fifth of what its row has, in the mean."""
    return bool(np.mean(rows.weights[:, 0] ** 2 / _squares(rows, tokens)) > 0.2)


def strongest(rows: SoftmaxRows, edges: int, least: int, tokens: Any = 1.0) -> tuple[BoolArray, Real]:
    """The largest weights of all rows together, and a few of each row; scores below which a row's others are.

    Rows of different numbers of tokens are compared by weights times the root of that number.
    """
    root = np.broadcast_to(np.sqrt(tokens), len(rows.weights))
    relative = rows.weights * root[:, None]
    level = np.sort(relative.ravel())[::-1][edges * len(root)]
    strong = relative > level
    strong[:, :least] = True
    strong &= rows.weights > 0
    cut = (np.log(level / root) + rows.log_normaliser) / rows.spread
    ends = np.minimum(strong.sum(axis=1), least)[:, None] - 1
    return strong, np.minimum(cut, np.take_along_axis(rows.scores, ends, axis=1)[:, 0])


def _squares(rows: SoftmaxRows, tokens: int) -> Real:
    """Sum of the squares of the entries of each row, less its mean."""
    return np.sum(rows.weights**2, axis=1) + rows.second - 1 / tokens


def _strong_entries(rows: SoftmaxRows, tokens: int) -> BoolArray:
    """Which weights are edges: the largest of all rows together, and a few of each row whatever their size."""
    # fewer, until the mean of the edges (of rank one, not noise) is a small part of the rows' variance
    variance = _squares(rows, tokens).mean()
    ordered = np.sort(rows.weights.ravel())[::-1]
    # edges are a tree while they are few: 1e-3 of the variance may be in their mean, or 3/T of it
    for edges in range(EDGES, 0, -1):
        strong = rows.weights > ordered[edges * len(rows.weights)]
        strong[:, : (edges + 1) // 2] = True
        together = np.where(strong, rows.weights - 1 / tokens, 0.0).sum(axis=1)
        if np.mean(together**2) / tokens < max(1e-3, 3 / tokens) * variance:
            break
    return strong


def edge_columns(weights: Real, size: int, stream: int, uneven: float = 0.0) -> Any:
    """The column of each weight: the largest ones go where N Poisson processes have their first points, and so on."""
    each = len(weights) / size
    points = int(each + 6 * each**0.5 + 6)
    uniform = sobol_points(size, points + bool(uneven), 2 * stream + 1)
    if uneven:
        rates = gammaincinv(1 / uneven, uniform[:, 0]) * uneven
        uniform = uniform[:, 1:] ** (1 / rates[:, None])
    times = np.cumsum(-np.log(uniform), axis=1)
    places = np.argsort(times.ravel(), kind="stable")[: len(weights)] // points
    columns = np.empty(len(weights), dtype=np.intp)
    columns[np.argsort(-weights, kind="stable")] = places
    return columns


def sobol_points(size: int, dims: int, stream: int) -> Real:
    """Points that fill the unit cube evenly, of shape (size, dims): a Sobol sequence, moved by a fixed shift."""
    from scipy.stats import qmc

    shift = np.random.default_rng([1, stream]).random(dims)
    return np.clip((qmc.Sobol(dims, scramble=False).random(size) + shift) % 1, 1e-12, 1 - 1e-12)
