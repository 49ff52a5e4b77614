"""Certified fixed points of analytic self-maps of the upper half-plane.

Every law computed here is, at a real point x of its bulk, the fixed point ``u = T(u)`` of an analytic self-map T of the
upper half-plane (of a product of half-planes for rectangular sums). Such a map has at most one fixed point in the open
half-plane (Denjoy-Wolff), so a solution with positive imaginary part *is* the right branch: no continuation to trust,
no root to choose (docs/theory/transforms.md, "Certificates").
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bulkedge.laws.engine.measure.panels import REMEDY
from bulkedge.laws.engine.subordination.multipliers import contracts
from bulkedge.laws.engine.subordination.newton import LOW, Step, lifted_by, newton, newton_step
from bulkedge.support.arrays import EPS, Complex, Mask, Real
from bulkedge.support.errors import UnresolvedError

STRIDES = 2, 1
"""How often z is quartered in one step on the way down to the axis: boldly first, then, where that led nowhere, with
care."""
STAYS, FALLS = 0.6, 0.42
"""What is left of the height of a fixed point when z is quartered: in the bulk at least, in a gap at most."""
DESCENTS = 80
TRIAL = 20
"""Steps of Newton's method from each height of a descent to the axis: the next height tries again."""
STRIKES = 3
"""Steps of Newton's method on the axis that may be longer than the one before."""
HIGHEST = 200
"""Quadruplings of the height from which the axis is approached: more than double precision has."""


class BranchError(UnresolvedError):
    """No fixed point in the upper half-plane was found above points x where the law should have one."""

    def __init__(self, message: str, x: Real) -> None:
        super().__init__(f"{message} at x = {x[:3]}: it is finer there than double precision resolves; {REMEDY}")
        self.x = x


def from_above(step: Step, x: Real, far: Callable[[Complex], Complex]) -> Complex:
    """Find the fixed point above each point x of the bulk, from far above the axis."""
    u, _ = descend(step, x, far)
    outside = ~np.all(u.imag > 0, axis=0)
    if outside.any():
        raise BranchError("no solution in the upper half-plane", x[outside])
    return u


def descend(
    step: Step, x: Real, far: Callable[[Complex], Complex], near: tuple[Real, Complex] | None = None
) -> tuple[Complex, Mask]:
    """Find the fixed point at each x, in the bulk or outside it, where Newton's method does not reach it on the axis.

    ``z = x + i h`` comes down from far above the axis: each quartering of h moves the fixed point by a bounded
    hyperbolic distance (Schwarz-Pick), which Newton bridges. Outside the bulk the height of the fixed point falls like
    h, and at last the result is real; in the bulk it stays. Which of the two shows once h is smaller than the distance
    to the nearest edge; points within rounding error of an edge remain undecided.
    """
    result = np.full((len(far(x[:1] + 1j)), len(x)), np.nan + 0j)
    if near is not None:
        height, path = near
        path, unsettled = newton(step, x + 1j * height, path, TRIAL)
        tried = np.setdiff1d(np.arange(len(x)), unsettled)
        if len(tried):
            result[:, tried] = _lowered(step, x[tried], height[tried], path[:, tried], STRIDES[0])
    for stride in STRIDES:
        lost = np.flatnonzero(np.isnan(result[0]))
        if len(lost):
            result[:, lost] = _lowered(step, x[lost], *_highest(step, x[lost], far), stride)
    return result, np.isfinite(result[0])


def _highest(step: Step, x: Real, far: Callable[[Complex], Complex]) -> tuple[Real, Complex]:
    """Heights above points from which the axis is approached: as high as it takes for ``far`` to be nearly fixed."""
    height = 4 * float(np.abs(x).max()) + float(np.finfo(float).tiny)
    path = far(x + 1j * height)
    for _ in range(HIGHEST):
        if np.all(np.abs(step(path, x + 1j * height)[0]) <= np.abs(path)):
            break
        height *= 4
        path = far(x + 1j * height)
    return np.full(len(x), height), path


