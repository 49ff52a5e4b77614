"""Distances between two sets of draws, with bootstrap errors, and a test of whether they are of one law."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.support.arrays import BoolArray, Index, Real
from bulkedge.support.domains import FUNCTION, GENERATOR, Integers, Numbers, takes
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

Distance = Callable[[Real, Real], float]
COUNT = Integers(1, 10**6)
DRAWS = Numbers(axes=(1, 2))


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Real, Real]:
    """Both sets of draws, a row for each draw."""
    x, y = (DRAWS.check(name, each) for name, each in (("first", first), ("second", second)))
    if x.shape[1:] != y.shape[1:] or min(len(x), len(y)) < 2:
        shapes = f"first and second have shapes {x.shape} and {y.shape}"
        raise DomainError(f"{shapes}: give two draws or more of each, one in each row, and rows of one length")
    return (x, y) if x.ndim == 2 else (x[:, None], y[:, None])


@takes(points=Integers(16, 10**7))
def kl_divergence(first: ArrayLike, second: ArrayLike, points: int = 2048) -> float:
    """Kullback-Leibler divergence of kernel density estimates (*width*, Figure 1b), of numbers.

    Scott's bandwidth; draws are counted on a grid first, whose step is far below it. The integral is over where the
    second density has at least the height of a single draw. What is left where both laws agree is the estimate's floor.

    Parameters
    ----------
    first, second : array_like of shape (draws,)
        Draws of the two laws, which need not be equally many; of vectors, in rows, the first coordinate is taken.
    points : int
        Points of the grid on which the densities are compared.

    Returns
    -------
    float
        Estimate of ``D(first || second)`` in nats.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal(10_000)
    >>> round(kl_divergence(x, x + 1), 2)                              # half of the squared distance, smoothed
    0.48
    """
    x, y = (each[:, 0] for each in _pair(first, second))
    reach = 1.05 * max(np.abs(x).max(), np.abs(y).max())
    grid = np.linspace(-reach, reach, points)
    (p, _), (q, single) = (_kernel_density(each, grid) for each in (x, y))
    inside = (q > single) & (p > 0)
    return float(np.sum(p[inside] * np.log(p[inside] / q[inside])) * (grid[1] - grid[0]))


def _kernel_density(draws: Real, grid: Real) -> tuple[Real, float]:
    """Density on the grid, and the height of a single draw."""
    step = grid[1] - grid[0]
    edges = np.append(grid - step / 2, grid[-1] + step / 2)
    counts = np.histogram(draws, edges)[0] / len(draws)
    bandwidth = draws.std(ddof=1) * len(draws) ** -0.2
    frequencies = 2 * np.pi * np.fft.rfftfreq(2 * len(grid), step)
    smooth = np.fft.rfft(counts, 2 * len(grid)) * np.exp(-((bandwidth * frequencies) ** 2) / 2)
    height = 1 / (len(draws) * bandwidth * math.sqrt(2 * math.pi))
    return np.maximum(np.fft.irfft(smooth)[: len(grid)], 0.0) / step, float(height)


@takes(directions=COUNT)
def energy_distance(first: ArrayLike, second: ArrayLike, directions: int = 64) -> float:
    """Szekely's ``2 E|x - y| - E|x - x'| - E|y - y'|``, without bias; it needs no bandwidth.

    Numbers are sorted. For vectors the distance is the mean over directions of that of the projections, times a
    constant, since ``|z|`` is proportional to the mean of ``|u · z|`` over the sphere.

    Parameters
    ----------
    first, second : array_like of shape (draws,) or (draws, dim)
        Draws of the two laws, one in each row.
    directions : int
        How many projections the distance of vectors is averaged over; fixed, so no generator is needed.

    Returns
    -------
    float
        The squared distance, zero in the mean where the laws agree; it may then be below zero.

    Examples
    --------
    >>> round(energy_distance([0.0, 0.0], [1.0, 1.0]), 10)      # twice the distance of the two points
    2.0
    """
    x, y = _pair(first, second)
    return _energy(*_sorted_projections(np.concatenate([x, y]), directions), np.arange(len(x) + len(y)) < len(x))


def _sorted_projections(pooled: Real, directions: int) -> tuple[Real, Index]:
    """Sorted projections of all draws on directions, scaled so that they average ``|x|``, and which draw each is."""
    dim = pooled.shape[1]
    sphere = math.sqrt(math.pi) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))
    projected = sphere * _directions(dim, directions) @ pooled.T
    order = np.argsort(projected, axis=1)
    return np.take_along_axis(projected, order, axis=1), order


def _energy(values: Real, order: Index, chosen: BoolArray) -> float:
    """Energy distance of the chosen draws to the others: ``sum |x - x'|`` from ranks, of each set and of both."""

    def within(mask: BoolArray) -> float:
        ranks = np.cumsum(mask, axis=1)
        return float(np.sum(values * mask * (2 * ranks - ranks[:, -1:] - 1))) * 2 / len(values)

    n, m = int(chosen.sum()), int((~chosen).sum())
    inside = chosen[order]
    own, other, both = within(inside), within(~inside), within(np.ones_like(inside))
    return (both - own - other) / (n * m) - own / (n * (n - 1)) - other / (m * (m - 1))


