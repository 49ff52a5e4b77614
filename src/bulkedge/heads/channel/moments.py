"""First two moments of queries and keys, in their own library and on their device, and the couplings of heads.

Sums over tokens are done where the arrays are, and the moments stay there, in double precision. Only for couplings do
they go to NumPy, because batched eigenvalues of that size are slower on a GPU than on a few cores of its host.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.support.arrays import EPS, Real, as_numpy

SHARE = 4
"""Heads that are worth a thread of their own."""


class Moments(NamedTuple):
    """Mean and covariance of the vectors of heads, in double precision: shapes ``(..., d)`` and ``(..., d, d)``."""

    mean: Any
    covariance: Any


class Coupled(NamedTuple):
    """What the moments of queries and keys say of the directions of the heads along their leading axes.

    ``couplings`` (..., d), largest first; ``drift`` (..., d), the mean query in their directions times the coupling.
    """

    couplings: Real
    drift: Real


def working(array: Any) -> Any:
    """An array in the precision its sums are done in: single for single and half on a CPU, else double.

    A GPU does double precision at the speed of its memory here, and single precision there may silently be TF32.
    """
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


def moments(array: Any) -> Moments:
    """Mean and covariance over tokens of a batch of heads, at the cost of one product of matrices.

    The mean is taken off before squaring and corrected by the mean of what is left, so that the error of single
    precision is about ``1e-7`` of the entries' largest size, in units of which covariances are right to some ``1e-6``.
    One entry that is not finite makes its mean and its row of the covariance so; nothing is checked here.
    """
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
    return Moments(xp.reshape(mean + left, (*heads, dim)), xp.reshape(covariance, (*heads, dim, dim)))


def _sums(wide: Any) -> tuple[Any, Any, Any]:
    """Means of heads, sums of what is left without them, and of its products: (heads, 1, d) twice, (heads, d, d)."""
    xp, tokens = array_namespace(wide), wide.shape[-2]
    ones = xp.ones((1, tokens), dtype=wide.dtype, device=device(wide))
    mean = xp.matmul(ones, wide) / tokens
    rest = wide - mean
    found = mean, xp.matmul(ones, rest), xp.matmul(xp.matrix_transpose(rest), rest)
    first, second, third = found if _doubles(wide) else map(as_numpy, found)
    return first, second, third


def _doubles(array: Any) -> bool:
    """Whether the device of an array has double precision: Apple's has not."""
    return getattr(device(array), "type", "cpu") != "mps"


def together(queries: Moments, keys: Moments) -> tuple[Moments, Moments]:
    """Moments of one library and on one device: as they are, or in NumPy if the two differ."""
    first, second = queries.mean, keys.mean
    if array_namespace(first) is array_namespace(second) and device(first) == device(second):
        return queries, keys
    return Moments(*map(as_numpy, queries)), Moments(*map(as_numpy, keys))


def coupled(query_mean: Real, query_cov: Real, key_cov: Real) -> Coupled:
    """Couplings and drift of batches of heads."""
    shape, dim = query_mean.shape[:-1], query_mean.shape[-1]
    flat = (query_mean.reshape(-1, dim), query_cov.reshape(-1, dim, dim), key_cov.reshape(-1, dim, dim))
    heads = len(flat[0])
    workers = max(1, min(os.cpu_count() or 1, heads // SHARE))
    parts = zip(*(np.array_split(each, workers) for each in flat), strict=True)
    if workers == 1:
        found: Iterable[Coupled] = [_coupled(*part) for part in parts]
    else:  # LAPACK runs without the interpreter's lock
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(lambda part: _coupled(*part), parts))
    joined = (np.concatenate(each) for each in zip(*found, strict=True))
    return Coupled(*(each.reshape(*shape, *each.shape[1:]) for each in joined))


def _coupled(mean: Real, queries: Real, keys: Real) -> Coupled:
    half = root(keys)
    turned = np.swapaxes(half, -1, -2)
    values, vectors = np.linalg.eigh(turned @ queries @ half)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    # values below the rounding of the largest are zero as far as one knows
    noise = EPS * mean.shape[-1] * np.maximum(values[..., :1], 0.0)
    couplings = np.sqrt(np.where(values > noise, values, 0.0))
    # a mu = V' K**(1/2)' m, which needs no inverse of the queries' covariance
    drift = (np.swapaxes(vectors, -1, -2) @ turned @ mean[..., None])[..., 0]
    return Coupled(couplings, drift)


def root(covariance: Real) -> Real:
    """R with ``R R'`` a covariance: Cholesky's, or by eigenvalues if rounding made one of them zero or negative."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])
