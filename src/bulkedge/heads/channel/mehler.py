"""Singular values of a Gaussian channel, by Mehler's formula: ``s_1`` times all products of powers of ``r(a_i)``.

Derived in docs/theory/channel.md, "Singular values".
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from bulkedge.support.arrays import Real

THRESHOLD = 0.5
"""Squared coupling from which on the operator of a channel is unbounded."""


def mehler(couplings: Any) -> Any:
    """Ratio of consecutive singular values of one direction, ``(sqrt(1 + 2 a**2) - sqrt(1 - 2 a**2))/(2 a)``."""
    square = np.minimum(2 * np.asarray(couplings) ** 2, 1.0)
    # the same without the cancellation for small a
    return np.where(square < 1, 2 * np.sqrt(square / 2) / (np.sqrt(1 + square) + np.sqrt(1 - square)), 1.0)


def largest_products(ratios: Real, count: int) -> Real:
    """The largest products ``prod r_i**n_i`` of powers of numbers below one, over all exponents n."""
    known = ratios[ratios > 0]
    found, heap = np.zeros(count), [(-1.0, 0)]
    # an entry stands for a product whose last factor has this index; successors only use it or later ones
    for k in range(count):
        if not heap:
            break
        value, first = heappop(heap)
        found[k] = -value
        for index in range(first, len(known)):
            heappush(heap, (value * float(known[index]), index))
    return found
