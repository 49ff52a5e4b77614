"""Entropy and participation of rows whose scores are Gaussian, averaged over the spread of a row's scores."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial.chebyshev import Chebyshev, chebpts2

from bulkedge.arrays import Real
from bulkedge.propagation.trainability import gibbs_of_gaussians, softmax_of_gaussians

NODES = 12
"""Nodes of the rule over the spread of rows."""
PIECES = ((0.0, 12.0, 49), (12.0, 48.0, 25))
"""Ranges of the spread, and the number of interpolation points on each. Between the points, entropies are right to
``2e-7`` nats and participations to ``2e-4`` of themselves at any number of tokens (``2e-8``, ``4e-6`` at thousands)."""
HOTTEST = PIECES[-1][1]
"""Largest spread of a row's scores in the table. Hotter rows are frozen: what they lack to one key for all is the gap
between their largest scores, so that entropy and one less participation fall as one over the spread, to 1 %."""


def mean_rows(mean: Real, variance: Real, tokens: int) -> tuple[Any, Any]:
    """Mean entropy and participation of rows of Gaussian scores whose variance is gamma distributed over the rows.

    Parameters
    ----------
    mean : array
        Mean over rows of the variance of a row's scores, of any shape (the heads).
    variance : array
        Variance over rows of the same, of the same shape.
    tokens : int
        Number of keys in a row.

    Returns
    -------
    entropy, participation : array
        In nats, and the sum of the squared weights; of the shape of ``mean``.
    """
    nodes, weights = _gamma_rule(np.where(variance > 0, mean**2 / np.where(variance > 0, variance, 1.0), 1.0))
    scale = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
    # a rule of shape one and scale zero is the point zero: rows that all have the same spread need their own
    spread = np.where((variance > 0)[..., None], scale[..., None] * nodes, mean[..., None])
    beta = np.sqrt(spread)
    entropy, participation = _rows_of(np.minimum(beta, HOTTEST), tokens)
    frozen = HOTTEST / np.maximum(beta, HOTTEST)
    entropy, participation = frozen * entropy, 1 - frozen * (1 - participation)
    return np.sum(weights * entropy, axis=-1), np.sum(weights * participation, axis=-1)


def log_mean_exponential(xp: Any, deviation: Any, count: int) -> tuple[Any, Any]:
    """Mean logarithm of the mean of ``count`` exponentials of Gaussian scores, and its slope in their scale.

    Half the variance for many scores of small deviation. Beyond ``sqrt(2 log count)`` the largest of them rules, and
    the logarithm grows with the deviation only.

    Parameters
    ----------
    xp : module
        Namespace of the array library.
    deviation : array
        Standard deviations of the scores, of any shape.
    count : int
        Number of scores.

    Returns
    -------
    value, slope : array
        ``E log(sum exp(s)/count)`` and the mean score under the weights, of the shape of ``deviation``.
    """
    low, high, points = PIECES[0]
    inside = xp.clip(deviation, low, high)
    position = (2 * inside - low - high) / (high - low)
    value, score = (_clenshaw(coefficients, position) for coefficients in _logs(low, high, points, count))
    return value + (deviation - inside) * score, deviation * score


@lru_cache(maxsize=64)
def _logs(low: float, high: float, points: int, count: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Chebyshev coefficients in the deviation of the logarithm, and of the mean z under the weights."""
    beta = low + (high - low) * (chebpts2(points) + 1) / 2
    sums = [gibbs_of_gaussians(float(each), count) for each in beta]
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
    _table.cache_clear()
    _logs.cache_clear()
    softmax_of_gaussians.cache_clear()


def _gamma_rule(shape: Real) -> tuple[Real, Real]:
    """Gauss-Laguerre rules for gamma distributions of these shapes and scale one (Golub and Welsch)."""
    n = np.arange(NODES)
    rows, after = np.zeros((*shape.shape, NODES, NODES)), np.arange(1, NODES)
    rows[..., n, n] = 2 * n + shape[..., None]
    rows[..., after, after - 1] = np.sqrt(after * (after + shape[..., None] - 1))  # eigh reads the lower half
    nodes, vectors = np.linalg.eigh(rows)
    return np.maximum(nodes, 0.0), vectors[..., 0, :] ** 2


def _rows_of(beta: Real, tokens: int) -> tuple[Real, Real]:
    """Entropy and participation of rows with these spreads of their scores."""
    found = np.empty((2, *beta.shape))
    for low, high, points in PIECES:
        # hot rows cost ten times as much as others: their table is made only if there are any
        here = (beta >= low) & ((beta <= high) if high == HOTTEST else (beta < high))
        if np.any(here):
            entropy, log_participation = _table(low, high, points, tokens)
            found[0][here] = entropy(beta[here])
            found[1][here] = np.exp(log_participation(beta[here]))
    return found[0], found[1]


@lru_cache(maxsize=32)
def _table(low: float, high: float, points: int, tokens: int) -> tuple[Chebyshev, Chebyshev]:
    """Interpolants in the spread of the entropy, and of the logarithm of the participation, which spans decades."""
    beta = low + (high - low) * (chebpts2(points) + 1) / 2
    entropy, participation = np.transpose([softmax_of_gaussians(float(each), tokens) for each in beta])
    degree, ends = points - 1, [low, high]
    return (
        Chebyshev.fit(beta, entropy, degree, domain=ends),
        Chebyshev.fit(beta, np.log(participation), degree, domain=ends),
    )
