"""Activations, and the second moments they make of Gaussian vectors.

A piecewise linear function has its second derivative at its knots alone. By Price's theorem the second derivative of
``F(rho) = E f(u) g(v)`` in the correlation is then a sum of bivariate densities, and ``F`` one smooth integral, to
rounding: ReLU (Cho and Saul's arc-cosine kernel), clip, the absolute value and the identity are all of this kind.
Other functions take Gauss-Hermite quadrature.

>>> import numpy as np
>>> one = np.ones(1)
>>> second_moment(RELU, RELU, one, one, one).round(12)       # half of the variance
array([0.5])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.programs.gaussian import cdf, density, mean

LEGENDRE = np.polynomial.legendre.leggauss(48)


@dataclass(frozen=True)
class PiecewiseLinear:
    """``f(x) = value + slopes[0] x + sum_k (slopes[k+1] - slopes[k]) max(x - knots[k], 0)``."""

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

    def mean(self, deviation: Any) -> Any:
        """``E f(u)`` for u of this standard deviation."""
        total = self.value + 0.0 * deviation
        for knot, bend in self.bends:
            x = knot / deviation
            total = total + bend * (deviation * density(x) - knot * cdf(-x))
        return total

    def slope(self, deviation: Any) -> Any:
        """``E f'(u)``."""
        return self.slopes[0] + sum((bend * cdf(-knot / deviation) for knot, bend in self.bends), 0.0 * deviation)


@dataclass(frozen=True)
class Smooth:
    """A smooth function with a name."""

    name: str
    function: Callable[[Any], Any]

    def __call__(self, x: Any) -> Any:
        """Evaluate."""
        return self.function(x)


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


def second_moment(f: Callable[..., Any], g: Callable[..., Any], left: Any, right: Any, between: Any) -> Any:
    """``E f(u) g(v)`` for Gaussian u and v of variances ``left`` and ``right`` and covariance ``between``."""
    if isinstance(f, PiecewiseLinear) and isinstance(g, PiecewiseLinear):
        return _price(f, g, left, right, between)
    xp = array_namespace(between)
    left, right, between = xp.broadcast_arrays(left, right, between)
    covariance = xp.stack([xp.stack([left, between], axis=-2), xp.stack([between, right], axis=-2)], axis=-3)
    return mean(lambda u, v: f(u) * g(v), covariance)


def _price(f: PiecewiseLinear, g: PiecewiseLinear, left: Any, right: Any, between: Any) -> Any:
    """Taylor's formula in the correlation, ``F(0) + rho F'(0) + int_0^rho (rho - t) F''(t) dt`` with ``t = sin(a)``."""
    xp = array_namespace(between)
    su, sv = (xp.sqrt(xp.clip(each, 1e-200)) for each in (left, right))
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
