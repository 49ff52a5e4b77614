"""The spectrum of softmax attention when the tokens are not orthonormal (ours; *equivalence* leaves it open).

>>> from bulkedge.laws import AttentionLaw, EmpiricalLaw
>>> law = CorrelatedAttentionLaw(beta=0.5, head_ratio=0.5, gram=EmpiricalLaw([1.0]))    # orthonormal: the paper's law
>>> bool(abs(law.edge - AttentionLaw(0.5, 0.5).edge) < 1e-12)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bulkedge.laws.attention.proportional import noise_variance
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import Bulk, Law
from bulkedge.laws.units import Unit
from bulkedge.support.domains import Instance, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

NODES = 24


@dataclass(frozen=True)
class CorrelatedAttentionLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - uu')`` for tokens of unit norm, given the law of ``XX'``.

    The linear degree is ``beta XX'**(1/2) P Q' XX'**(1/2)/sqrt(T d)`` in law, P and Q Gaussian: in the eigenbasis of
    the Gram matrix its rows and columns have the eigenvalues as squared sizes. The noise depends on the squares of the
    correlations, and is taken as white, which holds while beta is small or correlations are weak
    (docs/theory/attention.md, "Tokens that are not orthonormal"); the study ``equivalence/inputs`` measures where it
    stops.
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

    @property
    def atoms(self) -> tuple[tuple[float, float], ...]:
        """None: the noise term has full rank."""
        return ()

    @cached_property
    def _problem(self) -> ProfiledSum:
        levels, weights = np.polynomial.legendre.leggauss(NODES)
        sizes, weights = np.maximum(self.gram.ppf((levels + 1) / 2), 0.0), weights / 2
        profile = Profile(weights, np.stack([sizes / (weights @ sizes), np.ones(NODES)]))
        variances = np.array([self.beta**2, noise_variance(self.beta)])
        return ProfiledSum(variances, np.array([self.head_ratio, np.inf]), profile, profile)

    def _bulk(self) -> Bulk | None:
        return bulk_of(self._problem, ())
