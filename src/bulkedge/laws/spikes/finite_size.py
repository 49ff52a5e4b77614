"""How far the values of a finite matrix reach: the methods of :class:`~bulkedge.laws.law.Law` for its right end."""

from __future__ import annotations

import numpy as np

from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.laws.spikes.perturbed import Perturbed
from bulkedge.support import domains
from bulkedge.support.errors import DomainError

LEVEL = domains.Interval(0, 1, "()")
COUNT = domains.Integers(1, 2**62)
SNAP = 1e-9
"""Values this close to an atom, relative to the size of the law, are at the atom: rounding put them beside it."""


class FiniteSize(Perturbed):
    """A distribution whose right end says where the largest value of a finite matrix is; every law is one."""

    @property
    def edge_scale(self) -> float:
        """Width of the edge: the largest of n values is about ``edge + edge_scale * n**(-2/3) * TracyWidom``.

        It is ``(pi C)**(-2/3)`` where the density is ``C sqrt(edge - x)`` at the edge, which must be of square-root
        type.
        """
        continuum = self._law.continuum
        if continuum is None or not self.has_soft_edge:
            raise DomainError(f"{self!r} has no square-root edge on the right, so no Tracy-Widom scale")
        return float((np.pi * continuum.edge_coefficient) ** (-2 / 3))

    @property
    def has_soft_edge(self) -> bool:
        """Whether the law ends on the right with a square-root edge."""
        continuum = self._law.continuum
        last = continuum.intervals[-1][1] if continuum else None
        return last is not None and last.location == self._law.edge and last.exponent == 0.5

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``.

        That is :meth:`finite_edge` where the law ends with a square-root edge. Elsewhere no limit is known, and it is
        the edge itself, up to rounding.
        """
        if self.has_soft_edge:
            return self.finite_edge(n, level, dyson)
        LEVEL.check("level", level)
        return self._law.edge + self.slack

    @property
    def slack(self) -> float:
        """Rounding of values of the size of the law: those closer to an atom are at the atom."""
        law = self._law
        ends = (law.lower_edge, *(hi for _, hi in law.support), *law.locations)
        return SNAP * max(abs(place) for place in ends)

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest of n bulk values exceeds with probability ``level``."""
        level = LEVEL.check("level", level)
        n = COUNT.check("n", n)
        return self._law.edge + self.edge_scale * n ** (-2 / 3) * float(TracyWidom(dyson).isf(level))
