"""The spectrum of causal attention: a matrix of independent entries below the diagonal, whose rows are averages.

Row i of causal attention averages over i tokens, so ``sqrt(T) (A - C)``, C the mean, has variance profile ``t/x**2`` on
``y < x``, ``x = i/T`` (docs/theory/causal.md, "One law for all beta"): with the diagonals g of rows and h of
columns of the resolvent at ``z**2``,

    g(x) = 1/(z - (t/x**2) int_0^x h),    h(y) = 1/(z - int_y^1 t g(x)/x**2 dx).

With ``r = 1 - (1/z) int_x^1 t g/x**2`` and ``u = (z/x) int_0^x h``, the products ``a = r z**2 x/t`` and ``b = r u``
obey an autonomous system in ``log x``,

    a' = a + a/(a - b),    b' = a/(a - b) - b,

which starts on the unstable manifold of its fixed point (-1/2, 1/2), whose exponent is the golden ratio's inverse, and
ends where r = 1: at ``a = X = z**2/t`` and ``b = X G(X)``. So there is one law for all t. In terms of ``w = X (X G -
1)``, which would tend to the mean if there were one,

    dw/dlog X = (1 + 2 w/X)/(1 - w/X**2),

and w is the solution that passes through 1/4 at X = -1/2. The density, ``-Im w/(pi X**2)``, falls like ``1/X**2`` far
out and rises like ``1/(X log(X)**2)`` at zero, as for other triangular matrices (Dykema and Haagerup 2004).

>>> round(float(CausalLaw(variance=1.0).cdf(1.0)), 10)
0.569132745
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.measure.continuum import Continuum
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import Interval, Parametric, parameter

ORDER = 45
"""Terms of Taylor series in log X: the steps below are at most 0.5 of the distance to the nearest singularity."""
STEP = 1.5
ANGLES = (np.pi, 2.1, 1.3, 0.8, 0.5, 0.3, 0.15, 0.0)
"""Arguments of X on the way from the negative axis, where w is real, to the positive one."""
FINE = 0.15  # distance between centres on the positive axis, from which singularities are at least as far
FIRST, LAST = -42.0, 30.0
"""Logarithms between which w is continued; below, X is negligible beside X G, and the solution is elementary."""
SMALLEST = 1e-140
"""Where the law begins to be represented. A fraction of about 1/log(1/x) lies below x, however small that is."""


@dataclass(frozen=True)
class CausalLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A causal attention with independent scores and C its mean.

    The mean is infinite, and there is no edge: the first rows average over few tokens. Values below 1e-140 of the
    variance, a fraction of 0.0031, are shown as an atom at zero.

    >>> CausalLaw(variance=2.0).cdf([0.1, 2.0, 20.0]).round(3)
    array([0.248, 0.569, 0.91 ])
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - C), A causal attention and C its mean"

    variance: float = parameter(Interval(1e-10, 1e10), "variance of T times an entry: exp(beta**2) - 1 for softmax")

    _unbounded = True
    _infinite_moment = 1

    @property
    def atoms(self) -> PointMasses:
        """What lies below the smallest value represented."""
        m = _elementary(np.array([np.log(SMALLEST)]))[0]
        # the distribution function is -1/pi times the imaginary part of the integral of m dlog X, which is log m - m
        return ((0.0, float((m - np.log(m)).imag / np.pi)),)

    def _resolve(self) -> Continuum | None:
        # one law for all variances: that of variance one is resolved, and moved
        unit = CausalLaw(1.0)
        return super()._resolve() if self == unit else unit.scaled(self.variance).continuum

    def _bulk(self) -> BulkDensity | None:
        # intervals that touch, so that each has a scale of its own
        ends = (self.variance * np.array([SMALLEST, *64.0 ** np.arange(0, 8)])).tolist()
        intervals = [(Edge.plain(low), Edge.plain(high)) for low, high in pairwise(ends)]
        intervals[0] = Edge.hard(ends[0], 8), intervals[0][1]

        def density(x: Real) -> tuple[Real, Real]:
            moment = excess(np.log(x / self.variance)) / (x / self.variance)
            return -moment.imag / (np.pi * x), 4 * EPS * np.abs(moment) / x

        return intervals, density


def excess(log_x: Real) -> Complex:
    """``w = X (X G(X) - 1)`` at ``log X`` of the positive axis: in closed form below FIRST, then from series."""
    result = np.empty(log_x.shape, dtype=complex)
    small = log_x < FIRST
    result[small] = np.exp(log_x[small]) * (_elementary(log_x[small]) - 1)
    rest = log_x[~small]
    centres, table = _positive_axis()
    panel = np.rint((rest - centres[0]) / FINE).astype(int)
    result[~small] = _sum(table[:, panel], rest - centres[panel])
    return result


@cache
def _positive_axis() -> tuple[Real, Complex]:
    """The solution w on the positive axis: m centres ``log X``, and Taylor coefficients of shape (ORDER + 1, m)."""
    # from the series of the nearest centre on the negative axis, w is carried to argument zero over ANGLES
    centres = np.arange(FIRST, LAST + FINE, FINE)
    known, table = _negative_axis()
    nearest = np.rint((centres - known[0]) / STEP).astype(int)
    value = _sum(table[:, nearest], centres - known[nearest] + 1j * (ANGLES[1] - ANGLES[0]))
    for angle, following in pairwise(ANGLES[1:]):
        value = _sum(_series(np.exp(-centres - 1j * angle), value), 1j * (following - angle))
    return centres, _series(np.exp(-centres + 0j), value)


def _elementary(log_x: Real) -> Complex:
    """``m = X G`` where X is negligible: ``-1/m - log m = log X + constant``, by Newton's method."""
    centres, table = _negative_axis()
    inverse = 1 / (1 - table[0, 0] * np.exp(-centres[0]))
    target = inverse - np.log(inverse) + centres[0] - log_x + 1j * np.pi
    v = target + np.log(target)
    for _ in range(6):
        v = v - (v - np.log(v) - target) / (1 - 1 / v)
    return np.asarray(1 / v)


