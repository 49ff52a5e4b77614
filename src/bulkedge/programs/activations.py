"""Activations, and the moments they make of small Gaussian vectors, many at a time.

Arrays have the draw as their last axis, so that each step is one pass over contiguous memory, on NumPy or torch.

A piecewise linear function has its second derivative at its knots alone. By Price's theorem the second derivative of
``F(rho) = E f(u) g(v)`` in the correlation is then a sum of bivariate densities, and ``F`` one smooth integral, to
rounding: ReLU (Cho and Saul's arc-cosine kernel), clip, the absolute value and the identity are all of this kind.

For other functions ``F(rho) = sum_k f_k g_k rho**k`` with coefficients in Hermite polynomials (Mehler). What the sum
leaves out is at most the geometric mean of what the coefficients leave out of ``E f**2`` and ``E g**2``; if that is not
small, an error says so. GELU with itself has a closed form (docs/theory/width.md, "Moments of activations").

>>> import numpy as np
>>> one = np.ones(1)
>>> second_moment(RELU, RELU, one, one, one).round(12)       # half of the variance
array([0.5])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs.instructions import name_of
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Array, takes
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


LEGENDRE = np.polynomial.legendre.leggauss(48)
DEGREES = 96
LARGEST_REST = 1e-6  # relative error up to which a truncated Mehler series is taken


@dataclass(frozen=True)
class PiecewiseLinear:
    """``f(x) = value + slopes[0] x + sum_k (slopes[k+1] - slopes[k]) max(x - knots[k], 0)``.

    >>> relu = PiecewiseLinear("relu", knots=(0.0,), slopes=(0.0, 1.0))
    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """

    name: str
    knots: tuple[float, ...]
    slopes: tuple[float, ...]
    value: float = 0.0

    @property
    def bends(self) -> list[tuple[float, float]]:
        """Each knot with the change of slope there."""
        return list(zip(self.knots, np.diff(self.slopes).tolist(), strict=True))

    def __call__(self, x: Any) -> Any:
        """Evaluate."""
        xp = array_namespace(x)
        return self.value + self.slopes[0] * x + sum(bend * xp.clip(x - knot, 0.0) for knot, bend in self.bends)

    @takes(deviation=Array())
    def mean(self, deviation: Any) -> Any:
        """``E f(u)`` for u of this standard deviation."""
        total = self.value + 0.0 * deviation
        for knot, bend in self.bends:
            x = knot / deviation
            total = total + bend * (deviation * density(x) - knot * cdf(-x))
        return total

    @takes(deviation=Array())
    def slope(self, deviation: Any) -> Any:
        """``E f'(u)`` for u of this standard deviation."""
        return self.slopes[0] + sum((bend * cdf(-knot / deviation) for knot, bend in self.bends), 0.0 * deviation)


@dataclass(frozen=True)
class Smooth:
    """A smooth function, of one coordinate or several, with a name.

    >>> Smooth("tanh", np.tanh)(np.array([0.0, 1.0])).round(3)
    array([0.   , 0.762])
    """

    name: str
    function: Callable[..., Any]

    def __call__(self, *coordinates: Any) -> Any:
        """Evaluate."""
        return self.function(*coordinates)


