"""The spectrum of softmax attention when head dimension and context length grow together.

>>> law = AttentionLaw(beta=1.0, head_ratio=1.0)
>>> round(law.edge, 8), round(law.mean(), 8)    # Marchenko-Pastur with mean e - 1 would end at 4(e - 1) = 6.87
(9.00954255, 1.71828183)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bulkedge.laws.attention.popular_keys import Popular
from bulkedge.laws.classical.images import Squared
from bulkedge.laws.classical.sum import SumLaw
from bulkedge.laws.engine.profiles import ProfiledSum
from bulkedge.laws.law import Bulk
from bulkedge.laws.units import Unit
from bulkedge.support.domains import Interval, Parametric, parameter


def noise_variance(beta: float) -> float:
    """Variance of f beyond its linear part, ``exp(beta**2) - 1 - beta**2``, without cancellation."""
    x = beta**2
    if x > 0.5:
        return float(np.expm1(x) - x)
    term, total, k = x * x / 2, 0.0, 2
    while total + term != total:
        total += term
        k += 1
        term *= x / k
    return total


@dataclass(frozen=True)
class AttentionLaw(Parametric, Popular):
    """Squared singular values of ``sqrt(T) (A - uu')``, A = softmax(beta S) of T tokens, in the proportional regime.

    ``SumLaw`` with the linear term of variance ``beta**2`` and rank ratio ``head_ratio = d/T`` and noise of variance
    ``exp(beta**2) - 1 - beta**2``, squared (*equivalence*, Theorem 3.2; docs/theory/attention.md,
    "The proportional law").
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    beta: float = parameter(Interval(1e-3, 6), "inverse temperature: standard deviation of the scaled scores")
    head_ratio: float = parameter(Interval(1e-6, 1e6), "head dimension over tokens, d/T")

    @property
    def _terms(self) -> SumLaw:
        return SumLaw((self.beta**2, noise_variance(self.beta)), (self.head_ratio, np.inf))

    def profiled(self) -> ProfiledSum:
        """The law as a sum of two terms, the linear one and noise, with rows and columns of one size."""
        return ProfiledSum.alike(self._terms.variances, self._terms.ratios)

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """None: the noise term has full rank."""
        return ()

    def _bulk(self) -> Bulk | None:
        return Squared(self._terms)._bulk()
