"""Products: free ones of Marchenko-Pastur laws, their limit for many factors close to one, and independent ones.

``s MP(c_1) * ... * MP(c_m)`` (free product) is the rational curve ``z = s (1 + psi) prod(1 + c_i psi)/psi`` with ``psi
= z G(z) - 1`` (docs/theory/transforms.md, "Product laws"). On the upper side of the bulk the arguments of the factors
add up to zero, and on each ray ``arg psi`` there is exactly one such point: the curve is a graph in polar coordinates,
so its branch is never in doubt.

``MP(v/m)`` multiplied freely with itself m times has the S-transform ``(1 + v u/m)**-m``, which tends to ``exp(-v u)``:
the law of ``b b'`` for free multiplicative Brownian motion b (Biane 1997), the curve ``z = (1 + psi) exp(v psi)/psi``.
Lagrange's inversion gives the moments ``sum_j binom(k, j + 1) (k v)**j/j!/k``. The layers of a deep stack with skip
connections are such factors (docs/theory/isometry.md, "Skips make isometry reachable").

The singular values of a Kronecker product are all products of a singular value of one factor and one of the other, so
their law is the classical product of independent variables, :class:`IndependentProduct`. With ``p_k(u) = e**u
f_k(e**u)`` the densities on a logarithmic scale, that of the product is their convolution, ``x f(x) = int p_1(u)
p_2(log x - u) du``.

>>> law = MarchenkoPastur(ratio=2.0)
>>> law.atoms, float(law.cdf(0.1))
(((0.0, 0.5),), 0.5)
>>> round(FussCatalan(order=2).edge, 12)
6.75
>>> law = IndependentProduct(FussCatalan(2), FussCatalan(2))
>>> round(law.edge, 10), round(law.mean(), 10), round(law.var(), 10)      # 6.75**2, 1, 2 (2 + 2)
(45.5625, 1.0, 8.0)
>>> [round(FreeLogNormal(variance=2.0).moment(k), 9) for k in (1, 2, 3)]
[1.0, 3.0, 13.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.polynomial import legendre
from scipy.optimize import brentq

from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.explicit import Levy
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.engine.subordination.fixed_point import BranchError
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import Each, Instance, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

RATIO = Interval(1e-6, 1e6)
SCALE = Interval(1e-30, 1e30)
MOST_HARD = 7
"""Hard edges ``x**(1/order - 1)`` of higher order have mass where the slope of the density exceeds all doubles."""


@dataclass(frozen=True)
class MarchenkoPastur(Parametric, Law):
    """Marchenko-Pastur law: eigenvalues of ``scale Z'Z/N``, Z an N x D matrix of variance one, ``ratio = D/N``.

    An atom of mass ``1 - 1/ratio`` sits at zero when ratio > 1. S-transform ``1/(scale (1 + ratio u))`` (*recovery*,
    Theorem 1).

    >>> MarchenkoPastur(ratio=0.25).support
    ((0.25, 2.25),)
    """

    unit = Unit.EIGEN
    matrix = "Z'Z/N, Z of N x D i.i.d. entries, D/N = ratio"

    ratio: float = parameter(RATIO, "dimension over samples, D/N")
    scale: float = parameter(SCALE, "mean of the law", 1.0)

    @property
    def _aspect(self) -> float:
        # the rows are those of Z'
        return self.ratio

    @property
    def atoms(self) -> PointMasses:
        """The kernel of Z when d > V."""
        return ((0.0, 1 - 1 / self.ratio),) if self.ratio > 1 else ()

    @property
    def _levy(self) -> Levy:
        jump = self.ratio * self.scale
        return Levy(self.scale, np.array([jump]), np.array([jump * self.scale]))

    def _bulk(self) -> BulkDensity:
        c, s = self.ratio, self.scale
        left = Edge.hard(0.0) if c == 1 else self._edge(-1)
        right = self._edge(1)
        low, high = left.location, right.location

        def density(x: Real) -> tuple[Real, Real]:
            value = np.sqrt((x - low) * (high - x)) / (2 * np.pi * c * s * x)
            return value, value * EPS * (low / (x - low) + high / (high - x) + 4)

        return [(left, right)], density

    def _edge(self, sign: int) -> Edge:
        """The edge ``scale (1 +- sqrt(ratio))**2``, in exact arithmetic."""
        # 1 + c + r + c/r is stationary at r = +-sqrt(c): after a step of Newton's method r's rounding enters squared
        c, root = Fraction(self.ratio), sign * Fraction(float(np.sqrt(self.ratio)))
        root = (root + c / root) / 2
        return Edge.exactly_soft(Fraction(self.scale) * (1 + c + root + c / root))


@dataclass(frozen=True)
class ProductLaw(Parametric, Law):
    """Free product ``scale * MP(c_1) * ... * MP(c_m)``.

    Eigenvalues of ``scale W_1 ... W_m W_m' ... W_1'`` for independent matrices with ``W_i W_i'`` of law MP(c_i): the
    bulk of pooled sequences (*recovery*, Theorem 1) and of a gap-free attention stack (*propagation*, Proposition 7).
    Mean ``scale``, variance ``scale**2 sum(c_i)``, an atom of mass ``1 - 1/max(c_i)`` at zero when some ratio exceeds
    one.

    >>> law = ProductLaw(ratios=(0.5, 2.0))
    >>> round(law.edge, 4), law.atoms, round(law.var(), 4)
    (7.4934, ((0.0, 0.5),), 2.5)
    """

    unit = Unit.EIGEN
    matrix = "M M', M a product of Gaussian matrices"

    ratios: tuple[float, ...] = parameter(Each(RATIO, most=30), "aspect ratios of the factors")
    scale: float = parameter(SCALE, "mean of the law", 1.0)

    @property
    def atoms(self) -> PointMasses:
        """The kernel of the narrowest factor."""
        widest = max(self.ratios)
        return ((0.0, 1 - 1 / widest),) if widest > 1 else ()

    def _bulk(self) -> BulkDensity:
        return _product_bulk(self.ratios, self.scale)


@dataclass(frozen=True)
class FussCatalan(Parametric, Law):
    """Fuss-Catalan law of the given order: squared singular values of a product of that many square Gaussian matrices.

    ``ProductLaw`` with all ratios one; moments ``binom((m+1)k, k)/(mk+1)`` (*propagation*, proof of Proposition 8).

    >>> law = FussCatalan(order=2)
    >>> [round(law.moment(k), 6) for k in (1, 2, 3)]
    [1.0, 3.0, 12.0]
    """

    unit = Unit.EIGEN
    matrix = "M M', M a product of square Gaussian matrices"

    order: int = parameter(Integers(1, 30), "number of factors")
    scale: float = parameter(SCALE, "mean of the law", 1.0)

    _aspect = 1.0

    def _bulk(self) -> BulkDensity:
        return _product_bulk((1.0,) * self.order, self.scale)


def _product_bulk(ratios: tuple[float, ...], scale: float) -> BulkDensity:
    curve = _ProductCurve(ratios)

    def density(x: Real) -> tuple[Real, Real]:
        value, error = curve.density(x / scale)
        return value / scale, error / scale

    left, right = (edge.moved(edge.exact * Fraction(scale)) for edge in (curve.left, curve.right))
    return [(left, right)], density


class _ProductCurve:
    """``z(e) = prod(c_j) prod(e + gap_j)/(e - floor)`` with ``e = psi + floor``, ``floor = 1/max(c)``."""

    # the zeros -1/c_j (c_0 = 1) are measured from the largest of them, so nothing cancels near x = 0, where e goes to 0

    def __init__(self, ratios: tuple[float, ...]) -> None:
        given = np.sort(np.array([1.0, *ratios]))[::-1]
        # ratios equal to twelve digits are taken as equal: the law does not see the difference in its first ten
        factors = np.where(given[0] - given < 1e-12 * given[0], given[0], given)
        self.factors = factors
        self.floor = 1 / factors[0]
        self.gaps = (factors[0] - factors) / (factors[0] * factors)
        self.zeros = int(np.sum(self.gaps == 0))
        self.log_scale = float(np.sum(np.log(factors)))

    def log_z(self, e: Complex) -> Complex:
        """``log z``; the imaginary part is the sum of principal arguments, zero only on the right branch."""
        return self.log_scale + np.log(e[:, None] + self.gaps).sum(axis=1) - np.log(e - self.floor)

    def log_slope(self, e: Complex) -> Complex:
        """``d log z/d log e``."""
        return np.asarray((e[:, None] / (e[:, None] + self.gaps)).sum(axis=1) - e / (e - self.floor))

    @cached_property
    def right(self) -> Edge:
        """Critical point with psi > 0: ``sum psi/(psi + 1/c_j) = 1``, whose left side increases."""
        shares = 1 / self.factors

        def balance(log_psi: float) -> float:
            return float(np.sum(1 / (1 + shares * np.exp(-log_psi)))) - 1

        low, high = np.log(shares.min() / len(shares)) - 1, np.log(shares.max()) + 1
        return self._soft(float(np.exp(brentq(balance, low, high, xtol=1e-15))) + self.floor)

    @cached_property
    def left(self) -> Edge:
        """Critical point between the two largest zeros of z; where these coincide, a hard edge at zero."""
        if self.zeros > 1:
            return Edge.hard(0.0, self.zeros)
        gaps = self.gaps[1:]

        def balance(log_y: float) -> float:
            y = np.exp(log_y)
            return float(y / (y + self.floor) + np.sum(y / (gaps - y))) - 1

        high = np.log(gaps.min() * (1 - 1e-9))
        return self._soft(-float(np.exp(brentq(balance, high - 40, high, xtol=1e-15))))

    def _soft(self, e: float) -> Edge:
        factors = [Fraction(c) for c in self.factors.tolist()]
        psi = Fraction(e) - 1 / factors[0]
        z = 1 / psi
        for c in factors:
            z *= 1 + c * psi
        return Edge.exactly_soft(z)

    @cached_property
    def _table(self) -> tuple[Real, Complex]:
        """Points of the curve, one on each of many rays of constant ``arg psi``: ``log x`` (increasing), ``log e``."""
        geometric = np.geomspace(1e-12, 0.1, 34)[:-1]
        angle = np.concatenate([np.pi - geometric, np.linspace(np.pi - 0.1, 0.1, 40), geometric[::-1]])
        direction, shares = np.exp(1j * angle), 1 / self.factors
        low = np.full(len(angle), np.log(shares.min()) - 60.0)
        high = np.full(len(angle), np.log(shares.max()) + 60.0)
        for _ in range(60):
            middle = (low + high) / 2
            above = np.angle(np.exp(middle)[:, None] * direction[:, None] + shares).sum(axis=1) > angle
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        e = np.exp(middle) * direction + self.floor
        return self.log_z(e).real, np.log(e)

    def density(self, x: Real) -> tuple[Real, Real]:
        """Density and its rounding error at points of the bulk, by Newton on ``log z`` in ``log e``."""
        target = np.log(x)
        grid, logs = self._table
        log_e = np.interp(target, grid, logs)
        below = target < grid[0]
        log_e[below] = logs[0] + (target[below] - grid[0]) / self.zeros
        for _ in range(50):
            e = np.exp(log_e)
            slope = self.log_slope(e)
            step = (target - self.log_z(e)) / slope
            rounding = 4 * EPS * (1 + np.abs(target)) / np.abs(slope)
            room = np.minimum(log_e.imag, np.pi - log_e.imag) / 2
            step *= room / np.maximum(room, np.abs(step.imag))
            log_e = log_e + step
            if np.all(np.abs(step) <= np.maximum(1e-9 * log_e.imag, rounding)):
                break
        else:
            raise BranchError("the product curve did not converge", x)
        e = np.exp(log_e)
        density = e.imag / (np.pi * x)
        return density, 2 * rounding * np.abs(e) / (np.pi * x)


# -- products of independent variables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class IndependentProduct(Parametric, Law):
    """The law of ``x y`` for independent x and y: squared singular values of a Kronecker product.

    The Jacobian of a gap-free attention stack has this law with two Fuss-Catalan factors (*propagation*, Proposition
    8). Moments multiply, and so do edges; the right edge is not of square-root type (density ``delta**2``), and two
    factors with the same power at zero make a logarithm there.

    Both factors are laws on ``[0, edge]`` whose density starts at zero and ends with a square root, such as
    :class:`~bulkedge.laws.classical.product.FussCatalan`; others are refused.

    >>> law = IndependentProduct(FussCatalan(1), FussCatalan(2))
    >>> round(law.edge, 6), round(law.moment(2), 6)                    # 4 * 6.75, 2 * 3
    (27.0, 6.0)
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
            if left.location != 0 or right.exponent != 0.5 or left.order > MOST_HARD:
                raise DomainError(f"{name} = {law!r} must start at 0 (order {MOST_HARD} or less) and end in a root")

    def _bulk(self) -> BulkDensity:
        (left, right), (other_left, other_right) = (law._bulk()[0][0] for law in (self.first, self.second))  # type: ignore[index]
        start = min((left, other_left), key=lambda edge: edge.exponent)
        order = max(left.order, other_left.order)
        edge = right.exact * other_right.exact
        end = Edge(float(edge), 2.0, 1, remainder=float(edge - Fraction(float(edge))))
        return [(Edge(0.0, start.exponent, order), end)], self._density

    def _density(self, x: Real) -> tuple[Real, Real]:
        # at the end the span, and with it the density, is only as accurate as 1 - x/edge
        edge = self.first.edge * self.second.edge
        near_edge = -np.log1p(np.maximum((x - edge) / edge, -0.5))
        span = np.where(x > edge / 2, near_edge, np.log(edge) - np.log(x))
        value = (_half(self.first, self.second, span) + _half(self.second, self.first, span)) / x
        return value, value * EPS * (40 + 2 / np.maximum(span, EPS))


