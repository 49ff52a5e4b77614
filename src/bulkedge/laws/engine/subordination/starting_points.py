"""New points of the line between known ones, and fixed points there."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from bulkedge.laws.engine.subordination.fixed_point import bulk_fixed_point, real_fixed_point
from bulkedge.laws.engine.subordination.newton import Step
from bulkedge.support.arrays import Complex, Index, Mask, Real

TRIES = 25
"""Steps of Newton's method from a neighbour in the bulk; points that need more are approached from far above."""
in_bulk = partial(bulk_fixed_point, iterations=TRIES)


class Known(NamedTuple):
    """Points of the line with their fixed points.

    Attributes
    ----------
    x : array of shape (n,)
        The points, increasing.
    state : complex array of shape (d, n)
        The fixed points; not finite where none is known.
    inside : bool array of shape (n,)
        Which points lie in the bulk; the others lie in gaps.
    """

    x: Real
    state: Complex
    inside: Mask

    def lead_to(self, x: Real, step: Step) -> tuple[Complex, Mask]:
        """Newton's method from the nearest known points, first from one in a gap, then from one in the bulk."""
        state, pending = np.zeros((len(self.state), len(x)), dtype=complex), np.arange(len(x))
        finite = np.isfinite(self.state[0])
        for kind, search in ((~self.inside & finite, real_fixed_point), (self.inside, in_bulk)):
            if not kind.any() or not len(pending):
                continue
            start = self.state[:, np.flatnonzero(kind)[_nearest(self.x[kind], x[pending])]]
            found, proved = search(step, x[pending], start)
            state[:, pending[proved]], pending = found[:, proved], pending[~proved]
        return state, np.isin(np.arange(len(x)), pending, invert=True)

    def above(self, x: Real) -> tuple[Real, Complex] | None:
        """Heights above new points, as far as the nearest known points of the bulk, and the fixed points of those."""
        if not self.inside.any():
            return None
        return np.maximum(self.inside_distance(x), 1e-6 * np.abs(x)), self.nearest_inside(x)

    @classmethod
    def sorted(cls, x: Real, state: Complex) -> Known:
        """Points of the bulk, given in any order."""
        order = np.argsort(x, kind="stable")
        return cls(x[order], state[:, order], np.ones(len(x), dtype=bool))

    def inside_distance(self, x: Real) -> Real:
        """How far the nearest known points of the bulk are."""
        places = self.x[self.inside]
        return np.abs(places[_nearest(places, x)] - x) if len(places) else np.full(len(x), np.inf)

    def nearest_inside(self, x: Real) -> Complex:
        """The fixed points of the nearest known points of the bulk, of which there is at least one."""
        (inside,) = np.nonzero(self.inside)
        return self.state[:, inside[_nearest(self.x[inside], x)]]


def _nearest(places: Real, x: Real) -> Index:
    """Which of the places, in increasing order, is nearest to each x."""
    after = np.clip(np.searchsorted(places, x), 1, max(len(places) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(places) - 1)
    return np.where(np.abs(x - places[before]) <= np.abs(places[after] - x), before, after)


def between(low: float, high: float, count: int, bottom: float | None) -> Real:
    """Points that cut a stretch of the line into parts."""
    # unequal parts, so that no point falls on an atom by symmetry
    parts = (np.arange(1, count) - 0.1618) / count
    if bottom is None:
        return np.asarray(low + (high - low) * parts)
    if low < 0 < high:
        ends = max(-low, bottom), max(high, bottom)
        return np.concatenate([-(ends[0] ** (1 - parts)) * bottom**parts, bottom ** (1 - parts) * ends[1] ** parts])
    near, far = (low, high) if high > 0 else (high, low)
    if abs(far) <= 8 * abs(near):
        return np.asarray(low + (high - low) * parts)
    bottom = max(abs(near), bottom)
    return np.asarray(np.copysign(bottom * (abs(far) / bottom) ** parts, far))
