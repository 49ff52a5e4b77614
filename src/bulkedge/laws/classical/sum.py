"""Sums of independent Gaussian products: the symmetrised singular-value law of low-rank terms plus noise.

>>> SumLaw(variances=(1.0,), ratios=(float("inf"),)).support   # noise alone: the semicircle
((-2.0, 2.0),)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bulkedge.laws.engine.explicit import Levy
from bulkedge.laws.law import Bulk, Law
from bulkedge.laws.units import Unit
from bulkedge.support.domains import Each, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

LIGHTEST = 1e-15


@dataclass(frozen=True)
class SumLaw(Parametric, Law):
    """Symmetrised singular-value law of ``sum_k b_k P_k Q_k'/sqrt(T N_k)``, P_k and Q_k Gaussian T x N_k.

    The rank ratios are ``N_k/T``. ``R(w) = sum_k b_k**2 w/(1 - b_k**2 w**2/ratios[k])``; an infinite ratio is a full
    Gaussian matrix ``b W/sqrt(T)`` (docs/theory/transforms.md, "Sum laws"). ``squared()`` is the law of the squared
    singular values. With ``sum(ratios) < 1`` the kernel is an atom at zero.
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
        if min(self.variances) < LIGHTEST * sum(self.variances):
            raise DomainError(
                f"variances = {self.variances!r}: a term with less than {LIGHTEST:g} of the total "
                "is below double precision; leave it out"
            )

    @property
    def _levy(self) -> Levy:
        # m w/(1 - q**2 w**2) is half an atom at q and half at -q
        variance = np.array(self.variances)
        jump = np.sqrt(variance / np.array(self.ratios))
        return Levy.of(0.0, np.concatenate([-jump, jump]), np.concatenate([variance, variance]) / 2)

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """The kernel of the sum."""
        # at zero by symmetry, where rounding would move it
        return tuple((0.0, mass) for _, mass in self._levy.surviving_atoms(((0.0, 1.0),)))

    def _bulk(self) -> Bulk:
        return self._levy.own_map().bulk()
