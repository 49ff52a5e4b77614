"""The share of all attention that the most popular key of a head gets, from its couplings alone.

The logarithm of a key's popularity is ``f(y) = sum b_i y_i + rho_i**2 y_i**2/2`` of a Gaussian key y, plus a constant,
with ``rho**2 = a**2/(1 + a**2)`` and ``b = a mu/(1 + a**2)`` (docs/theory/popularity.md, "Saturation"). Its cumulants
are known, ``K(s) = sum s**2 b**2 v/2 + log(v)/2`` with ``v = 1/(1 - s rho**2)``, so that Lugannani and Rice's saddle
points give its tail: where s is the slope, keys have the mean ``s b v`` and the variance v. The most popular of n keys
is at the tail ``log(2)/n``, the median of the largest. Attention itself sits at the keys of slope one, as far as there
are such keys: what is missing raises the share of those there are.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
from scipy import special

from bulkedge.heads.channel.popularity import left_over
from bulkedge.support.arrays import Real
from bulkedge.support.errors import UnresolvedError

POINTS, WIDE = 16, 5.0
"""Levels of popularity that stand for all keys, and the standard deviations on which they lie."""
NEAREST, CLOSE = 30.0, 1e-7
"""Least distance of a slope from the singularity, as minus the logarithm of its share of the whole; error of that,
as a part of it where it is less than one."""
STEPS = 12
"""Newton's steps for the normaliser, at most; three to six are usual."""
SLOPE_STEPS = 60
"""The same for the slope of the most popular key, where four to six are usual."""

SQRT, TINY = float(np.sqrt(2 * np.pi)), 1e-300


class Level(NamedTuple):
    """Keys of one level of popularity, by the slope s of the logarithm of their number; arrays (heads, levels).

    ``log`` is the mean logarithm of popularity and ``level`` the mean of ``log x`` among the rows that look at such a
    key, both times the number of keys; ``generating`` is K, ``mean`` its derivative, ``deviation`` the root of the
    second one and ``third`` the third one, at the slope.
    """

    log: Real
    level: Real
    generating: Real
    mean: Real
    deviation: Real
    third: Real


class Directions(NamedTuple):
    """Heads by what powers of ``v = 1/(1 - s rho**2)`` are multiplied with in sums over their directions."""

    rho: Real
    """(heads, d): squares of rho."""
    factors: tuple[Real, Real, Real, Real]
    """Of the first to the fourth power, (heads, d, sums)."""
    constant: Real
    """(heads, 1): what is taken from the mean for the logarithm of popularity."""
    offset: Real
    """(heads, 1): what is taken from the sums for the level."""

    @classmethod
    def of(cls, rho: Real, linear: Real, drift: Real) -> Directions:
        """The sums of heads."""
        squares, curved = linear**2, rho * (2 - rho) / 2
        sums = (
            (squares, rho, curved, squares * (1 - rho)),
            (squares * rho, rho**2, curved * squares),
            (squares, rho**3),
            (squares * rho,),
        )
        one, two, three, four = (np.stack(each, axis=-1) for each in sums)
        constant = np.sum(linear * drift - np.log1p(-rho), axis=-1)[..., None] / 2
        offset = np.sum(squares + rho, axis=-1)[..., None] / 2
        return cls(rho, (one, two, three, four), constant, offset)

    def levels(self, slope: Real) -> Level:
        """Keys of each slope."""
        v = 1 / (1 - slope[..., None] * self.rho[..., None, :])
        square = v * v
        powers = (v, square, square * v, square * square)
        one, two, three, four = (power @ factor for power, factor in zip(powers, self.factors, strict=True))
        generating = (slope**2 * one[..., 0] + np.sum(np.log(v), axis=-1)) / 2
        mean = slope * one[..., 0] + (slope**2 * two[..., 0] + one[..., 1]) / 2
        level = slope**2 * two[..., 2] + one[..., 2] + slope * one[..., 3] - self.offset
        deviation = np.sqrt(three[..., 0] + two[..., 1] / 2)
        return Level(mean - self.constant, level, generating, mean, deviation, 3 * four[..., 0] + three[..., 1])


def top_share(couplings: Real, drift: Real, tokens: int) -> Real:
    """Median share of the most popular of so many Gaussian keys."""
    shape = couplings.shape[:-1]
    couplings, drift = (each.reshape(-1, each.shape[-1]) for each in (couplings, drift))
    square = couplings**2
    rho, linear = square / (1 + square), drift / (1 + square)
    flat = np.sum(rho + drift**2, axis=-1) < 1e-12  # all keys are alike
    rho, linear = (np.where(flat[..., None], np.full_like(each, 1e-4), each) for each in (rho, linear))
    drift = np.where(flat[..., None], 0.0, drift)
    heads, largest = Directions.of(rho, linear, drift), np.max(rho, axis=-1, keepdims=True)
    top = _slope(heads, largest, log(log(2) / tokens))
    middle = np.minimum(top, 1.0)
    spread = WIDE / heads.levels(middle).deviation
    high = np.minimum(top, np.minimum(1 + spread, 1 + 0.99 * (1 / largest - 1)))
    slopes = middle - spread + np.linspace(0, 1, POINTS) * (high - middle + spread)
    known = heads.levels(np.concatenate([slopes, np.ones_like(top), top], axis=-1))
    keys, one, best = (
        Level(*(each[..., part] for each in known)) for part in (slice(POINTS), slice(POINTS, -1), slice(-1, None))
    )
    # of the attention, in the limit of many tokens, on keys above each level
    above = np.exp(_log_tail(slopes - 1, (slopes - 1) * keys.mean - (keys.generating - one.generating), keys))
    mass = np.clip(above[..., :-1] - above[..., 1:], 0, None)
    inside = (keys.level[..., 1:] + keys.level[..., :-1]) / 2 - log(tokens)
    log_inside = (keys.log[..., 1:] + keys.log[..., :-1]) / 2 - log(tokens)
    shift = _normaliser(mass, log_inside, inside)
    log_share, level = best.log - log(tokens), best.level - log(tokens)
    kept = left_over(np, level + shift, np.sqrt(np.maximum(2 * (level - log_share), 1e-6)))[0]
    share = np.exp(log_share + shift + kept)[..., 0]
    return np.where(flat, 1 / tokens, np.clip(share, 1 / tokens, 1.0)).reshape(shape)


