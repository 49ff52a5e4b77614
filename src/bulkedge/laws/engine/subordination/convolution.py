"""Free convolutions as fixed-point problems: sums and products of any two laws.

Given x and the variable y_1 of one law, the partner map of that law gives the variable y_2 of the other, and back. The
round trip is an analytic self-map of the upper half-plane. Inside the bulk its fixed point has positive imaginary part;
outside the bulk it is real, with a multiplier below one. Either is a proof of where x lies, and a real one also tells
the mass to the left of x (``count``).

Sums of rectangular matrices are in :mod:`bulkedge.laws.engine.subordination.rectangular`.

Reference: Belinschi and Bercovici (2007).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.cauchy import root_mean_square
from bulkedge.laws.engine.measure.edge_at_zero import Root, extent, product_at_zero, reach
from bulkedge.laws.engine.measure.edges import Edge
from bulkedge.laws.engine.subordination.moment_check import SMALLEST_MASS
from bulkedge.laws.engine.subordination.problem import Moments, Problem
from bulkedge.support.arrays import EPS, Complex, Real

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

ROUNDING = 4 * EPS
CROWDED = 300
"""Panels of which no call sees more at once."""


class Side(NamedTuple):
    """One law at its own variable: y, G, G', psi and psi' (see :meth:`bulkedge.laws.law.Law.transforms`)."""

    y: Complex
    g: Complex
    dg: Complex
    psi: Complex
    dpsi: Complex

    @classmethod
    def at(cls, law: Law, y: Complex) -> Side:
        """Evaluate the transforms of a law at its own variable."""
        return cls(y, *law.transforms(y))

    @property
    def h(self) -> Complex:
        """``1/G(y) - y``."""
        return -self.psi / self.g

    @property
    def h_size(self) -> Real:
        """Size of the terms that add up to h: times the rounding unit, its rounding error."""
        mean = root_mean_square(self.y, self.g, self.dg)
        return (1 + np.abs(self.y) * mean + np.abs(self.h) * mean) / np.abs(self.g)

    @property
    def dh(self) -> Complex:
        """Derivative of h, ``-G'/G**2 - 1``, written so that nothing cancels far from the law."""
        far = (self.psi * self.dg - self.dpsi * self.g) / self.g**2
        return np.where(np.abs(self.psi) < 0.5, far, -self.dg / self.g**2 - 1)


@dataclass(frozen=True)
class Operation(Problem):
    """A free convolution of mu and nu."""

    mu: Law
    nu: Law

    def work(self, points: int) -> float:
        """Transforms of the two laws, measured: calls with few points, which are most, cost what calls cost.

        Of many panels a point sees clusters, and a few panels from nearby, which cost as much as they have roots.
        """
        measures = [law.continuum for law in (self.mu, self.nu) if law.continuum]
        panels = sum(len(measure.panels) for measure in measures)
        orders = sum(int(measure.panels.order.max()) for measure in measures)
        atoms = len(self.mu.atoms) + len(self.nu.atoms)
        crowd = sum(min(len(measure.panels) / CROWDED, 1.0) for measure in measures)
        each = 7e-7 + 2.7e-6 * len(measures) + 3.5e-7 * orders + 4e-8 * panels + 7.5e-9 * atoms
        return 1.5e-4 * (1 + self.size) + 2.5e-4 * len(measures) + 1e-3 * crowd + points * each

    @classmethod
    def of(cls, mu: Law, nu: Law, *rest: float) -> Operation:
        """The operation on two laws in the order that keeps digits: it commutes, but the variable is that of mu.

        Far inside a wide law, the variable of that law hardly leaves the axis, and that of a narrow one does.
        """
        return cls(*sorted((mu, nu), key=cls._width), *rest)

    @staticmethod
    def _width(law: Law) -> tuple[float, float]:
        return 0.0, law.var()

    @property
    def smallest(self) -> float:
        """As deep as the laws have edges or atoms next to zero, one under the other, and a rounding unit below."""
        depths = [reach(law) for law in (self.mu, self.nu)]
        return max(1e-16 * depths[0] * depths[1], float(np.finfo(float).tiny) / EPS)

    @abstractmethod
    def moments(self) -> Moments:
        """Moments of the result, from those of the two laws."""

    @property
    def light_islands(self) -> bool:
        """If the wider law has atoms alone; a density so low would be lost in the rounding of the variables."""
        return not max(self.mu, self.nu, key=lambda law: law.var()).support


