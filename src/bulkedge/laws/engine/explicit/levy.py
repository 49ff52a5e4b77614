"""Freely infinitely divisible laws whose Levy measure is finite and made of atoms, and their free sums with any law.

The R-transform is ``R(w) = drift + sum_j m_j w/(1 - t_j w)``; the semicircle is the atom at zero, Marchenko-Pastur a
single atom elsewhere. Such R-transforms extend to the whole half-plane, so ``z(u) = u + R(G_mu(u))`` is an explicit
inverse map for the free sum with any law mu (:mod:`bulkedge.laws.engine.explicit.explicit_map`); with mu the unit mass
at zero it is that of the law itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from bulkedge.laws.engine.explicit.explicit_map import CUSP, PickMap, sorted_barriers
from bulkedge.laws.engine.measure.cauchy import root_mean_square
from bulkedge.support.arrays import EPS, Complex, Real

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

MOST_EXACT_ATOMS = 32
FURTHEST = 150.0
"""Coordinates on a component of a complement reach to a relative distance of exp(-150) = 7e-66 from its ends."""


@dataclass(frozen=True)
class Levy:
    """``R(w) = drift + sum masses w/(1 - locations w)``, locations distinct and increasing."""

    drift: float
    locations: Real
    masses: Real

    @classmethod
    def of(cls, drift: float, locations: Real, masses: Real) -> Levy:
        """The Levy measure of atoms that may share locations: masses at equal locations are added up."""
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
        terms = [self.drift, *(-self.masses / self.locations).tolist()]
        moved = fsum(terms)
        # terms that cancel but for their own rounding leave atoms in place: at zero, above all
        moved = moved if abs(moved) > 2 * EPS * max(map(abs, terms)) else 0.0
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
            jump, rate, error = _jumps(law, u, self.locations)
            size = np.abs(u) + abs(self.drift) + error @ self.masses
            return u + self.drift + jump @ self.masses, 1 + rate @ self.masses, size

        def exact(u: Fraction) -> Fraction:
            atoms = {Fraction(place) for place, _ in law.atoms}
            jumps = zip(map(Fraction, self.locations.tolist()), map(Fraction, self.masses.tolist()), strict=True)
            if u in atoms:
                return u + Fraction(self.drift) - sum((m / t for t, m in jumps), Fraction(0))
            g = exact_cauchy(law, u)
            return u + Fraction(self.drift) + sum((m * g / (1 - t * g) for t, m in jumps), Fraction(0))

        barriers, masses = sorted_barriers(law.support, *self._poles_over(law))
        return PickMap(
            evaluate=evaluate,
            barriers=barriers,
            weights=masses,
            cauchy=lambda u, _: law.transforms(u)[0],
            poles=law.locations,
            exact=exact if is_short(law) else None,
        )

    def _poles_over(self, law: Law) -> tuple[Real, Real]:
        """Poles u of ``R(G(u))`` off the bulk of ``law``, and minus its residues there."""
        points: list[Real] = []
        weights: list[Real] = []
        for place, mass in zip(self.locations.tolist(), self.masses.tolist(), strict=True):
            # w/(1 - place w) has its pole at G = 1/place, which for the semicircle is at the atoms
            found, slopes = level_points(law, 1 / place) if place else (law.locations, -1 / law.masses)
            points.append(found)
            weights.append(mass * law.masses if place == 0 else -mass / (place**2 * slopes))
        return np.concatenate(points), np.concatenate(weights)


def _jumps(law: Law, u: Complex, places: Real) -> tuple[Complex, Complex, Real]:
    """``J = G/(1 - place G)``, its derivative in u and the size of its terms, G the Cauchy transform of a law at u.

    Rows are points u, columns places. Where G is large (next to atoms, and at them) J is taken as ``1/(F - place)``
    with ``F = 1/G``, which is analytic there and has slope one over the mass of the atom.
    """
    g, g_slope, _, _ = law.transforms(u)
    spread = root_mean_square(u, g, g_slope)
    with np.errstate(all="ignore"):
        f, lost = 1 / g, ~np.isfinite(g_slope)
        f_slope, f_spread = np.asarray(-g_slope * f * f), spread * np.abs(f) ** 2
        if len(law.locations):
            nearest = np.abs(u[lost, None] - law.locations).argmin(axis=1)
            f_slope[lost], f_spread[lost] = 1 / law.masses[nearest], 0.0
        large = np.abs(g[:, None] * places) > 1
        below = np.where(large, f[:, None] - places, 1 - np.where(places == 0, 0.0, g[:, None] * places))
        jump: Complex = np.asarray(np.where(large, 1.0, g[:, None]) / below, dtype=complex)
        rate: Complex = np.asarray(np.where(large, -f_slope[:, None], g_slope[:, None]) / below**2, dtype=complex)
        error = np.where(large, f_spread[:, None], spread[:, None]) / np.abs(below) ** 2
    return jump, rate, np.abs(jump) + error


def is_short(law: Law) -> bool:
    """Whether a law consists of a few atoms, for which exact arithmetic is cheap."""
    return not law.support and len(law.atoms) <= MOST_EXACT_ATOMS


def exact_cauchy(law: Law, u: Fraction) -> Fraction:
    """The Cauchy transform of a law of atoms, in exact arithmetic."""
    return sum((Fraction(mass) / (u - Fraction(place)) for place, mass in law.atoms), Fraction(0))


def level_points(law: Law, w: float) -> tuple[Real, Real]:
    """All real points outside the bulk and the atoms of a law at which its Cauchy transform G equals w (not zero)."""
    low, high = _components(law, w)

    # G falls along each component, so there is at most one such point in each
    def excess(v: Real) -> tuple[Real, Real, Real]:
        """``log(G/w)``, continued as an odd function of ``G/w - 1``, its slope in v, and G'."""
        # atoms may be so close that G overflows next to them: it is infinite then, with its sign
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            g, g_slope, rise = _along(law, low, high, v)
            miss = (g - w) / abs(w)
            return np.sign(miss) * np.log1p(np.abs(miss)), g_slope * rise / (abs(w) * (1 + np.abs(miss))), g_slope

    first, last = np.full(len(low), -FURTHEST), np.full(len(low), FURTHEST)
    inside = (excess(first)[0] > 0) & (excess(last)[0] < 0)
    low, high, first, last = low[inside], high[inside], first[inside], last[inside]
    v = _root(lambda v: excess(v)[:2], first, last)
    return _placed(low, high, v), excess(v)[2]


