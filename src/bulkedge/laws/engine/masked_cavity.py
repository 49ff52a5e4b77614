"""Cavity equations behind a causal mask: strong entries, noise, and low degrees that strong entries are a part of.

Without a mask, all ways along edges between terms of low rank are summed (:mod:`bulkedge.laws.engine.cavity`). Behind a
mask that would take a message for each place where a way may end. Here the term of degree k is what *all* entries of
rows and columns have of its harmonic in the mean, a strong entry ``e`` with what it passes on,

    ell + (theta - ell)/(1 - (theta - ell)**2 g h),      ell = N_k x_i y_j P_k(t)/sqrt(T) at its place,

so that what is left of the entries, ``theta - ell``, has none of that harmonic (a coherent potential). Squares of what
is left go along the edges, and the term of low rank goes through its channels and the mask, in cells of places, as for
windows (:mod:`bulkedge.laws.engine.window_equations`). docs/theory/sharp.md, "Behind a causal mask", derives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bulkedge.laws.engine.cavity import CavityEquations, EndSums, Packing
from bulkedge.laws.engine.window_equations import through_channels
from bulkedge.support.arrays import Complex, Index, Real

CELLS, GRADE = 40, 0.7  # cells of places; the share of their ends that is quadratic: first rows differ most
LEAST_NOISE = 0.05  # of the variance of a row's weak entries is noise at least, where what is left is a difference
UNITS = 3.0  # weight of what is not a message in a step, over its own size


class MaskedGraph(NamedTuple):
    """Rows and columns in the order of their places, N of each, as entries F of i times A for a row of i tokens."""

    tokens: int  # T, size of the matrix that the graph stands for
    seen: Real  # (N,): tokens i that each row sees
    # rows, columns: (e,): ends of the edges, numbers below N
    rows: Index
    columns: Index
    entries: Real  # (e,): ``sqrt(T) (A - b)`` at the edges, b the mean of the row's weak entries
    harmonics: Real  # (k, e): P_k of the cosine there
    numbers: Real  # (k,): rank N_k of each degree
    noise: Real  # (N, c): variance of F over the weak entries, if all columns were of each class
    weak: Real  # (k, N, c): mean of F P_k over the weak entries, likewise
    classes: Index  # (N,): class of each column
    groups: Index  # (N,): group of each row; in a group, strong entries have the same part of a degree in the mean


class MaskedMessages(NamedTuple):
    """Where an iteration stands."""

    edges: Complex  # (e,): messages from columns along the edges
    columns: Complex  # (N,): the columns' diagonal
    flows: Complex  # (k, cells): what the rows of a cell send into the channels of each degree
    strong: Complex  # (k, groups): mean of F P_k over strong entries
    profile: Complex  # (k, c): sizes y of columns, by class


class MaskedCavity(CavityEquations):
    """The equations of a graph behind a causal mask."""

    def __init__(self, graph: MaskedGraph, tolerance: float) -> None:
        super().__init__(tolerance)
        size = len(graph.seen)
        self._graph, self._each, self._degrees = graph, graph.tokens / size, range(len(graph.numbers))
        self._rows, self._columns = EndSums(graph.rows, size), EndSums(graph.columns, size)
        parts = np.linspace(0, 1, CELLS + 1)
        ends = (1 - GRADE) * parts + GRADE * parts**2
        places = (np.arange(size) + 0.5) / size
        _, self._cells = np.unique(np.searchsorted(ends, places, side="right"), return_inverse=True)
        count = int(self._cells[-1]) + 1
        # a row sees half of the cell that it is in
        self._mask = np.tril(np.ones((count, count)), -1) + np.eye(count) / 2
        self._members = np.bincount(graph.groups)
        self._own = np.arange(size), graph.classes
        # entries of A have the variance of F over i**2
        self._scale = (graph.tokens / graph.seen**2 * self._each)[:, None]
        spread = (self._scale * graph.noise).mean(axis=1) * np.arange(1, size + 1)
        self.mean = float((graph.entries**2).sum() / size + spread.mean())

    def empty(self, alone: complex) -> MaskedMessages:
        """Strong entries are no part of a degree yet."""
        graph, edges = self._graph, len(self._graph.rows)
        # sizes of the best product ``x_i y_c``
        profile = np.ones((len(graph.numbers), graph.noise.shape[1]))
        for k, weak in enumerate(graph.weak):
            across = np.linalg.svd(weak, full_matrices=False)[2][0]
            profile[k] = across * np.sign(across[0]) * len(across) ** 0.5
        strong = np.zeros((len(profile), len(self._members)), dtype=complex)
        along, _ = self._sizes(strong, profile)
        flows = self._flows(along, np.full(len(graph.seen), alone))
        columns = np.full(len(graph.seen), alone)
        return MaskedMessages(np.full(edges, alone), columns, flows, strong, profile.astype(complex))

    def packing(self, size: float, state: MaskedMessages) -> Packing:
        """Flows in units of what they are at first."""
        del size
        weak = np.abs(self._graph.weak).mean(axis=(1, 2))[:, None]
        root = len(self._graph.seen) ** 0.5
        units = (
            np.maximum(np.abs(state.flows), 1e-300),
            weak + 0 * state.strong.real,
            1 / root + 0 * state.profile.real,
        )
        return Packing(MaskedMessages, tuple(UNITS / each for each in units))

    def sweep(self, root: complex, state: MaskedMessages) -> MaskedMessages:
        """One step of the equations: from columns to rows and back, and what degrees strong entries then have."""
        graph, profile = self._graph, state.profile.real
        along, ours = self._sizes(state.strong, profile)
        across = profile[:, graph.classes]
        medium = (
            graph.numbers[:, None]
            / graph.tokens**0.5
            * along[:, graph.rows]
            * across[:, graph.columns]
            * graph.harmonics
        ).sum(axis=0)
        left = graph.entries - medium.real
        squares = left**2
        careful = abs(root) ** 2 < 1e-8 * squares.max(initial=0.0)
        noise = self._scale * self._noise(ours.real, profile, medium.real)
        sources = np.stack([self._binned(across[k] ** 2 * state.columns) for k in self._degrees] or [state.flows])
        pull = root - (noise * self._seen(state.columns)).sum(axis=1)
        for k in self._degrees:
            into = self._through(state.flows[k], sources[k], k)[0]
            pull = pull - self._power(along[k], k) * into[self._cells]
        rows, to_columns = self._rows.solve(pull, squares * state.edges, squares * state.edges, careful=careful)
        flows = self._flows(along, rows)
        pulled = noise * rows[:, None]
        # all rows from its own on see a column, its own by half
        pull = root - (pulled.sum(axis=0) - np.cumsum(pulled, axis=0) + pulled / 2)[self._own]
        for k in self._degrees:
            into = self._through(flows[k], sources[k], k)[1]
            pull = pull - across[k] ** 2 * into[self._cells]
        columns, edges = self._columns.solve(pull, squares * to_columns, squares * to_columns, careful=careful)
        passed = (left / (1 - squares * to_columns * edges) + medium) * graph.harmonics / graph.tokens**0.5
        strong = self._strong(passed * across[:, graph.columns])
        return MaskedMessages(edges, columns, flows, strong, self._profile(ours.real, passed.real) + 0j)

    def _sizes(self, strong: Complex, profile: Real) -> tuple[Complex, Complex]:
        """Sizes x of rows in each degree, of T times A and of F."""
        graph = self._graph
        ours = np.einsum("knc,kc->kn", graph.weak, profile) / profile.shape[1] + strong[:, graph.groups]
        return ours * (graph.tokens / graph.seen), ours

    def _noise(self, along: Real, profile: Real, medium: Real) -> Real:
        """Variance of what is left of the weak entries, by row and class of columns: of all, less that of edges."""
        graph = self._graph
        found = graph.noise.copy()
        for number, own, across, weak in zip(graph.numbers, along, profile, graph.weak, strict=True):
            product = own[:, None] * across
            found += number * (product**2 - 2 * product * weak)
        edges = np.bincount(graph.rows, medium**2, len(found)) * graph.seen / graph.tokens
        shared = np.bincount(graph.groups, edges) / self._members
        return np.maximum(found - shared[graph.groups, None], LEAST_NOISE * graph.noise)

    def _strong(self, parts: Complex) -> Complex:
        """Mean of what strong entries are of each degree, over the rows of each group."""
        groups = self._graph.groups[self._graph.rows]
        return np.array([_sums(groups, part, len(self._members)) / self._members for part in parts]).reshape(
            len(parts), len(self._members)
        )

    def _profile(self, along: Real, passed: Real) -> Real:
        """Sizes of columns in each degree that go best with those of rows, of unit mean square."""
        graph = self._graph
        count, own = graph.noise.shape[1], graph.classes[graph.columns]
        found = np.einsum("kn,knc->kc", along, graph.weak)
        for k in self._degrees:
            found[k] += count * np.bincount(own, along[k, graph.rows] * passed[k], count)
        return found / np.sqrt((found**2).mean(axis=1, keepdims=True))

    def _seen(self, columns: Complex) -> Complex:
        """Sums over the columns of each class that a row sees: half of its own."""
        found: Complex = np.zeros((len(columns), self._graph.noise.shape[1]), dtype=complex)
        found[self._own] = columns
        return np.cumsum(found, axis=0) - found / 2

    def _power(self, along: Complex, k: int) -> Complex:
        """Variance of an entry in degree k."""
        variance: Complex = self._graph.numbers[k] / self._graph.tokens * along**2
        return variance

    def _binned(self, values: Complex) -> Complex:
        return _sums(self._cells, values, len(self._mask)) * self._each

    def _flows(self, along: Complex, rows: Complex) -> Complex:
        """What the rows of each cell send into the channels of each degree."""
        found = [self._binned(self._power(along[k], k) * rows) for k in self._degrees]
        return np.array(found).reshape(len(found), len(self._mask))

    def _through(self, flows: Complex, sources: Complex, k: int) -> Any:
        """Both fields of a degree: what comes in through its channels to rows, and to columns."""
        kernels, c = (self._mask, np.zeros_like(self._mask)), np.array([1 / self._graph.numbers[k]])
        into_rows, into_columns = through_channels(kernels, flows[None, None], sources[None, None], c)
        # the square of a cell's half is a fourth, and the rest is noise
        rest = self._mask - self._mask**2
        return into_rows[0, 0] + rest @ sources, into_columns[0, 0] + rest.T @ flows


def _sums(which: Index, values: Complex, count: int) -> Complex:
    """Sums of the values that have each number."""
    return np.bincount(which, values.real, count) + 1j * np.bincount(which, values.imag, count)
