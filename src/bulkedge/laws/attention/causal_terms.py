"""What causal attention is made of, row by row: degrees of the exponential, and noise.

Row i of causal attention is a row of attention over i tokens. So the terms of the finite-head law
(:mod:`bulkedge.laws.attention.finite_head`) enter with i for the number of tokens: an entry is part of its own row's
sum, which shrinks it, ``w -> w/(1 + (w - 1)/i)``, and how much an entry stands out depends on i. Row one has one
weight, which is one.

>>> terms = row_terms(beta=1.0, head_dim=64, tokens=1000, qk_norm=True)
>>> terms.harmonics.round().tolist(), terms.variances[-1].round(2).tolist()
([64.0, 2079.0, inf], [0.97, 0.44, 0.16])
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.interpolate import PchipInterpolator

from bulkedge.laws.attention.finite_head import (
    cosine_quadrature,
    harmonics,
    log_coefficients,
    log_harmonics,
    norm_quadrature,
    separated,
)
from bulkedge.laws.engine.masked_equations import MaskedProblem, SizeGroups, mesh
from bulkedge.support.arrays import Real

NOISE = 20.0
"""A degree with so many harmonics a token is noise."""
NEGLIGIBLE = 1e-7
"""Share of the variance below which a degree is noise."""
MOST_DEGREES = 12
NODES = 300
"""Quadrature nodes for the cosine of query and key."""
SIZES = 8
"""Quadrature nodes for the norms of queries and of keys."""
ALIKE = 20.0
"""Rows before about this one are taken to be of equal norm: norms would part the first few from the bulk."""
LEVELS = np.array([0, 0.15, 0.3, 0.45, 0.6, 0.72, 0.82, 0.9, 0.95, 0.98, 0.995, 1])
"""Quantiles of the popularity between which columns are taken together, at their mean square."""
BLOCKS = 24
"""Blocks of tokens whose mean popularity is kept, of lengths that grow in proportion to the place."""
FIRST_ROWS, SAMPLES = 32, 2000
"""Rows and draws from which the largest values are sampled."""
SMALLEST = 1e-200
COUNTS = 16
"""Numbers of tokens in a row at which terms are computed; between them they are interpolated."""


class RowTerms(NamedTuple):
    """Terms of rows with given numbers of tokens, c of them; k terms, the last of them noise; g groups by norm.

    Attributes
    ----------
    counts : array of shape (c,)
        Numbers of tokens in a row, from one.
    harmonics : array of shape (k,)
        Channels of each term; infinite for noise.
    variances : array of shape (c, k)
        Variance of i times an entry, from each term.
    shares : array of shape (g,)
        How many tokens there are in each group.
    rows, columns : arrays of shape (k, g)
        Squared sizes of queries and of keys in each term, of mean one.
    """

    counts: Real
    harmonics: Real
    variances: Real
    shares: Real
    rows: Real
    columns: Real


def row_terms(beta: float, head_dim: int, tokens: int, *, qk_norm: bool) -> RowTerms:
    """Terms of rows with one to ``tokens`` tokens."""
    norms, shares = (np.ones(1), np.ones(1)) if qk_norm else norm_quadrature(head_dim, tokens, SIZES)
    kappa = beta * np.sqrt(head_dim) * np.outer(norms, norms).ravel()
    normaliser = log_coefficients(head_dim, kappa, 0)[0] if qk_norm else np.repeat((beta * norms) ** 2 / 2, SIZES)
    cosine, mass = cosine_quadrature(head_dim, NODES)
    weight = np.exp(np.outer(cosine, kappa) - normaliser).reshape(NODES, len(norms), len(norms))
    number = np.exp(log_harmonics(head_dim, MOST_DEGREES))
    basis = harmonics(head_dim, MOST_DEGREES, cosine)
    power = number * np.einsum("kc,crs,r,s->k", basis * mass, weight, shares, shares) ** 2
    low = np.flatnonzero((number < NOISE * tokens) & (power > NEGLIGIBLE * power[1:].sum()))[1:]
    counts = np.geomspace(1, tokens, COUNTS)
    found = [_terms_of(weight, count, shares, mass, (basis[low], number[low])) for count in counts]
    rows, columns = (np.array([each[side] for each in found[-1]]) for side in (1, 2))
    every = np.array([[variance for variance, _, _ in each] for each in found])
    return RowTerms(counts, np.append(number[low], np.inf), every, shares, rows, columns)


def _terms_of(
    weight: Real, count: float, shares: Real, mass: Real, low: tuple[Real, Real]
) -> list[tuple[float, Real, Real]]:
    """Variance, row profile and column profile of each low degree, and of the noise.

    ``weight`` has the axes cosine, norm of the query, norm of the key.
    """
    basis, number = low
    # w/(1 + (w - 1)/i), so that a single weight is one however small it is
    entry = count / (1 + (count - 1) / np.maximum(weight, SMALLEST))
    mean = np.tensordot(mass, entry, 1)
    row_mean = (mean @ shares)[:, None]
    entry, mean = entry / row_mean, mean / row_mean
    coefficients = np.einsum("kc,c,crs->krs", basis, mass, entry)
    rest = (entry - mean - np.einsum("k,krs,kc->crs", number, coefficients, basis)) ** 2
    total = float(shares @ (np.tensordot(mass, (entry - mean) ** 2, 1)) @ shares)
    # entries beyond the variance of a row leave the bulk: they fade out of it, as in the finite-head law
    fading = np.clip(2 - rest / max(count * total, 1e-300), 0.0, 1.0)
    noise = np.tensordot(mass, fading * rest, 1)
    degrees = [separated(np.sqrt(n) * each, shares) for n, each in zip(number, coefficients, strict=True)]
    return [*degrees, _separated_variance(noise, shares)]


def _separated_variance(kernel: Real, shares: Real) -> tuple[float, Real, Real]:
    """The best separable form of a kernel that is itself a variance, by norms of query and key."""
    if not kernel.any():
        return 0.0, np.ones(len(shares)), np.ones(len(shares))
    scale, row, column = separated(kernel, shares)
    row, column = np.sqrt(row), np.sqrt(column)
    means = shares @ row, shares @ column
    return float(np.sqrt(scale) * means[0] * means[1]), row / means[0], column / means[1]


class Columns(NamedTuple):
    """Popularity of columns: a mean that goes with the place, times one of a few sizes.

    Attributes
    ----------
    places : tuple of b numbers
        Middles of blocks of tokens.
    means : tuple of b numbers
        Mean popularity in each block, in units of that of all tokens.
    prefixes : tuple of b numbers
        Mean popularity of the tokens up to each of these places: what rows there are normalised by.
    squares, shares : tuples of n numbers
        Squared popularity of each size, in units of the mean of its block, and the share of the columns that have it.
    """

    places: tuple[float, ...]
    means: tuple[float, ...]
    prefixes: tuple[float, ...]
    squares: tuple[float, ...]
    shares: tuple[float, ...]

    def along(self, places: Real, of: str = "means") -> Real:
        """Mean popularity of the tokens about each place, or of all before it."""
        known = np.asarray(getattr(self, of))
        if len(known) == 1:
            return np.full(np.shape(places), known[0])
        logs = np.log(np.clip(places, self.places[0], self.places[-1]))
        return np.asarray(np.exp(PchipInterpolator(np.log(self.places), np.log(known))(logs)))


def columns_of(popularity: Real, tokens: int) -> Columns:
    """Popularities as a mean that goes with the place, and a few sizes about it."""
    values = popularity / popularity.mean()
    stops = np.array([len(values)])
    if len(values) == tokens:
        stops = np.unique(np.rint(np.geomspace(1, tokens, BLOCKS)).astype(int))
    starts = np.append(0, stops[:-1])
    counts = stops - starts
    sums = np.add.reduceat(values, starts)
    middles = (starts + stops + 1) / 2
    upto = np.interp(middles, np.append(0, stops), np.append(0, np.cumsum(sums)))
    ratio = values / np.repeat(sums / counts, counts)
    rank = np.argsort(np.argsort(ratio))
    _, size, members = np.unique(
        np.searchsorted(LEVELS[1:-1], (rank + 0.5) / len(values)), return_inverse=True, return_counts=True
    )
    return Columns(
        places=tuple(middles.tolist()),
        means=tuple((sums / counts).tolist()),
        prefixes=tuple((upto / middles).tolist()),
        squares=tuple((np.bincount(size, ratio**2) / members).tolist()),
        shares=tuple((members / len(values)).tolist()),
    )


def intervals_for(head_dim: int, tokens: int) -> int:
    """Intervals of the discretisation: more if many tokens share few dimensions, where rows change sharply."""
    return int(np.clip(40 + 15 * np.log(tokens / (16 * head_dim)), 40, 80))


@lru_cache(maxsize=64)
def first_rows(beta: float) -> Real:
    """Squared norms of causal attention less its mean over the first rows, sampled with a fixed seed.

    Scores of so few tokens are as good as independent.
    """
    scores = beta * np.random.default_rng(2025).standard_normal((SAMPLES, FIRST_ROWS, FIRST_ROWS))
    weights = np.tril(np.exp(scores))
    weights /= weights.sum(axis=2, keepdims=True)
    weights -= np.tril(np.ones((FIRST_ROWS, FIRST_ROWS))) / np.arange(1, FIRST_ROWS + 1)[:, None]
    return np.asarray(np.linalg.eigvalsh(weights @ weights.swapaxes(1, 2))[:, -1])


def masked(terms: RowTerms, tokens: int, intervals: int, columns: Columns | None = None) -> MaskedProblem:
    """The equations of causal attention with these terms."""
    grid = mesh(tokens, intervals)
    along = PchipInterpolator(np.log(terms.counts), terms.variances)
    pulls = np.maximum(along(np.log(grid.places)), 0.0) * (tokens / grid.places**2)[:, None]
    # the first rows are too few to be told apart by their norms
    apart = -np.expm1((1 - grid.places) / ALIKE)
    rows, keys = (
        SizeGroups(np.tile(terms.shares, (len(apart), 1)), 1 + (squares - 1) * apart[:, None, None])
        for squares in (terms.rows, terms.columns)
    )
    if columns is not None:
        pulls = pulls / columns.along(grid.places, "prefixes")[:, None] ** 2
        # every size of a key with every popularity
        shares = (keys.shares[:, :, None] * np.array(columns.shares)).reshape(len(apart), -1)
        popular = columns.along(grid.places)[:, None, None, None] ** 2 * np.array(columns.squares)
        squares = (keys.squares[..., None] * popular).reshape(*keys.squares.shape[:2], -1)
        keys = SizeGroups(shares, squares)
    return MaskedProblem(grid, tokens, pulls, 1 / terms.harmonics, rows, keys)
