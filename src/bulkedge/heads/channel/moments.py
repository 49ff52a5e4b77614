"""First two moments of queries and keys, in their own library and on their device, and what they say of heads.

Sums over tokens are done where the arrays are, and the moments stay there, in double precision. Only for couplings do
they go to NumPy, because batched eigenvalues of that size are slower on a GPU than on a few cores of its host.

Most numbers need no couplings. With ``S = L L'`` and K the covariances of queries and keys, squared couplings are the
eigenvalues of ``M = L' K L``, and those of ``N = C**-1 M C**-T``, where ``C C' = 1 + M``, are the shares
``a**2/(1 + a**2)``. Sums of functions of these over directions are traces, and the three quadratic forms of popularity
are products of ``T = C**-1 L'`` and ``C**-1 C**-T T`` with a key (docs/theory/popularity.md, "Saturation"). What the
host has to know of it comes in one transfer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.support.arrays import EPS, Real, as_numpy
from bulkedge.support.domains import MOST_AXES, Numbers
from bulkedge.support.errors import DomainError


class VectorMoments(NamedTuple):
    """Mean and covariance of the vectors of heads, in double precision: shapes ``(..., d)`` and ``(..., d, d)``."""

    mean: Any
    covariance: Any


class Couplings(NamedTuple):
    """Couplings of heads along their axes (..., d), largest first, and the mean query there times the coupling."""

    couplings: Real
    drift: Real


VECTORS = Numbers(finite=False, axes=(2, MOST_AXES), kept=True)
"""Queries or keys. Whether they are finite is asked of their moments: on a GPU the question would wait for them."""


def working(array: Any) -> Any:
    """An array in the precision its sums are done in: single for single and half on a CPU, else double."""
    # a GPU does double precision at the speed of its memory here, and single precision there may silently be TF32
    xp = array_namespace(array)
    if hasattr(array, "detach"):  # what is measured here has no gradient
        array = array.detach()
    single = str(array.dtype).rpartition(".")[2] in {"float32", "float16", "bfloat16"}
    place = getattr(device(array), "type", "cpu")
    kind = xp.float32 if single and place != "cuda" else xp.float64
    return array if array.dtype == kind else xp.astype(array, kind)


def portions(array: Any) -> list[Any]:
    """Heads in portions that are worked on at once: all on a GPU, one by one on a CPU, whose cache holds one."""
    flat = array_namespace(array).reshape(array, (-1, *array.shape[-2:]))
    if getattr(device(array), "type", "cpu") != "cpu":
        return [flat]
    return [flat[head : head + 1] for head in range(flat.shape[0])]


def moments(array: Any) -> VectorMoments:
    """Mean and covariance over tokens of a batch of heads, at the cost of one product of matrices."""
    # the mean is taken off before squaring: single precision is then right to about 1e-7 of the largest entry
    shape = tuple(array.shape)
    sums = [_sums(working(each)) for each in portions(array)]
    xp = array_namespace(sums[0][0])
    mean, left, products = (
        xp.concat([xp.astype(each, xp.float64) for each in part], axis=0) for part in zip(*sums, strict=True)
    )
    left = left / shape[-2]
    # the mean of what is left belongs to the mean, and its square is taken off the products
    covariance = products / shape[-2] - xp.matrix_transpose(left) * left
    covariance = (covariance + xp.matrix_transpose(covariance)) / 2
    heads, dim = shape[:-2], shape[-1]
    return VectorMoments(xp.reshape(mean + left, (*heads, dim)), xp.reshape(covariance, (*heads, dim, dim)))


def _sums(wide: Any) -> tuple[Any, Any, Any]:
    """Means of heads, sums of what is left without them, and of its products: (heads, 1, d) twice, (heads, d, d)."""
    xp, tokens = array_namespace(wide), wide.shape[-2]
    ones = xp.ones((1, tokens), dtype=wide.dtype, device=device(wide))
    mean = xp.matmul(ones, wide) / tokens
    rest = wide - mean
    found = mean, xp.matmul(ones, rest), xp.matmul(xp.matrix_transpose(rest), rest)
    apple = getattr(device(wide), "type", "cpu") == "mps"  # which has no double precision
    first, second, third = map(as_numpy, found) if apple else found
    return first, second, third


def on_one_device(queries: VectorMoments, keys: VectorMoments) -> tuple[VectorMoments, VectorMoments]:
    """Moments of one library and on one device: as they are, or in NumPy if the two differ."""
    first, second = queries.mean, keys.mean
    if array_namespace(first) is array_namespace(second) and device(first) == device(second):
        return queries, keys
    return VectorMoments(*map(as_numpy, queries)), VectorMoments(*map(as_numpy, keys))


def find_couplings(query_mean: Real, query_cov: Real, key_cov: Real) -> Couplings:
    """Couplings and drift of batches of heads."""
    shape, dim = query_mean.shape[:-1], query_mean.shape[-1]
    flat = (query_mean.reshape(-1, dim), query_cov.reshape(-1, dim, dim), key_cov.reshape(-1, dim, dim))
    heads = len(flat[0])
    workers = max(1, min(os.cpu_count() or 1, heads // 4))  # four heads are worth a thread of their own
    parts = zip(*(np.array_split(each, workers) for each in flat), strict=True)
    if workers == 1:
        found: Iterable[Couplings] = [_find_couplings(*part) for part in parts]
    else:  # LAPACK runs without the interpreter's lock
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(lambda part: _find_couplings(*part), parts))
    joined = (np.concatenate(each) for each in zip(*found, strict=True))
    return Couplings(*(each.reshape(*shape, *each.shape[1:]) for each in joined))


def _find_couplings(mean: Real, queries: Real, keys: Real) -> Couplings:
    half = root(keys)
    turned = np.swapaxes(half, -1, -2)
    values, vectors = np.linalg.eigh(turned @ queries @ half)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    # values below the rounding of the largest are zero as far as one knows
    noise = EPS * mean.shape[-1] * np.maximum(values[..., :1], 0.0)
    couplings = np.sqrt(np.where(values > noise, values, 0.0))
    # a mu = V' K**(1/2)' m, which needs no inverse of the queries' covariance
    drift = (np.swapaxes(vectors, -1, -2) @ turned @ mean[..., None])[..., 0]
    return Couplings(couplings, drift)


def root(covariance: Real) -> Real:
    """R with ``R R'`` a covariance: Cholesky's, or by eigenvalues if rounding made one of them zero or negative."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])


