"""The spectrum of softmax attention with fresh random weights on given tokens (ours).

The finite-head law is for orthonormal tokens. Given tokens X change it in four ways (docs/theory/tokens.md, "Tokens
that are not orthonormal").

* Degree k of the exponential has rows and columns that are correlated as the k-th powers of the entries of the Gram
  matrix. In the eigenvectors of all degrees together, its *modes*, they have sizes of their own instead.
* Tokens of few directions make the weights' singular values differ. A degree above the first then acts as if it had
  fewer features than a head of isotropic queries and keys has.
* Tokens that occur n times make rows and columns of squared size n, and an atom at zero.
* The mean of the keys drops out of the softmax. The mean query likes some keys more than others, in every row alike:
  columns are multiplied by a log-normal popularity.

>>> import numpy as np
>>> plain = TokenStatistics.of(np.eye(200)).law(beta=0.8, head_dim=64)
>>> abs(plain.edge / FiniteHeadLaw(0.8, 64, 200).edge - 1) < 0.1
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from bulkedge.laws.attention.finite_head import FiniteHeadLaw, separate, separate_variance
from bulkedge.laws.distribution import PointMasses, Unit
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Instance, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError

LENGTHS, MODES = (16, 10, 6), 24
"""Groups of lengths of rows and columns where modes are all alike, where they differ, and with popularity besides; and
the most groups of modes."""
MOST_UNEVEN = 2.0
"""Variance of the lengths of queries and keys, over that for orthonormal tokens, that is taken at most: the modes of
tokens of few directions have the rest."""
WHITE, EVEN = 1e-3, 0.02
"""Variance of the modes' sizes below which all are alike, and variance of the logarithm below which popularity is."""
KINDS = 8  # groups of lengths of tokens
LEAST_BETA = 1e-3  # standard deviation of the scores from which on there is a law
SMALLEST = 1e-6  # size of the smallest mode, over their mean: smaller ones cannot be told from zero


class TokenStatistics(NamedTuple):
    """What tokens do to a head, whatever its score scale."""

    # mean squared distance of a token from the mean token: the standard deviation of the scores is beta times this
    scale: float
    popularity: float  # variance of the logarithm of a key's popularity, over ``beta**2``
    counts: Real  # (n,): how often each distinct token occurs
    squares: Real  # (n,): its squared distance from the mean token, over ``scale``
    cosines: Real  # (n, n): of the distinct tokens less the mean token

    @classmethod
    def of(cls, tokens: Real) -> TokenStatistics:
        """What these tokens (a row each) do to a head."""
        distinct, counts = np.unique(tokens, axis=0, return_counts=True)
        shares = counts / counts.sum()
        mean = shares @ distinct
        centred = distinct - mean
        squares = np.sum(centred**2, axis=1)
        scale = float(shares @ squares)
        # a token may be the mean token: its row is uniform
        if not scale > 1e-28 * float(shares @ np.sum(distinct**2, axis=1)):
            raise DomainError("inputs are all the same token: attention is uniform, and has no bulk")
        lengths = np.sqrt(np.maximum(squares, 1e-12 * scale))
        cosines = (centred / lengths[:, None]) @ (centred / lengths[:, None]).T
        np.fill_diagonal(cosines, 1.0)
        return cls(scale, float(mean @ mean) * scale, counts.astype(float), squares / scale, cosines)

    @property
    def spread(self) -> float:
        """Relative variance of the squared distances of tokens from their mean."""
        return float(self.counts @ (self.squares - 1) ** 2 / self.counts.sum())

    @property
    def likeness(self) -> float:
        """Mean square of the cosine of two distinct tokens."""
        pairs = np.outer(self.counts, self.counts)
        np.fill_diagonal(pairs, 0.0)
        return float(np.sum(pairs * self.cosines**2) / max(pairs.sum(), 1.0))

    @property
    def directions(self) -> float:
        """How many directions tokens fill that are not near each other: one over the typical squared cosine."""
        # the median of the square of a standard normal number is 0.4549. Pairs of near tokens, which a mean would
        # count as directions, do not move it
        apart = self.cosines[np.triu_indices(len(self.cosines), 1)] ** 2
        return 0.4549 / max(float(np.median(apart)), 1e-8)

    def law(self, beta: float, head_dim: int) -> TokenHeadLaw:
        """The law of a head on these tokens."""
        tokens = int(self.counts.sum())
        if beta * self.scale < LEAST_BETA:
            raise DomainError(f"scores of these inputs vary by {beta * self.scale:.2g} only: attention is uniform")
        head = FiniteHeadLaw(beta * self.scale, head_dim, tokens)
        # the spread of a row's scores varies by 2/head_dim, and by as much for each pair of tokens that are alike
        uneven = min(1 + head_dim * self.likeness, MOST_UNEVEN)
        parts = head.profiled_sum()
        low = int(np.isfinite(parts.ratios).sum())
        strengths = np.append(parts.variances[:low], parts.variances[low:].sum())
        modes, sides = _modes(self, head.beta, strengths), _lengths(self, head.beta, low)
        ranks = tuple(1 / inverse_rank(k, head_dim, self.directions) for k in range(1, low + 1))
        share = effective_share(head_dim, self.directions)
        return TokenHeadLaw(
            len(self.counts) / tokens,
            uneven,
            ranks,
            share,
            modes,
            *sides,
            head=head,
            popularity=beta**2 * self.popularity,
        )


