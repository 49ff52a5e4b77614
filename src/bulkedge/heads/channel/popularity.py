"""Shares of all attention that keys get, from three forms of a key: linear and quadratic ones.

A row u gives a key y the weight ``x = exp(sum a u y - a**2 u**2/2)/T``, relative to all keys, and the share
``x/(1 + x)`` if the key is not yet one of them. Over rows that are Gaussian, ``E x`` and the mean and variance of
``log x`` among the rows that look at the key (with weight x) are exponentials and squares: the three forms. Derived in
docs/theory/popularity.md, "Saturation".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log as logarithm
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array
from scipy import special

from bulkedge.heads.channel.moments import portions
from bulkedge.support.arrays import Real, as_numpy
from bulkedge.support.errors import UnresolvedError

STEPS = 60
"""Newton's steps at most; three to six are usual."""
REACH = logarithm(2)
"""Logarithm of what all shares together must be able to reach."""
CLOSE = 1e-5
"""How near to zero the logarithm of the sum of all shares has to be."""
LEFT, RIGHT = 1 / (2 * logarithm(2)), 1 / (2 - 2 * logarithm(2))
"""Rates of the exponentials that make up the logistic function, with its integrals to the left and right of zero."""


class Maps(NamedTuple):
    """What makes the three forms of a key: sums of squares and products of its features, a linear part, a constant.

    ``centre`` (..., d) is taken off the key first. ``features`` (..., d, 2 d) takes the rest to
    ``a_i y_i/(1 + a_i**2)**(1/2)`` and then ``a_i y_i/(1 + a_i**2)**(3/2)``, or to both turned by the same rotation;
    ``linear`` is (..., d, 3) and ``constant`` (..., 3), in the order of the forms.
    """

    centre: Any
    features: Any
    linear: Any
    constant: Any


def own_maps(couplings: Real, drift: Real) -> Maps:
    """Maps for keys in the coordinates that make a channel's directions independent."""
    square = couplings**2
    shrink, share = 1 / (1 + square), square / (1 + square)
    once = drift * shrink
    lost = once * share
    diagonal = couplings[..., None] * np.eye(couplings.shape[-1])
    features = np.concatenate([diagonal * shrink[..., None, :] ** power for power in (0.5, 1.5)], axis=-1)
    linear = np.stack([once, once - lost, -2 * shrink * lost], axis=-1)
    sums = [np.sum(each, axis=-1) for each in (np.log1p(square), share, share**2)]
    constant = constants(sums, [np.sum(once * each, axis=-1) for each in (drift, once, lost)])
    return Maps(np.zeros(couplings.shape), features, linear, constant)


def constants(sums: Sequence[Any], means: Sequence[Any]) -> Any:
    """Constants of the three forms, but for the logarithm of the number of keys."""
    xp = array_namespace(sums[0])
    log, level = (-(mean + each) / 2 for mean, each in zip(means[:2], sums[:2], strict=True))
    return xp.stack([log, level, means[2] + sums[2] / 2], axis=-1)


def forms(keys: Any, maps: Maps) -> Any:
    """The three forms of all keys, but for the logarithm of the number of keys."""
    xp, dim, start, found = array_namespace(keys), keys.shape[-1], 0, []
    whole = xp.concat([_beside(keys, maps.features), _beside(keys, maps.linear)], axis=-1)
    centre, constant = (_beside(keys, each)[..., None, :] for each in (maps.centre, maps.constant))
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


def _beside(keys: Any, array: Any) -> Any:
    """An array in the library, in the precision and on the device of keys."""
    xp = array_namespace(keys)
    if array_namespace(array) is not xp:
        array = as_numpy(array)
    return xp.asarray(array, dtype=keys.dtype, device=device(keys))


def saturated(xp: Any, log: Any, level: Any, variance: Any) -> Any:
    """Logarithms of the mean of ``x/(1 + x)`` over rows, all x times the factor that makes the shares sum to one.

    The normaliser of Gaussian keys is the annealed one. Where rows freeze, theirs is smaller than that, which raises
    all x alike; the share of a key that takes much already is raised less. The sum of the shares grows with the
    logarithm of the factor, and its logarithm is concave, so that Newton's iteration converges from any side.
    """
    # E x times the mean of 1/x among the rows that look is one. A Gaussian log x has that with twice its distance from
    # log E x as variance, and with its own has less: so much less, in very sharp heads, that no factor is large enough
    whole = 2 * (level - log)
    most = log - level + variance / 2
    top = xp.max(most, axis=-1, keepdims=True)
    reach = top + xp.log(xp.sum(xp.exp(most - top), axis=-1, keepdims=True))
    deviation = xp.sqrt(xp.clip(xp.where(reach > REACH, variance, whole), 1e-6, None))
    shift = xp.zeros_like(log[..., :1])
    for _ in range(STEPS):
        kept, steep = left_over(xp, level + shift, deviation)
        found = log + shift + kept
        top = xp.max(found, axis=-1, keepdims=True)
        shares = xp.exp(found - top)
        total = xp.sum(shares, axis=-1, keepdims=True)
        miss = top + xp.log(total)
        # in one question, for which a GPU has to be waited for; the caller tells what is not finite
        if bool(xp.all(xp.abs(miss) < CLOSE) | xp.any(~xp.isfinite(miss))):
            return found
        slope = xp.sum(shares * (1 + steep), axis=-1, keepdims=True) / total
        shift = shift - miss / xp.clip(slope, 1e-3, None)
    raise UnresolvedError("no normaliser of the rows makes these shares sum to one; the limit of many tokens has none")


def left_over(xp: Any, mean: Any, deviation: Any) -> tuple[Any, Any]:
    """Logarithm of the mean of ``1/(1 + e**g)`` over a Gaussian g, and its slope in the mean of g.

    The function is one less half an exponential to the left of zero, and the difference of two to the right, to 5 %
    everywhere: ``1 - exp(LEFT g)/2``, ``exp(-g) - exp(-RIGHT g)/2``. Their means are normal distribution functions.
    """
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
