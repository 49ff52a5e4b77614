"""Density of a masked problem by the logarithm of the value, on a few panels.

With ``u = log x`` and f the mass per unit of u, f ranges over many decades and u over a hundred: the law of a
triangular matrix has a fraction of about ``1/log(1/x)`` below x. The logarithm of f is smooth. It is sampled on panels
of equal width in u down from the edge, and below them on one in ``1/(c - u)``. At the edge f is the square root of an
analytic function, whose zero is the edge.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from bulkedge.laws.engine.masked_equations import MaskedProblem
from bulkedge.laws.engine.measure.panels import nodes_and_transform
from bulkedge.laws.engine.window_equations import WindowProblem
from bulkedge.support.arrays import BoolArray, Complex, Real
from bulkedge.support.errors import UnresolvedError

AnyProblem = MaskedProblem | WindowProblem
ROUGH, FINE = 1e-2, 1e-6
"""Last step on the way to a point, and at the point; by Newton's method what is left is about its square."""
LONGEST = 1.6  # step in u of the first ray of a window, whose solutions change everywhere
SPACING = 0.8  # between points of the first ray, in u; below the panels it grows by a quarter from point to point
ANGLE = 1.0  # argument of w on the first ray
WIDTH, NARROWEST = 3.0, 0.75
"""Widths of panels in u: they are halved until they resolve. On the narrowest, what is finer than HEIGHT is smooth."""
HEIGHT = 0.2
"""Height of samples above the axis. On it the solution varies sharply with the place; from this height the polynomials
of panels are continued to the axis, at a loss of one digit on the widest."""
DEGREE, DEEP_DEGREE = 16, 26  # samples on a panel, and on the first one
BELOW = 9.0  # panels begin so far below the logarithm of the variance of the last row, but for the first one
EDGE_WIDTH, EDGE_DEGREE = 1.5, 14  # width of the panel at the edge, and its samples, on the axis
LEFT_OUT = 0.3  # values per unit of u below which a law without a clear edge ends


@dataclass(frozen=True, eq=False)
class MaskedSolution:
    """Solutions at points w: the state of the problem at each, and the Cauchy transform."""

    logs: Complex  # (s,) ``log w``, of imaginary part between 0 and pi
    state: Complex  # (ends, s, 2 u) the unknowns
    cauchy: Complex  # (s,) the Cauchy transform there

    def take(self, index: Any) -> MaskedSolution:
        """Some of the points."""
        return MaskedSolution(self.logs[index], self.state[:, index], self.cauchy[index])

    @property
    def moment(self) -> Complex:
        """``w G(w)``."""
        return np.asarray(np.exp(self.logs) * self.cauchy)


def solve(
    problem: AnyProblem, state: Complex, logs: Complex, tolerance: float = FINE
) -> tuple[MaskedSolution, BoolArray]:
    """Solutions at all points at once."""
    state, cauchy, done = problem.solve(state, logs, tolerance)
    return MaskedSolution(logs, state, cauchy), done


def solve_ray(problem: AnyProblem, logs: Real, angle: float) -> MaskedSolution:
    """Solutions at decreasing moduli on a ray, each from the line through the two before, as far as they are found."""
    points = logs + 1j * angle
    found, _ = solve(problem, problem.far(np.exp(points[:1])), points[:1], ROUGH)
    slope = np.zeros_like(found.state)
    slope[..., : problem.terms] = -0.8
    kept = [found]
    for point in points[1:]:
        try:
            kept.append(continue_to(problem, kept[-1], complex(point), slope=slope))
        except UnresolvedError:
            break
        slope = (kept[-1].state - kept[-2].state) / (kept[-1].logs - kept[-2].logs).real
    state, cauchy = np.concatenate([each.state for each in kept], axis=1), np.concatenate([e.cauchy for e in kept])
    return MaskedSolution(points[: len(kept)], state, cauchy)


