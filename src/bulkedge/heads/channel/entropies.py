"""Rows of Gaussian scores as tables in spread and number of keys, for arrays on any device.

The mean entropy of a row whose ``n`` scores are Gaussian with standard deviation ``beta`` is smooth in
``log(1 + beta)`` and in ``log n``, from uniform rows through freezing (``beta = sqrt(2 log n)``) to rows on one key. It
is tabulated once, by the integrals of :func:`bulkedge.heads.softmax.gibbs_of_gaussians`, and refined by
cubics to a grid on which straight lines do, so that every row may have a spread and a number of keys of its own and
nothing leaves the device that it is on.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.interpolate import RectBivariateSpline

from bulkedge.heads.softmax import transforms
from bulkedge.support.arrays import Real

SHARPEST, FAR = 12.0, 24.0
"""Largest spread in the table, and the one from which sharper rows follow. Frozen rows have the entropy
``c/beta + d/beta**2``, since what they lack to one key for all is the gap between their largest scores."""
SPREADS, COUNTS = 41, 21
"""Nodes of the integrals, evenly in ``log(1 + beta)`` up to :data:`SHARPEST`, and at powers of two of the keys."""
FINER = 12
"""How many times finer the table is than these."""
LAST_SPREAD, LAST_COUNT = float(np.log1p(SHARPEST)), float((COUNTS - 1) * np.log(2.0))
"""Ends of the table, in ``log(1 + beta)`` and ``log n``; it begins at zero in both."""


@cache
def entropy_table() -> Real:
    """Mean entropies of rows of Gaussian scores, and what else their weights are made of, on a fine grid."""
    spreads = np.expm1(np.linspace(0.0, LAST_SPREAD, SPREADS))
    table = np.array([_rows(float(spread)) for spread in [*spreads, FAR]])
    table[:, 0] = 0.0  # a row of one key, of which rounding leaves a trace
    places = np.arange(SPREADS), np.arange(COUNTS)
    fine = [np.linspace(0.0, each[-1], each[-1] * FINER + 1) for each in places]
    entropies, scores = (np.maximum(RectBivariateSpline(*places, table[:-1, :, k])(*fine), 0.0) for k in (0, 1))
    last, far = SHARPEST * entropies[-1], FAR * np.interp(fine[1], places[1], table[-1, :, 0])
    frozen = (FAR * far - SHARPEST * last) / (FAR - SHARPEST)
    found: Real = np.stack([entropies, scores, np.broadcast_to(frozen, entropies.shape)])
    found.flags.writeable = False
    return found


def _rows(spread: float) -> list[tuple[float, float]]:
    """Entropy and mean score of rows of all numbers of keys, which share what depends on the spread."""
    shared = transforms(spread, 2 ** (COUNTS - 1))
    sums = [shared.sums(2**j) for j in range(COUNTS)]
    return [(each.log_sum - spread * each.score, each.score) for each in sums]
