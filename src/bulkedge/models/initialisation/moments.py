"""Second moments of tokens in groups of positions, rows of independent scores, and feed-forward layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import RectBivariateSpline
from scipy.special import erf, expit, log_ndtr, ndtri

from bulkedge.heads.softmax import MOST, SHARPEST, transforms
from bulkedge.models.initialisation.blueprint import Blueprint
from bulkedge.support.arrays import Real

GROUPS = 22  # of positions, log-spaced
EVEN = 6  # groups where every row sees every key
MOST_GROUPS = 48  # where a window wants them small
NODES, ORDER = 120, 24  # of the quadrature over preactivations; highest Hermite polynomial
TINY = 1e-12


class Groups(NamedTuple):
    """Positions in groups, with two rows that stand for each."""

    start: Real
    size: Real
    rows: Any  # positions, (groups, 2)

    @property
    def tokens(self) -> int:
        """Length of the context."""
        return int(self.size.sum())

    @property
    def pairs(self) -> Real:
        """Ordered pairs of different tokens of two groups."""
        return np.outer(self.size, self.size) - np.diag(self.size)

    @classmethod
    def of(cls, tokens: int, window: int | None, *, causal: bool) -> Groups:
        """Log-spaced groups, none larger than a quarter of the window; a few even ones where all see all."""
        spaced = np.geomspace(1, tokens, GROUPS + 1) if causal else np.linspace(1, tokens, min(EVEN, tokens - 1) + 1)
        edges = np.concatenate([[0], np.unique(np.round(spaced).astype(int))])
        if window is not None and window < tokens:
            most = max(window // 4, -(-tokens // MOST_GROUPS), 1)
            cuts = [np.linspace(a, b, -(-(b - a) // most) + 1) for a, b in itertools.pairwise(edges)]
            edges = np.unique(np.round(np.concatenate(cuts)).astype(int))
        start, size = edges[:-1], np.diff(edges)
        rows = start[:, None] + np.round((size - 1)[:, None] * np.array([0.25, 0.75])).astype(int)
        return cls(start, size.astype(float), rows)


class GroupMoments(NamedTuple):
    """Second moments of vectors, of the whole or for each entry: a token's own, and those of different tokens."""

    power: Real  # (groups,)
    product: Real  # (groups, groups)

    def scaled(self, scale: Real) -> GroupMoments:
        """Of tokens times a number for each group."""
        return GroupMoments(self.power * scale**2, self.product * np.outer(scale, scale))

    def times(self, factor: float) -> GroupMoments:
        """All moments times a number."""
        return GroupMoments(self.power * factor, self.product * factor)

    def plus(self, other: GroupMoments) -> GroupMoments:
        """Of sums with independent vectors."""
        return GroupMoments(self.power + other.power, self.product + other.product)

    def consistent(self, groups: Groups) -> GroupMoments:
        """With products that are symmetric, and a token's own in groups of one."""
        product = (self.product + self.product.T) / 2
        bound = np.sqrt(np.outer(self.power, self.power))
        product = np.clip(product, -bound, bound)
        product[np.diag_indices_from(product)] = np.where(groups.size > 1, product.diagonal(), self.power)
        return GroupMoments(self.power, product)

    def root(self) -> Real:
        """A factor of the products; what noise of the heads made negative is left out, and rows keep their length."""
        values, vectors = np.linalg.eigh(self.product)
        found: Real = vectors * np.sqrt(np.maximum(values, 0.0))
        length, due = (found**2).sum(1), np.maximum(self.product.diagonal(), 0.0)
        return found * np.sqrt(due / np.maximum(length, TINY * self.power))[:, None]


# -- rows of independent scores ----------------------------------------------------------------------------------------


class RowTables(NamedTuple):
    """Numbers of rows of independent scores, by the spread of these and the log number of keys."""

    entropy: RectBivariateSpline
    participation: RectBivariateSpline  # its logarithm
    largest: RectBivariateSpline  # its logarithm
    scatter: RectBivariateSpline  # squared deviation of the participation over the square of its mean
    centring: RectBivariateSpline  # sum of A**2 (1 - 2 A + sum of A**2) over the sum of A**2


@lru_cache(maxsize=1)
def row_tables() -> RowTables:
    """For spreads up to :data:`SHARPEST` and up to ten million keys."""
    spreads = np.concatenate([np.arange(0, 8, 0.25), np.arange(8, 20, 1.0), np.linspace(20, SHARPEST, 8)])
    log_keys = np.linspace(0, np.log(1e7), 36)
    shared = [transforms(float(each), MOST) for each in spreads]
    sums = [[each.sums(float(np.exp(keys))) for keys in log_keys] for each in shared]
    entropy = np.array([[s.log_sum - b * s.score for s in row] for b, row in zip(spreads, sums, strict=True)])
    power = np.array([[np.log(s.participation) for s in row] for row in sums])
    each = (entropy, power, *_largest(spreads, np.exp(log_keys)))
    return RowTables(*(RectBivariateSpline(spreads, log_keys, table, kx=3, ky=3) for table in each))


