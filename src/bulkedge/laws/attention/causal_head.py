"""Causal attention at the size of real heads: scores of low rank, behind a mask (ours).

A degree of the exponential of the scores is a matrix of rank N (:mod:`bulkedge.laws.attention.finite_head`), which the
mask does not keep: row x and column y < x of ``sqrt(T) (A - C)``, x and y in (0, 1), are joined as ``sqrt(w(x)) sum_c
P_xc Q_yc`` over N channels c, with ``w = B/x**2``. Let g and h be the diagonals of the resolvent at ``z**2`` over rows
and columns, ``phi = N/T``, and J the integral ``(J e)(x) = int_0^x e``, which stands for the mask. What a channel
carries from columns to rows is ``J (1/h - J' w g J/phi)**-1 J'``, the inverse of a Sturm-Liouville operator. So its
diagonal comes from two Riccati equations, one from each end,

    p' = h + (w g/phi) p**2,  p(0) = 0,        r' = -w g - (h/phi) r**2,  r(1) = 0,

and with ``d = 1 - p r/phi``, summed over the degrees,

    g = 1/(z - sum w p/d),        h = 1/(z - sum r/d).

Without a mask these are the equations of the finite-head law; with ``phi = inf``, those of the causal law
(docs/theory/causal.md, "Heads of low rank behind a mask", derives them). They are a boundary value problem for p and r
(:mod:`bulkedge.laws.engine.masked_equations`), which is solved near the real axis by Newton's method.

Row i of causal attention is a row of attention over i tokens. So the terms of the finite-head law enter with i for the
number of tokens: an entry is part of its own row's sum, which shrinks it, ``w -> w/(1 + (w - 1)/i)``, and how much an
entry stands out depends on i. Row one has one weight, which is one.

>>> law = CausalHeadLaw(beta=0.5, head_dim=32, tokens=200)
>>> law.cdf([0.02, 0.3, 2.0]).round(2)
array([0.34, 0.69, 0.88])
>>> terms = row_terms(beta=1.0, head_dim=64, tokens=1000, qk_norm=True)
>>> terms.harmonics.round().tolist(), terms.variances[-1].round(2).tolist()
([64.0, 2079.0, inf], [0.97, 0.44, 0.16])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator

from bulkedge.laws.attention.finite_head import (
    check_norms,
    cosine_quadrature,
    harmonics,
    log_coefficients,
    log_harmonics,
    norm_quadrature,
    separate,
    separate_variance,
)
from bulkedge.laws.distribution import PointMasses
from bulkedge.laws.engine.masked_density import LogDensity, density
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import COUNT, LEVEL, BulkDensity, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import FINITE, Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError
from bulkedge.visibility import prefix_mean_values

SHARPEST = 1.5
"""Inverse temperature up to which the law is within 0.03 of draws, at 1000 tokens."""
MOST_DEGREES = 12
NODES = 300
"""Quadrature nodes for the cosine of query and key."""
SIZES = 8
"""Quadrature nodes for the norms of queries and of keys."""
ALIKE = 20.0
"""Rows before about this one are taken to be of equal norm: norms would part the first few from the bulk."""
LEVELS = np.array([0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.82, 0.9, 0.95, 0.98, 0.995, 1])
"""Quantiles of the popularity between which columns are taken together, at their mean square."""
FIRST_ROWS, SAMPLES = 32, 2000
"""Rows and draws from which the largest values are sampled."""


class CausalOutlier(NamedTuple):
    """A value beyond the bulk: squared singular value of ``sqrt(T) A``, and where it comes from."""

    kind: Literal["mean"]
    location: float


@dataclass(frozen=True)
class CausalHeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A causal attention of one head and C its mean.

    Values below ``exp(-80)`` times the variance of the last rows, about one in a hundred, are shown as an atom at zero;
    one value is zero, because rows sum to one.
    The edge is that of the equations; the largest values of a draw are those of its first rows, of which there are too
    few for a law, and :meth:`finite_edge` samples them.
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - C), A causal attention and C its mean"

    beta: float = parameter(Interval(0.05, 2), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 2**20), "number of tokens T")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        check_norms(self.head_dim, qk_norm=self.qk_norm)

    @property
    def atoms(self) -> PointMasses:
        """What lies below the smallest value represented, at zero."""
        return ((0.0, self._table.below),)

    @property
    def _table(self) -> LogDensity:
        return _density_table(self)

    @property
    def _columns(self) -> ColumnPopularity | None:
        """How popular columns are, if they are not alike."""
        return None

    def _bulk(self) -> BulkDensity | None:
        table = self._table
        # intervals that touch, so that each has a scale of its own
        ends = np.exp(table.breaks).tolist()
        intervals = [(Edge.plain(low), Edge.plain(high)) for low, high in pairwise(ends)]
        intervals[0] = Edge.hard(ends[0], 8), intervals[0][1]
        intervals[-1] = intervals[-1][0], Edge.soft(ends[-1])

        def value(x: Real) -> tuple[Real, Real]:
            result = table(np.log(x)) / x
            return result, 64 * EPS * result

        return intervals, value

    # -- the first rows, and the mean ----------------------------------------------------------------------------------

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest one of a draw exceeds with probability ``level``.

        It belongs to the first rows, which average over few tokens: ``T`` times the squared norm of a causal attention
        of a few dozen tokens less its mean. That is sampled, 2000 times with a fixed seed, so that a level is met to
        within a fifth of itself, and levels below 0.002 are not told apart.

        Parameters
        ----------
        n : int
            Number of values; the largest does not depend on it.
        level : float
            Probability of a false alarm.
        dyson : {1, 2, 4}
            Of no effect: attention is real.

        Returns
        -------
        float
            The quantile.
        """
        COUNT.check("n", n)
        del dyson
        level = LEVEL.check("level", level)
        return float(self.tokens * np.quantile(first_row_norms(self.beta), 1 - level))

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``: :meth:`finite_edge`."""
        return self.finite_edge(n, level, dyson)

    def outliers(self, most: int = 10) -> list[CausalOutlier]:
        """Values of ``sqrt(T) A`` itself that the mean contributes: ``T`` times the squared singular values of C.

        C is the Cesaro matrix, whose row i is uniform on 1 to i. It has a whole family of large values, the first of
        which tends to ``4 T``. The fluctuations of the first rows move them outwards, by about 0.02 of a singular value
        at beta 0.6. Single large entries of late rows do not stand out: values of the first rows reach further.

        Parameters
        ----------
        most : int
            How many.

        Returns
        -------
        list of CausalOutlier
            In decreasing order.
        """
        count = Integers(1, min(self.tokens, 1000)).check("most", most)
        columns = self._columns
        weights = None if columns is None else columns.interpolate(np.arange(1.0, self.tokens + 1))
        values = prefix_mean_values(self.tokens, count, weights)
        return [CausalOutlier("mean", self.tokens * value**2) for value in values.tolist()]

    def with_columns(self, popularity: ArrayLike) -> CausalHeadColumns:
        """The law if columns have popularity of their own: a mean query, or sinks.

        Weight j of row i is then ``pi_j exp(s_ij)`` over its sum over the visible prefix, ``sum_{k <= i} pi_k
        exp(s_ik)``: rows are renormalised, so that only ratios of popularities matter. Less its mean, ``pi_j/sum_{k <=
        i} pi_k``, the matrix is that of a head without popularity, column j times ``pi_j`` and row i over the mean of
        the popularities it sees.

        Parameters
        ----------
        popularity : array_like
            Positive numbers of any normalisation: one for each token, in order, or a sample of values that are taken to
            be independent of the place.

        Returns
        -------
        CausalHeadColumns
            The law of ``sqrt(T) (A - C)``, with C the mean given the popularity.
        """
        values = FINITE.check("popularity", popularity).ravel()
        if not values.size or not np.all(values > 0):
            raise DomainError("popularity must be one positive number at least, or one for each token")
        return CausalHeadColumns(
            self.beta, self.head_dim, self.tokens, self.qk_norm, column_popularity(values, self.tokens)
        )


@dataclass(frozen=True)
class CausalHeadColumns(CausalHeadLaw):
    """The law of a causal head whose columns have popularity; made by :meth:`CausalHeadLaw.with_columns`."""

    columns: ColumnPopularity = None  # type: ignore[assignment]

    @property
    def _columns(self) -> ColumnPopularity | None:
        return self.columns


@lru_cache(maxsize=64)
def _density_table(law: CausalHeadLaw) -> LogDensity:
    """The density of a law by the logarithm of the value, once in a process."""
    terms = row_terms(law.beta, law.head_dim, law.tokens, qk_norm=law.qk_norm)
    found = density(causal_equations(terms, law.tokens, mesh_intervals(law.head_dim, law.tokens), law._columns))
    # rows sum to one: the constant vector is mapped to zero, which the equations do not know
    others = 1 - 1 / law.tokens
    return replace(found, below=found.below * others + 1 / law.tokens, scale=found.scale * others)


# -- terms of the rows -------------------------------------------------------------------------------------------------


class RowTerms(NamedTuple):
    """Terms of rows with given numbers of tokens, c of them; k terms, the last of them noise; g groups by norm.

    Attributes
    ----------
    counts : array of shape (c,)
        Numbers of tokens in a row, from one.
    harmonics : array of shape (k,)
        Channels of each term; infinite for noise.
    variances : array of shape (c, k)
        Variance of i times an entry, from each term.
    shares : array of shape (g,)
        How many tokens there are in each group.
    rows, columns : arrays of shape (k, g)
        Squared sizes of queries and of keys in each term, of mean one.
    """

    counts: Real
    harmonics: Real
    variances: Real
    shares: Real
    rows: Real
    columns: Real


def row_terms(beta: float, head_dim: int, tokens: int, *, qk_norm: bool) -> RowTerms:
    """Terms of rows with one to ``tokens`` tokens."""
    norms, shares = (np.ones(1), np.ones(1)) if qk_norm else norm_quadrature(head_dim, tokens, SIZES)
    kappa = beta * np.sqrt(head_dim) * np.outer(norms, norms).ravel()
    normaliser = log_coefficients(head_dim, kappa, 0)[0] if qk_norm else np.repeat((beta * norms) ** 2 / 2, SIZES)
    cosine, mass = cosine_quadrature(head_dim, NODES)
    weight = np.exp(np.outer(cosine, kappa) - normaliser).reshape(NODES, len(norms), len(norms))
    number = np.exp(log_harmonics(head_dim, MOST_DEGREES))
    basis = harmonics(head_dim, MOST_DEGREES, cosine)
    power = number * np.einsum("kc,crs,r,s->k", basis * mass, weight, shares, shares) ** 2
    # a degree with 20 harmonics a token is noise, and so is one with next to no variance
    low = np.flatnonzero((number < 20 * tokens) & (power > 1e-7 * power[1:].sum()))[1:]
    counts = np.geomspace(1, tokens, 16)  # between these, terms are interpolated
    found = [_terms_of(weight, count, shares, mass, (basis[low], number[low])) for count in counts]
    rows, columns = (np.array([each[side] for each in found[-1]]) for side in (1, 2))
    every = np.array([[variance for variance, _, _ in each] for each in found])
    return RowTerms(counts, np.append(number[low], np.inf), every, shares, rows, columns)


def _terms_of(
    weight: Real, count: float, shares: Real, mass: Real, low: tuple[Real, Real]
) -> list[tuple[float, Real, Real]]:
    """Variance, row profile and column profile of each low degree, and of the noise.

    ``weight`` has the axes cosine, norm of the query, norm of the key.
    """
    basis, number = low
    # w/(1 + (w - 1)/i), so that a single weight is one however small it is
    entry = count / (1 + (count - 1) / np.maximum(weight, 1e-200))
    mean = np.tensordot(mass, entry, 1)
    row_mean = (mean @ shares)[:, None]
    entry, mean = entry / row_mean, mean / row_mean
    coefficients = np.einsum("kc,c,crs->krs", basis, mass, entry)
    rest = (entry - mean - np.einsum("k,krs,kc->crs", number, coefficients, basis)) ** 2
    total = float(shares @ (np.tensordot(mass, (entry - mean) ** 2, 1)) @ shares)
    # entries beyond the variance of a row leave the bulk: they fade out of it, as in the finite-head law
    fading = np.clip(2 - rest / max(count * total, 1e-300), 0.0, 1.0)
    noise = np.tensordot(mass, fading * rest, 1)
    degrees = [separate(np.sqrt(n) * each, shares) for n, each in zip(number, coefficients, strict=True)]
    return [*degrees, separate_variance(noise, shares)]


class ColumnPopularity(NamedTuple):
    """Popularity of columns: a mean that goes with the place, times one of a few sizes.

    Attributes
    ----------
    places : tuple of b numbers
        Middles of blocks of tokens.
    means : tuple of b numbers
        Mean popularity in each block, in units of that of all tokens.
    prefixes : tuple of b numbers
        Mean popularity of the tokens up to each of these places: what rows there are normalised by.
    squares, shares : tuples of n numbers
        Squared popularity of each size, in units of the mean of its block, and the share of the columns that have it.
    """

    places: tuple[float, ...]
    means: tuple[float, ...]
    prefixes: tuple[float, ...]
    squares: tuple[float, ...]
    shares: tuple[float, ...]

    def interpolate(self, places: Real, of: str = "means") -> Real:
        """Mean popularity of the tokens about each place, or of all before it."""
        known = np.asarray(getattr(self, of))
        if len(known) == 1:
            return np.full(np.shape(places), known[0])
        logs = np.log(np.clip(places, self.places[0], self.places[-1]))
        return np.asarray(np.exp(PchipInterpolator(np.log(self.places), np.log(known))(logs)))


def column_popularity(popularity: Real, tokens: int) -> ColumnPopularity:
    """Popularities as a mean that goes with the place, and a few sizes about it."""
    values = popularity / popularity.mean()
    stops = np.array([len(values)])
    if len(values) == tokens:
        # blocks of tokens whose lengths grow in proportion to the place
        stops = np.unique(np.rint(np.geomspace(1, tokens, 24)).astype(int))
    starts = np.append(0, stops[:-1])
    counts = stops - starts
    sums = np.add.reduceat(values, starts)
    middles = (starts + stops + 1) / 2
    upto = np.interp(middles, np.append(0, stops), np.append(0, np.cumsum(sums)))
    ratio = values / np.repeat(sums / counts, counts)
    rank = np.argsort(np.argsort(ratio))
    _, size, members = np.unique(
        np.searchsorted(LEVELS[1:-1], (rank + 0.5) / len(values)), return_inverse=True, return_counts=True
    )
    return ColumnPopularity(
        places=tuple(middles.tolist()),
        means=tuple((sums / counts).tolist()),
        prefixes=tuple((upto / middles).tolist()),
        squares=tuple((np.bincount(size, ratio**2) / members).tolist()),
        shares=tuple((members / len(values)).tolist()),
    )


def mesh_intervals(head_dim: int, tokens: int) -> int:
    """Intervals of the discretisation: more if many tokens share few dimensions, where rows change sharply."""
    return int(np.clip(40 + 15 * np.log(tokens / (16 * head_dim)), 40, 80))


@lru_cache(maxsize=64)
def first_row_norms(beta: float) -> Real:
    """Squared norms of causal attention less its mean over the first rows, sampled with a fixed seed.

    Scores of so few tokens are as good as independent.
    """
    scores = beta * np.random.default_rng(2025).standard_normal((SAMPLES, FIRST_ROWS, FIRST_ROWS))
    weights = np.tril(np.exp(scores))
    weights /= weights.sum(axis=2, keepdims=True)
    weights -= np.tril(np.ones((FIRST_ROWS, FIRST_ROWS))) / np.arange(1, FIRST_ROWS + 1)[:, None]
    return np.asarray(np.linalg.eigvalsh(weights @ weights.swapaxes(1, 2))[:, -1])


def causal_equations(
    terms: RowTerms, tokens: int, intervals: int, columns: ColumnPopularity | None = None
) -> MaskedProblem:
    """The equations of causal attention with these terms."""
    grid = mesh(tokens, intervals)
    along = PchipInterpolator(np.log(terms.counts), terms.variances)
    pulls = np.maximum(along(np.log(grid.places)), 0.0) * (tokens / grid.places**2)[:, None]
    # the first rows are too few to be told apart by their norms
    apart = -np.expm1((1 - grid.places) / ALIKE)
    rows, keys = (
        SizeGroups(np.tile(terms.shares, (len(apart), 1)), 1 + (squares - 1) * apart[:, None, None])
        for squares in (terms.rows, terms.columns)
    )
    if columns is not None:
        pulls = pulls / columns.interpolate(grid.places, "prefixes")[:, None] ** 2
        # every size of a key with every popularity
        shares = (keys.shares[:, :, None] * np.array(columns.shares)).reshape(len(apart), -1)
        popular = columns.interpolate(grid.places)[:, None, None, None] ** 2 * np.array(columns.squares)
        squares = (keys.squares[..., None] * popular).reshape(*keys.squares.shape[:2], -1)
        keys = SizeGroups(shares, squares)
    return MaskedProblem(grid, tokens, pulls, 1 / terms.harmonics, rows, keys)