class Addition(Operation):
    """``G_mu(y_1) = G_nu(y_2)`` and ``x = y_1 + y_2 - 1/G``; partner map ``x + h(y)``."""

    def moments(self) -> Moments:
        """Means and variances add up."""
        one, two = self.mu.mean(), self.nu.mean()
        return Moments(one + two, self.mu.var() + self.nu.var(), abs(one) + abs(two))

    def bounds(self) -> tuple[float, float]:
        """Sums of the edges."""
        (low, high), (other_low, other_high) = extent(self.mu), extent(self.nu)
        return low + other_low, high + other_high

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``y_1 -> z + h(z + h(y_1))``."""
        one = Side.at(self.mu, u[0])
        two = Side.at(self.nu, z + one.h)
        error = np.abs(z) + two.h_size + np.abs(two.dh) * (np.abs(z) + one.h_size)
        return (z + two.h - u[0])[None], (one.dh * two.dh)[None, None], ROUNDING * error[None]

    def cauchy(self, u: Complex, x: Real) -> Complex:  # noqa: ARG002  # the others need x
        """``G_mu(y_1)``."""
        return self.mu.transforms(u[0])[0]

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log G``."""
        one = Side.at(self.mu, u[0] + 0j)
        return self.mu.cdf(u[0]) + self.nu.cdf(x + one.h.real) - (one.g.real > 0)

    def edge_at_zero(self) -> Edge | None:
        """Zero is not special."""
        return None


class Multiplication(Operation):
    """``psi_mu(y_1) = psi_nu(y_2)`` and ``x = y_1 y_2 psi/(1 + psi)``; partner map ``-x/h(y)``; nu is positive."""

    def moments(self) -> Moments:
        """``E[x**2] = E[a**2] E[b]**2 + E[a]**2 Var[b]`` for factors a and b."""
        one, two = self.mu.mean(), self.nu.mean()
        variance = self.mu.var() * two**2 + self.nu.var() * one**2
        # the mean of a signed law is a difference
        return Moments(one * two, variance, float(np.sqrt(self.mu.moment(2))) * two)

    @staticmethod
    def _width(law: Law) -> tuple[float, float]:
        """First the law that reaches below zero, then by relative width, last what has most density at zero.

        Where x vanishes, the variable of a law is x times the Cauchy transform of the other at zero, which leaves the
        axis if that law has a density there.
        """
        low = extent(law)[0]
        if low > 0:
            return 1.0, law.var() / law.mean() ** 2
        exponent = Root.of(law).exponent
        return (0.0, 0.0) if low < 0 else (2.0, -np.inf if exponent is None else -exponent)

    @property
    def flat_at_zero(self) -> bool:
        """If nu has a density that vanishes at zero: a finite one makes a logarithm, and no density nothing special."""
        exponent = Root.of(self.nu).exponent
        return not self.positive and exponent is not None and exponent > 0

    @property
    def graded(self) -> bool:
        """Also where the density of a signed product diverges at zero: on one side the bulk may start next to it."""
        if self.positive:
            return True
        edge = self.edge_at_zero()
        return extent(self.mu)[1] > 0 and edge is not None and edge.exponent < 0

    @property
    def at_once(self) -> bool:
        """If it ends at zero; most products of signed laws have nothing but bulk there."""
        return self.positive

    @property
    def smallest(self) -> float:
        """For a signed law as deep as the other has mass next to zero: there is where positive and negative cancel."""
        if self.positive:
            return super().smallest
        root = Root.of(self.nu)
        return max(super().smallest * SMALLEST_MASS ** (root.power / root.lead), float(np.finfo(float).tiny) / EPS)

    def bounds(self) -> tuple[float, float]:
        """Products of the edges."""
        (low, high), (_, largest) = extent(self.mu), extent(self.nu)
        return min(low * largest, 0.0), max(high * largest, 0.0)

    def far(self, z: Complex) -> Complex:
        """``psi_mu`` at y is ``psi`` at z, which is smaller than that by the mean of nu."""
        return (z / self.nu.mean())[None]

    @property
    def positive(self) -> bool:
        """If both laws do."""
        return self.mu.lower_edge >= 0

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``y_1 -> -z/h(-z/h(y_1))``; for negative z the partner lies in the lower half-plane."""
        one = Side.at(self.mu, u[0])
        two = Side.at(self.nu, -z / one.h)
        jacobian = (z / one.h**2 * one.dh) * (z / two.h**2 * two.dh)
        error = np.abs(z / two.h**2) * (two.h_size + np.abs(two.dh * two.y) * (1 + one.h_size / np.abs(one.h)))
        return (-z / two.h - u[0])[None], jacobian[None, None], ROUNDING * error[None]

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``(1 + psi)/x``."""
        return u[0] * self.mu.transforms(u[0])[0] / x

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log psi``."""
        one = Side.at(self.mu, u[0] + 0j)
        left, right = self.mu.cdf(u[0]), self.nu.cdf(-x / one.h.real)
        return np.where(x > 0, left + right - (one.psi.real > 0), left - right + (one.psi.real > 0))

    def edge_at_zero(self) -> Edge | None:
        """What the two laws have at zero decides it."""
        return product_at_zero(self.mu, self.nu)
