"""The distribution function of a head, point by point: functions and weights that agree, then the resolvent.

At each point x of the spectrum the functions of the expansion are those that are orthogonal for the weights that the
resolvent at ``-x`` gives the tokens; with them, the mass up to x is the mean of ``Re z G(z)`` over ``|z| = x``
(docs/theory/anisotropic.md).

A head is expanded as a sum of products of functions of its queries and of its keys. For any centres and covariances of
queries and keys, in the coordinates X and Y that make both standard and the scores ``sum a_k X_k Y_k`` plus terms of
the row or of the column alone, Mehler's formula is

    exp(a X Y) = sqrt(1 - r**2) exp(r a (X**2 + Y**2)/2) sum_n r**n H_n(X) H_n(Y),      r/(1 - r**2) = a,

with orthonormal Hermite polynomials ``H_n``: an identity, whatever the centres and covariances are. They only decide
for which weights of the tokens the terms are orthogonal.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from bulkedge.heads.law.resolvent import DiagonalTerms, Equations
from bulkedge.laws.attention.sharp_head import LogTable
from bulkedge.support.arrays import BoolArray, Complex, Index, Real
from bulkedge.support.errors import AccuracyWarning, DomainError

TERMS = 3, 500, 6000  # terms of the expansion for each value of the spectrum, and their least and largest number
TOLERANCE, ROUGH = 1e-5, 3e-3
"""To what the resolvent is solved for the distribution function, and for the choice of functions."""
ROUNDS, SETTLED, STRIDE = 16, 0.01, 60
"""Rounds in which functions and weights are fitted to each other, the change of all weights that ends them, and the
most steps towards the resolvent in a round. Errors of the weights enter the distribution function squared."""
TURNS = 6.0, 9.0, 12.0, 15.0  # logarithms of the largest value over those at which turns are compared
RISE = 0.07  # what the distribution function rises by between points of its table, about
STEPS = 0.4, 3.0  # least and largest distance of the logarithms of these points
FLOOR = 1e-26
"""Squares this small beside the largest are rounding errors, and so are all values if they are beside those of A."""
FAR, LARGEST = 60.0, 100.0
"""A token so many standard deviations out, or whose factor has this logarithm, has no functions."""


class _FunctionChoice(NamedTuple):
    """Functions at one point, as their equations: the state, the weights they are orthogonal for, and the trace."""

    equations: Equations
    state: Complex
    weights: tuple[Real, Real]
    trace: float


class Walk:
    """The mass at or below one point after another."""

    # several weights may agree with their own functions, or none be good: of all choices tried, the largest trace of
    # the resolvent is the best, because poor functions make values that are not there

    def __init__(self, queries: Tokens, keys: Tokens, tokens: int, *, sampled: bool, paired: bool) -> None:
        self._tokens, self._paired = tokens, paired
        self._size = len(queries.counts), len(keys.counts)
        per_value, least, most = TERMS
        values = tokens if sampled else min(self._size)
        self._expand = Expander(queries, keys, int(np.clip(per_value * values, least, most)))
        self._counts = queries.counts, keys.counts
        self._plain_equations: dict[float, Equations] = {}
        repeated = max(each.max() for each in self._counts) > 1
        self._powers = (0.0, 0.5, 1.0) if repeated else (0.0,)
        self._weights: dict[float, tuple[Real, Real]] = {}
        self._total = self._size[0] if sampled else tokens
        self._centred = self._expand.matrix - self._counts[0] @ self._expand.matrix / self._counts[0].sum()
        self.largest = self._squares(self._centred)
        """No squared singular value is larger than their sum."""
        self.uniform = self.largest <= FLOOR * self._squares(self._expand.matrix)
        """Whether all rows of the attention are equal, but for rounding."""
        self._turn: Real | None = None
        if queries.words is not None and not self.uniform:
            self._turn = self._best_turn(word_modes(self._weighted(self._centred), queries.words))

    def _best_turn(self, turn: Real) -> Real | None:
        """Orthogonal combinations of the tokens of each word, or none where tokens by themselves say more."""
        # by the trace, as functions are chosen: words whose places are not alike are better left alone
        traces = []
        for each in (None, turn):
            self._turn, self._plain_equations = each, {}
            roots = np.sqrt(self.largest) * np.exp(-np.array(TURNS) / 2)
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
                traces.append(sum(root * self._plain(root, 0.0).trace for root in roots))
        self._plain_equations = {}
        return turn if traces[1] > traces[0] else None

    def _squares(self, matrix: Real) -> float:
        """Sum of the squared singular values, for ``tokens * A`` between distinct tokens."""
        return float(np.sum(self._weighted(matrix) ** 2)) * self._tokens / self._total**2

    def mass(self, x: float) -> float:
        """Share of the values at or below x, those left aside that repeats make vanish."""
        below = [each for each in self._weights if each < x]
        weights = self._weights[max(below)] if below else self._counts
        found = self._best_choice(np.sqrt(x), weights)
        self._weights[x] = found.weights
        return self._mass_below(x, found.equations, found.state)

    def _mass_below(self, x: float, equations: Equations, state: Complex) -> float:
        """The share at or below x, from the resolvent on the half-circle."""
        # twice as many nodes on the half-circle change the distribution function by less than 0.001
        nodes, weights = np.polynomial.legendre.leggauss(6)
        z = np.sqrt(x * np.exp(0.5j * np.pi * (nodes + 1)))
        start = equations.turn(state, 1j * np.sqrt(x) / z)
        found = equations.solve(z, start, TOLERANCE)[: self._size[0]]
        rows = float(np.sum(weights / 2 * np.sum(z * found, axis=0).real))
        # rows beyond the number of columns are zeros, which the atom counts
        least = min(self._size)
        return (rows - (self._size[0] - least)) / least

    def _best_choice(self, root: float, weights: tuple[Real, Real]) -> _FunctionChoice:
        """The choice of functions with the largest trace at ``-root**2``; the choice without any is always finite."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            tried = [self._no_functions(root), *(self._plain(root, power) for power in self._powers)]
            fitted = self._self_consistent(root, weights)
        tried = tried if fitted is None else [*tried, fitted]
        return max((each for each in tried if np.all(np.isfinite(each.state))), key=lambda each: each.trace)

    def _no_functions(self, root: float) -> _FunctionChoice:
        """No functions, all entries as noise or edges: for rows that are nearly one-hot."""
        rows, columns = (np.zeros((2, size)) for size in self._size)
        none = Expansion(np.zeros(2), rows, columns, self._centred)
        return self._approach(self._equations(none), root, self._counts)

    def _plain(self, root: float, power: float) -> _FunctionChoice:
        """Functions that are orthogonal for a power of the numbers of repeats."""
        weights = self._counts[0] ** power, self._counts[1] ** power
        if power not in self._plain_equations:
            self._plain_equations[power] = self._equations(self._expand(*weights))
        return self._approach(self._plain_equations[power], root, weights)

    def _self_consistent(self, root: float, weights: tuple[Real, Real]) -> _FunctionChoice | None:
        """Functions nearly orthogonal for the weights of their own resolvent; None if too large for the equations."""
        before, least, power = np.inf, np.inf, 1.0
        state: Complex | None = None
        best: _FunctionChoice | None = None
        for _ in range(ROUNDS):
            expansion = self._expand(*weights)
            found = self._approach(self._equations(expansion), root, weights, state)
            state = found.state
            if not np.all(np.isfinite(state)):
                break
            change, weights = _reweigh(weights, self._token_weights(expansion, state), power)
            if not np.isfinite(change):
                break
            if change <= least:
                least, best = change, found
            if change < SETTLED:
                break
            # steps that grow swing between two states; those that shrink slowly may be longer
            power = power / 2 if change > before else min(1.3 * power, 1.7)
            before = change
        return best

    def _token_weights(self, expansion: Expansion, state: Complex) -> tuple[Real, Real]:
        """The weights that a resolvent on the imaginary axis gives the tokens."""
        rows, columns = np.split(-state[: sum(self._size), 0].imag, [self._size[0]])
        if self._turn is not None:
            rows, columns = rows @ self._turn**2, columns @ self._turn**2
        left, right = self._counts
        return left * expansion.rows[0] ** 2 * rows, right * expansion.columns[0] ** 2 * columns

    def _equations(self, expansion: Expansion) -> Equations:
        """The equations of an expansion, repeats counted."""
        left, right = (np.sqrt(each) for each in self._counts)
        products, rows, columns = (each[1:] for each in expansion[:3])
        rows, columns, rest, own = rows * left, columns * right, self._weighted(expansion.rest), None
        if self._turn is not None:
            rows, columns, rest = rows @ self._turn.T, columns @ self._turn.T, self._turn @ rest @ self._turn.T
        noise = rest**2
        if self._paired:
            np.fill_diagonal(noise, 0.0)
            own = DiagonalTerms(rows * columns, np.diag(rest) / np.sqrt(self._tokens))
        return Equations(products**2, rows**2, columns**2, noise, self._tokens, self._total, own)

    def _weighted(self, matrix: Real) -> Real:
        """A matrix between distinct tokens, times the roots of the numbers of repeats."""
        return np.sqrt(self._counts[0])[:, None] * matrix * np.sqrt(self._counts[1])

    def _approach(
        self, equations: Equations, root: float, weights: tuple[Real, Real], state: Complex | None = None
    ) -> _FunctionChoice:
        """Towards the resolvent at ``-root**2``: as if all entries were small, then with heavy ones as edges."""
        point = np.array([1j * root])
        start = equations.start(point) if state is None else equations.without_edges(state)
        with_edges, guess = equations.with_edges(equations.approach(point, start, ROUGH, STRIDE))
        found = with_edges.approach(point, guess, ROUGH, STRIDE)
        return _FunctionChoice(with_edges, found, weights, float(-np.sum(found[: self._size[0]].imag)))


