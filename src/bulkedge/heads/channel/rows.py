"""Entropy, participation and number of keys of rows of Gaussian scores, averaged over the spread of a row's scores."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev, chebpts2

from bulkedge.heads.softmax import Transforms, transforms
from bulkedge.support.arrays import EPS, Real

NODES = 12
"""Nodes of the rule over the spread of rows."""
PIECES = ((0.0, 12.0, 49), (12.0, 48.0, 25))
"""Ranges of the spread, and the number of interpolation points on each. Between the points, entropies are right to
``2e-7`` nats and participations to ``2e-4`` of themselves at any number of tokens (``2e-8``, ``4e-6`` at thousands)."""
SHARPEST = PIECES[-1][1]
"""Largest spread of a row's scores in the table. Sharper rows are frozen: what they lack to one key for all is the gap
between their largest scores, and falls as one over the spread (:func:`_frozen`, to 0.4 %)."""
FLATTER = np.array([1.0, 1.5, 2.0])
"""Where the series of sharper rows is fitted: :data:`SHARPEST` over these."""
STEP = 0.5
"""Largest spacing of the trapezoidal rule in ``log s`` for the number of keys, whose error is ``exp(-pi**2/STEP)``."""
REACH = 10.0
"""Standard deviations up to which scores are looked at."""
MOST = 10**12
"""Largest number of keys in a row."""
Of = Literal["entropy", "participation", "keys"]


def mean_rows(mean: Real, variance: Real, tokens: int) -> tuple[Any, Any]:
    """Mean entropy and participation of rows of Gaussian scores whose variance is gamma distributed over the rows."""
    beta, weights = spreads(mean, variance)
    entropy, participation = (rows_of(beta, tokens, of) for of in ("entropy", "participation"))
    return np.sum(weights * entropy, axis=-1), np.sum(weights * participation, axis=-1)


def spreads(mean: Real, variance: Real) -> tuple[Real, Real]:
    """Spreads of a few rows, with weights, that stand for all rows of heads: a Gauss rule."""
    nodes, weights = _gamma_rule(np.where(variance > 0, mean**2 / np.where(variance > 0, variance, 1.0), 1.0))
    scale = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
    # a rule of shape one and scale zero is the point zero: rows that all have the same spread need their own
    spread = np.where((variance > 0)[..., None], scale[..., None] * nodes, mean[..., None])
    return np.sqrt(spread), weights


def rows_of(beta: Real, tokens: int, of: Of) -> Real:
    """What rows of independent Gaussian scores have in the mean, at any spread and number of tokens, from tables."""
    values = _tabulated(np.minimum(beta, SHARPEST), tokens, of)
    sharp = beta > SHARPEST
    if np.any(sharp):
        values[sharp] = _frozen(SHARPEST / beta[sharp], _tabulated(SHARPEST / FLATTER, tokens, of), of)
    return values


def _tabulated(beta: Real, tokens: int, of: Of) -> Real:
    """What :func:`rows_of` returns, for spreads in the tables."""
    found = np.empty(beta.shape)
    for low, high, points in PIECES:
        # sharp rows cost ten times as much as others: their table is made only if there are any
        here = (beta >= low) & ((beta <= high) if high == SHARPEST else (beta < high))
        if np.any(here):
            if of == "keys":
                found[here] = np.exp(_keys_table(low, high, points, tokens)(beta[here]))
            else:
                entropy, log_participation = _table(low, high, points, tokens)
                found[here] = entropy(beta[here]) if of == "entropy" else np.exp(log_participation(beta[here]))
    return found


def _frozen(flat: Real, known: Real, of: Of) -> Real:
    """Sharper rows than the tables have, at the share ``flat`` of one over :data:`SHARPEST`.

    What they lack to one key for all is a series in one over the spread; three terms, from the values ``known`` at
    :data:`SHARPEST` over :data:`FLATTER`.
    """
    one = 0.0 if of == "entropy" else 1.0
    terms = np.linalg.solve(FLATTER[:, None] ** (1, 2, 3), known - one)
    return one + flat[..., None] ** (1, 2, 3) @ terms


def log_mean_exponential(xp: Any, deviation: Any, count: int) -> tuple[Any, Any]:
    """Mean logarithm of the mean of ``count`` exponentials of Gaussian scores, and its slope in their scale.

    Half the variance for many scores of small deviation. Beyond ``sqrt(2 log count)`` the largest of them rules, and
    the logarithm grows with the deviation only.
    """
    low, high, points = PIECES[0]
    inside = xp.clip(deviation, low, high)
    position = (2 * inside - low - high) / (high - low)
    value, score = (_clenshaw(coefficients, position) for coefficients in _logs(low, high, points, count))
    return value + (deviation - inside) * score, deviation * score


@lru_cache(maxsize=64)
def _logs(low: float, high: float, points: int, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev coefficients in the deviation of the logarithm, and of the mean z under the weights."""
    beta = _points(low, high, points)
    sums = [each.sums(count) for each in _shared(low, high, points)]
    log, score = [each.log_sum - np.log(count) for each in sums], [each.score for each in sums]
    fits = (Chebyshev.fit(beta, each, points - 1, domain=[low, high]) for each in (log, score))
    first, second = (tuple(float(each) for each in fit.coef) for fit in fits)
    return first, second


