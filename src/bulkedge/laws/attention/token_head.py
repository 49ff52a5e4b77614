"""The spectrum of softmax attention with fresh random weights on given tokens (ours).

The finite-head law is for orthonormal tokens. Given tokens X change it in three ways (docs/theory/attention.md, "Tokens
that are not orthonormal").

* Queries and keys are not isotropic: ``X W_Q W_K' X'`` has couplings, the singular values of
  ``C**(1/2) W_Q W_K' C**(1/2)`` with C the covariance of the tokens, which differ where the tokens fill few directions.
  A degree of the exponential is then several terms, whose features have products of couplings as sizes.
* Tokens that occur n times make rows and columns of squared size n, and an atom at zero.
* The mean of the keys drops out of the softmax. The mean query likes some keys more than others, in every row alike:
  columns are multiplied by a log-normal popularity.

>>> import numpy as np
>>> plain = TokenStatistics.of(np.eye(200), head_dim=64).law(beta=0.8, head_dim=64)
>>> abs(plain.edge / FiniteHeadLaw(0.8, 64, 200).edge - 1) < 0.1
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from bulkedge.laws.attention.finite_head import NEGLIGIBLE, FiniteHeadLaw
from bulkedge.laws.distribution import PointMasses
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Instance, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

PARTS = ((16, 6), (8, 6), (8, 4))
"""Terms that the first two degrees are split into, by the size of their features: where rows and columns are alike but
for the lengths of queries and keys, where popularity or repetitions make them differ, and where both do."""
LENGTHS = (16, 8, 4)
"""Groups of lengths of queries and keys: alone, beside those of popularity or of repetitions, and beside both."""
WHITE, EVEN = 1e-3, 0.02
"""Relative variance below which a profile is left out, and variance of the logarithm below which popularity is."""


class TokenStatistics(NamedTuple):
    """What tokens do to a head.

    Attributes
    ----------
    scale : float
        Mean squared distance of a token from the mean token: the standard deviation of the scores is beta times this.
    popularity : float
        Variance of the logarithm of a key's popularity, over ``beta**2``.
    couplings : tuple of float
        Squared couplings of the head's directions, of mean one.
    multiplicities : tuple of int
        How often each distinct token occurs.
    spread : float
        Relative variance of the squared distances of tokens from their mean.
    likeness : float
        How many tokens are like a given other one, beyond what their covariance makes of Gaussian tokens.
    """

    scale: float
    popularity: float
    couplings: tuple[float, ...]
    multiplicities: tuple[int, ...]
    spread: float
    likeness: float

    @classmethod
    def of(cls, tokens: Real, head_dim: int) -> TokenStatistics:
        """What these tokens (a row each) do to a head of this dimension."""
        distinct, counts = np.unique(tokens, axis=0, return_counts=True)
        shares = counts / counts.sum()
        mean = shares @ distinct
        centred = distinct - mean
        squares = np.sum(centred**2, axis=1)
        scale = float(shares @ squares)
        if not scale > 0:
            raise DomainError("inputs are all the same token: attention is uniform, and has no bulk")
        values = population(centred @ centred.T / scale, shares)
        couplings = _couplings(values, head_dim)
        spread = float(shares @ (squares / scale - 1) ** 2)
        return cls(
            scale,
            float(mean @ mean) * scale,
            tuple(couplings.tolist()),
            tuple(sorted(counts.tolist())),
            spread,
            _likeness(centred @ centred.T / scale, shares, values),
        )

    def law(self, beta: float, head_dim: int) -> TokenHeadLaw:
        """The law of a head on tokens of these sizes."""
        head = FiniteHeadLaw(beta * self.scale, head_dim, sum(self.multiplicities))
        return TokenHeadLaw(head, beta**2 * self.popularity, self.couplings, self.multiplicities)


def population(gram: Real, shares: Real) -> Real:
    """Eigenvalues of the covariance that tokens with this Gram matrix were drawn from, of sum one.

    The Gram matrix without its diagonal has the covariance's eigenvalues, and noise of the size of its entries. What is
    beyond the noise is taken as it is; what is left of the power is spread over as many directions as the mean square
    of the entries asks for. (The eigenvalues of the tokens' own covariance would not do: of orthonormal tokens, as of
    any that are fewer than their dimensions, they hold the noise a second time.)
    """
    apart = gram - np.diag(np.diag(gram))
    root = np.sqrt(shares)
    energy = float(shares @ apart**2 @ shares) / max(1 - float(np.sum(shares**2)), 1e-12)
    values = np.linalg.eigvalsh(root[:, None] * apart * root)[::-1]
    large: list[float] = []
    # noise of entries with root mean square s ends at 2 s/sqrt(T); what is beyond 2.4 is no noise
    for value in values.tolist():
        rest = max(energy - sum(each**2 for each in large), 0.0)
        if value < 2.4 * np.sqrt(rest / len(gram)) or sum(large) + value > 1:
            break
        large.append(value)
    left, rest = max(1 - sum(large), 0.0), energy - sum(each**2 for each in large)
    directions = int(min(max(round(left**2 / max(rest, 1e-12)), 1), 8000))
    return np.array([*large, *np.full(directions, left / directions)])


def _couplings(values: Real, head_dim: int) -> Real:
    """Squared singular values of ``C**(1/2) W_Q W_K' C**(1/2)``, of mean one, C of these eigenvalues; largest first."""
    if np.sum(values**2) * head_dim < WHITE:
        return np.ones(head_dim)
    rng = np.random.default_rng(0)
    found = np.zeros((8, head_dim))  # draws of weights, over which each rank is averaged
    for each in found:
        drawn = (np.sqrt(values)[:, None] * rng.standard_normal((len(values), head_dim)) for _ in range(2))
        left, right = (np.asarray(np.linalg.qr(part, mode="r")) for part in drawn)
        squares = np.linalg.svd(left @ right.T, compute_uv=False) ** 2
        each[: len(squares)] = squares[:head_dim]
    mean = found.mean(axis=0)
    return np.asarray(mean / mean.mean())