def word_modes(matrix: Real, words: Index) -> Real:
    """An orthogonal matrix that mixes the tokens of each word, for which its rows and columns are least correlated."""
    turn = np.zeros((len(words), len(words)))
    start = 0
    for word in np.unique(words):
        places = np.flatnonzero(words == word)
        rows, columns = matrix[places], matrix[:, places].T
        gram = sum(part @ part.T / max(float(np.sum(part**2)), 1e-300) for part in (rows, columns))
        turn[start : start + len(places), places] = np.linalg.eigh(gram)[1].T
        start += len(places)
    return turn


def _reweigh(old: tuple[Real, Real], new: tuple[Real, Real], power: float) -> tuple[float, tuple[Real, Real]]:
    """How much weights change, and the next ones: old ones times a power of the quotient of new and old."""
    change, found = 0.0, []
    for before, after in zip(old, new, strict=True):
        # a token without functions has no weight, but may get some again
        shares = [np.maximum(each / each.sum(), 1e-12) for each in (before, after)]
        change += float(np.sum(np.abs(shares[0] - shares[1])))
        found.append(shares[0] * (shares[1] / shares[0]) ** power)
    return change, (found[0], found[1])


def tabulate(queries: Tokens, keys: Tokens, tokens: int, *, sampled: bool, paired: bool) -> LogTable:
    """The table of a head: from the middle of the spectrum to its smallest values, then up, then between."""
    walk = Walk(queries, keys, tokens, sampled=sampled, paired=paired)
    if walk.uniform:
        raise DomainError("all rows of this attention are equal: there is nothing but an atom at zero")
    top = float(np.log(walk.largest))
    points: dict[float, float] = {}
    log = top - 9.0
    while log > top + np.log(FLOOR):
        points[log] = walk.mass(float(np.exp(log)))
        if points[log] < RISE / 3:
            break
        log -= STEPS[1]
    _ascend(points, walk, top, 1 - 0.3 / tokens)
    _fill(points, walk)
    points[top] = 1.0
    logs = np.array(sorted(points))
    masses = np.array([points[each] for each in logs])
    fall = float(np.max(np.maximum.accumulate(masses) - masses))
    if fall > 0.02:  # functions of neighbouring points differ, so that it may fall a little
        message = f"the distribution function falls by {fall:.2g} somewhere: a few tokens hold most of this head"
        warnings.warn(message, AccuracyWarning, stacklevel=4)
    return LogTable(logs, np.maximum.accumulate(np.clip(masses, 1e-12, 1.0)))


