"""Entropy of rows of Gaussian scores as a table in spread and number of keys, for arrays on any device.

The mean entropy of a row whose ``n`` scores are Gaussian with standard deviation ``beta`` is smooth in
``log(1 + beta)`` and in ``log n``, from uniform rows through freezing (``beta = sqrt(2 log n)``) to rows on one key. It
is tabulated once, by the integrals of :func:`bulkedge.propagation.trainability.gibbs_of_gaussians`, and interpolated by
cubics, so that every row may have a spread and a number of keys of its own and nothing leaves the device that it is on.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from bulkedge.arrays import Real
from bulkedge.propagation.trainability import gibbs_of_gaussians

HOTTEST, FAR = 12.0, 24.0
"""Largest spread in the table, and the one from which hotter rows follow. Frozen rows have the entropy
``c/beta + d/beta**2``, since what they lack to one key for all is the gap between their largest scores."""
SPREADS, COUNTS = 41, 21
"""Nodes, evenly in ``log(1 + beta)`` up to :data:`HOTTEST`, and at powers of two of the number of keys."""
SPREAD_STEP, COUNT_STEP = float(np.log1p(HOTTEST)) / (SPREADS - 1), float(np.log(2.0))


@cache
def entropy_table() -> Real:
    """Mean entropies of rows of Gaussian scores.

    Returns
    -------
    array of shape (SPREADS + 1, COUNTS)
        In nats; spreads ``exp(i SPREAD_STEP) - 1`` and ``2**j`` keys, one to a million. The last row has the constants
        ``c`` of the frozen rows beyond the table; their ``d`` follows, as the entropy is continuous.
    """
    spreads = [*np.expm1(SPREAD_STEP * np.arange(SPREADS)), FAR]
    table = np.array([[_entropy(float(spread), 2**j) for j in range(COUNTS)] for spread in spreads])
    table[:, 0] = 0.0  # a row of one key, of which rounding leaves a trace
    last, far = HOTTEST * table[-2], FAR * table[-1]
    table[-1] = (FAR * far - HOTTEST * last) / (FAR - HOTTEST)
    table.flags.writeable = False
    return table


def _entropy(spread: float, count: int) -> float:
    sums = gibbs_of_gaussians(spread, count)
    return sums.log_sum - spread * sums.score
