"""The support of a free convolution, by counting: a Sturm sequence for laws.

At any real x the fixed point of the round trip proves either that x lies in the bulk, or that it lies in a gap, and
then it gives the mass to the left of x exactly. Where that mass differs between two points in gaps there is bulk
between them, however narrow; so sections of the line find every interval before any density is computed. Close to an
edge, where the multiplier is one, nothing can be proved; the edge itself is a root of two equations, which Newton's
method finds (:func:`find_edges`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from bulkedge.laws.engine.subordination.fixed_point import (
    STRIKES,
    TRIES,
    SelfMap,
    bulk_fixed_point,
    descend,
    real_fixed_point,
    spectral_radius,
)
from bulkedge.laws.engine.subordination.problem import (
    SMALLEST_MASS,
    Problem,
    RequiredMoments,
    WorkBudget,
    least_mass,
    unresolved,
)
from bulkedge.support.arrays import EPS, BoolArray, Complex, Index, Real

REAL = 1e-12  # imaginary parts below this fraction are rounding: the operands are evaluated outside their bulk
RISE = 1e-9
"""Complex steps, relative to the variables: large enough to stand above the rounding error that transforms of
continuous laws leave in their imaginary parts."""
BENT, SHORTENINGS = 1e-3, 5
"""How much a function may change beside its derivative along a complex step; how often the step is shortened if not."""
in_bulk = partial(bulk_fixed_point, iterations=TRIES)
SECTIONS, FEWER, MANY = 16, 6, 4
"""Parts that a stretch of the line is cut into; fewer if there are more stretches than so many."""
RESOLUTION = 1e-4
"""Sections stop at this fraction of x and Newton's method takes over; if it fails, at a hundredth of that, and on."""
CLOSE = 1.1e-10
MOST_POINTS = 20_000
FARTHEST = 1e-7
"""How far from its gap, as a fraction of x, the bulk may first be proved if no mass lies between that counts."""


def find_edges(step: SelfMap, x: Real, state: Real, bulk: Real) -> tuple[Real, BoolArray]:
    """Newton's method for the edges between points in gaps and their neighbours in the bulk."""
    # an edge is a fixed point with det(1 - Jacobian) = 0; derivatives are complex steps, as all is analytic and real
    at_zero = ~np.isfinite(state[0])
    start = np.concatenate([state, x[None]])[:, ~at_zero]
    current = start.copy()
    for _ in range(15):
        with np.errstate(all="ignore"):
            residual, matrix = _edge_equations(step, current)
            # where an edge is a joint atom of the two laws, the transforms are infinite on arrival
            # (the determinant of the very matrix that is solved with: its transpose may be regular by rounding alone)
            stacked = np.moveaxis(matrix, -1, 0)
            regular, delta = np.linalg.det(stacked) != 0, np.zeros_like(current)
            solution = np.linalg.solve(stacked[regular], -residual.T[regular, :, None])
        delta[:, regular] = np.nan_to_num(solution[:, :, 0].T, nan=0.0, posinf=0.0, neginf=0.0)
        current = current + delta
        # steps of this size are followed by steps of the size of rounding
        if np.all(np.abs(delta) <= 1e-11 * np.abs(current)):
            break
    # x is stationary along the curve of fixed points: an error of the variables enters it squared
    moved = np.abs(current - start)[:-1]
    settled = np.all(np.abs(delta[:-1]) <= 1e-5 * moved + 1e-10 * np.abs(current[:-1]), axis=0)
    ends, resolved = np.zeros(len(x)), np.ones(len(x), dtype=bool)
    ends[~at_zero] = current[-1]
    between = (ends - x) * (ends - bulk) <= 1e-9 * (x - bulk) ** 2 + 64 * EPS * np.abs(x) * np.abs(x - bulk)
    resolved[~at_zero] = settled & between[~at_zero] & _bounded(current[0], start[0], start[-1])
    with np.errstate(all="ignore"):
        left = np.flatnonzero(~resolved)
        if len(left):
            ends[left], resolved[left] = _bracket_edges(step, x[left], state[:, left], bulk[left])
    return ends, resolved


