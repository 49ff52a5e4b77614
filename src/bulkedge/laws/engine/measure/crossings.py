"""Where a function that decreases on every gap of a support takes given values.

The Cauchy transform of a measure decreases on every interval that the measure leaves free: from plus infinity or a
finite value at the left end to minus infinity or a finite value at the right end, and from or to zero at infinity. So
it takes a value at most once in each gap, and its limits at the ends say whether. Points are sought on a logarithmic
scale of their distance to the nearer end, because they come close to edges and atoms.

>>> gaps = Gaps(np.array([-np.inf, 0.0, 1.0]), np.array([0.0, 1.0, np.inf]))
>>> g = lambda x: (0.5 / x + 0.5 / (x - 1), -0.5 / x**2 - 0.5 / (x - 1) ** 2)      # atoms at 0 and 1
>>> limits = np.array([[0.0, np.inf, np.inf], [-np.inf, -np.inf, 0.0]])
>>> found = crossings(g, gaps, limits, np.array([0.5]), np.array([2.0]))
>>> found.gap, found.point.round(12)                                               # of x**2 - 3 x + 1
(array([1, 2]), array([0.38196601, 2.61803399]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bulkedge.support.arrays import EPS, BoolArray, Index, Real
from bulkedge.support.errors import UnresolvedError

CLOSEST = -72.0  # points are sought from a relative distance of exp(-72) = 5e-32 to the end of a gap onwards
FEWEST = 4096
"""Gaps with fewer numbers in them are taken as closed too. Unless the perturbation is as small, 1e-12 of the locations,
overlaps there are below 1e-20."""

Function = Callable[[Real], tuple[Real, Real]]  # value and derivative at points of gaps


@dataclass(frozen=True)
class Gaps:
    """Open intervals ``(low[k], high[k])`` without mass, in increasing order; the outermost may be infinite."""

    low: Real
    high: Real

    def __len__(self) -> int:
        return len(self.low)

    def holding(self, points: Real) -> Index:
        """The gap that each point lies in, and -1 for points in none."""
        which = np.searchsorted(self.low, points, side="right") - 1
        inside = (which >= 0) & (points > self.low[which]) & (points < self.high[which]) if len(self) else which >= 0
        return np.where(inside, which, -1)

    def ends(self, k: int) -> tuple[float, float]:
        """Both ends of one gap, as Python's floats."""
        return float(self.low[k]), float(self.high[k])


@dataclass(frozen=True)
class Crossings:
    """Solutions, one in each array position: the number of the target, the gap, and the point."""

    target: Index
    gap: Index
    point: Real


def gaps_between(pieces: list[tuple[float, float]], *, open_above: bool = True) -> Gaps:
    """The gaps between closed pieces, which may overlap; ``open_above`` if the last gap reaches to infinity."""
    ordered = sorted(pieces)
    low, high = [-np.inf], list[float]()
    last = ordered[0][0]
    size = max(abs(end) for piece in ordered for end in piece)
    for left, right in ordered:
        # gaps narrower than this share of the whole law are taken as closed: an end at zero is rarely known better
        if not high or left - last > max(1e-30 * size, FEWEST * float(np.spacing(max(abs(left), abs(last))))):
            high.append(left)
            low.append(right)
        last = max(last, right)
        low[-1] = last
    high.append(np.inf)
    kept = slice(None) if open_above else slice(-1)
    return Gaps(np.array(low[kept]), np.array(high[kept]))


def crossings(function: Function, gaps: Gaps, limits: Real, targets: Real, reach: Real) -> Crossings:
    """All points of all gaps at which the function takes one of the values."""
    above, below = limits
    target, gap = np.nonzero((targets[:, None] < above) & (targets[:, None] > below))
    if not len(target):
        return Crossings(target, gap, np.empty(0))
    low, high, value = gaps.low[gap], gaps.high[gap], targets[target]
    bounded = np.isfinite(low) & np.isfinite(high)
    span = reach[target]
    span[bounded] = (high[bounded] - low[bounded]) / 2
    beyond = np.isfinite(low)  # the solution is sought from the lower end
    if bounded.any():
        beyond[bounded] = function(low[bounded] + span[bounded])[0] < value[bounded]
    start, sign = np.where(beyond, low, high), np.where(beyond, 1.0, -1.0)
    return Crossings(target, gap, _solve(function, start, sign, span, value))


def _solve(function: Function, start: Real, sign: Real, span: Real, value: Real) -> Real:
    """Newton's method in the logarithm of the distance to ``start``, kept in a bracket that is halved now and then."""
    # there the logarithm of the function is nearly linear, next to atoms and far out
    low, high = np.full(start.shape, CLOSEST), np.full(start.shape, 1e-9)
    t = np.full(start.shape, -1.0)
    active = np.arange(len(start))
    # one step in four halves the bracket, so that a hundred halvings fit
    for step in range(400):
        low_, high_, now, way, target = low[active], high[active], t[active], sign[active], value[active]
        distance = span[active] * np.exp(now)
        point = start[active] + way * distance
        found, slope = function(point)
        # a point that rounds to an atom or a hard edge is too close to it, and soft edges have finite values
        too_near = ~np.isfinite(found) | (way * (found - target) > 0)
        low_, high_ = np.where(too_near, now, low_), np.where(too_near, high_, now)
        with np.errstate(all="ignore"):
            quotient = found / target
            change = np.where(quotient > 0, np.log(quotient) * found, found - target) / (-way * slope * distance)
        moved = now + change
        halve = ~((moved > low_) & (moved < high_)) if step % 4 < 3 else np.full(now.shape, fill_value=True)
        # an end says nothing of its neighbourhood, and where the slope is infinite Newton's method stands still
        change[(point == start[active]) | ~np.isfinite(slope)] = np.nan
        settled = (
            _is_settled(now, change, point, distance)
            | (found == target)
            | (high_ - low_ <= 4 * EPS * np.maximum(-low_, 1))
        )
        t[active] = np.where(settled, now, np.where(halve, (low_ + high_) / 2, moved))
        low[active], high[active] = low_, high_
        active = active[~settled]
        if not len(active):
            return start + sign * span * np.exp(t)
    raise UnresolvedError(f"the outliers next to {start[active].tolist()} did not converge")


def _is_settled(now: Real, change: Real, point: Real, distance: Real) -> BoolArray:
    """Whether the next step of Newton's method moves the point by less than its rounding."""
    with np.errstate(invalid="ignore"):
        moves = np.abs(change)
        small = moves <= 2 * EPS * np.maximum(np.abs(now), 1)
        return np.asarray(small | ((moves <= 1e-3) & (moves * distance <= 0.25 * np.spacing(np.abs(point)))))