def _likeness(gram: Real, shares: Real, values: Real) -> float:
    """Energy of squared correlations of different tokens, T times their mean square, beyond that of Gaussian tokens.

    Of those it is ``3 (tr C**2)**2 + 6 tr C**4`` in the mean.
    """
    fourth = (gram - np.diag(np.diag(gram))) ** 4
    mean = float(shares @ fourth @ shares) / max(1 - float(np.sum(shares**2)), 1e-12)
    gaussian = 3 * float(np.sum(values**2)) ** 2 + 6 * float(np.sum(values**4))
    return len(gram) * (mean - gaussian)


@dataclass(frozen=True)
class TokenHeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - uu')`` for given tokens; made by :meth:`TokenStatistics.law`."""

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    head: FiniteHeadLaw = parameter(Instance(FiniteHeadLaw), "the law of orthonormal tokens")
    popularity: float = parameter(Interval(0, 25), "variance of the logarithm of a key's popularity", 0.0)
    couplings: tuple[float, ...] = (1.0,)
    multiplicities: tuple[int, ...] = (1,)

    @property
    def atoms(self) -> PointMasses:
        """At zero, one value for each token that occurred before."""
        missing = 1 - self._distinct
        return ((0.0, missing),) if missing > 1e-12 else ()

    @property
    def _distinct(self) -> float:
        return len(self.multiplicities) / sum(self.multiplicities)

    @property
    def _profiles(self) -> int:
        """Whether popularity, repetitions or both make a profile: zero to two."""
        return int(self.popularity >= EVEN) + int(np.var(self.multiplicities) >= WHITE)

    @cached_property
    def _problem(self) -> ProfiledSum:
        """Of the distinct tokens alone: with a part s of all, variances and ratios are 1/s times as large."""
        plain = self.head.profiled_sum()
        rows, columns = (_join_groups(each, LENGTHS[self._profiles]) for each in (plain.rows, plain.columns))
        kinds = _repetition_groups(np.array(self.multiplicities, dtype=float))
        rows, columns = _multiply_groups(rows, *kinds), _multiply_groups(columns, *kinds)
        popularity = popularity_groups(self.popularity)
        columns = _multiply_groups(columns, *popularity)
        # the profile has mean one: what popularity adds to the mean square goes to the variances
        factor = float(np.dot(*popularity))
        columns = Profile(columns.weights, columns.squares / factor)
        variances, ratios, source = self._split(plain.variances, plain.ratios)
        return ProfiledSum(
            variances * factor / self._distinct,
            ratios / self._distinct,
            Profile(rows.weights, rows.squares[source]),
            Profile(columns.weights, columns.squares[source]),
        )

    def _split(self, variances: Real, ratios: Real) -> tuple[Real, Real, NDArray[np.intp]]:
        """Variances, ratios and the degree's index of each term, the first two degrees in parts of like features."""
        sizes = np.array(self.couplings)
        first, second = np.triu_indices(len(sizes))
        features = {0: sizes, 1: sizes[first] * sizes[second]}
        terms = []
        for k, (variance, ratio) in enumerate(zip(variances.tolist(), ratios.tolist(), strict=True)):
            found = features.get(k, np.ones(1))
            # a degree of a larger rank ratio is noise, whatever the sizes of its features
            if np.var(found) < WHITE * np.mean(found) ** 2 or ratio > 30:
                terms.append((variance, ratio, k))
                continue
            for group in np.array_split(np.sort(found), PARTS[self._profiles][k]):
                share = len(group) / len(found)
                terms.append((variance * share * float(group.mean() / found.mean()), ratio * share, k))
        kept = [each for each in terms if each[0] > NEGLIGIBLE * variances.sum() or np.isinf(each[1])]
        strengths, ranks, degrees = zip(*kept, strict=True)
        return np.array(strengths), np.array(ranks), np.array(degrees)

    def _bulk(self) -> BulkDensity | None:
        found = bulk_of(self._problem, ())
        if found is None or not self.atoms:
            return found
        intervals, density = found
        share = self._distinct

        def scaled(x: Real) -> tuple[Real, Real]:
            value, error = density(x)
            return share * value, share * error

        return intervals, scaled