def _bracket_edges(step: SelfMap, x: Real, state: Real, bulk: Real) -> tuple[Real, BoolArray]:
    """The edges between points x in gaps and neighbours in the bulk, by secants within brackets; and successes."""
    # with a narrow and a wide law Newton's method steps over both edges. On the curve of fixed points, the slope of x
    # in the first variable falls to zero at the edge: slope times bracket bounds what is missing in x. Secants go nine
    # tenths of the way, not to step over, and at last twice as far; all edges go at once
    good, tangent, _, _ = _on_curve(step, np.concatenate([state, x[None]]))
    length, limit, proved = (bulk - x) / tangent[-1], np.full(len(x), np.inf), np.zeros(len(x), dtype=bool)
    failed = np.zeros(len(x), dtype=bool)
    active = np.flatnonzero(np.isfinite(length) & (tangent[-1] != 0))
    for _ in range(200):
        bracket = np.abs(tangent[-1] * np.where(failed, np.minimum(np.abs(length), limit), limit))
        missing = (bracket > EPS / 4 * np.abs(good[-1])) & (good[0] + length != good[0])
        active = active[missing[active]]
        if not len(active):
            break
        slope, ahead = tangent[-1, active], good[:, active] + 0.0
        ahead[0] += length[active]
        ahead[1:] += tangent[:, active] * length[active]
        found, found_tangent, past, lifted = _on_curve(step, ahead)
        short = (found[-1] - bulk[active]) * (x[active] - bulk[active]) > 0
        fine = ~past & ~lifted & short & (found_tangent[-1] * slope > 0)
        failed[active], proved[active[~fine]] = ~fine, (past | lifted)[~fine]
        limit[active[past]] = np.abs(length[active[past]])
        length[active[~fine]] /= 4
        # the secant through the last two slopes vanishes so much further on
        on, steep, flat, moved = active[fine], slope[fine], found_tangent[-1, fine], length[active[fine]]
        rest = np.where(np.abs(flat) < np.abs(steep), np.abs(moved * flat / (steep - flat)), np.inf)
        limit[on] = np.maximum(limit[on] - np.abs(moved), 0.0)
        good[:, on], tangent[:, on] = found[:, fine], found_tangent[:, fine]
        # once what is missing is less than rounding, a step beyond is the proof
        last = np.abs(flat * rest) <= EPS / 16 * np.abs(good[-1, on])
        size = np.minimum(np.where(last, 2.0, 0.9) * rest, 4 * np.abs(moved))
        size = np.where(last, np.maximum(size, 4 * EPS * np.abs(good[0, on])), np.minimum(size, limit[on] / 2))
        length[on] = np.copysign(size, moved)
    between = (good[-1] - x) * (good[-1] - bulk) <= 0
    # where no step at all succeeded, nothing is known of an edge
    proved &= good[0] != state[0]
    return np.where(np.isfinite(good[-1]), good[-1], x), proved & between & _bounded(good[0], state[0], x)


def _bounded(variable: Real, start: Real, x: Real) -> BoolArray:
    """Whether the first variable at an edge has the size it had in the gap, or x: else the edge is beyond infinity."""
    return np.asarray(np.abs(variable) <= 1e4 * (np.abs(start) + np.abs(x)))


