"""The support of a free convolution, by counting: a Sturm sequence for laws.

At any real x the fixed point of the round trip proves either that x lies in the bulk, or that it lies in a gap, and
then it gives the mass to the left of x exactly. Where that mass differs between two points in gaps there is bulk
between them, however narrow; so sections of the line find every interval before any density is computed. Close to an
edge, where the multiplier is one, nothing can be proved; the edge itself is a root of two equations, which Newton's
method finds (:func:`polish`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bulkedge.arrays import EPS, Complex, Mask, Real
from bulkedge.errors import UnresolvedError
from bulkedge.laws.engine.critical import polish
from bulkedge.laws.engine.curve import Curve
from bulkedge.laws.engine.edges import Edge, Interval
from bulkedge.laws.engine.fixed_point import BranchError, Step, bulk_fixed_point, descend, real_fixed_point
from bulkedge.laws.engine.panels import Density, fit
from bulkedge.laws.engine.subordination import Problem

Atoms = tuple[tuple[float, float], ...]

SECTIONS, FEWER, MANY = 16, 6, 4
"""Parts that a stretch of the line is cut into; fewer if there are more stretches than so many."""
RESOLUTION = 1e-4
"""Sections stop at this fraction of x and Newton's method takes over; if it fails, at a hundredth of that, and on."""
CLOSE = 1.1e-10
FINEST = 1e-12
MOST_POINTS = 20_000
MOST_WORK = 5.0
"""Units of :meth:`Problem.work` that a law may cost: about seconds, but counted, so that results do not depend on the
machine."""
REMEDY = "move the parameters a little, or replace a law by EmpiricalLaw(law.ppf((arange(n) + 0.5)/n)), n about 100"
SMALLEST_MASS = 1e-11
"""Mass between two gaps that counts as none."""


