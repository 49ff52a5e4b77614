"""Free convolutions as fixed-point problems: sums, products, and sums of rectangular matrices, of any two laws.

Given x and the variable y_1 of one law, the partner map of that law gives the variable y_2 of the other, and back. The
round trip is an analytic self-map of the upper half-plane. Inside the bulk its fixed point has positive imaginary part;
outside the bulk it is real, with a multiplier below one. Either is a proof of where x lies, and a real one also tells
the mass to the left of x (``count``).

References: Belinschi and Bercovici (2007) for sums and products; Benaych-Georges (2009) for rectangular sums, solved
here as sums with amalgamation over the diagonal (Belinschi, Mai and Speicher 2017).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bulkedge.arrays import EPS, Complex, Real
from bulkedge.laws.engine.cauchy import root_mean_square
from bulkedge.laws.engine.edges import Edge

if TYPE_CHECKING:
    from bulkedge.laws.base import Law

ROUNDING = 4 * EPS


class Side(NamedTuple):
    """One law at its own variable: y, G, G', psi and psi' (see :meth:`bulkedge.laws.base.Law._transforms`)."""

    y: Complex
    g: Complex
    dg: Complex
    psi: Complex
    dpsi: Complex

    @classmethod
    def at(cls, law: Law, y: Complex) -> Side:
        """Evaluate the law."""
        return cls(y, *law._transforms(y))

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


class Problem(ABC):
    """A law given by the fixed point of a self-map of half-planes."""

    @property
    def size(self) -> int:
        """Number of variables."""
        return 1

    @property
    def smallest(self) -> float:
        """A positive law whose bulk reaches below this fraction of its size reaches down to zero."""
        return 1e-16

    @property
    def positive(self) -> bool:
        """Whether the result lives on the positive half-line."""
        return False

    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Numbers between which the support of the result lies."""

    @abstractmethod
    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """The round trip from the variables u of mu; see :data:`bulkedge.laws.engine.fixed_point.Step`."""

    @abstractmethod
    def cauchy(self, u: Complex, x: Real) -> Complex:
        """The Cauchy transform of the result at a fixed point."""

    @abstractmethod
    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x at a real fixed point: the imaginary part of the logarithmic potential."""

    @abstractmethod
    def edge_at_zero(self) -> Edge | None:
        """The edge at zero, if there is one, where it is known not to be of square-root type."""


@dataclass(frozen=True)
class Operation(Problem):
    """A free convolution of mu and nu."""

    mu: Law
    nu: Law


class Addition(Operation):
    """``G_mu(y_1) = G_nu(y_2)`` and ``x = y_1 + y_2 - 1/G``; partner map ``x + h(y)``."""

    def bounds(self) -> tuple[float, float]:
        """Sums of the edges."""
        return self.mu.lower_edge + self.nu.lower_edge, self.mu.edge + self.nu.edge

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``y_1 -> z + h(z + h(y_1))``."""
        one = Side.at(self.mu, u[0])
        two = Side.at(self.nu, z + one.h)
        error = np.abs(z) + two.h_size + np.abs(two.dh) * (np.abs(z) + one.h_size)
        return (z + two.h - u[0])[None], (one.dh * two.dh)[None, None], ROUNDING * error[None]

    def cauchy(self, u: Complex, x: Real) -> Complex:  # noqa: ARG002  # the others need x
        """``G_mu(y_1)``."""
        return self.mu._transforms(u[0])[0]

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log G``."""
        one = Side.at(self.mu, u[0] + 0j)
        return self.mu.cdf(u[0]) + self.nu.cdf(x + one.h.real) - (one.g.real > 0)

    def edge_at_zero(self) -> Edge | None:
        """Zero is not special."""
        return None


class Multiplication(Operation):
    """``psi_mu(y_1) = psi_nu(y_2)`` and ``x = y_1 y_2 psi/(1 + psi)``; partner map ``-x/h(y)``; nu is positive."""

    def bounds(self) -> tuple[float, float]:
        """Products of the edges."""
        return min(self.mu.lower_edge * self.nu.edge, 0.0), max(self.mu.edge * self.nu.edge, 0.0)

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
        return u[0] * self.mu._transforms(u[0])[0] / x

    def count(self, u: Real, x: Real) -> Real:
        """The potentials satisfy ``L = L_mu(y_1) + L_nu(y_2) + log psi``."""
        one = Side.at(self.mu, u[0] + 0j)
        left, right = self.mu.cdf(u[0]), self.nu.cdf(-x / one.h.real)
        return np.where(x > 0, left + right - (one.psi.real > 0), left - right + (one.psi.real > 0))

    def edge_at_zero(self) -> Edge | None:
        """The orders of the two laws add up: each y vanishes like ``(psi - psi(0))**order``."""
        if self.mu.lower_edge < 0:
            return None
        kernels = [dict(law.atoms).get(0.0, 0.0) for law in (self.mu, self.nu)]
        orders = [
            _order_at_zero(law)
            for law, kernel in zip((self.mu, self.nu), kernels, strict=True)
            if kernel == max(kernels)
        ]
        order = sum(orders) - (max(kernels) == 0)
        return Edge.hard(0.0, order) if order > 1 else None


def _order_at_zero(law: Law) -> int:
    first = law._continuum.intervals[0][0] if law._continuum else None
    return first.order if first and first.location == 0 and first.exponent < 0 else 1


@dataclass(frozen=True)
class RectangularAddition(Operation):
    """Sum of n x m matrices, in terms of squared singular values.

    The variables are the diagonal entries (a, b) of the subordination function of the hermitised matrix, and ``y = a
    b``. The two corners of its resolvent, ``g = b G(y)`` and ``g' = (1 + ratio psi(y))/b``, are equal for the two laws,
    and then the ``psi`` add up.
    """

    ratio: float = 1.0

    @property
    def size(self) -> int:
        """Rows and columns."""
        return 2

    @property
    def positive(self) -> bool:
        """Always: these are squares."""
        return True

    def bounds(self) -> tuple[float, float]:
        """The largest singular values add up at most."""
        return 0.0, (np.sqrt(self.mu.edge) + np.sqrt(self.nu.edge)) ** 2

    def _partner(self, u: Complex, law: Law) -> tuple[Complex, Complex, Side]:
        """``h(a, b) = (1/g - a, 1/g' - b)``, its Jacobian, and the law's transforms."""
        a, b = u
        side = Side.at(law, a * b)
        wide = 1 + self.ratio * side.psi
        bend = self.ratio * side.dpsi / wide**2
        row_a = np.stack([side.dh, a / b * side.dh - side.h / b**2])
        row_b = np.stack([-(b**2) * bend, -self.ratio * side.psi / wide - side.y * bend])
        return np.stack([side.h / b, -b * self.ratio * side.psi / wide]), np.stack([row_a, row_b]), side

    def _both(self, u: Complex, root: Complex) -> tuple[Side, Side, Complex]:
        """The two laws at a fixed point, and the second law's variables."""
        h, _, one = self._partner(u, self.mu)
        return one, Side.at(self.nu, np.prod(root + h, axis=0)), root + h

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """``(a, b) -> x + h(x + h(a, b))`` with ``x = sqrt(z)``."""
        root = np.sqrt(z)
        h, inner, _ = self._partner(u, self.mu)
        partner = root + h
        h_back, outer, _ = self._partner(partner, self.nu)
        error = np.abs(root) + np.abs(h_back) + np.einsum("ijn,jn->in", np.abs(outer), np.abs(root) + np.abs(h))
        return root + h_back - u, np.einsum("ijn,jkn->ikn", outer, inner), 4 * ROUNDING * error

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``(1 + psi_1 + psi_2)/x``."""
        one, two, _ = self._both(u, np.sqrt(x) + 0j)
        return (1 + one.psi + two.psi) / x

    def count(self, u: Real, x: Real) -> Real:
        """``L = L_1(y_1) + L_2(y_2) + log(g g') - (1/ratio - 1) log[w/(w_1 w_2)]`` with ``w = 1 + ratio psi``."""
        one, two, partner = self._both(u + 0j, np.sqrt(x) + 0j)
        psi = (one.psi + two.psi).real
        long, wide = 1 + psi < 0, 1 + self.ratio * psi < 0
        turns = 0.0
        for law, (a, b) in ((self.mu, u), (self.nu, partner.real)):
            # arg y runs from 0 to 2 pi as a and b turn negative, and the potential with it
            inside = law.cdf(a * b)
            turns = turns + np.where((a < 0) & (b < 0), 1 + inside, 1 - inside) + (1 / self.ratio - 1) * (b < 0)
        return 1 - (turns - long - wide - (1 / self.ratio - 1) * wide)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
