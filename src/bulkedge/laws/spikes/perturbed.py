"""What perturbations do to a law: the methods of :class:`~bulkedge.laws.law.Law` for spikes.

The formulas are in :mod:`bulkedge.laws.spikes.rank_one` (eigenvalues), :mod:`bulkedge.laws.spikes.singular_spikes` and
:mod:`bulkedge.laws.spikes.shrinkage` (from outliers back to signals).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.distribution import Distribution
from bulkedge.laws.spikes.rank_one import Outlier, Spike, additive_spike, sample_spike
from bulkedge.laws.spikes.shrinkage import Loss, shrink, shrink_sample
from bulkedge.laws.spikes.singular_spikes import SingularSpike, singular_spike
from bulkedge.laws.units import Unit
from bulkedge.support.domains import FINITE
from bulkedge.support.errors import UnitError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law


class Perturbed(Distribution):
    """A distribution whose transforms say what perturbations of low rank do to it; every law is one."""

    @property
    def _law(self) -> Law:
        return cast("Law", self)

    @property
    def _aspect(self) -> float | None:
        """Rows over columns of the matrix whose singular values these are, where the law knows it."""
        return 1.0 if self.unit in {Unit.SINGULAR, Unit.SQUARED, Unit.SYMMETRISED} else None

    def spike(self, theta: ArrayLike) -> Spike:
        """What ``theta u u'`` does to the eigenvalues of a symmetric matrix of this law, u any direction free of it.

        In every gap of the law, and beyond both of its ends, the outlier is where ``G(x) = 1/theta``, if there is such
        a point, and its squared overlap with u is ``-1/(theta**2 G'(x))`` (Benaych-Georges and Nadakuditi 2011;
        *recovery*, equations 19 and 22).

        Examples
        --------
        >>> from bulkedge.laws import Semicircle
        >>> spike = Semicircle(1.0).spike(2.0)
        >>> round(float(spike.location), 10), round(float(spike.overlap), 10)     # theta + 1/theta and 1 - 1/theta**2
        (2.5, 0.75)
        """
        if self.unit in {Unit.SINGULAR, Unit.SQUARED}:
            raise UnitError(
                f"spike() adds to a symmetric matrix, but {self!r} is a law of {self.unit}: "
                "singular_spike(strength) says what a signal of rank one does to those"
            )
        return additive_spike(self._law, theta)

    def spikes(self, theta: ArrayLike) -> tuple[Outlier, ...]:
        """The outliers of several perturbations along orthogonal directions at once.

        In the limit each acts as if it were alone: its outliers overlap with its own direction only. Where strengths
        coincide, so do the outliers, and the overlap is the squared length within the span of their directions.
        """
        return self.spike(np.atleast_1d(FINITE.check("theta", theta))).together

    def singular_spike(
        self, strength: ArrayLike, ratio: float | None = None, unit: Unit | str | None = None
    ) -> SingularSpike:
        """What a signal ``x u v'`` does to the singular values of a matrix of this law, u and v free of it.

        Outliers are where ``phi(z) phi~(z) = 1/x**2``, with ``phi(z) = int z/(z**2 - t**2)`` over the singular values t
        of the rows and ``phi~ = ratio phi + (1 - ratio)/z`` over those of the columns (Benaych-Georges and Nadakuditi
        2012). Eigenvalues of a Gram matrix are taken as the squared singular values that they are.
        """
        return singular_spike(self._law, strength, ratio, unit)

    def sample_spike(self, theta: ArrayLike, ratio: float) -> Spike:
        """A population eigenvalue seen through a sample covariance, with this law as the population's bulk.

        The outlier is ``lam(theta) = theta (1 + ratio int t/(theta - t))``, present when ``lam'(theta) > 0``, with
        squared overlap ``theta lam'(theta)/lam(theta)`` (*recovery*, equations 24 and 27).

        Examples
        --------
        >>> from bulkedge.laws import EmpiricalLaw
        >>> spike = EmpiricalLaw([1.0]).sample_spike(4.0, ratio=0.5)
        >>> round(float(spike.location), 6), bool(spike.detectable)  # theta (1 + ratio/(theta - 1))
        (4.666667, True)
        """
        return sample_spike(self._law, theta, ratio)

    def shrink(self, values: ArrayLike, loss: Loss = "frobenius", ratio: float | None = None) -> Any:
        """The best estimates of a signal from the outliers it makes in noise of this law.

        Eigenvalues are those of a symmetric matrix ``signal + noise``, singular values those of any; the estimate of
        the signal keeps the observed vectors. See :mod:`bulkedge.laws.spikes.shrinkage`.

        Examples
        --------
        >>> from bulkedge.laws import Semicircle
        >>> Semicircle().shrink([2.5, 1.9]).round(10)                   # theta = 2, overlap 3/4
        array([1.5, 0. ])
        """
        return shrink(self._law, values, loss, ratio)

    def shrink_sample(self, values: ArrayLike, ratio: float, loss: Loss = "frobenius") -> Any:
        """The best estimates of population eigenvalues from those of a sample covariance, this law the population's.

        Examples
        --------
        >>> from bulkedge.laws import EmpiricalLaw
        >>> EmpiricalLaw([1.0]).shrink_sample([14 / 3, 1.2], ratio=0.5, loss="operator").round(10)
        array([4., 1.])
        """
        return shrink_sample(self._law, values, ratio, loss)
