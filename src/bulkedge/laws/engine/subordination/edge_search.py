"""Edges of a free convolution between a point in a gap and its neighbour in the bulk.

An edge is a fixed point of the round trip whose multiplier is one: a zero of ``det(1 - Jacobian)``.
"""

from __future__ import annotations

import numpy as np

from bulkedge.laws.engine.subordination.fixed_point import STRIKES, real_fixed_point
from bulkedge.laws.engine.subordination.multipliers import spectral_radius
from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.support.arrays import EPS, Complex, Mask, Real

REAL = 1e-12
"""Imaginary parts below this fraction are rounding: the operands are evaluated outside their bulk."""
RISE = 1e-9
"""Complex steps, relative to the variables: large enough to stand above the rounding error that transforms of
continuous laws leave in their imaginary parts."""
BENT, SHORTENINGS = 1e-3, 5
"""How much a function may change beside its derivative along a complex step; how often the step is shortened if not."""
MOST_MOVES = 200
SETTLED = 1e-11
"""Relative size of a step of Newton's method after which another one changes nothing."""
FARTHEST = 1e4
"""How much larger than where it started a variable may be at an edge."""


def polish(step: Step, x: Real, state: Real, bulk: Real) -> tuple[Real, Mask]:
    """Newton's method for the edges between points in gaps and their neighbours in the bulk.

    An edge is a fixed point at which ``det(1 - Jacobian)`` vanishes. Derivatives are taken by complex steps: all
    functions involved are analytic, and real on the real axis. Where that fails, brackets (:func:`_bracketed`), and
    where those fail too, extrapolation (:func:`_extrapolated`).
    """
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
        if np.all(np.abs(delta) <= SETTLED * np.abs(current)):
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
            ends[left], resolved[left] = _bracketed(step, x[left], state[:, left], bulk[left])
        for k in np.flatnonzero(~resolved):
            ends[k], resolved[k] = _extrapolated(step, x[k], state[:, k], bulk[k])
    return ends, resolved


def _bracketed(step: Step, x: Real, state: Real, bulk: Real) -> tuple[Real, Mask]:
    """The edges between points x in gaps and their neighbours in the bulk, by secants within brackets; and successes.

    Where a narrow law is convolved with a wide one, the variable at the edge is so close to the wide law's own edge
    that Newton's method steps over both. On the curve of fixed points x is a function of the first variable that rises
    (or falls) towards the edge with a slope that decreases to zero there, so that slope times the length of the bracket
    bounds what is missing in x. Beyond the edge either the multiplier exceeds one, or an operand is met in its bulk.
    Secants of the slope tell how far to go: nine tenths of the way, so as not to step over, and at last twice as far,
    so as to be beyond. All edges go at once, because most calls of the map cost what calls cost.
    """
    good, tangent, _, _ = _on_curve(step, np.concatenate([state, x[None]]))
    length, limit, proved = (bulk - x) / tangent[-1], np.full(len(x), np.inf), np.zeros(len(x), dtype=bool)
    failed = np.zeros(len(x), dtype=bool)
    active = np.flatnonzero(np.isfinite(length) & (tangent[-1] != 0))
    for _ in range(MOST_MOVES):
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


def _bounded(variable: Real, start: Real, x: Real) -> Mask:
    """Whether the first variable at an edge is of the size that it had in the gap, or of that of x.

    Where it passes through infinity in the gap, x is stationary as at an edge, but the edge is beyond.
    """
    return np.asarray(np.abs(variable) <= FARTHEST * (np.abs(start) + np.abs(x)))


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


def _on_curve(step: Step, start: Real) -> tuple[Real, Real, Mask, Mask]:
    """The fixed points whose first variable is given, from nearby.

    The other variables and x are corrected by Newton's method, with secants for the derivative in x.
    """
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


def _slope_in_x(step: Step, unknown: Real, shift: Real, error: Real) -> Real:
    """Derivative of ``T_x(u) - u`` in x, by a complex step that is shortened where it leaves the range of linearity.

    Close to zero, x may be smaller than the variables by any factor. A step that is too long shows in the real part.
    """
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


def _edge_equations(step: Step, unknown: Real) -> tuple[Real, Real]:
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
