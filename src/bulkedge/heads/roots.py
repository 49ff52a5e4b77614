"""Where falling functions cross zero, for all heads at once.

>>> crossing(lambda x: np.array([2.0, 3.0]) - np.exp(x), np.zeros(2), np.full(2, 5.0)).round(6)
array([0.693147, 1.098612])
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bulkedge.arrays import Real

ROUNDS = 60
"""Steps at most; six to ten are usual."""
TINY = float(np.finfo(float).tiny)


def crossing(falling: Callable[[Real], Real], low: Real, high: Real, close: float = 1e-12) -> Real:
    """Ridders' method: an exponential through the ends and the middle of an interval, which at least halves each step.

    Parameters
    ----------
    falling : callable
        From points to values of the same shape, each of which falls with its own point.
    low, high : array
        Ends of the intervals.
    close : float
        How far the last step may have moved a point.

    Returns
    -------
    array
        Nan where the values at the ends have no different signs.
    """
    below, above = falling(low), falling(high)
    found = (below >= 0) & (above <= 0)
    guess = np.where(found, (low + high) / 2, low)
    low, high = np.where(found, low, guess), np.where(found, high, guess)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        value = falling(middle)
        root = np.sqrt(np.maximum(value**2 - below * above, TINY))
        before, guess = guess, np.clip(middle + (high - low) / 2 * value / root, low, high)
        for point, at in ((middle, value), (guess, falling(guess))):
            # a point outside of what the one before it has left of the interval says nothing new
            rises = (at >= 0) & (point >= low)
            falls = (at <= 0) & (point <= high)
            low, below = np.where(rises, point, low), np.where(rises, at, below)
            high, above = np.where(falls, point, high), np.where(falls, at, above)
        if np.all(np.abs(guess - before) <= close):
            break
    return np.where(found, guess, np.nan)
