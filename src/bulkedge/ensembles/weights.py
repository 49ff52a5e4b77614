"""Weights that pool a sequence into one vector, each summing to one.

What they keep (*recovery*, equation 4): of the signal ``alpha = w' R w``, of the noise ``kappa = |w|**2``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array

from bulkedge.ensembles.correlations import CORRELATION, LENGTH, SAMPLES
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, MATRIX, Integers, Interval, Labels, Unwritten, shown, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility import softmax

SCORE_SCALE = Interval(-1e6, 1e6)


class PoolingWeights(Unwritten):
    """Domain of pooling weights: finite numbers that sum to one."""

    def check(self, name: str, value: Any) -> Real:
        """Return the weights as a read-only array, or raise."""
        weights = FINITE.check(name, value)
        if weights.ndim != 1 or not weights.size:
            raise DomainError(f"{name} must be a vector with a number for each position; got shape {weights.shape}")
        if not abs(weights.sum() - 1) <= 1e-9:
            raise DomainError(f"{name} sums to {weights.sum():.12g}; it must be {self}: divide by the sum")
        weights.flags.writeable = False
        return weights

    def __str__(self) -> str:
        return "finite numbers that sum to one"


WEIGHTS = PoolingWeights()


def require_positions(weights: Real, correlation: Real) -> None:
    """Refuse weights and a correlation that are not for as many positions."""
    if len(weights) != len(correlation):
        raise DomainError(
            f"weights are for {len(weights)} positions and correlation for {len(correlation)}; they must be as many"
        )


def earlier_positions(length: int) -> Any:
    """Who sees whom in causal attention without the own position; the first one has nothing else to see."""
    seen = np.tri(length, length, -1, dtype=bool)
    seen[0, 0] = True
    return seen


def mean_weights(length: int) -> Real:
    """Equal weights ``1/T``: mean pooling.

    Parameters
    ----------
    length : int
        Number L of positions.

    Returns
    -------
    array of shape (length,)
        The weights.

    Examples
    --------
    >>> mean_weights(4).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    length = LENGTH.check("length", length)
    return np.full(length, 1 / length)


def harmonic(upto: int) -> Real:
    """The harmonic numbers ``H_0, H_1, ..., H_upto``."""
    return np.append(0.0, np.cumsum(1 / np.arange(1.0, upto + 1)))


def causal_weights(length: int) -> Real:
    """Causal attention without scores, averaged over its rows (*recovery*, Proposition 2, equation 11).

    Row t attends evenly to the positions before it, the first row to itself: ``w_1 = (1 + H_{L-1})/L`` and
    ``w_j = (H_{L-1} - H_{j-1})/L``, with harmonic numbers H. The last weight is zero.

    Parameters
    ----------
    length : int
        Number L of positions.

    Returns
    -------
    array of shape (length,)
        The weights, which sum to one.

    Examples
    --------
    >>> causal_weights(4).round(4)
    array([0.7083, 0.2083, 0.0833, 0.    ])
    """
    length = LENGTH.check("length", length)
    numbers = harmonic(length - 1)
    weights = (numbers[-1] - numbers) / length
    weights[0] += 1 / length
    return np.asarray(weights)


def causal_noise(length: int) -> float:
    """``kappa`` of the causal weights: ``(2 T - 1 + H_{T-1})/T**2`` (*recovery*, Appendix H).

    Parameters
    ----------
    length : int
        Number L of positions.

    Returns
    -------
    float
        The sum of the squared weights.

    Examples
    --------
    >>> round(causal_noise(4), 4)
    0.5521
    """
    length = LENGTH.check("length", length)
    return float((2 * length - 1 + harmonic(length - 1)[-1]) / length**2)


@takes(prefix=Integers(1, 10**6))
def causal_signal(length: int, prefix: int, correlation: float) -> float:
    """``alpha`` of the causal weights with a correlated prefix (*recovery*, equation 43).

    ``kappa + r (m**2 - q)``: m is the mass ``(1 + p + p D)/L`` of the prefix and q its sum of squares, which is kappa
    minus ``(2 (L - 1 - p) - (2 p + 1) D - p D**2)/L**2``, with ``D = H_{L-1} - H_p``.

    Parameters
    ----------
    length : int
        Number L of positions.
    prefix : int
        Number p of correlated positions, the first ones.
    correlation : float
        Correlation r of any two of them, from 0 to 1.

    Returns
    -------
    float
        ``w' R w``.

    Examples
    --------
    >>> round(causal_signal(length=4, prefix=2, correlation=0.5), 4)
    0.6997
    """
    length = LENGTH.check("length", length)
    prefix = Integers(1, length).check("prefix", prefix)
    correlation = Interval(0, 1).check("correlation", correlation)
    kappa, numbers = causal_noise(length), harmonic(length)
    gap = numbers[length - 1] - numbers[prefix]
    mass = (1 + prefix + prefix * gap) / length
    squares = kappa - (2 * (length - 1 - prefix) - (2 * prefix + 1) * gap - prefix * gap**2) / length**2
    return float(kappa + correlation * (mass**2 - squares))


