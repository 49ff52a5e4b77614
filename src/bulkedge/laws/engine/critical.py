"""Edges of a free convolution between a point in a gap and its neighbour in the bulk.

An edge is a fixed point of the round trip whose multiplier is one: a zero of ``det(1 - Jacobian)``.
"""

from __future__ import annotations

import numpy as np

from bulkedge.arrays import EPS, Complex, Mask, Real
from bulkedge.laws.engine.fixed_point import STRIKES, Step, real_fixed_point, spectral_radius

REAL = 1e-12
"""Imaginary parts below this fraction are rounding: the operands are evaluated outside their bulk."""
RISE = 1e-9
"""Complex steps, relative to the variables: large enough to stand above the rounding error that transforms of
continuous laws leave in their imaginary parts."""
MOST_MOVES = 200


def polish(step: Step, x: Real, state: Real, bulk: Real) -> tuple[Real, Mask]:
    """Newton's method for the edges between points in gaps and their neighbours in the bulk.

    An edge is a fixed point at which ``det(1 - Jacobian)`` vanishes. Derivatives are taken by complex steps: all
    functions involved are analytic, and real on the real axis. Where that fails, bisection (:func:`_bisected`), and
    where that fails too, secants (:func:`_extrapolated`).

    Parameters
    ----------
    step : callable
        The self-map of d variables; see :data:`bulkedge.laws.engine.fixed_point.Step`.
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
            residual, matrix = _edge_equations(step, current)
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
    with np.errstate(all="ignore"):
        for k in np.flatnonzero(~resolved):
            ends[k], resolved[k] = _bisected(step, x[k], state[:, k], bulk[k])
            if not resolved[k]:
                ends[k], resolved[k] = _extrapolated(step, x[k], state[:, k], bulk[k])
    return ends, resolved


def _bisected(step: Step, x: float, state: Real, bulk: float) -> tuple[float, bool]:
    """The edge between x in a gap and its neighbour in the bulk, by bisection of the first variable; and its success.

    Where a narrow law is convolved with a wide one, the variable at the edge is so close to the wide law's own edge
    that Newton's method steps over both. On the curve of fixed points x is a function of the first variable that rises
    (or falls) towards the edge with a slope that decreases to zero there, so that slope times the length of the bracket
    bounds what is missing in x. Beyond the edge either the multiplier exceeds one, or an operand is met in its bulk.
    """
    good, slope, _ = _on_curve(step, np.append(state.real, x))
    if not np.isfinite(slope) or slope == 0:
        return x, False
    length, proved = (bulk - x) / slope, False
    for _ in range(MOST_MOVES):
        tangent = np.append(good[0] + length, good[1:])
        tangent[-1] += slope * length
        if abs(slope * length) <= EPS / 4 * abs(good[-1]) or tangent[0] == good[0]:
            break
        found, found_slope, beyond = _on_curve(step, tangent)
        if not beyond and found_slope * slope > 0:
            good, slope, length = found, found_slope, 2 * length
        else:
            length, proved = length / 4, beyond
    return float(good[-1]), bool(proved and (good[-1] - x) * (good[-1] - bulk) <= 0)


def _extrapolated(step: Step, x: float, state: Real, bulk: float) -> tuple[float, bool]:
    """The edge between x in a gap and its neighbour in the bulk, from fixed points in the gap alone; and its success.

    Next to a square-root edge ``det(1 - Jacobian)**2`` is a smooth function of x that vanishes at the edge: secants of
    it lead there, however close to the edge a singularity of the operands lies. The variables start from where the
    square root of the distance puts them.
    """

    def squared(u: Complex, place: float) -> float:
        jacobian = step(u, np.array([place + 0j]))[1]
        return float(np.linalg.det(np.eye(len(u)) - jacobian[..., 0]).real) ** 2

    far, u_far, near = x, state[:, None] + 0j, x + 0.5 * (bulk - x)
    u_near, proved = real_fixed_point(step, np.array([near]), u_far)
    while not proved[0] and abs(near - far) > 4 * EPS * abs(far):
        near = far + 0.25 * (near - far)
        u_near, proved = real_fixed_point(step, np.array([near]), u_far)
    end = bulk
    for _ in range(40):
        value, other = squared(u_near, near), squared(u_far, far)
        before, end = end, near - value * (near - far) / (value - other)
        if abs(end - before) <= 8 * EPS * abs(end) and (end - x) * (end - bulk) <= 0:
            return end, True
        following = end + 0.1 * (near - end)
        root = np.sqrt(max((following - end) / (far - end), 0.0))
        slope = (u_far - u_near) / (np.sqrt((far - end) / (near - end)) - 1)
        start = u_near - slope * (1 - root * np.sqrt((far - end) / (near - end)))
        u, proved = real_fixed_point(step, np.array([following]), np.where(np.isfinite(start), start, u_near))
        if not proved[0] or not np.isfinite(end):
            # as close as rounding lets the secant come: what is left is smaller than the last step
            return before, bool(abs(near - before) <= 1e-11 * abs(before) and (before - x) * (before - bulk) <= 0)
        far, u_far, near, u_near = near, u_near, following, u
    return end, False


def _on_curve(step: Step, start: Real) -> tuple[Real, float, bool]:
    """The fixed point whose first variable is given: all variables and x, the slope of x, and whether the edge is past.

    ``start`` holds the variables and x. The other variables and x are corrected by Newton's method, with secants for
    the derivative in x; the slope, dx over the change of the first variable, is not a number where that does not
    converge.
    """
    unknown, before, strikes = start.copy(), np.inf, 0
    shift, jacobian, error = step(unknown[:-1, None] + 0j, unknown[-1:] + 0j)
    height = RISE * np.abs(unknown).max()
    in_x = step(unknown[:-1, None] + 0j, unknown[-1:] + 1j * height)[0][:, 0].imag / height
    while strikes <= STRIKES:
        if not np.all(np.isfinite(jacobian)):
            break
        if np.any(np.abs(shift.imag) > REAL * np.abs(unknown[:-1, None])) or np.any(jacobian.imag**2 > REAL):
            return unknown, np.nan, True
        # columns: the derivatives of T(u) - u in each variable, and in x
        matrix = np.column_stack([jacobian[..., 0].real - np.eye(len(shift)), in_x])
        try:
            both = np.linalg.solve(matrix[:, 1:], -np.column_stack([shift[:, 0].real, matrix[:, 0]]))
        except np.linalg.LinAlgError:  # the other variables do not follow the first one here
            break
        delta = both[:, 0]
        unknown[1:] += delta
        if np.all((np.abs(delta) <= 4 * EPS * np.abs(unknown[1:])) | (np.abs(shift[:, 0]) <= error[:, 0])):
            return unknown, float(both[-1, 1]), bool(spectral_radius(jacobian)[0] >= 1)
        old = shift[:, 0].real
        shift, jacobian, error = step(unknown[:-1, None] + 0j, unknown[-1:] + 0j)
        in_x = (shift[:, 0].real - old - (jacobian[:, 1:, 0].real - np.eye(len(shift))[:, 1:]) @ delta[:-1]) / delta[-1]
        change = float(np.abs(delta / unknown[1:]).max())
        strikes, before = strikes + (not change < before / 2), change
    return unknown, np.nan, False


def _edge_equations(step: Step, unknown: Real) -> tuple[Real, Real]:
    """Residuals and Jacobian matrix of ``T_x(u) = u, det(1 - T_x'(u)) = 0`` in the unknowns (u, x)."""

    def equations(values: Complex) -> Complex:
        shift, jacobian, _ = step(values[:-1], values[-1])
        rest = np.eye(len(shift))[:, :, None] - jacobian
        determinant = np.linalg.det(np.moveaxis(rest, -1, 0))
        return np.concatenate([shift, determinant[None]])

    height = RISE * np.abs(unknown).max(axis=0)
    columns = []
    for k in range(len(unknown)):
        shifted = unknown + 0j
        shifted[k] += 1j * height
        columns.append(equations(shifted).imag / height)
    return equations(unknown + 0j).real, np.stack(columns, axis=1)
