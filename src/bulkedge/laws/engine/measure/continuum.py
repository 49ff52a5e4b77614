"""A continuous measure, resolved once: density, cdf, quantiles, moments and transforms are read off its panels.

>>> import numpy as np
>>> from bulkedge.laws.engine.measure.panels import Edge
>>> half_circle = lambda x: (np.sqrt(4 - x**2) / (2 * np.pi), 1e-15)
>>> bulk = resolve([(Edge.soft(-2.0), Edge.soft(2.0))], half_circle)
>>> round(float(bulk.cdf(np.array([1.0]))[0]), 12)   # 2/3 + sqrt(3)/(4 pi)
0.804498890522
>>> [round(bulk.moment(k), 12) for k in (0, 2, 4)]
[1.0, 1.0, 2.0]

Its Cauchy transform decreases on every interval that it leaves free: from plus infinity or a finite value at the left
end to minus infinity or a finite value at the right end, and from or to zero at infinity. So it takes a value at most
once in each gap, and its limits at the ends say whether. Points are sought on a logarithmic scale of their distance to
the nearer end, because they come close to edges and atoms.

>>> gaps = Gaps(np.array([-np.inf, 0.0, 1.0]), np.array([0.0, 1.0, np.inf]))
>>> g = lambda x: (0.5 / x + 0.5 / (x - 1), -0.5 / x**2 - 0.5 / (x - 1) ** 2)      # atoms at 0 and 1
>>> limits = np.array([[0.0, np.inf, np.inf], [-np.inf, -np.inf, 0.0]])
>>> found = crossings(g, gaps, limits, np.array([0.5]), np.array([2.0]))
>>> found.gap, found.point.round(12)                                               # of x**2 - 3 x + 1
(array([1, 2]), array([0.38196601, 2.61803399]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.polynomial import chebyshev, legendre

from bulkedge.laws.engine.measure.cauchy import BLOCK, GAUSS, Clusters, NearField, pole_sums
from bulkedge.laws.engine.measure.panels import DensityFunction, Panels, SupportInterval, fit, nodes_and_transform
from bulkedge.support.arrays import EPS, BoolArray, Complex, Index, Real
from bulkedge.support.errors import UnresolvedError

MASS_DEGREE = 32  # Chebyshev coefficients of the mass density on a panel: enough for ``g(s**2) s**weight``
FEW = 12  # panels that are not worth being joined to clusters


def resolve(intervals: Sequence[SupportInterval], density: DensityFunction) -> Continuum:
    """Represent a density between known edges, given in increasing order."""
    panels = fit(intervals, density)
    return Continuum(panels.take(np.argsort(np.minimum(*panels.ends()), kind="stable")), tuple(intervals))


@dataclass(frozen=True)
class Continuum:
    """A resolved continuous measure, its panels ordered along the line; made by :func:`resolve`."""

    panels: Panels
    intervals: tuple[SupportInterval, ...]

    @cached_property
    def support(self) -> tuple[tuple[float, float], ...]:
        """The intervals as pairs of numbers; intervals that touch are joined."""
        joined: list[tuple[float, float]] = []
        for left, right in self.intervals:
            if joined and joined[-1][1] == left.location:
                joined[-1] = (joined[-1][0], right.location)
            else:
                joined.append((left.location, right.location))
        return tuple(joined)

    @property
    def edge_coefficient(self) -> float:
        """The factor g at the right edge: the density is ``g delta**exponent`` there."""
        last = self.panels.take(np.array([-1]))
        return float(last.g(last.start[:, None])[0, 0])

    def moved(self, factor: Fraction, shift: Fraction) -> Continuum:
        """The measure of ``factor * x + shift``, panel by panel, exactly, so that nothing near an edge is rounded."""
        panels, size = self.panels, abs(float(factor))
        places = zip(panels.location.tolist(), panels.remainder.tolist(), strict=True)
        exact = [factor * (Fraction(place) + Fraction(rest)) + shift for place, rest in places]
        location = np.array([float(place) for place in exact])
        image = panels.replaced(
            location=location,
            remainder=np.array([float(each - Fraction(place)) for each, place in zip(exact, location, strict=True)]),
            direction=panels.direction if factor > 0 else -panels.direction,
            length=size * panels.length,
            middle=float(factor) * panels.middle + float(shift),
            coefficients=panels.coefficients * (size ** -(1 + panels.exponent))[:, None],
        )
        edges = [
            (left.moved(factor * left.exact + shift), right.moved(factor * right.exact + shift))
            for left, right in self.intervals
        ]
        if factor > 0:
            return Continuum(image, tuple(edges))
        # the line is read from the other end
        mirrored = tuple((right, left) for left, right in edges[::-1])
        return Continuum(image.take(np.arange(len(image))[::-1]), mirrored)

    def normalised(self, mass: float) -> Continuum:
        """The same density times a constant: quantiles of light islands far out need all digits of the mass."""
        return Continuum(
            self.panels.replaced(coefficients=self.panels.coefficients * (mass / self.mass)), self.intervals
        )

    # -- where a point lies --------------------------------------------------------------------------------------------

    @cached_property
    def _breaks(self) -> Real:
        """Left ends of the panels."""
        return np.minimum(*self.panels.ends())

    @cached_property
    def _ends(self) -> tuple[Real, Real]:
        """Left and right ends of the intervals."""
        return (
            np.array([left.location for left, _ in self.intervals]),
            np.array([right.location for _, right in self.intervals]),
        )

    @cached_property
    def _touching(self) -> Real:
        """Points at which one interval ends and the next begins."""
        low, high = self._ends
        return np.intersect1d(low, high)

    def _panel(self, x: Real) -> tuple[Index, Real]:
        """The panel of each x, and the distance to its edge (zero for x in a gap)."""
        panels = self.panels
        index = np.maximum(np.searchsorted(self._breaks, x, side="right") - 1, 0)
        delta = panels.direction[index] * ((x - panels.location[index]) - panels.remainder[index])
        return index, np.maximum(delta, 0.0)

    def _inside(self, x: Real) -> BoolArray:
        low, high = self._ends
        which = np.maximum(np.searchsorted(low, x, side="right") - 1, 0)
        return np.asarray((x >= low[which]) & (x <= high[which]))

    # -- density -------------------------------------------------------------------------------------------------------

    @cached_property
    def _series(self) -> tuple[Real, Real, Real, Real]:
        """Coefficients of g, a column a panel; power, slope, offset of ``t = slope (delta/length)**power + offset``."""
        panels = self.panels
        width = panels.stop - panels.start
        slope = np.where(panels.symmetric, 2 / panels.stop**2, 2 / width)
        offset = np.where(panels.symmetric, -1.0, -(panels.start + panels.stop) / width)
        return panels.coefficients.T.copy(), np.where(panels.symmetric, 1.0, 1 / panels.order), slope, offset

    def pdf(self, x: Real) -> Real:
        """Density at finite x; zero outside the support."""
        index, delta = self._panel(x)
        coefficients, power, slope, offset = self._series
        variable = _power(delta / self.panels.length[index], power[index])
        t = np.clip(slope[index] * variable + offset[index], -1.0, 1.0)
        g = np.maximum(_clenshaw(coefficients.take(index, axis=1), t), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            density = np.where(g > 0, g * _power(delta, self.panels.exponent[index]), 0.0)
        return np.where(self._inside(x), density, 0.0)

    # -- mass ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _mass_series(self) -> Real:
        """Chebyshev coefficients of the mass between a panel's start and ``s``, one column a panel."""
        t, transform = nodes_and_transform(MASS_DEGREE)
        density = self.panels.mass_density(self.panels.sites(t)) @ transform.T
        series = chebyshev.chebint(density, axis=1, lbnd=-1) * ((self.panels.stop - self.panels.start) / 2)[:, None]
        return np.ascontiguousarray(series.T)

    @cached_property
    def _cumulative(self) -> Real:
        """Mass to the left of each panel, and at last the total."""
        return np.concatenate([[0.0], np.cumsum(self._mass_series.sum(axis=0))])

    @property
    def mass(self) -> float:
        """Total mass."""
        return float(self._cumulative[-1])

    def _mass_from_start(self, index: Index, s: Real) -> Real:
        start, stop = self.panels.start[index], self.panels.stop[index]
        return _clenshaw(self._mass_series.take(index, axis=1), (2 * s - start - stop) / (stop - start))

    def cdf(self, x: Real) -> Real:
        """Mass at or below finite x."""
        low, high = self._ends
        index, delta = self._panel(x)
        panels = self.panels
        s = _power(delta / panels.length[index], 1 / panels.order[index])
        part = self._mass_from_start(index, np.clip(s, panels.start[index], panels.stop[index]))
        rightwards = panels.direction[index] > 0
        inner = np.where(rightwards, self._cumulative[index] + part, self._cumulative[index + 1] - part)
        passed = np.searchsorted(high, x, side="right")
        gap = (passed == len(high)) | (x < low[np.minimum(passed, len(high) - 1)])
        upto = self._cumulative[np.append(np.searchsorted(self._breaks, low), len(panels))]
        return np.where(gap, upto[passed], inner)

    def ppf(self, mass: Real) -> Real:
        """Point below which the given mass lies, for ``0 <= mass <= self.mass``."""
        index = np.clip(np.searchsorted(self._cumulative, mass, side="left") - 1, 0, len(self.panels) - 1)
        panels = self.panels.take(index)
        below, upto = self._cumulative[index], self._cumulative[index + 1]
        whole = np.maximum(upto - below, np.finfo(float).tiny)
        target = np.clip(np.where(panels.direction > 0, mass - below, upto - mass), 0.0, upto - below)
        low, high = panels.start.copy(), panels.stop.copy()
        guess = (target / whole) ** np.where(low == 0, 1 / (panels.weight + 1), 1.0)
        s = low + (high - low) * guess
        for _ in range(60):
            miss = self._mass_from_start(index, s) - target
            low, high = np.where(miss < 0, s, low), np.where(miss > 0, s, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = s - miss / panels.mass_density(s[:, None])[:, 0]
            inside = (newton >= low) & (newton <= high)
            moved = np.where(miss == 0, s, np.where(inside, newton, (low + high) / 2))
            settled = (np.abs(moved - s) <= 4 * EPS * panels.stop) | (np.abs(miss) <= 4 * EPS * whole)
            s = moved
            if settled.all():
                break
        return panels.position(s[:, None])[:, 0] + panels.remainder

    # -- integrals -----------------------------------------------------------------------------------------------------

    def _quadrature(self, n: int) -> tuple[Real, Real]:
        """Gauss nodes and masses, one row a panel."""
        t, weights = legendre.leggauss(n)
        s = self.panels.sites(t)
        half = (self.panels.stop - self.panels.start) / 2
        return self.panels.position(s), self.panels.mass_density(s) * weights * half[:, None]

    def moment(self, k: int, centre: float = 0.0) -> float:
        """``int (x - centre)**k`` of the density, by Gauss rules exact for the stored polynomials."""
        degree = MASS_DEGREE + int(self.panels.order.max()) * k
        x, mass = self._quadrature(max(GAUSS, degree // 2 + 1))
        return float(np.sum(mass * (x - centre) ** k))

    @cached_property
    def _nodes(self) -> tuple[Real, Real, Real]:
        """Gauss nodes by panel, :data:`GAUSS` each, their masses, those times the nodes, and masses of the panels."""
        x, mass = self._quadrature(GAUSS)
        return x.ravel(), np.stack([mass.ravel(), (mass * x).ravel()], axis=1), mass.sum(axis=1)

    @cached_property
    def _clusters(self) -> Clusters:
        """The nodes of many panels, joined for points that are far away."""
        near = self._near_field
        return Clusters.of(*self._quadrature(GAUSS), near.centre, near.reach)

    @cached_property
    def _near_field(self) -> NearField:
        """Cauchy integrals of the panels at points close to them."""
        return NearField.of(self.panels)

    def transforms(self, z: Complex) -> Complex:
        """``G = int 1/(z-t)``, ``G'``, ``psi = int t/(z-t)`` and ``psi'``; on the support, limits from above."""
        # where two intervals touch, a point belongs to neither: its neighbour does
        z = np.where(np.isin(z, self._touching), np.nextafter(z.real, np.inf), z)
        # of many panels a point sees clusters, ten to twenty of them
        block = BLOCK // (GAUSS * min(len(self.panels), FEW))
        parts = [self._transforms(z[first : first + block]) for first in range(0, max(len(z), 1), block)]
        result = np.concatenate(parts, axis=1)
        # outside the support the transforms are real; sums of roots leave rounding errors in their imaginary parts
        result.imag[:, (z.imag == 0) & ~self._inside(z.real)] = 0.0
        return result

    def _transforms(self, z: Complex) -> Complex:
        x, weights, mass = self._nodes
        point, panel = self._near_field.pairs(z)
        if len(self.panels) > FEW:
            result = self._clusters.transforms(z, (point, panel))
        else:
            nodes = panel[:, None] * GAUSS + np.arange(GAUSS)
            result = pole_sums(z, x, weights, (point[:, None], nodes))
        if len(point):
            at = z[point]
            g, slope = self._near_field.at(panel, at)
            # t/(z-t) = z/(z-t) - 1
            rows = g, slope, at * g - mass[panel], g + at * slope
            first = np.flatnonzero(np.diff(point, prepend=-1))
            result[:, point[first]] += np.add.reduceat(np.stack(rows), first, axis=1)
        return result


def _clenshaw(coefficients: Real, t: Real) -> Real:
    """Sum Chebyshev series, one column of coefficients for each t."""
    twice, last, before = 2 * t, np.zeros_like(t), np.zeros_like(t)
    for row in coefficients[:0:-1]:
        step = twice * last
        step += row
        step -= before
        last, before = step, last
    return np.asarray(t * last - before + coefficients[0])


def _power(base: Real, exponent: Real) -> Real:
    """``base**exponent``, without the slow general power for the usual exponents."""
    result = np.where(exponent == 1, base, np.sqrt(base))
    rest = (exponent != 1) & (exponent != 0.5)
    if rest.any():
        result[rest] = np.power(base[rest], exponent[rest])
    return result


CLOSEST = -72.0  # points are sought from a relative distance of exp(-72) = 5e-32 to the end of a gap onwards
FEWEST = 4096
"""Gaps with fewer numbers in them are taken as closed too. Unless the perturbation is as small, 1e-12 of the locations,
overlaps there are below 1e-20."""

Function = Callable[[Real], tuple[Real, Real]]  # value and derivative at points of gaps


@dataclass(frozen=True)
class Gaps:
    """Open intervals ``(low[k], high[k])`` without mass, in increasing order; the outermost may be infinite."""

    low: Real
    high: Real

    def __len__(self) -> int:
        return len(self.low)

    def holding(self, points: Real) -> Index:
        """The gap that each point lies in, and -1 for points in none."""
        which = np.searchsorted(self.low, points, side="right") - 1
        inside = (which >= 0) & (points > self.low[which]) & (points < self.high[which]) if len(self) else which >= 0
        return np.where(inside, which, -1)

    def ends(self, k: int) -> tuple[float, float]:
        """Both ends of one gap, as Python's floats."""
        return float(self.low[k]), float(self.high[k])


@dataclass(frozen=True)
class Crossings:
    """Solutions, one in each array position: the number of the target, the gap, and the point."""

    target: Index
    gap: Index
    point: Real


def gaps_between(pieces: list[tuple[float, float]], *, open_above: bool = True) -> Gaps:
    """The gaps between closed pieces, which may overlap; ``open_above`` if the last gap reaches to infinity."""
    ordered = sorted(pieces)
    low, high = [-np.inf], list[float]()
    last = ordered[0][0]
    size = max(abs(end) for piece in ordered for end in piece)
    for left, right in ordered:
        # gaps narrower than this share of the whole law are taken as closed: an end at zero is rarely known better
        if not high or left - last > max(1e-30 * size, FEWEST * float(np.spacing(max(abs(left), abs(last))))):
            high.append(left)
            low.append(right)
        last = max(last, right)
        low[-1] = last
    high.append(np.inf)
    kept = slice(None) if open_above else slice(-1)
    return Gaps(np.array(low[kept]), np.array(high[kept]))


def crossings(function: Function, gaps: Gaps, limits: Real, targets: Real, reach: Real) -> Crossings:
    """All points of all gaps at which the function takes one of the values."""
    above, below = limits
    target, gap = np.nonzero((targets[:, None] < above) & (targets[:, None] > below))
    if not len(target):
        return Crossings(target, gap, np.empty(0))
    low, high, value = gaps.low[gap], gaps.high[gap], targets[target]
    bounded = np.isfinite(low) & np.isfinite(high)
    span = reach[target]
    span[bounded] = (high[bounded] - low[bounded]) / 2
    beyond = np.isfinite(low)  # the solution is sought from the lower end
    if bounded.any():
        beyond[bounded] = function(low[bounded] + span[bounded])[0] < value[bounded]
    start, sign = np.where(beyond, low, high), np.where(beyond, 1.0, -1.0)
    return Crossings(target, gap, _solve(function, start, sign, span, value))


def _solve(function: Function, start: Real, sign: Real, span: Real, value: Real) -> Real:
    """Newton's method in the logarithm of the distance to ``start``, kept in a bracket that is halved now and then."""
    # there the logarithm of the function is nearly linear, next to atoms and far out
    low, high = np.full(start.shape, CLOSEST), np.full(start.shape, 1e-9)
    t = np.full(start.shape, -1.0)
    active = np.arange(len(start))
    # one step in four halves the bracket, so that a hundred halvings fit
    for step in range(400):
        low_, high_, now, way, target = low[active], high[active], t[active], sign[active], value[active]
        distance = span[active] * np.exp(now)
        point = start[active] + way * distance
        found, slope = function(point)
        # a point that rounds to an atom or a hard edge is too close to it, and soft edges have finite values
        too_near = ~np.isfinite(found) | (way * (found - target) > 0)
        low_, high_ = np.where(too_near, now, low_), np.where(too_near, high_, now)
        with np.errstate(all="ignore"):
            quotient = found / target
            change = np.where(quotient > 0, np.log(quotient) * found, found - target) / (-way * slope * distance)
        moved = now + change
        halve = ~((moved > low_) & (moved < high_)) if step % 4 < 3 else np.full(now.shape, fill_value=True)
        # an end says nothing of its neighbourhood, and where the slope is infinite Newton's method stands still
        change[(point == start[active]) | ~np.isfinite(slope)] = np.nan
        settled = (
            _is_settled(now, change, point, distance)
            | (found == target)
            | (high_ - low_ <= 4 * EPS * np.maximum(-low_, 1))
        )
        t[active] = np.where(settled, now, np.where(halve, (low_ + high_) / 2, moved))
        low[active], high[active] = low_, high_
        active = active[~settled]
        if not len(active):
            return start + sign * span * np.exp(t)
    raise UnresolvedError(f"the outliers next to {start[active].tolist()} did not converge")


def _is_settled(now: Real, change: Real, point: Real, distance: Real) -> BoolArray:
    """Whether the next step of Newton's method moves the point by less than its rounding."""
    with np.errstate(invalid="ignore"):
        moves = np.abs(change)
        small = moves <= 2 * EPS * np.maximum(np.abs(now), 1)
        return np.asarray(small | ((moves <= 1e-3) & (moves * distance <= 0.25 * np.spacing(np.abs(point)))))
