"""Shares of all attention that keys get, from three forms of a key: linear and quadratic ones.

A row u gives a key y the weight ``x = exp(sum a u y - a**2 u**2/2)/T``, relative to all keys, and the share
``x/(1 + x)`` if the key is not yet one of them. Over rows that are Gaussian, ``E x`` and the mean and variance of
``log x`` among the rows that look at the key (with weight x) are exponentials and squares: the three forms. Derived in
docs/theory/popularity.md, "Saturation".

The share of the most popular key follows from couplings alone (:func:`top_share`). The logarithm of a key's popularity
is ``f(y) = sum b_i y_i + rho_i**2 y_i**2/2`` of a Gaussian key y, plus a constant, with ``rho**2 = a**2/(1 + a**2)``
and ``b = a mu/(1 + a**2)``. Its cumulants are known, ``K(s) = sum s**2 b**2 v/2 + log(v)/2`` with
``v = 1/(1 - s rho**2)``, so that Lugannani and Rice's saddle points give its tail: where s is the slope, keys have the
mean ``s b v`` and the variance v. The most popular of n keys is at the tail ``log(2)/n``, the median of the largest.
Attention itself sits at the keys of slope one, as far as there are such keys: what is missing raises the share of those
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from scipy import special
from scipy.optimize import elementwise

from bulkedge.heads.channel.moments import PopularityForms, constants, portions
from bulkedge.support.arrays import Index, Real, as_numpy
from bulkedge.support.errors import UnresolvedError

STEPS = 60  # Newton's steps at most; three to six are usual
LEFT, RIGHT = 1 / (2 * log(2)), 1 / (2 - 2 * log(2))
"""Rates of the exponentials that make up the logistic function, with its integrals to the left and right of zero."""
POINTS, WIDE = 16, 5.0  # levels of popularity that stand for all keys, and the standard deviations on which they lie
NEAREST, CLOSE = 30.0, 1e-7
"""Least distance of a slope from the singularity, as minus the logarithm of its share of the whole, and part of that by
which it may be off."""
SQRT, TINY = float(np.sqrt(2 * np.pi)), 1e-300


def own_forms(couplings: Real, drift: Real) -> PopularityForms:
    """Forms for keys in the coordinates that make a channel's directions independent."""
    square = couplings**2
    shrink, share = 1 / (1 + square), square / (1 + square)
    once = drift * shrink
    lost = once * share
    diagonal = couplings[..., None] * np.eye(couplings.shape[-1])
    features = np.concatenate([diagonal * shrink[..., None, :] ** power for power in (0.5, 1.5)], axis=-1)
    linear = np.stack([once, once - lost, -2 * shrink * lost], axis=-1)
    sums = [np.sum(each, axis=-1) for each in (np.log1p(square), share, share**2)]
    constant = constants(sums, [np.sum(once * each, axis=-1) for each in (drift, once, lost)])
    return PopularityForms(np.zeros(couplings.shape), features, linear, constant)


def forms(keys: Any, maps: PopularityForms) -> Any:
    """The three forms of all keys, but for the logarithm of the number of keys."""
    xp, dim, start, found = array_namespace(keys), keys.shape[-1], 0, []
    whole = xp.concat([_as_keys(keys, maps.features), _as_keys(keys, maps.linear)], axis=-1)
    centre, constant = (_as_keys(keys, each)[..., None, :] for each in (maps.centre, maps.constant))
    flat = [xp.reshape(each, (-1, *each.shape[-2:])) for each in (centre, whole, constant)]
    for portion in portions(keys):
        stop = start + portion.shape[0]
        middle, product, level = (each[start:stop] for each in flat)
        values = xp.matmul(portion - middle, product)
        first, third = values[..., :dim], values[..., dim : 2 * dim]
        square, mixed, last = (xp.sum(a * b, axis=-1) for a, b in ((first, first), (first, third), (third, third)))
        found.append(xp.stack([square / 2, (square + mixed) / 2, last], axis=-1) + values[..., 2 * dim :] + level)
        start = stop
    return xp.reshape(xp.concat(found, axis=0), (*keys.shape[:-1], 3))


def _as_keys(keys: Any, array: Any) -> Any:
    """An array in the library, in the precision and on the device of keys."""
    xp = array_namespace(keys)
    if array_namespace(array) is not xp:
        array = as_numpy(array)
    return xp.asarray(array, dtype=keys.dtype, device=device(keys))


def saturate(xp: Any, logs: Any, level: Any, variance: Any) -> Any:
    """Logarithms of the mean of ``x/(1 + x)`` over rows, all x times the factor that makes the shares sum to one."""
    # the log of the sum of shares is concave in the log of the factor: Newton's iteration converges from any side
    # E x times the mean of 1/x among the rows that look is one. A Gaussian log x has that with twice its distance from
    # log E x as variance, and with its own has less: so much less, in very sharp heads, that no factor is large enough
    whole = 2 * (level - logs)
    most = logs - level + variance / 2
    top = xp.max(most, axis=-1, keepdims=True)
    reach = top + xp.log(xp.sum(xp.exp(most - top), axis=-1, keepdims=True))
    deviation = xp.sqrt(xp.clip(xp.where(reach > log(2), variance, whole), 1e-6, None))
    shift = xp.zeros_like(logs[..., :1])
    for _ in range(STEPS):
        found, miss, slope = _shifted(xp, logs, level, deviation, shift)
        # in one question, for which a GPU has to be waited for; the caller reports what is not finite
        if bool(xp.all(xp.abs(miss) < 1e-5) | xp.any(~xp.isfinite(miss))):
            return found
        shift = shift - miss / xp.clip(slope, 1e-3, None)
    raise UnresolvedError("no normaliser of the rows makes these shares sum to one; the limit of many tokens has none")


