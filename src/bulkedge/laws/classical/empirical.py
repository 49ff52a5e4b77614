"""Laws made of atoms: measured eigenvalues, and the Poisson law.

>>> law = EmpiricalLaw([1.0, 5.0, 5.0])
>>> law.atoms, law.mean()
(((1.0, 0.3333333333333333), (5.0, 0.6666666666666666)), 3.6666666666666665)
>>> law == EmpiricalLaw([5.0, 1.0], [2, 1])
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.law import Law
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import FINITE, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError


@dataclass(frozen=True, eq=False, init=False)
class EmpiricalLaw(Law):
    """The law of a list of values: a weighted atom at each.

    Laws with the same distinct values and the same normalised weights are equal and hash alike, however they were
    given; ``values`` (increasing) and ``weights`` are read-only arrays.

    >>> EmpiricalLaw([1.0, 2.0], weights=[3, 1]).mean()
    1.25

    Parameters
    ----------
    values : array_like
        Finite locations, in any order, repeated or not.
    weights : array_like, optional
        Non-negative weights, normalised to sum one; equal by default.
    """

    unit = Unit.VALUES

    values: Real
    weights: Real

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        points = FINITE.check("values", values).ravel()
        if not len(points):
            raise DomainError("values is empty: a law has one value at least")
        shares = np.ones(len(points)) if weights is None else FINITE.check("weights", weights).ravel()
        if shares.shape != points.shape or not np.all(shares >= 0) or not shares.any():
            raise DomainError(f"weights must be {len(points)} non-negative numbers, one for each value, not all zero")
        if shares.max() > np.finfo(float).max / len(shares):  # the sum of finite weights may not be finite
            shares = shares / shares.max()
        # adding zero turns -0.0 into 0.0: one value, one pattern of bits
        places, index = np.unique(points + 0.0, return_inverse=True)
        masses = _normalise(np.bincount(index, shares, len(places)).astype(float))
        for name, array in (("values", places[masses > 0]), ("weights", masses[masses > 0])):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EmpiricalLaw):
            return NotImplemented
        return np.array_equal(self.values, other.values) and np.array_equal(self.weights, other.weights)

    def __hash__(self) -> int:
        return hash((self.values.tobytes(), self.weights.tobytes()))

    def __repr__(self) -> str:
        if len(self.values) <= 6:
            return f"EmpiricalLaw({self.values.tolist()}, {self.weights.tolist()})"
        return f"EmpiricalLaw({len(self.values)} atoms in [{self.values[0]:g}, {self.values[-1]:g}])"

    @cached_property
    def atoms(self) -> PointMasses:
        """The distinct values with their weights."""
        return tuple(zip(self.values.tolist(), self.weights.tolist(), strict=True))

    def _bulk(self) -> None:
        return None


def _normalise(masses: Real) -> Real:
    """Masses over their sum; those that sum to one up to rounding stay, so that doing it again changes nothing."""
    if np.count_nonzero(masses) == 1:
        return np.where(masses > 0, 1.0, 0.0)
    total = math.fsum(masses)
    return masses if abs(total - 1) <= 2 * EPS else masses / total


@dataclass(frozen=True)
class PoissonLaw(Parametric, Law):
    """Poisson law: the limit of the squared singular values of one-hot attention (*equivalence*, Figure 4).

    The atoms listed leave out a tail of mass below 1e-30; ``edge`` is infinite.

    >>> law = PoissonLaw(rate=1.0)
    >>> law.cdf([0.0, 1.0]).round(4), law.edge
    (array([0.3679, 0.7358]), inf)
    """

    unit = Unit.SQUARED
    matrix = "A, one-hot attention"

    rate: float = parameter(Interval(1e-3, 1e3), "mean of the law", 1.0)

    _unbounded = True

    @cached_property
    def atoms(self) -> PointMasses:
        """The integers with their probabilities, as far as these matter."""
        counts = np.arange(int(self.rate + 40 * np.sqrt(self.rate) + 40))
        masses = np.exp(xlogy(counts, self.rate) - gammaln(counts + 1) - self.rate)
        keep = masses > 1e-30
        return tuple(zip(counts[keep].astype(float).tolist(), masses[keep].tolist(), strict=True))

    def _bulk(self) -> None:
        return None