def _components(law: Law, w: float) -> tuple[Real, Real]:
    """Ends of the open intervals outside bulk and atoms, the unbounded ones cut off where |G| < |w| for sure."""
    pieces = np.array(sorted([*law.support, *((place, place) for place, _ in law.atoms)]))
    reached = np.maximum.accumulate(pieces[:, 1])
    apart = pieces[1:, 0] > reached[:-1]
    low, high = reached[:-1][apart], pieces[1:, 0][apart]
    # outside, |G| < 1/distance: twice as far it is below |w| however 1/w is rounded
    if w > 0:
        return np.append(low, reached[-1]), np.append(high, reached[-1] + 2 / w)
    return np.append(pieces[0, 0] + 2 / w, low), np.append(pieces[0, 0], high)


def _placed(low: Real, high: Real, v: Real) -> Real:
    """The points of the components (low, high) with logistic coordinates v."""
    width = (high - low) / (1 + np.exp(np.abs(v)))
    return np.where(v < 0, low + width, high - width)


def _along(law: Law, low: Real, high: Real, v: Real) -> tuple[Real, Real, Real]:
    """G, G' and du/dv at the points of components with logistic coordinates v.

    Distances to atoms are taken by way of the nearest end, so they keep their relative accuracy however small.
    """
    width = (high - low) / (1 + np.exp(np.abs(v)))
    end, offset = np.where(v < 0, low, high), np.where(v < 0, width, -width)
    g, g_slope = np.zeros(len(v)), np.zeros(len(v))
    if law.continuum:
        g, g_slope = law.continuum.transforms(end + offset + 0j)[:2].real
    if len(law.locations):
        inverse = 1 / ((end[:, None] - law.locations) + offset[:, None])
        g, g_slope = g + inverse @ law.masses, g_slope - inverse**2 @ law.masses
    return g, g_slope, width / (1 + np.exp(-np.abs(v)))


def _root(function: Callable[[Real], tuple[Real, Real]], low: Real, high: Real) -> Real:
    """Zeros of falling functions, positive at ``low`` and negative at ``high``: Newton, or bisection where that fails.

    ``function(v)`` returns values and slopes, one for each bracket.
    """
    v, step = (low + high) / 2, high - low
    for _ in range(200):
        value, slope = function(v)
        low, high = np.where(value > 0, v, low), np.where(value > 0, high, v)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = v - value / slope
        good = (newton > low) & (newton < high) & (np.abs(newton - v) <= np.abs(step) / 2)
        following = np.where(value == 0, v, np.where(good, newton, (low + high) / 2))
        step, v = following - v, following
        if np.all(np.abs(step) <= 4 * EPS * np.maximum(np.abs(v), 1)):
            break
    return v