class PopularityForms(NamedTuple):
    """What makes the three forms of a key: sums of squares and products of its features, a linear part, a constant."""

    # centre (..., d) comes off the key first; features (..., d, 2 d) map the rest, up to a common rotation, to
    # a_i y_i/(1 + a_i**2)**(1/2) and then **(3/2); linear is (..., d, 3), constant (..., 3)

    centre: Any
    features: Any
    linear: Any
    constant: Any


def constants(sums: Sequence[Any], means: Sequence[Any]) -> Any:
    """Constants of the three forms, but for the logarithm of the number of keys."""
    xp = array_namespace(sums[0])
    log, level = (-(mean + each) / 2 for mean, each in zip(means[:2], sums[:2], strict=True))
    return xp.stack([log, level, means[2] + sums[2] / 2], axis=-1)


class DirectionSums(NamedTuple):
    """Sums over directions of heads: ``a**2``, ``(a mu)**2``, ``a**4`` over the first squared, ``a**2 (a mu)**2``."""

    squares: Real
    drifts: Real
    crowding: Real
    mixed: Real

    @classmethod
    def of(cls, couplings: Real, drift: Real) -> Self:
        """The sums, from couplings and drift themselves."""
        largest = couplings.max(axis=-1, keepdims=True)
        shares = np.divide(couplings, largest, out=np.zeros_like(couplings), where=largest > 0) ** 2
        total, fourth = np.sum(shares, axis=-1), np.sum(shares**2, axis=-1)
        crowding = np.divide(fourth, total**2, out=np.zeros_like(total), where=total > 0)
        squares, drifts = couplings**2, drift**2
        return cls(squares.sum(axis=-1), drifts.sum(axis=-1), crowding, np.sum(squares * drifts, axis=-1))


