"""The support of a free convolution, by counting: a Sturm sequence for laws.

At any real x the fixed point of the round trip proves either that x lies in the bulk, or that it lies in a gap, and
then it gives the mass to the left of x exactly. Where that mass differs between two points in gaps there is bulk
between them, however narrow; so sections of the line find every interval before any density is computed. Close to an
edge, where the multiplier is one, nothing can be proved; the edge itself is a root of two equations, which Newton's
method finds (:func:`polish`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bulkedge.arrays import EPS, Complex, Mask, Real
from bulkedge.laws.engine.curve import Curve
from bulkedge.laws.engine.edges import Edge, Interval
from bulkedge.laws.engine.fixed_point import BranchError, bulk_fixed_point, descend, real_fixed_point
from bulkedge.laws.engine.panels import Density, fit
from bulkedge.laws.engine.subordination import Problem

Atoms = tuple[tuple[float, float], ...]

SECTIONS = 16
RESOLUTION = 1e-6
"""Sections stop at this fraction of x and Newton's method takes over; if it fails, at a hundredth of that, and on."""
FINEST = 1e-12
MOST_POINTS = 20_000
SMALLEST_MASS = 1e-11
"""Mass between two gaps that counts as none."""


@dataclass
class Survey:
    """What is known of the line, at points from left to right.

    Attributes
    ----------
    operation : Problem
        The law, as a fixed-point problem of d variables.
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
    """

    operation: Problem
    atoms: Atoms
    x: Real
    mass: Real
    state: Complex
    resolution: float = RESOLUTION

    @classmethod
    def of(cls, operation: Problem, atoms: Atoms) -> Survey:
        """Survey the line between the bounds of the operation, until every edge is known roughly."""
        low, high = operation.bounds()
        margin = (high - low) / 8
        survey = cls(operation, atoms, np.zeros(0), np.zeros(0), np.zeros((operation.size, 0), dtype=complex))
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
        raise BranchError(f"the support of {self.operation!r} was not resolved", self.x)

    @property
    def inside(self) -> Mask:
        """Which known points lie in the bulk."""
        return np.isnan(self.mass)

    def examine(self, x: Real) -> None:
        """Prove for each x on which side it lies, and remember it.

        Too close to an edge nothing can be proved: such points are left out, and sections go on around them.
        """
        try:
            state = self.prove(x)
        except BranchError as undecided:
            x = x[~np.isin(x, undecided.x)]
            state = self.prove(x)
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

    def prove(self, x: Real) -> Complex:
        """Fixed points from the nearest known one of either kind, or else by descent from far above the axis."""
        step, size = self.operation.step, self.operation.size
        state, pending = np.zeros((size, len(x)), dtype=complex), np.arange(len(x))
        finite = np.isfinite(self.state[0])
        for kind, search in ((~self.inside & finite, real_fixed_point), (self.inside, bulk_fixed_point)):
            if kind.any() and len(pending):
                nearest = np.abs(np.where(kind, self.x, np.inf)[:, None] - x[pending]).argmin(axis=0)
                found, proved = search(step, x[pending], self.state[:, nearest])
                state[:, pending[proved]] = found[:, proved]
                pending = pending[~proved]
        if len(pending):
            state[:, pending] = descend(step, x[pending], size)
        return state

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
        points = [self._between(a, b) for a, b in zip(low[differ & wide], high[differ & wide], strict=True)]
        return np.concatenate(points) if points else np.zeros(0)

    def _between(self, low: float, high: float) -> Real:
        # unequal parts, so that no point falls on an atom by symmetry
        parts = (np.arange(1, SECTIONS) - 0.1618) / SECTIONS
        if self.operation.positive and high > 8 * low:
            bottom = max(low, self.operation.smallest * self.x[-1])
            return np.asarray(bottom * (high / bottom) ** parts)
        return np.asarray(low + (high - low) * parts)

    def edges(self) -> list[tuple[float, float]]:
        """The bulk: runs of inside points, from edge to edge."""
        while True:
            change = np.diff(self.inside.astype(int))
            low, high = np.nonzero(change == 1)[0], np.nonzero(change == -1)[0] + 1
            outer, inner = np.append(low, high), np.append(low + 1, high - 1)
            ends, resolved = polish(self.operation, self.x[outer], self.state[:, outer].real, self.x[inner])
            if resolved.all():
                ends = np.where(np.abs(ends) < 4 * EPS * np.ptp(self.x), 0.0, ends)
                return list(zip(ends[: len(low)].tolist(), ends[len(low) :].tolist(), strict=True))
            if self.resolution < FINEST:
                raise BranchError("the edges were not resolved", self.x[outer][~resolved])
            self.resolution /= 100
            self.refine()


