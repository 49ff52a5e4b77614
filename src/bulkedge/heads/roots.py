"""Where falling functions cross zero, for all heads at once.

>>> crossing(lambda x: np.array([2.0, 3.0]) - np.exp(x), np.zeros(2), np.full(2, 5.0)).round(6)
array([0.693147, 1.098612])
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bulkedge.support.arrays import Real

ROUNDS = 80
"""Steps at most; five to ten are usual."""


def crossing(
    falling: Callable[[Real], Real], low: Real, high: Real, close: float = 1e-12, ends: tuple[Real, Real] | None = None
) -> Real:
    """Chandrupatla's method: the inverse parabola through three points where it can be trusted, and halves elsewhere.

    One evaluation a step. A parabola is trusted if it is monotone over the interval, which needs no memory of how the
    steps before went (Chandrupatla 1997).
    """
    below, above = (falling(low), falling(high)) if ends is None else ends
    found = (below >= 0) & (above <= 0)
    one, at_one, two, at_two = high, above, low, below  # the newest point and the one across the zero from it
    best, done = np.where(above == 0, high, low), ~found | (above == 0) | (below == 0)
    share = np.full(np.shape(found), 0.5)
    for _ in range(ROUNDS):
        if np.all(done):
            break
        point = np.where(done, best, one + share * (two - one))
        value = np.where(done, 0.0, falling(point))
        same = np.sign(value) == np.sign(at_one)
        three, at_three = np.where(same, one, two), np.where(same, at_one, at_two)
        two, at_two = np.where(same, two, one), np.where(same, at_two, at_one)
        one, at_one = point, value
        best = np.where(done, best, np.where(np.abs(at_one) < np.abs(at_two), one, two))
        width = np.maximum(np.abs(two - one), 2 * close)
        done |= (width <= 2 * close) | (value == 0)
        share = np.clip(_parabola((one, two, three), (at_one, at_two, at_three)), close / width, 1 - close / width)
    return np.where(found, best, np.nan)


def _parabola(points: tuple[Real, Real, Real], values: tuple[Real, Real, Real]) -> Real:
    """Where from the first to the second point the inverse parabola is zero; a half if it is not to be trusted."""
    (one, two, three), (at_one, at_two, at_three) = points, values
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        place, level = (one - two) / (three - two), (at_one - at_two) / (at_three - at_two)
        trusted = (level**2 < place) & ((1 - level) ** 2 < 1 - place)
        first = at_one / (at_two - at_one) * at_three / (at_two - at_three)
        second = (three - one) / (two - one) * at_one / (at_three - at_one) * at_two / (at_three - at_two)
    found = first + second
    return np.where(trusted & np.isfinite(found), found, 0.5)
