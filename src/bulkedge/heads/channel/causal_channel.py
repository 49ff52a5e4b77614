"""Causal heads from the moments of blocks of their queries and keys: rows and columns without the attention matrix.

A row of a decoder sees the keys before it, and after rotary positions keys at different distances have different
moments. Halve the tokens: rows of the second half see all keys of the first half, a rectangle far from the diagonal,
and within each half the picture repeats. So the triangle is one rectangle at each level, and small triangles along the
diagonal. A rectangle is described by the moments of its keys, which give each of its rows a part of its normaliser, and
then by those of its rows, weighted by what the normalisers leave them, which give each of its keys a part of its column
sum. The small triangles are exact, and so are the columns of a few keys, those that a first pass finds liked most
(docs/theory/popularity.md, "Decoders"). The cost is ``O(T d**2 log T)``.

>>> rng = np.random.default_rng(0)
>>> q, k = rng.standard_normal((2, 300, 16))
>>> head = CausalChannel.from_qk(q, k)
>>> exact = np.where(np.tri(300) > 0, np.exp(q @ k.T / 4), 0.0)
>>> columns = (exact / exact.sum(axis=1, keepdims=True)).mean(axis=0)
>>> bool(np.abs(head.popularity - columns).sum() / 2 < 0.01)
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.heads.channel.moments import VECTORS, working
from bulkedge.heads.softmax import log_mean_exponential
from bulkedge.support.domains import REAL_NUMBER, Integers, takes
from bulkedge.support.errors import DomainError

BLOCK, EXPLICIT = Integers(1, 4096), Integers(0, 1024)
NOTHING = -1e30  # logarithm of a weight that is none; finite, so that differences of two of them are numbers


@dataclass(frozen=True, eq=False)
class CausalChannel:
    """Rows and columns of causal heads, predicted from moments; arrays of the library and device of their queries.

    >>> q, k = np.random.default_rng(0).standard_normal((2, 100, 16))
    >>> head = CausalChannel.from_qk(q, k)
    >>> head.entropy[[0, 9, 99]].round(2), head.popularity[:2].round(3)
    (array([0.  , 2.16, 4.02]), array([0.064, 0.034]))

    Attributes
    ----------
    log_normaliser : array of shape (..., tokens)
        Logarithm of the sum of ``exp(score)`` over the keys that each row sees.
    entropy : array of shape (..., tokens)
        Entropy of each row, in nats.
    popularity : array of shape (..., tokens)
        Share of all attention that each key gets, its column sum over the number of rows; they sum to one.
    total : array of shape (...)
        Sum of the predicted columns over the number of rows before they were made to sum to one. Rows and columns are
        predicted apart, so what it differs from one says how far to trust the popularity.
    explicit : array of shape (..., explicit)
        Positions of the keys whose columns are exact, the most popular first.
    spread : array of shape (..., tokens)
        Standard deviation of the scores that each row sees, of which the first has none: zero. That of a sample, so
        that rows of few keys have no smaller ones.
    """

    log_normaliser: Any
    entropy: Any
    popularity: Any
    total: Any
    explicit: Any
    spread: Any

    @classmethod
    @takes(q=VECTORS, k=VECTORS, scale=REAL_NUMBER)
    def from_qk(cls, q: Any, k: Any, scale: float | None = None, block: int = 32, explicit: int = 8) -> Self:
        """Rows and columns of causal heads, from their queries and keys.

        Parameters
        ----------
        q, k : array of shape (..., tokens, d)
            Queries and keys as the scores see them (after rotary positions and norms), NumPy or torch; row i sees the
            keys up to i.
        scale : float, optional
            What scores ``q . k`` are multiplied by; ``1/sqrt(d)`` by default.
        block : int, optional
            Size of the triangles along the diagonal that are exact; 1 leaves only a token's attention to itself.
        explicit : int, optional
            Number of keys whose columns are exact: sinks, and whatever a Gaussian does not hold.

        Returns
        -------
        CausalChannel
            Of all heads along the leading axes.

        Raises
        ------
        DomainError
            If the shapes do not fit or an entry is not finite.
        """
        shape = tuple(q.shape)
        if shape != tuple(k.shape) or hasattr(q, "detach") != hasattr(k, "detach"):
            raise DomainError(f"q has shape {shape}, k {tuple(k.shape)}; give (..., tokens, d) of the same tokens")
        factor = shape[-1] ** -0.5 if scale is None else scale
        block, explicit = BLOCK.check("block", block), min(EXPLICIT.check("explicit", explicit), shape[-2])
        xp, tokens = array_namespace(q, k), shape[-2]
        wide = [xp.reshape(working(each), (-1, *shape[-2:])) for each in (q, k)]
        for name, each in zip("qk", wide, strict=True):
            if not bool(xp.all(xp.isfinite(each))):
                raise DomainError(f"{name} has entries that are not finite")
        heads = _CausalHeads(_pad(xp, factor * wide[0], block), _pad(xp, wide[1], block), tokens, block)
        # the arrays of integers that choose no key, one for each head
        chosen = xp.zeros((wide[0].shape[0], 0), dtype=xp.int64, device=device(wide[0]))
        if explicit:
            columns = _columns(xp, heads, chosen, _rows(xp, heads, chosen).log_sum)
            chosen = xp.argsort(columns[:, :tokens], axis=-1, descending=True)[:, :explicit]
        rows = _rows(xp, heads, chosen)
        columns = _columns(xp, heads, chosen, rows.log_sum)[:, :tokens]
        log_total = _log_sum(xp, columns, -1)
        found = (*(each[:, :tokens] for each in rows), xp.exp(columns - log_total[:, None]), xp.exp(log_total) / tokens)
        spread = _spread(xp, heads)[:, :tokens]
        return cls(*(xp.reshape(each, (*shape[:-2], *each.shape[1:])) for each in (*found, chosen, spread)))


class _CausalHeads(NamedTuple):
    """Queries, with the scale, and keys of shape (heads, size, d); rows from ``tokens`` on only fill up the size."""

    queries: Any
    keys: Any
    tokens: int
    block: int


class _CausalRows(NamedTuple):
    """Log normaliser and entropy of rows, each (heads, size)."""

    log_sum: Any
    entropy: Any


def _pad(xp: Any, array: Any, block: int) -> Any:
    """Heads with zeros after the last token, up to a power of two of blocks."""
    tokens = array.shape[-2]
    size = block
    while size < tokens:
        size *= 2
    if size == tokens:
        return array
    zeros = xp.zeros((array.shape[0], size - tokens, array.shape[-1]), dtype=array.dtype, device=device(array))
    return xp.concat([array, zeros], axis=-2)


def _halves(xp: Any, array: Any, size: int) -> tuple[Any, Any]:
    """First and second halves of all stretches of twice ``size`` tokens: (heads, stretches, size, ...) each."""
    cut = xp.reshape(array, (array.shape[0], -1, 2, size, *array.shape[2:]))
    return cut[:, :, 0], cut[:, :, 1]


def _rectangles(xp: Any, heads: _CausalHeads) -> Iterator[tuple[int, Any, Any]]:
    """Sizes of rectangles, their keys, and the queries of their rows: (heads, rectangles, size, d)."""
    size = heads.block
    while size < heads.keys.shape[1]:
        yield size, _halves(xp, heads.keys, size)[0], _halves(xp, heads.queries, size)[1]
        size *= 2


def _score_moments(xp: Any, vectors: Any, mean: Any, covariance: Any) -> tuple[Any, Any]:
    """Mean and variance of products of vectors with others of these moments."""
    level = xp.matmul(vectors, mean[..., None])[..., 0]
    return level, xp.sum(xp.matmul(vectors, covariance) * vectors, axis=-1)


def _free(xp: Any, heads: _CausalHeads, chosen: Any) -> Any:
    """Ones for the keys that moments describe, zeros for those that are explicit: (heads, size)."""
    free = xp.ones(heads.keys.shape[:2], dtype=heads.keys.dtype, device=device(heads.keys))
    free[np.arange(len(chosen))[:, None], chosen] = 0.0
    return free


def _triangles(xp: Any, heads: _CausalHeads) -> tuple[Any, Any]:
    """Scores along the diagonal, (heads, blocks, block, block), and which of them a row sees, (block, block)."""
    queries, keys = (xp.reshape(each, (each.shape[0], -1, heads.block, each.shape[-1])) for each in heads[:2])
    ones = xp.ones((heads.block, heads.block), dtype=heads.keys.dtype, device=device(heads.keys))
    return xp.matmul(queries, xp.matrix_transpose(keys)), xp.tril(ones) > 0


def _explicit(xp: Any, heads: _CausalHeads, chosen: Any) -> Any:
    """Scores of the explicit keys in the rows after their block, (heads, size, explicit); nothing elsewhere."""
    keys = heads.keys[np.arange(len(chosen))[:, None], chosen]
    start = xp.arange(heads.keys.shape[1], device=device(heads.keys)) // heads.block * heads.block
    scores = xp.matmul(heads.queries, xp.matrix_transpose(keys))
    return xp.where(chosen[:, None, :] < start[None, :, None], scores, xp.full_like(scores, NOTHING))


def _rows(xp: Any, heads: _CausalHeads, chosen: Any) -> _CausalRows:
    """Normaliser and entropy of every row, in parts: its triangle, explicit keys, and rectangles."""
    # of each part the logarithm of its sum of exp(score), and its mean score under these weights
    scores, seen = _triangles(xp, heads)
    shape = heads.queries.shape[:2]
    parts = [tuple(xp.reshape(each, shape) for each in _exact(xp, xp.where(seen, scores, NOTHING)))]
    if chosen.shape[-1]:
        parts.append(_exact(xp, _explicit(xp, heads, chosen)))
    free = _free(xp, heads, chosen)
    for size, keys, queries in _rectangles(xp, heads):
        weights = _halves(xp, free, size)[0]
        count = xp.sum(weights, axis=-1)
        mean, covariance = _weighted_moments(xp, keys, weights / xp.clip(count, 1.0, None)[..., None])
        level, variance = _score_moments(xp, queries, mean, covariance)
        log_count = xp.where(count > 0, xp.log(xp.clip(count, 1.0, None)), NOTHING)[..., None]
        value, score = log_mean_exponential(xp, xp.sqrt(xp.clip(variance, 0.0, None)), size)
        part = (log_count + level + value, level + score)
        none = xp.full_like(level, NOTHING)
        parts.append(tuple(xp.reshape(xp.stack([none, each], axis=2), shape) for each in part))
    logs, means = (xp.stack(each) for each in zip(*parts, strict=True))
    log_sum = _log_sum(xp, logs, 0)
    # a part that is nothing has the mean score "nothing" too; its share is zero
    shares = xp.exp(logs - log_sum)
    entropy = log_sum - xp.sum(xp.where(shares > 0, shares * means, xp.zeros_like(means)), axis=0)
    return _CausalRows(log_sum, entropy)


def _spread(xp: Any, heads: _CausalHeads) -> Any:
    """Standard deviations of the scores of every row, from the same triangles and rectangles: (heads, size)."""
    shape = heads.queries.shape[:2]
    scores, seen = _triangles(xp, heads)
    inside = xp.where(seen, scores, xp.zeros_like(scores))
    total, squares = (xp.reshape(xp.sum(each, axis=-1), shape) for each in (inside, inside**2))
    for size, keys, queries in _rectangles(xp, heads):
        mean, covariance = _weighted_moments(xp, keys, xp.full_like(keys[..., 0], 1 / size))
        level, variance = _score_moments(xp, queries, mean, covariance)
        parts = [xp.stack([xp.zeros_like(each), each], axis=2) for each in (level, variance + level**2)]
        total, squares = (
            sums + size * xp.reshape(part, shape) for sums, part in zip((total, squares), parts, strict=True)
        )
    count = xp.arange(1, shape[1] + 1, dtype=total.dtype, device=device(total))
    rest = squares / count - (total / count) ** 2
    return xp.sqrt(xp.clip(rest, 0.0, None) * count / xp.clip(count - 1, 1.0, None))


def _columns(xp: Any, heads: _CausalHeads, chosen: Any, log_sum: Any) -> Any:
    """Logarithms of the column sums of every key, of shape (heads, size)."""
    shape = log_sum.shape
    real = xp.arange(shape[1], device=device(log_sum)) < heads.tokens
    # rows that fill up have no weight
    rest = xp.where(real, log_sum, xp.full_like(log_sum, -NOTHING))
    scores, seen = _triangles(xp, heads)
    inside = xp.where(seen, scores - xp.reshape(rest, scores.shape[:3])[..., None], NOTHING)
    found = xp.reshape(_log_sum(xp, inside, -2), shape)
    if chosen.shape[-1]:
        which = np.arange(len(chosen))[:, None], chosen
        outside = _log_sum(xp, _explicit(xp, heads, chosen) - rest[..., None], -2)
        found[which] = xp.logaddexp(found[which], outside)
    free = _free(xp, heads, chosen)
    for size, keys, queries in _rectangles(xp, heads):
        weights, left = _halves(xp, free, size)[0], _halves(xp, rest, size)[1]
        centre = xp.sum(keys * weights[..., None], axis=-2) / xp.clip(xp.sum(weights, axis=-1), 1.0, None)[..., None]
        # rows by what their normalisers leave to the mean key of the rectangle
        logs = xp.matmul(queries, centre[..., None])[..., 0] - left
        whole = _log_sum(xp, logs, -1)[..., None]
        shares = xp.exp(logs - whole)
        mean, covariance = _weighted_moments(xp, queries, shares)
        away = keys - centre[..., None, :]
        tilt, variance = _score_moments(xp, away, mean, covariance)
        spread = _log_mean_frozen(xp, variance, 1 / xp.sum(shares**2, axis=-1)[..., None])
        level = whole + tilt + spread
        # each row gives a key one at most
        part = xp.where(weights > 0, xp.clip(level, None, float(np.log(size))), NOTHING)
        found = xp.logaddexp(found, xp.reshape(xp.stack([part, xp.full_like(part, NOTHING)], axis=2), shape))
    return found


def _exact(xp: Any, scores: Any) -> tuple[Any, Any]:
    """Log sum and mean score of the last axis."""
    log_sum = _log_sum(xp, scores, -1)
    mean = xp.sum(xp.exp(scores - log_sum[..., None]) * scores, axis=-1)
    return log_sum, mean


def _weighted_moments(xp: Any, vectors: Any, weights: Any) -> tuple[Any, Any]:
    """Mean and covariance over the second-last axis, with weights that sum to one."""
    mean = xp.sum(vectors * weights[..., None], axis=-2)
    rest = vectors - mean[..., None, :]
    return mean, xp.matmul(xp.matrix_transpose(rest * weights[..., None]), rest)


def _log_mean_frozen(xp: Any, variance: Any, count: Any) -> Any:
    """Logarithm of the mean of about ``count`` exponentials of Gaussians of that variance (random energy model)."""
    deviation = xp.sqrt(xp.clip(variance, 0.0, None))
    beyond = xp.clip(deviation - xp.sqrt(2 * xp.log(xp.clip(count, 1.0, None))), 0.0, None)
    return (deviation**2 - beyond**2) / 2


def _log_sum(xp: Any, logs: Any, axis: int) -> Any:
    """Logarithm of the sum of exponentials along an axis."""
    top = xp.max(logs, axis=axis, keepdims=True)
    return xp.squeeze(top, axis=axis) + xp.log(xp.sum(xp.exp(logs - top), axis=axis))