def polish(operation: Problem, x: Real, state: Real, bulk: Real) -> tuple[Real, Mask]:
    """Newton's method for the edges between points in gaps and their neighbours in the bulk.

    An edge is a fixed point at which ``det(1 - Jacobian)`` vanishes. Derivatives are taken by complex steps: all
    functions involved are analytic, and real on the real axis.

    Parameters
    ----------
    operation : Problem
        The fixed-point problem, of d variables.
    x : array of shape (n,)
        Points in gaps, one next to each edge.
    state : array of shape (d, n)
        Their fixed points; not finite where x is zero, which is then taken as the edge.
    bulk : array of shape (n,)
        The neighbours in the bulk.

    Returns
    -------
    tuple of arrays of shape (n,)
        The edges, and which of them were found.
    """
    at_zero = ~np.isfinite(state[0])
    start = np.concatenate([state, x[None]])[:, ~at_zero]
    current = start.copy()
    for _ in range(15):
        with np.errstate(all="ignore"):
            residual, matrix = _edge_equations(operation, current)
            # where an edge is a joint atom of the two laws, the transforms are infinite on arrival
            regular = np.linalg.det(matrix.T) != 0
            delta = np.zeros_like(current)
            solution = np.linalg.solve(np.moveaxis(matrix, -1, 0)[regular], -residual.T[regular, :, None])
        delta[:, regular] = np.nan_to_num(solution[:, :, 0].T, nan=0.0, posinf=0.0, neginf=0.0)
        current = current + delta
    # x is stationary along the curve of fixed points: an error of the variables enters it squared
    moved = np.abs(current - start)[:-1]
    settled = np.all(np.abs(delta[:-1]) <= 1e-5 * moved + 1e-10 * np.abs(current[:-1]), axis=0)
    ends, resolved = np.zeros(len(x)), np.ones(len(x), dtype=bool)
    ends[~at_zero] = current[-1]
    between = (ends - x) * (ends - bulk) <= 1e-9 * (x - bulk) ** 2 + 64 * EPS * np.abs(x) * np.abs(x - bulk)
    resolved[~at_zero] = settled & between[~at_zero]
    return ends, resolved


def _edge_equations(operation: Problem, unknown: Real) -> tuple[Real, Real]:
    """Residuals and Jacobian matrix of ``T_x(u) = u, det(1 - T_x'(u)) = 0`` in the unknowns (u, x)."""

    def equations(values: Complex) -> Complex:
        shift, jacobian, _ = operation.step(values[:-1], values[-1])
        rest = np.eye(operation.size)[:, :, None] - jacobian
        determinant = np.linalg.det(np.moveaxis(rest, -1, 0))
        return np.concatenate([shift, determinant[None]])

    # large enough to stand above the rounding error that transforms of continuous laws leave in their imaginary parts
    height = 1e-9 * np.abs(unknown).max(axis=0)
    columns = []
    for k in range(len(unknown)):
        shifted = unknown + 0j
        shifted[k] += 1j * height
        columns.append(equations(shifted).imag / height)
    return equations(unknown + 0j).real, np.stack(columns, axis=1)


def bulk_of(operation: Problem, atoms: Atoms) -> tuple[list[Interval], Density] | None:
    """The bulk of a free convolution: the support by counting, then the curve above it.

    A gap too narrow for the first sections shows itself when the density is resolved: some point of it has no solution
    above.
    """
    survey = Survey.of(operation, atoms)
    for _ in range(20):
        ends = survey.edges()
        if not ends:
            return None
        inside = survey.inside
        curve = Curve(operation.step, operation.cauchy, survey.x[inside], survey.state[:, inside])
        density = _remembering(curve.density)
        try:
            kinds = [_kinds(operation, curve, low, high) for low, high in ends]
            fit(kinds, density)
        except BranchError as error:
            survey.examine(error.x)
            survey.refine()
        else:
            return kinds, density
    raise BranchError(f"the support of {operation!r} was not resolved", survey.x)


def _remembering(density: Density) -> Density:
    """The same density, which remembers its values.

    A density is fitted twice, here to see whether it can be and later by the law, at the same points in the same order.
    """
    known: dict[bytes, tuple[Real, Real]] = {}

    def remembered(x: Real) -> tuple[Real, Real]:
        key = x.tobytes()
        if key not in known:
            known[key] = density(x)
        return known[key]

    return remembered


def _kinds(operation: Problem, curve: Curve, low: float, high: float) -> Interval:
    """The types of two edges: as the operation knows them, or from the slope of the density there."""
    left, right = (_kind(operation, curve, place, sign * (high - low)) for place, sign in ((low, 1), (high, -1)))
    return left, right


def _kind(operation: Problem, curve: Curve, place: float, length: float) -> Edge:
    known = operation.edge_at_zero() if place == 0 else None
    if known is not None:
        return known
    density, _ = curve.density(place + length * np.array([1e-4, 1e-6]))
    slope = float(np.diff(np.log(density))[0] / np.log(1e-2))
    kinds = [Edge.soft(place), Edge.hard(place), Edge.cusp(place), Edge.cusp(place, -1 / 3), Edge.plain(place)]
    nearest = min(kinds, key=lambda kind: abs(kind.exponent - slope))
    return nearest if abs(nearest.exponent - slope) < 0.05 else Edge.plain(place, order=2)
