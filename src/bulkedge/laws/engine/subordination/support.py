"""The support of a free convolution, by counting: a Sturm sequence for laws.

At any real x the fixed point of the round trip proves either that x lies in the bulk, or that it lies in a gap, and
then it gives the mass to the left of x exactly. Where that mass differs between two points in gaps there is bulk
between them, however narrow; so sections of the line find every interval before any density is computed. Close to an
edge, where the multiplier is one, nothing can be proved; the edge itself is a root of two equations, which Newton's
method finds (:func:`polish`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bulkedge.laws.engine.subordination.edge_search import polish
from bulkedge.laws.engine.subordination.fixed_point import descend, real_fixed_point
from bulkedge.laws.engine.subordination.moment_check import SMALLEST_MASS, countable
from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.laws.engine.subordination.problem import Moments, Problem
from bulkedge.laws.engine.subordination.starting_points import Known, between, in_bulk
from bulkedge.laws.engine.subordination.work_budget import Account, unresolved
from bulkedge.support.arrays import EPS, Complex, Index, Mask, Real

Atoms = tuple[tuple[float, float], ...]

SECTIONS, FEWER, MANY = 16, 6, 4
"""Parts that a stretch of the line is cut into; fewer if there are more stretches than so many."""
RESOLUTION = 1e-4
"""Sections stop at this fraction of x and Newton's method takes over; if it fails, at a hundredth of that, and on."""
GRADUAL = 1e-6
"""How much closer to zero sections on both sides of it come in each round, if not at once."""
CLOSE = 1.1e-10
FINEST = 1e-12
MOST_POINTS = 20_000
FARTHEST = 1e-7
"""How far from its gap, as a fraction of x, the bulk may first be proved if no mass lies between that counts."""
MISSED = 2e-11
"""Difference between the mass of a density and that counted which tells of a gap that was overlooked."""


