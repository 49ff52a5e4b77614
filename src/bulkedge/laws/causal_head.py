"""Causal attention at the size of real heads: scores of low rank, behind a mask (ours).

A degree of the exponential of the scores is a matrix of rank N (:mod:`bulkedge.laws.finite_head`), which the mask does
not keep: row x and column y < x of ``sqrt(l) (A - C)``, x and y in (0, 1), are joined as ``sqrt(w(x)) sum_c P_xc Q_yc``
over N channels c, with ``w = B/x**2``. Let g and h be the diagonals of the resolvent at ``z**2`` over rows and columns,
``phi = N/l``, and T the integral ``(T e)(x) = int_0^x e``, which stands for the mask. What a channel carries from
columns to rows is ``T (1/h - T' w g T/phi)**-1 T'``, the inverse of a Sturm-Liouville operator. So its diagonal comes
from two Riccati equations, one from each end,

    p' = h + (w g/phi) p**2,  p(0) = 0,        r' = -w g - (h/phi) r**2,  r(1) = 0,

and with ``d = 1 - p r/phi``, summed over the degrees,

    g = 1/(z - sum w p/d),        h = 1/(z - sum r/d).

Without a mask these are the equations of the finite-head law; with ``phi = inf``, those of the causal law
(docs/theory/causal.md, "Heads of low rank behind a mask", derives them). They are solved off the axis, and the
distribution function at x is the mean of ``Re z G(z)`` over ``|z| = x``, Im z > 0.

>>> CausalHeadDistribution(beta=0.5, head_dim=32, tokens=200).cdf([0.02, 0.3, 2.0]).round(2)
array([0.34, 0.69, 0.88])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import PchipInterpolator

from bulkedge.arrays import Complex, Real
from bulkedge.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.errors import UnresolvedError
from bulkedge.laws.distribution import Distribution
from bulkedge.laws.finite_head import FiniteHeadLaw
from bulkedge.laws.units import Unit
from bulkedge.progress import track

ANGLES = 8
"""Gauss nodes on the half-circle: twice as many change the distribution function by less than 1e-6."""
GROWTH = 1.05
"""Rows are taken together in blocks that grow by so much: that changes the function by 0.003 at most, and by 0.0005
where it is above 0.2. Draws differ from it by more (``docs/laws/causal.md``)."""
NOISE = 20.0
"""A degree with so many harmonics a token is noise."""
TOLERANCE, MOST = 1e-6, 20_000
TABLE = 32
"""Points of the table that serves more than as many arguments: its error is below 0.001."""
FIRST = -16.0
"""Logarithm of its first point; 0.02 to 0.05 of the values lie below."""


class Blocks(NamedTuple):
    """Blocks of consecutive tokens, m of them: how many tokens each has, and the mean of ``l/i**2`` over its rows i."""

    sizes: Real
    weights: Real


class Terms(NamedTuple):
    """Degrees of the exponential of the scores, k of them; queries and keys fall into r groups by their length.

    Attributes
    ----------
    variances : array of shape (k, 1)
        Variance B of each term.
    inverse_ranks : array of shape (k, 1)
        One over its number of harmonics; zero for terms that are noise of full rank.
    shares : array of shape (r,)
        Share of the tokens in each group.
    rows, columns : arrays of shape (k, r)
        Squared size of a row (of a query) and of a column (of a key) of each group in each term; of mean one.
    """

    variances: Real
    inverse_ranks: Real
    shares: Real
    rows: Real
    columns: Real


class LogTable:
    """A distribution function between tabulated points: monotone cubics in ``log x``, and ``a/(b - log x)`` below.

    Triangular matrices have a fraction of about ``1/log(1/x)`` of their values below x, however small that is.

    Parameters
    ----------
    logs : array of shape (n,)
        Increasing logarithms of the points.
    masses : array of shape (n,)
        The distribution function there.
    """

    def __init__(self, logs: Real, masses: Real) -> None:
        self._logs, self.masses = logs, masses
        self._between = PchipInterpolator(logs, masses)
        rise = masses[1] / masses[0]
        self._pole = (rise * logs[1] - logs[0]) / (rise - 1)

    def cdf(self, log: Real) -> Real:
        """The mass up to the exponential of each argument.

        Parameters
        ----------
        log : array
            Logarithms of points, of any shape.

        Returns
        -------
        array
            The mass, of the same shape: one right of the table, ``a/(b - log x)`` left of it.
        """
        first, last = self._logs[[0, -1]]
        tail = self.masses[0] * (self._pole - first) / (self._pole - np.minimum(log, first))
        inside = self._between(np.clip(log, first, last))
        return np.where(log < first, tail, np.where(log > last, 1.0, inside))

    def log_quantile(self, level: Real) -> Real:
        """Logarithm of the point at which the mass reaches each level, by bisection; minus infinity at zero.

        Parameters
        ----------
        level : array
            Levels between 0 and 1, of any shape.

        Returns
        -------
        array
            The logarithms, of the same shape.
        """
        low, high = np.full(level.shape, self._logs[0]), np.full(level.shape, self._logs[-1])
        for _ in range(60):
            middle = (low + high) / 2
            reached = self._between(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        with np.errstate(divide="ignore"):
            tail = self._pole - self.masses[0] * (self._pole - self._logs[0]) / level
        return np.where(level < self.masses[0], tail, high)


@dataclass(frozen=True)
class CausalHeadDistribution(Parametric, Distribution):
    """Squared singular values of ``sqrt(l) (A - C)``, A causal attention of one head and C its mean.

    It is no :class:`~bulkedge.laws.base.Law`: each point is solved for, in about half a second, and there is no
    density and no edge.
    """

    unit = Unit.SQUARED
    matrix = "sqrt(l) (A - C), A causal attention and C its mean"

    beta: float = parameter(Interval(1e-2, 2), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 10**5), "number of tokens l")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)

    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x; zero below zero.

        Up to 32 points are solved for one by one, in seconds; more are read off a table of as many, between whose
        points the distribution function is interpolated to 0.001.

        Raises
        ------
        UnresolvedError
            If the equations were not solved.
        """
        points = np.asarray(x, dtype=float)
        mass = np.where(np.isnan(points), np.nan, np.where(points > 0, 1.0, 0.0))
        inside = (points > 0) & np.isfinite(points)
        if inside.sum() > TABLE:
            mass[inside] = self._table.cdf(np.log(points[inside]))
        elif inside.any():
            mass[inside] = self._solve(points[inside])
        return mass[()]

    def ppf(self, q: ArrayLike) -> Any:
        """Smallest x with ``cdf(x) >= q``, from the same table; nan outside [0, 1]."""
        levels = np.asarray(q, dtype=float)
        valid = (levels >= 0) & (levels <= 1)
        result = np.full(levels.shape, np.nan)
        result[valid] = np.exp(self._table.log_quantile(levels[valid]))
        return result[()]

    @property
    def _table(self) -> LogTable:
        return _tabulated(self)

    def _solve(self, points: Real) -> Real:
        nodes, weights = np.polynomial.legendre.leggauss(ANGLES)
        total = np.zeros(len(points))
        state: Complex | None = None
        # from the negative axis, where the equations are tame, each angle starting from the one before
        for node, weight in track(list(zip(nodes[::-1], weights[::-1], strict=True)), "angles"):
            root = np.sqrt(points * np.exp(0.5j * np.pi * (node + 1)))
            if state is None:
                state = np.tile(1 / root, (2, len(self._blocks.sizes), len(self._terms.shares), 1))
            state = self._solved(root, state)
            columns = np.einsum("m,r,mrn->n", self._blocks.sizes, self._terms.shares, state[1])
            total += weight / 2 * (root * columns).real / self.tokens
        return np.clip(total, 0.0, 1.0)

    @cached_property
    def _blocks(self) -> Blocks:
        ends = [0]
        while ends[-1] < self.tokens:
            ends.append(min(self.tokens, max(ends[-1] + 1, int(ends[-1] * GROWTH))))
        sizes = np.diff(ends).astype(float)
        return Blocks(sizes, np.add.reduceat(self.tokens / np.arange(1.0, self.tokens + 1) ** 2, ends[:-1]) / sizes)

    @cached_property
    def _terms(self) -> Terms:
        law = FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm).profiled()
        # degrees come first; from the first full matrix on, and where there are many harmonics, terms are noise
        low = (law.ratios < NOISE) & (np.arange(len(law.ratios)) < np.argmax(np.isinf(law.ratios)))
        inverse = np.where(low, 1 / (self.tokens * law.ratios), 0.0)
        shares = law.rows.weights
        return Terms(law.variances[:, None], inverse[:, None], shares, law.rows.squares, law.columns.squares)

    def _solved(self, root: Complex, start: Complex) -> Complex:
        """The resolvent's diagonals, of shape (2, blocks, groups, n): rows, then columns.

        Each step averages them with their image under the equations, until that changes nothing; ``start`` has the
        same shape, and ``root`` has the square roots of the n points.
        """
        result, active, state = start.copy(), np.arange(len(root)), start
        for _ in range(MOST):
            image = self._image(state, root[active])
            change = np.max(np.abs(image - state), axis=(0, 1, 2)) * np.abs(root[active])
            state = (state + image) / 2
            done = change < TOLERANCE
            if done.any():
                result[..., active[done]] = state[..., done]
                active, state = active[~done], state[..., ~done]
            if not len(active):
                return result
        raise UnresolvedError(
            f"the equations of {self!r} were not solved at x = {np.abs(root[active][:3]) ** 2}: take larger values"
        )

    def _image(self, state: Complex, root: Complex) -> Complex:
        """Right-hand sides of the equations for g and h, of the shape of ``state``: (2, blocks m, groups r, points n).

        ``rows`` and ``columns`` are means over the groups for each term k, of shape (m, k, n). ``gain`` is the integral
        of h over half a block and ``back`` that of ``w g``; ``left`` is p and ``right`` is r of the module, in the
        middle of each block.
        """
        sizes, weights = (each[:, None, None] for each in self._blocks)
        terms = self._terms
        rows, columns = (
            np.einsum("kr,mrn->mkn", squares * terms.shares, each)
            for squares, each in zip((terms.rows, terms.columns), state, strict=True)
        )
        gain, back = sizes * columns / 2, sizes * weights * terms.variances * rows / 2
        left = _riccati(gain, back * terms.inverse_ranks)
        right = _riccati(back[::-1], gain[::-1] * terms.inverse_ranks)[::-1]
        dressed = 1 / (1 - left * right * terms.inverse_ranks)
        pull = weights * np.einsum("kr,mkn->mrn", terms.rows * terms.variances, left * dressed)
        push = np.einsum("kr,mkn->mrn", terms.columns, right * dressed)
        return 1 / (root - np.stack([pull, push]))


@lru_cache(maxsize=64)
def _tabulated(law: CausalHeadDistribution) -> LogTable:
    """The table of a distribution, once in a process."""
    # the largest values come from the first rows, which are of order tokens * variance
    last = np.log(4 * law.tokens * np.expm1(law.beta**2))
    logs = np.linspace(FIRST, last, TABLE)
    return LogTable(logs, np.maximum.accumulate(law._solve(np.exp(logs))))


def _riccati(source: Complex, feedback: Complex) -> Complex:
    """Solve ``p' = source + feedback p**2`` from zero, block by block; return p in the middle of each block.

    The arguments have the block as their first axis, and are integrals over half a block. Each half is stepped by the
    two parts of the equation in turn, both solved exactly: ``p + gain``, then ``p/(1 - back p)``.
    """
    found, value = np.empty_like(source), np.zeros_like(source[0])
    for k, (gain, back) in enumerate(zip(source, feedback, strict=True)):
        value = value + gain
        value = found[k] = value / (1 - back * value)
        value = value + gain
        value = value / (1 - back * value)
    return found
