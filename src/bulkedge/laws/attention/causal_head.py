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

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import digamma

from bulkedge.laws.attention.causal_columns import (
    NO_SINKS,
    ColumnPopularity,
    Sinks,
    column_popularity,
    find_sinks,
    warn_of_late_sinks,
)
from bulkedge.laws.attention.finite_head import (
    ANY_BETA,
    MOST_BETA,
    accuracy,
    check_norms,
    cosine_quadrature,
    harmonics,
    log_coefficients,
    log_harmonics,
    norm_quadrature,
    separate,
    separate_variance,
    warn_of_deviation,
)
from bulkedge.laws.attention.perron import BETA, row_participation
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.masked_density import LogDensity, density
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import COUNT, LEVEL, BulkDensity, Law
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import POSITIVE, Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import UnresolvedError
from bulkedge.visibility import prefix_mean_values

MOST_DEGREES = 12
MOST_DIMENSIONS = 4096
NODES = 300  # quadrature nodes for the cosine of query and key
SIZES = 8  # quadrature nodes for the norms of queries and of keys
MASS_MISSED = 2.5e-4  # error of the mass from which the places are made twice as many
NOISE = 1e-6  # relative change of the R-transform up to which a degree is taken as noise
ALIKE = 20.0  # rows before about this one are taken to be of equal norm: norms would part the first few from the bulk
SINGLE = 200  # tokens that are taken one by one where the mean is resolved
FIRST_ROWS, SAMPLES = 32, 2000  # rows and draws from which the largest values are sampled


class CausalOutlier(NamedTuple):
    """A squared singular value beyond the bulk, where it comes from, and the error of its mean over draws."""

    kind: Literal["mean", "sink"]
    location: float
    error: float


