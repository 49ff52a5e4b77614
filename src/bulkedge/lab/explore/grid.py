"""Where laws of heads are tabulated: sizes, inverse temperatures, popularities, and the levels of their quantiles.

The room *heads* draws from this table while a slider moves, because a law takes longer than a tenth of a second; the
law itself follows. Sizes of heads are not interpolated: each has its own quantiles.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from bulkedge.laws import CausalHeadLaw, FiniteHeadLaw, Law
from bulkedge.support.arrays import Real

HEAD_DIMS = (32, 64, 128, 256)
TOKENS = (256, 512, 1024, 2048, 4096, 16384)
FLATTEST, SHARPEST = 0.2, 1.6
BETAS = tuple(np.round(0.9 - 0.7 * np.cos(np.pi * np.arange(8) / 7), 4).tolist())
"""Chebyshev's points between the two: a polynomial through them is right everywhere, or nowhere."""
SPREADS = (0.0, 0.5, 1.0)
"""Standard deviations of the logarithm of the popularity of keys."""
LEVELS = 96
"""Quantiles of each law."""


class Shape(NamedTuple):
    """What of a head is not interpolated."""

    head_dim: int
    tokens: int
    qk_norm: bool
    causal: bool


def shapes() -> list[Shape]:
    """All shapes of heads in the table, in its order."""
    return [Shape(*each) for each in product(HEAD_DIMS, TOKENS, (False, True), (False, True))]


def spreads_of(shape: Shape) -> tuple[float, ...]:
    """The popularities that are tabulated: no law is known for causal heads with popular keys."""
    return SPREADS[:1] if shape.causal else SPREADS


def levels(head_dim: int, tokens: int) -> Real:
    """Levels of the quantiles: as many for the values of each low degree of the exponential as for all the others.

    The scores themselves make ``head_dim`` large values, their squares the next ``d (d + 1)/2 - 1``, and there may be
    a gap below either: even levels would leave out the few large values that a reader looks at.
    """
    counts = np.cumsum([head_dim, head_dim * (head_dim + 1) // 2 - 1]) / tokens
    ends = [0.0, *(1 - counts[counts < 0.98])[::-1].tolist(), 1.0]
    per_part = LEVELS // (len(ends) - 1)
    within = (1 - np.cos(np.pi * (np.arange(per_part) + 0.5) / per_part)) / 2  # dense beside the ends
    return np.concatenate([low + (high - low) * within for low, high in pairwise(ends)])


def popularity(spread: float, keys: int = 400) -> Real:
    """Popularity of keys whose logarithm is Gaussian, at evenly spaced levels: the same numbers every time."""
    return np.exp(spread * ndtri((np.arange(keys) + 0.5) / keys))


def law_of(shape: Shape, beta: float, spread: float) -> Law:
    """The law that the table holds."""
    if shape.causal:
        return CausalHeadLaw(beta, shape.head_dim, shape.tokens, shape.qk_norm)
    law = FiniteHeadLaw(beta, shape.head_dim, shape.tokens, shape.qk_norm)
    return law.with_columns(popularity(spread)) if spread else law