def inverse_rank(degree: int, head_dim: int, directions: float) -> float:
    """One over the number of features of a degree, from the fourth free cumulant of its random part.

    Of the k factors of a feature some pair with those of the same query, some with those of the same key, and the rest
    run through all four entries of a loop (docs/theory/attention.md): for many directions that is ``k!/head_dim**k``.
    """
    total = 0.0
    for rows in range(degree):
        for columns in range(degree - rows + 1):
            through = degree - rows - columns
            if through or (rows and columns):
                ways = factorial(degree) ** 2 / (factorial(rows) ** 2 * factorial(columns) ** 2 * factorial(through))
                # moments of Gaussian cosines: 1, 3, 15, ...
                odd = np.prod(np.arange(1, 2 * rows, 2)) * np.prod(np.arange(1, 2 * columns, 2))
                total += float(ways * odd) * head_dim**-through * directions ** -(rows + columns)
    return total


def effective_share(head_dim: int, directions: float) -> float:
    """Share of the second degree that is of low rank, from its fourth and sixth cumulants; the rest acts as noise."""
    x = head_dim / directions
    fourth, sixth = 1 + 4 * x + 2 * x**2, 1 + 12 * x + 40 * x**2 + 36 * x**3 + 8 * x**4
    return fourth**2 / sixth


def _modes(tokens: TokenStatistics, beta: float, strengths: Real) -> Profile:
    """Sizes of the modes in each degree (the last row is of all higher ones), in groups."""
    low, total, root = len(strengths) - 1, tokens.counts.sum(), np.sqrt(tokens.counts)
    # powers of the cosines, one for a token with itself, and what is left of exp(beta**2 cosine)
    kernels = [tokens.cosines**k for k in range(1, low + 1)]
    kernels.append(tokens.cosines ** (low + 1) * _tail(beta**2 * tokens.cosines, low) / _tail(beta**2, low))
    for k, kernel in enumerate(kernels):
        sized = root[:, None] * kernel * root
        # every row of A sums to one: what is equal in all rows, or columns, is not in the bulk
        half = sized @ root / total
        centre = float(root @ half) / total
        kernels[k] = sized - np.outer(half, root) - np.outer(root, half) + centre * np.outer(root, root)
    joined = sum(strength * kernel for strength, kernel in zip(strengths, kernels, strict=True))
    basis = np.linalg.eigh(joined)[1][:, 1:]  # without that of the mean
    sizes = np.array([np.sum(basis * (kernel @ basis), axis=0) for kernel in kernels])
    return _group_modes(np.maximum(sizes * (len(root) / total), SMALLEST), strengths)


