"""The largest singular value of softmax attention at any score scale, and where it stops being that of the mean.

Rows sum to one, so that ``A u = u`` for the constant unit vector u, while ``A'u = u + b`` with b the column sums less
one, over ``sqrt(T)``. If the rest of A is like noise that b is a typical row of, ``s**2 = 1 + |b|**2 z G(z)`` at ``z =
s**2``, G the Cauchy transform of the rest, whose variance is ``|b|**2`` too; for a quarter circle this is

    ``s**2 = 1/(1 - v)``,      ``v = E|b|**2 = E sum_j A_ij**2 - 1/T + (1 - 1/T) t``.

Both parts of v are known at any beta. Rows given the keys are independent, so the first is the participation of one
row; ``t = E (T p)**2 - 1`` is the spread of the popularity ``p = E[A_ij | key j]``, which depends on the key's norm.
Given the query the scores are independent, so each is an integral over a Laplace transform,
``1/Z = int exp(-s Z) ds`` with ``phi(s) = E exp(-s w)`` for the weight w of one key:

    ``E sum_j A_ij**2 = T int s E[w**2 exp(-s w)] phi**(T-1) ds``,
    ``E[A_ij | key j] = int E[w exp(-s w) | key j] phi**(T-1) ds``.

For small beta this is ``1 + beta**4/(2 d) + (exp(beta**2) - 1)/T`` (docs/theory/outliers.md, "The Perron value"). For
large beta a single entry, or a few in one column, has a larger singular value than the mean, which is the end of the
formula: :attr:`Perron.largest` is the size of the largest entry of A, and tells. From there on ``1 + v`` is a lower
bound.

>>> found = perron(beta=1.5, head_dim=64, tokens=1000)          # simulated: 1.0487 with error 0.0019
>>> round(found.square, 3), found.trusted
(1.047, True)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, ndtr

from bulkedge.laws.attention.finite_head import cosine_quadrature, norm_quadrature
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Interval

STEP = 0.1
"""Spacing of the trapezoidal rules in ``log s`` and in standard deviations of a score: the integrands are analytic in a
strip, so that they converge geometrically."""
SIZES = 12  # quadrature nodes for the norms of queries and of keys
BETA = Interval(0, 12, "(]")  # beyond, rows attend to one token each, and the trapezoidal rules are too coarse
LARGEST_EXPONENT = 300.0
NODES = 150  # quadrature nodes for the cosine of query and key
LARGEST_ENTRY = 0.65  # median of the largest entry of A up to which ``1/(1 - v)`` holds
LARGEST_SPREAD = 0.12
"""The same for v. Both were set on a grid of beta 0.25 to 6, 100 to 2000 tokens and 16 to 1000 dimensions, where the
simulated mean then is within 3 % of the formula."""


class Perron(NamedTuple):
    """What is known of the largest singular value of A."""

    square: float  # its square: ``1/(1 - v)`` where that is :attr:`trusted`, else the lower bound ``1 + v = E|A'u|**2``
    spread: float  # ``v``, the variance of the column sums
    largest: float
    """Median of the largest of the ``T**2`` entries of A."""
    tilt: float = 0.0  # ``t``, the part of v that is due to keys of larger norm being liked more

    @property
    def trusted(self) -> bool:
        """Whether the mean's singular value is the largest and the formula holds, within 3 %."""
        return self.largest < LARGEST_ENTRY and self.spread < LARGEST_SPREAD


class OrthonormalHead(NamedTuple):
    """Attention to all of orthonormal tokens."""

    beta: float
    head_dim: int
    tokens: int
    qk_norm: bool


class RowTransform(NamedTuple):
    """A row of attention whose query has a given norm."""

    log_s: Real  # points of the Laplace transform
    others: Real  # ``phi(s)**(T-1)`` there
    participation: float  # ``E sum_j A_ij**2``
    log_sum: float  # ``E log Z``


@lru_cache(maxsize=1024)
def perron(beta: float, head_dim: int, tokens: int, *, qk_norm: bool = False) -> Perron:
    """The largest singular value of attention to all of orthonormal tokens."""
    beta = BETA.check("beta", beta)
    head = OrthonormalHead(beta, head_dim, tokens, qk_norm)
    norms, mass = (np.ones(1), np.ones(1)) if qk_norm else norm_quadrature(head_dim, tokens, SIZES)
    rows = [_row(*_scores(head, size), tokens) for size in norms.tolist()]
    participation = float(mass @ [row.participation for row in rows])
    tilt = 0.0 if qk_norm else _tilt(head, norms, mass, rows)
    spread = participation - 1 / tokens + (1 - 1 / tokens) * tilt
    return _perron(spread, _largest(head, norms, mass, rows))._replace(tilt=tilt)