def continue_to(
    problem: AnyProblem,
    start: MaskedSolution,
    point: complex,
    tolerance: float = ROUGH,
    slope: Complex | None = None,
) -> MaskedSolution:
    """The solution at another point from that at one, in shorter steps if need be."""
    here, parts, slope = start, 1, np.zeros_like(start.state) if slope is None else slope
    while parts <= 9:
        done = np.ones(1, dtype=bool)
        for part in range(parts):
            step = (point - here.logs[0]) / (parts - part)
            here, done = solve(problem, here.state + slope * step.real, here.logs + step, tolerance)
            if not done.all():
                break
        if done.all():
            return here
        here, parts, slope = start, 3 * parts, slope * 0  # the slope may be what misled it
    raise UnresolvedError(f"the equations of causal attention were not solved at |w| = {abs(np.exp(point)):.3g}")


def turn(problem: AnyProblem, start: MaskedSolution, angles: Real, tolerance: float = FINE) -> list[MaskedSolution]:
    """Solutions at the same moduli at one angle after the other."""
    last, before, result = start, None, []
    for angle in angles:
        by = angle - last.logs[0].imag
        if before is None or not by:
            state = last.state.copy()
            state[..., : problem.terms] -= 0.5j * by
        else:
            state = last.state + (last.state - before.state) * (by / (last.logs[0] - before.logs[0]).imag)
        found, _ = solve(problem, state, last.logs.real + 1j * angle, tolerance)
        before, last = (last if by else None), found
        result.append(found)
    return result


@dataclass(frozen=True, eq=False)
class LogDensity:
    """Mass per unit of ``u = log x``."""

    # (panels + 1,) ends of the panels in u, increasing; the last is the edge, the first where the law begins to be
    # represented
    breaks: Real
    # Chebyshev coefficients of ``log f`` on each panel, in ``1/(c - u)`` on the first and u on the others; on the
    # last, of ``log(f**2/(edge - u))``
    coefficients: tuple[Real, ...]
    below: float  # mass below the first panel
    scale: float = 1.0  # factor that makes the total mass one

    def __call__(self, logs: Real) -> Real:
        """The mass per unit of u."""
        result = np.zeros(logs.shape)
        which = np.clip(np.searchsorted(self.breaks, logs, side="right") - 1, 0, len(self.coefficients) - 1)
        for k, coefficients in enumerate(self.coefficients):
            here = which == k
            if here.any():
                value = chebyshev.chebval(self._variable(k, logs[here]), coefficients)
                if k == len(self.coefficients) - 1:
                    value = (value + np.log(np.maximum(self.breaks[-1] - logs[here], 1e-300))) / 2
                result[here] = np.exp(value)
        return self.scale * result

    def _variable(self, panel: int, logs: Real) -> Real:
        low, high = self.breaks[panel], self.breaks[panel + 1]
        if panel == 0:
            return _deep(low, high, logs)
        return (2 * logs - low - high) / (high - low)

    def mass(self) -> float:
        """Mass on the panels."""
        nodes, weights = np.polynomial.legendre.leggauss(160)
        total, (low, high) = 0.0, self.breaks[:2]
        logs = _deep_inverse(low, high, nodes)
        # du = 2 (c - u)**2/(difference of 1/(c - u) between the ends) dv
        slope = (WIDTH + high - logs) ** 2 * (1 / WIDTH - 1 / (WIDTH + high - low)) / 2
        total += float(weights @ (self(logs) * slope))
        for low, high in pairwise(self.breaks[1:-1].tolist()):
            total += float(weights @ self((low + high) / 2 + (high - low) / 2 * nodes)) * (high - low) / 2
        low, high = self.breaks[-2:]
        root = (nodes + 1) / 2
        return total + float(weights @ (self(high - (high - low) * root**2) * root)) * (high - low)


def _deep(low: float, high: float, logs: Any) -> Any:
    """From u to [-1, 1] on the first panel: linear in ``1/(c - u)``, c a panel's width above its end."""
    ends = 1 / (WIDTH + high - np.array([low, high]))
    return (2 / (WIDTH + high - logs) - ends.sum()) / (ends[1] - ends[0])