@cache
def _negative_axis() -> tuple[Real, Real]:
    """The solution w on the negative axis: m centres ``log(-X)``, and Taylor coefficients of shape (ORDER + 1, m)."""
    # errors decay away from the fixed point X = -1/2, where both directions start, so they do not add up
    middle = np.log(0.5)
    below, above = int(np.ceil((middle - FIRST) / STEP)), int(np.ceil((LAST - middle) / STEP))
    centres = middle + STEP * np.arange(-below, above + 1)
    table = np.empty((ORDER + 1, len(centres)))
    table[:, below] = _at_fixed_point()
    for step, last in ((-1, -1), (1, len(centres))):
        for k in range(below + step, last, step):
            start = _sum(table[:, [k - step]], step * STEP)
            table[:, [k]] = _series(-np.exp(-centres[[k]]), start)
    return centres, table


def _series(v: Any, w: Any) -> Any:
    """Taylor coefficients of w in log X, of shape (ORDER + 1, n), from ``v = 1/X`` and w at n points."""
    # p = v w, q = v p: (1 - q) w' = 1 + 2 p gives one coefficient of w after another
    inverse, series, p, q = (np.empty((ORDER + 1, len(w)), dtype=w.dtype) for _ in range(4))
    order = np.arange(1.0, ORDER + 1)[:, None]
    for k in range(ORDER + 1):
        inverse[k] = v
        series[k] = w
        p[k] = _product(inverse[: k + 1], series[: k + 1])
        q[k] = _product(inverse[: k + 1], p[: k + 1])
        known = _product(q[1 : k + 1], order[:k] * series[1 : k + 1])
        w = ((k == 0) + 2 * p[k] + known) / ((k + 1) * (1 - q[0]))
        v = -v / (k + 1)
    return series


def _at_fixed_point() -> Real:
    """The coefficients of :func:`_series` at X = -1/2, w = 1/4, of shape (ORDER + 1,)."""
    # 1 - q vanishes there: coefficient k is the unknown of order k (docs/theory/causal.md, "One law for all beta")
    inverse = -2 * np.cumprod(np.append(1.0, -1 / np.arange(1.0, ORDER + 1)))
    series, order = np.zeros(ORDER + 1), np.arange(ORDER + 1)
    series[:2] = 0.25, (3 - np.sqrt(5)) / 4
    for k in range(2, ORDER + 1):
        p = np.convolve(inverse, series)[: k + 1]
        q = np.convolve(inverse, p)[: k + 1]
        known = q[1:] @ (order * series)[k:0:-1]
        series[k] = -(2 * p[k] + known) / (k * q[1] + 4 * series[1] - 4)
    return series


def _product(left: Any, right: Any) -> Any:
    """Coefficient k of the product of two series, given their coefficients 0 to k; n pairs, (k + 1, n) to (n,)."""
    return np.einsum("in,in->n", left, right[::-1])


def _sum(series: Any, t: Any) -> Any:
    """Sum n Taylor series, of shape (orders, n), at distances t from their centres."""
    total = series[-1]
    for row in series[-2::-1]:
        total = total * t + row
    return total
