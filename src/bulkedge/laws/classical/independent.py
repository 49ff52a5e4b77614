"""The law of a product of two independent variables, as the singular values of a Kronecker product of two matrices.

The singular values of a Kronecker product are all products of a singular value of one factor and one of the other, so
their law is the classical product, not the free one. With ``p_k(u) = e**u f_k(e**u)`` the densities on a logarithmic
scale, that of the product is their convolution, ``x f(x) = int p_1(u) p_2(log x - u) du``.

>>> from bulkedge.laws.classical.product import FussCatalan
>>> law = IndependentProduct(FussCatalan(2), FussCatalan(2))
>>> round(law.edge, 10), round(law.mean(), 10), round(law.var(), 10)      # 6.75**2, 1, 2 (2 + 2)
(45.5625, 1.0, 8.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.polynomial import legendre

from bulkedge.laws.distribution import Atoms
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import Bulk, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Instance, Parametric, parameter
from bulkedge.support.errors import DomainError

NODES = 120
"""Gauss nodes on each half of the convolution, in the square root of the distance to its end."""
MOST_ORDER = 7
"""Hard edges ``x**(1/order - 1)`` of higher order have mass where the slope of the density exceeds all doubles."""


@dataclass(frozen=True)
class IndependentProduct(Parametric, Law):
    """The law of ``x y`` for independent x and y: squared singular values of a Kronecker product.

    The Jacobian of a gap-free attention stack has this law with two Fuss-Catalan factors (*propagation*, Proposition
    8). Moments multiply, and so do edges; the right edge is not of square-root type (density ``delta**2``), and two
    factors with the same power at zero make a logarithm there.

    Both factors are laws on ``[0, edge]`` whose density starts at zero and ends with a square root, such as
    :class:`~bulkedge.laws.classical.product.FussCatalan`; others are refused.
    """

    unit = Unit.SQUARED
    matrix = "a Kronecker product"

    first: Law = parameter(Instance(Law), "law of the first variable")  # a declaration
    second: Law = parameter(Instance(Law), "law of the second variable")  # likewise

    def __post_init__(self) -> None:
        """Check that the factors are of the kind whose product this represents."""
        super().__post_init__()
        for name in ("first", "second"):
            law: Law = getattr(self, name)
            bulk = law._bulk()
            if bulk is None or len(bulk[0]) != 1 or law.atoms:
                raise DomainError(f"{name} = {law!r} must be one interval without atoms")
            left, right = bulk[0][0]
            if left.location != 0 or right.exponent != 0.5 or left.order > MOST_ORDER:
                raise DomainError(
                    f"{name} = {law!r} must start at 0 with order {MOST_ORDER} at most and end with a square root"
                )

    @property
    def atoms(self) -> Atoms:
        """None."""
        return ()

    def _bulk(self) -> Bulk:
        (left, right), (other_left, other_right) = (law._bulk()[0][0] for law in (self.first, self.second))  # type: ignore[index]
        start = min((left, other_left), key=lambda edge: edge.exponent)
        order = max(left.order, other_left.order)
        edge = right.exact * other_right.exact
        end = Edge(float(edge), 2.0, 1, remainder=float(edge - Fraction(float(edge))))
        return [(Edge(0.0, start.exponent, order), end)], self._density

    def _density(self, x: Real) -> tuple[Real, Real]:
        # at the end the span, and with it the density, is only as accurate as 1 - x/edge
        edge = self.first.edge * self.second.edge
        beside = -np.log1p(np.maximum((x - edge) / edge, -0.5))
        span = np.where(x > edge / 2, beside, np.log(edge) - np.log(x))
        value = (_half(self.first, self.second, span) + _half(self.second, self.first, span)) / x
        return value, value * EPS * (40 + 2 / np.maximum(span, EPS))


def _half(first: Law, second: Law, span: Real) -> Real:
    """The half of the convolution next to the edge of the first law.

    There the first variable is ``edge e**-v`` and the second ``edge e**-(span - v)``, v from 0 to span/2; the integrand
    is analytic in ``sqrt(v)``.
    """
    nodes, weights = legendre.leggauss(NODES)
    root = np.sqrt(span / 2)[:, None] * (1 + nodes) / 2
    v = root**2
    values = _log_density(first, v) * _log_density(second, span[:, None] - v)
    return np.asarray((values * root) @ weights * np.sqrt(span / 2))


def _log_density(law: Law, v: Real) -> Real:
    """``x f(x)`` at ``x = edge e**-v``."""
    x = law.edge * np.exp(-v)
    return np.asarray(x * law.pdf(x))