def _deep_inverse(low: float, high: float, variable: Real) -> Real:
    ends = 1 / (WIDTH + high - np.array([low, high]))
    return WIDTH + high - 2 / (ends.sum() + variable * (ends[1] - ends[0]))


def density(problem: AnyProblem) -> LogDensity:
    """Solve a masked problem along the real axis."""
    oblique = solve_ray(problem, _first_grid(problem), ANGLE)
    near = turn(problem, oblique, np.array([0.5, HEIGHT]), ROUGH)[-1]
    # as deep as the equations are solved for; what lies above the first panel is the same for all depths
    ends = [int(np.argmax(oblique.logs.real <= problem.middle - depth)) for depth in problem.depths]
    if not ends[-1]:
        raise UnresolvedError("the equations of causal attention were not solved at small values")
    rest = _upper_panels(problem, oblique, near.take(slice(ends[-1] + 1)))
    for end in [end for end in ends[:-1] if end]:
        with suppress(UnresolvedError):
            return _down_to(problem, rest, oblique.take(slice(end + 1)), near)
    return _down_to(problem, rest, oblique.take(slice(ends[-1] + 1)), near)


def _spline(near: MaskedSolution) -> tuple[MaskedSolution, CubicSpline]:
    """The solutions next to the axis that were found, and the state between them."""
    good = near.take(np.isfinite(near.state).all(axis=(0, 2)))
    return good, CubicSpline(good.logs.real[::-1], good.state[:, ::-1], axis=1)


def _upper_panels(
    problem: AnyProblem, oblique: MaskedSolution, near: MaskedSolution
) -> tuple[list[float], tuple[Real, ...]]:
    """Ends of the panels above the first one, and their coefficients."""
    good, start = _spline(near)
    try:
        edge, last = _edge(problem, oblique)
    except UnresolvedError:
        edge, last = _blunt_edge(problem, good, start)
    count = max(2, int(np.ceil((edge - EDGE_WIDTH - problem.middle + BELOW) / WIDTH)))
    breaks = (edge - EDGE_WIDTH - WIDTH * np.arange(count, -1, -1.0)).tolist()
    panels: dict[float, Real] = {}
    pending = list(pairwise(breaks))
    while pending:
        found = _panel_series(problem, start, pending)
        panels |= {low: c for (low, _), c in zip(pending, found, strict=True) if c is not None}
        wide = [pair for pair, c in zip(pending, found, strict=True) if c is None]
        pending = [part for low, high in wide for part in ((low, (low + high) / 2), ((low + high) / 2, high))]
    return [*sorted(panels), breaks[-1], edge], (*(panels[low] for low in sorted(panels)), last)


def _down_to(
    problem: AnyProblem, rest: tuple[list[float], tuple[Real, ...]], oblique: MaskedSolution, near: MaskedSolution
) -> LogDensity:
    """The density with a first panel from the last of the points on."""
    (breaks, coefficients), lowest = rest, float(oblique.logs[-1].real)
    first = _deep_panel(problem, _spline(near.take(slice(len(oblique.logs))))[1], lowest, breaks[0])
    below = _mass_within(problem, oblique.take(slice(-1, None)))
    found = LogDensity(np.array([lowest, *breaks]), (first, *coefficients), below)
    mass = found.mass()
    # a smaller difference from one is put right
    if not abs(mass + below - 1) < 3e-3:
        raise UnresolvedError(f"the density of causal attention has mass {mass + below:.6f}: simulate it (be.null_of)")
    return replace(found, scale=(1 - below) / mass)


def _deep_panel(problem: AnyProblem, start: CubicSpline, low: float, high: float) -> Real:
    """Coefficients of ``log f`` on the first panel."""
    nodes, transform = nodes_and_transform(DEEP_DEGREE)
    logs, height = _deep_inverse(low, high, nodes), HEIGHT
    series = transform @ _solve_near_axis(problem, start(logs), logs + 1j * height).moment
    values = -chebyshev.chebval(_deep(low, high, logs - 1j * height), series).imag / np.pi
    if not np.all(values > 0):
        raise UnresolvedError("the density of causal attention is not resolved at its smallest values")
    return np.asarray(transform @ np.log(values))