def _softplus(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.clip(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


IDENTITY = PiecewiseLinear("identity", (), (1.0,))
RELU = PiecewiseLinear("relu", (0.0,), (0.0, 1.0))
CLIP = PiecewiseLinear("clip", (-1.0, 1.0), (0.0, 1.0, 0.0), value=-1.0)
GELU = Smooth("gelu", lambda x: x * cdf(x))
SOFTPLUS = Smooth("softplus", _softplus)
TANH = Smooth("tanh", lambda x: array_namespace(x).tanh(x))
ACTIVATIONS = {each.name: each for each in (IDENTITY, RELU, CLIP, GELU, SOFTPLUS, TANH)}


def first_moment(f: Callable[..., Any], variance: Any) -> Any:
    """``E f(u)`` for Gaussian u of mean zero."""
    if isinstance(f, PiecewiseLinear):
        return f.mean(_deviation(variance))
    return _coefficients(f, variance)[0][0]


def second_moment(f: Callable[..., Any], g: Callable[..., Any], left: Any, right: Any, between: Any) -> Any:
    """``E f(u) g(v)`` for Gaussian u and v of variances ``left`` and ``right`` and covariance ``between``."""
    if isinstance(f, PiecewiseLinear) and isinstance(g, PiecewiseLinear):
        return _price(f, g, left, right, between)
    if f is GELU and g is GELU:
        return _gelu(left, right, between)
    return _mehler(f, g, left, right, between)


def _deviation(variance: Any) -> Any:
    """Standard deviation; at least 1e-100, because knots are divided by it."""
    xp = array_namespace(variance)
    return xp.sqrt(xp.clip(variance, 1e-200))


def _gelu(left: Any, right: Any, between: Any) -> Any:
    """``E u F(u) v F(v)``, F the normal distribution function, by Gaussian integration by parts, twice in u and v."""
    xp = array_namespace(between)
    a, b = 1 + left, 1 + right
    quadrant = 0.25 + xp.asin(between / xp.sqrt(a * b)) / (2 * np.pi)
    both = 1 / (2 * np.pi * xp.sqrt(a * b - between**2))
    return between * quadrant + both * (left * right + between**2 * (1 / a + 1 / b - 1))


@cache
def _hermite() -> tuple[Real, Real]:
    """Equally spaced nodes, and orthonormal Hermite polynomials there times the weights of the trapezoidal rule."""
    nodes = np.linspace(-12, 12, 161)
    weights = np.exp(-(nodes**2) / 2)
    rows = [np.ones_like(nodes), nodes]
    for k in range(1, DEGREES - 1):
        rows.append((nodes * rows[k] - k**0.5 * rows[k - 1]) / (k + 1) ** 0.5)
    return nodes, np.stack(rows) * weights / weights.sum()


def _coefficients(f: Callable[..., Any], variance: Any) -> tuple[Any, Any]:
    """Hermite coefficients of f for each variance, along a new first axis, and what they leave out of ``E f**2``."""
    xp = array_namespace(variance)
    nodes, rows = (xp.asarray(each, dtype=variance.dtype, device=variance.device) for each in _hermite())
    values = f(xp.reshape(_deviation(variance), (1, -1)) * nodes[:, None])
    found = rows @ values
    rest = xp.clip(rows[0] @ values**2 - xp.sum(found**2, axis=0), 0.0)
    return xp.reshape(found, (DEGREES, *variance.shape)), xp.reshape(rest, variance.shape)


def _mehler(f: Callable[..., Any], g: Callable[..., Any], left: Any, right: Any, between: Any) -> Any:
    xp = array_namespace(between)
    (first, lost), (second, missing) = _coefficients(f, left), _coefficients(g, right)
    scale = xp.sqrt(xp.sum(first**2, axis=0) * xp.sum(second**2, axis=0))
    worst = float(xp.max(xp.sqrt(lost * missing) / xp.clip(scale, 1e-200)))
    if worst > LARGEST_REST:
        raise DomainError(
            f"{DEGREES} Hermite coefficients of {name_of(f)} and {name_of(g)} may leave out {worst:.1g} of a moment: "
            "a function with kinks must be a PiecewiseLinear, a steep one be scaled down"
        )
    rho = xp.clip(between / (_deviation(left) * _deviation(right)), -1.0, 1.0)
    total = 0.0 * rho
    for k in reversed(range(DEGREES)):
        total = total * rho + first[k] * second[k]
    return total


def _price(f: PiecewiseLinear, g: PiecewiseLinear, left: Any, right: Any, between: Any) -> Any:
    """Taylor's formula in the correlation, ``F(0) + rho F'(0) + int_0^rho (rho - t) F''(t) dt`` with ``t = sin(a)``."""
    xp = array_namespace(between)
    su, sv = _deviation(left), _deviation(right)
    rho = xp.clip(between / (su * sv), -1.0, 1.0)
    total = f.mean(su) * g.mean(sv) + between * f.slope(su) * g.slope(sv)
    angle = xp.asin(rho)
    for node, weight in zip(*LEGENDRE, strict=True):
        t = xp.sin(angle * (1 + node) / 2)
        rest = 1 - t**2
        inner = 0.0 * t
        for knot, bend in f.bends:
            for other, turn in g.bends:
                x, y = knot / su, other / sv
                inner = inner + bend * turn * xp.exp(-((x - t * y) ** 2 / rest + y**2) / 2)
        total = total + weight * angle / 2 * (rho - t) * su * sv / (2 * np.pi) * inner
    return total