@dataclass(frozen=True)
class CausalHeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A causal attention of one head and C its mean.

    Values below ``exp(-80)`` times the variance of the last rows, about one in a hundred, are shown as an atom at zero;
    one value is zero, because rows sum to one.
    The edge is that of the equations; the largest values of a draw are those of its first rows, of which there are too
    few for a law, and :meth:`finite_edge` samples them.

    >>> law = CausalHeadLaw(beta=0.5, head_dim=32, tokens=200)
    >>> round(law.mean(), 3), law.ppf([0.5, 0.9]).round(2)
    (1.016, array([0.07, 2.44]))
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - C), A causal attention and C its mean"

    beta: float = parameter(Interval(0.05, MOST_BETA), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, MOST_DIMENSIONS), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 2**20), "number of tokens T")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)
    head_beta: float = parameter(ANY_BETA, "inverse temperature of heads that the law stands for, if above beta", 1e-3)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        check_norms(self.head_dim, qk_norm=self.qk_norm)
        warn_of_deviation(self, "Take the law of sharp heads, HeadLaw(..., causal=True), or simulate (be.null_of)")

    @property
    def accuracy(self) -> float:
        """Kolmogorov distance that draws were not found to exceed (docs/laws/finite_head.md, "Accuracy")."""
        return accuracy(self)

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

    @property
    def _sinks(self) -> Sinks:
        """Sinks at the first tokens."""
        return NO_SINKS

    def _bulk(self) -> BulkDensity | None:
        return log_scale_bulk(self._table)

    # -- the first rows, and the mean ----------------------------------------------------------------------------------

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest one of a draw exceeds with probability ``level``, whatever ``n`` and ``dyson``.

        It belongs to the first rows, which average over few tokens: ``T`` times the squared norm of a causal attention
        of a few dozen tokens less its mean. That is sampled, 2000 times with a fixed seed, so that a level is met to
        within a fifth of itself, and levels below 0.002 are not told apart.
        """
        COUNT.check("n", n)
        del dyson
        level = LEVEL.check("level", level)
        return float(self.tokens * np.quantile(first_row_norms(max(self.beta, self.head_beta)), 1 - level))

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``: :meth:`finite_edge`."""
        return self.finite_edge(n, level, dyson)

    def outliers(self, most: int = 10) -> list[CausalOutlier]:
        """Values of ``sqrt(T) A`` itself that the mean contributes: ``T`` times the squared singular values of C.

        C is the Cesaro matrix, whose row i is uniform on 1 to i. It has a whole family of large values, the first of
        which tends to ``4 T``. The fluctuations of the first rows move them outwards (:func:`mean_values`); where
        columns have popularity the shift is that of equal columns, and counts as error. Single large entries of late
        rows do not stand out: values of the first rows reach further.

        Sinks (:meth:`with_columns`) have values of their own, of order ``T**2`` and of kind ``"sink"``. Their error is
        that of the mean over draws; a single draw varies by 2 to 12 % at 512 tokens.

        Parameters
        ----------
        most : int
            How many.

        Returns
        -------
        list of CausalOutlier
            In decreasing order.
        """
        count, columns = Integers(1, min(self.tokens, 1000)).check("most", most), self._columns
        found = mean_values(self.tokens, max(self.beta, self.head_beta), count)
        if columns is not None:
            weights = columns.interpolate(np.arange(1.0, self.tokens + 1))
            if self._sinks.weights:
                return _sink_outliers(self, *self._sinks.mean_values(weights, self.beta, count))
            bare = prefix_mean_values(self.tokens, count, weights)
            found = MeanValues(bare, found.shift, found.shift + found.error)
        return found.outliers(self.tokens)

    def with_columns(self, popularity: ArrayLike) -> CausalHeadColumns:
        """The law if columns have popularity of their own: a mean query, or sinks.

        Weight j of row i is then ``pi_j exp(s_ij)`` over its sum over the visible prefix, ``sum_{k <= i} pi_k
        exp(s_ik)``: rows are renormalised, so that only ratios of popularities matter. Less its mean, ``pi_j/sum_{k <=
        i} pi_k``, the matrix is that of a head without popularity, column j times ``pi_j`` and row i over the mean of
        the popularities it sees.

        A sink is one of the first tokens (of the first eight, or of the first fiftieth of the tokens) with at least
        2 % of the last row and eight times the median popularity. Rows lose the share of the sinks, which varies from
        row to row. The sinks' own columns are large values beyond the bulk, which :meth:`outliers` lists. The law then
        also holds for ``sqrt(T)`` times A without the sinks' columns, each row minus its mean over the other columns.
        :meth:`finite_edge` is too large with sinks, because it takes the first rows as they are without.

        Parameters
        ----------
        popularity : array_like
            Positive numbers of any normalisation: one for each token, in order, or a sample of values that are taken to
            be independent of the place.

        Returns
        -------
        CausalHeadColumns
            The law of ``sqrt(T) (A - C)``, with C the mean given the popularity.

        Warns
        -----
        RegimeWarning
            If one of the later tokens has more than 8 % of the last row: the rows before it do not see it.

        Examples
        --------
        Two sinks with half of the last row.

        >>> popularity = np.ones(200)
        >>> popularity[:2] = 100.0
        >>> law = CausalHeadLaw(beta=0.5, head_dim=32, tokens=200, qk_norm=True).with_columns(popularity)
        >>> law.ppf([0.5, 0.9]).round(3), [each.kind for each in law.outliers(3)]
        (array([0.008, 0.187]), ['sink', 'sink', 'mean'])
        """
        values, sinks = POSITIVE.check("popularity", popularity), NO_SINKS
        if len(values) == self.tokens:
            warn_of_late_sinks(values)
            values, sinks = find_sinks(values)
        columns = column_popularity(values, self.tokens)
        return CausalHeadColumns(self.beta, self.head_dim, self.tokens, self.qk_norm, self.head_beta, columns, sinks)


@dataclass(frozen=True)
class CausalHeadColumns(CausalHeadLaw):
    """The law of a causal head whose columns have popularity; made by :meth:`CausalHeadLaw.with_columns`."""

    columns: ColumnPopularity = None  # type: ignore[assignment]
    sinks: Sinks = NO_SINKS

    @property
    def _columns(self) -> ColumnPopularity | None:
        return self.columns

    @property
    def _sinks(self) -> Sinks:
        return self.sinks


