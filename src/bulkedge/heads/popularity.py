"""Shares of all attention that keys get, from three forms of a key: linear and quadratic ones.

A row u gives a key y the weight ``x = exp(sum a u y - a**2 u**2/2)/l``, relative to all keys, and the share
``x/(1 + x)`` if the key is not yet one of them. Over rows that are Gaussian, ``E x`` and the mean and variance of
``log x`` among the rows that look at the key (with weight x) are exponentials and squares: the three forms. Derived in
docs/theory/popularity.md, "Saturation".
"""

from __future__ import annotations

from math import log as logarithm
from typing import Any

import numpy as np
from array_api_compat import is_torch_array
from scipy import special

from bulkedge.arrays import Real
from bulkedge.errors import UnresolvedError

STEPS = 60
"""Newton's steps at most; three to six are usual."""
REACH = logarithm(2)
"""Logarithm of what all shares together must be able to reach."""
CLOSE = 1e-5
"""How near to zero the logarithm of the sum of all shares has to be."""
LEFT, RIGHT = 1 / (2 * logarithm(2)), 1 / (2 - 2 * logarithm(2))
"""Rates of the exponentials that make up the logistic function, with its integrals to the left and right of zero."""


def quadratics(couplings: Real) -> Real:
    """Coefficients of ``(a_i y_i)**2`` in the three forms.

    Parameters
    ----------
    couplings : array of shape (..., d)
        Couplings ``a``.

    Returns
    -------
    array of shape (..., d, 3)
        For the logarithm of ``E x``, and for mean and variance of ``log x`` among the rows that look at the key.
    """
    square = couplings**2
    return np.stack([0.5 / (1 + square), (1 + square / 2) / (1 + square) ** 2, (1 + square) ** -3.0], axis=-1)


def constants(couplings: Real, first: Real, second: Real, third: Real) -> Real:
    """Constants of the three forms, but for the logarithm of the number of keys.

    Parameters
    ----------
    couplings : array of shape (..., d)
        Couplings ``a``.
    first, second, third : array of shape (...)
        ``sum a**2 mu**2/(1 + a**2)``, ``sum a**2 mu**2/(1 + a**2)**2`` and ``sum a**4 mu**2/(1 + a**2)**3``.

    Returns
    -------
    array of shape (..., 3)
        In the order of the forms.
    """
    square = couplings**2
    share = square / (1 + square)
    log = -(first + np.sum(np.log1p(square), axis=-1)) / 2
    level, spread = -(second + share.sum(axis=-1)) / 2, third + np.sum(share**2, axis=-1) / 2
    return np.stack([log, level, spread], axis=-1)


def saturated(xp: Any, log: Any, level: Any, variance: Any) -> Any:
    """Logarithms of the mean of ``x/(1 + x)`` over rows, all x times the factor that makes the shares sum to one.

    The normaliser of Gaussian keys is the annealed one. Where rows freeze, theirs is smaller than that, which raises
    all x alike; the share of a key that takes much already is raised less. The sum of the shares grows with the
    logarithm of the factor, and its logarithm is concave, so that Newton's iteration converges from any side.

    Parameters
    ----------
    xp : module
        Namespace of the array library.
    log, level, variance : array of shape (..., tokens)
        Logarithm of ``E x``, and mean and variance of ``log x`` among the rows that look at the key.

    Returns
    -------
    array of shape (..., tokens)
        Logarithms of the shares, which sum to one up to ``1e-5``.

    Raises
    ------
    UnresolvedError
        If Newton's iteration does not converge.
    """
    # E x times the mean of 1/x among the rows that look is one. A Gaussian log x has that with twice its distance from
    # log E x as variance, and with its own has less: so much less, in very hot heads, that no factor is large enough
    whole = 2 * (level - log)
    most = log - level + variance / 2
    top = xp.max(most, axis=-1, keepdims=True)
    reach = top + xp.log(xp.sum(xp.exp(most - top), axis=-1, keepdims=True))
    deviation = xp.sqrt(xp.clip(xp.where(reach > REACH, variance, whole), 1e-6, None))
    shift = xp.zeros_like(log[..., :1])
    for _ in range(STEPS):
        kept, steep = _left(xp, level + shift, deviation)
        found = log + shift + kept
        top = xp.max(found, axis=-1, keepdims=True)
        shares = xp.exp(found - top)
        total = xp.sum(shares, axis=-1, keepdims=True)
        miss = top + xp.log(total)
        if bool(xp.all(xp.abs(miss) < CLOSE)) or not bool(xp.all(xp.isfinite(miss))):
            return found
        slope = xp.sum(shares * (1 + steep), axis=-1, keepdims=True) / total
        shift = shift - miss / xp.clip(slope, 1e-3, None)
    raise UnresolvedError("no normaliser of the rows makes these shares sum to one; the limit of many tokens has none")


def _left(xp: Any, mean: Any, deviation: Any) -> tuple[Any, Any]:
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
