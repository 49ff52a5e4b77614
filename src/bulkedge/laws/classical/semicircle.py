"""Wigner's semicircle and its folded half, the quarter circle.

``Semicircle(variance)`` is the eigenvalue law of a symmetric matrix with independent entries of variance
``variance/n``; ``QuarterCircle(variance)`` is the law of the singular values of a square one.

>>> law = Semicircle(variance=1.0)
>>> law.support, round(law.moment(4), 12)
(((-2.0, 2.0),), 2.0)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bulkedge.laws.engine.explicit import Levy
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import Bulk, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Interval, Parametric, parameter

VARIANCE = Interval(1e-60, 1e60)


def _half_circle(variance: float) -> tuple[float, float]:
    """The edge ``2 sqrt(variance)``, rounded, and the true value minus that."""
    edge = 2 * float(np.sqrt(variance))
    # in exact arithmetic: the rounding of the square is as large as what is looked for
    return edge, float((4 * Fraction(variance) - Fraction(edge) ** 2) / (2 * Fraction(edge)))


@dataclass(frozen=True)
class Semicircle(Parametric, Law):
    """Semicircle law: eigenvalues of ``(W + W')/sqrt(2 n)`` for W of i.i.d. entries of the given variance.

    Density ``sqrt(4 v - x**2)/(2 pi v)``, R-transform ``v w`` (docs/theory/transforms.md, "Sum laws").
    """

    unit = Unit.EIGEN
    matrix = "(W + W')/sqrt(2 n), W of i.i.d. entries"

    variance: float = parameter(VARIANCE, "variance of the law", 1.0)

    _symmetric = True

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """None."""
        return ()

    @property
    def _levy(self) -> Levy:
        return Levy(0.0, np.zeros(1), np.array([self.variance]))

    def _bulk(self) -> Bulk:
        edge, remainder = _half_circle(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value = np.sqrt((edge - x) * (edge + x)) / (2 * np.pi * self.variance)
            return value, value * EPS * edge * (1 / (edge - x) + 1 / (edge + x))

        return [(Edge.soft(-edge, -remainder), Edge.soft(edge, remainder))], density


@dataclass(frozen=True)
class QuarterCircle(Parametric, Law):
    """Quarter-circle law: singular values of an n x n matrix of i.i.d. entries of variance ``variance/n``.

    The bulk of ``sqrt(T) A`` for a random Markov matrix A (*propagation*, Lemma 3).
    """

    unit = Unit.SINGULAR
    matrix = "W/sqrt(n), W of i.i.d. entries"

    variance: float = parameter(VARIANCE, "second moment of the law", 1.0)

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """None."""
        return ()

    def _bulk(self) -> Bulk:
        edge, remainder = _half_circle(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value = np.sqrt((edge - x) * (edge + x)) / (np.pi * self.variance)
            return value, value * EPS * edge / (edge - x)

        return [(Edge.plain(0.0), Edge.soft(edge, remainder))], density
