"""The spectrum of softmax attention at the size of real heads: tens of dimensions, thousands of tokens (ours).

The exponential of a score is expanded in spherical harmonics of the head's dimension d: degree k has ``N_k`` harmonics,
and is a low-rank term of rank ratio ``N_k/tokens`` (docs/theory/finite_head.md).

>>> law = FiniteHeadLaw(beta=1.0, head_dim=64, tokens=2048, qk_norm=True)
>>> [tuple(round(end, 4) for end in interval) for interval in law.support]
[(0.0, 3.3639), (18.913, 50.3817)]
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, gammaln, ndtr, xlogy

from bulkedge.laws.attention.popular_keys import WithPopularKeys
from bulkedge.laws.classical.images import Squared
from bulkedge.laws.classical.semicircle import SumLaw
from bulkedge.laws.distribution import Unit
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError, RegimeWarning

FULL_RANK = 1000.0  # a degree with this many harmonics for each token is taken as noise of full rank
MOST_DEGREES = 100
NEGLIGIBLE = 1e-9  # share of the variance below which a degree is counted as noise
NODES = 300  # quadrature nodes for the cosine of query and key
HEAVY = (0.01, 0.1, 0.6)
"""Squared size of an entry over the variance of the noise. Up to the first number entries are Gaussian noise. Beyond,
they go over into two terms of free spikes, for entries of about the second and of about the third size. From one on,
where an entry leaves the bulk on its own, entries fade out of the law; from two on they are left out (see
docs/theory/finite_head.md, "Large entries are free spikes")."""
HEAVIER = (0.01, 0.1, 1.0, 10.0)
"""The same for laws with all large entries in them, none of which fade out: three terms, for entries of any size."""
LOW_RANK = 3.0  # harmonics for each token up to which a degree from the third on is no part of the entries of such laws
SIZES = 16  # quadrature nodes for the norms of queries and keys
MOST_BETA = 4.0
MOST_DEVIATION = 0.02  # deviation from which a law warns
ANY_BETA = Interval(1e-3, 1e3)  # inverse temperatures of heads that a law can stand for
FLATTER = 6.0  # inverse temperature from which deviations grow more slowly with it
FARTHEST = 0.4  # deviation of the sharpest heads from the law of the sharpest that have one


@dataclass(frozen=True)
class FiniteHeadLaw(Parametric, WithPopularKeys):
    """Squared singular values of ``sqrt(T) (A - uu')``, A = softmax(beta S) of T tokens, at a fixed head dimension.

    With ``qk_norm`` queries and keys lie on the sphere of radius ``sqrt(head_dim)``; without, they are Gaussian, and
    their norms give rows and columns a profile, separable in each degree to good accuracy. An entry is part of its own
    row's sum, which shrinks large entries: ``w -> w/(1 + (w - 1)/T)``.

    A large entry x is a perturbation of rank one, and many of them, at random places, are free of each other: entries
    of one size add ``n x**2 w/(1 - x**2 w**2)`` to the R-transform, n their number in a row, where Gaussian noise of
    the same variance adds ``n x**2 w``. Entries so large that they leave the bulk are outliers, and not in the law, or
    all entries are, with ``large_entries``: that is nearer to draws up to beta of about 1.2, and has no edge beside
    outliers. Beyond, :class:`~bulkedge.laws.attention.head.HeadLaw` is nearer. Where large entries were found to move
    draws by more than 0.02, a :class:`~bulkedge.support.errors.RegimeWarning` says by how much; :attr:`accuracy` is the
    distance that draws keep.

    >>> law = FiniteHeadLaw(beta=0.5, head_dim=64, tokens=1024)
    >>> round(law.edge, 3), round(law.mean(), 3)
    (7.653, 0.284)
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - uu')"

    beta: float = parameter(Interval(1e-3, MOST_BETA), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(2, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(16, 10**8), "number of tokens T")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)
    large_entries: bool = parameter(Choice((False, True)), "whether entries of any size are in the law", default=False)
    head_beta: float = parameter(ANY_BETA, "inverse temperature of heads that the law stands for, if above beta", 1e-3)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        if self.tokens > 1e6 * self.head_dim:
            raise DomainError(f"tokens = {self.tokens} is outside its domain: at most 1e6 * head_dim")
        check_norms(self.head_dim, qk_norm=self.qk_norm)
        warn_of_deviation(self, "Take the law of sharp heads, HeadLaw, or simulate (be.null_of)")

    @property
    def accuracy(self) -> float:
        """Kolmogorov distance that draws were not found to exceed (docs/laws/finite_head.md, "Accuracy")."""
        return accuracy(self)

    @property
    def has_soft_edge(self) -> bool:
        """Only without ``large_entries``: those blur the edge."""
        return super().has_soft_edge and not self.large_entries

    def _bulk(self) -> BulkDensity | None:
        return Squared(self._on_the_sphere)._bulk() if self.qk_norm else bulk_of(self._gaussian, ())

    def profiled_sum(self) -> ProfiledSum:
        """The law as a sum of terms with sizes of rows and columns.

        The low degrees come first, then noise (of infinite ratio), then the terms of large entries.
        """
        if not self.qk_norm:
            return self._gaussian
        return ProfiledSum.alike(self._on_the_sphere.variances, self._on_the_sphere.ratios)

    @property
    def _on_the_sphere(self) -> SumLaw:
        kappa, one = np.array([self.beta * np.sqrt(self.head_dim)]), np.ones(1)
        terms = self._terms(kappa, log_coefficients(self.head_dim, kappa, 0)[0], one)
        variances = np.concatenate([terms.sizes[:, 0] ** 2, terms.noise[:, 0]]) / terms.mean**2
        return SumLaw(tuple(variances.tolist()), tuple(terms.all_ratios(terms.noise[:, 0]).tolist()))

    @cached_property
    def _gaussian(self) -> ProfiledSum:
        norms, weights = norm_quadrature(self.head_dim, self.tokens, SIZES)
        # given a query of norm r, its scores are Gaussian of variance (beta r)**2: that is the normaliser
        normaliser = np.repeat((self.beta * norms) ** 2 / 2, SIZES)
        kappa = self.beta * np.sqrt(self.head_dim) * np.outer(norms, norms).ravel()
        terms = self._terms(kappa, normaliser, np.outer(weights, weights).ravel())
        row_mean = (terms.mean.reshape(SIZES, SIZES) @ weights)[:, None]
        parts = [separate(size.reshape(SIZES, SIZES) / row_mean, weights) for size in terms.sizes]
        parts += [separate_variance(part.reshape(SIZES, SIZES) / row_mean**2, weights) for part in terms.noise]
        variances, rows, columns = (np.array(part) for part in zip(*parts, strict=True))
        ratios = terms.all_ratios(variances[len(terms.ratios) :])
        return ProfiledSum(variances, ratios, Profile(weights, rows), Profile(weights, columns))

    def _terms(self, kappa: Real, log_normaliser: Real, weights: Real) -> HeadTerms:
        """Degrees of ``exp(kappa t)/normaliser``, for pairs of query and key lengths with these probabilities."""
        number = log_harmonics(self.head_dim, MOST_DEGREES)
        plain = np.exp(number[:, None] / 2 + log_coefficients(self.head_dim, kappa, MOST_DEGREES) - log_normaliser)
        ratios, share = np.exp(number - np.log(self.tokens)), plain**2 @ weights
        degree = np.arange(MOST_DEGREES + 1)
        few = ratios < np.where((degree > 2) & self.large_entries, LOW_RANK, FULL_RANK)
        low = np.flatnonzero(few & (share > NEGLIGIBLE * share[1:].sum()))[1:]
        noise = (plain[1:] ** 2).sum(axis=0) - (plain[low] ** 2).sum(axis=0)
        shrink, parts, jumps = self._entries(kappa, log_normaliser, np.append(0, low), weights)
        noise = noise * parts
        # of all entries, those of which a matrix has less than half a one are left out
        fewest = jumps / (2 * self.tokens) if self.large_entries else 0.0
        kept = noise @ weights > np.maximum(NEGLIGIBLE * share[1:].sum(), fewest)
        kept[0] = True
        return HeadTerms(ratios[low], plain[0] * shrink[0], plain[low] * shrink[1:], noise[kept], jumps[kept])

    def _entries(
        self, kappa: Real, log_normaliser: Real, degrees: NDArray[np.intp], weights: Real
    ) -> tuple[Real, Real, Real]:
        """The effect of ``w -> w/(1 + (w - 1)/T)`` on the degrees, and the rest, split by the size of its entries."""
        cosine, mass = cosine_quadrature(self.head_dim, NODES)
        basis = harmonics(self.head_dim, int(degrees.max()), cosine)[degrees]
        number = np.exp(log_harmonics(self.head_dim, int(degrees.max())))[degrees]
        weight = np.exp(np.outer(cosine, kappa) - log_normaliser)
        shrunken = weight / (1 + (weight - 1) / self.tokens)
        before, after = (basis * mass) @ weight, (basis * mass) @ shrunken
        rest, left = (
            (each - basis.T @ (number[:, None] * coefficients)) ** 2
            for each, coefficients in ((weight, before), (shrunken, after))
        )
        size = left / (self.tokens * (mass @ left @ weights))
        logs = np.log(np.maximum(size, np.finfo(float).tiny))
        left = left if self.large_entries else np.clip(2 - size, 0.0, 1.0) * left
        sizes = HEAVIER if self.large_entries else HEAVY
        hats = [np.interp(logs, np.log(sizes), corner) * left for corner in np.eye(len(sizes))]
        resolved = mass @ rest > 1e-6 * (mass @ weight**2)
        parts = [np.where(resolved, (mass @ hat) / (mass @ rest), k == 0) for k, hat in enumerate(hats)]
        squares = [float(mass @ (hat * left) @ weights) / max(float(mass @ hat @ weights), 1e-300) for hat in hats[1:]]
        return after / before, np.array(parts), np.append(0.0, squares) / self.tokens


def heavy_share(beta: float, tokens: float) -> float:
    """Share of the variance of ``f = exp(beta s - beta**2/2) - 1`` beyond ``sqrt(tokens)`` standard deviations."""
    if beta > 20:  # all of it, whatever fits into memory
        return 1.0
    variance = np.expm1(beta**2)
    cut = (np.log1p(np.sqrt(variance * tokens)) + beta**2 / 2) / beta
    above = np.exp(beta**2) * ndtr(2 * beta - cut) - 2 * ndtr(beta - cut) + ndtr(-cut)
    return float(above / variance)


def deviation(beta: float, tokens: int) -> float:
    """By how much large entries move distribution functions of draws away from the law, at most."""
    # a rule with a margin, fitted to draws and checked on others (docs/laws/finite_head.md, "Accuracy")
    slope = 0.045 * min(beta, FLATTER) + 0.02 * max(beta - FLATTER, 0.0)
    return float(min(slope, FARTHEST) * np.sqrt(heavy_share(beta, tokens)))


def length_error(law: Any) -> float:
    """By how much draws without QK-norm are moved because the weights of a length separate only to first order."""
    # fitted with a margin at 16,384 tokens and 32 dimensions; checked at 64 and 128 dimensions and at 8192 tokens
    return 0.0 if law.qk_norm else float(10 * law.beta / law.head_dim**2)


def finite_size(tokens: int) -> float:
    """Distance of draws from their own law, because they have so many values."""
    return float(0.7 / np.sqrt(tokens))


def _seen(law: Any) -> int:
    """How many tokens a row of the law sees: those of its window, if it has one."""
    return int(getattr(law, "width", law.tokens))


def moved(law: Any) -> float:
    """The deviation of the heads that the law of a head stands for."""
    return deviation(max(law.beta, law.head_beta), _seen(law))


def accuracy(law: Any) -> float:
    """Distance of draws from the law of a head: large entries, lengths that do not separate, and finite size."""
    return moved(law) + length_error(law) + finite_size(law.tokens)


def warn_of_deviation(law: Any, remedy: str = "Simulate instead (be.null_of)") -> None:
    """Warn where large entries move draws farther than MOST_DEVIATION from a law of a head."""
    if moved(law) <= MOST_DEVIATION:
        return
    beta = max(law.beta, law.head_beta)
    stands = f", the nearest law for heads at beta = {beta:g}," if beta > law.beta else ""
    warnings.warn(
        f"{type(law).__name__} at beta = {law.beta:g}{stands} and {_seen(law)} tokens: the Kolmogorov distance of "
        f"draws is up to {law.accuracy:.2g}, because {heavy_share(beta, _seen(law)):.0%} of the variance is in single "
        f"large entries. {remedy}",
        RegimeWarning,
        stacklevel=4,
    )


def check_norms(head_dim: int, *, qk_norm: bool) -> None:
    """Refuse heads of so few dimensions that norms of queries and keys do not separate, unless they are normalised."""
    if head_dim < 32 and not qk_norm:
        raise DomainError(f"head_dim = {head_dim} is outside its domain without qk_norm: at least 32")


class HeadTerms(NamedTuple):
    """Low degrees and the rest, for pairs of lengths of a query and a key."""

    ratios: Real  # (degrees,) rank ratios ``N_k/T`` of the low degrees
    mean: Real  # mean weight, the coefficient of degree zero
    sizes: Real  # ``sqrt(N_k) lambda_k``, the standard deviation that each degree contributes
    noise: Real  # variance of each part of the rest
    jumps: Real  # (parts,) mean squared size of an entry in it: zero for Gaussian noise

    def all_ratios(self, noise: Real) -> Real:
        """Rank ratios of the degrees and of the parts of the rest: how many entries of that size there are in a row."""
        return np.append(self.ratios, [v / jump if jump else np.inf for v, jump in zip(noise, self.jumps, strict=True)])


def separate(kernel: Real, weights: Real) -> tuple[float, Real, Real]:
    """The best separable form ``sqrt(variance) u(r) v(rho)`` of a positive function of two lengths, in mean square."""
    root = np.sqrt(weights)
    left, values, right = np.linalg.svd(root[:, None] * kernel * root)
    return float(values[0] ** 2), (left[:, 0] / root) ** 2, (right[0] / root) ** 2


def separate_variance(kernel: Real, weights: Real) -> tuple[float, Real, Real]:
    """The same for a kernel of variances, ``variance u**2(r) v**2(rho)``."""
    if not kernel.any():
        return 0.0, np.ones(len(weights)), np.ones(len(weights))
    scale, row, column = separate(kernel, weights)
    row, column = np.sqrt(row), np.sqrt(column)
    means = weights @ row, weights @ column
    return float(np.sqrt(scale) * means[0] * means[1]), row / means[0], column / means[1]


def log_harmonics(dim: int, most: int) -> Real:
    """Logarithm of the number of spherical harmonics of degrees 0 to ``most``: ``C(d+k-1, k) - C(d+k-3, k-2)``."""
    k = np.arange(1, most + 1)
    if dim == 2:
        return np.append(0.0, np.full(most, np.log(2.0)))
    return np.append(0.0, np.log(2 * k + dim - 2) + gammaln(k + dim - 2) - gammaln(k + 1) - gammaln(dim - 1))


def harmonics(dim: int, most: int, cosine: Real) -> Real:
    """Zonal harmonics ``P_k`` with ``P_k(1) = 1``, degrees 0 to ``most`` (rows): Gegenbauer polynomials."""
    rows = [np.ones_like(cosine), cosine]
    for k in range(1, most):
        rows.append(((2 * k + dim - 2) * cosine * rows[k] - k * rows[k - 1]) / (k + dim - 2))
    return np.array(rows[: most + 1])


@lru_cache(maxsize=16)
def _legendre(count: int) -> tuple[Real, Real]:
    """Gauss-Legendre nodes and weights, which take longer than the integrals that they are for; not to be changed."""
    return np.polynomial.legendre.leggauss(count)


def cosine_quadrature(dim: int, count: int, reach: float = 18.0) -> tuple[Real, Real]:
    """Nodes and weights for the cosine of two independent directions, accurate in the tails: even in the angle."""
    nodes, weights = _legendre(count)
    # up to so many standard deviations: the square of a weight at beta = 4 peaks at 8
    angle = np.pi / 2 + nodes * min(np.pi / 2, reach / np.sqrt(dim))
    mass = weights * np.sin(angle) ** (dim - 2)
    return np.cos(angle), mass / mass.sum()


def norm_quadrature(dim: int, tokens: int, count: int) -> tuple[Real, Real]:
    """Nodes and weights for ``|q|/sqrt(d)``, q Gaussian in d dimensions, between the extremes of so many tokens."""
    low, high = np.sqrt(2 * gammaincinv(dim / 2, [1 / (2 * tokens), 1 - 1 / (2 * tokens)]) / dim)
    nodes, weights = _legendre(count)
    norms = (low + high) / 2 + (high - low) / 2 * nodes
    square = dim * norms**2
    chi_square = np.exp(xlogy(dim / 2 - 1, square) - square / 2 - gammaln(dim / 2) - np.log(2) * dim / 2)
    mass = weights * norms * chi_square
    return norms, mass / mass.sum()


def log_coefficients(dim: int, kappa: Real, most: int) -> Real:
    """``log lambda_k(kappa)`` for degrees 0 to ``most`` (rows): ``exp(kappa t) = sum_k lambda_k N_k P_k(t)``."""
    # lambda_k/lambda_{k-1} = I_{k+v}/I_{k+v-1}, v = d/2 - 1, by the backward recurrence, which is stable;
    # log lambda_0 is the integral of I_{v+1}/I_v
    nodes, weights = _legendre(64)
    start = bessel_ratios(dim / 2 - 1, np.outer((nodes + 1) / 2, kappa).ravel(), 1)[0].reshape(64, -1)
    first = kappa * ((weights / 2) @ start)
    return np.concatenate([first[None], first + np.cumsum(np.log(bessel_ratios(dim / 2 - 1, kappa, most)), axis=0)])


def bessel_ratios(order: float, x: Real, most: int) -> Real:
    """``I_{order+k}(x)/I_{order+k-1}(x)`` for k = 1 to ``most``, rows."""
    extra = 20 + int(2 * np.sqrt(x.max()))
    k = order + most + extra
    ratio = x / (k + np.sqrt(k**2 + x**2))
    result = np.empty((most, len(x)))
    for j in range(most + extra - 1, 0, -1):
        ratio = x / (2 * (order + j) + x * ratio)
        if j <= most:
            result[j - 1] = ratio
    return result