def log_scale_bulk(table: LogDensity) -> BulkDensity:
    """The bulk of a law whose density is known by the logarithm of the value."""
    # intervals that touch, so that each has a scale of its own
    ends = np.exp(table.breaks).tolist()
    intervals = [(Edge.plain(low), Edge.plain(high)) for low, high in pairwise(ends)]
    intervals[0] = Edge.hard(ends[0], 8), intervals[0][1]
    intervals[-1] = intervals[-1][0], Edge.soft(ends[-1])

    def value(x: Real) -> tuple[Real, Real]:
        result = table(np.log(x)) / x
        return result, 64 * EPS * result

    return intervals, value


@lru_cache(maxsize=64)
def _density_table(law: CausalHeadLaw) -> LogDensity:
    """The density of a law by the logarithm of the value, once in a process."""
    found = resolved_density(law)
    # rows sum to one: the constant vector is mapped to zero, which the equations do not know
    # rows and columns of sinks are zero
    zeros = (1 + len(law._sinks.weights)) / law.tokens
    return replace(found, below=found.below * (1 - zeros) + zeros, scale=found.scale * (1 - zeros))


def resolved_density(law: CausalHeadLaw) -> LogDensity:
    """The density of the equations, with twice as many intervals where mass is missing or too much."""
    # ripples near the axis, from intervals that are too long, look like narrow features and are smeared
    terms = row_terms(law.beta, law.head_dim, law.tokens, qk_norm=law.qk_norm)
    count = mesh_intervals(law.head_dim, law.tokens)
    coarse = None
    with suppress(UnresolvedError):
        coarse = density(_equations_of(law, terms, count))
        # with sinks what is missed is up to the panels, not to the places
        if abs(coarse.scale - 1) < MASS_MISSED or law._sinks.weights:
            return coarse
    try:
        fine = density(_equations_of(law, terms, 2 * count))
    except UnresolvedError:
        if coarse is None:
            raise
        return coarse
    return fine if coarse is None else min(coarse, fine, key=lambda each: abs(each.scale - 1))


def _equations_of(law: CausalHeadLaw, terms: RowTerms, intervals: int) -> MaskedProblem:
    """The equations of a law, with what its columns and its sinks do to them."""
    columns = law._columns
    problem = causal_equations(terms, law.tokens, intervals, columns)
    if columns is None or not law._sinks.weights:
        return problem
    norms = np.ones(1) if law.qk_norm else norm_quadrature(law.head_dim, law.tokens, SIZES)[0]
    places, rows = problem.grid.places, problem.rows
    others = places * columns.interpolate(places, "prefixes")
    shares, squares = law._sinks.row_sizes(others, law.beta * norms)
    # every size of a query with every share of the sinks
    shares = (rows.shares[:, :, None] * shares).reshape(len(places), -1)
    squares = (rows.squares[..., None] * squares[:, None]).reshape(*rows.squares.shape[:2], -1)
    means = np.einsum("pkg,pg->pk", squares, shares)
    sizes = SizeGroups(shares, squares / means[..., None])
    return replace(problem, pulls=problem.pulls * means, rows=sizes, blunt=True)


def _sink_outliers(law: CausalHeadLaw, values: Real, on_sinks: Real) -> list[CausalOutlier]:
    """Outliers of a matrix with sinks, by what a signal of such singular values does to the bulk."""
    # sinks of equal weight repel each other by the correlation of their keys, of order 1/sqrt(d)
    found: list[CausalOutlier] = []
    apart = np.sqrt((len(law._sinks.weights) - 1) / law.head_dim)
    for value, share in zip(law.tokens * values**2, on_sinks, strict=True):
        place = float(law.singular_spike(value**0.5).location)
        if not place > law.edge:
            break
        sink = share > 0.5
        # the direction is no free one, and early rows vary by themselves: twice the shift, and a hundredth
        error = 2 * abs(place - value) + place * max(0.01, apart if sink and found else 0.0)
        found.append(CausalOutlier("sink" if sink else "mean", place, float(error)))
    return found


# -- the mean and its fluctuations -------------------------------------------------------------------------------------


