"""How much two rows of softmax attention have in common, at any number of tokens.

Two rows with weights ``A_j = exp(beta z_j)/Z`` and ``A'_j = exp(beta z'_j)/Z'``, whose scores of the same token have a
correlation rho and are otherwise independent: two copies of the random energy model (Derrida 1981) that share a part of
their energies. Their overlap ``E sum_j A_j A'_j`` is what the product of two rows keeps of the power that tokens do not
have in common; at ``rho = 1`` it is the participation ratio of one row.

>>> round(softmax_overlap(3.0, 512, 1.0), 4), round(softmax_overlap(3.0, 512, 0.5), 4)
(0.1719, 0.0254)
>>> round(512 * softmax_overlap(3.0, 512, 0.0), 12)         # rows that know nothing of each other
1.0
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import Chebyshev

from bulkedge.heads import softmax
from bulkedge.heads.softmax import gaussian_rule, moments_of_weights, transforms
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, Interval, takes

BETA, TOKENS, CORRELATION = Interval(0, 12), Integers(1, 10**7), Interval(-1, 1)
STEP = 0.3  # of log s. The integrand is analytic to a distance of pi/2: the trapezoidal rule errs by exp(-pi**2/STEP)
MARGIN = 28.0  # of log s below the least that matters: what is left out is a part exp(-MARGIN) of the whole
WIDEST = 0.25  # step of a Gaussian score in its standard deviations, at most 2 STEP/beta if it is tilted: likewise
DECAY = 72.0  # a score beyond the largest of all tokens by exp(-DECAY/2) in probability is left out
LARGEST = 20.0  # of the logarithm of x, where exp(-x) is zero long before
NEGLIGIBLE = 1e-20  # covariance of scores below which rows are uniform to rounding, and its quadrature has no nodes
ROUNDING = 1e-9  # by how much a cosine may be beyond its bounds


@takes(beta=BETA, tokens=TOKENS, correlation=CORRELATION)
@lru_cache(maxsize=65_536)
def softmax_overlap(beta: float, tokens: int, correlation: float = 1.0) -> float:
    """``E sum_j A_j A'_j`` of two rows of T Gaussian scores with this correlation, exactly.

    With ``1/(Z Z') = int int exp(-s Z - t Z') ds dt`` the tokens come apart:
    ``T int int E[w w' e**(-s w - t w')] phi(s, t)**(T-1) ds dt``, where ``phi(s, t) = E e**(-s w - t w')`` and
    ``w = exp(beta z)``. Given the part of the scores that both rows have, ``phi`` is a product of two functions of one
    variable, so that a matrix product has it at all pairs ``(s, t)`` of a grid (docs/theory/trainability.md, "Two rows
    of attention"). Quadrature is right to 1e-10 of the value.

    Parameters
    ----------
    beta : float
        Standard deviation of the scores of either row.
    tokens : int
        Number T of tokens.
    correlation : float
        Of the two rows' scores of the same token, from -1 to 1; the cosine of the two queries.

    Returns
    -------
    float
        Between 0 and 1; ``1/T`` for independent rows, and for uniform ones.

    Examples
    --------
    >>> from bulkedge.propagation import softmax_of_gaussians
    >>> abs(softmax_overlap(2.0, 1000) / softmax_of_gaussians(2.0, 1000).participation - 1) < 1e-10
    True
    """
    if beta**2 * abs(correlation) < NEGLIGIBLE or tokens == 1:
        return 1 / tokens
    own, shared = beta * np.sqrt(1 - abs(correlation)), beta * np.sqrt(abs(correlation))
    lacks, slope, mass = _given_common(tokens, own, shared)
    # axes: log s, or log t, and the part that both rows have, the second with the sign of the correlation
    turn = slice(None, None, 1 if correlation > 0 else -1)
    # one minus phi keeps its digits where s and t are small, which counts T times
    missing = (lacks @ mass)[:, None] + lacks[:, turn] @ mass - (lacks * mass) @ lacks[:, turn].T
    both = (slope * mass) @ slope[:, turn].T
    log_phi = np.log1p(-np.minimum(missing, 1 - 1e-15))  # finite where nothing is left but rounding
    return float(tokens * STEP**2 * np.sum(both * np.exp((tokens - 1) * log_phi)))


def _given_common(tokens: int, own: float, shared: float) -> tuple[Real, Real, Real]:
    """``E[1 - e**(-x)]`` and ``E[x e**(-x)]`` given the common part, with axes (log s, common), and its weights."""
    # x = s exp(own a + shared c) with Gaussian a and c. Places of s and of c are on one lattice, so that what depends
    # on their sum is evaluated once for each value of it
    beta, reach = np.hypot(own, shared), np.sqrt(2 * np.log(tokens) + DECAY)
    apart, finer = (2, 1) if shared * WIDEST >= 2 * STEP else (1, int(np.ceil(STEP / (shared * WIDEST))))
    unit = STEP / finer
    common, mass = gaussian_rule(apart * unit / shared, reach)
    count = int(np.ceil((np.log(tokens) + 2 * beta * reach + MARGIN + 6) / STEP))
    lattice = finer * np.arange(count)[:, None] + apart * np.arange(len(common))
    places, where = np.unique(lattice, return_inverse=True)
    log_s = unit * places - np.log(tokens) - beta * reach - MARGIN + shared * common[0]
    nodes, weights = gaussian_rule(min(WIDEST, 2 * STEP / max(own, STEP)), reach)
    x = np.exp(np.minimum(log_s[:, None] + own * nodes, LARGEST))
    lacks, slope = -np.expm1(-x) @ weights, (x * np.exp(-x)) @ weights
    where = where.reshape(lattice.shape)
    return lacks[where], slope[where], mass


@takes(beta=BETA, tokens=TOKENS)
@lru_cache(maxsize=4096)
def participation_variance(beta: float, tokens: int) -> float:
    """Variance over rows of ``sum_j A_j**2``, for rows of T Gaussian scores.

    ``1/Z**4 = int s**3 e**(-s Z)/6 ds``, for the two kinds of terms ``A_j**4`` and ``A_j**2 A_k**2``.

    Parameters
    ----------
    beta : float
        Standard deviation of the scores.
    tokens : int
        Number T of tokens.

    Returns
    -------
    float
        Between 0 and 1/4; right to 1e-10 of the squared mean.

    Examples
    --------
    >>> round(participation_variance(3.0, 512) ** 0.5, 4)
    0.1584
    """
    if beta**2 < NEGLIGIBLE or tokens == 1:
        return 0.0
    second, fourth = moments_of_weights(beta, tokens, (2, 4))
    shared = transforms(beta, tokens)
    pairs = softmax.STEP / 6 * float(np.sum(shared.square**2 * np.exp((tokens - 2) * shared.log_phi)))
    return max(fourth + tokens * (tokens - 1) * pairs - second**2, 0.0)


class Overlaps(NamedTuple):
    """Mean overlap of a row with itself (its participation ratio), and of two rows."""

    same: float
    other: float


@takes(beta=BETA, tokens=Integers(2, 10**7))
def overlaps(beta: float, tokens: int, similarity: float) -> Overlaps:
    """Overlaps of rows of attention if all pairs of tokens have the same cosine.

    Queries then have this cosine as their correlation; of the keys, what they have in common drops out of the softmax,
    so that scores vary by ``beta sqrt(1 - similarity)``. Interpolated in the similarity, in which both are analytic;
    :func:`softmax_overlap` has a single value without that.

    Parameters
    ----------
    beta : float
        Standard deviation of the scores of orthonormal tokens.
    tokens : int
        Number T of tokens, at least two.
    similarity : float
        Cosine of two tokens, from ``-1/(T - 1)`` to 1.

    Returns
    -------
    Overlaps
        ``E sum_j A_ij**2`` and ``E sum_j A_ij A_kj``, for different i and k.

    Examples
    --------
    >>> found = overlaps(3.0, 512, 0.5)
    >>> round(found.same, 5), round(found.other, 5)
    (0.05776, 0.01234)
    """
    low = -1 / (tokens - 1)
    at = Interval(low - ROUNDING, 1 + ROUNDING).check("similarity", similarity)
    return Overlaps(*(float(each(at)) for each in _interpolants(beta, tokens)))


@lru_cache(maxsize=1024)
def _interpolants(beta: float, tokens: int) -> tuple[Chebyshev, ...]:
    """What :class:`Overlaps` has, as functions of the similarity."""
    domain = [-1 / (tokens - 1), 1.0]
    count = 10 + int(np.ceil(2 * beta))  # points of a Chebyshev sum that is right to 2e-5
    points = np.polynomial.chebyshev.chebpts1(count)
    cosines = (domain[0] + (points + 1) / 2 * (domain[1] - domain[0])).tolist()
    spreads = [float(beta * np.sqrt(1 - each)) for each in cosines]
    same = [softmax_overlap(each, tokens) for each in spreads]
    other = [softmax_overlap(each, tokens, cosine) for each, cosine in zip(spreads, cosines, strict=True)]
    fitted = (Chebyshev.fit(points, each, count - 1, domain=[-1, 1]).coef for each in (same, other))
    return tuple(Chebyshev(each, domain=domain) for each in fitted)