def _on_curve(step: SelfMap, start: Real) -> tuple[Real, Real, BoolArray, BoolArray]:
    """The fixed points whose first variable is given, from nearby, by Newton's method with secants in x."""
    unknown, active = start.copy(), np.arange(start.shape[1])
    tangent = np.full((len(start) - 1, len(active)), np.nan)
    past, met = np.zeros(len(active), dtype=bool), np.zeros(len(active), dtype=bool)
    before, strikes = np.full(len(active), np.inf), np.zeros(len(active), dtype=int)
    one = np.eye(len(start) - 1)[:, :, None]
    shift, jacobian, error = step(unknown[:-1] + 0j, unknown[-1] + 0j)
    in_x = _slope_in_x(step, unknown, shift.real, error)
    while True:
        finite = np.all(np.isfinite(jacobian), axis=(0, 1)) & np.all(np.isfinite(shift), axis=0)
        lifted = np.any(np.abs(shift.imag) > REAL * np.abs(unknown[:-1, active]), axis=0)
        lifted |= np.any(jacobian.imag**2 > REAL, axis=(0, 1))
        met[active[finite & lifted]] = True
        kept = finite & ~lifted & (strikes[active] <= STRIKES)
        active, in_x, error = active[kept], in_x[:, kept], error[:, kept]
        shift, jacobian = shift[:, kept], jacobian[..., kept]
        # columns: the derivatives of T(u) - u in each variable, and in x; the first is to be balanced by the others
        columns = np.concatenate([jacobian.real - one, in_x[:, None]], axis=1)
        delta, balance = _both_solved(columns[:, 1:], -shift.real, -columns[:, 0])
        unknown[1:, active] += delta
        # steps that no longer shrink are rounding
        rounding = np.where(strikes[active] > 1, 64 * EPS, 4 * EPS)
        settled = (np.abs(delta) <= rounding * np.abs(unknown[1:, active])) | (np.abs(shift) <= error)
        done = np.all(settled, axis=0) & np.isfinite(balance[-1])
        tangent[:, active[done]], past[active[done]] = balance[:, done], spectral_radius(jacobian[..., done]) >= 1
        active, delta, old, in_x = active[~done], delta[:, ~done], shift.real[:, ~done], in_x[:, ~done]
        if not len(active):
            return unknown, tangent, past, met
        shift, jacobian, error = step(unknown[:-1, active] + 0j, unknown[-1, active] + 0j)
        others = np.einsum("ijn,jn->in", (jacobian.real - one)[:, 1:], delta[:-1])
        secant = (shift.real - old - others) / delta[-1]
        in_x = np.where(np.isfinite(secant), secant, in_x)
        change = np.abs(delta / unknown[1:, active]).max(axis=0)
        strikes[active] += ~(change < before[active] / 2)
        before[active] = change


def _slope_in_x(step: SelfMap, unknown: Real, shift: Real, error: Real) -> Real:
    """Derivative of ``T_x(u) - u`` in x, by a complex step, shortened where its real part shows that it is too long."""
    height = RISE * np.abs(unknown).max(axis=0)
    for _ in range(SHORTENINGS):
        risen = step(unknown[:-1] + 0j, unknown[-1] + 1j * height)[0]
        bent = np.any(np.abs(risen.real - shift) > BENT * np.abs(risen.imag) + 4 * error, axis=0)
        bent &= height > RISE * np.abs(unknown[-1])
        if not bent.any():
            break
        height = np.where(bent, np.maximum(1e-3 * height, RISE * np.abs(unknown[-1])), height)
    return np.asarray(risen.imag / height)


def _both_solved(matrix: Real, first: Real, second: Real) -> tuple[Real, Real]:
    """Solve systems ``(d, d, n)`` for two right sides ``(d, n)``; not a number where that is impossible."""
    if len(matrix) == 1:
        return first / matrix[0], second / matrix[0]
    stacked, result = np.moveaxis(matrix, -1, 0), np.full((matrix.shape[-1], len(matrix), 2), np.nan)
    regular = np.all(np.isfinite(stacked), axis=(1, 2))
    regular[regular] = np.linalg.det(stacked[regular]) != 0
    sides = np.stack([first, second], axis=-1).transpose(1, 0, 2)
    result[regular] = np.linalg.solve(stacked[regular], sides[regular])
    return result[:, :, 0].T, result[:, :, 1].T


