"""Sums of rectangular matrices as a fixed-point problem of two variables.

Reference: Benaych-Georges (2009), solved here as sums with amalgamation over the diagonal (Belinschi, Mai and Speicher
2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bulkedge.laws.engine.measure.edge_at_zero import extent
from bulkedge.laws.engine.measure.edges import Edge
from bulkedge.laws.engine.subordination.convolution import ROUNDING, Operation, Side
from bulkedge.laws.engine.subordination.problem import Moments
from bulkedge.support.arrays import Complex, Real

if TYPE_CHECKING:
    from bulkedge.laws.law import Law


@dataclass(frozen=True)
class RectangularAddition(Operation):
    """Sum of n x m matrices, in terms of squared singular values.

    The variables are the diagonal entries (a, b) of the subordination function of the hermitised matrix, and ``y = a
    b``. The two corners of its resolvent, ``g = b G(y)`` and ``g' = (1 + ratio psi(y))/b``, are equal for the two laws,
    and then the ``psi`` add up.
    """

    ratio: float = 1.0

    def moments(self) -> Moments:
        """Of the squared singular values: ``tr A A' B B'`` enters with its partner ``tr A' A B' B``, ratio times it."""
        one, two = self.mu.mean(), self.nu.mean()
        return Moments(one + two, self.mu.var() + self.nu.var() + 2 * self.ratio * one * two, one + two)

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
        return 0.0, (np.sqrt(extent(self.mu)[1]) + np.sqrt(extent(self.nu)[1])) ** 2

    def far(self, z: Complex) -> Complex:
        """Both corners are those of the hermitised matrix alone."""
        return np.tile(np.sqrt(z), (2, 1))

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
        one, _, partner = self._both(u + 0j, np.sqrt(x) + 0j)
        # signs of 1 + psi and 1 + ratio psi, which are g and g' times a root of x: next to zero only these have one
        long, wide = u[1] * one.g.real < 0, (1 + self.ratio * one.psi.real) / u[1] < 0
        turns = 0.0
        for law, (a, b) in ((self.mu, u), (self.nu, partner.real)):
            # arg y runs from 0 to 2 pi as a and b turn negative, and the potential with it
            inside = law.cdf(a * b)
            turns = turns + np.where((a < 0) & (b < 0), 1 + inside, 1 - inside) + (1 / self.ratio - 1) * (b < 0)
        return 1 - (turns - long - wide - (1 / self.ratio - 1) * wide)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
