"""Cavity equations on a bipartite graph: a few strong entries in each row, and the rest of the row as noise.

A matrix has the entries ``v_ij**0.5`` between N rows and N columns. Where the graph of its strong entries is locally
a tree, its resolvent at ``z = w**2`` is found from messages along the edges,

    g_{i->j} = 1/(w - sum_{k != j} v_ik h_{k->i}),        h_{j->i} = 1/(w - sum_{k != i} v_kj g_{k->j}),

and the full sums give its diagonal, ``g_i`` over rows and ``h_j`` over columns. Both have the same mean G, since every
edge contributes to both sums alike: that holds here to rounding, because both directions use the same edges.

Weak entries are many and alike: their sum is its mean, and they carry no messages. A row with the variance b of weak
entries adds ``b mean(h)`` to its own sum, and ``mean(b g)`` to that of every column.

Attention has terms of low rank besides, :class:`Degrees`: ``sum_k N_k x_ik y_jk P_k(t_ij)/sqrt(T)``, P_k the harmonic
of degree k of the cosine of row and column. Strong entries sit where cosines are large. So what leaves a row over such
a term may come back along an edge. Paths along edges of cosines t, s, ... keep ``P_k(t) P_k(s) ...`` of a harmonic.
That makes two more messages a degree: all paths from a node to where a term of low rank is met, by rows or by columns
(docs/theory/sharp.md, "Keys and queries").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from bulkedge.support.arrays import Complex, Index, Real
from bulkedge.support.errors import UnresolvedError

MEMORY = 4  # steps that are combined into the next one (Anderson's method)
MOST = 100  # sweeps after which equations count as unsolved; 5 to 20 are usual
LEFT = 20
"""How much of the tolerance may be left over at angles where that many sweeps were not enough: those next to the
axis, which count little."""
REGULAR, TINY = 1e-8, 1e-30  # relative weight that keeps the combination from using steps that are alike
MEANS = 30.0  # weight of the means of paths, which are few, beside those of the edges
GRADING = 3  # power with which angles gather at the positive axis: it makes steps of the distribution function sharp


class HalfCircle(NamedTuple):
    """Points ``exp(i angle)`` of the upper half of the unit circle, and their weights in a mean over the angle."""

    angles: Real
    weights: Real

    @classmethod
    def nodes(cls, count: int, grading: int = GRADING) -> HalfCircle:
        """Gauss nodes in a root of the angle, from the negative axis to the positive one."""
        nodes, weights = np.polynomial.legendre.leggauss(count)
        unit = (1 + nodes[::-1]) / 2
        return cls(np.pi * unit**grading, weights[::-1] / 2 * grading * unit ** (grading - 1))


class Degrees(NamedTuple):
    """Terms of low rank, k of them, and how the edges go along with them."""

    tokens: int  # T, size of the matrix that the graph stands for
    numbers: Real  # (k,): rank N_k of each
    # rows, columns: (k, N): sizes x of rows and y of columns; y has unit mean square
    rows: Real
    columns: Real
    entries: Real  # (k, e): entry at each edge, less all terms of low rank, times the harmonic P_k of its cosine

    @classmethod
    def none(cls, size: int, edges: int) -> Degrees:
        """No such term."""
        return cls(1, np.zeros(0), np.zeros((0, size)), np.zeros((0, size)), np.zeros((0, edges)))


class Graph(NamedTuple):
    """Squares of the entries of N rows and N columns: e strong ones, and noise."""

    # rows, columns: (e,): ends of the edges, numbers below N
    rows: Index
    columns: Index
    squares: Real  # (e,): square v of the entry at each edge
    noise: Real  # (N, c): sum of the variances of all other entries of each row, if all columns were of each class
    classes: Index  # (N,): class of each column
    degrees: Degrees

    @property
    def size(self) -> int:
        """Number N of rows, and of columns."""
        return len(self.noise)


class Messages(NamedTuple):
    """Where an iteration stands: messages from columns along the edges, and the columns' diagonal."""

    edges: Complex
    columns: Complex
    fields: Complex  # (2, k, e): paths from a column, without the edge, to rows and to columns of each term
    means: Complex  # (3, k): mean over paths from rows to rows, from columns to columns and from rows to columns