def _lowered(step: Step, x: Real, height: Real, path: Complex, stride: int) -> Complex:
    """Fixed points on the axis, shape (d, n), from nearly fixed ones at the given heights; nan where undecided.

    ``stride`` is how often the height is quartered in one step.
    """
    result, lost, above = np.full(path.shape, np.nan + 0j), np.arange(len(x)), np.abs(path)
    for _ in range(DESCENTS // stride):
        path, unsettled = newton(step, x[lost] + 1j * height, path, 60)
        # the height of the variables over that a quartering before: 1/4 in a gap, 1 in the bulk, 1/2 at an edge
        fall, above = (path.imag / above).min(axis=0), path.imag
        found = np.zeros(len(lost), dtype=bool)
        for trial, search in ((fall > STAYS**stride, _tried), (fall < FALLS**stride, real_fixed_point)):
            if trial.any():
                u, proved = search(step, x[lost[trial]], path[:, trial])
                result[:, lost[trial][proved]] = u[:, proved]
                found[np.flatnonzero(trial)[proved]] = True
        height = height / 4.0**stride
        # below the rounding error of x nothing changes any more
        kept = ~found & (height > EPS / 64 * np.abs(x[lost]))
        # so close to the axis Newton fails only where rounding keeps it from its end
        kept[unsettled] &= height[unsettled] > 1e-8 * np.abs(x[lost[unsettled]])
        lost, path, above, height = lost[kept], path[:, kept], above[:, kept], height[kept]
        if not len(lost):
            break
    return result


def _tried(step: Step, x: Real, start: Complex) -> tuple[Complex, Mask]:
    """:func:`bulk_fixed_point` from a point close to it, if there is one: few steps show whether there is."""
    return bulk_fixed_point(step, x, start, iterations=TRIAL)


def bulk_fixed_point(step: Step, x: Real, start: Complex, *, iterations: int = 60) -> tuple[Complex, Mask]:
    """Newton from the given points of the upper half-plane; which results are proved to be fixed points there."""
    u, lost = newton(step, x + 0j, start, iterations)
    # an imaginary part smaller than that is rounding error: the fixed point is real, and x lies in a gap
    high = np.all(u.imag > 1e-11 * np.abs(u), axis=0) & np.isin(np.arange(len(x)), lost, invert=True)
    low = np.flatnonzero(high & np.any(u.imag < LOW * np.abs(u), axis=0))
    if len(low):
        high[low] = np.all(u[:, low].imag > 4 * slip(step, u[:, low], x[low]), axis=0)
    return u, high


def slip(step: Step, u: Complex, x: Real) -> Real:
    """Rounding error of a fixed point, shape (d, n): that of the map, as far as the map does not contract it."""
    _, jacobian, error = step(u, x + 0j)
    return lifted_by(jacobian, error)


def spread(step: Step, u: Complex, x: Real) -> Real:
    """What rounding does to a fixed point, shape (d, n): :func:`slip` for two patterns of signs instead of the worst.

    Of many variables that costs a third of the bound, and is of its size.
    """
    if len(u) <= 2:
        return slip(step, u, x)
    _, jacobian, error = step(u, x + 0j)
    signs = np.where(np.arange(len(u)) % 2, -1.0, 1.0)
    both = np.stack([error, signs[:, None] * error], axis=-1).transpose(1, 0, 2) + 0j
    try:
        moved = np.linalg.solve(np.eye(len(u)) - np.moveaxis(jacobian, -1, 0), both)
    except np.linalg.LinAlgError:
        return slip(step, u, x)
    return np.asarray(np.abs(moved).sum(axis=2).T)


def real_fixed_point(step: Step, x: Real, start: Complex) -> tuple[Complex, Mask]:
    """Newton on the real axis; which results are proved to be *the* fixed point, by a multiplier below one."""
    u, active = start.real + 0j, np.arange(len(x))
    before, strikes = np.full(len(x), np.inf), np.zeros(len(x), dtype=int)
    with np.errstate(all="ignore"):
        for _ in range(30):
            shift, jacobian, _ = step(u[:, active], x[active] + 0j)
            delta = newton_step(shift, jacobian)
            u[:, active] = np.where(np.isfinite(delta), u[:, active] + delta.real, np.nan)
            length = (np.abs(delta) / np.abs(u[:, active])).max(axis=0)
            # where there is no real fixed point, steps grow again and again
            strikes[active] += ~(length < before[active])
            before[active] = length
            active = active[(length > 4 * EPS) & (strikes[active] <= STRIKES)]
            if not len(active):
                break
        shift, jacobian, error = step(u, x + 0j)
        exact = np.all(np.abs(shift) <= 1e-12 * (np.abs(u) + np.abs(x)), axis=0)
        # outside the laws all is real but for rounding; inside one of them the fixed point is not, however low it lies
        exact &= np.all(np.abs(shift.imag) <= 16 * (error + EPS * np.abs(u)), axis=0)
        exact[exact] = contracts(jacobian[..., exact])
        return u, exact