@dataclass
class Survey:
    """What is known of the line, at points from left to right.

    Attributes
    ----------
    operation : Problem
        The law, as a fixed-point problem of d variables.
    step : callable
        Its self-map, with an account of the work done (:func:`metered`).
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
    slivers : list
        Pairs of neighbours, the one in a gap first, between which an edge lies that was not found.
    """

    operation: Problem
    step: Step
    atoms: Atoms
    x: Real
    mass: Real
    state: Complex
    resolution: float = RESOLUTION
    stuck: set[tuple[float, float]] = field(default_factory=set)
    slivers: list[list[float]] = field(default_factory=list)

    @classmethod
    def of(cls, operation: Problem, atoms: Atoms) -> Survey:
        """Survey the line between the bounds of the operation, until every edge is known roughly.

        Parameters
        ----------
        operation : Problem
            The law, as a fixed-point problem.
        atoms : tuple of (location, mass)
            Its atoms.

        Returns
        -------
        Survey
            With a point in each interval of the bulk, and points in the gaps on both sides of it.
        """
        low, high = operation.bounds()
        margin = (high - low) / 8
        survey = cls(
            operation, metered(operation), atoms, np.zeros(0), np.zeros(0), np.zeros((operation.size, 0), dtype=complex)
        )
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

    def examine(self, x: Real) -> None:
        """Prove for each x on which side it lies, and remember it.

        Too close to an edge nothing can be proved: such points are left out, and sections go on around them.

        Parameters
        ----------
        x : array of shape (n,)
            New points, in any order.
        """
        state, decided = self.prove(x)
        x, state = x[decided], state[:, decided]
        real = np.all(state.imag == 0, axis=0)
        mass = np.full(len(x), np.nan)
        mass[real] = self.operation.count(state[:, real].real, x[real])
        for place, weight in self.atoms:
            mass[real & (x > place)] -= weight
        self._add(x, mass, state)

    def _add(self, x: Real, mass: Real, state: Complex) -> None:
        order = np.argsort(np.append(self.x, x), kind="stable")
        self.x, self.mass = np.append(self.x, x)[order], np.append(self.mass, mass)[order]
        self.state = np.concatenate([self.state, state], axis=1)[:, order]

    def prove(self, x: Real) -> tuple[Complex, Mask]:
        """Fixed points from the nearest known one of either kind, or else by descent from far above the axis.

        Parameters
        ----------
        x : array of shape (n,)
            Points of the line.

        Returns
        -------
        state : array of shape (size, n)
            The fixed points: real in gaps.
        decided : array of shape (n,)
            Where there is a proof.
        """
        step, size = self.step, self.operation.size
        state, pending = np.zeros((size, len(x)), dtype=complex), np.arange(len(x))
        finite = np.isfinite(self.state[0])
        for kind, search in ((~self.inside & finite, real_fixed_point), (self.inside, bulk_fixed_point)):
            if kind.any() and len(pending):
                nearest = np.abs(np.where(kind, self.x, np.inf)[:, None] - x[pending]).argmin(axis=0)
                found, proved = search(step, x[pending], self.state[:, nearest])
                state[:, pending[proved]] = found[:, proved]
                pending = pending[~proved]
        if len(pending):
            state[:, pending], proved = descend(step, x[pending], self.operation.far)
            pending = pending[~proved]
        return state, np.isin(np.arange(len(x)), pending, invert=True)

    def _sections(self) -> Real:
        """New points between neighbours that differ: in kind, or in the mass to their left."""
        inside = self.inside
        with np.errstate(invalid="ignore"):
            differ = (inside[1:] != inside[:-1]) | (np.abs(np.diff(self.mass)) > SMALLEST_MASS)
        low, high, size = self.x[:-1], self.x[1:], float(np.ptp(self.x))
        finest = 0.0 if self.operation.positive else FINEST * size
        wide = high - low > np.maximum(self.resolution * np.maximum(np.abs(low), np.abs(high)), finest)
        if self.operation.positive:
            wide &= high > 2 * self.operation.smallest * size
        pairs = set(zip(low[differ & wide].tolist(), high[differ & wide].tolist(), strict=True))
        fresh = sorted(pairs - self.stuck)
        # a pair that is still there the next time has no point between that could be decided
        self.stuck |= pairs
        # few points a round where there are many pairs, many where rounds and not points are what costs
        parts = SECTIONS if len(fresh) <= MANY else FEWER
        return np.concatenate([self._between(a, b, parts) for a, b in fresh]) if fresh else np.zeros(0)

    def _between(self, low: float, high: float, count: int) -> Real:
        # unequal parts, so that no point falls on an atom by symmetry
        parts = (np.arange(1, count) - 0.1618) / count
        if self.operation.positive and high > 8 * low:
            bottom = max(low, self.operation.smallest * self.x[-1])
            return np.asarray(bottom * (high / bottom) ** parts)
        return np.asarray(low + (high - low) * parts)

    def edges(self) -> list[tuple[float, float]]:
        """The bulk: runs of inside points, from edge to edge.

        Where Newton's method finds no edge between two neighbours, their distance is refined to 1e-10 of x, and the
        neighbour in the gap stands for it (:attr:`slivers`). That happens where a wide law meets a very narrow one: the
        square root in which its density ends is then narrower than that, and without mass.
        """
        while True:
            change = np.diff(self.inside.astype(int))
            low, high = np.nonzero(change == 1)[0], np.nonzero(change == -1)[0] + 1
            outer, inner = np.append(low, high), np.append(low + 1, high - 1)
            ends, resolved = polish(self.step, self.x[outer], self.state[:, outer].real, self.x[inner])
            # one side of zero may be bulk and the other a gap: a touching edge, and no critical point
            if self.operation.edge_at_zero() is not None:
                across = self.x[outer] * self.x[inner] < 0
                ends, resolved = np.where(across, 0.0, ends), resolved | across
            near = np.abs(self.x[outer] - self.x[inner]) <= CLOSE * np.abs(self.x[inner])
            if np.all(resolved | near):
                ends = np.where(resolved, ends, self.x[outer])
                self.slivers = np.stack([self.x[outer], self.x[inner]], axis=1)[~resolved].tolist()
                if not self.operation.positive:
                    ends = np.where(np.abs(ends) < 4 * EPS * np.ptp(self.x), 0.0, ends)
                return list(zip(ends[: len(low)].tolist(), ends[len(low) :].tolist(), strict=True))
            if self.resolution < CLOSE:
                raise unresolved(self.operation, "the edges were not resolved", self.x[outer][~resolved])
            pairs = np.sort([self.x[outer], self.x[inner]], axis=0).T
            self.stuck |= {(first, last) for first, last in pairs[resolved].tolist()}
            self.resolution /= 100
            self.refine()


def bulk_of(operation: Problem, atoms: Atoms) -> tuple[list[Interval], Density] | None:
    """The bulk of a free convolution; see :func:`_bulk_of`, in which trial points may overflow.

    Parameters
    ----------
    operation : Problem
        The law, as a fixed-point problem.
    atoms : tuple of (location, mass)
        Its atoms.

    Returns
    -------
    tuple or None
        The intervals, as pairs of edges, and the density between them; None if the law has atoms alone.

    Raises
    ------
    BranchError
        If the support was not resolved.
    """
    with np.errstate(all="ignore"):
        return _bulk_of(operation, atoms)


def _bulk_of(operation: Problem, atoms: Atoms) -> tuple[list[Interval], Density] | None:
    """The bulk of a free convolution: the support by counting, then the curve above it.

    A gap too narrow for the first sections shows itself when the density is resolved: some point of it has no solution
    above.
    """
    survey = Survey.of(operation, atoms)
    error_at: Real = np.zeros(0)
    for _ in range(20):
        ends = survey.edges()
        if not ends:
            return None
        inside = survey.inside
        curve = Curve(survey.step, operation.cauchy, survey.x[inside], survey.state[:, inside], operation.far)
        density = _remembering(_ending(_kept_from_zero(operation, curve.density), survey.slivers))
        try:
            kinds = cut([_kinds(operation, curve, low, high) for low, high in ends], operation.edge_at_zero())
            fit(kinds, density)
        except BranchError as error:
            error_at = error.x
            survey.examine(error.x)
            survey.refine()
        else:
            return kinds, density
    raise unresolved(operation, "the density between the edges has no solution above", error_at)


