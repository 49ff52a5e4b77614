"""The graph of a head's strong entries, and what is left of it: noise, and a few degrees of low rank.

Rows and columns stand for queries and keys. Given the length of a query, scores are independent normal numbers times
that length, or on the sphere, with ``qk_norm``, cosines. The largest of T are order statistics
(:mod:`bulkedge.laws.attention.sharp_head`). A strong entry goes to a column whose key is as long as the entry's own:
given its score, what is left of a key's squared length is chi-square. Integrals over all weaker scores give each row
its mean, its variance by length of key, and its degrees (docs/theory/sharp.md, "Keys and queries").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammainc, gammaincinv

from bulkedge.laws.attention.finite_head import cosine_quadrature, harmonics, log_harmonics
from bulkedge.laws.attention.sharp_head import (
    NormalScores,
    SoftmaxRows,
    SphereScores,
    dominated,
    edge_columns,
    sobol_points,
    softmax_rows,
    strongest,
)
from bulkedge.laws.engine.cavity import Degrees, Graph
from bulkedge.laws.engine.masked_cavity import MaskedGraph
from bulkedge.support.arrays import BoolArray, Index, Real

EDGES, LEAST = 8, 4  # edges of a row in the mean, and at least
CLASSES, FINER = (
    16,
    4,
)  # classes of columns by the length of their keys, and parts of a class that edges are sorted into
NODES, REACH = 320, 8.0  # quadrature nodes for the cosine, and how many of its standard deviations they cover
MOST_DEGREE, MOST_RATIO = (
    3,
    30.0,
)  # degrees that may count as of low rank: the largest, and its harmonics for each token
NEGLIGIBLE = 0.004  # share of the variance, over one more than those harmonics, below which a degree is noise
SMALLEST = 0.02  # of a row's variance is noise at least, where what is left of it is a difference
MASKED_FIRST, MASKED_RATIO = 3.0, 0.15
"""Harmonics for each token up to which the first degree, and others, are of low rank behind a mask. At 2048 tokens
and beta = 2, degree two of 32 dimensions (0.26) makes the law 0.007 worse, that of 16 (0.07) makes it 0.034 better."""
LEAST_FILL = 1e-3  # of all scores of a row are taken as weak at least
MASKED_FLATTEST = 3.5
"""Inverse temperature from which edges alone are nearer to causal heads: at beta = 4 and 2048 tokens by 0.01."""
GROUP_ROWS, GROUP_LENGTHS = 64, 4  # rows of a group by place, and groups of these by length of the query
Part = tuple[Real, Real, Real, Real]


@dataclass(frozen=True)
class Lengths:
    """Relative lengths of rows' queries and columns' keys, ones if they are normalised; and what rows see."""

    rows: Real  # (N,)
    columns: Real  # (N,), increasing
    classes: Index  # (N,) class of each column
    typical: Real  # (c,) mean length in each class
    uniform: Real  # (N, m) places of the keys that rows look at most, among all keys with their scores
    seen: Real  # (N,) how many tokens

    @classmethod
    def of(cls, head_dim: int, places: Real, uniform: Real, seen: Real, *, qk_norm: bool) -> Lengths:
        """Quantiles at these places for rows, and at even ones for columns."""
        size, even = len(places), np.arange(len(places))
        if qk_norm:
            return cls(np.ones(size), np.ones(size), np.zeros(size, dtype=np.intp), np.ones(1), uniform, seen)
        rows, columns = (
            np.sqrt(2 * gammaincinv(head_dim / 2, each) / head_dim) for each in (places, (even + 0.5) / size)
        )
        return cls(rows, columns, even * CLASSES // size, columns.reshape(CLASSES, -1).mean(axis=1), uniform, seen)


class WeakPart(NamedTuple):
    """All entries of rows that are no edges, by row and class of columns, as F = T A."""

    mean: Real  # (N, c): mean of F
    variance: Real  # (N, c): mean of its square, less its mean's
    projections: Real  # (k, N, c): mean of F less its mean times the harmonic P_k
    sizes: Real  # (k, N, c): coefficients x of the best ``sum_k N_k x P_k`` where entries are weak


def head_graph(beta: float, head_dim: int, tokens: int, *, qk_norm: bool, sizes: tuple[int, int]) -> Graph:
    """The graph with the first number of rows, or with the second one where a row's largest entry dominates it."""
    graph_of = _Builder(beta, head_dim, tokens, qk_norm)
    found = graph_of.rows(np.full(sizes[0], float(tokens)))
    if dominated(found[1], tokens):
        found = graph_of.rows(np.full(sizes[1], float(tokens)))
    return graph_of.graph(*found)


def causal_graph(beta: float, head_dim: int, tokens: int, *, qk_norm: bool, size: int) -> MaskedGraph:
    """The graph of a causal head with so many rows, at even places."""
    graph_of = _Builder(beta, head_dim, tokens, qk_norm)
    seen = np.maximum((np.arange(size) + 0.5) * tokens / size + 0.5, 2.0)
    return graph_of.masked(*graph_of.rows(seen))


