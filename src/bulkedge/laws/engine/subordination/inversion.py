"""The variables of a fixed-point problem as seen from infinity.

Where the Cauchy transform of a free convolution vanishes, the variables are infinite. That happens in gaps, and next to
the edges of light islands far out. There Newton's method needs another coordinate: ``v = -s/(u - c)``, which maps the
upper half-plane to itself and infinity to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.support.arrays import Complex, Mask, Real

FAR = 30.0
"""Squared distance from the centre, in units of the scale, from which on a variable is next to infinity."""
KEPT = 1e-3
"""Size of a variable, relative to its distance from the centre, from which on it keeps its digits."""


@dataclass(frozen=True)
class Inversion:
    """The coordinates ``v = -scale/(u - centre)`` for every variable u of a problem.

    Attributes
    ----------
    centre : float
        A real number about which finite variables are.
    scale : float
        Positive; the square of their typical distance from it.
    """

    centre: float
    scale: float

    def inverse(self, u: Complex) -> Complex:
        """From u to v."""
        return np.asarray(-self.scale / (u - self.centre))

    def original(self, v: Complex) -> Complex:
        """From v to u."""
        return np.asarray(self.centre - self.scale / v)

    def far(self, u: Complex) -> Mask:
        """Where a variable is far from the others, next to infinity."""
        return np.asarray(np.any(np.abs(u - self.centre) ** 2 > FAR * self.scale, axis=0))

    def proves(self, u: Complex) -> Mask:
        """Where the other coordinate proves something: u is next to infinity, and keeps its digits if it is small."""
        return self.far(u) & np.all(np.abs(u) > KEPT * np.abs(u - self.centre), axis=0)

    def seen(self, step: Step) -> Step:
        """The self-map in the other coordinate."""

        def inverted(v: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
            before = -self.scale / v
            shift, jacobian, error = step(self.centre + before, z)
            after = before + shift
            return (
                self.scale * shift / (before * after),
                jacobian * (before**2)[None] / (after**2)[:, None],
                self.scale * error / np.abs(after) ** 2,
            )

        return inverted