def _log_tail(slope: Real, legendre: Real, keys: Level) -> Real:
    """Logarithm of the tail of a distribution at a saddle point, by Lugannani and Rice's formula."""
    w = np.sign(slope) * np.sqrt(2 * np.maximum(legendre, 0.0))
    v = slope * keys.deviation
    near = np.abs(w) < 1e-3  # where both terms of the correction are large, and their difference is the skewness
    with np.errstate(divide="ignore", invalid="ignore"):
        correction = np.where(near, -keys.third / (6 * keys.deviation**3), 1 / v - 1 / w)
    # the tail over the density at w, where the first is small; where it is not, the density itself may be nothing
    mills = special.erfcx(np.abs(w) / np.sqrt(2)) * SQRT / 2
    right = -(w**2) / 2 - log(SQRT) + np.log(np.maximum(mills + correction, TINY))
    left = np.log(np.maximum(special.ndtr(-w) + np.exp(-(w**2) / 2) / SQRT * correction, TINY))
    return np.where(w > 0, right, np.minimum(left, 0.0))


def _slope(heads: Directions, largest: Real, log_tail: float) -> Real:
    """Slope at which the tail is the given one, (heads, 1), from the largest of the squares of rho, (heads, 1).

    Let p be minus the logarithm of the distance to the singularity, as its share of the whole, and g the number of
    deviations beyond which a Gaussian has the tail of the keys at p. To first order ``g = w + log(v/w)/w``, with w and
    v as in :func:`_log_tail` (Barndorff-Nielsen), which gives the slope of g. As log g is nearly a straight line of
    log p while p is small, and convex beyond, Newton's steps in these come down from the right. The more popular of two
    keys may be below the mean of all, where there is no such slope but zero.
    """
    wanted = log(-special.ndtri_exp(log_tail))
    still = heads.levels(np.zeros_like(largest))
    none = _log_tail(np.zeros_like(largest), np.zeros_like(largest), still) <= log_tail
    position = np.minimum(np.exp(wanted) * largest / still.deviation, NEAREST)
    low, high = np.zeros_like(position), np.full_like(position, NEAREST)
    for _ in range(SLOPE_STEPS):
        slope = -np.expm1(-position) / largest
        keys = heads.levels(slope)
        gaussian, steep = _deviations(slope, keys)
        miss = np.log(gaussian) - wanted
        low, high = np.where(miss <= 0, position, low), np.where(miss >= 0, position, high)
        step = miss * gaussian * largest / (position * steep * np.exp(-position))
        following = position * np.exp(np.clip(-step, -NEAREST, NEAREST))
        following = np.where((following >= low) & (following <= high), following, (low + high) / 2)
        moved = np.abs(following - position) > CLOSE * np.minimum(position, 1.0)
        position = following
        if not np.any(moved & ~none):
            return np.where(none, 0.0, -np.expm1(-position) / largest)
    raise UnresolvedError(f"no slope was found at which the tail of the popularity of keys is exp({log_tail:.4g})")


def _deviations(slope: Real, keys: Level) -> tuple[Real, Real]:
    """Deviations beyond which a Gaussian has the tail of keys of a positive slope, and their derivative by it."""
    legendre = np.maximum(slope * keys.mean - keys.generating, TINY)
    gaussian = np.maximum(-special.ndtri_exp(_log_tail(slope, legendre, keys)), TINY)
    w, v = np.sqrt(2 * legendre), slope * keys.deviation
    w_slope, v_slope = slope * keys.deviation**2 / w, keys.deviation + slope * keys.third / (2 * keys.deviation)
    return gaussian, w_slope + (v_slope / v - w_slope / w - w_slope * np.log(v / w) / w) / w


def _normaliser(mass: Real, log_share: Real, level: Real) -> Real:
    """Logarithm of the factor on all x at which shares sum to one, (heads, 1); mass is what they are without it."""
    deviation = np.sqrt(np.maximum(2 * (level - log_share), 1e-6))
    logs = np.log(np.maximum(mass, 1e-300))
    shift, left = np.zeros_like(level[:, :1]), np.arange(len(level))
    for _ in range(STEPS):
        kept, steep = left_over(np, level[left] + shift[left], deviation[left])
        found = logs[left] + shift[left] + kept
        top = np.max(found, axis=-1, keepdims=True)
        shares = np.exp(found - top)
        total = np.sum(shares, axis=-1, keepdims=True)
        miss = top + np.log(total)
        slope = np.sum(shares * (1 + steep), axis=-1, keepdims=True) / total
        far = ~(np.abs(miss[:, 0]) < 1e-6)
        left = left[far]
        if not left.size:
            break
        shift[left] -= (miss / np.clip(slope, 1e-3, None))[far]
    return shift