def _shifted(xp: Any, logs: Any, level: Any, deviation: Any, shift: Any) -> tuple[Any, Any, Any]:
    """Logarithms of shares with all x times a factor, that of their sum, and its slope in that of the factor."""
    kept, steep = left_over(xp, level + shift, deviation)
    found = logs + shift + kept
    top = xp.max(found, axis=-1, keepdims=True)
    shares = xp.exp(found - top)
    total = xp.sum(shares, axis=-1, keepdims=True)
    return found, top + xp.log(total), xp.sum(shares * (1 + steep), axis=-1, keepdims=True) / total


def left_over(xp: Any, mean: Any, deviation: Any) -> tuple[Any, Any]:
    """Logarithm of the mean of ``1/(1 + e**g)`` over a Gaussian g, and its slope in the mean of g."""
    # to 5 %, the function is 1 - exp(LEFT g)/2 left of zero and exp(-g) - exp(-RIGHT g)/2 to the right
    log_ndtr = _log_ndtr(mean)
    ratio = mean / deviation

    def side(rate: float, sign: float) -> Any:
        return sign * rate * mean + (rate * deviation) ** 2 / 2 + log_ndtr(-sign * ratio - rate * deviation)

    logs = [log_ndtr(-ratio), side(1.0, -1.0), side(LEFT, 1.0), side(RIGHT, -1.0)]
    top = xp.maximum(logs[0], logs[1])
    one, falling, before, after = (xp.exp(each - top) for each in logs)
    value = one + falling - (before + after) / 2
    return top + xp.log(value), (RIGHT * after / 2 - LEFT * before / 2 - falling) / value


def _log_ndtr(array: Any) -> Any:
    """The logarithm of the normal distribution function, of the library of an array; no standard has it."""
    if is_torch_array(array):
        import torch

        return torch.special.log_ndtr
    return special.log_ndtr


# -- the most popular key ----------------------------------------------------------------------------------------------


class Level(NamedTuple):
    """Keys of one level of popularity, by the slope s of the logarithm of their number; arrays (heads, levels)."""

    log: Real  # mean logarithm of popularity, times the number of keys
    level: Real  # mean of log x among the rows that look at such a key, likewise
    generating: Real  # K, and then of its derivatives the first, the root of the second, and the third
    mean: Real
    deviation: Real
    third: Real


class Directions(NamedTuple):
    """Heads by what powers of ``v = 1/(1 - s rho**2)`` are multiplied with in sums over their directions."""

    rho: Real  # (heads, d): squares of rho
    factors: tuple[Real, Real, Real, Real]  # of the first to the fourth power, (heads, d, sums)
    constant: Real  # (heads, 1): what is taken from the mean for the logarithm of popularity
    offset: Real  # (heads, 1): what is taken from the sums for the level

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

    def take(self, heads: Index) -> Directions:
        """Some of the heads."""
        factors = tuple(each[heads] for each in self.factors)
        return Directions(self.rho[heads], factors, self.constant[heads], self.offset[heads])  # type: ignore[arg-type]

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
    """Slope at which the tail is the given one, (heads, 1), from the largest of the squares of rho, (heads, 1)."""

    # by minus the logarithm of the distance to the singularity, as its share of the whole
    def excess(logs: Real, of: Index) -> Real:
        slope = -np.expm1(-np.exp(logs))[:, None] / largest[of]
        keys = heads.take(of).levels(slope)
        return (_log_tail(slope, slope * keys.mean - keys.generating, keys) - log_tail)[:, 0]

    zero, count = np.zeros_like(largest), len(largest)
    # the more popular of two keys may be below the mean of all, where there is no such slope but zero
    none = (_log_tail(zero, zero, heads.levels(zero)) <= log_tail)[:, 0]
    found = roots_of_heads(excess, np.full(count, -30.0), np.full(count, log(NEAREST)), CLOSE)
    if np.any(np.isnan(found) & ~none):
        raise UnresolvedError(f"no slope was found at which the tail of the popularity of keys is exp({log_tail:.4g})")
    return np.where(none, 0.0, -np.expm1(-np.exp(found)))[:, None] / largest


def roots_of_heads(falling: Callable[[Real, Index], Real], low: Real, high: Real, close: float) -> Real:
    """Where a function of a number for each head, and of the heads, falls through zero; nan where it does not."""
    tolerances = {"xatol": close, "xrtol": 0.0, "fatol": 0.0, "frtol": 0.0}
    found = elementwise.find_root(falling, (low, high), args=(np.arange(low.size),), tolerances=tolerances)
    return np.where(found.success, found.x, np.nan)


def _normaliser(mass: Real, log_share: Real, level: Real) -> Real:
    """Logarithm of the factor on all x at which shares sum to one, (heads, 1); mass is what they are without it."""
    deviation = np.sqrt(np.maximum(2 * (level - log_share), 1e-6))
    logs = np.log(np.maximum(mass, TINY))
    shift, left = np.zeros_like(level[:, :1]), np.arange(len(level))
    for _ in range(12):
        _, miss, slope = _shifted(np, logs[left], level[left], deviation[left], shift[left])
        far = ~(np.abs(miss[:, 0]) < 1e-6)
        left = left[far]
        if not left.size:
            break
        shift[left] -= (miss / np.clip(slope, 1e-3, None))[far]
    return shift
