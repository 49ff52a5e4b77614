"""Solutions of a masked problem along arcs and rays of the plane, each point from its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bulkedge.laws.engine.masked.riccati import Masked
from bulkedge.support.arrays import Complex, Mask, Real
from bulkedge.support.errors import UnresolvedError

STEEPEST = 1.5
"""Largest change of an unknown in one step of Newton's method."""
ROUGH, FINE = 1e-2, 1e-6
"""Last step of Newton's method on the way to a point, and at the point: what is left is about its square."""
MOST = 20
MOST_PARTS = 9
"""Steps into which the way from one point to the next is cut at most."""


@dataclass(frozen=True, eq=False)
class Solved:
    """Solutions at points w: the state of the problem at each, and the Cauchy transform.

    Attributes
    ----------
    logs : complex array of shape (s,)
        ``log w``, of imaginary part between 0 and pi.
    state : complex array of shape (ends, s, 2 u)
        The unknowns.
    cauchy : complex array of shape (s,)
        The Cauchy transform there.
    """

    logs: Complex
    state: Complex
    cauchy: Complex

    def take(self, index: Any) -> Solved:
        """Some of the points."""
        return Solved(self.logs[index], self.state[:, index], self.cauchy[index])

    @property
    def moment(self) -> Complex:
        """``w G(w)``."""
        return np.asarray(np.exp(self.logs) * self.cauchy)


def newton(problem: Masked, state: Complex, logs: Complex, tolerance: float = FINE) -> tuple[Solved, Mask]:
    """Newton's method at all points at once."""
    state, cauchy = state.copy(), np.full(len(logs), np.nan + 0j)
    active, done = np.arange(len(logs)), np.zeros(len(logs), dtype=bool)
    with np.errstate(all="ignore"):  # a point that runs away ends as not done
        for _ in range(MOST):
            linear, cauchy[active] = problem.linearised(state[:, active], np.exp(logs[active]))
            try:
                step = linear.step()
            except np.linalg.LinAlgError:
                break
            largest = np.abs(step).max(axis=(0, 2))
            state[:, active] += step * np.minimum(1.0, STEEPEST / largest)[:, None]
            done[active] = largest < tolerance
            active = active[(largest >= tolerance) & (largest < 1e6)]
            if not len(active):
                break
    return Solved(logs, state, cauchy), done


def ray(problem: Masked, logs: Real, angle: float) -> Solved:
    """Solutions at decreasing moduli on a ray, each from the line through the two before."""
    points = logs + 1j * angle
    found, _ = newton(problem, problem.far(np.exp(points[:1])), points[:1], ROUGH)
    slope = np.zeros_like(found.state)
    slope[..., : problem.terms] = -0.8
    kept = [found]
    for point in points[1:]:
        kept.append(continued(problem, kept[-1], complex(point), slope=slope))
        slope = (kept[-1].state - kept[-2].state) / (kept[-1].logs - kept[-2].logs).real
    state, cauchy = np.concatenate([each.state for each in kept], axis=1), np.concatenate([e.cauchy for e in kept])
    return Solved(points, state, cauchy)


def continued(
    problem: Masked, start: Solved, point: complex, tolerance: float = ROUGH, slope: Complex | None = None
) -> Solved:
    """The solution at another point from that at one, in shorter steps if need be."""
    here, parts, slope = start, 1, np.zeros_like(start.state) if slope is None else slope
    while parts <= MOST_PARTS:
        done = np.ones(1, dtype=bool)
        for part in range(parts):
            step = (point - here.logs[0]) / (parts - part)
            here, done = newton(problem, here.state + slope * step.real, here.logs + step, tolerance)
            if not done.all():
                break
        if done.all():
            return here
        here, parts, slope = start, 3 * parts, slope * 0  # the slope may be what misled it
    raise UnresolvedError(f"the equations of causal attention were not solved at |w| = {abs(np.exp(point)):.3g}")


def turned(problem: Masked, start: Solved, angles: Real, tolerance: float = FINE) -> list[Solved]:
    """Solutions at the same moduli at one angle after the other."""
    last, before, result = start, None, []
    for angle in angles:
        turn = angle - last.logs[0].imag
        if before is None or not turn:
            state = last.state.copy()
            state[..., : problem.terms] -= 0.5j * turn
        else:
            state = last.state + (last.state - before.state) * (turn / (last.logs[0] - before.logs[0]).imag)
        found, _ = newton(problem, state, last.logs.real + 1j * angle, tolerance)
        before, last = (last if turn else None), found
        result.append(found)
    return result
