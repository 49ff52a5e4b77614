"""Wigner's semicircle, its folded half, the quarter circle, and sums of such noise and Gaussian products.

``Semicircle(variance)`` is the eigenvalue law of a symmetric matrix with independent entries of variance
``variance/n``; ``QuarterCircle(variance)`` is the law of the singular values of a square one. ``SumLaw`` is the
symmetrised singular-value law of low-rank terms plus noise; noise alone makes the semicircle.

>>> law = Semicircle(variance=1.0)
>>> law.support, round(law.moment(4), 12)
(((-2.0, 2.0),), 2.0)
>>> SumLaw(variances=(1.0,), ratios=(float("inf"),)).support
((-2.0, 2.0),)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.explicit import Levy
from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import Each, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

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

    >>> Semicircle(variance=4.0).edge
    4.0
    """

    unit = Unit.EIGEN
    matrix = "(W + W')/sqrt(2 n), W of i.i.d. entries"

    variance: float = parameter(VARIANCE, "variance of the law", 1.0)

    _symmetric = True

    @property
    def _levy(self) -> Levy:
        return Levy(0.0, np.zeros(1), np.array([self.variance]))

    def _bulk(self) -> BulkDensity:
        edge, remainder = _half_circle(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value = np.sqrt((edge - x) * (edge + x)) / (2 * np.pi * self.variance)
            return value, value * EPS * edge * (1 / (edge - x) + 1 / (edge + x))

        return [(Edge.soft(-edge, -remainder), Edge.soft(edge, remainder))], density


@dataclass(frozen=True)
class QuarterCircle(Parametric, Law):
    """Quarter-circle law: singular values of an n x n matrix of i.i.d. entries of variance ``variance/n``.

    The bulk of ``sqrt(T) A`` for a random Markov matrix A (*propagation*, Lemma 3).

    >>> law = QuarterCircle(variance=1.0)
    >>> law.edge, round(law.mean(), 4)                                  # 8/(3 pi)
    (2.0, 0.8488)
    """

    unit = Unit.SINGULAR
    matrix = "W/sqrt(n), W of i.i.d. entries"

    variance: float = parameter(VARIANCE, "second moment of the law", 1.0)

    def _bulk(self) -> BulkDensity:
        edge, remainder = _half_circle(self.variance)

        def density(x: Real) -> tuple[Real, Real]:
            value = np.sqrt((edge - x) * (edge + x)) / (np.pi * self.variance)
            return value, value * EPS * edge / (edge - x)

        return [(Edge.plain(0.0), Edge.soft(edge, remainder))], density


@dataclass(frozen=True)
class SumLaw(Parametric, Law):
    """Symmetrised law of the singular values of ``sum_k b_k P_k Q_k'/sqrt(T N_k)``, for Gaussian T x N_k factors.

    The rank ratios are ``N_k/T``. ``R(w) = sum_k b_k**2 w/(1 - b_k**2 w**2/ratios[k])``; an infinite ratio is a full
    Gaussian matrix ``b W/sqrt(T)`` (docs/theory/transforms.md, "Sum laws"). ``squared()`` is the law of the squared
    singular values. With ``sum(ratios) < 1`` the kernel is an atom at zero.

    >>> law = SumLaw(variances=(1.0, 0.7), ratios=(0.5, float("inf")))
    >>> round(law.edge, 4), round(law.squared().mean(), 4)
    (3.2928, 1.7)
    """

    unit = Unit.SYMMETRISED
    matrix = "sum_k b_k P_k Q_k'/sqrt(T N_k)"

    variances: tuple[float, ...] = parameter(Each(Interval(1e-60, 1e60)), "variances b_k**2 of the terms")
    ratios: tuple[float, ...] = parameter(Each(Interval(1e-6, 1e6, infinity=True)), "rank ratios N_k/T of the terms")

    _symmetric = True

    def __post_init__(self) -> None:
        """Check the parameters, and that there is one ratio for each variance."""
        super().__post_init__()
        if len(self.variances) != len(self.ratios):
            raise DomainError(f"ratios = {self.ratios!r} must have as many members as variances = {self.variances!r}")
        if min(self.variances) < 1e-15 * sum(self.variances):
            raise DomainError(f"variances = {self.variances!r}: a term is below 1e-15 of the total: leave it out")

    @property
    def _levy(self) -> Levy:
        # m w/(1 - q**2 w**2) is half an atom at q and half at -q
        variance = np.array(self.variances)
        jump = np.sqrt(variance / np.array(self.ratios))
        return Levy.of(0.0, np.concatenate([-jump, jump]), np.concatenate([variance, variance]) / 2)

    @property
    def atoms(self) -> PointMasses:
        """The kernel of the sum."""
        # at zero by symmetry, where rounding would move it
        return tuple((0.0, mass) for _, mass in self._levy.surviving_atoms(((0.0, 1.0),)))

    def _bulk(self) -> BulkDensity:
        return self._levy.own_map().bulk()