def _edge_equations(step: SelfMap, unknown: Real) -> tuple[Real, Real]:
    """Residuals and Jacobian matrix of ``T_x(u) = u, det(1 - T_x'(u)) = 0`` in the unknowns (u, x)."""

    def equations(values: Complex) -> Complex:
        shift, jacobian, _ = step(values[:-1], values[-1])
        rest = np.eye(len(shift))[:, :, None] - jacobian
        determinant = np.linalg.det(np.moveaxis(rest, -1, 0))
        return np.concatenate([shift, determinant[None]])

    size = np.abs(unknown).max(axis=0)
    # x may be smaller than the variables by any factor
    heights = np.tile(RISE * size, (len(unknown), 1))
    heights[-1] = np.minimum(heights[-1], np.maximum(1e-3 * np.abs(unknown[-1]), 1e-4 * heights[-1]))
    # all complex steps at once, and the unknowns themselves last: axes (unknown, step, point)
    count = len(unknown)
    shifted = np.tile(unknown[:, None] + 0j, (1, count + 1, 1))
    shifted[range(count), range(count)] += 1j * heights
    values = equations(shifted.reshape(count, -1)).reshape(shifted.shape)
    return values[:, -1].real, values[:, :-1].imag / heights


class ProvedPoints(NamedTuple):
    """Points of the line with their fixed points."""

    x: Real  # (n,): the points, increasing
    state: Complex  # (d, n): the fixed points; not finite where none is known
    inside: BoolArray  # (n,): which points lie in the bulk; the others lie in gaps

    def lead_to(self, x: Real, step: SelfMap) -> tuple[Complex, BoolArray]:
        """Newton's method from the nearest known points, first from one in a gap, then from one in the bulk."""
        state, pending = np.zeros((len(self.state), len(x)), dtype=complex), np.arange(len(x))
        finite = np.isfinite(self.state[0])
        for kind, search in ((~self.inside & finite, real_fixed_point), (self.inside, in_bulk)):
            if not kind.any() or not len(pending):
                continue
            start = self.state[:, np.flatnonzero(kind)[_nearest(self.x[kind], x[pending])]]
            found, proved = search(step, x[pending], start)
            state[:, pending[proved]], pending = found[:, proved], pending[~proved]
        return state, np.isin(np.arange(len(x)), pending, invert=True)

    def above(self, x: Real) -> tuple[Real, Complex] | None:
        """Heights above new points, as far as the nearest known points of the bulk, and the fixed points of those."""
        if not self.inside.any():
            return None
        return np.maximum(self.inside_distance(x), 1e-6 * np.abs(x)), self.nearest_inside(x)

    @classmethod
    def sorted(cls, x: Real, state: Complex) -> ProvedPoints:
        """Points of the bulk, given in any order."""
        order = np.argsort(x, kind="stable")
        return cls(x[order], state[:, order], np.ones(len(x), dtype=bool))

    def inside_distance(self, x: Real) -> Real:
        """How far the nearest known points of the bulk are."""
        places = self.x[self.inside]
        return np.abs(places[_nearest(places, x)] - x) if len(places) else np.full(len(x), np.inf)

    def nearest_inside(self, x: Real) -> Complex:
        """The fixed points of the nearest known points of the bulk, of which there is at least one."""
        (inside,) = np.nonzero(self.inside)
        return self.state[:, inside[_nearest(self.x[inside], x)]]