@lru_cache(maxsize=1024)
def perron_of_independent(beta: float, tokens: int) -> Perron:
    """The same for independent Gaussian scores: lognormal weights, no keys that are liked more than others."""
    head = OrthonormalHead(BETA.check("beta", beta), 1, tokens, qk_norm=False)
    row = _row(*_scores(head, 1.0), tokens)
    return _perron(row.participation - 1 / tokens, _largest(head, np.ones(1), np.ones(1), [row]))


def row_participation(beta: float, counts: Real) -> Real:
    """``count E sum_j A_ij**2`` of rows of so many independent scores, real numbers from one on."""
    scores = _scores(OrthonormalHead(beta, 1, 1, qk_norm=False), 1.0)
    return np.array([1.0 if count <= 1 else count * _row(*scores, count).participation for count in counts.tolist()])


def _perron(spread: float, largest: float) -> Perron:
    found = Perron(1 + spread, spread, largest)
    return found._replace(square=1 / (1 - spread)) if found.trusted else found


def _scores(head: OrthonormalHead, size: float) -> tuple[Real, Real]:
    """Scores of a query of that norm as nodes and weights: Gaussian over Gaussian keys, else those of the cosine."""
    if head.qk_norm:
        cosine, mass = cosine_quadrature(head.head_dim, 2 * NODES)
        return head.beta * np.sqrt(head.head_dim) * cosine, mass
    z = np.arange(-9.0, 9.0 + STEP / 2, STEP)
    mass = np.exp(-(z**2) / 2)
    return head.beta * size * z, mass / mass.sum()


def _row(scores: Real, mass: Real, tokens: float) -> RowTransform:
    """The integrals of one row of independent scores."""
    log_s = np.arange(-np.log(tokens) - scores.max() - 12, 0.5 * scores.max() + 8, STEP)
    weight = np.exp(np.minimum(log_s[:, None] + scores, LARGEST_EXPONENT))
    # one minus phi keeps its digits where s is small, which counts T times
    log_phi = np.log1p(np.maximum(np.expm1(-weight) @ mass, -1 + np.finfo(float).eps))
    others = np.exp((tokens - 1) * log_phi)
    with np.errstate(under="ignore"):
        participation = tokens * STEP * np.sum((weight**2 * np.exp(-weight)) @ mass * others)
    log_sum = STEP * np.sum(np.exp(-np.exp(np.minimum(log_s, 7.0))) - np.exp(tokens * log_phi))
    kept = others > 1e-14
    return RowTransform(log_s[kept], others[kept], float(participation), float(log_sum))


def _tilt(head: OrthonormalHead, norms: Real, mass: Real, rows: list[RowTransform]) -> float:
    """``E p**2/(E p)**2 - 1`` over the norms of keys, p the mean weight of a key of that norm over all queries."""
    cosine, share = cosine_quadrature(head.head_dim, NODES)
    popularity, kappa = np.zeros(len(norms)), head.beta * np.sqrt(head.head_dim)
    for size, weight, row in zip(norms, mass, rows, strict=True):
        for k, key in enumerate(norms):
            each = np.exp(np.minimum(row.log_s[:, None] + kappa * size * key * cosine, LARGEST_EXPONENT))
            popularity[k] += weight * np.sum((each * np.exp(-each)) @ share * row.others)
    return float(mass @ popularity**2 / (mass @ popularity) ** 2 - 1)


def _largest(head: OrthonormalHead, norms: Real, mass: Real, rows: list[RowTransform]) -> float:
    """The size that ``log 2`` of the entries of A are expected to exceed: ``w/(w + Z)`` with Z at its typical value."""
    log_sums = np.array([row.log_sum for row in rows])

    def excess(logit: float) -> float:
        score = (logit + log_sums) / (head.beta * norms)
        if head.qk_norm:
            cosine = np.clip(score / np.sqrt(head.head_dim), -1.0, 1.0)
            tail = (1 - np.sign(cosine) * betainc(0.5, (head.head_dim - 1) / 2, cosine**2)) / 2
        else:
            tail = ndtr(-score)
        return float(np.log(max(head.tokens**2 * (mass @ tail), 1e-300)) - np.log(np.log(2)))

    low, high = -np.log(head.tokens) - 40 * head.beta - 5, 60 * head.beta + 5
    return float(1 / (1 + np.exp(-brentq(excess, low, high))))
