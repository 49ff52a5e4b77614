"""A softmax of independent Gaussian scores: entropy, participation and normaliser at any number and any spread of them.

With ``w = exp(beta z)`` and ``phi(s) = E exp(-s w)``, everything is an integral over one Laplace variable s, because
``1/Z**2 = int s e**(-s Z) ds`` makes products of single scores out of the normaliser ``Z = sum w``. What depends on the
spread beta alone, :class:`Transforms`, costs nearly all of the time; from there the sums of any number of scores are a
few dozen microseconds away, so that tables over numbers of scores share it.

>>> row = softmax_of_gaussians(1.0, 1000)
>>> round(row.entropy, 3), round(row.participation, 5)
(6.41, 0.0027)
"""

from __future__ import annotations

from functools import lru_cache
from math import factorial
from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Interval

BETA = Interval(0, 48)
STEP = 0.25
"""Spacing of the trapezoidal rule in ``log s``, and of that in ``beta z``: the integrands are analytic in a strip of
half width ``pi/2`` and decay, so that the error of the rules is about ``exp(-pi**2/STEP)``, or ``1e-17``."""
COARSEST = 0.5
"""Largest spacing of the nodes of a Gaussian score, whose rule has an error of ``exp(-2 pi**2/COARSEST**2)``."""
REACH = 10.0
"""Standard deviations up to which scores are looked at: beyond are ``1e-23`` of them."""


class Softmax(NamedTuple):
    """Means over T Gaussian scores at inverse temperature beta: entropy of the weights, and sum of their squares."""

    entropy: float
    participation: float


class Gibbs(NamedTuple):
    """Means over T Gaussian scores ``beta z``: of the log of the sum of their exponentials, and under the weights of z.

    ``score``, the mean z under the softmax weights, is the derivative of ``log_sum`` in beta; ``participation`` is the
    sum of the squared weights.
    """

    log_sum: float
    score: float
    participation: float


@lru_cache(maxsize=4096)
def softmax_of_gaussians(beta: float, tokens: int) -> Softmax:
    """Entropy and participation of a row of attention with independent scores, for any T and beta.

    With ``phi(s) = E exp(-s w)``, ``w = exp(beta z)``: ``E sum p_j**2 = T int s E[w**2 e**(-s w)] phi**(T-1) ds`` and
    ``E sum p_j z_j = T int E[z w e**(-s w)] phi**(T-1) ds``; ``E log Z`` is the integral of the latter over beta, which
    by parts is ``int (e**(-s) - phi**T) ds/s``. The entropy is ``log Z - beta sum p_j z_j``.

    Examples
    --------
    >>> row = softmax_of_gaussians(1.0, 1000)
    >>> round(row.entropy, 3), round(row.participation, 5)
    (6.41, 0.0027)
    """
    sums = gibbs_of_gaussians(beta, tokens)
    return Softmax(sums.log_sum - beta * sums.score, sums.participation)


def gibbs_of_gaussians(beta: float, tokens: int) -> Gibbs:
    """What :func:`softmax_of_gaussians` is made of, by the same integrals.

    Examples
    --------
    >>> sums = gibbs_of_gaussians(1.0, 10**6)
    >>> round(float(sums.log_sum - np.log(10**6)), 4), round(sums.score, 4)
    (0.5, 1.0)
    """
    return transforms(BETA.check("beta", beta), tokens).sums(tokens)


class Transforms(NamedTuple):
    """Laplace transforms of the weights ``w = exp(beta z)`` of one Gaussian score, at nodes of ``log s``.

    ``log_phi`` is the logarithm of ``E exp(-s w)``, ``square`` is ``E[x**2 e**-x]`` and ``tilted`` ``E[z x e**-x]``,
    with ``x = s w``; arrays over the nodes.
    """

    log_s: Real
    log_phi: Real
    square: Real
    tilted: Real

    def sums(self, tokens: float) -> Gibbs:
        """Means over so many scores."""
        others = np.exp((tokens - 1) * self.log_phi)
        participation = tokens * STEP * np.sum(self.square * others)
        energy = tokens * STEP * np.sum(self.tilted * others)
        log_sum = STEP * np.sum(np.exp(-np.exp(self.log_s)) - np.exp(tokens * self.log_phi))
        return Gibbs(float(log_sum), float(energy), float(participation))