def _lengths(tokens: TokenStatistics, beta: float, low: int) -> tuple[Profile, Profile]:
    """Squared sizes of rows and of columns in each degree (the last is of all higher ones), by the tokens' lengths."""
    if tokens.spread < WHITE:
        same = Profile(np.ones(1), np.ones((low + 1, 1)))
        return same, same
    order = np.argsort(tokens.squares)
    places = np.cumsum(tokens.counts[order]) / tokens.counts.sum()
    groups = np.split(order, np.searchsorted(places, np.arange(1, KINDS) / KINDS))
    weights = np.array([tokens.counts[group].sum() for group in groups if len(group)])
    squares = np.array([tokens.counts[group] @ tokens.squares[group] for group in groups if len(group)]) / weights
    weights = weights / weights.sum()
    # queries and keys of these squared lengths: scores of variance beta**2 both, rows normalised by the mean over keys
    both = np.outer(squares, squares)
    factor = np.exp(beta**2 * (both - squares[:, None]) / 2)
    factor /= (factor @ weights)[:, None]
    parts = [separate(both ** (k / 2) * factor, weights) for k in range(1, low + 1)]
    rest = both ** (low + 1) * _tail(beta**2 * both, low) / _tail(beta**2, low)
    parts.append(separate_variance(rest * factor**2, weights))
    variances, rows, columns = (np.array(part) for part in zip(*parts, strict=True))
    return Profile(weights, variances[:, None] * rows), Profile(weights, columns)


def _tail(x: Any, low: int) -> Any:
    """``(exp(x) - 1 - ... - x**low/low!) (low + 1)!/x**(low + 1)``, without cancellation."""
    total = 1.0
    for k in range(low + 40, low + 1, -1):
        total = 1 + total * x / k
    return total


def _group_modes(sizes: Real, strengths: Real) -> Profile:
    """At most as many groups as there are modes for, of modes of about the same size and parts."""
    total = strengths @ sizes
    parts = 2 * strengths[:, None] * sizes / total
    features = np.vstack([np.log(total), parts])
    if np.var(sizes, axis=1).max() < WHITE:
        return Profile(np.ones(1), np.ones((len(sizes), 1)))
    groups = [np.arange(sizes.shape[1])]
    while len(groups) < MODES:
        # the group that is most uneven in a feature is divided at its mean
        uneven = np.array([features[:, group].var(axis=1) * len(group) for group in groups])
        worst, feature = np.unravel_index(np.argmax(uneven), uneven.shape)
        if uneven[worst, feature] < WHITE * sizes.shape[1] / MODES:
            break
        group = groups.pop(int(worst))
        above = features[feature, group] > features[feature, group].mean()
        groups += [group[above], group[~above]]
    weights = np.array([len(group) for group in groups]) / sizes.shape[1]
    return Profile(weights, np.stack([sizes[:, group].mean(axis=1) for group in groups], axis=1))