def _ascend(points: dict[float, float], walk: Walk, top: float, enough: float) -> None:
    """Points above the last one, until nearly all mass is below them."""
    known = sorted(points)
    while known[-1] < top - STEPS[0] and points[known[-1]] <= enough:
        slope = 0.0
        if len(known) > 1:
            slope = (points[known[-1]] - points[known[-2]]) / (known[-1] - known[-2])
        log = min(known[-1] + float(np.clip(RISE / max(slope, 1e-9), *STEPS)), top - STEPS[0])
        mass = walk.mass(float(np.exp(log)))
        if mass < points[known[-1]]:  # among the last few values, which are no bulk, weights may not settle
            break
        points[log] = mass
        known.append(log)


def _fill(points: dict[float, float], walk: Walk) -> None:
    """Points between those that are too far apart."""
    for low, high in pairwise(sorted(points)):
        parts = min(int(np.ceil((points[high] - points[low]) / (2 * RISE))), int((high - low) / STEPS[0]))
        for k in range(1, parts):
            log = low + (high - low) * k / parts
            points[log] = walk.mass(float(np.exp(log)))


# -- the expansion of a head -------------------------------------------------------------------------------------------


class MultiIndices(NamedTuple):
    """Exponents of several directions: a member is ``base`` times its last direction to a degree; number 0 is one."""

    products: Real  # (n,): products of the powers
    base: Index  # (n,): number of the member without its last direction
    direction: Index  # (n,): the last direction, largest ratio first; -1 for number 0
    degree: Index  # (n,): degree in the last direction

    @classmethod
    def largest(cls, ratios: Real, count: int) -> Self:
        """The multi-indices with the largest products of powers of ratios below one."""
        powers = [float(each) for each in ratios if each > 1e-12]
        found = [(1.0, -1, -1, 0)]
        # product, base, direction, degree, and the number of the same with one degree less
        heap = [(-powers[0], 0, 0, 1, 0)] if powers else []
        while heap and len(found) < count:
            value, base, direction, degree, less = heappop(heap)
            number = len(found)
            found.append((-value, base, direction, degree))
            # each multi-index is reached once: one degree more, or the last factor moved to the next direction
            heappush(heap, (value * powers[direction], base, direction, degree + 1, number))
            if direction + 1 < len(powers):
                heappush(heap, (value / powers[direction] * powers[direction + 1], less, direction + 1, 1, less))
        return cls(*(np.array(each) for each in zip(*found, strict=True)))

    def features(self, coordinates: Real, factor: Real) -> Real:
        """Products of Hermite polynomials at tokens."""
        table = _hermite(coordinates.T, int(self.degree.max()))
        found = np.empty((len(self.products), len(coordinates)))
        found[0] = factor
        for n in range(1, len(found)):
            np.multiply(found[self.base[n]], table[self.degree[n], self.direction[n]], out=found[n])
        return found


