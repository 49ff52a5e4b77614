"""What a distribution is: a distribution function, its quantiles, and the unit of its values.

A :class:`~bulkedge.laws.law.Law` is one and adds density, edges, transforms and spikes. What only has a distribution
function (a causal head, a simulated null, an estimated spectrum) is a distribution and nothing more.

To mistake squares for values is the commonest silent error with random matrices, so both sides of a comparison have a
:class:`Unit`.

>>> sampled = StepDistribution([1.0, 2.0, 4.0])
>>> sampled.cdf([1.5, 2.0]).tolist(), float(sampled.ppf(0.5))
([0.3333333333333333, 0.6666666666666666], 2.0)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import FINITE, REAL, Choice, shown
from bulkedge.support.errors import DomainError
from bulkedge.support.random import numpy_generator


class Unit(StrEnum):
    """The quantity that values are.

    >>> print(Unit.SINGULAR.square())
    squared singular values
    """

    EIGEN = "eigenvalues"
    """Eigenvalues of a Hermitian matrix; of a Gram matrix ``M'M`` they are also the squared singular values of M."""
    SINGULAR = "singular values"
    SQUARED = "squared singular values"
    SYMMETRISED = "symmetrised singular values"
    """Each singular value with both signs and half its weight: the eigenvalues of ``[[0, M], [M', 0]]``."""
    VALUES = "values"
    """Plain numbers, such as a list of measured ones: comparable with anything, as they are."""

    def square(self) -> Unit:
        """What squares of such values are; of a Hermitian matrix, singular values are absolute eigenvalues."""
        return Unit.VALUES if self in {Unit.VALUES, Unit.SQUARED} else Unit.SQUARED

    def root(self) -> Unit:
        """What square roots of such values are: those of the eigenvalues of M'M are the singular values of M."""
        return Unit.SINGULAR if self in {Unit.SQUARED, Unit.EIGEN} else Unit.VALUES


UNIT = Choice(tuple(Unit))


PointMasses = tuple[tuple[float, float], ...]


class Distribution(ABC):
    """A probability distribution of spectral values on the real line."""

    @property
    @abstractmethod
    def unit(self) -> Unit:
        """What the values are."""

    @property
    def matrix(self) -> str:
        """The normalised matrix whose values they are, in words or as a formula; empty where it can be any."""
        return ""

    @property
    def describes(self) -> str:
        """Unit and matrix in one phrase."""
        return f"{self.unit} of {self.matrix}" if self.matrix else str(self.unit)

    @abstractmethod
    def cdf(self, x: ArrayLike) -> Any:
        """Mass at or below x, atoms included.

        Parameters
        ----------
        x : array_like
            Points of the line, of any shape; infinite ones are allowed.

        Returns
        -------
        float or array
            The mass, between 0 and 1, of the same shape; nan where x is.
        """

    @abstractmethod
    def ppf(self, q: ArrayLike) -> Any:
        """Smallest x with ``cdf(x) >= q``; nan outside [0, 1].

        Parameters
        ----------
        q : array_like
            Levels, of any shape.

        Returns
        -------
        float or array
            The quantiles, of the same shape.
        """

    @property
    def atoms(self) -> PointMasses:
        """Point masses ``((location, mass), ...)`` in increasing order of location."""
        return ()

    def rvs(self, size: int | tuple[int, ...], rng: np.random.Generator) -> Real:
        """Independent draws, by inversion.

        Parameters
        ----------
        size : int or tuple of int
            Shape of the result.
        rng : numpy.random.Generator
            Source of randomness.

        Returns
        -------
        array
            Draws of that shape.

        Examples
        --------
        >>> from bulkedge.laws import MarchenkoPastur
        >>> MarchenkoPastur(0.5).rvs(3, np.random.default_rng(0)).round(4)
        array([1.1527, 0.4266, 0.1428])
        """
        try:
            levels = numpy_generator(rng).random(size)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            if isinstance(error, DomainError):
                raise
            raise DomainError(f"size = {shown(size)} must be a whole number, or a tuple of them") from None
        return np.asarray(self.ppf(levels))

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``."""
        del n, level, dyson
        return np.inf


class StepDistribution(Distribution):
    """The distribution function of a list of values: a spectrum, or the pooled draws of a simulation.

    >>> StepDistribution([1.0, 2.0, 4.0], weights=[2, 1, 1]).cdf([1.0, 3.0])
    array([0.5 , 0.75])

    Parameters
    ----------
    values : array_like
        Finite numbers, in any order.
    weights : array_like, optional
        Positive weights, normalised to sum one; equal by default.
    unit : Unit
        What the values are.
    """

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None, unit: Unit | str = Unit.VALUES) -> None:
        points = FINITE.check("values", values).ravel()
        if not points.size:
            raise DomainError("values is empty: one number at least")
        shares = np.ones(len(points)) if weights is None else FINITE.check("weights", weights).ravel()
        if shares.shape != points.shape or not np.all(shares > 0):
            raise DomainError(f"weights must be {len(points)} positive numbers, one for each of the values")
        self._unit: Unit = UNIT.check("unit", unit)
        self._places, index = np.unique(points, return_inverse=True)
        self._masses = np.bincount(index, weights=shares / shares.sum())
        self._upto = np.append(0.0, np.cumsum(self._masses))
        self._upto[-1] = 1.0

    @property
    def unit(self) -> Unit:
        """What the values are."""
        return self._unit

    @property
    def atoms(self) -> PointMasses:
        """Every value with its weight."""
        return tuple(zip(self._places.tolist(), self._masses.tolist(), strict=True))

    def cdf(self, x: ArrayLike) -> Any:
        """Share of the values at or below x; nan where x is."""
        points = REAL.check("x", x)
        share = self._upto[np.searchsorted(self._places, points, side="right")]
        return np.where(np.isnan(points), np.nan, share)[()]

    def ppf(self, q: ArrayLike) -> Any:
        """Smallest value with at least that share at or below it; nan outside [0, 1]."""
        levels = REAL.check("q", q)
        reached = np.searchsorted(self._upto[1:], np.nan_to_num(levels) * (1 - 4 * EPS))
        found = self._places[np.minimum(reached, len(self._places) - 1)]
        return np.where((levels >= 0) & (levels <= 1), found, np.nan)[()]

    def __repr__(self) -> str:
        ends = f"[{self._places[0]:.6g}, {self._places[-1]:.6g}]"
        return f"StepDistribution({len(self._places)} {self._unit} in {ends})"
