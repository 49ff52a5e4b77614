"""Laws whose inverse map is explicit: ``z(u) = u + N(u)``, with ``-N`` a Pick function.

This form covers every free sum with a freely infinitely divisible law (Semicircle, MarchenkoPastur, SumLaw) and every
free product with a Marchenko-Pastur law; ``u`` is the subordination variable. It makes the analysis one-dimensional:

* off the barriers (the support of the measure of N) the slope ``z'(u)`` is concave, so between two barriers it is
  positive on at most one interval. The images of those intervals are exactly the complement of the support; their
  ends are the edges;
* at x inside the support, u is the fixed point of ``u -> x - N(u)``, a self-map of the upper half-plane.

Infinitely divisible laws come by their Levy measure, finite and made of atoms here (:class:`Levy`): ``R(w) = drift +
sum_j m_j w/(1 - t_j w)``; the semicircle is the atom at zero, Marchenko-Pastur a single atom elsewhere. Such
R-transforms extend to the whole half-plane, so ``z(u) = u + R(G_mu(u))`` is an explicit inverse map for the free sum
with any law mu; with mu the unit mass at zero it is that of the law itself.

References: Biane (1997) for sums with a semicircle, Silverstein and Choi (1995) for products with Marchenko-Pastur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import fsum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.polynomial import polynomial
from scipy.optimize import brentq, minimize_scalar

from bulkedge.laws.engine.measure.cauchy import root_mean_square
from bulkedge.laws.engine.measure.panels import DensityFunction, Edge, SupportInterval
from bulkedge.laws.engine.subordination.fixed_point import FixedPointCurve
from bulkedge.support.arrays import EPS, Complex, Real

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

MapFunction = Callable[[Complex], tuple[Complex, Complex, Real]]

POINTS = 64  # points on the circle with half the radius of convergence: aliasing is 2**-64
CUSP = 1e-10  # two intervals closer than this slope touch: the gap, of width ~ CUSP**1.5, is below double precision
NECK = 1e-2
"""Where the steepest slope between two barriers is negative, but not below minus this, there is no gap but a narrow
minimum of the density. Panels are cut there, so that they resolve it as they resolve an edge."""
LOW, FLAT, ITERATIONS = 1e-6, 0.05, 14
"""Variables that are closer to the axis than the first, as a fraction of their size, are iterated so many times if each
iteration makes their error smaller by the second: then it is smaller than rounding."""
NEXT_TO_ZERO = -200.0  # logarithm of the smallest fraction of the nearest barrier at which a law next to zero may end
MOST_EXACT_ATOMS = 32
FURTHEST = 150.0
"""Coordinates on a component of a complement reach to a relative distance of exp(-150) = 7e-66 from its ends."""


def expand_at_cusp(evaluate: MapFunction, cusp: float, radius: float) -> MapFunction:
    """The same map, with a Taylor series about the cusp within a quarter of its radius of convergence."""
    unit = radius / 2
    for _ in range(2):
        series, size = _taylor(evaluate, cusp, unit)
        cusp -= unit * float(series[2] / (3 * series[3]))
    series = np.where(np.abs(series) < 8 * EPS * size, 0.0, series)
    derivative = polynomial.polyder(series) / unit

    def summed(u: Complex) -> tuple[Complex, Complex, Real]:
        value, slope, terms = evaluate(u)
        w = (u - cusp) / unit
        close = np.abs(w) < 0.5
        value[close], slope[close] = polynomial.polyval(w[close], series), polynomial.polyval(w[close], derivative)
        terms[close] = polynomial.polyval(np.abs(w[close]), np.abs(series))
        return value, slope, terms

    return summed


def _taylor(evaluate: MapFunction, centre: float, unit: float) -> tuple[Real, float]:
    """Taylor coefficients in ``(u - centre)/unit``, by Cauchy's formula, and the size of the map on the unit circle."""
    values, _, size = evaluate(centre + unit * np.exp(2j * np.pi * np.arange(POINTS) / POINTS))
    return np.fft.fft(values)[:32].real / POINTS, float(size.max())


class RisingInterval(NamedTuple):
    """A stretch of u on which the map increases, and its steepest slope; a point where that is not positive."""

    low: float
    high: float
    slope: float