@dataclass(frozen=True)
class Tokens:
    """Distinct tokens of a head, c of them, as queries or keys; functions of one are means over the token's places."""

    # (t, d): their queries, scale included, or their keys, at all places: those of one token after those of another
    vectors: Real
    counts: Real  # (c,): how often each token is repeated
    logs: Real  # (t,): logarithm of what each row, or column, of ``exp(scores)`` is multiplied by to be ``tokens * A``
    places: Index | None = None  # (c,): number of places of each token; one by default
    words: Index | None = None  # (c,): number of the word of each token, where those of one word are nearly alike

    def mean(self, values: Real) -> Real:
        """Means over the places of each token."""
        if self.places is None:
            return values
        starts = np.cumsum(self.places) - self.places
        means: Real = np.add.reduceat(values, starts, axis=-1) / self.places
        return means


class Expansion(NamedTuple):
    """``tokens * A`` of distinct tokens: sum over n of ``products[n] rows[n, i] columns[n, j]``, and ``rest[i, j]``."""

    products: Real
    rows: Real
    columns: Real
    rest: Real


class Expander:
    """Expansions of one head for changing weights of its tokens; multi-indices are kept while ratios are similar."""

    def __init__(self, queries: Tokens, keys: Tokens, count: int) -> None:
        self.queries, self.keys, self._count = queries, keys, count
        entries = np.exp(queries.logs[:, None] + queries.vectors @ keys.vectors.T + keys.logs)
        self.matrix = queries.mean(keys.mean(entries).T).T
        # a token is weighted as one, at the mean of its places
        self._centres = tuple(each.mean(each.vectors.T).T for each in (queries, keys))
        self._ratios: Real = np.zeros(0)
        self._indices = MultiIndices.largest(self._ratios, 1)

    def __call__(self, row_weights: Real, column_weights: Real) -> Expansion:
        """The expansion whose terms are orthogonal for Gaussian tokens of the weighted moments."""
        query, key = _moments(self._centres[0], row_weights), _moments(self._centres[1], column_weights)
        turn, couplings, back = np.linalg.svd(query.root @ key.root)
        left = (self.queries.vectors - query.mean) @ query.inverse @ turn
        right = (self.keys.vectors - key.mean) @ key.inverse @ back.T
        ratios = 2 * couplings / (1 + np.sqrt(1 + 4 * couplings**2))
        self._choose(ratios)
        rows = self.queries.logs + self.queries.vectors @ key.mean + np.sum(ratios * couplings * left**2, axis=1) / 2
        columns = (self.keys.vectors - key.mean) @ query.mean + np.sum(ratios * couplings * right**2, axis=1) / 2
        rows, columns = rows + np.sum(np.log1p(-(ratios**2))) / 2, columns + self.keys.logs
        near = [np.all(np.abs(each) < FAR, axis=1) for each in (left, right)]
        # a constant moves between the two, so that neither overflows
        shift = (_largest(rows, near[0]) - _largest(columns, near[1])) / 2
        products = self._powers(ratios)
        # the mean of a product over places of a row and places of a column is the product of the means
        queries = self.queries.mean(self._indices.features(np.clip(left, -FAR, FAR), _factor(rows - shift, near[0])))
        keys = self.keys.mean(self._indices.features(np.clip(right, -FAR, FAR), _factor(columns + shift, near[1])))
        return Expansion(products, queries, keys, self.matrix - (queries.T * products) @ keys)

    def _choose(self, ratios: Real) -> None:
        known = self._ratios
        if len(known) != len(ratios) or np.any(np.abs(ratios - known) > 0.1 * known + 0.01 * ratios[0]):
            self._ratios, self._indices = ratios, MultiIndices.largest(ratios, self._count)

    def _powers(self, ratios: Real) -> Real:
        """Products for the chosen multi-indices, which may be those of slightly other ratios."""
        found = np.ones(len(self._indices.products))
        for n in range(1, len(found)):
            found[n] = found[self._indices.base[n]] * ratios[self._indices.direction[n]] ** self._indices.degree[n]
        return found


