"""What attention leaves of the power of its inputs, exactly, at any number of tokens and any dimension of heads.

A row of ``A X`` is a mean of the tokens, ``sum_j A_j x_j`` with ``A = softmax(u . x_j)``, where
``u = W_K' W_Q x_i/sqrt(h)`` is the row's query seen from the tokens (``h`` the dimension of the head). With Gaussian
weights ``u`` has a uniform direction, whatever the tokens are, the row's own included; and for tokens of norm
``sqrt(width)`` and scores of standard deviation ``beta``, ``|u|**2 = beta**2 (chi2_h/h) (chi2_width/width)``. So for
independent tokens of uniform directions the row depends on the components ``t_j = u . x_j/|u|`` alone, which are
independent and alike, and

    ``E |sum_j A_j x_j|**2 = width E sum_j A_j**2 + E sum_{j != k} A_j A_k t_j t_k``.

The second term is there because attention is made of the tokens that it mixes: it leans towards ``u``. For many tokens
and large heads the two are ``width exp(beta**2)/tokens`` and ``beta**2``. At any number of them the normaliser
``Z = sum_j exp(|u| t_j)`` comes apart in ``1/Z**2 = integral of s exp(-s Z) ds``, and ``1/Z`` in that of ``exp(-s Z)``:
under the integral there is a product of expectations of single tokens. That leaves integrals over one component, over
``s`` and over ``|u|``.

>>> round(attended_power(1.0, tokens=4096, width=256, head_dim=64), 5)  # about (exp(1) - 1)/4096 + 1/256
0.00429
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from bulkedge.support.arrays import Index, Real
from bulkedge.support.domains import FLAG, Integers, Interval, takes
from bulkedge.visibility import Mask, MaskOrName, mask_for

SIZE = Integers(1, 10**7)
STEP = 0.3  # of log s: the integrand is analytic to a distance of pi/2, so the rule errs by exp(-pi**2/STEP)
POINTS = 120  # for a component that is not tilted; what is integrated has width 1/|u|, so a larger norm takes more
NORMS = 16  # Gauss points for |u|**2
EVERY_ROW = 32  # numbers of visible tokens up to which each is computed; beyond, the power is interpolated
NODES = 20  # Chebyshev points of that interpolation


@takes(gap=FLAG)
def attended_power(  # noqa: PLR0913 - a setting of attention
    beta: float,
    tokens: int,
    width: int,
    head_dim: int,
    *,
    gap: bool = False,
    mask: str | Mask = "full",
    similarity: float = 0.0,
) -> float:
    """Power of the rows of ``(A - C) X`` over that of the tokens ``X``, in expectation over queries, keys and tokens.

    Exact for tokens of equal norm whose directions are uniform and independent, apart from one that they may share:
    quadrature is right to 1e-5 from heads of 8 dimensions on (1e-8 from 16), and to one percent for smaller ones.

    Parameters
    ----------
    beta : float
        Standard deviation of the scores of independent tokens.
    tokens, width : int
        Number and dimension of the tokens.
    head_dim : int
        Of queries and keys.
    gap : bool
        Whether attention has its gap: if so, power of the rows of ``A X``.
    mask : str or Mask
        Who sees whom; the power is the mean over rows, each of which depends on how many tokens it sees.
    similarity : float
        Cosine between different tokens: the share of their power that lies along a direction common to all. It adds
        nothing to the differences of their scores.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> round(attended_power(1.0, tokens=256, width=512, head_dim=64), 5)
    0.00836
    """
    beta, similarity = (
        Interval(0, math.inf, "()").check("beta", beta),
        Interval(0, 1, "[)").check("similarity", similarity),
    )
    tokens, head_dim = SIZE.check("tokens", tokens), SIZE.check("head_dim", head_dim)
    width = Integers(2, 10**7).check("width", width)
    counts, shares = _rows(mask_for(MaskOrName().check("mask", mask), tokens).counts())
    # the common direction reaches every row in full, or leaves with the gap; scores vary by the rest
    varying = beta * math.sqrt(1 - similarity)
    powers = np.array(_powers(varying, tuple(counts.tolist()), width, head_dim, gap=gap))
    return float((1 - similarity) * (shares @ powers) + (similarity if gap else 0.0))


@lru_cache(maxsize=64)
def _powers(beta: float, counts: tuple[float, ...], width: int, head_dim: int, *, gap: bool) -> tuple[float, ...]:
    """Power of rows that see so many tokens, in the mean over ``|u|``; kept, because layers of a model are alike."""
    norms = _query_norms(beta, width, head_dim)
    total = sum(weight * _row_power(norm, np.array(counts), width, gap=gap) for norm, weight in norms)
    return tuple(np.asarray(total).tolist())


def _rows(counts: Index) -> tuple[Real, Real]:
    """Numbers of tokens at which the power is to be known, and the share of each in its mean over all rows."""
    # If rows see many different numbers, those beyond the first are interpolated: the power times the number is
    # polynomial in its logarithm to 1e-6.
    numbers, times = np.unique(counts, return_counts=True)
    shares = times / len(counts)
    few = numbers <= EVERY_ROW
    if (~few).sum() <= NODES:
        return numbers.astype(float), shares
    low, high = math.log(numbers[~few][0]), math.log(numbers[-1])
    points = np.polynomial.chebyshev.chebpts1(NODES)
    values = np.exp((high + low) / 2 + (high - low) / 2 * points)
    places = (2 * np.log(numbers[~few]) - high - low) / (high - low)
    vandermonde = np.polynomial.chebyshev.chebvander
    moments = (shares[~few] / numbers[~few]) @ vandermonde(places, NODES - 1)
    return (
        np.append(numbers[few].astype(float), values),
        np.append(shares[few], values * np.linalg.solve(vandermonde(points, NODES - 1).T, moments)),
    )


def _query_norms(beta: float, width: int, head_dim: int) -> list[tuple[float, float]]:
    """Values of ``|u|`` with their weights: Gauss quadrature for a product of two independent chi squares."""
    (heads, by_head), (widths, by_width) = _chi_square(head_dim), _chi_square(width)
    values, weights = _fewer(np.outer(heads, widths).ravel(), np.outer(by_head, by_width).ravel())
    matters = weights > 1e-14  # power is at most one
    return list(zip((beta * np.sqrt(values[matters])).tolist(), weights[matters].tolist(), strict=True))


def _chi_square(degrees: int) -> tuple[Real, Real]:
    """Gauss quadrature for ``chi2/degrees``: eigenvalues of the Jacobi matrix of Laguerre polynomials."""
    alpha, index = degrees / 2 - 1, np.arange(2 * NORMS)
    values, weights = _gauss(2 * index + alpha + 1, np.sqrt(index[1:] * (index[1:] + alpha)))
    return values / (degrees / 2), weights


def _fewer(values: Real, weights: Real) -> tuple[Real, Real]:
    """Gauss quadrature for a law of many atoms: Lanczos from the weights, with each vector made orthogonal twice."""
    basis = [np.sqrt(weights)]
    diagonal, side = [], []
    for _ in range(NORMS):
        following = values * basis[-1]
        diagonal.append(float(following @ basis[-1]))
        for _ in range(2):
            for each in basis:
                following = following - (following @ each) * each
        side.append(float(np.linalg.norm(following)))
        basis.append(following / side[-1])
    return _gauss(np.array(diagonal), np.array(side[:-1]))


def _gauss(diagonal: Real, side: Real) -> tuple[Real, Real]:
    values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(side, 1) + np.diag(side, -1))
    return np.clip(values, 0, None), vectors[0] ** 2


def _row_power(norm: float, counts: Real, width: int, *, gap: bool) -> Real:
    """Power of a row with ``|u| = norm``, for each number of tokens that it sees."""
    most = float(counts.max())
    t, density = _component(norm, most, width)
    # rows: log s, from where the integrand has fallen by exp(40); columns: components. Through x = s exp(|u| t)
    # everything that is integrated is bounded, and exp(-x) is zero long before x is exp(20)
    log_s = np.arange(-norm * t[-1] - math.log(most) - 20, norm * t[-1] + 6, STEP)
    x = np.exp(np.minimum(log_s[:, None] + norm * t, 20.0))
    seen = density * np.exp(-x)
    # expectations over one token; the logarithm of phi = E exp(-x) from what it lacks to one, which may be tiny
    lacks, phi = -np.expm1(-x) @ density, seen.sum(axis=1)
    log_phi = np.where(lacks < 0.5, np.log1p(-np.minimum(lacks, 0.5)), np.log(np.maximum(phi, np.finfo(float).tiny)))
    squares, leans, means = (seen * x**2).sum(axis=1), (seen * x) @ t, seen @ t
    one_left, two_left = (np.exp(np.maximum(counts - left, 0)[:, None] * log_phi) for left in (1, 2))
    pairs = counts * (counts - 1) * STEP / width
    power = counts * STEP * (one_left @ squares) + pairs * (two_left @ leans**2)
    if gap:
        return power
    # less twice the product with the mean of the tokens, plus the power of that mean
    return power - 2 * (1 + pairs * (two_left @ (leans * means))) / counts + 1 / counts


_legendre = lru_cache(maxsize=16)(np.polynomial.legendre.leggauss)  # making a rule takes ten times as long as using it


def _component(norm: float, most: float, width: int) -> tuple[Real, Real]:
    """Gauss-Legendre points and weights for a component ``sqrt(width) sin(angle)`` of a point on the sphere."""
    # beyond it none of the tokens is found, but for a probability of exp(-36)
    reach = math.sqrt(2 * math.log(most) + 72)
    nodes, weights = _legendre(POINTS + POINTS // 4 * math.ceil(norm))
    angle = math.asin(min(1.0, reach / math.sqrt(width))) * nodes
    density = weights * np.exp((width - 2) * np.log(np.cos(angle)))
    return math.sqrt(width) * np.sin(angle), density / density.sum()