class MeanValues(NamedTuple):
    """Singular values of the mean of masked attention, and what the fluctuations of its rows do to them."""

    bare: Real  # (n,) those of the mean itself
    shift: Real  # (n,) their mean shift to second order in the fluctuations
    # (n,) what the shift is off by at most
    error: Real

    def outliers(self, tokens: int) -> list[CausalOutlier]:
        """The squared singular values of ``sqrt(T) A`` that these are."""
        order = np.argsort(-self.bare - self.shift)
        values, errors = (self.bare + self.shift)[order], self.error[order]
        # the m-th largest may be what a neighbour, less surely placed, has become
        errors = np.max(errors - np.abs(values[:, None] - values), axis=1)
        locations, errors = tokens * values**2, tokens * ((values + errors) ** 2 - values**2)
        return [CausalOutlier("mean", *each) for each in zip(locations.tolist(), errors.tolist(), strict=True)]


class MaskBlocks(NamedTuple):
    """The mean of masked attention, over blocks of tokens of which vectors are taken to be constant."""

    # mean, seen: (blocks, blocks) the mean in the basis of the blocks' unit vectors, and the share of each block
    # that rows see
    mean: Real
    seen: Real
    counts: Real  # counts, root: (blocks,) tokens that a row of the block sees, and the root of the block's size
    root: Real


@lru_cache(maxsize=64)
def mean_values(tokens: int, beta: float, most: int) -> MeanValues:
    """The largest singular values of causal attention that its mean contributes, in blocks of tokens beyond SINGLE."""
    stops = np.arange(1.0, min(tokens, SINGLE) + 1)
    if tokens > SINGLE:
        more = np.rint(np.geomspace(SINGLE, tokens, 2 + int(50 * np.log(tokens / SINGLE))))
        stops = np.unique(np.append(stops, more))
    starts = np.append(0.0, stops[:-1])
    sizes = stops - starts
    inverse, root = (digamma(stops + 1) - digamma(starts + 1)) / sizes, np.sqrt(sizes)
    mean = np.tril(np.outer(root * inverse, root), -1) + np.diag(1 - starts * inverse)
    seen = np.tril(np.ones_like(mean), -1) + np.diag((sizes + 1) / (2 * sizes))
    blocks = MaskBlocks(mean, seen, (starts + stops + 1) / 2, root)
    share = min(0.6 * max(1.0, beta / 1.5) ** 2, 1.5)  # measured (see docs/theory/causal.md)
    return shifted_values(blocks, beta, most, share)._replace(bare=prefix_mean_values(tokens, most))


def shifted_values(blocks: MaskBlocks, beta: float, most: int, share: float = 3.0) -> MeanValues:
    """Singular values of attention with this mean, to second order in the fluctuations of its rows."""
    # C = sum_k s_k u_k v_k' is the mean, F the fluctuation; s_r moves by the sum over k of
    # (s_r E[(u_k'F v_r)**2 + (u_r'F v_k)**2] + 2 s_k E[(u_k'F v_r)(u_r'F v_k)])/(2 (s_r**2 - s_k**2)),
    # by no more than level_spread; its error is ``share`` of that, measured for masks without a law of theirs
    mean, seen, counts, root = blocks
    left, values, right = np.linalg.svd(mean)
    places = np.unique(np.geomspace(1, counts.max(), 40).clip(1, counts.max()))
    squares = row_participation(min(beta, BETA.high), places)
    logs = PchipInterpolator(np.log(places), np.log(squares)) if len(places) > 1 else np.zeros_like
    variance = np.maximum(np.expm1(logs(np.log(counts))), 0.0) / counts**2
    # weights of a row sum to one: they are correlated by -1/(count - 1)
    pairs = -variance / np.maximum(counts - 1, 1)
    alone, sums, norms = variance - pairs, seen @ (right * root).T, seen @ (right**2).T
    shifts: list[float] = []
    spreads: list[float] = []
    for u, v, s, total, norm in zip(left.T[:most], right, values, sums.T, norms.T, strict=False):
        own = alone * norm + pairs * total**2
        theirs = u**2 @ (alone[:, None] * norms + pairs[:, None] * sums**2)
        joint = left * u[:, None] * (alone[:, None] * (seen @ (right * v).T) + pairs[:, None] * sums * total[:, None])
        weights = s * (own @ left**2 + theirs) / 2 + values * joint.sum(axis=0)
        gaps = s**2 - values**2
        gaps[np.abs(gaps) < 1e-9 * s**2] = np.inf
        terms = weights / gaps
        distances = np.abs(s - values)
        # of equal values, those of packed sequences, the largest is what its own fluctuation has made of one
        others = (np.arange(len(values)) != len(shifts)) | (np.sum(distances < 1e-6 * s) > 1)
        spreads.append(level_spread(np.abs(weights / (s + values))[others], distances[others]))
        # what varies within blocks belongs to singular values of next to nothing
        within = (root**2 - 1) @ own + u**2 @ (variance * counts) - theirs.sum()
        terms = terms * distances**2 / np.maximum(distances**2 + (spreads[-1] / 3) ** 2, 1e-300)
        shifts.append(terms.sum() + np.sqrt(max(s**2 + within, 0.0)) - s)
    shift = np.array(shifts)
    return MeanValues(values[:most], shift, share * np.maximum(np.abs(shift), spreads))