@takes(directions=COUNT)
def sliced_wasserstein(first: ArrayLike, second: ArrayLike, directions: int = 64) -> float:
    """Mean over directions of the Wasserstein distance (of order one) of the projections.

    Parameters
    ----------
    first, second : array_like of shape (draws,) or (draws, dim)
        Draws of the two laws, one in each row.
    directions : int
        How many projections to average over.

    Returns
    -------
    float
        The distance, in the unit of the draws; positive also where the laws agree, since the draws scatter.

    Examples
    --------
    >>> sliced_wasserstein([0.0, 1.0], [2.0, 3.0])
    2.0
    """
    x, y = _pair(first, second)
    levels = (np.arange(max(len(x), len(y))) + 0.5) / max(len(x), len(y))
    turned = _directions(x.shape[1], directions)
    p, q = (np.sort(turned @ each.T, axis=1)[:, (levels * len(each)).astype(int)] for each in (x, y))
    return float(np.mean(np.abs(p - q)))


def _directions(dim: int, count: int) -> Real:
    """Directions on the sphere; the same ones each time, so that a distance is a function of the draws."""
    if dim == 1:
        return np.ones((1, 1))
    drawn = np.random.default_rng(0).standard_normal((count, dim))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


@takes(distance=FUNCTION, rng=GENERATOR, resamples=Integers(2, 10**6))
def estimate(
    distance: Distance, first: ArrayLike, second: ArrayLike, rng: np.random.Generator, resamples: int = 50
) -> Estimate:
    """A distance with its bootstrap standard error: both sets are resampled.

    Parameters
    ----------
    distance : callable
        One of this module: from two arrays of draws to a number.
    first, second : array_like of shape (draws,) or (draws, dim)
        Draws of the two laws, one in each row.
    rng : numpy.random.Generator
        Draws the resamples.
    resamples : int
        How often to draw again, two or more.

    Returns
    -------
    Estimate
        The distance between the draws as given, and the standard deviation of that between resamples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = estimate(energy_distance, rng.standard_normal(500), 1 + rng.standard_normal(500), rng)
    >>> bool(found.value > 4 * found.error)
    True
    """
    x, y = _pair(first, second)
    again = [distance(rng.choice(x, len(x)), rng.choice(y, len(y))) for _ in range(resamples)]
    return Estimate(distance(x, y), float(np.std(again, ddof=1)))


@takes(rng=GENERATOR, permutations=Integers(1, 10**6))
def two_sample_test(first: ArrayLike, second: ArrayLike, rng: np.random.Generator, permutations: int = 199) -> float:
    """Probability, if both sets have one law, of an energy distance as large: by permutation, exact in level.

    Parameters
    ----------
    first, second : array_like of shape (draws,) or (draws, dim)
        Draws of the two laws, one in each row.
    rng : numpy.random.Generator
        Draws the permutations.
    permutations : int
        How often to deal the draws anew to two sets of these sizes.

    Returns
    -------
    float
        The p-value, at least ``1/(1 + permutations)``.

    Examples
    --------
    >>> x, y = np.random.default_rng(0).standard_normal((2, 100))
    >>> two_sample_test(x, y + 1, np.random.default_rng(1))
    0.005
    """
    x, y = _pair(first, second)
    values, order = _sorted_projections(np.concatenate([x, y]), directions=64)
    chosen = np.arange(len(x) + len(y)) < len(x)
    found = _energy(values, order, chosen)
    as_large = sum(_energy(values, order, rng.permutation(chosen)) >= found for _ in range(permutations))
    return (1 + as_large) / (1 + permutations)