def _largest(logs: Real, near: BoolArray) -> float:
    """The largest logarithm of the tokens that have functions, of either sign; zero if none has."""
    return float(logs[near].max()) if near.any() else 0.0


def _factor(logs: Real, near: BoolArray) -> Real:
    """Exponentials; zero for tokens that are too far out for the functions, which are left to the rest as they are."""
    kept = near & (logs < LARGEST)
    return np.where(kept, np.exp(np.where(kept, logs, 0.0)), 0.0)


class _TokenMoments(NamedTuple):
    mean: Real
    root: Real
    inverse: Real


def _moments(vectors: Real, weights: Real) -> _TokenMoments:
    """Weighted mean, and the root of the weighted covariance with its pseudo-inverse."""
    shares = weights / weights.sum()
    mean = shares @ vectors
    rest = vectors - mean
    values, basis = np.linalg.eigh((rest.T * shares) @ rest)
    size = np.sqrt(np.maximum(values, 0.0))
    known = values > 1e-10 * max(values[-1], 1e-300)  # others are directions that the tokens do not have
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=known)
    return _TokenMoments(mean, (basis * np.where(known, size, 0.0)) @ basis.T, (basis * inverse) @ basis.T)


def _hermite(points: Real, degree: int) -> Real:
    """Orthonormal Hermite polynomials up to a degree, of shape (degree + 1, ...)."""
    found = np.empty((degree + 1, *points.shape))
    found[0] = 1.0
    if degree:
        found[1] = points
    for n in range(1, degree):
        found[n + 1] = (points * found[n] - np.sqrt(n) * found[n - 1]) / np.sqrt(n + 1)
    return found