def optimal_weights(correlation: ArrayLike) -> Real:
    """The weights with the best ratio of signal to noise: the top eigenvector of R, scaled to sum one.

    They reach ``alpha/kappa = lambda_max(R)`` (*recovery*, Theorem 5, equation 10). Where the top eigenvalue has
    several eigenvectors, those of least kappa: the projection of the constant vector on their span.

    Parameters
    ----------
    correlation : array_like of shape (L, L)
        Correlations R of the positions.

    Returns
    -------
    array of shape (L,)
        The weights, which sum to one.

    Examples
    --------
    >>> optimal_weights([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]).round(12) + 0.0
    array([0.5, 0.5, 0. ])
    """
    matrix = CORRELATION.check("correlation", correlation)
    values, vectors = np.linalg.eigh(matrix)
    top = vectors[:, values > values[-1] - 1e-9 * len(matrix)]
    projection = top @ top.sum(axis=0)
    if projection.sum() <= 1e-12 * len(matrix):
        raise DomainError(
            "correlation has top eigenvectors that sum to zero, so no weights that sum to one reach "
            f"alpha/kappa = lambda_max = {values[-1]:.6g}: it is a supremum without a maximiser (recovery, Theorem 5b)"
        )
    return np.asarray(projection / projection.sum())


def self_attention_weights(sequences: ArrayLike, score_scale: float = 1.0) -> Real:
    """Weights of causal self-attention on the sequences themselves, averaged over its rows (*recovery*, Appendix G).

    Row t attends to the positions before it (the first one to itself) with the softmax of the scores
    ``score_scale x_t.x_s/d``. As d grows these vanish and the weights become :func:`causal_weights`, at distance
    ``self_attention_spread`` (Lemma 1).

    Parameters
    ----------
    sequences : array_like of shape (..., L, d)
        Embedded tokens.
    score_scale : float
        Factor of the scores.

    Returns
    -------
    array of shape (..., L)
        Weights of each sequence, which sum to one.

    Examples
    --------
    >>> self_attention_weights(np.zeros((4, 8))).round(4)        # without scores, those of causal_weights
    array([0.7083, 0.2083, 0.0833, 0.    ])
    """
    embedded = FINITE.check("sequences", sequences)
    if embedded.ndim < 2:
        raise DomainError(f"sequences must have shape (..., L, d); got {embedded.shape}")
    score_scale = SCORE_SCALE.check("score_scale", score_scale)
    length, dim = embedded.shape[-2:]
    scores = score_scale / dim * (embedded @ np.swapaxes(embedded, -1, -2))
    return np.asarray(softmax(scores, earlier_positions(length)).mean(axis=-2))


@takes(dim=SAMPLES, vocab=SAMPLES)
def self_attention_spread(correlation: ArrayLike, dim: int, vocab: int, score_scale: float = 1.0) -> float:
    """Root mean square distance of :func:`self_attention_weights` to :func:`causal_weights`, to leading order.

    A row with n keys has independent scores of variance ``tau**2/d``, which move its weights by their deviations from
    their mean over n: together ``tau**2/(d L**2) sum_n (n - 1)/n**2`` for n up to L - 1. But a key may be the query's
    own token, with probability ``(1 + R_ts)/V``, and then its score is tau and not small (*recovery*, Appendix G,
    leaves this out). Its weight rises by ``a = e**tau/(n - 1 + e**tau) - 1/n``, at a squared distance of ``a**2 n/(n -
    1)``. Both parts are of order ``d**(-1/2)`` in distance.

    Parameters
    ----------
    correlation : array_like of shape (L, L)
        Correlations R of the signs.
    dim, vocab : int
        Dimension d, and number V of different tokens.
    score_scale : float
        tau.

    Returns
    -------
    float
        The distance.

    Examples
    --------
    >>> round(self_attention_spread(np.eye(6), dim=64, vocab=1000), 4)
    0.0196
    """
    matrix = CORRELATION.check("correlation", correlation)
    score_scale = SCORE_SCALE.check("score_scale", score_scale)
    length = len(matrix)
    keys = np.arange(2.0, length)
    scores = score_scale**2 / dim * np.sum((keys - 1) / keys**2)
    rise = 1 / (1 + (keys - 1) * np.exp(-score_scale)) - 1 / keys
    repeats = np.tril(1 + matrix, -1).sum(axis=1)[2:] / vocab
    return float(np.sqrt(scores + np.sum(repeats * rise**2 * keys / (keys - 1))) / length)


@takes(table=MATRIX, tokens=Labels(2))
def pool(table: Real, tokens: Any, weights: Real) -> Real:
    """Weighted sums of the rows of a table at the tokens of each sequence, by a sparse product.

    Parameters
    ----------
    table : array of shape (vocab, dim)
        Embeddings.
    tokens : array of integers, shape (samples, length)
        Rows of the table that make up each sequence.
    weights : array of shape (length,) or (samples, length)
        Weight of each position.

    Returns
    -------
    array of shape (samples, dim)
        A pooled vector for each sequence.

    Examples
    --------
    >>> pool(np.eye(3), np.array([[0, 2], [1, 1]]), mean_weights(2))
    array([[0.5, 0. , 0.5],
           [0. , 1. , 0. ]])
    """
    rows = np.asarray(tokens)
    if rows.dtype.kind not in "iu" or not rows.size or not 0 <= rows.min() <= rows.max() < len(table):
        last = len(table) - 1
        raise DomainError(f"tokens = {shown(tokens)} must be integers from 0 to {last}, the last row of table")
    (count, length), shares = rows.shape, FINITE.check("weights", weights)
    if shares.shape not in {(length,), rows.shape}:
        raise DomainError(f"weights has shape {shares.shape}; it must have a number for each of the {length} positions")
    ends = np.arange(0, count * length + 1, length)
    each = np.broadcast_to(shares, rows.shape).ravel()
    spread = csr_array((each, rows.ravel(), ends), shape=(count, len(table)))
    return np.asarray(spread @ table)