@dataclass(frozen=True)
class _Builder:
    beta: float
    head_dim: int
    tokens: int
    qk_norm: bool

    def rows(self, seen: Real) -> tuple[Lengths, SoftmaxRows]:
        """Rows that see so many tokens, with their lengths and largest weights."""
        count = min(48, self.tokens // 2)
        uniform = sobol_points(len(seen), 2 * count + 2, 0)
        places, others = uniform[:, count + 1], uniform[:, count + 2 :]
        lengths = Lengths.of(self.head_dim, places, others, seen, qk_norm=self.qk_norm)
        scores = SphereScores(self.beta, self.head_dim) if self.qk_norm else NormalScores(self.beta * lengths.rows)
        return lengths, softmax_rows(scores, seen, uniform[:, : count + 1])

    def graph(self, lengths: Lengths, rows: SoftmaxRows) -> Graph:
        """Edges, and the rest as noise and degrees."""
        tokens, size = self.tokens, len(lengths.rows)
        strong, cut = strongest(rows, EDGES, LEAST)
        ends = np.repeat(np.arange(size), strong.sum(axis=1))
        cosines, columns = self._edges(rows, lengths, strong)
        degrees = self._candidates()
        weak = self._weak(lengths, rows, (strong, cut), degrees)
        numbers = np.exp(log_harmonics(self.head_dim, MOST_DEGREE))[degrees]
        share = numbers * (weak.projections * weak.sizes).mean(axis=(1, 2)) / (1 + numbers / tokens)
        edges = tokens * (rows.weights[strong] ** 2).sum() / size
        kept = share > NEGLIGIBLE * (weak.variance.mean() + edges)
        if not kept.all():
            degrees, numbers = degrees[kept], numbers[kept]
            weak = self._weak(lengths, rows, (strong, cut), degrees)
        total, profile = self._totals(rows, strong, weak, lengths.seen)
        variance = weak.variance * (total / weak.variance.mean(axis=1))[:, None]
        low = np.einsum("k,knc,knc->nc", numbers, weak.projections, weak.sizes)
        noise = np.maximum(variance - low, SMALLEST * variance)
        along, across = _separate(weak.sizes)
        across = across[:, lengths.classes]
        basis = harmonics(self.head_dim, MOST_DEGREE, cosines)[degrees]
        entries = tokens * rows.weights[strong] - profile[ends, lengths.classes[columns]]
        entries = entries / tokens**0.5
        entries -= (numbers[:, None] / tokens**0.5 * along[:, ends] * across[:, columns] * basis).sum(axis=0)
        terms = Degrees(tokens, numbers, along, across, entries * basis)
        return Graph(ends, columns, entries**2, noise, lengths.classes, terms)

    def masked(self, lengths: Lengths, rows: SoftmaxRows) -> MaskedGraph:
        """Edges to columns before each row, and the rest as noise and parts of degrees."""
        seen, size = lengths.seen, len(lengths.seen)
        strong, cut = strongest(rows, EDGES, LEAST, seen)
        ends = np.repeat(np.arange(size), strong.sum(axis=1))
        cosines, found = self._cosines(rows, lengths, strong)
        numbers = np.exp(log_harmonics(self.head_dim, MOST_DEGREE))
        ratios = numbers / self.tokens
        low = ratios[1:] < np.array([MASKED_FIRST, *[MASKED_RATIO] * (MOST_DEGREE - 1)])
        degrees = np.flatnonzero(low & (self.beta < MASKED_FLATTEST)) + 1
        weak = self._weak(lengths, rows, (strong, cut), degrees)
        total, profile = self._totals(rows, strong, weak, lengths.seen)
        variance = weak.variance * (total / np.maximum(weak.variance.mean(axis=1), 1e-300))[:, None]
        classes, columns = _columns_before(ends, found, size, 1 if self.qk_norm else CLASSES)
        entries = self.tokens**0.5 * (rows.weights[strong] - profile[ends, classes[columns]] / seen[ends])
        # queries of about the same length at about the same place
        blocks = lengths.rows.reshape(-1, GROUP_ROWS)
        parts = 1 if self.qk_norm else GROUP_LENGTHS
        groups = np.argsort(np.argsort(blocks, axis=1), axis=1) * parts // GROUP_ROWS
        groups = (groups + parts * np.arange(len(blocks))[:, None]).ravel()
        basis = harmonics(self.head_dim, MOST_DEGREE, cosines)[degrees]
        return MaskedGraph(
            self.tokens,
            seen,
            ends,
            columns,
            entries,
            basis,
            numbers[degrees],
            variance,
            weak.projections,
            classes,
            groups,
        )

    def _candidates(self) -> Index:
        """Degrees that may count as of low rank."""
        numbers = np.exp(log_harmonics(self.head_dim, MOST_DEGREE))
        return np.flatnonzero(numbers[1:] < MOST_RATIO * self.tokens) + 1

    def _cosines(self, rows: SoftmaxRows, lengths: Lengths, strong: BoolArray) -> tuple[Real, Real]:
        """Cosine of each edge, and the place of its key's length among all keys."""
        scores = rows.scores[strong]
        if self.qk_norm:
            return scores / self.head_dim**0.5, np.zeros(len(scores))
        square = scores**2 + 2 * gammaincinv((self.head_dim - 1) / 2, lengths.uniform[strong])
        return scores / np.sqrt(square), gammainc(self.head_dim / 2, square / 2)

    def _edges(self, rows: SoftmaxRows, lengths: Lengths, strong: BoolArray) -> tuple[Real, Index]:
        """Cosine and column of each edge."""
        size, weights = len(lengths.rows), rows.weights[strong]
        cosines, found = self._cosines(rows, lengths, strong)
        if self.qk_norm:
            return cosines, edge_columns(weights, size, 0)
        # given their length, columns are alike: edges of one part go to its columns as they would if that were all
        parts = CLASSES * FINER
        part = np.minimum((found * parts).astype(np.intp), parts - 1)
        columns = np.empty(len(weights), dtype=np.intp)
        for each in range(parts):
            inside = np.flatnonzero(part == each)
            if len(inside):
                columns[inside] = edge_columns(weights[inside], size // parts, each) + each * (size // parts)
        return cosines, columns

    def _weak(self, lengths: Lengths, rows: SoftmaxRows, parted: tuple[BoolArray, Real], degrees: Index) -> WeakPart:
        """Integrals over scores below each row's cut."""
        (strong, cut), seen = parted, lengths.seen
        cosine, mass = cosine_quadrature(self.head_dim, NODES, REACH)
        basis = harmonics(self.head_dim, MOST_DEGREE, cosine)[degrees]
        numbers = np.exp(log_harmonics(self.head_dim, MOST_DEGREE))[degrees]
        products = (basis[:, None] * basis * mass).reshape(-1, len(cosine))
        lead, height = self.beta * lengths.rows, np.log(seen) - rows.log_normaliser
        parts: list[Part] = []
        below = [np.where(each * self.head_dim**0.5 * cosine < cut[:, None], 1.0, 0.0) for each in lengths.typical]
        # the others are as they are below the cut, and so many
        fill = (1 - strong.sum(axis=1) / seen) / np.maximum(
            np.mean([each @ mass for each in below], axis=0), LEAST_FILL
        )
        for length, inside in zip(lengths.typical, below, strict=True):
            region = inside * fill[:, None]
            logs = np.outer(lead, length * self.head_dim**0.5 * cosine) + height[:, None]
            values = np.exp(np.minimum(logs, np.log(seen)[:, None])) * region
            mean = values @ mass
            square = (values**2 / np.maximum(region, 1e-300)) @ mass
            along = (values - mean[:, None] * region) @ (basis * mass).T
            gram = (region @ products.T).reshape(len(region), len(degrees), len(degrees)) * numbers
            parts.append((mean, square - mean**2, along.T, np.linalg.solve(gram, along[..., None])[..., 0].T))
        return WeakPart(*(np.stack(each, axis=-1) for each in zip(*parts, strict=True)))

    def _totals(self, rows: SoftmaxRows, strong: BoolArray, weak: WeakPart, seen: Real) -> tuple[Real, Real]:
        """Variance of each row's weak entries, and its weak mean by class of columns: of rank one, and taken off."""
        left = np.where(strong, 0.0, rows.weights)
        mean = left.sum(axis=1) + rows.first
        square = seen * ((left**2).sum(axis=1) + rows.second)
        profile = weak.mean * (mean / weak.mean.mean(axis=1))[:, None]
        taken = (profile**2).mean(axis=1) * (1 + strong.sum(axis=1) / seen)
        return np.maximum(square - taken, SMALLEST * square), profile


def _separate(sizes: Real) -> tuple[Real, Real]:
    """The best form ``x_i y_c`` of each degree, y of unit mean square."""
    count = sizes.shape[2]
    left: list[Any] = []
    right: list[Any] = []
    for each in sizes:
        along, values, across = np.linalg.svd(each / count**0.5, full_matrices=False)
        sign = np.sign(across[0, 0])
        left.append(sign * along[:, 0] * values[0])
        right.append(sign * across[0] * count**0.5)
    shape = (0, sizes.shape[1])
    return np.array(left).reshape(len(sizes), shape[1]), np.array(right).reshape(len(sizes), count)


def _columns_before(ends: Index, found: Real, size: int, classes: int) -> tuple[Index, Index]:
    """Class of each column by the length of its key, and the column of each edge: one before its row."""
    # in every block of so many places there is a column of each class
    rng = np.random.default_rng([2, classes])
    blocks = rng.permuted(np.tile(np.arange(classes), (size // classes, 1)), axis=1)
    place = rng.random(len(ends)) * (ends + 0.5)
    block = (place / classes).astype(np.intp)
    kind = np.minimum((found * classes).astype(np.intp), classes - 1)
    columns = block * classes + np.argsort(blocks, axis=1)[block, kind]
    # next to its own place a row sees a few columns only, whatever their lengths
    return blocks.ravel(), np.where(columns > ends, np.minimum(place.astype(np.intp), ends), columns)
