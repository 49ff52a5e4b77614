"""How a matrix responds on its left and on its right, from the law of its singular values or of their squares.

The matrix is n x m with ``ratio = n/m``. With mu the law of its n singular values, zeros included, the responses are
``phi(z) = int z/(z**2 - t**2) dmu(t)`` on the left and ``ratio phi(z) + (1 - ratio)/z`` on the right
(:mod:`bulkedge.laws.spikes.singular_spikes`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from bulkedge.laws.engine.measure.cauchy import weighted_inverses
from bulkedge.laws.engine.measure.crossings import Gaps, gaps_between
from bulkedge.laws.spikes.rank_one import atom_masses
from bulkedge.laws.spikes.response import Pair, Response
from bulkedge.support.arrays import Real

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

MISSING = 1e-9
"""Zeros that a law may lack before it cannot be that of so many rows: the accuracy of the mass of atoms."""


class Singular(Response):
    """The responses ``zeros/z + phi`` on the left and ``other_zeros/z + ratio phi`` on the right.

    Zeros are kept apart because those of the two sides nearly cancel in ``ratio phi + (1 - ratio)/z``.
    """

    def __init__(self, law: Law, ratio: float) -> None:
        self.law, self.ratio = law, ratio
        self.gaps = _positive_gaps(law)
        self.zeros = float(atom_masses(law, np.zeros(1))[0])
        other = 1 - ratio * (1 - self.zeros)
        self.other_zeros = other if other > MISSING else 0.0

    @abstractmethod
    def phi(self, s: Real) -> tuple[Real, Real]:
        """The left response without its zeros, and its derivative in s."""

    @abstractmethod
    def residue(self, s: Real) -> Real:
        """The factor that makes the mass of an atom at s the residue of the left response."""

    def value(self, s: Real) -> Real:
        """The singular value z that belongs to a value of the coordinate."""
        return s

    def reach(self, strength: Real) -> Real:
        """How far from the edge outliers can be: the root of D is at most one over the distance to the bulk."""
        return strength

    def threshold(self) -> float:
        """One over the root of D at the upper end of the bulk."""
        if self.law._unbounded:
            return np.inf
        limit = float(self.limits()[0, -1])
        return 1 / limit if limit else np.inf

    def at(self, s: Real) -> Pair:
        """Both responses and their derivatives in s."""
        phi, slope = self.phi(s)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = self.value(s)
            pole, pole_slope = 1 / z, -self.metric(s) / z**2
            left, left_slope = (self.zeros * pole, self.zeros * pole_slope) if self.zeros else (0.0, 0.0)
            right, right_slope = (
                (self.other_zeros * pole, self.other_zeros * pole_slope) if self.other_zeros else (0.0, 0.0)
            )
        return Pair(left + phi, left_slope + slope, right + self.ratio * phi, right_slope + self.ratio * slope)

    def masses(self, s: Real) -> tuple[Real, Real]:
        """Residues at atoms but that at zero, next to which numbers are as fine as they need to be."""
        mass = np.where(s == 0, 0.0, atom_masses(self.law, s)) * self.residue(s)
        return mass, self.ratio * mass

    def limits(self) -> Real:
        """As for any response, but at zero: D is infinite there if both sides have zeros.

        If one side has none, its response is negative from zero on, and the other's is positive or vanishes at zero
        too.
        """
        limits = super().limits()
        limits[0, self.gaps.low == 0] = np.inf if self.zeros and self.other_zeros else 0.0
        return limits


class OfSquares(Singular):
    """From a law of squares, in the coordinate ``s = z**2``: ``phi = z G(s)``."""

    def value(self, s: Real) -> Real:
        """``z = sqrt(s)``."""
        return np.sqrt(s)

    def metric(self, s: Real) -> Real:
        """``dz/ds = 1/(2 sqrt(s))``."""
        with np.errstate(divide="ignore"):
            return 0.5 / np.sqrt(s)

    def reach(self, strength: Real) -> Real:
        """Distance of squares: ``(z + x)**2 - z**2`` at the edge z."""
        edge = 0.0 if self.law._unbounded else self.law.edge
        return strength * (strength + 2 * np.sqrt(edge))

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = z G(s)`` without zeros, and its derivative in s."""
        g, slope = _without_zeros(self.law, s)
        z = np.sqrt(s)
        with np.errstate(divide="ignore", invalid="ignore"):
            return z * g, g / (2 * z) + z * slope

    def residue(self, s: Real) -> Real:
        """An atom of mass m at s gives ``z m/(s' - s)`` near it: the factor is z."""
        return np.sqrt(s)


class OfValues(Singular):
    """From a law of singular values: ``phi = (G(z) - G(-z))/2``."""

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = (G(z) - G(-z))/2`` without zeros: half of the law and half of its mirror image."""
        (g, slope), (mirrored, mirrored_slope) = _without_zeros(self.law, s), _without_zeros(self.law, -s)
        return (g - mirrored) / 2, (slope + mirrored_slope) / 2

    def residue(self, s: Real) -> Real:
        """Half: the other half of the atom is at the mirrored place."""
        return np.full(s.shape, 0.5)


class OfBothSigns(Singular):
    """From a symmetrised law: ``phi = G(z)``."""

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = G(z)`` without zeros: the law has both signs already."""
        return _without_zeros(self.law, s)

    def residue(self, s: Real) -> Real:
        """One: the atom of the symmetrised law is half of that of the singular values already."""
        return np.ones(s.shape)


def _positive_gaps(law: Law) -> Gaps:
    """The gaps of a law among positive numbers, the first one from zero."""
    pieces = [(max(low, 0.0), high) for low, high in law.support if high > 0]
    atoms = [(place, place) for place, _ in law.atoms if place > 0]
    gaps = gaps_between([(0.0, 0.0), *pieces, *atoms], open_above=not law._unbounded)
    return Gaps(gaps.low[1:], gaps.high[1:])


def _without_zeros(law: Law, s: Real) -> tuple[Real, Real]:
    """G and its derivative at real points, less what an atom at zero contributes."""
    total = np.zeros((4, len(s)), dtype=complex)
    if law.continuum:
        total += law.continuum.transforms(s + 0j)
    places, masses = law.locations[law.locations != 0], law.masses[law.locations != 0]
    block = max(1, 2_000_000 // max(len(places), 1))
    for first in range(0, len(s) if len(places) else 0, block):
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.reciprocal(s[first : first + block, None] - places + 0j)
            total[:, first : first + block] += weighted_inverses(inverse, places, masses)
    return total[0].real, total[1].real
