"""What several studies of *equivalence* share: two laws in one distribution function, and entries that no law knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from bulkedge.laws.distribution import Distribution
from bulkedge.spectra import Spectrum
from bulkedge.support.arrays import Real

LEVELS = (np.arange(40) + 0.5) / 40
"""Quantiles of each of two laws at which distribution functions are compared."""
UNKNOWN = 2.0
"""Values that no law here knows: the zero of the constant vector, which row sums of one make, and the value of the term
of rank one that the norms of keys make (``equivalence/rank-one``)."""


class Shares(NamedTuple):
    """How much of a rival's law is in measured distribution functions.

    Attributes
    ----------
    draws : array of shape (draw,)
        0 for the law, 1 for the rival, by projection on the difference of the two.
    response : float
        By how much the share moves at most if the distribution function moves by one, at every point.
    """

    draws: Real
    response: float


def shares(found: Sequence[Spectrum], law: Distribution, rival: Distribution) -> Shares:
    """Project the distribution functions of spectra on the difference of two laws."""
    points = np.sort(np.concatenate([law.ppf(LEVELS), rival.ppf(LEVELS)]))
    theory = law.cdf(points)
    direction = rival.cdf(points) - theory
    square = float(direction @ direction)
    masses = np.array([np.searchsorted(each.values, points, side="right") / each.size for each in found])
    return Shares(np.asarray((masses - theory) @ direction / square), float(np.abs(direction).sum()) / square)


def large_entries(beta: float, tokens: int) -> float:
    """Expected number of entries of ``sqrt(T) (A - uu')`` whose square exceeds the variance of a row, theta_1."""
    cut = (np.log1p(np.sqrt(np.expm1(beta**2) * tokens)) + beta**2 / 2) / beta
    return float(tokens**2 * ndtr(-cut))
