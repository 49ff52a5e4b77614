"""Certified fixed points of analytic self-maps of the upper half-plane, and the density that they give.

Every law computed here is, at a real point x of its bulk, the fixed point ``u = T(u)`` of an analytic self-map T of the
upper half-plane (of a product of half-planes for rectangular sums). Such a map has at most one fixed point in the open
half-plane (Denjoy-Wolff), so a solution with positive imaginary part *is* the right branch: no continuation to trust,
no root to choose (docs/theory/transforms.md, "Certificates"). Newton's method finds it, for many points at once, with
steps measured in the hyperbolic distance. A :class:`FixedPointCurve` remembers the points it has solved, so that each
new one starts from its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from bulkedge.laws.engine.measure.panels import REMEDY
from bulkedge.support.arrays import EPS, BoolArray, Complex, Index, Real
from bulkedge.support.errors import UnresolvedError

SelfMap = Callable[[Complex, Complex], tuple[Complex, Complex, Real]]
"""``step(u, z)`` takes d variables u, of shape ``(d, n)``, at n points z and returns ``T_z(u) - u``, of the same shape,
the Jacobian of T, ``(d, d, n)``, and the rounding error of the first, ``(d, n)``."""
LOW = 1e-4  # imaginary part over modulus below which rounding may have lifted a variable off the axis
STRIDES = 2, 1
"""How often z is quartered in one step on the way down to the axis: boldly first, then, where that led nowhere, with
care."""
TRIAL = 20  # steps of Newton's method from each height of a descent to the axis: the next height tries again
STRIKES = 3  # steps of Newton's method on the axis that may be longer than the one before
TRIES = 25  # steps of Newton's method from known points; points that need more are proved otherwise, or lie in a gap
Far = Callable[[Complex], Complex]
Prove = Callable[[Real], tuple[Complex, BoolArray]]


def contracts(jacobian: Complex) -> BoolArray:
    """Whether the eigenvalues of matrices given as ``(d, d, n)`` all have modulus below one."""
    if len(jacobian) <= 2:
        return spectral_radius(jacobian) < 1
    # in a gap the variables are real
    power: Any = np.moveaxis(jacobian.real if not np.any(jacobian.imag) else jacobian, -1, 0)
    proved = np.zeros(jacobian.shape[-1], dtype=bool)
    # a power of norm below one proves enough, and is cheaper than eigenvalues
    for _ in range(5):
        proved |= np.sqrt((np.abs(power) ** 2).sum(axis=(1, 2))) < 1
        if proved.all():
            return proved
        power = power @ power
    proved[~proved] = spectral_radius(jacobian[..., ~proved]) < 1
    return proved


def spectral_radius(jacobian: Complex) -> Real:
    """Largest modulus of the eigenvalues of matrices given as ``(d, d, n)``."""
    if len(jacobian) == 1:
        return np.abs(jacobian[0, 0])
    if len(jacobian) > 2:
        finite = np.where(np.isfinite(jacobian), jacobian, 1e300)
        return np.abs(np.linalg.eigvals(np.moveaxis(finite, -1, 0))).max(axis=1, initial=0.0)
    (a, b), (c, d) = jacobian
    split = np.sqrt((a - d) ** 2 / 4 + b * c)
    return np.maximum(np.abs((a + d) / 2 + split), np.abs((a + d) / 2 - split))


def newton(step: SelfMap, z: Complex, start: Complex, iterations: int) -> tuple[Complex, Index]:
    """Damped Newton, in the upper half-plane."""
    # a step must shorten the hyperbolic distance from u to T(u); else the plain step is taken, which never lengthens it
    # (Schwarz-Pick). Calls of few points are most: points that are done leave the arrays
    result, trial = np.array(start), np.array(start)
    base, shift, delta = trial, np.zeros_like(trial), np.zeros_like(trial)
    best: Real = np.full(len(z), np.inf)
    damping: Real = np.ones(len(z))
    active, given_up, on_axis = np.arange(len(z)), np.zeros(0, dtype=np.intp), not z.imag.any()
    with np.errstate(all="ignore"):
        for _ in range(iterations):
            values, jacobian, error = step(trial, z)
            merit = _hyperbolic(trial, values)
            better = merit <= best
            if better.all():
                base, shift, best = trial, values, merit
                delta = newton_step(shift, jacobian)
                damping = _largest_damping(base, delta)
                trial = base + damping * delta
            else:
                base, shift = np.where(better, trial, base), np.where(better, values, shift)
                best = np.where(better, merit, best)
                delta[:, better] = newton_step(values[:, better], jacobian[..., better])
                damping = damping / 4
                damping[better] = _largest_damping(base[:, better], delta[:, better])
                lost = ~better & (damping < 1e-3)
                trial = base + np.where(lost, shift, damping * delta)
                best[lost] = np.inf
            settled = better & _is_settled(trial, (shift, delta), damping, (jacobian, error))
            # on the axis, a point so low has a real fixed point: it is lost, and given up
            fallen = (trial.imag < 1e-13 * np.abs(trial)).any(axis=0) & ~settled
            if not on_axis:
                fallen &= z.imag == 0
            done = settled | fallen
            if done.any():
                result[:, active[done]] = trial[:, done]
                given_up, kept = np.append(given_up, active[fallen]), ~done
                active, z, trial, base = active[kept], z[kept], trial[:, kept], base[:, kept]
                shift, delta, best, damping = shift[:, kept], delta[:, kept], best[kept], damping[kept]
                if not len(active):
                    break
    result[:, active] = trial
    return result, np.append(active, given_up)


def _is_settled(u: Complex, moves: tuple[Complex, Complex], damping: Real, at: tuple[Complex, Real]) -> BoolArray:
    """Which points u converged, from ``T(u) - u``, the last Newton step, the Jacobian there and its rounding error."""
    (shift, delta), (jacobian, error) = moves, at
    # the map is analytic in a disc of radius Im u, so Newton's next error is about |delta|**2 / Im u
    exact = (np.abs(delta) <= 1e-8 * u.imag) & (damping == 1)
    settled = np.asarray((exact | (np.abs(shift) <= 4 * error)).all(axis=0))
    if settled.any():
        low = np.flatnonzero(settled & (u.imag < LOW * np.abs(u)).any(axis=0))
        if len(low):
            settled[low] = _interior(u[:, low], jacobian[..., low], error[:, low])
    return settled


def _interior(u: Complex, jacobian: Complex, error: Real) -> BoolArray:
    """Whether fixed points lie in the open half-plane: they attract, or are higher than rounding explains."""
    # height decides where a map is nearly an automorphism, with a multiplier of modulus one up to rounding
    inside = contracts(jacobian)
    doubt = np.flatnonzero(~inside)
    if len(doubt):
        lifted = rounding_lift(jacobian[..., doubt], error[:, doubt])
        # a thousand rounding errors above the axis is certainly above it
        inside[doubt] = np.all(u[:, doubt].imag > 1e3 * lifted, axis=0)
    return inside


def _hyperbolic(u: Complex, shift: Complex) -> Real:
    """A monotone function of the hyperbolic distance from u to u + shift; infinite outside the half-plane."""
    low, height = u.imag, u.imag + shift.imag
    ratio = (shift.real**2 + shift.imag**2) / (low * height)
    return np.asarray(np.where((low > 0) & (height > 0), ratio, np.inf).max(axis=0))


def newton_step(residual: Complex, jacobian: Complex) -> Complex:
    """Solve ``(1 - jacobian) delta = residual``; where that is singular, the plain step."""
    if len(residual) == 1:
        delta = residual / (1 - jacobian[0])
    elif len(residual) > 2:
        delta = _solve(np.eye(len(jacobian)) - jacobian.transpose(2, 0, 1), residual)
    else:
        (a, b), (c, d) = np.eye(2)[:, :, None] - jacobian
        delta = np.stack([d * residual[0] - b * residual[1], a * residual[1] - c * residual[0]]) / (a * d - b * c)
    finite = np.isfinite(delta).all(axis=0)
    return delta if finite.all() else np.where(finite, delta, residual)


def _solve(stacked: Complex, right: Complex) -> Complex:
    """Solve systems given as ``(n, d, d)`` and ``(d, n)``; not a number where that is impossible."""
    with suppress(np.linalg.LinAlgError):  # one of them is singular: the others are solved
        return np.ascontiguousarray(np.linalg.solve(stacked, right.T[:, :, None])[:, :, 0].T)
    result = np.full(right.shape, np.nan + 0j)
    regular = np.all(np.isfinite(stacked), axis=(1, 2))
    regular[regular] = np.linalg.det(stacked[regular]) != 0
    if regular.any():
        result[:, regular] = np.linalg.solve(stacked[regular], right[:, regular].T[:, :, None])[:, :, 0].T
    return result


def _largest_damping(u: Complex, delta: Complex) -> Real:
    """How much of the step is of moderate hyperbolic length: at most ten heights, keeping a tenth of the height."""
    room = np.where(delta.imag < 0, -0.9 * u.imag / delta.imag, np.inf)
    length = 10 * u.imag / np.abs(delta)
    return np.minimum(np.fmin(room, length).min(axis=0), 1.0)


def rounding_lift(jacobian: Complex, error: Real) -> Real:
    """What a rounding error of the map makes of its fixed points, by its Jacobian there."""
    if len(error) == 1:
        return np.asarray(error / np.abs(1 - jacobian[0]))
    inverse = _invert(np.eye(len(error))[:, :, None] - jacobian)
    return np.asarray(np.einsum("ijn,jn->in", np.abs(inverse), error))


def _invert(matrix: Complex) -> Complex:
    """Inverses of matrices ``(d, d, n)``; infinite where there is none."""
    result = np.full(matrix.shape, np.inf + 0j)
    stacked = np.moveaxis(matrix, -1, 0)
    regular = np.all(np.isfinite(stacked), axis=(1, 2))
    regular[regular] = np.linalg.det(stacked[regular]) != 0
    result[..., regular] = np.moveaxis(np.linalg.inv(stacked[regular]), 0, -1)
    return result


class BranchError(UnresolvedError):
    """No fixed point in the upper half-plane was found above points x where the law should have one."""

    def __init__(self, message: str, x: Real) -> None:
        super().__init__(f"{message} at x = {x[:3]}: it is finer there than double precision resolves; {REMEDY}")
        self.x = x


def solve_from_above(step: SelfMap, x: Real, far: Callable[[Complex], Complex]) -> Complex:
    """Find the fixed point above each point x of the bulk, from far above the axis."""
    u, _ = descend(step, x, far)
    outside = ~np.all(u.imag > 0, axis=0)
    if outside.any():
        raise BranchError("no solution in the upper half-plane", x[outside])
    return u


def descend(
    step: SelfMap, x: Real, far: Callable[[Complex], Complex], near: tuple[Real, Complex] | None = None
) -> tuple[Complex, BoolArray]:
    """Find the fixed point at each x, where Newton's method does not reach it on the axis."""
    # z = x + i h comes down: quartering h moves the fixed point by a bounded hyperbolic distance (Schwarz-Pick).
    # Outside the bulk its height falls like h, in the bulk it stays; points within rounding of an edge stay undecided
    result = np.full((len(far(x[:1] + 1j)), len(x)), np.nan + 0j)
    if near is not None:
        height, path = near
        path, unsettled = newton(step, x + 1j * height, path, TRIAL)
        tried = np.setdiff1d(np.arange(len(x)), unsettled)
        if len(tried):
            result[:, tried] = _lower_to_axis(step, x[tried], height[tried], path[:, tried], STRIDES[0])
    for stride in STRIDES:
        lost = np.flatnonzero(np.isnan(result[0]))
        if len(lost):
            result[:, lost] = _lower_to_axis(step, x[lost], *_starting_heights(step, x[lost], far), stride)
    return result, np.isfinite(result[0])