@dataclass(frozen=True, eq=False)
class TokenHeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - uu')`` for given tokens; made by :meth:`TokenStatistics.law`."""

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    distinct: float  # share of the tokens that did not occur before
    uneven: float  # variance of squared lengths of queries and keys, over that for orthonormal tokens
    ranks: tuple[float, ...]  # number of features of each degree below the noise
    low_rank: float  # share of the second degree that these are; the rest acts as noise
    # in groups, with a row for each of these degrees, and one for the noise: squared sizes of the modes, and those of
    # rows and columns by the lengths of the tokens
    modes: Profile
    rows: Profile
    columns: Profile
    head: FiniteHeadLaw = parameter(Instance(FiniteHeadLaw), "the law of orthonormal tokens")
    popularity: float = parameter(Interval(0, 25), "variance of the logarithm of a key's popularity")

    @property
    def atoms(self) -> PointMasses:
        """At zero, one value for each token that occurred before."""
        missing = 1 - self.distinct
        return ((0.0, missing),) if missing > 1e-12 else ()

    @cached_property
    def _problem(self) -> ProfiledSum:
        """Of the distinct tokens alone: with a part s of all, variances and ratios are 1/s times as large."""
        plain, low = self.head.profiled_sum(), len(self.ranks)
        popular = self.popularity >= EVEN
        lengths = LENGTHS[0 if len(self.modes.weights) == 1 else 1 + popular]
        # all parts of the noise have the modes of the noise
        kernel = np.minimum(np.arange(len(plain.variances)), low)
        rows, columns = (
            _multiply_groups(
                _join_groups(_multiply_groups(_stretch(head, self.uneven), own, kernel), lengths), self.modes, kernel
            )
            for head, own in ((plain.rows, self.rows), (plain.columns, self.columns))
        )
        weights, squares = popularity_groups(self.popularity)
        columns = _multiply_groups(columns, Profile(weights, squares[None]), np.zeros_like(kernel))
        variances, ratios, source = self._split(plain)
        # profiles have mean one: what popularity adds to mean squares, or their mean took off, goes to the variances
        means = rows.squares @ rows.weights, columns.squares @ columns.weights
        return ProfiledSum(
            variances * (means[0] * means[1])[source] / self.distinct,
            ratios / self.distinct,
            Profile(rows.weights, (rows.squares / means[0][:, None])[source]),
            Profile(columns.weights, (columns.squares / means[1][:, None])[source]),
        )

    def _split(self, plain: ProfiledSum) -> tuple[Real, Real, NDArray[np.intp]]:
        """Variances, ratios and the degree's index of each term; the second degree is of low rank in part."""
        ratios = np.append(
            np.array(self.ranks) / self.head.tokens, np.full(len(plain.variances) - len(self.ranks), np.inf)
        )
        variances, source = plain.variances.copy(), np.arange(len(ratios))
        if len(self.ranks) < 2 or self.low_rank > 1 - WHITE:
            return variances, ratios, source
        share = self.low_rank
        # a part of the variance of a fraction of the rank has the same fourth cumulant, and a larger sixth one
        ratios[1] *= share**2
        rest = variances[1] * (1 - share)
        variances[1] *= share
        return np.append(variances, rest), np.append(ratios, np.inf), np.append(source, 1)

    def _bulk(self) -> BulkDensity | None:
        found = bulk_of(self._problem, ())
        if found is None or not self.atoms:
            return found
        intervals, density = found
        share = self.distinct

        def scaled(x: Real) -> tuple[Real, Real]:
            value, error = density(x)
            return share * value, share * error

        return intervals, scaled


def _stretch(profile: Profile, factor: float) -> Profile:
    """The same profile with a variance of the logarithms that is larger by a factor."""
    squares = profile.squares ** np.sqrt(factor)
    return Profile(profile.weights, squares / (squares @ profile.weights)[:, None])


def _join_groups(profile: Profile, count: int) -> Profile:
    """The same profile with few groups: neighbours are joined, with their mean squared size."""
    if len(profile.weights) <= count:
        return profile
    order = np.argsort(profile.squares[0], kind="stable")
    edges = np.searchsorted(np.cumsum(profile.weights[order]), np.linspace(0, 1, count + 1)[1:-1])
    joined = [part for part in np.split(order, edges) if len(part)]
    weights = np.array([profile.weights[part].sum() for part in joined])
    squares = np.stack([profile.squares[:, part] @ profile.weights[part] for part in joined], axis=1) / weights
    return Profile(weights, squares)


def _multiply_groups(profile: Profile, other: Profile, source: NDArray[np.intp]) -> Profile:
    """Groups of a profile with those of another that is independent of it; ``source`` is its row for each term."""
    product = profile.squares[:, :, None] * other.squares[source][:, None, :]
    return Profile(np.outer(profile.weights, other.weights).ravel(), product.reshape(len(profile.squares), -1))


def popularity_groups(variance: float) -> tuple[Real, Real]:
    """Groups of a log-normal popularity of mean one."""
    if variance < EVEN:
        return np.ones(1), np.ones(1)
    count = 3 if variance <= 0.05 else 5 if variance <= 0.3 else 8
    ends = np.concatenate([[-np.inf], ndtri(np.linspace(0, 1, count + 1)[1:-1]), [np.inf]])
    return np.full(count, 1 / count), np.exp(variance) * np.diff(ndtr(ends - 2 * np.sqrt(variance))) * count