class EndSums:
    """Sums over the edges at each row, or at each column, with and without a single edge."""

    def __init__(self, ends: Index, size: int) -> None:
        counts = np.bincount(ends, minlength=size)
        # edges of one end next to each other; a last entry, which is zero, keeps places of empty ones in range
        self._order = np.argsort(ends, kind="stable")
        self._starts, self._empty = np.cumsum(counts) - counts, counts == 0
        self.ends = ends

    def sums(self, values: Any) -> Any:
        """Sum of the values of the edges at each end."""
        return self._reduce(np.add, values)

    def solve(self, free: Complex, flows: Complex, own: Complex, *, careful: bool) -> tuple[Complex, Complex]:
        """Diagonal ``1/(free - sum of flows)`` at each end, and the same without the edge, which is ``own`` more."""
        inverse = free - self.sums(flows)
        without = inverse[self.ends] + own
        if careful:
            sizes = np.abs(flows)
            largest = sizes == self._reduce(np.maximum, sizes)[self.ends]
            rest = free - self.sums(np.where(largest, 0.0, flows))
            without = np.where(largest, rest[self.ends] + (own - flows), without)
        return 1 / inverse, 1 / without

    def _reduce(self, ufunc: np.ufunc, values: Any) -> Any:
        found = ufunc.reduceat(np.append(values[self._order], 0.0), self._starts)
        found[self._empty] = 0.0
        return found


class CavityEquations(ABC):
    """Cavity equations of a graph, solved at one point after the other.

    States are named tuples: messages from columns along the edges, the columns' diagonal, and what else there is.
    """

    mean: float  # of the squared singular values

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._first: dict[float, Any] = {}

    def mass(self, point: float, circle: HalfCircle) -> float:
        """Distribution function of the squared singular values: the mean of ``Re z G(z)`` over ``|z| = point``."""
        total, unsolved, state = 0.0, 0.0, self._start(point)
        for k, (angle, weight) in enumerate(zip(*circle, strict=True)):
            root = point**0.5 * np.exp(0.5j * angle)
            # an angle may be solved the less well, the less it counts
            goal = self._tolerance / (weight * len(circle.angles))
            state, change = self._solve(root, state, goal)
            total += weight * float((root * state.columns.mean()).real)
            unsolved += weight * change if change > goal else 0.0
            if k == 0:
                self._first[point] = state
        if unsolved > LEFT * self._tolerance:
            raise UnresolvedError(
                f"the cavity equations at |z| = {point:g} still move by {unsolved:.2g} after {MOST} sweeps an angle, "
                f"where {LEFT * self._tolerance:g} is allowed: take a value that is not so close to a single one"
            )
        return total

    def _start(self, point: float) -> Any:
        """The state at the first angle of the nearest point that was solved before, or that of no matrix at all."""
        if self._first:
            return self._first[min(self._first, key=lambda other: abs(np.log(other / point)))]
        return self.empty(-1j / point**0.5)

    @abstractmethod
    def empty(self, alone: complex) -> Any:
        """The state where messages and diagonal are those of a row or column alone."""

    @abstractmethod
    def sweep(self, root: complex, state: Any) -> Any:
        """One step of the equations: from columns to rows and back."""

    @abstractmethod
    def packing(self, size: float, state: Any) -> Packing:
        """How states at a point of this size, such as this one, are vectors."""

    def _solve(self, root: complex, state: Any, goal: float) -> tuple[Any, float]:
        """Repeat the step until it changes ``w h_j`` by less than the goal in the mean, or too often."""
        # the last few states are combined so that changes of columns nearly cancel; a message that would leave the
        # lower half-plane is averaged with its image instead
        size, mixer, shape = len(state.columns), Mixer(), self.packing(abs(root), state)
        now, polar = shape.pack(state), slice(len(state.edges) + size, 2 * (len(state.edges) + size))
        for _ in range(MOST):
            image = self.sweep(root, state)
            change = abs(root) * float(np.abs(image.columns - state.columns).mean())
            move = (shape.pack(image) - now) / 2
            # columns that carry no mass yet may still be on their way: none may move by much of its own size
            if change < goal and np.abs(move[polar][-size:]).mean() < max(goal, 0.005):
                break
            step = now + move
            now = mixer.mix(step, move)
            # angles beyond a right one leave the half-plane
            outside = np.flatnonzero(np.abs(now[polar]) >= np.pi / 2)
            for place in (outside, outside + polar.start):
                now[place] = step[place]
            state = shape.unpack(now)
        return image, change


