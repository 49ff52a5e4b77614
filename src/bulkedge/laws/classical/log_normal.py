"""The free log-normal law: free products of many factors, each of which is close to one.

``MP(v/m)`` multiplied freely with itself m times has the S-transform ``(1 + v u/m)**-m``, which tends to ``exp(-v u)``:
the law of ``b b'`` for free multiplicative Brownian motion b (Biane 1997). With ``psi = z G(z) - 1`` it is the curve
``z = (1 + psi) exp(v psi)/psi``, and Lagrange's inversion gives the moments ``sum_j binom(k, j + 1) (k v)**j/j!/k``.
The layers of a deep stack with skip connections are such factors (docs/theory/isometry.md, "Skips make isometry
reachable").

>>> law = FreeLogNormal(variance=2.0)
>>> [round(law.moment(k), 9) for k in (1, 2, 3)]
[1.0, 3.0, 13.0]
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property

import numpy as np

from bulkedge.laws.distribution import Unit
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.engine.subordination.fixed_point import BranchError
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import EPS, Complex, Real
from bulkedge.support.domains import Interval, Parametric, parameter

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
        curve = _Curve(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value, error = curve.density(x / self.scale)
            return value / self.scale, error / self.scale

        ends = (Edge.exactly_soft(curve.edge(sign) * Fraction(self.scale)) for sign in (-1, 1))
        return [(next(ends), next(ends))], density


class _Curve:
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
