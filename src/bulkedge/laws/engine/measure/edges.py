"""Edges of a support and the behaviour of a density there."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Edge:
    """An end of a support interval.

    At distance ``delta`` from the edge the density is ``delta**exponent * g(delta**(1/order))`` with ``g`` analytic,
    and even where ``even`` says so; ``order * (exponent + 1)`` is a positive integer.

    Attributes
    ----------
    location : float
        Where the edge is.
    exponent, order, even
        The behaviour of the density.
    remainder : float
        True location minus ``location``, where it is known: densities keep their relative accuracy close to the edge.
    """

    location: float
    exponent: float
    order: int
    even: bool = False
    remainder: float = 0.0

    @classmethod
    def soft(cls, location: float, remainder: float = 0.0) -> Edge:
        """Square-root edge, the generic one: a simple critical point of the inverse map."""
        return cls(location, 0.5, 2, even=True, remainder=remainder)

    @classmethod
    def exactly_soft(cls, location: Fraction) -> Edge:
        """Square-root edge whose location is known beyond double precision."""
        rounded = float(location)
        return cls.soft(rounded, float(location - Fraction(rounded)))

    @classmethod
    def hard(cls, location: float, order: int = 2) -> Edge:
        """Density ``delta**(1/order - 1)``: a zero of the given order of the inverse map."""
        return cls(location, 1 / order - 1, order, even=order == 2)

    @classmethod
    def cusp(cls, location: float, exponent: float = 1 / 3) -> Edge:
        """Two intervals touch: a double critical point of the inverse map."""
        return cls(location, exponent, 3)

    @classmethod
    def plain(cls, location: float, order: int = 1) -> Edge:
        """The density is finite and non-zero, analytic in ``delta**(1/order)``."""
        return cls(location, 0.0, order)

    @property
    def weight(self) -> int:
        """Power of ``s = delta**(1/order)`` in the mass element ``g(s) s**weight ds``."""
        return round(self.order * (self.exponent + 1)) - 1

    @property
    def exact(self) -> Fraction:
        """The location with its remainder."""
        return Fraction(self.location) + Fraction(self.remainder)

    def moved(self, location: Fraction) -> Edge:
        """An edge at which the density behaves the same, at another place."""
        rounded = float(location)
        return Edge(rounded, self.exponent, self.order, self.even, float(location - Fraction(rounded)))


Interval = tuple[Edge, Edge]