@dataclass
class Survey:
    """What is known of the line, at points from left to right.

    Attributes
    ----------
    operation : Problem
        The law, as a fixed-point problem of d variables.
    step : callable
        Its self-map, with an account of the work done
        (:class:`~bulkedge.laws.engine.subordination.work_budget.Account`).
    atoms : tuple
        Its atoms, which the counts of mass include and ``mass`` does not.
    x : array of shape (n,)
        The points, increasing.
    mass : array of shape (n,)
        Mass of the continuous part to the left of each point in a gap; nan for points in the bulk.
    state : array of shape (d, n)
        The fixed points; real in gaps, nan at zero where a positive law was not examined.
    resolution : float
        Relative distance at which two neighbours that differ count as close.
    stuck : set
        Pairs of neighbours between which nothing could be proved any more: an edge within rounding error.
    polished : dict
        The edges between pairs of neighbours, the one in a gap first, and whether they were found.
    light : bool
        Whether islands count that are seen in the variance alone, however little mass they have.
    proofs : dict
        What was found at the last points since another was added: a density that fails there has them examined again.
    rounds : int
        How often the mass of the density was compared with the counts.
    """

    operation: Problem
    step: Step
    atoms: Atoms
    x: Real
    mass: Real
    state: Complex
    resolution: float = RESOLUTION
    stuck: set[tuple[float, float]] = field(default_factory=set)
    polished: dict[tuple[float, float], tuple[float, bool]] = field(default_factory=dict)
    light: bool = False
    rounds: int = 0
    proofs: dict[float, tuple[Complex, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, operation: Problem, atoms: Atoms, account: Account) -> Survey:
        """Survey the line between the bounds of the operation, until every edge is known roughly."""
        low, high = operation.bounds()
        margin, none = (high - low) * operation.margin, np.zeros((operation.size, 0), dtype=complex)
        survey = cls(operation, account.metered(operation), atoms, np.zeros(0), np.zeros(0), none)
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
    def inside(self) -> Mask:
        """Which known points lie in the bulk."""
        return np.isnan(self.mass)

    @cached_property
    def _moments(self) -> Moments | None:
        return self.operation.moments()

    @property
    def hidden(self) -> Mask:
        """Between which neighbours in gaps there is mass that counts, so many as points less one."""
        smallest = self.countable(self.x)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(np.diff(self.mass)) > np.minimum(smallest[1:], smallest[:-1]))

    def countable(self, x: Real) -> Real:
        """The least mass that counts at points of the line (:func:`countable`)."""
        return countable(self._moments if self.light else None, x)

    def examine(self, x: Real) -> None:
        """Prove for each x on which side it lies, and remember it.

        Too close to an edge nothing can be proved: such points are left out, and sections go on around them.
        """
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

    def prove(self, x: Real) -> tuple[Complex, Mask]:
        """Fixed points from the nearest known one of either kind, or else by descent from far above the axis."""
        if len(x) and self.proofs.keys() >= set(x.tolist()):
            states, proved = zip(*(self.proofs[place] for place in x.tolist()), strict=True)
            return np.stack(states, axis=1), np.array(proved)
        known = Known(self.x, self.state, self.inside)
        if len(self.x):
            state, decided = known.lead_to(x, self.step)
        else:
            # beyond the bounds the variables are nearly those of far away
            state, decided = real_fixed_point(self.step, x, self.operation.far(x + 0j))
        if not known.inside.any() and np.sum(~decided) > 1:
            first = np.flatnonzero(~decided)[-1:]
            state[:, first], decided[first] = descend(self.step, x[first], self.operation.far)
        self._led_on(known, x, state, decided)
        left = np.flatnonzero(~decided)
        if len(left):
            state[:, left], decided[left] = descend(self.step, x[left], self.operation.far, known.above(x[left]))
        self.proofs = dict(zip(x.tolist(), zip(state.T, decided.tolist(), strict=True), strict=True))
        return state, decided

    def _led_on(self, known: Known, x: Real, state: Complex, decided: Mask) -> None:
        """Prove more points of the bulk from those just proved, as long as these are nearer than what led before.

        ``state`` of shape (size, n) and ``decided`` of shape (n,) are changed in place.
        """
        before = known.inside_distance(x)
        while not decided.all():
            inside = decided & np.all(state.imag > 0, axis=0)
            fresh = Known.sorted(x[inside], state[:, inside])
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
        finest, reach = 0.0 if self.operation.graded else FINEST * size, np.maximum(np.abs(low), np.abs(high))
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
        return np.concatenate([between(a, b, parts, self._bottom(a, b)) for a, b in fresh]) if fresh else np.zeros(0)

    def _bottom(self, low: float, high: float) -> float | None:
        """How close to zero new points may be; None if that makes no difference."""
        if not self.operation.graded:
            return None
        gradual = low < 0 < high and not self.operation.at_once
        return max(self.operation.smallest * float(np.ptp(self.x)), GRADUAL * min(-low, high) if gradual else 0.0)

    def edges(self) -> list[tuple[float, float]]:
        """The bulk: runs of inside points, from edge to edge.

        Where Newton's method finds no edge between two neighbours, their distance is refined to 1e-10 of x, and the
        neighbour in the gap stands for it. That happens where a wide law meets a very narrow one: the square root in
        which its density ends is then narrower than that, and without mass.
        """
        while True:
            low, high = self.runs()
            outer, inner = np.append(low, high), np.append(low + 1, high - 1)
            ends, resolved = self._polished(outer, inner)
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

    def _polished(self, outer: Index, inner: Index) -> tuple[Real, Mask]:
        """The edges between neighbours, and which of them were found; those of pairs seen before are remembered."""
        pairs = list(zip(self.x[outer].tolist(), self.x[inner].tolist(), strict=True))
        fresh = np.array([k for k, pair in enumerate(pairs) if pair not in self.polished], dtype=np.intp)
        if len(fresh):
            new = outer[fresh]
            found = polish(self.step, self.x[new], self.state[:, new].real, self.x[inner[fresh]])
            for k, end, success in zip(fresh.tolist(), *(each.tolist() for each in found), strict=True):
                self.polished[pairs[k]] = end, success
        known = [self.polished[pair] for pair in pairs]
        return np.array([end for end, _ in known]), np.array([success for _, success in known], dtype=bool)

    def runs(self) -> tuple[Index, Index]:
        """Numbers of the points in gaps before and after each run of points inside."""
        change = np.diff(self.inside.astype(int))
        return np.flatnonzero(change == 1), np.flatnonzero(change == -1) + 1

    def _sharpen(self, kept: Index, brought: Index) -> None:
        """Bring some neighbours that differ closer together, up to the resolution, and keep others where they are.

        Both are given by the number of the left one of the two.
        """
        self.stuck |= set(zip(self.x[kept].tolist(), self.x[kept + 1].tolist(), strict=True))
        self.stuck -= set(zip(self.x[brought].tolist(), self.x[brought + 1].tolist(), strict=True))
        self.refine()

    def _massless(self, outer: Index, inner: Index) -> Mask:
        """Which neighbours are as close as proofs reach, and have no mass between them that counts.

        Where the density of an operand starts slowly, or is known to fewer digits, nothing is proved within 1e-8 of the
        edge. From there the density increases inwards, so its value at the inner neighbour bounds the mass.
        """
        distance = np.abs(self.x[outer] - self.x[inner])
        density = np.abs(self.operation.cauchy(self.state[:, inner], self.x[inner]).imag) / np.pi
        close = (distance <= FARTHEST * np.abs(self.x[inner])) | self._at_zero(outer, inner)
        return close & (distance * density <= SMALLEST_MASS)

    def _at_zero(self, outer: Index, inner: Index) -> Mask:
        """Which edges of a positive law are at zero as far as proofs reach: its density may vanish there."""
        if not self.operation.positive or self.operation.edge_at_zero() is None:
            return np.zeros(len(outer), dtype=bool)
        return (self.x[outer] < self.x[inner]) & (self.x[inner] <= FARTHEST * self.x[-1])

    def complete(self, masses: Real) -> bool:
        """Look closer where the mass of an interval's density is not that counted in the gaps beside it.

        They differ where an edge is that of another interval: in between is a gap that no point has shown yet.
        """
        low, high = self.runs()
        right = np.abs(self.mass[high] - self.mass[low] - masses) <= MISSED
        self.rounds += 1
        if right.all() or RESOLUTION * 100.0**-self.rounds < CLOSE:
            return True
        self.resolution = RESOLUTION * 100.0**-self.rounds
        self._sharpen(np.append(low[right], high[right] - 1), np.append(low[~right], high[~right] - 1))
        return False
