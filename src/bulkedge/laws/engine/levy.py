"""Freely infinitely divisible laws whose Levy measure is finite and made of atoms, and their free sums with any law.

The R-transform is ``R(w) = drift + sum_j m_j w/(1 - t_j w)``; the semicircle is the atom at zero, Marchenko-Pastur a
single atom elsewhere. Such R-transforms extend to the whole half-plane, so ``z(u) = u + R(G_mu(u))`` is an explicit
inverse map for the free sum with any law mu (:mod:`bulkedge.laws.engine.pick`); with mu the unit mass at zero it is
that of the law itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from bulkedge.arrays import Complex, Real
from bulkedge.laws.engine.cauchy import root_mean_square
from bulkedge.laws.engine.pick import CUSP, PickMap, sorted_barriers

if TYPE_CHECKING:
    from bulkedge.laws.base import Law

MOST_EXACT_ATOMS = 32
FURTHEST = 36.0
"""Coordinates on a component of a complement reach to a relative distance of exp(-36) = 2e-16 from its ends."""


@dataclass(frozen=True)
class Levy:
    """``R(w) = drift + sum masses w/(1 - locations w)``, locations distinct and increasing."""

    drift: float
    locations: Real
    masses: Real

    @classmethod
    def of(cls, drift: float, locations: Real, masses: Real) -> Levy:
        """Merge equal locations."""
        places, index = np.unique(locations, return_inverse=True)
        merged = np.zeros(len(places))
        np.add.at(merged, index, masses)
        return cls(drift, places, merged)

    def __add__(self, other: Levy) -> Levy:
        """The Levy measure of the free sum."""
        places = np.concatenate([self.locations, other.locations])
        return Levy.of(self.drift + other.drift, places, np.concatenate([self.masses, other.masses]))

    def affine(self, factor: float, shift: float) -> Levy:
        """The Levy measure of ``factor * x + shift``."""
        return Levy.of(factor * self.drift + shift, factor * self.locations, factor**2 * self.masses)

    @property
    def jump_rate(self) -> float:
        """Mass that every atom of a law loses in the free sum with this one; infinite with a semicircular part."""
        if np.any(self.locations == 0):
            return np.inf
        return float(np.sum(self.masses / self.locations**2))

    def surviving_atoms(self, atoms: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        """Atoms of the free sum with a law that has the given atoms (Bercovici and Voiculescu 1998)."""
        if np.isinf(self.jump_rate):
            return ()
        moved = self.drift - float(np.sum(self.masses / self.locations))
        return tuple((place + moved, mass - self.jump_rate) for place, mass in atoms if mass - self.jump_rate > CUSP)

    def own_map(self) -> PickMap:
        """The inverse map ``K(1/u)`` of the law itself."""
        places, masses = self.locations, self.masses
        symmetric = self.drift == 0 and np.array_equal(places, -places[::-1]) and np.array_equal(masses, masses[::-1])

        def evaluate(u: Complex) -> tuple[Complex, Complex, Real]:
            inverse = 1 / (u[:, None] - places)
            slope = 1 - inverse**2 @ masses
            if symmetric:
                # a pair of atoms at +-q gives m u/(u**2 - q**2), without the cancellation of its two terms near u = 0
                paired = 1 / (u[:, None] ** 2 - places**2)
                return u + u * (paired @ masses), slope, np.abs(u) * (1 + np.abs(paired) @ masses)
            size = np.abs(u) + abs(self.drift) + np.abs(inverse) @ masses
            return u + self.drift + inverse @ masses, slope, size

        def exact(u: Fraction) -> Fraction:
            jumps = (Fraction(m) / (u - Fraction(t)) for t, m in zip(places.tolist(), masses.tolist(), strict=True))
            return u + Fraction(self.drift) + sum(jumps, Fraction(0))

        return PickMap(
            evaluate=evaluate,
            barriers=np.stack([places, places], axis=1),
            weights=masses,
            cauchy=lambda u, _: 1 / u,
            poles=np.zeros(1),
            exact=exact if len(places) <= MOST_EXACT_ATOMS else None,
        )

    def map_over(self, law: Law) -> PickMap:
        """The inverse map ``u + R(G(u))`` of the free sum with ``law``."""

        def evaluate(u: Complex) -> tuple[Complex, Complex, Real]:
            g, slope, _, _ = law._transforms(u)
            shrink = 1 / (1 - g[:, None] * self.locations)
            size = np.abs(u) + abs(self.drift) + root_mean_square(u, g, slope) * (np.abs(shrink) ** 2 @ self.masses)
            return u + self.drift + g * (shrink @ self.masses), 1 + slope * (shrink**2 @ self.masses), size

        points: list[Real] = []
        weights: list[Real] = []
        for place, mass in zip(self.locations, self.masses, strict=True):
            found = law._locations if place == 0 else level_points(law, 1 / place)
            points.append(found)
            weights.append(
                mass * law._masses if place == 0 else -mass / (place**2 * law._transforms(found + 0j)[1].real)
            )

        def exact(u: Fraction) -> Fraction:
            g = exact_cauchy(law, u)
            jumps = zip(self.locations.tolist(), self.masses.tolist(), strict=True)
            return (
                u + Fraction(self.drift) + sum((Fraction(m) * g / (1 - Fraction(t) * g) for t, m in jumps), Fraction(0))
            )

        barriers, masses = sorted_barriers(law.support, np.concatenate(points), np.concatenate(weights))
        return PickMap(
            evaluate=evaluate,
            barriers=barriers,
            weights=masses,
            cauchy=lambda u, _: law._transforms(u)[0],
            poles=law._locations,
            exact=exact if is_short(law) else None,
        )


def is_short(law: Law) -> bool:
    """Whether a law consists of a few atoms, for which exact arithmetic is cheap."""
    return not law.support and len(law.atoms) <= MOST_EXACT_ATOMS


def exact_cauchy(law: Law, u: Fraction) -> Fraction:
    """The Cauchy transform of a law of atoms, in exact arithmetic."""
    return sum((Fraction(mass) / (u - Fraction(place)) for place, mass in law.atoms), Fraction(0))


def level_points(law: Law, w: float) -> Real:
    """All real points outside the bulk and the atoms of a law at which its Cauchy transform equals w (not zero)."""
    pieces = np.array(sorted([*law.support, *((place, place) for place, _ in law.atoms)]))
    reached = np.maximum.accumulate(pieces[:, 1])
    apart = pieces[1:, 0] > reached[:-1]
    low, high = reached[:-1][apart], pieces[1:, 0][apart]
    # outside, |G| < 1/distance: beyond distance 1/|w| it is below |w| already
    if w > 0:
        low, high = np.append(low, reached[-1]), np.append(high, reached[-1] + 1 / w)
    else:
        low, high = np.append(pieces[0, 0] + 1 / w, low), np.append(pieces[0, 0], high)

    def place(v: Real) -> Real:
        width = (high - low) / (1 + np.exp(np.abs(v)))
        return np.where(v < 0, low + width, high - width)

    def excess(v: Real) -> Real:
        with np.errstate(divide="ignore", invalid="ignore"):
            return law._transforms(place(v) + 0j)[0].real - w

    # G falls along each component, so there is at most one such point in each
    first, last = np.full(len(low), -FURTHEST), np.full(len(low), FURTHEST)
    found = (excess(first) > 0) & (excess(last) < 0)
    for _ in range(64):
        middle = (first + last) / 2
        above = excess(middle) > 0
        first, last = np.where(above, middle, first), np.where(above, last, middle)
    return place(middle)[found]