def _panel_series(problem: AnyProblem, start: CubicSpline, panels: list[tuple[float, float]]) -> list[Real | None]:
    """Coefficients of ``log f`` on each panel; None where it does not resolve the density and can be halved."""
    # sampled above the axis and continued to it; on the narrowest panels f may be a mean over about HEIGHT in u
    nodes, transform = nodes_and_transform(DEGREE)
    logs = np.array([(low + high) / 2 + (high - low) / 2 * nodes for low, high in panels])
    # solutions of windows vary smoothly with the place, and short panels may be sampled close to the axis
    heights = np.array([HEIGHT * ((high - low) / WIDTH if problem.blunt else 1.0) for low, high in panels])
    points = (logs + 1j * heights[:, None]).ravel()
    moments = _solve_near_axis(problem, start(points.real), points).moment.reshape(logs.shape)
    result: list[Real | None] = []
    for (low, high), height, moment in zip(panels, heights.tolist(), moments, strict=True):
        shift, series = 2 * height / (high - low), transform @ moment
        values = -chebyshev.chebval(nodes - 1j * shift, series).imag / np.pi
        tail = np.abs(series[-2:]).max() * np.exp(DEGREE * np.arcsinh(shift))
        resolved = tail < 1e-3 * np.median(np.abs(values)) and np.all(values > 0)
        if not resolved and high - low < (NARROWEST if problem.blunt else 2 * NARROWEST):
            values, resolved = -moment.imag / np.pi, True
        result.append(transform @ np.log(values) if resolved else None)
    return result


def _first_grid(problem: AnyProblem) -> Real:
    """Decreasing u from beyond the spectrum to the deepest value."""
    grid = np.arange(problem.top, problem.middle - BELOW, -SPACING).tolist()
    step = SPACING
    while grid[-1] > problem.middle - problem.depths[0]:
        step = min(1.25 * step, LONGEST) if problem.blunt else 1.25 * step
        grid.append(grid[-1] - step)
    return np.array(grid)


def _solve_near_axis(problem: AnyProblem, state: object, logs: Complex) -> MaskedSolution:
    """Solutions at points; where a start was too far off, from the nearest point that was solved."""
    found, done = solve(problem, np.asarray(state), logs)
    done &= found.moment.imag < 0
    while not done.all() and done.any():
        solved, missing = np.flatnonzero(done), np.flatnonzero(~done)
        gaps = np.abs(logs[missing, None] - logs[solved])
        first, near = np.unravel_index(np.argmin(gaps), gaps.shape)
        point, start = int(missing[first]), int(solved[near])
        here = continue_to(problem, found.take(slice(start, start + 1)), complex(logs[point]), FINE)
        found.state[:, point], found.cauchy[point], done[point] = here.state[:, 0], here.cauchy[0], True
    if not np.all(found.moment.imag < 0):
        raise UnresolvedError("the equations of causal attention were not solved near the axis")
    return found


def _edge(problem: AnyProblem, oblique: MaskedSolution) -> tuple[float, Real]:
    """The upper edge in u, and the coefficients of the last panel."""
    if problem.blunt:
        raise UnresolvedError("the density has no single edge")
    # the square of f is analytic at the edge: the zero of the polynomial through samples inside is the edge
    # from the top: some panels' worth below the edge
    axis = turn(problem, oblique.take(slice(None, 6)), np.array([0.5, 0.2, 0.0]), ROUGH)[-1]
    # what a rough solution leaves beyond the edge is more than a hundredth of a value
    axis, _ = solve(problem, axis.state, axis.logs)
    inside, high = _last_inside(problem, axis)
    nodes, transform = nodes_and_transform(EDGE_DEGREE)
    top = inside.logs[0].real
    logs = top - EDGE_WIDTH / 2 + EDGE_WIDTH / 2 * nodes
    keep = (axis.logs.real < top) & np.isfinite(axis.state).all(axis=(0, 2))
    known = np.append(axis.logs[keep].real[::-1], top), np.append(axis.state[:, keep][:, ::-1], inside.state, axis=1)
    sampled = _solve_near_axis(problem, CubicSpline(*known, axis=1)(logs), logs + 0j)
    squares = chebyshev.Chebyshev(transform @ (sampled.moment.imag / np.pi) ** 2)
    limit = 1 + 4 * (high - top) / EDGE_WIDTH
    if not squares(1.0) > 0 > squares(limit):
        raise UnresolvedError("the edge of causal attention was not found")
    root = float(brentq(squares, 1.0, limit, xtol=1e-14))
    edge = top - EDGE_WIDTH / 2 + EDGE_WIDTH / 2 * root
    # on the panel that ends at the edge
    variable = root - 1 + nodes
    ratio = squares(variable) / (EDGE_WIDTH / 2 * (root - variable))
    if not np.all(ratio > 0):
        raise UnresolvedError("the edge of causal attention was not found")
    return edge, np.asarray(transform @ np.log(ratio))


