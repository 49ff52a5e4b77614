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

from bulkedge.arrays import Real
from bulkedge.heads.popularity import left_over
from bulkedge.heads.roots import crossing

POINTS, WIDE = 16, 5.0
"""Levels of popularity that stand for all keys, and the standard deviations on which they lie."""
NEAREST, CLOSE = 30.0, 1e-7
"""Least distance of a slope from the singularity, as minus the logarithm of its share of the whole; error of that."""
STEPS = 12
"""Newton's steps for the normaliser, at most; three to six are usual."""

SQRT, TINY = float(np.sqrt(2 * np.pi)), 1e-300


class Level(NamedTuple):
    """Keys of one level of popularity, by the slope s of the logarithm of their number; arrays (heads, levels).

    ``log`` is the mean logarithm of popularity and ``level`` the mean of ``log x`` among the rows that look at such a
    key, both times the number of keys; ``generating`` is K, ``mean`` its derivative and ``deviation`` the root of the
    second one, at the slope.
    """

    log: Real
    level: Real
    generating: Real
    mean: Real
    deviation: Real


def top_share(couplings: Real, drift: Real, tokens: int) -> Real:
    """Median share of the most popular of so many Gaussian keys.

    Parameters
    ----------
    couplings, drift : array of shape (..., d)
        Couplings a and ``a mu`` of the heads.
    tokens : int
        Number of keys.

    Returns
    -------
    array of shape (...)
        Between one over the number of keys and one.
    """
    square = couplings**2
    rho, linear = square / (1 + square), drift / (1 + square)
    flat = np.sum(rho + drift**2, axis=-1) < 1e-12  # all keys are alike
    rho, linear = (np.where(flat[..., None], np.full_like(each, 1e-4), each) for each in (rho, linear))
    drift = np.where(flat[..., None], 0.0, drift)
    largest = np.max(rho, axis=-1)
    top = _slope(rho, linear, largest, log(log(2) / tokens))
    middle = np.minimum(top, 1.0)
    spread = WIDE / _levels(rho, linear, drift, middle[..., None]).deviation[..., 0]
    high = np.minimum(top, np.minimum(1 + spread, 1 + 0.99 * (1 / largest - 1)))
    slopes = middle[..., None] - spread[..., None] + np.linspace(0, 1, POINTS) * (high - middle + spread)[..., None]
    keys, one = _levels(rho, linear, drift, slopes), _levels(rho, linear, drift, np.ones_like(slopes[..., :1]))
    # of the attention, in the limit of many tokens, on keys above each level
    above = np.exp(_log_tail(slopes - 1, (slopes - 1) * keys.mean - (keys.generating - one.generating), keys.deviation))
    mass = np.clip(above[..., :-1] - above[..., 1:], 0, None)
    inside = (keys.level[..., 1:] + keys.level[..., :-1]) / 2 - log(tokens)
    log_inside = (keys.log[..., 1:] + keys.log[..., :-1]) / 2 - log(tokens)
    shift = _normaliser(mass, log_inside, inside)
    best = _levels(rho, linear, drift, top[..., None])
    log_share, level = best.log - log(tokens), best.level - log(tokens)
    kept = left_over(np, level + shift, np.sqrt(np.maximum(2 * (level - log_share), 1e-6)))[0]
    share = np.exp(log_share + shift + kept)[..., 0]
    return np.where(flat, 1 / tokens, np.clip(share, 1 / tokens, 1.0))


def _levels(rho: Real, linear: Real, drift: Real, slope: Real) -> Level:
    """Keys of each slope: (heads, d) and (heads, levels) to arrays (heads, levels)."""
    rho, linear, drift = rho[..., None, :], linear[..., None, :], drift[..., None, :]
    variance = 1 / (1 - slope[..., None] * rho)
    mean = slope[..., None] * linear * variance
    second = mean**2 + variance
    value = np.sum(linear * mean + rho * second / 2, axis=-1)
    generating = np.sum(slope[..., None] * linear * mean + np.log(variance), axis=-1) / 2
    scatter = np.sum(linear**2 * variance**3 + (rho * variance) ** 2 / 2, axis=-1)
    constant = np.sum(linear * drift - np.log1p(-rho), axis=-1) / 2
    squares = rho * (2 - rho) * second / 2 + linear * (1 - rho) * mean
    level = np.sum(squares - (linear**2 + rho) / 2, axis=-1)
    return Level(value - constant, level, generating, value, np.sqrt(scatter))


def _log_tail(slope: Real, legendre: Real, deviation: Real) -> Real:
    """Logarithm of the tail of a distribution at a saddle point, by Lugannani and Rice's formula."""
    w = np.sign(slope) * np.sqrt(2 * np.maximum(legendre, 0.0))
    v = slope * deviation
    near = np.abs(w) < 1e-3  # where both terms of the correction are large, and it is small itself
    with np.errstate(divide="ignore", invalid="ignore"):
        correction = np.where(near, 0.0, 1 / v - 1 / w)
    # the tail over the density at w, where the first is small; where it is not, the density itself may be nothing
    mills = special.erfcx(np.abs(w) / np.sqrt(2)) * SQRT / 2
    right = -(w**2) / 2 - log(SQRT) + np.log(np.maximum(mills + correction, TINY))
    left = np.log(np.maximum(special.ndtr(-w) + np.exp(-(w**2) / 2) / SQRT * correction, TINY))
    return np.where(w > 0, right, np.minimum(left, 0.0))


def _slope(rho: Real, linear: Real, largest: Real, log_tail: float) -> Real:
    """Slope at which the tail is the given one, for each head; by the logarithm of its distance to the singularity."""

    def slope_of(position: Real) -> Real:
        return -np.expm1(-position) / largest

    def excess(position: Real) -> Real:
        slope = slope_of(position)[..., None]
        keys = _levels(rho, linear, 0 * rho, slope)
        return _log_tail(slope, slope * keys.mean - keys.generating, keys.deviation)[..., 0] - log_tail

    return slope_of(crossing(excess, np.zeros(largest.shape), np.full(largest.shape, NEAREST), CLOSE))


def _normaliser(mass: Real, log_share: Real, level: Real) -> Real:
    """Logarithm of the factor on all x at which shares sum to one, (heads, 1); mass is what they are without it."""
    deviation = np.sqrt(np.maximum(2 * (level - log_share), 1e-6))
    logs = np.log(np.maximum(mass, 1e-300))
    shift = np.zeros_like(level[..., :1])
    for _ in range(STEPS):
        kept, steep = left_over(np, level + shift, deviation)
        found = logs + shift + kept
        top = np.max(found, axis=-1, keepdims=True)
        shares = np.exp(found - top)
        total = np.sum(shares, axis=-1, keepdims=True)
        if np.all(np.abs(top + np.log(total)) < 1e-6):
            break
        slope = np.sum(shares * (1 + steep), axis=-1, keepdims=True) / total
        shift = shift - (top + np.log(total)) / np.clip(slope, 1e-3, None)
    return shift