@dataclass(frozen=True, eq=False)
class FactoredMoments:
    """Moments of the queries and keys of heads, with what follows from them by products and Cholesky factors."""

    # means of shape (..., d) and covariances of shape (..., d, d), the scale of the scores in the queries
    queries: VectorMoments
    keys: VectorMoments
    factor: Any  # (..., d, d): L with ``L L'`` the covariance of the queries
    sums: DirectionSums  # sums over directions

    @classmethod
    def of(cls, queries: VectorMoments, keys: VectorMoments) -> Self:
        """Check moments, factor the queries' covariance and take the sums."""
        factor, failed = _cholesky(queries.covariance)
        xp = array_namespace(factor)
        finite = [
            xp.all(xp.isfinite(each.mean), axis=-1) & xp.all(xp.isfinite(each.covariance), axis=(-2, -1))
            for each in (queries, keys)
        ]
        flags = [xp.astype(each, factor.dtype) for each in (*finite, failed)]
        # the one transfer to the host
        numbers = as_numpy(xp.stack([*flags, *_direction_sums(queries, keys, factor)]))
        for name, known in zip("qk", numbers, strict=False):
            if not np.all(known):
                raise DomainError(f"{name} has entries, or squares of entries, that are not finite")
        if np.any(numbers[2]):
            factor = _mend_factors(queries.covariance, factor, numbers[2])
            numbers[3:] = as_numpy(xp.stack(_direction_sums(queries, keys, factor)))
        if not np.all(np.isfinite(numbers)):
            raise DomainError("q and k are so large that variances of their scores are not finite")
        # rounding may leave a little less than nothing of what is nothing
        return cls(queries, keys, factor, DirectionSums(*np.maximum(numbers[3:], 0.0)))

    @cached_property
    def forms(self) -> PopularityForms:
        """The three forms of popularity, on the device of the moments."""
        mean, keys = self.queries.mean[..., None], self.keys.covariance
        xp = array_namespace(mean)
        turned = xp.matrix_transpose(self.factor)
        middle = _eye(turned) + xp.matmul(xp.matmul(turned, keys), self.factor)
        lower, _ = _cholesky(middle)  # of eigenvalues from one on: it does not fail
        inverse = _inverse(lower)
        first = xp.matmul(inverse, turned)
        third = xp.matmul(inverse, xp.matmul(xp.matrix_transpose(inverse), first))
        shares = xp.matmul(xp.matmul(first, keys), xp.matrix_transpose(first))
        logarithms = 2 * xp.sum(xp.log(xp.linalg.diagonal(lower)), axis=-1)
        once = self._damped(first, mean)
        lost = self._lost(first, once)
        linear = xp.concat([once, once - lost, -2 * self._damped(first, lost)], axis=-1)
        own = xp.matmul(xp.matrix_transpose(xp.matmul(keys, once)), xp.concat([mean, once, lost], axis=-1))[..., 0, :]
        sums = (logarithms, xp.sum(xp.linalg.diagonal(shares), axis=-1), xp.sum(shares**2, axis=(-2, -1)))
        features = xp.matrix_transpose(xp.concat([first, third], axis=-2))
        return PopularityForms(self.keys.mean, features, linear, constants(sums, tuple(own[..., k] for k in range(3))))

    def _lost(self, first: Any, vectors: Any) -> Any:
        """``(1 - G) v = S (1 + K S)**-1 K v`` for ``G = (1 + S K)**-1``, which is ``T' T K v``."""
        xp = array_namespace(vectors)
        return xp.matmul(xp.matrix_transpose(first), xp.matmul(first, xp.matmul(self.keys.covariance, vectors)))

    def _damped(self, first: Any, vectors: Any) -> Any:
        """``G v``, refined once: the difference of v and what G takes of it cancels where couplings are large."""
        xp = array_namespace(vectors)
        found = vectors - self._lost(first, vectors)
        left = vectors - found - xp.matmul(self.queries.covariance, xp.matmul(self.keys.covariance, found))
        return found + left - self._lost(first, left)


def _direction_sums(queries: VectorMoments, keys: VectorMoments, factor: Any) -> list[Any]:
    """What :class:`DirectionSums` holds, on the device of the moments."""
    xp = array_namespace(factor)
    mean = queries.mean[..., None]
    reached = xp.matmul(keys.covariance, xp.concat([factor, mean], axis=-1))
    coupled = xp.matmul(xp.matrix_transpose(factor), reached)  # M, and L'K m beside it
    squares = xp.sum(xp.linalg.diagonal(coupled), axis=-1)
    scale = xp.where(squares > 0, squares, xp.ones_like(squares))[..., None, None]
    crowding = xp.sum((coupled[..., :-1] / scale) ** 2, axis=(-2, -1))
    drifts = xp.sum(reached[..., -1] * queries.mean, axis=-1)
    return [squares, drifts, crowding, xp.sum(coupled[..., -1] ** 2, axis=-1)]


def _cholesky(matrices: Any) -> tuple[Any, Any]:
    """Lower factors, and for each matrix whether it has none; a stack of NumPy's fails as one."""
    if is_torch_array(matrices):
        import torch

        factor, failed = torch.linalg.cholesky_ex(matrices)  # without a look at the device, unlike torch's cholesky
        return factor, failed > 0
    shape = matrices.shape[:-2]
    try:
        return np.linalg.cholesky(matrices), np.zeros(shape, dtype=bool)
    except np.linalg.LinAlgError:
        return np.zeros_like(matrices), np.ones(shape, dtype=bool)


def _mend_factors(matrices: Any, factor: Any, failed: Real) -> Any:
    """The factors, with those of the failed matrices (singular up to rounding) made of eigenvalues on the host."""
    xp = array_namespace(factor)
    for head in zip(*np.nonzero(failed), strict=True) if failed.ndim else [()]:
        factor[head] = xp.asarray(root(as_numpy(matrices[head])), device=device(factor))
    return factor


def _inverse(lower: Any) -> Any:
    """Inverses of lower triangular matrices."""
    if is_torch_array(lower):
        import torch

        return torch.linalg.solve_triangular(lower, _eye(lower), upper=False)
    return np.linalg.inv(lower)


def _eye(matrices: Any) -> Any:
    xp = array_namespace(matrices)
    return xp.eye(matrices.shape[-1], dtype=matrices.dtype, device=device(matrices))