def _parts(values: Complex) -> tuple[Real, Real]:
    return values.real, values.imag


def _propagator(terms: Degrees, means: Complex) -> Complex:
    """How rows and columns are joined by each term, and all detours: row to row, column to column, row to column."""
    rows, columns, across = means
    root = terms.tokens**0.5
    direct = 1 - root * across
    power = terms.numbers / (direct**2 - terms.tokens * rows * columns)
    return np.stack([columns, rows, direct / root])[..., None] * power[:, None]


class Node:
    """One half of a sweep: what every row, or every column, makes of the messages that it gets."""

    def __init__(self, sums: EndSums, squares: Real, terms: Degrees, propagator: Complex, *, careful: bool) -> None:
        self._sums, self._squares, self._terms, self._careful = sums, squares, terms, careful
        self._join = propagator

    def _square(self, fields: Any) -> Complex:
        """Weight of the detours that leave and come back along these fields, one for rows and one for columns."""
        return (
            self._join[0] * fields[0] ** 2 + self._join[1] * fields[1] ** 2 + 2 * self._join[2] * fields[0] * fields[1]
        )

    def update(self, pull: Complex, edges: Complex, fields: Complex, own: Any) -> tuple[Complex, Complex, Complex, Any]:
        """The diagonal, messages without each edge, their fields, and what each end meets."""
        flows, sums = self._squares * edges, self._sums
        if not len(self._terms.numbers):
            return *sums.solve(pull, flows, flows, careful=self._careful), fields, own
        paths = self._terms.entries * fields
        met = [each + np.array([sums.sums(path) for path in field]) for each, field in zip(own, paths, strict=True)]
        alone = self._square(paths)
        # detours that leave and come back along one edge are in the message of its other end
        pull = pull - self._square(met).sum(axis=0) + sums.sums(alone.sum(axis=0))
        there = [each[:, sums.ends] for each in met]
        both = self._join[0] * there[0] + self._join[2] * there[1], self._join[2] * there[0] + self._join[1] * there[1]
        back = 2 * (both[0] * paths[0] + both[1] * paths[1] - alone).sum(axis=0)
        diagonal, messages = sums.solve(pull, flows, flows + back, careful=self._careful)
        return diagonal, messages, np.stack([messages * (t - p) for t, p in zip(there, paths, strict=True)]), met


class Packing:
    """States as real vectors: logarithms of the sizes of ``i h``, its angles, and all else in units of its own."""

    def __init__(self, kind: Any, scales: tuple[Real, ...]) -> None:
        self._kind, self._shapes = kind, [each.shape for each in scales]
        self._scales = np.concatenate([each.ravel() for each in scales])
        self._edges = 0

    def pack(self, state: Any) -> Real:
        """The vector of a state: messages of all sizes count alike."""
        self._edges = len(state[0])
        values = np.concatenate(state[:2])
        rest = np.concatenate([each.ravel() for each in state[2:]]) * self._scales
        logs = np.log(values.real**2 + values.imag**2) / 2
        return np.concatenate([logs, np.arctan2(values.real, -values.imag), rest.real, rest.imag])

    def unpack(self, vector: Real) -> Any:
        """The state of a vector."""
        count = len(vector) // 2 - len(self._scales)
        logs, angles, real, imag = np.split(vector, [count, 2 * count, 2 * count + len(self._scales)])
        values = np.exp(logs) * (np.sin(angles) - 1j * np.cos(angles))
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        rest = np.split((real + 1j * imag) / self._scales, ends)
        parts = [part.reshape(shape) for part, shape in zip(rest, self._shapes, strict=True)]
        return self._kind(values[: self._edges], values[self._edges :], *parts)


