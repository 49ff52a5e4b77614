"""Small Gaussian vectors, many at a time: factors of covariances, and means of functions of their coordinates.

Arrays have the draw as their last axis, so that each step is one pass over contiguous memory, on NumPy or torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.support.arrays import EPS, Real
from bulkedge.support.errors import DomainError

# steps of the trapezoidal rule, by the number of directions; nodes up to REACH standard deviations away
REACH, STEPS = 7.5, {1: 0.125, 2: 0.25, 3: 0.45, 4: 0.6}


def transpose(matrix: Any) -> Any:
    """Exchange i and j in an array with axes (..., i, j, draw)."""
    return array_namespace(matrix).moveaxis(matrix, -3, -2)


def product(left: Any, right: Any) -> Any:
    """Matrix product for each draw, axes (..., i, j, draw); a left factor common to all draws is one BLAS product."""
    xp = array_namespace(left)
    if left.shape[-1] == 1:
        flat = xp.matmul(left[..., 0], xp.reshape(right, (*right.shape[:-2], -1)))
        return xp.reshape(flat, (*flat.shape[:-1], *right.shape[-2:]))
    if right.shape[-1] == 1:
        return xp.matmul(xp.matrix_transpose(right[..., 0])[..., None, :, :], left)
    return xp.einsum("...ikd,...kjd->...ijd", left, right)


def cholesky(covariance: Any) -> Any:
    """Lower factors of semidefinite matrices (..., i, j, draw); columns are zero where variance is, to rounding."""
    xp = array_namespace(covariance)
    size = covariance.shape[-2]
    factor, rest = xp.zeros_like(covariance), covariance
    for k in range(size):
        pivot = rest[..., 0, 0, :]
        alive = pivot > 8 * size * EPS * covariance[..., k, k, :]
        scale = xp.where(alive, xp.where(alive, pivot, 1.0) ** -0.5, 0.0)
        column = rest[..., :, 0, :] * scale[..., None, :]
        factor[..., k:, k, :] = column
        below = column[..., 1:, :]
        rest = rest[..., 1:, 1:, :] - below[..., :, None, :] * below[..., None, :, :]
    return factor


def cdf(x: Any) -> Any:
    """Standard normal distribution function, on the backend of the array."""
    if type(x).__module__.startswith("torch"):
        import torch

        return torch.special.ndtr(x)
    from scipy.special import ndtr

    return ndtr(x)


def density(x: Any) -> Any:
    """Standard normal density."""
    return array_namespace(x).exp(-(x**2) / 2) / (2 * np.pi) ** 0.5


def mean(function: Callable[..., Any], covariance: Any) -> Any:
    """``E f(g_1, ..., g_k)`` for Gaussian g with covariances of shape (..., k, k, draws)."""
    # the trapezoidal rule converges geometrically: its error is about the square of that with every other node
    size = covariance.shape[-2]
    if size not in STEPS:
        raise DomainError(f"means of functions of {size} Gaussian vectors are not computed; at most {max(STEPS)}")
    xp, factor = array_namespace(covariance), cholesky(covariance)
    nodes, weights, even = lattice(size)
    fine, coarse, scale = 0.0, 0.0, 0.0
    chunk = max(1, 2**18 // math.prod(factor.shape))
    for start in range(0, len(nodes), chunk):
        here = slice(start, start + chunk)
        shape = (-1, *(1,) * (factor.ndim - 2))
        node, weight, both = (
            xp.asarray(each[here], dtype=factor.dtype, device=factor.device) for each in (nodes, weights, even)
        )
        rows = [sum(factor[..., k, m, :] * xp.reshape(node[:, m], shape) for m in range(k + 1)) for k in range(size)]
        values = function(*rows)
        fine = fine + xp.sum(values * xp.reshape(weight, shape), axis=0)
        coarse = coarse + xp.sum(values * xp.reshape(both, shape), axis=0)
        scale = scale + xp.sum(xp.abs(values) * xp.reshape(weight, shape), axis=0)
    worst = float(xp.max(xp.abs(fine - coarse) / xp.clip(scale, 1e-200)))
    if worst > 1e-3:
        raise DomainError(f"a Gaussian mean did not settle (two rules differ by {worst:.1g}): is the function smooth?")
    return fine


@cache
def lattice(size: int) -> tuple[Real, Real, Real]:
    """A trapezoidal rule for standard Gaussians in ``size`` directions, over the lattice points in a ball."""
    half = int(REACH / STEPS[size])
    index = np.stack(np.meshgrid(*[np.arange(-half, half + 1)] * size, indexing="ij"), axis=-1).reshape(-1, size)
    index = index[np.linalg.norm(STEPS[size] * index, axis=1) <= REACH]
    nodes = STEPS[size] * index
    weights = np.exp(-np.sum(nodes**2, axis=1) / 2)
    even = weights * np.all(index % 2 == 0, axis=1)
    return nodes, weights / weights.sum(), even / even.sum()


def block(rows: Sequence[Sequence[Any]]) -> Any:
    """A matrix from blocks, each with axes (..., i, j, draw)."""
    xp = array_namespace(rows[0][0])
    parts = [xp.concat(_with_equal_draws(xp, row), axis=-2) for row in rows]
    return xp.concat(_with_equal_draws(xp, parts), axis=-3)


def _with_equal_draws(xp: Any, arrays: Sequence[Any]) -> list[Any]:
    """Arrays with as many draws as the longest."""
    draws = max(each.shape[-1] for each in arrays)
    return [xp.broadcast_to(each, (*each.shape[:-1], draws)) for each in arrays]