def metered(operation: Problem) -> Step:
    """The self-map, which raises when more work has been done than a law may cost.

    Parameters
    ----------
    operation : Problem
        The law, as a fixed-point problem.

    Returns
    -------
    callable
        ``operation.step``, which counts :meth:`Problem.work`; each call of this function starts an account of its own.
    """
    spent = 0.0

    def step(u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        nonlocal spent
        spent += operation.work(len(z))
        if spent > MOST_WORK:
            raise UnresolvedError(f"{operation!r}: its bulk takes more work than {MOST_WORK:g} units; {REMEDY}")
        return operation.step(u, z)

    return step


def unresolved(operation: Problem, what: str, x: Real) -> BranchError:
    """The error to raise: what was being resolved, and what can be done about it.

    Parameters
    ----------
    operation : Problem
        The law, as a fixed-point problem.
    what : str
        What was not reached: ``"the edges were not resolved"``.
    x : array of shape (n,)
        Where.

    Returns
    -------
    BranchError
        To be raised by the caller.
    """
    return BranchError(f"{operation!r}: {what}; {REMEDY}", x)


def _kept_from_zero(operation: Problem, density: Density) -> Density:
    """The same density, constant next to zero where it is finite there and in the bulk of a product.

    There x is real to leading order in the variables, and their height above the axis is lost in rounding; the density
    is not constant by ``x log x`` over a stretch that holds a mass of 1e-10.
    """
    if not operation.flat_at_zero:
        return density
    nearest = CLOSE * float(np.ptp(operation.bounds()))

    def kept(x: Real) -> tuple[Real, Real]:
        return density(np.copysign(np.maximum(np.abs(x), nearest), x))

    return kept


def _ending(density: Density, slivers: list[list[float]]) -> Density:
    """The same density, continued as a square root between a known point of the bulk and the edge next to it."""

    def continued(x: Real) -> tuple[Real, Real]:
        inner, factor = x.copy(), np.ones(len(x))
        for edge, point in slivers:
            between = (x - edge) * (x - point) <= 0
            inner[between], factor[between] = point, np.sqrt((x[between] - edge) / (point - edge))
        value, error = density(inner)
        return factor * value, factor * error

    return continued if slivers else density


def _remembering(density: Density) -> Density:
    """The same density, which remembers its values.

    A density is fitted twice, here to see whether it can be and later by the law, at the same points in the same order.
    """
    known: dict[bytes, tuple[Real, Real]] = {}

    def remembered(x: Real) -> tuple[Real, Real]:
        key = x.tobytes()
        if key not in known:
            # trial points of Newton's method may be anything; what comes out of it is checked
            with np.errstate(all="ignore"):
                known[key] = density(x)
        return known[key]

    return remembered


def _kinds(operation: Problem, curve: Curve, low: float, high: float) -> Interval:
    """The types of two edges: as the operation knows them, or from the slope of the density there."""
    left, right = (_kind(operation, curve, place, sign * (high - low)) for place, sign in ((low, 1), (high, -1)))
    return left, right


def cut(intervals: list[Interval], zero: Edge | None) -> list[Interval]:
    """The same intervals, the one that contains zero cut there: products are singular at zero also in their bulk.

    Parameters
    ----------
    intervals : list of pairs of Edge
        Left and right edge of each interval.
    zero : Edge, optional
        How the density behaves at zero; None if it is analytic there.

    Returns
    -------
    list of pairs of Edge
        One more than before where zero lies inside.
    """
    if zero is None:
        return intervals
    result = []
    for left, right in intervals:
        inside = left.location < 0 < right.location
        result += [(left, zero), (zero, right)] if inside else [(left, right)]
    return result


def _kind(operation: Problem, curve: Curve, place: float, length: float) -> Edge:
    known = operation.edge_at_zero() if place == 0 else None
    if known is not None:
        return known
    # as close to the edge as its rounding lets the slope be seen: further away another law may shine through
    close = max(1e-9 * abs(length), 1e5 * EPS * abs(place))
    density, _ = curve.density(place + np.copysign(min(close, 1e-4 * abs(length)), length) * np.array([1.0, 0.1]))
    slope = float(-np.diff(np.log(density))[0] / np.log(10))
    kinds = [Edge.soft(place), Edge.hard(place), Edge.cusp(place), Edge.cusp(place, -1 / 3), Edge.plain(place)]
    nearest = min(kinds, key=lambda kind: abs(kind.exponent - slope))
    if abs(nearest.exponent - slope) < 0.05:
        return nearest
    # away from zero an edge is a critical point of the map, and its density a square root at last
    return Edge.plain(place, order=2) if place == 0 else Edge.soft(place)
