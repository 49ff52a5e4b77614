"""Small Gaussian vectors, many at a time: factors of covariances, and means of functions of their coordinates.

Arrays have the draw as their last axis, so that each step is one pass over contiguous memory, on NumPy or torch.

>>> import numpy as np
>>> factor = cholesky(np.array([[1.0, 1.0], [1.0, 1.0]])[:, :, None])       # semidefinite is fine
>>> factor[:, :, 0]
array([[1., 0.],
       [1., 0.]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from itertools import product as pairs
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.arrays import EPS, Real

NODES = {1: 80, 2: 40, 3: 20, 4: 14}
"""Gauss-Hermite nodes in each direction, by the number of directions."""


def transpose(matrix: Any) -> Any:
    """Exchange the two positions before the draw."""
    return array_namespace(matrix).moveaxis(matrix, -3, -2)


def product(left: Any, right: Any) -> Any:
    """Matrix product over the two positions before the draw."""
    terms = (left[..., :, k, None, :] * right[..., None, k, :, :] for k in range(left.shape[-2]))
    return reduce(lambda total, term: total.__iadd__(term), terms)


def cholesky(covariance: Any) -> Any:
    """Lower factor of positive semidefinite matrices; directions without variance get a column of zeros.

    Rank collapse makes kernels singular to rounding, where library routines give up.
    """
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


@cache
def hermite(count: int) -> tuple[Real, Real]:
    """Nodes and weights for the mean over a standard Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def mean(function: Callable[..., Any], covariance: Any) -> Any:
    """``E f(g_1, ..., g_k)`` for Gaussian g, covariances of shape (..., k, k, draws), by Gauss-Hermite quadrature."""
    size = covariance.shape[-2]
    if size > max(NODES):
        raise ValueError(f"means of functions of {size} Gaussian vectors are not computed; at most {max(NODES)}")
    factor = cholesky(covariance)
    nodes, weights = hermite(NODES[size])
    total = 0.0
    for index in pairs(range(len(nodes)), repeat=size):
        point = [sum(factor[..., row, k, :] * nodes[index[k]] for k in range(row + 1)) for row in range(size)]
        total = total + np.prod(weights[list(index)]) * function(*point)
    return total


def block(rows: Sequence[Sequence[Any]]) -> Any:
    """A matrix from blocks, over the two positions before the draw."""
    xp = array_namespace(rows[0][0])
    parts = [xp.concat(_alike(xp, row), axis=-2) for row in rows]
    return xp.concat(_alike(xp, parts), axis=-3)


def _alike(xp: Any, arrays: Sequence[Any]) -> list[Any]:
    """Arrays with as many draws as the longest."""
    draws = max(each.shape[-1] for each in arrays)
    return [xp.broadcast_to(each, (*each.shape[:-1], draws)) for each in arrays]