class Mixer:
    """Anderson's method: of the last few steps, the combination whose changes nearly cancel."""

    def __init__(self) -> None:
        self._steps: list[Real] = []
        self._changes: list[Real] = []
        self._gram: Real = np.zeros((0, 0))

    def mix(self, step: Real, change: Real) -> Real:
        """Remember where a step led and what it changed, and combine it with those before."""
        self._steps, self._changes = [*self._steps[-MEMORY:], step], [*self._changes[-MEMORY:], change]
        count = len(self._steps)
        gram = np.empty((count, count))
        gram[:-1, :-1] = self._gram[1 - count :, 1 - count :] if count > 1 else 0.0
        # without threads, which cost more than they bring for vectors of this length
        gram[-1] = gram[:, -1] = [np.einsum("i,i", each, change) for each in self._changes]
        self._gram = gram
        solid = gram + np.diag(REGULAR * gram.diagonal() + TINY)
        shares = np.linalg.solve(solid, np.ones(count))
        return np.tensordot(shares / shares.sum(), self._steps, 1)


class Cavity(CavityEquations):
    """The equations of a graph without a mask, with all ways along edges between terms of low rank."""

    def __init__(self, graph: Graph, tolerance: float) -> None:
        super().__init__(tolerance)
        self._graph = graph
        self._rows, self._columns = EndSums(graph.rows, graph.size), EndSums(graph.columns, graph.size)
        self.mean = float(graph.squares.sum() / graph.size + graph.noise.mean())

    def empty(self, alone: complex) -> Messages:
        """No path leads anywhere."""
        terms, edges = len(self._graph.degrees.numbers), len(self._graph.rows)
        fields, means = np.zeros((2, terms, edges), dtype=complex), np.zeros((3, terms), dtype=complex)
        return Messages(np.full(edges, alone), np.full(self._graph.size, alone), fields, means)

    def sweep(self, root: complex, state: Messages) -> Messages:
        """One step of the equations: from columns to rows and back."""
        graph, terms, means = self._graph, self._graph.degrees, state.means.copy()
        # so far below its largest values, those of a matrix are differences of large numbers
        careful = abs(root) ** 2 < 1e-8 * graph.squares.max(initial=0.0)
        none, size = np.zeros_like(terms.rows), graph.size
        of_class = [np.bincount(graph.classes, part, graph.noise.shape[1]) for part in _parts(state.columns)]
        pull = root - graph.noise @ (of_class[0] + 1j * of_class[1]) / size
        node = Node(self._rows, graph.squares, terms, _propagator(terms, means), careful=careful)
        rows, messages, fields, met = node.update(pull, state.edges, state.fields, (terms.rows, none))
        means[0], means[2] = ((terms.rows * rows * each).mean(axis=1) for each in met)
        pull = root - (graph.noise.T @ rows / size)[graph.classes]
        node = Node(self._columns, graph.squares, terms, _propagator(terms, means), careful=careful)
        columns, messages, fields, met = node.update(pull, messages, fields, (none, terms.columns))
        means[1] = (terms.columns * columns * met[1]).mean(axis=1)
        return Messages(messages, columns, fields, means)

    def packing(self, size: float, state: Messages) -> Packing:
        """What is of low rank in its units."""
        terms = self._graph.degrees
        count, scale = len(terms.numbers), np.sqrt((terms.rows**2).mean(axis=1))
        fields = np.stack([size / scale, np.full(count, size)])[..., None] * np.ones(state.fields.shape)
        means = MEANS * np.stack([size / scale**2, np.full(count, size), size / scale])
        return Packing(Messages, (fields, means))