@dataclass(frozen=True)
class PickMap:
    """The inverse map ``z(u) = u + N(u)`` and how to read the Cauchy transform off it."""

    # ``evaluate(u)`` returns ``z(u)``, ``z'(u)`` and the size of the terms that add up to z: times the rounding unit,
    # the rounding error of z
    evaluate: Callable[[Complex], tuple[Complex, Complex, Real]]
    # (k, 2): disjoint closed intervals (points: equal ends), increasing, outside which N is analytic and real
    barriers: Real
    # (k,): mass of the measure of N in each barrier that is a point; zero where unknown. Two heavy barriers that are
    # close to each other have no gap between them, and are skipped without looking; with zeros nothing is skipped
    weights: Real
    cauchy: Callable[[Complex, Real], Complex]  # ``cauchy(u, x)`` is the Cauchy transform of the law at ``x = z(u)``
    poles: Real  # real u at which it is infinite
    # ``z`` in exact arithmetic, where N is a short rational function
    exact: Callable[[Fraction], Fraction] | None = None
    # the edge that the law has at zero, where a barrier ends that the map reaches with positive slope
    touching: Edge | None = None
    # the slope ``z(u)/u`` at zero if ``evaluate`` has small relative error there; zero if there is none
    linear: float = 0.0
    # the law has one sign and ``evaluate`` has small *relative* error; then ``u -> x u/z(u)`` is iterated instead, also
    # a self-map, which keeps that accuracy down to x = 0
    multiplicative: bool = False

    def slope(self, u: float) -> float:
        """``z'(u)`` for real u off the barriers; ``-1e300`` on them."""
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = float(self.evaluate(np.array([u + 0j]))[1][0].real)
        return slope if np.isfinite(slope) else -1e300

    def value(self, u: float) -> float:
        """``z(u)`` for real u off the barriers."""
        return float(self.evaluate(np.array([u + 0j]))[0][0].real)

    def bulk(self) -> tuple[list[SupportInterval], DensityFunction]:
        """Edges first, then the density between them."""
        gaps = self._gaps()
        open_gaps = [gap for gap in gaps if gap.slope > -CUSP]
        critical = [(left.high, right.low) for left, right in pairwise(open_gaps)]
        ends = [(self._edge(left.high, left), self._edge(right.low, right)) for left, right in pairwise(open_gaps)]
        necks = [self._neck(gap.low) for gap in gaps if gap.slope <= -CUSP]
        intervals = [_cut(pair, necks) for pair in ends]
        # half circles: exact for the semicircle law, a fair start for the others
        turn = np.linspace(0, np.pi, 17)
        spans = [(left.location, right.location) for left, right in ends]
        x = np.concatenate([(a + b - (b - a) * np.cos(turn)) / 2 for a, b in spans])
        u = np.concatenate([(a + b - (b - a) * np.exp(-1j * turn)) / 2 for a, b in critical])
        solved = FixedPointCurve(
            self._with_cusp_series(gaps)._step, lambda u, x: self.cauchy(u[0], x), x, u[None]
        ).density
        along = np.ravel(spans), np.ravel(critical)
        density = self._with_steps_near_axis(solved, lambda x: np.interp(x, *along))
        return [pair for pieces in intervals for pair in pairwise(pieces)], density

    def _with_steps_near_axis(self, density: DensityFunction, guess: Callable[[Real], Real]) -> DensityFunction:
        """The same density; where the height of u drowns in its rounding, by iteration."""
        # a law hardly changed by what is added to it, or a product near zero (u is x/linear to leading order): there
        # x - N(u) and x u/z(u) contract at once, and the two parts of N and z(u)/u are accurate each on its own

        def stepped_height(x: Real) -> tuple[Real, Real]:
            values, errors, rest = np.zeros(len(x)), np.zeros(len(x)), np.arange(len(x))
            routes = [(self._additive_step, guess)]
            if self.linear > 0:
                routes.append((self._multiplicative_step, lambda x: x / self.linear))
            for step, start in routes:
                with np.errstate(all="ignore"):
                    u, rate = step(start(x[rest]) + 0j, x[rest])
                    low = (np.abs(rate) < FLAT) & (u.imag > 0) & (u.imag < LOW * np.abs(u))
                found, u = rest[low], u[low]
                change = np.ones(len(found))
                for _ in range(ITERATIONS):
                    if np.all(change <= 4 * EPS):
                        break
                    before, (u, _) = u.imag, step(u, x[found])
                    change = np.abs(u.imag / before - 1)
                values[found] = -self.cauchy(u, x[found]).imag / np.pi
                errors[found] = values[found] * (16 * EPS + change)
                rest = rest[~low]
            if len(rest):
                values[rest], errors[rest] = density(x[rest])
            return values, errors

        return stepped_height

    def _additive_step(self, u: Complex, x: Real) -> tuple[Complex, Complex]:
        """``x - N(u)``, and its slope in u."""
        value, slope, _ = self.evaluate(u)
        return u + (x - value), 1 - slope

    def _multiplicative_step(self, u: Complex, x: Real) -> tuple[Complex, Complex]:
        """``x u/z(u)``, and its slope in u, at the fixed point."""
        value, slope, _ = self.evaluate(u)
        return x / (value / u), 1 - u * slope / value

    def _with_cusp_series(self, gaps: list[RisingInterval]) -> PickMap:
        evaluate = self.evaluate
        for gap in gaps:
            if abs(gap.slope) < CUSP:
                evaluate = expand_at_cusp(evaluate, gap.low, self._to_barrier(gap.low))
        return replace(self, evaluate=evaluate)

    def _step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """The self-map whose fixed point is the subordination variable."""
        value, slope, terms = self.evaluate(u[0])
        if self.multiplicative:
            image = z * u[0] / value
            jacobian = image * (1 / u[0] - slope / value)
            shift = u[0] * ((z - value) / value)
            return shift[None], jacobian[None, None], 4 * EPS * np.abs(image * terms / value)[None]
        return (z - value)[None], (1 - slope)[None, None], 4 * EPS * (np.abs(z) + terms)[None]

    def _edge(self, u: float, gap: RisingInterval) -> Edge:
        """The edge at the critical point u, which ends the given gap."""
        if self.touching is not None and u == 0 and np.any(self.barriers == u):
            return self.touching
        touch = gap.low == gap.high
        u, at_pole = self._snap_to_pole(u, 1e-6 if touch else 1e-12)
        if touch:
            return Edge.cusp(self.value(u), -1 / 3 if at_pole else 1 / 3)
        if at_pole:
            return Edge.hard(self.value(u))
        return Edge.soft(self.value(u)) if self.exact is None else Edge.exactly_soft(self.exact(Fraction(u)))

    def _to_barrier(self, u: float) -> float:
        return float(np.abs(self.barriers - u).min())

    def _snap_to_pole(self, u: float, slack: float) -> tuple[float, bool]:
        """The pole of the Cauchy transform next to u, if rounding explains the difference; and whether there is one."""
        # a hard edge at a pole must not be confused with one beside it; ``slack`` is relative to the nearest barrier
        near = self.poles[np.abs(self.poles - u) <= slack * self._to_barrier(u)]
        return (float(near[0]), True) if len(near) else (u, False)

    def _neck(self, u: float) -> Edge:
        """The real x of the bulk whose variable has the real part u: ``Im z/Im u`` is zero somewhere above u."""
        u, _ = self._snap_to_pole(u, 1e-6)
        scale = self._to_barrier(u)

        def image(v: float) -> complex:
            return complex(self.evaluate(np.array([u + 1j * scale * np.exp(v)]))[0][0])

        return Edge.plain(image(_turning_point(lambda v: image(v).imag, -36.0, 80.0)).real)

    def _gaps(self) -> list[RisingInterval]:
        """Intervals of u on which the map increases, left to right; the outermost reach to infinity."""
        first, last = float(self.barriers[0, 0]), float(self.barriers[-1, 1])
        reach = float(np.abs(self.barriers).max()) + float(np.sqrt(self.weights.max())) + float(np.finfo(float).tiny)
        ends = []
        for barrier, side in ((first, -reach), (last, reach)):

            def slope(v: float, barrier: float = barrier, side: float = side) -> float:
                return self.slope(barrier + side * np.exp(v))

            nearest = _log_nearest(barrier, reach, -80.0)
            turn = _turning_point(slope, nearest, 80.0)
            ends.append(self._end_near_zero(barrier + side * np.exp(turn) if turn > nearest else barrier, barrier))
        return [RisingInterval(-np.inf, ends[0], 1.0), *self._inner_gaps(), RisingInterval(ends[1], np.inf, 1.0)]

    def _end_near_zero(self, u: float, barrier: float) -> float:
        """The same end of an outer gap, to its own rounding instead of that of its distance from the barrier."""
        if not self.multiplicative or not self.linear or not abs(u) < abs(barrier) / 2:
            return u
        # the map rises away from the barrier; at zero itself it does so if its slope there is positive
        unit = float(np.copysign(barrier, barrier * self.linear))
        ends = np.array([np.log(0.75), NEXT_TO_ZERO] if self.linear > 0 else [NEXT_TO_ZERO, np.log(0.75)])
        falling, rising = (self.slope(unit * np.exp(end)) for end in ends)
        if not falling < 0 < rising:
            # the slope at zero is nothing but rounding
            return u
        return unit * float(np.exp(_turning_point(lambda v: self.slope(unit * np.exp(v)), *ends)))

    def _inner_gaps(self) -> list[RisingInterval]:
        low, high = self.barriers[:-1, 1], self.barriers[1:, 0]
        # slope <= 1 - w1/(u-low)**2 - w2/(high-u)**2, at most 1 - (w1**(1/3) + w2**(1/3))**3/(high-low)**2
        pair = (np.cbrt(self.weights[:-1]) + np.cbrt(self.weights[1:])) ** 3
        possible = pair < (high - low) ** 2 * (1 + NECK)
        found = (self._gap_between(a, b) for a, b in zip(low[possible], high[possible], strict=True))
        return [gap for gap in found if gap.slope > -NECK]

    def _gap_between(self, low: float, high: float) -> RisingInterval:
        """The increasing stretch between two barriers; a point if the slope there is at most zero."""

        def place(v: float) -> float:
            width = (high - low) / (1 + np.exp(abs(v)))
            return float(low + width if v < 0 else high - width)

        def slope(v: float) -> float:
            return self.slope(place(v))

        ends = _log_nearest(low, high - low, -36.0), -_log_nearest(high, high - low, -36.0)
        top = minimize_scalar(lambda v: -slope(v), bounds=ends, method="bounded", options={"xatol": 1e-9}).x
        steepest = slope(top)
        if steepest < CUSP:
            return RisingInterval(place(top), place(top), steepest)
        left, right = (_turning_point(slope, end, top) for end in ends)
        # where the map reaches a barrier at zero with positive slope, the law ends at zero itself, and not beside it
        touches = [self.touching is not None and end == 0 for end in (low, high)]
        return RisingInterval(
            low if touches[0] and left == ends[0] else place(left),
            high if touches[1] and right == ends[1] else place(right),
            steepest,
        )


