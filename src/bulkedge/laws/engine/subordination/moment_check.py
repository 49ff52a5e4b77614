"""What a free convolution owes to its operands: its mean and its variance, whatever its bulk was found to be.

The total mass says nothing of light islands far out, nor of an interval taken for another. The first two moments do:
an island of mass m at a distance x from the mean has a share of ``m x**2`` of the variance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bulkedge.laws.engine.measure.panels import REMEDY, UnresolvedDensityError
from bulkedge.support.arrays import EPS, Real

if TYPE_CHECKING:
    from bulkedge.laws.engine.measure.continuum import Continuum
    from bulkedge.laws.engine.subordination.problem import Moments
    from bulkedge.laws.law import Law

ACCURACY = 1e-9
"""How far moments may be off, relative to the deviation and the variance: ten times what is demanded of masses."""
SMALLEST_MASS = 1e-11
"""Mass between two gaps that counts as none, if its share of the variance does not count either."""
SMALLEST_SHARE = 1e-10
"""Share of the variance that counts as none."""
FEWEST = 1e-13
"""Mass that counts as none wherever it is: counts are differences of numbers of size one."""


def countable(moments: Moments | None, x: Real) -> Real:
    """The least mass that counts at points of the line: the less the further out they are."""
    smallest = np.full(len(x), SMALLEST_MASS)
    if moments is None or not moments.variance > 0:
        return smallest
    with np.errstate(divide="ignore"):
        share = SMALLEST_SHARE * moments.variance / (x - moments.mean) ** 2
    return np.asarray(np.maximum(np.minimum(smallest, share), FEWEST))


def lost(moments: Moments | None, x: Real, mass: Real) -> float:
    """Share of the variance in islands between neighbouring points in gaps."""
    if moments is None or not moments.variance > 0:
        return 0.0
    between = np.abs(np.diff(mass))
    counted = between > FEWEST
    squares = (x - moments.mean) ** 2
    return float(np.sum(between[counted] * np.minimum(squares[1:], squares[:-1])[counted]) / moments.variance)


def check_moments(law: Law, continuum: Continuum | None, demanded: Moments) -> None:
    """Refuse a law whose mean or variance is not what its operands demand."""
    mean, variance, size = demanded
    ends = np.concatenate([law.locations, np.ravel(continuum.support) if continuum else []])
    reach, deviation = float(np.abs(ends - mean).max()), float(np.sqrt(variance))
    rounding = 64 * EPS * (size + float(np.abs(ends).max()))
    allowed = (
        ACCURACY * deviation + SMALLEST_MASS * reach + rounding,
        ACCURACY * variance + SMALLEST_MASS * reach**2 + rounding * (deviation + rounding),
    )
    for order, name, value, slack in zip((1, 2), ("mean", "variance"), (0.0, variance), allowed, strict=True):
        found = continuum.moment(order, mean) if continuum else 0.0
        found += float(np.sum(law.masses * (law.locations - mean) ** order))
        if not abs(found - value) <= slack:
            raise UnresolvedDensityError(
                f"{law!r}: its {name} is off by {found - value:.3g}, of {value or mean:.6g}: part of the support was "
                f"missed or is not what it should be; {REMEDY}"
            )