def transforms(beta: float, most: float) -> Transforms:
    """What sums over any number of scores of one spread have in common.

    Examples
    --------
    >>> shared = transforms(1.0, 10**12)
    >>> bool(abs(shared.sums(1000).participation / softmax_of_gaussians(1.0, 1000).participation - 1) < 1e-12)
    True
    """
    # nodes of log s: Z lies between its largest weight, at least e**(-8 beta), and T times e**(8 beta)
    first = -np.log(most) - REACH * beta - 40
    log_s = first + STEP * np.arange(np.ceil((REACH * beta + 6 - first) / STEP))
    lost, square, tilted = _smoothed(beta, log_s)
    # log(1 - lost) keeps the digits of a small loss, which counts T times
    return Transforms(log_s, np.log1p(-np.minimum(lost, 1 - EPS / 2)), square, tilted)


def _smoothed(beta: float, log_s: Real) -> tuple[Real, Real, Real]:
    """``E[1 - e**-x]``, ``E[x**2 e**-x]`` and ``E[z x e**-x]`` over a Gaussian z, ``x = s exp(beta z)``, for each s.

    All are sums of positive terms (but for the sign of z), so that small ones keep their relative accuracy. The nodes
    of ``beta z`` are those of ``log s``, which makes the sums convolutions; where beta is so small that this would
    leave the Gaussian too few nodes, they are its own.
    """
    shared = beta * COARSEST > STEP
    step = STEP / beta if shared else COARSEST
    count = int(np.ceil(REACH / step))
    z = step * np.arange(-count, count + 1)
    mass = np.exp(-(z**2) / 2)
    mass /= mass.sum()
    log_x = log_s[0] + STEP * np.arange(-count, len(log_s) + count) if shared else log_s[:, None] + beta * z
    x = np.exp(np.minimum(log_x, 7.0))  # e**-x is zero there, and stays so
    density = x * np.exp(-x)

    def mean(values: Real, weights: Real) -> Real:
        return np.convolve(values, weights[::-1], "valid") if shared else values @ weights

    return mean(-np.expm1(-x), mass), mean(x * density, mass), mean(density, mass * z)


def moments_of_weights(beta: float, tokens: int, powers: tuple[int, ...] = (2, 3, 4)) -> tuple[float, ...]:
    """``E sum_j p_j**k`` of the softmax of T Gaussian scores, for each power k.

    By ``1/Z**k = int s**(k-1) e**(-s Z) ds/(k-1)!``: ``T int E[x**k e**-x] phi**(T-1) ds/s`` over ``(k-1)!``, with
    ``x = s exp(beta z)``.

    Examples
    --------
    >>> row = moments_of_weights(1.0, 1000)
    >>> bool(abs(row[0] / softmax_of_gaussians(1.0, 1000).participation - 1) < 1e-9)
    True
    """
    shared = transforms(BETA.check("beta", beta), tokens)
    step = min(COARSEST, STEP / max(beta, STEP))
    z = step * np.arange(-np.ceil(REACH / step), np.ceil(REACH / step) + 1)
    mass = np.exp(-(z**2) / 2)
    mass /= mass.sum()
    x = np.exp(np.minimum(shared.log_s[:, None] + beta * z, 7.0))  # e**-x is zero there, and stays so
    others, falling = np.exp((tokens - 1) * shared.log_phi), np.exp(-x)
    return tuple(
        float(tokens * STEP * np.sum(((x**power * falling) @ mass) * others) / factorial(power - 1)) for power in powers
    )
