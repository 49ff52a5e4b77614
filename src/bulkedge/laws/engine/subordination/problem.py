"""A law as a fixed-point problem: what the survey of the line and the curve above it ask of it.

Free convolutions (:mod:`bulkedge.laws.engine.subordination.convolution`,
:mod:`bulkedge.laws.engine.subordination.rectangular`) and profiled sums (:mod:`bulkedge.laws.engine.profiles`) are such
problems.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.edges import Edge
from bulkedge.support.arrays import Complex, Real


class Moments(NamedTuple):
    """Mean and variance of a law, and the size of the terms that add up to its mean."""

    mean: float
    variance: float
    size: float


class Problem(ABC):
    """A law given by the fixed point of a self-map of half-planes."""

    def moments(self) -> Moments | None:
        """Moments of the result as far as they are known beforehand; None if they are not."""
        return None

    @property
    def light_islands(self) -> bool:
        """Whether far out there may be islands whose mass, however small, is known."""
        return False

    @property
    def size(self) -> int:
        """Number of variables."""
        return 1

    @property
    def smallest(self) -> float:
        """A positive law whose bulk reaches below this fraction of its size reaches down to zero."""
        return 1e-16

    @property
    def positive(self) -> bool:
        """Whether the result lives on the positive half-line."""
        return False

    @property
    def flat_at_zero(self) -> bool:
        """Whether zero lies in the bulk, and there the variables are real to leading order."""
        return False

    @property
    def graded(self) -> bool:
        """Whether the law is to be seen at every scale next to zero: positive laws are."""
        return self.positive

    @property
    def at_once(self) -> bool:
        """Whether it is seen at all these scales from the first; else only where something was found next to zero."""
        return True

    @property
    def margin(self) -> float:
        """How far beyond the bounds, in units of their distance, a point lies in a gap for sure."""
        return 1 / 8

    @abstractmethod
    def bounds(self) -> tuple[float, float]:
        """Numbers between which the support of the result lies."""

    def far(self, z: Complex) -> Complex:
        """The variables at z far above the axis, to leading order; shape (size, n)."""
        return np.tile(z, (self.size, 1))

    @abstractmethod
    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """The round trip from the variables u of mu; see :data:`bulkedge.laws.engine.subordination.newton.Step`."""

    @abstractmethod
    def work(self, points: int) -> float:
        """What a call of :meth:`step` with so many points costs: 1.5 units a second on a core of 2020, roughly."""

    @abstractmethod
    def cauchy(self, u: Complex, x: Real) -> Complex:
        """The Cauchy transform of the result at a fixed point."""

    @abstractmethod
    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x at a real fixed point: the imaginary part of the logarithmic potential."""

    @abstractmethod
    def edge_at_zero(self) -> Edge | None:
        """The edge at zero, if there is one, where it is known not to be of square-root type."""
