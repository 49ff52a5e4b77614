"""Laws made of atoms: measured eigenvalues, and the Poisson law.

>>> law = EmpiricalLaw([1.0, 5.0, 5.0])
>>> law.atoms, law.mean()
(((1.0, 0.3333333333333333), (5.0, 0.6666666666666666)), 3.6666666666666665)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, xlogy

from bulkedge.arrays import Real
from bulkedge.domains import Interval, Parametric, parameter
from bulkedge.errors import DomainError
from bulkedge.laws.base import Law
from bulkedge.laws.units import Unit


@dataclass(frozen=True, eq=False, init=False)
class EmpiricalLaw(Law):
    """Weighted atoms.

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
        points = np.asarray(values, dtype=float).ravel()
        shares = np.ones(len(points)) if weights is None else np.asarray(weights, dtype=float).ravel()
        if not len(points) or not np.all(np.isfinite(points)):
            raise DomainError("values is outside its domain: finite numbers, at least one")
        if shares.shape != points.shape or not np.all(np.isfinite(shares) & (shares >= 0)) or not shares.sum() > 0:
            raise DomainError(
                "weights is outside its domain: one finite non-negative number for each value, not all zero"
            )
        places, index = np.unique(points, return_inverse=True)
        masses = np.bincount(index, weights=shares / shares.sum(), minlength=len(places))
        object.__setattr__(self, "values", places[masses > 0])
        object.__setattr__(self, "weights", masses[masses > 0])

    def __repr__(self) -> str:
        if len(self.values) <= 6:
            return f"EmpiricalLaw({self.values.tolist()}, {self.weights.tolist()})"
        return f"EmpiricalLaw({len(self.values)} atoms in [{self.values[0]:g}, {self.values[-1]:g}])"

    @cached_property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """The distinct values with their weights."""
        return tuple(zip(self.values.tolist(), self.weights.tolist(), strict=True))

    def _bulk(self) -> None:
        return None


@dataclass(frozen=True)
class PoissonLaw(Parametric, Law):
    """Poisson law: the limit of the squared singular values of one-hot attention (*equivalence*, Figure 4).

    The atoms listed leave out a tail of mass below 1e-30; ``edge`` is infinite.
    """

    unit = Unit.SQUARED
    matrix = "A, one-hot attention"

    rate: float = parameter(Interval(1e-3, 1e3), "mean of the law", 1.0)

    _unbounded = True

    @cached_property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """The integers with their probabilities, as far as these matter."""
        counts = np.arange(int(self.rate + 40 * np.sqrt(self.rate) + 40))
        masses = np.exp(xlogy(counts, self.rate) - gammaln(counts + 1) - self.rate)
        keep = masses > 1e-30
        return tuple(zip(counts[keep].astype(float).tolist(), masses[keep].tolist(), strict=True))

    def _bulk(self) -> None:
        return None