def _largest(spreads: Real, keys: Real, draws: int = 400, kept: int = 12) -> tuple[Real, Real, Real]:
    """What single large weights decide: the largest scores as points of a process, all others by their mean."""
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(size=(draws, kept)), axis=1)
    largest, scatter, centring = np.empty((3, len(spreads), len(keys)))
    for k, count in enumerate(keys):
        many = max(min(kept, int(count) - 1), 1) if count >= 2 else 1
        # of `count` uniform numbers, the largest: exponential spacings over the sum of all
        total = arrivals[:, many - 1] + rng.gamma(max(count - many + 1, 1e-9), size=draws)
        share = np.minimum(arrivals[:, :many] / total[:, None], 1 - 1e-12)
        top = -ndtri(share)
        rest = max(count - many, 0.0)
        for b, spread in enumerate(spreads):
            weights, moments = np.exp(spread * (top - top[:, :1])), []
            for n in (1, 2, 3):
                tail = (n * spread) ** 2 / 2 + log_ndtr(top[:, -1] - n * spread) - log_ndtr(top[:, -1])
                moments.append((weights**n).sum(1) + rest * np.exp(tail - n * spread * top[:, 0]))
            whole, square, cube = moments
            power = square / whole**2
            largest[b, k] = np.log(np.mean(1 / whole))
            scatter[b, k] = np.var(power) / np.mean(power) ** 2
            centring[b, k] = 1 + np.mean(power**2 - 2 * cube / whole**3) / np.mean(power)
    return largest, scatter, np.maximum(centring, 0.0)


# -- feed-forward layers -----------------------------------------------------------------------------------------------


def _gelu_tanh(x: Real) -> Real:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Real], Real]] = {
    "silu": lambda x: x * expit(x),
    "swish": lambda x: x * expit(x),
    "gelu": lambda x: x / 2 * (1 + erf(x / np.sqrt(2))),
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * expit(1.702 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
}


@lru_cache(maxsize=8)
def gauss(nodes: int) -> tuple[Real, Real]:
    """Nodes and weights for a mean over a standard Gaussian."""
    z, mass = np.polynomial.hermite_e.hermegauss(nodes)
    return z, mass / mass.sum()


class Kernel(NamedTuple):
    """``E f(u) f(v)`` of Gaussian preactivations: coefficients of Hermite polynomials, and the whole power."""

    coefficients: Real  # (groups, order)
    power: Real  # (groups,)

    def products(self, cosine: Real) -> Real:
        """For these cosines of preactivations; what the polynomials lack is taken as of the next order."""
        lacks = np.sqrt(np.maximum(self.power - (self.coefficients**2).sum(1), 0.0))
        terms = np.column_stack([self.coefficients, lacks]).T
        found = np.zeros_like(cosine)
        for each in terms[::-1]:
            found = found * cosine + np.outer(each, each)
        return found


def kernel(function: Callable[[Real], Real], spread: Real) -> Kernel:
    """The kernel of a function at these deviations of preactivations."""
    z, mass = gauss(NODES)
    values = function(spread[:, None] * z)
    hermite = np.empty((ORDER + 1, NODES))  # orthonormal
    hermite[0], hermite[1] = 1.0, z
    for n in range(1, ORDER):
        hermite[n + 1] = (z * hermite[n] - np.sqrt(n) * hermite[n - 1]) / np.sqrt(n + 1)
    return Kernel((values * mass) @ hermite.T, values**2 @ mass)


class FeedForward(NamedTuple):
    """A feed-forward branch: what it returns, and by what it multiplies gradients."""

    output: GroupMoments
    back: GroupMoments  # of gradients at its input over those at its output


def feed_forward(plan: Blueprint, inputs: GroupMoments, variance: Real) -> FeedForward:
    """GroupMoments of a feed-forward branch, for tokens whose products scatter with this variance from pair to pair."""
    function = ACTIVATIONS[plan.activation]
    into = plan.up**2 * plan.width
    spread = np.sqrt(into * inputs.power)
    step = 1e-4
    here = kernel(function, spread)
    slope = kernel(lambda x: (function(x + step) - function(x - step)) / (2 * step), spread)
    whole = np.outer(inputs.power, inputs.power)
    cosine = inputs.product / np.sqrt(whole)
    deviation = np.sqrt(np.maximum(variance, 0.0) / whole) * (1 - np.minimum(cosine**2, 1.0))
    gate = into * np.sqrt(whole) if plan.gated else None
    passed, back = np.zeros_like(cosine), np.zeros_like(cosine)
    for z, mass in ((-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6)):
        at = np.clip(cosine + z * deviation, -1.0, 1.0)
        forward, slopes = here.products(at), slope.products(at)
        if gate is not None:
            forward, slopes = forward * gate * at, slopes * gate * at + forward
        passed, back = passed + mass * forward, back + mass * slopes
    own, own_back = here.power, slope.power
    if plan.gated:
        own, own_back = own * into * inputs.power, own_back * into * inputs.power + own
    out = plan.down**2 * plan.feed_forward
    return FeedForward(GroupMoments(own, passed).times(out), GroupMoments(own_back, back).times(out * into))
