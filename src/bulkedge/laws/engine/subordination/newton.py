"""Newton's method in the upper half-plane, for many points at once, with steps measured in its hyperbolic distance."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from bulkedge.laws.engine.subordination.multipliers import contracts
from bulkedge.support.arrays import Complex, Index, Mask, Real

Step = Callable[[Complex, Complex], tuple[Complex, Complex, Real]]
"""``step(u, z)`` takes d variables u, of shape ``(d, n)``, at n points z and returns ``T_z(u) - u``, of the same shape,
the Jacobian of T, ``(d, d, n)``, and the rounding error of the first, ``(d, n)``."""

LOW = 1e-4
"""Imaginary part over modulus below which rounding may have lifted a variable off the axis."""
FALLEN = 1e-13
"""The same, below which a point has come down to the axis for good."""
HIGH = 1e3
"""How many times its rounding error a fixed point has to be above the axis to be certainly above it."""


def newton(step: Step, z: Complex, start: Complex, iterations: int) -> tuple[Complex, Index]:
    """Damped Newton, in the upper half-plane.

    A step is kept if it shortens the hyperbolic distance from u to T(u). Where no damping helps, the plain step to T(u)
    is taken, which never lengthens it (Schwarz-Pick). Most calls are of few points and cost what calls cost: points
    that are done leave the arrays, and what happens to few points is looked at only if it happens.
    """
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
            settled = better & _settled(trial, (shift, delta), damping, (jacobian, error))
            # on the axis, a point so low has a real fixed point: it is lost, and given up
            fallen = (trial.imag < FALLEN * np.abs(trial)).any(axis=0) & ~settled
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


def _settled(u: Complex, moves: tuple[Complex, Complex], damping: Real, at: tuple[Complex, Real]) -> Mask:
    """Which points u have converged.

    ``moves`` are ``T(u) - u`` and Newton's step at the point before, (d, n) each, and ``at`` the Jacobian there and the
    rounding error of the first.
    """
    (shift, delta), (jacobian, error) = moves, at
    # the map is analytic in a disc of radius Im u, so Newton's next error is about |delta|**2 / Im u
    exact = (np.abs(delta) <= 1e-8 * u.imag) & (damping == 1)
    settled = np.asarray((exact | (np.abs(shift) <= 4 * error)).all(axis=0))
    if settled.any():
        low = np.flatnonzero(settled & (u.imag < LOW * np.abs(u)).any(axis=0))
        if len(low):
            settled[low] = _interior(u[:, low], jacobian[..., low], error[:, low])
    return settled


def _interior(u: Complex, jacobian: Complex, error: Real) -> Mask:
    """Whether fixed points lie in the open half-plane: they attract, or are higher than rounding explains.

    Those of the open half-plane attract; one that does not lies on the axis, and rounding lifted it. But a map that is
    nearly an automorphism of the half-plane turns about its fixed point, with a multiplier whose modulus is one but for
    less than rounding: so do the maps of products next to zero, where all atoms are far from u. There height decides.
    """
    inside = contracts(jacobian)
    doubt = np.flatnonzero(~inside)
    if len(doubt):
        lifted = lifted_by(jacobian[..., doubt], error[:, doubt])
        inside[doubt] = np.all(u[:, doubt].imag > HIGH * lifted, axis=0)
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
        delta = _solved(_one_less(jacobian), residual)
    else:
        (a, b), (c, d) = np.eye(2)[:, :, None] - jacobian
        delta = np.stack([d * residual[0] - b * residual[1], a * residual[1] - c * residual[0]]) / (a * d - b * c)
    finite = np.isfinite(delta).all(axis=0)
    return delta if finite.all() else np.where(finite, delta, residual)


def _one_less(jacobian: Complex) -> Complex:
    """``1 - jacobian`` for matrices given as ``(d, d, n)``, as a stack ``(n, d, d)``."""
    return np.asarray(np.eye(len(jacobian)) - jacobian.transpose(2, 0, 1))


def _solved(stacked: Complex, right: Complex) -> Complex:
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


def lifted_by(jacobian: Complex, error: Real) -> Real:
    """What a rounding error of the map makes of its fixed points, by its Jacobian there."""
    if len(error) == 1:
        return np.asarray(error / np.abs(1 - jacobian[0]))
    inverse = _inverted(np.eye(len(error))[:, :, None] - jacobian)
    return np.asarray(np.einsum("ijn,jn->in", np.abs(inverse), error))


def _inverted(matrix: Complex) -> Complex:
    """Inverses of matrices ``(d, d, n)``; infinite where there is none."""
    result = np.full(matrix.shape, np.inf + 0j)
    stacked = np.moveaxis(matrix, -1, 0)
    regular = np.all(np.isfinite(stacked), axis=(1, 2))
    regular[regular] = np.linalg.det(stacked[regular]) != 0
    result[..., regular] = np.moveaxis(np.linalg.inv(stacked[regular]), 0, -1)
    return result