def _starting_heights(step: SelfMap, x: Real, far: Callable[[Complex], Complex]) -> tuple[Real, Complex]:
    """Heights above points from which the axis is approached: as high as it takes for ``far`` to be nearly fixed."""
    height = 4 * float(np.abs(x).max()) + float(np.finfo(float).tiny)
    path = far(x + 1j * height)
    # more quadruplings than double precision has
    for _ in range(200):
        if np.all(np.abs(step(path, x + 1j * height)[0]) <= np.abs(path)):
            break
        height *= 4
        path = far(x + 1j * height)
    return np.full(len(x), height), path


def _lower_to_axis(step: SelfMap, x: Real, height: Real, path: Complex, stride: int) -> Complex:
    """Fixed points on the axis (d, n), nan where undecided; the height is quartered ``stride`` times in a step."""
    result, lost, above = np.full(path.shape, np.nan + 0j), np.arange(len(x)), np.abs(path)
    in_bulk = partial(bulk_fixed_point, iterations=TRIAL)
    for _ in range(80 // stride):
        path, unsettled = newton(step, x[lost] + 1j * height, path, 60)
        # the height of the variables over that a quartering before: 1/4 in a gap, 1 in the bulk, 1/2 at an edge;
        # more than 0.6 is tried as bulk, and less than 0.42 as a gap
        fall, above = (path.imag / above).min(axis=0), path.imag
        found = np.zeros(len(lost), dtype=bool)
        for trial, search in ((fall > 0.6**stride, in_bulk), (fall < 0.42**stride, real_fixed_point)):
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


def bulk_fixed_point(step: SelfMap, x: Real, start: Complex, *, iterations: int = 60) -> tuple[Complex, BoolArray]:
    """Newton from the given points of the upper half-plane; which results are proved to be fixed points there."""
    u, lost = newton(step, x + 0j, start, iterations)
    # an imaginary part smaller than that is rounding error: the fixed point is real, and x lies in a gap
    high = np.all(u.imag > 1e-11 * np.abs(u), axis=0) & np.isin(np.arange(len(x)), lost, invert=True)
    low = np.flatnonzero(high & np.any(u.imag < LOW * np.abs(u), axis=0))
    if len(low):
        high[low] = np.all(u[:, low].imag > 4 * rounding_bound(step, u[:, low], x[low]), axis=0)
    return u, high


def rounding_bound(step: SelfMap, u: Complex, x: Real) -> Real:
    """Rounding error of a fixed point, shape (d, n): that of the map, as far as the map does not contract it."""
    _, jacobian, error = step(u, x + 0j)
    return rounding_lift(jacobian, error)


def rounding_spread(step: SelfMap, u: Complex, x: Real) -> Real:
    """What rounding does to a fixed point, (d, n): :func:`rounding_bound` for two patterns of signs only."""
    if len(u) <= 2:
        return rounding_bound(step, u, x)
    _, jacobian, error = step(u, x + 0j)
    signs = np.where(np.arange(len(u)) % 2, -1.0, 1.0)
    both = np.stack([error, signs[:, None] * error], axis=-1).transpose(1, 0, 2) + 0j
    try:
        moved = np.linalg.solve(np.eye(len(u)) - np.moveaxis(jacobian, -1, 0), both)
    except np.linalg.LinAlgError:
        return rounding_bound(step, u, x)
    return np.asarray(np.abs(moved).sum(axis=2).T)


def real_fixed_point(step: SelfMap, x: Real, start: Complex) -> tuple[Complex, BoolArray]:
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


class FixedPointCurve:
    """Density of a law over its support, from the fixed-point problem at each x."""

    prove: Prove | None = None
    """Fixed points on either side of edges, and which are proved; by default, by descent from far above the axis."""

    def __init__(
        self, step: SelfMap, cauchy: Callable[[Complex, Real], Complex], x: Real, u: Complex, far: Far = np.atleast_2d
    ) -> None:
        self.step, self.cauchy, self.far = step, cauchy, far
        self.x, self.u = x, u

    def include(self, x: Real, u: Complex) -> None:
        """Take in points of the bulk with their variables, from which others may start."""
        fresh = ~np.isin(x, self.x)
        self.x, self.u = np.append(self.x, x[fresh]), np.concatenate([self.u, u[:, fresh]], axis=1)

    def density(self, x: Real) -> tuple[Real, Real]:
        """Density and a bound on its rounding error at points of the bulk."""
        iterations = 60 if self.prove is None else TRIES
        u, proved = bulk_fixed_point(self.step, x, self._start(x), iterations=iterations)
        if not proved.all():
            u[:, ~proved] = self._search(x[~proved])
        self.x, self.u = np.concatenate([self.x, x]), np.concatenate([self.u, u], axis=1)
        density = -self.cauchy(u, x).imag / np.pi
        # rounding error of u, in units of its height above the real axis
        error = (rounding_spread(self.step, u, x) / u.imag).max(axis=0)
        return density, density * (8 * error + 4 * EPS)

    def _search(self, x: Real) -> Complex:
        """Fixed points above points x that Newton's method does not reach from the known ones."""
        if self.prove is None:
            return solve_from_above(self.step, x, self.far)
        u, decided = self.prove(x)
        outside = ~decided | ~np.all(u.imag > 0, axis=0)
        if outside.any():
            raise BranchError("no solution in the upper half-plane", x[outside])
        return u

    def nearby(self, x: Real) -> Real:
        """Density at points close to known ones."""
        u, proved = bulk_fixed_point(self.step, x, self._start(x))
        self.include(x[proved], u[:, proved])
        return np.where(proved, -self.cauchy(u, x).imag / np.pi, np.nan)

    def _start(self, x: Real) -> Complex:
        """Newton's start: above the axis, on the line through both neighbours or a cubic that is close to it."""
        order = np.argsort(self.x, kind="stable")
        places = self.x[order]
        after = np.clip(np.searchsorted(places, x), 1, max(len(places) - 1, 1))
        index = np.stack([after - 1, np.minimum(after, len(places) - 1)])
        start = self._between(x, places, order, index)
        if len(places) >= 4:
            wide = np.clip(after - 2, 0, len(places) - 4) + np.arange(4)[:, None]
            better = self._between(x, places, order, wide)
            # in units of the height
            near = np.all(np.abs(better - start) < 0.1 * start.imag, axis=0)
            start = np.where(near, better, start)
        return np.asarray(start.real + 1j * np.maximum(start.imag, 1e-8 * np.abs(start)))

    def _between(self, x: Real, places: Real, order: Index, index: Index) -> Complex:
        """Lagrange's polynomial through the known points ``index``, of shape (k, n), at points between them."""
        inside = np.clip(x, places[0], places[-1])
        nodes = places[index]
        weights = np.ones(index.shape)
        for one, other in permutations(range(len(index)), 2):
            apart = nodes[one] - nodes[other]
            # a point that is known twice counts once
            weights[one] *= np.divide(inside - nodes[other], apart, out=np.full(len(x), 0.5), where=apart != 0)
        return np.asarray(np.einsum("kn,dkn->dn", weights, self.u[:, order[index]]))
