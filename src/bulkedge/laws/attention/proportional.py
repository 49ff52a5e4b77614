"""The spectrum of softmax attention when head dimension and context length grow together.

:class:`AttentionLaw` is for orthonormal tokens, :class:`CorrelatedAttentionLaw` for others (ours; *equivalence* leaves
these open).

>>> law = AttentionLaw(beta=1.0, head_ratio=1.0)
>>> round(law.edge, 8), round(law.mean(), 8)    # Marchenko-Pastur with mean e - 1 would end at 4(e - 1) = 6.87
(9.00954255, 1.71828183)
>>> from bulkedge.laws import EmpiricalLaw
>>> same = CorrelatedAttentionLaw(beta=1.0, head_ratio=1.0, gram=EmpiricalLaw([1.0]))    # orthonormal tokens
>>> bool(abs(same.edge - law.edge) < 1e-12)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bulkedge.laws.attention.popular_keys import WithPopularKeys
from bulkedge.laws.classical.images import Squared
from bulkedge.laws.classical.semicircle import SumLaw
from bulkedge.laws.distribution import Unit
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.domains import Instance, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError


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
class AttentionLaw(Parametric, WithPopularKeys):
    """Squared singular values of ``sqrt(T) (A - uu')``, A = softmax(beta S) of T tokens, in the proportional regime.

    ``SumLaw`` with the linear term of variance ``beta**2`` and rank ratio ``head_ratio = d/T`` and noise of variance
    ``exp(beta**2) - 1 - beta**2``, squared (*equivalence*, Theorem 3.2; docs/theory/attention.md,
    "The proportional law").

    >>> law = AttentionLaw(beta=0.5, head_ratio=0.25)
    >>> round(law.edge, 4), round(law.mean(), 4)
    (3.187, 0.284)
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    beta: float = parameter(Interval(1e-3, 6), "inverse temperature: standard deviation of the scaled scores")
    head_ratio: float = parameter(Interval(1e-6, 1e6), "head dimension over tokens, d/T")

    @property
    def _terms(self) -> SumLaw:
        return SumLaw((self.beta**2, noise_variance(self.beta)), (self.head_ratio, np.inf))

    def profiled_sum(self) -> ProfiledSum:
        """The law as a sum of two terms, the linear one and noise, with rows and columns of one size."""
        return ProfiledSum.alike(self._terms.variances, self._terms.ratios)

    def _bulk(self) -> BulkDensity | None:
        return Squared(self._terms)._bulk()


@dataclass(frozen=True)
class CorrelatedAttentionLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - uu')`` for tokens of unit norm, given the law of ``XX'``.

    The linear degree is ``beta XX'**(1/2) P Q' XX'**(1/2)/sqrt(T d)`` in law, P and Q Gaussian: in the eigenbasis of
    the Gram matrix its rows and columns have the eigenvalues as squared sizes. The noise depends on the squares of the
    correlations, and is taken as white, which holds while beta is small or correlations are weak
    (docs/theory/tokens.md, "Tokens that are not orthonormal"); the study ``equivalence/inputs`` measures where it
    stops.

    >>> from bulkedge.laws import MarchenkoPastur
    >>> gram = MarchenkoPastur(0.5)                                   # Gaussian tokens
    >>> round(CorrelatedAttentionLaw(beta=0.5, head_ratio=0.25, gram=gram).edge, 4)
    3.9986
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    beta: float = parameter(Interval(1e-2, 3), "inverse temperature: standard deviation of the scaled scores")
    head_ratio: float = parameter(Interval(1e-3, 1e3), "head dimension over tokens, d/T")
    gram: Law = parameter(Instance(Law), "law of the eigenvalues of XX', of mean one")

    def __post_init__(self) -> None:
        """Check the parameters, and that the tokens have unit norm on average."""
        super().__post_init__()
        if self.gram.lower_edge < -1e-9 or abs(self.gram.mean() - 1) > 1e-6:
            raise DomainError(f"gram = {self.gram!r} must be a law on [0, inf) of mean one: tokens of unit norm")

    @cached_property
    def _problem(self) -> ProfiledSum:
        levels, weights = np.polynomial.legendre.leggauss(24)
        sizes, weights = np.maximum(self.gram.ppf((levels + 1) / 2), 0.0), weights / 2
        profile = Profile(weights, np.stack([sizes / (weights @ sizes), np.ones(24)]))
        variances = np.array([self.beta**2, noise_variance(self.beta)])
        return ProfiledSum(variances, np.array([self.head_ratio, np.inf]), profile, profile)

    def _bulk(self) -> BulkDensity | None:
        return bulk_of(self._problem, ())