def _cut(interval: SupportInterval, necks: list[Edge]) -> list[Edge]:
    """The ends of an interval with the minima in ``necks`` between, so that panels measure distances from there."""
    left, right = interval
    return [left, *(neck for neck in necks if left.location < neck.location < right.location), right]


def _log_nearest(barrier: float, unit: float, most: float) -> float:
    """Log of the least distance, in units, at which points differ from a barrier; at most ``most``."""
    return min(most, float(np.log(abs(barrier) / unit)) - 36.0) if barrier else most


def _turning_point(function: Callable[[float], float], negative: float, positive: float) -> float:
    """Where a function turns positive on the way from ``negative`` to ``positive``; ``negative`` if already there."""
    if function(negative) >= 0:
        return negative
    return float(brentq(function, negative, positive, xtol=1e-15, rtol=8 * EPS))


def sorted_barriers(support: tuple[tuple[float, float], ...], points: Real, weights: Real) -> tuple[Real, Real]:
    """Intervals and weighted points as disjoint barriers in increasing order, with their weights."""
    intervals = np.array(support, dtype=float).reshape(-1, 2)
    ends = np.concatenate([intervals, np.stack([points, points], axis=1)])
    masses = np.concatenate([np.zeros(len(intervals)), weights])
    order = np.lexsort((-ends[:, 1], ends[:, 0]))
    ends, masses = ends[order], masses[order]
    # a point inside an interval, or at its end, is no barrier of its own
    reached = np.maximum.accumulate(ends[:, 1])
    first = np.append(True, ends[1:, 0] > reached[:-1])
    return ends[first], masses[first]


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
    """``J = G/(1 - place G)`` at u (rows) and places (columns), its derivative in u and the size of its terms."""
    # where G is large J is 1/(F - place), F = 1/G, which is analytic at atoms
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
            g, g_slope, rise = _component_transforms(law, low, high, v)
            miss = (g - w) / abs(w)
            return np.sign(miss) * np.log1p(np.abs(miss)), g_slope * rise / (abs(w) * (1 + np.abs(miss))), g_slope

    first, last = np.full(len(low), -FURTHEST), np.full(len(low), FURTHEST)
    inside = (excess(first)[0] > 0) & (excess(last)[0] < 0)
    low, high, first, last = low[inside], high[inside], first[inside], last[inside]
    v = _root(lambda v: excess(v)[:2], first, last)
    return _point_at(low, high, v), excess(v)[2]


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


def _point_at(low: Real, high: Real, v: Real) -> Real:
    """The points of the components (low, high) with logistic coordinates v."""
    width = (high - low) / (1 + np.exp(np.abs(v)))
    return np.where(v < 0, low + width, high - width)


def _component_transforms(law: Law, low: Real, high: Real, v: Real) -> tuple[Real, Real, Real]:
    """G, G' and du/dv at the points of components with logistic coordinates v."""
    # distances to atoms come from the nearest end, so they keep their relative accuracy however small
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
    """Zeros of falling functions (values, slopes) from ``low`` to ``high``: Newton, or bisection where that fails."""
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