def _blunt_edge(problem: AnyProblem, near: MaskedSolution, start: CubicSpline) -> tuple[float, Real]:
    """An end of the law where the density has no single edge, because sizes of rows or columns differ too much."""
    # less than LEFT_OUT of a value per unit of u is beyond
    numbers = -near.moment.imag / np.pi * problem.tokens
    edge = float(near.logs[np.argmax(numbers > LEFT_OUT)].real)
    if problem.blunt:
        lower = np.linspace(edge, edge - 4, 21)
        edge = float(lower[np.argmax(_close_to_axis(problem, start, lower) * problem.tokens > LEFT_OUT)])
    nodes, transform = nodes_and_transform(EDGE_DEGREE)
    logs = edge - EDGE_WIDTH / 2 + EDGE_WIDTH / 2 * nodes
    return edge, np.asarray(transform @ np.log(_close_to_axis(problem, start, logs) ** 2 / (edge - logs)))


def _close_to_axis(problem: AnyProblem, start: CubicSpline, logs: Real) -> Real:
    """A density, as a mean over a quarter of HEIGHT in u; that of windows by a straight line from two heights."""
    if not problem.blunt:
        return np.asarray(-_solve_near_axis(problem, start(logs), logs + 1j * HEIGHT / 4).moment.imag / np.pi)
    higher, lower = (
        -_solve_near_axis(problem, start(logs), logs + 1j * HEIGHT / part).moment.imag / np.pi for part in (4, 8)
    )
    return np.asarray(np.maximum(2 * lower - higher, lower / 4))


def _last_inside(problem: AnyProblem, axis: MaskedSolution) -> tuple[MaskedSolution, float]:
    """The last point inside that is found, and one outside that is close to it."""
    # fewer values per unit of u: the transform is real, beyond the edge
    least = 0.01 / problem.tokens

    def within(solved: MaskedSolution) -> BoolArray:
        return np.asarray(-solved.moment.imag / np.pi > least)

    (inside,) = np.nonzero(within(axis))
    here, high = axis.take(inside[:1]), float(axis.logs[inside[0] - 1].real)
    while high - here.logs[0].real > 0.02:
        low = here.logs[0].real
        logs = low + (high - low) * np.arange(1, 7) / 7
        found, done = solve(problem, np.repeat(here.state, 6, axis=1), logs + 0j)
        bulk = done & within(found)
        index = 6 if bulk.all() else int(np.argmin(bulk))
        high = high if index == 6 else float(logs[index])
        if index:
            here = found.take(slice(index - 1, index))
    return here, high


def _mass_within(problem: AnyProblem, point: MaskedSolution) -> float:
    """Mass inside a circle: the mean of ``Re w G(w)`` over its upper half, from one point on it."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    angles = np.pi * (nodes + 1) / 2
    up, down = angles > ANGLE, angles <= ANGLE
    found = [*turn(problem, point, angles[down][::-1])[::-1], *turn(problem, point, angles[up])]
    return float(weights / 2 @ np.concatenate([each.moment for each in found]).real)
