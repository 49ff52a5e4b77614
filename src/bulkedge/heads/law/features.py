"""A head as a sum of products of functions of its queries and of its keys.

For any centres and covariances of queries and keys, in the coordinates X and Y that make both standard and the scores
``sum a_k X_k Y_k`` plus terms of the row or of the column alone, Mehler's formula is

    exp(a X Y) = sqrt(1 - r**2) exp(r a (X**2 + Y**2)/2) sum_n r**n H_n(X) H_n(Y),      r/(1 - r**2) = a,

with orthonormal Hermite polynomials ``H_n``: an identity, whatever the centres and covariances are. They only decide
for which weights of the tokens the terms are orthogonal (docs/theory/anisotropic.md, "The bulk of an anisotropic
head").

>>> indices = MultiIndices.largest(np.array([0.5, 0.4]), 5)
>>> indices.products.round(2).tolist(), indices.direction.tolist(), indices.degree.tolist()
([1.0, 0.5, 0.4, 0.25, 0.2], [-1, 0, 1, 0, 1], [0, 1, 1, 2, 1])
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple, Self

import numpy as np

from bulkedge.support.arrays import Index, Mask, Real

RANK = 1e-10
"""Eigenvalues of a covariance below this share of the largest are directions that the tokens do not have."""

FAR, LARGEST = 60.0, 100.0
"""A token so many standard deviations out, or whose factor has this logarithm, has no functions."""


class MultiIndices(NamedTuple):
    """Exponents of several directions, the largest products of powers first; number 0 has no factor.

    A member is the member ``base``, times its last direction to some degree.

    Attributes
    ----------
    products : array of shape (n,)
        Products of the powers.
    base : array of int of shape (n,)
        Number of the member without its last direction.
    direction : array of int of shape (n,)
        The last direction, largest ratio first; -1 for number 0.
    degree : array of int of shape (n,)
        Degree in the last direction.
    """

    products: Real
    base: Index
    direction: Index
    degree: Index

    @classmethod
    def largest(cls, ratios: Real, count: int) -> Self:
        """The multi-indices with the largest products of powers of ratios below one."""
        powers = [float(each) for each in ratios if each > 1e-12]
        found = [(1.0, -1, -1, 0)]
        # product, base, direction, degree, and the number of the same with one degree less
        heap = [(-powers[0], 0, 0, 1, 0)] if powers else []
        while heap and len(found) < count:
            value, base, direction, degree, less = heappop(heap)
            number = len(found)
            found.append((-value, base, direction, degree))
            # each multi-index is reached once: one degree more, or the last factor moved to the next direction
            heappush(heap, (value * powers[direction], base, direction, degree + 1, number))
            if direction + 1 < len(powers):
                heappush(heap, (value / powers[direction] * powers[direction + 1], less, direction + 1, 1, less))
        return cls(*(np.array(each) for each in zip(*found, strict=True)))

    def features(self, coordinates: Real, factor: Real) -> Real:
        """Products of Hermite polynomials at tokens."""
        table = _hermite(coordinates.T, int(self.degree.max()))
        found = np.empty((len(self.products), len(coordinates)))
        found[0] = factor
        for n in range(1, len(found)):
            np.multiply(found[self.base[n]], table[self.degree[n], self.direction[n]], out=found[n])
        return found


@dataclass(frozen=True)
class Tokens:
    """Distinct tokens of a head, c of them, as queries or as keys.

    A distinct token may have several places, with a vector each: a word that a text repeats. Any function of it is then
    the mean of the function over its places.

    Attributes
    ----------
    vectors : array of shape (t, d)
        Their queries, scale included, or their keys, at all places: those of one token after those of another.
    counts : array of shape (c,)
        How often each token is repeated.
    logs : array of shape (t,)
        Logarithm of what each row, or column, of ``exp(scores)`` is multiplied by to be ``tokens * A``.
    places : array of int of shape (c,), optional
        Number of places of each token; one by default.
    """

    vectors: Real
    counts: Real
    logs: Real
    places: Index | None = None

    def mean(self, values: Real) -> Real:
        """Means over the places of each token."""
        if self.places is None:
            return values
        starts = np.cumsum(self.places) - self.places
        means: Real = np.add.reduceat(values, starts, axis=-1) / self.places
        return means


class Expansion(NamedTuple):
    """``tokens * A`` as the sum over n of ``products[n] rows[n, i] columns[n, j]``, plus ``rest[i, j]``.

    Rows i and columns j are distinct tokens; between those at several places, ``tokens * A`` is its mean over them.
    Number 0 is the product of a row's and a column's factor, ``rows[0]`` and ``columns[0]``.
    """

    products: Real
    rows: Real
    columns: Real
    rest: Real


class Expander:
    """Expansions of one head for changing weights of its tokens; multi-indices are kept while ratios are similar."""

    def __init__(self, queries: Tokens, keys: Tokens, count: int) -> None:
        self.queries, self.keys, self._count = queries, keys, count
        entries = np.exp(queries.logs[:, None] + queries.vectors @ keys.vectors.T + keys.logs)
        self.matrix = queries.mean(keys.mean(entries).T).T
        # a token is weighted as one, at the mean of its places
        self._centres = tuple(each.mean(each.vectors.T).T for each in (queries, keys))
        self._ratios: Real = np.zeros(0)
        self._indices = MultiIndices.largest(self._ratios, 1)

    def __call__(self, row_weights: Real, column_weights: Real) -> Expansion:
        """The expansion whose terms are orthogonal for Gaussian tokens of the weighted moments."""
        query, key = _moments(self._centres[0], row_weights), _moments(self._centres[1], column_weights)
        turn, couplings, back = np.linalg.svd(query.root @ key.root)
        left = (self.queries.vectors - query.mean) @ query.inverse @ turn
        right = (self.keys.vectors - key.mean) @ key.inverse @ back.T
        ratios = 2 * couplings / (1 + np.sqrt(1 + 4 * couplings**2))
        self._choose(ratios)
        rows = self.queries.logs + self.queries.vectors @ key.mean + np.sum(ratios * couplings * left**2, axis=1) / 2
        columns = (self.keys.vectors - key.mean) @ query.mean + np.sum(ratios * couplings * right**2, axis=1) / 2
        rows, columns = rows + np.sum(np.log1p(-(ratios**2))) / 2, columns + self.keys.logs
        near = [np.all(np.abs(each) < FAR, axis=1) for each in (left, right)]
        # a constant moves between the two, so that neither overflows
        shift = (_largest(rows, near[0]) - _largest(columns, near[1])) / 2
        products = self._powers(ratios)
        # the mean of a product over places of a row and places of a column is the product of the means
        queries = self.queries.mean(self._indices.features(np.clip(left, -FAR, FAR), _factor(rows - shift, near[0])))
        keys = self.keys.mean(self._indices.features(np.clip(right, -FAR, FAR), _factor(columns + shift, near[1])))
        return Expansion(products, queries, keys, self.matrix - (queries.T * products) @ keys)

    def _choose(self, ratios: Real) -> None:
        known = self._ratios
        if len(known) != len(ratios) or np.any(np.abs(ratios - known) > 0.1 * known + 0.01 * ratios[0]):
            self._ratios, self._indices = ratios, MultiIndices.largest(ratios, self._count)

    def _powers(self, ratios: Real) -> Real:
        """Products for the chosen multi-indices, which may be those of slightly other ratios."""
        found = np.ones(len(self._indices.products))
        for n in range(1, len(found)):
            found[n] = found[self._indices.base[n]] * ratios[self._indices.direction[n]] ** self._indices.degree[n]
        return found


def _largest(logs: Real, near: Mask) -> float:
    """The largest logarithm of the tokens that have functions, of either sign; zero if none has."""
    return float(logs[near].max()) if near.any() else 0.0


def _factor(logs: Real, near: Mask) -> Real:
    """Exponentials; zero for tokens that are too far out for the functions, which are left to the rest as they are."""
    kept = near & (logs < LARGEST)
    return np.where(kept, np.exp(np.where(kept, logs, 0.0)), 0.0)


class _Moments(NamedTuple):
    mean: Real
    root: Real
    inverse: Real


def _moments(vectors: Real, weights: Real) -> _Moments:
    """Weighted mean, and the root of the weighted covariance with its pseudo-inverse."""
    shares = weights / weights.sum()
    mean = shares @ vectors
    rest = vectors - mean
    values, basis = np.linalg.eigh((rest.T * shares) @ rest)
    size = np.sqrt(np.maximum(values, 0.0))
    known = values > RANK * max(values[-1], 1e-300)
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=known)
    return _Moments(mean, (basis * np.where(known, size, 0.0)) @ basis.T, (basis * inverse) @ basis.T)


def _hermite(points: Real, degree: int) -> Real:
    """Orthonormal Hermite polynomials up to a degree, of shape (degree + 1, ...)."""
    found = np.empty((degree + 1, *points.shape))
    found[0] = 1.0
    if degree:
        found[1] = points
    for n in range(1, degree):
        found[n + 1] = (points * found[n] - np.sqrt(n) * found[n - 1]) / np.sqrt(n + 1)
    return found
