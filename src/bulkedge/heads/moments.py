"""First two moments of queries and keys, in their own library and on their device, and what follows from them.

Sums over tokens are done where the arrays are; the matrices of ``d`` times ``d`` that are left go to NumPy, in double
precision, because batched eigenvalues of that size are slower on a GPU than on a few cores of its host.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.arrays import EPS, Real, as_numpy
from bulkedge.errors import DomainError
from bulkedge.heads.popularity import constants

SHARE = 4
"""Heads that are worth a thread of their own."""


class Moments(NamedTuple):
    """Mean and covariance of the vectors of heads, in double precision: shapes ``(..., d)`` and ``(..., d, d)``."""

    mean: Real
    covariance: Real


class Coupled(NamedTuple):
    """What the moments of queries and keys say of the heads along their leading axes.

    ``couplings`` (..., d), largest first; ``drift`` (..., d), the mean query in their directions times the coupling;
    ``features`` (..., d, d), which takes a key to ``a_i y_i``; ``linear`` (..., d, 3) and ``constant`` (..., 3), what
    is added to squares of these in the three forms of popularity.
    """

    couplings: Real
    drift: Real
    features: Real
    linear: Real
    constant: Real


def working(array: Any) -> Any:
    """An array in the precision its sums are done in: single for single and half on a CPU, else double.

    A GPU does double precision at the speed of its memory here, and single precision there may silently be TF32.

    Parameters
    ----------
    array : array
        Real numbers, NumPy or torch.

    Returns
    -------
    array
        Of the same library and on the same device, float32 or float64.
    """
    xp = array_namespace(array)
    if hasattr(array, "detach"):  # what is measured here has no gradient
        array = array.detach()
    single = str(array.dtype).rpartition(".")[2] in {"float32", "float16", "bfloat16"}
    place = getattr(device(array), "type", "cpu")
    kind = xp.float32 if single and place != "cuda" else xp.float64
    return array if array.dtype == kind else xp.astype(array, kind)


def portions(array: Any) -> list[Any]:
    """Heads in portions that are worked on at once: all of them on a GPU, one by one on a CPU, whose cache holds one.

    Parameters
    ----------
    array : array of shape (..., tokens, d)
        Vectors of heads, NumPy or torch.

    Returns
    -------
    list of array
        Each of shape (heads, tokens, d); their heads, in order, are those of the leading axes.
    """
    flat = array_namespace(array).reshape(array, (-1, *array.shape[-2:]))
    if getattr(device(array), "type", "cpu") != "cpu":
        return [flat]
    return [flat[head : head + 1] for head in range(flat.shape[0])]


def moments(name: str, array: Any) -> Moments:
    """Mean and covariance over tokens of a batch of heads, at the cost of one product of matrices.

    The mean is taken off before squaring and corrected by the mean of what is left, so that the error of single
    precision is about ``1e-7`` of the entries' largest size, in units of which covariances are right to some ``1e-6``.

    Parameters
    ----------
    name : str
        What the vectors are, for the message of an error.
    array : array of shape (..., tokens, d)
        Vectors of heads, NumPy or torch.

    Returns
    -------
    Moments
        In NumPy and double precision.

    Raises
    ------
    DomainError
        If an entry is not finite.
    """
    shape = tuple(array.shape)
    sums = [_sums(working(each)) for each in portions(array)]
    mean, left, covariance = (np.concatenate(each).astype(float) for each in zip(*sums, strict=True))
    left = left.reshape(*shape[:-2], shape[-1]) / shape[-2]
    centre = mean.reshape(left.shape) + left
    covariance = covariance.reshape(*left.shape, shape[-1]) / shape[-2] - left[..., :, None] * left[..., None, :]
    # one entry that is not finite makes its row of the covariance so
    if not (np.all(np.isfinite(centre)) and np.all(np.isfinite(covariance))):
        raise DomainError(f"{name} has entries, or squares of entries, that are not finite")
    return Moments(centre, (covariance + np.swapaxes(covariance, -1, -2)) / 2)


def _sums(wide: Any) -> tuple[Real, Real, Real]:
    """Means of heads, sums of what is left without them, and of its products: (heads, 1, d) twice, (heads, d, d)."""
    xp, tokens = array_namespace(wide), wide.shape[-2]
    ones = xp.ones((1, tokens), dtype=wide.dtype, device=device(wide))
    mean = xp.matmul(ones, wide) / tokens
    rest = wide - mean
    products = xp.matmul(xp.matrix_transpose(rest), rest)
    return as_numpy(mean), as_numpy(xp.matmul(ones, rest)), as_numpy(products)


def coupled(query_mean: Real, query_cov: Real, key_cov: Real) -> Coupled:
    """Couplings, drift and the forms of popularity, of batches of heads.

    Parameters
    ----------
    query_mean : array of shape (..., d)
        Mean of the queries, the scale of the scores included.
    query_cov, key_cov : array of shape (..., d, d)
        Covariances of queries, the scale included, and of keys.

    Returns
    -------
    Coupled
        For each head.
    """
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
    root = _root(keys)
    turned = np.swapaxes(root, -1, -2)
    values, vectors = np.linalg.eigh(turned @ queries @ root)
    values, vectors = values[..., ::-1], vectors[..., ::-1]
    # values below the rounding of the largest are zero as far as one knows
    noise = EPS * mean.shape[-1] * np.maximum(values[..., :1], 0.0)
    couplings = np.sqrt(np.where(values > noise, values, 0.0))
    # a mu = V' K**(1/2)' m, which needs no inverse of the queries' covariance
    drift = (np.swapaxes(vectors, -1, -2) @ turned @ mean[..., None])[..., 0]
    # a y = V' K**(1/2)' S k/a, since S and K take the directions of queries and keys to each other
    inverse = np.divide(1.0, couplings, out=np.zeros_like(couplings), where=couplings > 0)
    features = queries @ root @ vectors * inverse[..., None, :]
    # with G = (1 + S K)**-1: v = G m, and what is lost of it by one and by two more G
    shrink = np.linalg.inv(np.eye(mean.shape[-1]) + queries @ keys)
    once = shrink @ mean[..., None]
    lost = once - shrink @ once
    linear = np.concatenate([once, once - lost, -2 * shrink @ lost], axis=-1)
    own = np.swapaxes(once, -1, -2) @ keys @ np.concatenate([mean[..., None], once, lost], axis=-1)
    return Coupled(couplings, drift, features, linear, constants(couplings, *np.moveaxis(own[..., 0, :], -1, 0)))


def _root(covariance: Real) -> Real:
    """R with ``R R'`` a covariance: Cholesky's, or by eigenvalues if rounding made one of them zero or negative."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])