def _clenshaw(coefficients: tuple[float, ...], position: Any) -> Any:
    """A Chebyshev series by Clenshaw's recurrence, which any array library can do."""
    ahead = after = 0 * position
    for each in reversed(coefficients[1:]):
        ahead, after = each + 2 * position * ahead - after, ahead
    return coefficients[0] + position * ahead - after


def forget() -> None:
    """Drop all tables that were made, so that the next call makes its own: for measurements of its time."""
    for each in (_table, _keys_table, _logs, _shared, _shared_keys):
        each.cache_clear()


def _gamma_rule(shape: Real) -> tuple[Real, Real]:
    """Gauss-Laguerre rules for gamma distributions of these shapes and scale one (Golub and Welsch)."""
    n = np.arange(NODES)
    rows, after = np.zeros((*shape.shape, NODES, NODES)), np.arange(1, NODES)
    rows[..., n, n] = 2 * n + shape[..., None]
    rows[..., after, after - 1] = np.sqrt(after * (after + shape[..., None] - 1))  # eigh reads the lower half
    nodes, vectors = np.linalg.eigh(rows)
    return np.maximum(nodes, 0.0), vectors[..., 0, :] ** 2


@cache
def _shared(low: float, high: float, points: int) -> list[Transforms]:
    """What tables of all numbers of keys share, at the points of interpolation: nearly all of their time."""
    return [transforms(float(each), MOST) for each in _points(low, high, points)]


@cache
def _shared_keys(low: float, high: float, points: int) -> list[_Keys]:
    """The same for the mean number of keys."""
    return [_Keys.of(float(each), MOST) for each in _points(low, high, points)]


def _points(low: float, high: float, points: int) -> Real:
    return low + (high - low) * (chebpts2(points) + 1) / 2


@lru_cache(maxsize=128)
def _table(low: float, high: float, points: int, tokens: int) -> tuple[Chebyshev, Chebyshev]:
    """Interpolants in the spread of the entropy, and of the logarithm of the participation, which spans decades."""
    beta = _points(low, high, points)
    sums = [each.sums(tokens) for each in _shared(low, high, points)]
    entropy = [each.log_sum - spread * each.score for each, spread in zip(sums, beta, strict=True)]
    participation = [each.participation for each in sums]
    degree, ends = points - 1, [low, high]
    return (
        Chebyshev.fit(beta, entropy, degree, domain=ends),
        Chebyshev.fit(beta, np.log(participation), degree, domain=ends),
    )


@lru_cache(maxsize=128)
def _keys_table(low: float, high: float, points: int, tokens: int) -> Chebyshev:
    """Interpolant in the spread of the logarithm of :func:`mean_keys`."""
    beta = _points(low, high, points)
    logs = [np.log(each.mean(tokens)) for each in _shared_keys(low, high, points)]
    return Chebyshev.fit(beta, logs, points - 1, domain=[low, high])


def mean_keys(beta: float, tokens: int) -> float:
    """``E[1/sum_j A_j**2]``, the mean number of keys that share a row of independent Gaussian scores.

    With ``w = exp(beta z)`` it is ``E[(sum w)**2/sum w**2]``, and ``1/y = int e**(-s y) ds`` makes that of integrals
    over one score: with ``x = s w**2``, ``T int E[x e**-x] phi**(T-1) + (T-1) E[x**(1/2) e**-x]**2 phi**(T-2) ds/s``,
    ``phi = E e**-x``.

    Examples
    --------
    >>> round(mean_keys(1.0, 1000), 1), mean_keys(0.0, 1000)
    (377.6, 1000.0)
    """
    return _Keys.of(beta, tokens).mean(tokens)


class _Keys(NamedTuple):
    """What :func:`mean_keys` of one spread share, over nodes of ``log s``; no nodes where all weights are alike."""

    step: float
    root: Real
    whole: Real
    log_phi: Real

    @classmethod
    def of(cls, beta: float, most: float) -> Self:
        """For numbers of keys up to ``most``."""
        if beta == 0:
            return cls(0.0, *np.empty((3, 0)))
        double = 2 * beta
        step = min(STEP, STEP * double)  # nodes of a score are those of log s, at most half a standard deviation apart
        first = -np.log(most) - REACH * double - 40
        count = int(np.ceil(REACH * double / step))
        mass = np.exp(-((step / double * np.arange(-count, count + 1)) ** 2) / 2)
        mass /= mass.sum()
        nodes = int(np.ceil((REACH * double + 6 - first) / step))
        # e**-x is zero from there on, and stays so
        x = np.exp(np.minimum(first + step * np.arange(-count, nodes + count), 7.0))
        falling = np.exp(-x)
        means = (np.convolve(each, mass, "valid") for each in (np.sqrt(x) * falling, x * falling, -np.expm1(-x)))
        root, whole, lost = means
        return cls(step, root, whole, np.log1p(-np.minimum(lost, 1 - EPS / 2)))

    def mean(self, tokens: int) -> float:
        """The mean number of keys that share a row of so many."""
        if not self.root.size or tokens == 1:
            return float(tokens)
        one = self.whole * np.exp((tokens - 1) * self.log_phi)
        two = (tokens - 1) * self.root**2 * np.exp((tokens - 2) * self.log_phi)
        return float(tokens * self.step * np.sum(one + two))
