"""Readings that jump: a change from one reading to the next that no change before it explains.

Training moves all readings, sometimes fast, so that a change is no fault by itself. It is held against the *record*:
the largest change of any head over the last :data:`RECENT` readings. If the largest changes of readings are
exchangeable, with tails no heavier than a power ``x**-4`` (training is no Gaussian random walk: heads wake up), the
next one is beyond ``x`` times a record of ``m`` readings with a chance of at most ``1/(1 + m x**4)``, whatever the
number of heads.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import Real

RATE, READINGS = 0.01, 100
"""Chance of a false jump in so many readings."""
FIRST, RECENT = 8, 32
"""Changes that are needed before one is tested, and changes that make up a record, at most."""
TAIL = 4.0
"""Power of the tail of changes."""


class Jumps(NamedTuple):
    """Changes that were tested; arrays are (step, layer, head), like the readings."""

    here: Real
    """Whether the reading at a step jumped from the one before."""
    score: Real
    """Its change over the record."""


def record_factor(changes: int, level: float) -> float:
    """How far beyond the record of some changes the next one may be.

    Examples
    --------
    >>> round(record_factor(32, 1e-4), 2)
    4.2
    """
    return float(((1 / level - 1) / changes) ** (1 / TAIL))


def find_jumps(values: Real, rate: float, notable: float) -> Jumps:
    """Test the changes of a reading."""
    changes = np.abs(np.diff(values, axis=0))
    here, score = np.zeros(values.shape, dtype=bool), np.zeros(values.shape)
    for n in range(FIRST, len(changes)):
        past = changes[max(0, n - RECENT) : n]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a reading that no head has is nan
            record = np.nanmax(past)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[n + 1] = changes[n] / record
        limit = record_factor(len(past), rate / READINGS)
        here[n + 1] = (score[n + 1] > limit) & (changes[n] > notable)
    return Jumps(here, score)