def level_spread(weights: Real, distances: Real) -> float:
    """How far a value moves among others at these distances, x with ``x = sum of weights/(x + distances)``."""
    most = float(np.sqrt(weights.sum()))
    return float(brentq(lambda x: x - np.sum(weights / (x + distances)), 1e-12 * most, 2 * most)) if most else 0.0


# -- terms of the rows -------------------------------------------------------------------------------------------------


class RowTerms(NamedTuple):
    """Terms of rows with given numbers of tokens, c of them; k terms, the last of them noise; g groups by norm."""

    counts: Real  # (c,) numbers of tokens in a row, from one
    harmonics: Real  # (k,) channels of each term; infinite for noise
    variances: Real  # (c, k) variance of i times an entry, from each term
    shares: Real  # (g,) how many tokens there are in each group
    rows: Real  # rows, columns: (k, g) squared sizes of queries and of keys in each term, of mean one
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
    # a degree with 20 harmonics a token is noise; so is one of little variance: a term differs from noise by the square
    # of its share of the variance, over its harmonics a token
    share = power / power[1:].sum()
    low = np.flatnonzero((number < 20 * tokens) & (share**2 * tokens > NOISE * number))[1:]
    counts = np.geomspace(1, tokens, 16)  # between these, terms are interpolated
    found = [_terms_of(weight, count, shares, mass, (basis[low], number[low])) for count in counts]
    rows, columns = (np.array([each[side] for each in found[-1]]) for side in (1, 2))
    every = np.array([[variance for variance, _, _ in each] for each in found])
    return RowTerms(counts, np.append(number[low], np.inf), every, shares, rows, columns)


def _terms_of(
    weight: Real, count: float, shares: Real, mass: Real, low: tuple[Real, Real]
) -> list[tuple[float, Real, Real]]:
    """Variance, row profile and column profile of each low degree, and of the noise."""
    # axes of ``weight``: cosine, norm of the query, norm of the key
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


def mesh_intervals(head_dim: int, tokens: int) -> int:
    """Intervals of the discretisation: more if many tokens share few dimensions, where rows change sharply."""
    return int(np.clip(40 + 15 * np.log(tokens / (16 * head_dim)), 40, 80))


@lru_cache(maxsize=64)
def first_row_norms(beta: float, after: int = 0) -> Real:
    """Squared norms of attention minus its mean over the first rows, from independent scores, seed fixed.

    Each row sees the tokens before it, itself and so many after it.
    """
    mask = np.tri(FIRST_ROWS, FIRST_ROWS + after, after)
    weights = mask * np.exp(beta * np.random.default_rng(2025).standard_normal((SAMPLES, *mask.shape)))
    weights /= weights.sum(axis=2, keepdims=True)
    weights -= mask / mask.sum(axis=1, keepdims=True)
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