def _half(first: Law, second: Law, span: Real) -> Real:
    """The half of the convolution next to the edge of the first law."""
    # the variables are edge e**-v and edge e**-(span - v), 0 < v < span/2: the integrand is analytic in sqrt(v)
    # Gauss nodes in the square root of the distance to the end of the half
    nodes, weights = legendre.leggauss(120)
    root = np.sqrt(span / 2)[:, None] * (1 + nodes) / 2
    v = root**2
    values = _log_density(first, v) * _log_density(second, span[:, None] - v)
    return np.asarray((values * root) @ weights * np.sqrt(span / 2))


def _log_density(law: Law, v: Real) -> Real:
    """``x f(x)`` at ``x = edge e**-v``."""
    x = law.edge * np.exp(-v)
    return np.asarray(x * law.pdf(x))


DIGITS = 50
"""Decimal places with which edges are computed, so that densities stay accurate next to them."""


@dataclass(frozen=True)
class FreeLogNormal(Parametric, Law):
    """Limit of free products of many Marchenko-Pastur laws whose ratios add up to ``variance``.

    Squared singular values of ``prod(a + b K_i)`` over many layers with independent matrices K_i, when the branches
    have the total power ``variance/2``. Mean ``scale``, variance ``scale**2 variance``, S-transform ``exp(-variance
    u)/scale``. The right edge is where ``variance psi (1 + psi) = 1``.

    >>> law = FreeLogNormal(variance=1.0)
    >>> round(law.edge, 6), round(law.var(), 9)
    (4.857178, 1.0)
    """

    unit = Unit.SQUARED
    matrix = "a product of many square factors a + b K, K Gaussian and b small"

    variance: float = parameter(Interval(1e-4, 12), "variance over squared mean")
    scale: float = parameter(Interval(1e-30, 1e30), "mean of the law", 1.0)

    def _bulk(self) -> BulkDensity:
        curve = _LogNormalCurve(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value, error = curve.density(x / self.scale)
            return value / self.scale, error / self.scale

        ends = (Edge.exactly_soft(curve.edge(sign) * Fraction(self.scale)) for sign in (-1, 1))
        return [(next(ends), next(ends))], density


class _LogNormalCurve:
    """``z = (1 + psi) exp(v psi)/psi``, of which each ray of constant ``arg psi`` has one point on the bulk."""

    def __init__(self, variance: float) -> None:
        self.variance = variance

    def edge(self, sign: int) -> Fraction:
        """The critical value with ``psi > 0`` (right edge) or ``psi < -1`` (left edge)."""
        with localcontext() as context:
            context.prec = DIGITS
            v = Decimal(self.variance)
            psi = (sign * (1 + 4 / v).sqrt() - 1) / 2
            return Fraction((1 + psi) / psi * (v * psi).exp())

    def log_z(self, psi: Complex) -> Complex:
        """``log z``; zero in its imaginary part on the right branch only."""
        return np.asarray(np.log(1 + psi) - np.log(psi) + self.variance * psi)

    @cached_property
    def _table(self) -> tuple[Real, Complex]:
        """Points of the curve, one on each of many rays: ``log x`` (increasing) and ``psi``."""
        geometric = np.geomspace(1e-12, 0.1, 34)[:-1]
        angle = np.concatenate([np.pi - geometric, np.linspace(np.pi - 0.1, 0.1, 60), geometric[::-1]])
        direction = np.exp(1j * angle)
        low, high = np.full(len(angle), -60.0), np.full(len(angle), 60.0)
        for _ in range(70):
            middle = (low + high) / 2
            psi = np.exp(middle) * direction
            above = np.angle(1 + psi) + self.variance * psi.imag > angle
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return self.log_z(psi).real, psi

    def density(self, x: Real) -> tuple[Real, Real]:
        """Density and its rounding error at points of the bulk, by Newton on ``log z``."""
        target = np.log(x)
        grid, points = self._table
        psi = np.interp(target, grid, points)
        for _ in range(60):
            slope = 1 / (1 + psi) - 1 / psi + self.variance
            step = (target - self.log_z(psi)) / slope
            rounding = 4 * EPS * (1 + np.abs(target)) / np.abs(slope)
            # a step keeps at least half of the height above the axis
            step = step * np.minimum(1, psi.imag / 2 / np.maximum(np.abs(step), np.finfo(float).tiny))
            psi = psi + step
            if np.all(np.abs(step) <= np.maximum(1e-9 * psi.imag, rounding)):
                break
        else:
            raise BranchError("the curve of the free log-normal law did not converge", x)
        return psi.imag / (np.pi * x), 2 * rounding / (np.pi * x)