def _repetition_groups(counts: Real) -> tuple[Real, Real]:
    """Shares of at most five groups of tokens that occur about as often, and how often that is over the mean."""
    if counts.var() < WHITE:
        return np.ones(1), np.ones(1)
    values = np.unique(counts)
    groups = [values[k : k + 1] for k in range(min(3, len(values)))]
    rest = np.sort(counts[counts > groups[-1].max()])
    parts = [counts[counts == group[0]] for group in groups]
    parts += [each for each in np.array_split(rest, 2) if len(each)]
    weights = np.array([len(each) for each in parts]) / len(counts)
    return weights, np.array([each.mean() for each in parts]) / counts.mean()


def _join_groups(profile: Profile, count: int) -> Profile:
    """The same profile with few groups: neighbours are joined, with their mean squared size."""
    if len(profile.weights) <= count:
        return profile
    edges = np.searchsorted(np.cumsum(profile.weights), np.linspace(0, 1, count + 1)[1:-1])
    joined = [part for part in np.split(np.arange(len(profile.weights)), edges) if len(part)]
    weights = np.array([profile.weights[part].sum() for part in joined])
    squares = np.stack([profile.squares[:, part] @ profile.weights[part] for part in joined], axis=1) / weights
    return Profile(weights, squares)


def _multiply_groups(profile: Profile, weights: Real, squares: Real) -> Profile:
    """Groups of a profile with those of another that is independent of it and the same for all terms."""
    product = profile.squares[:, :, None] * squares
    return Profile(np.outer(profile.weights, weights).ravel(), product.reshape(len(profile.squares), -1))


def popularity_groups(variance: float) -> tuple[Real, Real]:
    """Groups of a log-normal popularity of mean one."""
    if variance < EVEN:
        return np.ones(1), np.ones(1)
    count = 3 if variance <= 0.05 else 5 if variance <= 0.3 else 8
    ends = np.concatenate([[-np.inf], ndtri(np.linspace(0, 1, count + 1)[1:-1]), [np.inf]])
    return np.full(count, 1 / count), np.exp(variance) * np.diff(ndtr(ends - 2 * np.sqrt(variance))) * count