def _nearest(places: Real, x: Real) -> Index:
    """Which of the places, in increasing order, is nearest to each x."""
    after = np.clip(np.searchsorted(places, x), 1, max(len(places) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(places) - 1)
    return np.where(np.abs(x - places[before]) <= np.abs(places[after] - x), before, after)


def section_points(low: float, high: float, count: int, bottom: float | None) -> Real:
    """Points that cut a stretch of the line into parts."""
    # unequal parts, so that no point falls on an atom by symmetry
    parts = (np.arange(1, count) - 0.1618) / count
    if bottom is None:
        return np.asarray(low + (high - low) * parts)
    if low < 0 < high:
        ends = max(-low, bottom), max(high, bottom)
        return np.concatenate([-(ends[0] ** (1 - parts)) * bottom**parts, bottom ** (1 - parts) * ends[1] ** parts])
    near, far = (low, high) if high > 0 else (high, low)
    if abs(far) <= 8 * abs(near):
        return np.asarray(low + (high - low) * parts)
    bottom = max(abs(near), bottom)
    return np.asarray(np.copysign(bottom * (abs(far) / bottom) ** parts, far))


@dataclass
class SupportSurvey:
    """What is known of the line, at points from left to right."""

    operation: Problem  # the law, as a fixed-point problem of d variables
    # its self-map, with an account of the work done (:class:`~bulkedge.laws.engine.subordination.problem.WorkBudget`)
    step: SelfMap
    atoms: tuple[tuple[float, float], ...]  # its atoms, which the counts of mass include and ``mass`` does not
    x: Real  # (n,): the points, increasing
    mass: Real  # (n,): mass of the continuous part to the left of each point in a gap; nan for points in the bulk
    state: Complex  # (d, n): the fixed points; real in gaps, nan at zero where a positive law was not examined
    resolution: float = RESOLUTION  # relative distance at which two neighbours that differ count as close
    # pairs of neighbours between which nothing could be proved any more: an edge within rounding error
    stuck: set[tuple[float, float]] = field(default_factory=set)
    # the edges between pairs of neighbours, the one in a gap first, and whether they were found
    polished: dict[tuple[float, float], tuple[float, bool]] = field(default_factory=dict)
    light: bool = False  # whether islands count that are seen in the variance alone, however little mass they have
    rounds: int = 0  # how often the mass of the density was compared with the counts
    # what was found at the last points since another was added: a density that fails there has them examined again
    proofs: dict[float, tuple[Complex, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, operation: Problem, atoms: tuple[tuple[float, float], ...], account: WorkBudget) -> SupportSurvey:
        """Survey the line between the bounds of the operation, until every edge is known roughly."""
        low, high = operation.bounds()
        # an eighth beyond the bounds a point lies in a gap for sure
        margin, none = (high - low) / 8, np.zeros((operation.size, 0), dtype=complex)
        survey = cls(operation, account.meter(operation), atoms, np.zeros(0), np.zeros(0), none)
        survey.light = operation.light_islands
        survey.examine(np.array([high + margin] if operation.positive else [low - margin, high + margin]))
        if operation.positive:
            survey._add(np.zeros(1), np.zeros(1), np.full((operation.size, 1), np.nan + 0j))
        survey.refine()
        return survey

    def refine(self) -> None:
        """Cut the line into sections until neighbours that differ are close together."""
        for _ in range(200):
            sections = self._sections()
            if not len(sections):
                return
            self.examine(sections)
            if len(self.x) > MOST_POINTS:
                break
        raise unresolved(self.operation, f"the support has more than {MOST_POINTS} points to examine", sections)

    @property
    def inside(self) -> BoolArray:
        """Which known points lie in the bulk."""
        return np.isnan(self.mass)

    @cached_property
    def _moments(self) -> RequiredMoments | None:
        return self.operation.moments()

    @property
    def hidden(self) -> BoolArray:
        """Between which neighbours in gaps there is mass that counts, as many as points minus one."""
        smallest = least_mass(self._moments if self.light else None, self.x)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(np.diff(self.mass)) > np.minimum(smallest[1:], smallest[:-1]))

    def examine(self, x: Real) -> None:
        """Prove for each x on which side it lies, and remember it; points too close to an edge are left out."""
        x = x[~np.isin(x, self.x)]
        state, decided = self.prove(x)
        x, state = x[decided], state[:, decided]
        real = np.all(state.imag == 0, axis=0)
        mass = np.full(len(x), np.nan)
        mass[real] = self.operation.count(state[:, real].real, x[real])
        for place, weight in self.atoms:
            mass[real & (x > place)] -= weight
        self._add(x, mass, state)

    def _add(self, x: Real, mass: Real, state: Complex) -> None:
        self.proofs = {}
        order = np.argsort(np.append(self.x, x), kind="stable")
        self.x, self.mass = np.append(self.x, x)[order], np.append(self.mass, mass)[order]
        self.state = np.concatenate([self.state, state], axis=1)[:, order]

    def prove(self, x: Real) -> tuple[Complex, BoolArray]:
        """Fixed points from the nearest known one of either kind, or else by descent from far above the axis."""
        if len(x) and self.proofs.keys() >= set(x.tolist()):
            states, proved = zip(*(self.proofs[place] for place in x.tolist()), strict=True)
            return np.stack(states, axis=1), np.array(proved)
        known = ProvedPoints(self.x, self.state, self.inside)
        if len(self.x):
            state, decided = known.lead_to(x, self.step)
        else:
            # beyond the bounds the variables are nearly those of far away
            state, decided = real_fixed_point(self.step, x, self.operation.far(x + 0j))
        if not known.inside.any() and np.sum(~decided) > 1:
            first = np.flatnonzero(~decided)[-1:]
            state[:, first], decided[first] = descend(self.step, x[first], self.operation.far)
        self._spread_proofs(known, x, state, decided)
        left = np.flatnonzero(~decided)
        if len(left):
            state[:, left], decided[left] = descend(self.step, x[left], self.operation.far, known.above(x[left]))
        self.proofs = dict(zip(x.tolist(), zip(state.T, decided.tolist(), strict=True), strict=True))
        return state, decided

    def _spread_proofs(self, known: ProvedPoints, x: Real, state: Complex, decided: BoolArray) -> None:
        """Prove more of the bulk, in place, as long as the points just proved are nearer than what led before."""
        before = known.inside_distance(x)
        while not decided.all():
            inside = decided & np.all(state.imag > 0, axis=0)
            fresh = ProvedPoints.sorted(x[inside], state[:, inside])
            distance = fresh.inside_distance(x)
            tried = np.flatnonzero(~decided & (distance < before))
            if not len(tried):
                return
            before = np.minimum(before, distance)
            found, proved = in_bulk(self.step, x[tried], fresh.nearest_inside(x[tried]))
            state[:, tried[proved]], decided[tried[proved]] = found[:, proved], True

    def _sections(self) -> Real:
        """New points between neighbours that differ: in kind, or in the mass to their left."""
        inside, hidden = self.inside, self.hidden
        differ = (inside[1:] != inside[:-1]) | hidden
        low, high, size = self.x[:-1], self.x[1:], float(np.ptp(self.x))
        finest, reach = 0.0 if self.operation.graded else 1e-12 * size, np.maximum(np.abs(low), np.abs(high))
        # an island between two gaps is looked for until a point of it is known, however narrow it is
        resolution = np.where(hidden, min(CLOSE, self.resolution), self.resolution)
        wide = high - low > np.maximum(resolution * reach, finest)
        if self.operation.graded:
            wide &= reach > 2 * self.operation.smallest * size
        pairs = set(zip(low[differ & wide].tolist(), high[differ & wide].tolist(), strict=True))
        fresh = sorted(pairs - self.stuck)
        # a pair that is still there the next time has no point between that could be decided
        self.stuck |= pairs
        # few points a round where there are many pairs, many where rounds and not points are what costs
        parts = SECTIONS if len(fresh) <= MANY else FEWER
        return (
            np.concatenate([section_points(a, b, parts, self._bottom(a, b)) for a, b in fresh])
            if fresh
            else np.zeros(0)
        )

    def _bottom(self, low: float, high: float) -> float | None:
        """How close to zero new points may be; None if that makes no difference."""
        if not self.operation.graded:
            return None
        gradual = low < 0 < high and not self.operation.at_once
        return max(self.operation.smallest * float(np.ptp(self.x)), 1e-6 * min(-low, high) if gradual else 0.0)

    def edges(self) -> list[tuple[float, float]]:
        """The bulk: runs of inside points, from edge to edge."""
        # where Newton's method finds no edge between neighbours, 1e-10 of x apart, the one in the gap stands for it
        while True:
            low, high = self.runs()
            outer, inner = np.append(low, high), np.append(low + 1, high - 1)
            ends, resolved = self._edges_between(outer, inner)
            # one side of zero may be bulk and the other a gap: a touching edge, and no critical point
            if self.operation.edge_at_zero() is not None:
                across = self.x[outer] * self.x[inner] < 0
                ends, resolved = np.where(across, 0.0, ends), resolved | across
            near = np.abs(self.x[outer] - self.x[inner]) <= CLOSE * np.abs(self.x[inner])
            easy = bool(np.all(resolved | near))
            if not easy and self.resolution < CLOSE:
                near |= self._massless(outer, inner)
            if np.all(resolved | near):
                # intervals that are found from now on need not be known better than the first ones
                self.resolution = RESOLUTION if easy else self.resolution
                zero = ~resolved & self._at_zero(outer, inner)
                ends = np.where(resolved, ends, np.where(zero, 0.0, self.x[outer]))
                if not self.operation.graded:
                    ends = np.where(np.abs(ends) < 4 * EPS * np.ptp(self.x), 0.0, ends)
                return list(zip(ends[: len(low)].tolist(), ends[len(low) :].tolist(), strict=True))
            if self.resolution < CLOSE:
                raise unresolved(self.operation, "the edges were not resolved", self.x[outer][~resolved])
            self.resolution /= 100
            self._sharpen(np.minimum(outer, inner)[resolved], np.minimum(outer, inner)[~resolved & ~near])

    def _edges_between(self, outer: Index, inner: Index) -> tuple[Real, BoolArray]:
        """The edges between neighbours, and which of them were found; those of pairs seen before are remembered."""
        pairs = list(zip(self.x[outer].tolist(), self.x[inner].tolist(), strict=True))
        fresh = np.array([k for k, pair in enumerate(pairs) if pair not in self.polished], dtype=np.intp)
        if len(fresh):
            new = outer[fresh]
            found = find_edges(self.step, self.x[new], self.state[:, new].real, self.x[inner[fresh]])
            for k, end, success in zip(fresh.tolist(), *(each.tolist() for each in found), strict=True):
                self.polished[pairs[k]] = end, success
        known = [self.polished[pair] for pair in pairs]
        return np.array([end for end, _ in known]), np.array([success for _, success in known], dtype=bool)

    def runs(self) -> tuple[Index, Index]:
        """Numbers of the points in gaps before and after each run of points inside."""
        change = np.diff(self.inside.astype(int))
        return np.flatnonzero(change == 1), np.flatnonzero(change == -1) + 1

    def _sharpen(self, kept: Index, brought: Index) -> None:
        """Bring some differing neighbours, by the number of the left one, closer together, and keep others."""
        self.stuck |= set(zip(self.x[kept].tolist(), self.x[kept + 1].tolist(), strict=True))
        self.stuck -= set(zip(self.x[brought].tolist(), self.x[brought + 1].tolist(), strict=True))
        self.refine()

    def _massless(self, outer: Index, inner: Index) -> BoolArray:
        """Which neighbours are as close as proofs reach, and have no mass between them that counts."""
        # nothing is proved within 1e-8 of slow edges; the density rises inwards: its inner value bounds the mass
        distance = np.abs(self.x[outer] - self.x[inner])
        density = np.abs(self.operation.cauchy(self.state[:, inner], self.x[inner]).imag) / np.pi
        close = (distance <= FARTHEST * np.abs(self.x[inner])) | self._at_zero(outer, inner)
        return close & (distance * density <= SMALLEST_MASS)

    def _at_zero(self, outer: Index, inner: Index) -> BoolArray:
        """Which edges of a positive law are at zero as far as proofs reach: its density may vanish there."""
        if not self.operation.positive or self.operation.edge_at_zero() is None:
            return np.zeros(len(outer), dtype=bool)
        return (self.x[outer] < self.x[inner]) & (self.x[inner] <= FARTHEST * self.x[-1])

    def complete(self, masses: Real) -> bool:
        """Look closer where the mass of an interval differs from that counted beside it: a gap is still to be found."""
        low, high = self.runs()
        # a larger difference shows a gap that was overlooked
        right = np.abs(self.mass[high] - self.mass[low] - masses) <= 2e-11
        self.rounds += 1
        if right.all() or RESOLUTION * 100.0**-self.rounds < CLOSE:
            return True
        self.resolution = RESOLUTION * 100.0**-self.rounds
        self._sharpen(np.append(low[right], high[right] - 1), np.append(low[~right], high[~right] - 1))
        return False
