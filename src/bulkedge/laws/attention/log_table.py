"""Distribution functions on the positive axis over many decades, between points at which they were solved for.

>>> table = LogTable(np.log([0.01, 1.0, 4.0]), np.array([0.1, 0.5, 1.0]))
>>> table.cdf(np.log([1.0, 4.0, 5.0]))
array([0.5, 1. , 1. ])
"""

from __future__ import annotations

import numpy as np
from scipy.interpolate import PchipInterpolator

from bulkedge.support.arrays import Real


class LogTable:
    """A distribution function between tabulated points: monotone cubics in ``log x``, and a power of x below."""

    def __init__(self, logs: Real, masses: Real) -> None:
        self._logs, self.masses = logs, masses
        self._between = PchipInterpolator(logs, masses)
        # a table that begins flat has no power of its own
        self._power = max(float(np.log(masses[1] / masses[0]) / (logs[1] - logs[0])), 1e-3)

    def cdf(self, log: Real) -> Real:
        """The mass up to the exponential of each argument."""
        first, last = self._logs[[0, -1]]
        tail = self.masses[0] * np.exp(self._power * np.minimum(log - first, 0.0))
        inside = self._between(np.clip(log, first, last))
        return np.where(log < first, tail, np.where(log > last, 1.0, inside))

    def log_quantile(self, level: Real) -> Real:
        """Logarithm of the point at which the mass reaches each level, by bisection; minus infinity at zero."""
        low, high = np.full(level.shape, self._logs[0]), np.full(level.shape, self._logs[-1])
        for _ in range(60):
            middle = (low + high) / 2
            reached = self._between(middle) >= level
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        with np.errstate(divide="ignore"):
            tail = self._logs[0] + np.log(level / self.masses[0]) / self._power
        return np.where(level < self.masses[0], tail, high)
