"""The distribution function of a head, point by point: functions and weights that agree, then the resolvent.

At each point x of the spectrum the functions of the expansion are those that are orthogonal for the weights that the
resolvent at ``-x`` gives the tokens; with them, the mass up to x is the mean of ``Re z G(z)`` over ``|z| = x``
(docs/theory/anisotropic.md).
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from bulkedge.heads.law.features import Expander, Expansion, Tokens
from bulkedge.heads.law.resolvent import Equations, Own
from bulkedge.laws.attention.sharp_head import LogTable
from bulkedge.support.arrays import Complex, Real
from bulkedge.support.errors import AccuracyWarning, DomainError

TERMS = 3, 500, 6000
"""Terms of the expansion for each value of the spectrum, and their least and largest number."""
ANGLES = 6
"""Gauss nodes on the half-circle: twice as many change the distribution function by less than 0.001."""
TOLERANCE, ROUGH = 1e-5, 3e-3
"""To what the resolvent is solved for the distribution function, and for the choice of functions."""
ROUNDS, SETTLED, STRIDE = 16, 0.01, 60
"""Rounds in which functions and weights are fitted to each other, the change of all weights that ends them, and the
most steps towards the resolvent in a round. Errors of the weights enter the distribution function squared."""
POWERS = 0.0, 0.5, 1.0
"""Weights that are tried beside those of the resolvent: these powers of how often tokens are repeated."""
RISE = 0.07
"""What the distribution function rises by between points of its table, about."""
STEPS = 0.4, 3.0
"""Least and largest distance of the logarithms of these points."""
FALL = 0.02
"""Functions of neighbouring points differ, so that a distribution function may fall a little; more is warned of."""
FLOOR = 1e-26
"""Squares this small beside the largest are rounding errors, and so are all values if they are beside those of A."""


class _Choice(NamedTuple):
    """Functions at one point, as their equations: the state, the weights they are orthogonal for, and the trace."""

    equations: Equations
    state: Complex
    weights: tuple[Real, Real]
    trace: float


class Walk:
    """The mass at or below one point after another.

    Weights that agree with their own functions may be several where sinks or sharp directions hold a head, and none of
    them is good where tokens fall into groups. What the exact resolvent is does not depend on functions, and forgetting
    how they go together makes values that are not there: so the better functions are those of the larger trace of the
    resolvent, which say the same with fewer values. Tried are functions for weights that agree, started from those of
    the nearest point below or from the numbers of repeats; functions for powers of these numbers; and none at all.
    """

    def __init__(self, queries: Tokens, keys: Tokens, tokens: int, *, sampled: bool, paired: bool) -> None:
        self._tokens, self._paired = tokens, paired
        self._size = len(queries.counts), len(keys.counts)
        per_value, least, most = TERMS
        values = tokens if sampled else min(self._size)
        self._expand = Expander(queries, keys, int(np.clip(per_value * values, least, most)))
        self._counts = queries.counts, keys.counts
        self._plain_equations: dict[float, Equations] = {}
        self._powers = POWERS if max(each.max() for each in self._counts) > 1 else POWERS[:1]
        self._weights: dict[float, tuple[Real, Real]] = {}
        self._total = self._size[0] if sampled else tokens
        self._centred = self._expand.matrix - self._counts[0] @ self._expand.matrix / self._counts[0].sum()
        self.largest = self._squares(self._centred)
        """No squared singular value is larger than their sum."""
        self.uniform = self.largest <= FLOOR * self._squares(self._expand.matrix)
        """Whether all rows of the attention are equal, but for rounding."""

    def _squares(self, matrix: Real) -> float:
        """Sum of the squared singular values, for ``tokens * A`` between distinct tokens."""
        squares = np.sum(self._counts[0][:, None] * matrix**2 * self._counts[1])
        return float(squares) * self._tokens / self._total**2

    def mass(self, x: float) -> float:
        """Share of the values at or below x, those left aside that repeats make vanish."""
        below = [each for each in self._weights if each < x]
        weights = self._weights[max(below)] if below else self._counts
        found = self._settled(np.sqrt(x), weights)
        self._weights[x] = found.weights
        return self._around(x, found.equations, found.state)

    def _around(self, x: float, equations: Equations, state: Complex) -> float:
        """The share at or below x, from the resolvent on the half-circle."""
        nodes, weights = np.polynomial.legendre.leggauss(ANGLES)
        z = np.sqrt(x * np.exp(0.5j * np.pi * (nodes + 1)))
        start = equations.turned(state, 1j * np.sqrt(x) / z)
        found = equations.solve(z, start, TOLERANCE)[: self._size[0]]
        rows = float(np.sum(weights / 2 * np.sum(z * found, axis=0).real))
        # rows beyond the number of columns are zeros, which the atom counts
        least = min(self._size)
        return (rows - (self._size[0] - least)) / least

    def _settled(self, root: float, weights: tuple[Real, Real]) -> _Choice:
        """The choice of functions with the largest trace at ``-root**2``, weights that agree started from those given.

        Functions may be too large for the equations, which then are not finite anywhere; those without any always are.
        """
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            tried = [self._bare(root), *(self._plain(root, power) for power in self._powers)]
            fitted = self._fitted(root, weights)
        tried = tried if fitted is None else [*tried, fitted]
        return max((each for each in tried if np.all(np.isfinite(each.state))), key=lambda each: each.trace)

    def _bare(self, root: float) -> _Choice:
        """No functions, all entries as noise or edges: for rows that are nearly one-hot."""
        rows, columns = (np.zeros((2, size)) for size in self._size)
        none = Expansion(np.zeros(2), rows, columns, self._centred)
        return self._reached(self._equations(none), root, self._counts)

    def _plain(self, root: float, power: float) -> _Choice:
        """Functions that are orthogonal for a power of the numbers of repeats."""
        weights = self._counts[0] ** power, self._counts[1] ** power
        if power not in self._plain_equations:
            self._plain_equations[power] = self._equations(self._expand(*weights))
        return self._reached(self._plain_equations[power], root, weights)

    def _fitted(self, root: float, weights: tuple[Real, Real]) -> _Choice | None:
        """Functions that are orthogonal for the weights of their own resolvent, or nearly.

        None if those for the first weights were already too large for the equations.
        """
        before, least, power = np.inf, np.inf, 1.0
        state: Complex | None = None
        best: _Choice | None = None
        for _ in range(ROUNDS):
            expansion = self._expand(*weights)
            found = self._reached(self._equations(expansion), root, weights, state)
            state = found.state
            if not np.all(np.isfinite(state)):
                break
            change, weights = _moved(weights, self._weighed(expansion, state), power)
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

    def _weighed(self, expansion: Expansion, state: Complex) -> tuple[Real, Real]:
        """The weights that a resolvent on the imaginary axis gives the tokens."""
        rows, columns = np.split(-state[: sum(self._size), 0].imag, [self._size[0]])
        left, right = self._counts
        return left * expansion.rows[0] ** 2 * rows, right * expansion.columns[0] ** 2 * columns

    def _equations(self, expansion: Expansion) -> Equations:
        """The equations of an expansion, repeats counted."""
        left, right = self._counts
        products, rows, columns = (each[1:] for each in expansion[:3])
        noise, own = expansion.rest**2 * left[:, None] * right, None
        if self._paired:
            np.fill_diagonal(noise, 0.0)
            own = Own(rows * columns * left, np.diag(expansion.rest) * left / np.sqrt(self._tokens))
        sizes = rows**2 * left, columns**2 * right
        return Equations(products**2, *sizes, noise, self._tokens, self._total, own)

    def _reached(
        self, equations: Equations, root: float, weights: tuple[Real, Real], state: Complex | None = None
    ) -> _Choice:
        """Towards the resolvent at ``-root**2``: as if all entries were small, then with heavy ones as edges.

        The start is a state of the last round, which may have had other edges, or that of a matrix of zeros.
        """
        point = np.array([1j * root])
        start = equations.start(point) if state is None else equations.without_edges(state)
        with_edges, guess = equations.with_edges(equations.approach(point, start, ROUGH, STRIDE))
        found = with_edges.approach(point, guess, ROUGH, STRIDE)
        return _Choice(with_edges, found, weights, float(-np.sum(found[: self._size[0]].imag)))


def _moved(old: tuple[Real, Real], new: tuple[Real, Real], power: float) -> tuple[float, tuple[Real, Real]]:
    """How much weights change, and the next ones: old ones times a power of the quotient of new and old."""
    change, found = 0.0, []
    for before, after in zip(old, new, strict=True):
        # a token without functions has no weight, but may get some again
        shares = [np.maximum(each / each.sum(), 1e-12) for each in (before, after)]
        change += float(np.sum(np.abs(shares[0] - shares[1])))
        found.append(shares[0] * (shares[1] / shares[0]) ** power)
    return change, (found[0], found[1])


def tabulated(queries: Tokens, keys: Tokens, tokens: int, *, sampled: bool, paired: bool) -> LogTable:
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
    if fall > FALL:
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
