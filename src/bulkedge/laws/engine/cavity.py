"""Cavity equations on a bipartite graph: a few strong entries in each row, and the rest of the row as noise.

A matrix has the entries ``v_ij**0.5`` between N rows and N columns. Where the graph of its strong entries is locally
a tree, its resolvent at ``z = w**2`` is found from messages along the edges,

    g_{i->j} = 1/(w - sum_{k != j} v_ik h_{k->i}),        h_{j->i} = 1/(w - sum_{k != i} v_kj g_{k->j}),

and the full sums give its diagonal, ``g_i`` over rows and ``h_j`` over columns. Both have the same mean G, since every
edge contributes to both sums alike: that holds here to rounding, because both directions use the same edges.

Weak entries are many and alike: their sum is its mean, and they carry no messages. A row with the variance b of weak
entries adds ``b mean(h)`` to its own sum, and ``mean(b g)`` to that of every column.

>>> from bulkedge.laws.engine.cavity import HalfCircle
>>> HalfCircle.nodes(12).weights.sum().round(12)
np.float64(1.0)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bulkedge.support.arrays import Complex, Index, Real
from bulkedge.support.errors import UnresolvedError

MEMORY = 4
"""Steps that are combined into the next one (Anderson's method)."""
MOST = 100
"""Sweeps after which equations count as unsolved; 5 to 20 are usual."""
LEFT = 20
"""How much of the tolerance may be left over at angles where that many sweeps were not enough: those next to the
axis, which count little."""
REGULAR, TINY = 1e-8, 1e-30
"""Relative weight that keeps the combination from using steps that are alike."""
GRADING = 3
"""Power with which angles gather at the positive axis: it makes steps of the distribution function sharp."""


class HalfCircle(NamedTuple):
    """Points ``exp(i angle)`` of the upper half of the unit circle, and their weights in a mean over the angle."""

    angles: Real
    weights: Real

    @classmethod
    def nodes(cls, count: int) -> HalfCircle:
        """Gauss nodes in the cube root of the angle, from the negative axis to the positive one."""
        nodes, weights = np.polynomial.legendre.leggauss(count)
        unit = (1 + nodes[::-1]) / 2
        return cls(np.pi * unit**GRADING, weights[::-1] / 2 * GRADING * unit ** (GRADING - 1))


class Graph(NamedTuple):
    """Squares of the entries of N rows and N columns: e strong ones, and noise.

    Attributes
    ----------
    rows, columns : integer arrays of shape (e,)
        Ends of the edges, numbers below N.
    squares : array of shape (e,)
        Square v of the entry at each edge.
    noise : array of shape (N,)
        Sum of the variances of all other entries of each row, which are spread evenly over all columns.
    """

    rows: Index
    columns: Index
    squares: Real
    noise: Real

    @property
    def size(self) -> int:
        """Number N of rows, and of columns."""
        return len(self.noise)


class Messages(NamedTuple):
    """Where an iteration stands: messages from columns along the edges, and the columns' diagonal."""

    edges: Complex
    columns: Complex


class EndSums:
    """Sums over the edges at each row, or at each column, with and without a single edge."""

    def __init__(self, ends: Index, size: int) -> None:
        counts = np.bincount(ends, minlength=size)
        # edges of one end next to each other; a last entry, which is zero, keeps places of empty ones in range
        self._order = np.argsort(ends, kind="stable")
        self._starts, self._empty = np.cumsum(counts) - counts, counts == 0
        self._ends = ends

    def sums(self, values: Any) -> Any:
        """Sum of the values of the edges at each end."""
        return self._reduce(np.add, values)

    def solve(self, free: Complex, flows: Complex, *, careful: bool) -> tuple[Complex, Complex]:
        """Diagonal ``1/(free - sum of flows)`` at each end, and the same without the edge's own flow at each edge."""
        inverse = free - self.sums(flows)
        without = inverse[self._ends] + flows
        if careful:
            sizes = np.abs(flows)
            largest = sizes == self._reduce(np.maximum, sizes)[self._ends]
            rest = free - self.sums(np.where(largest, 0.0, flows))
            without = np.where(largest, rest[self._ends], without)
        return 1 / inverse, 1 / without

    def _reduce(self, ufunc: np.ufunc, values: Any) -> Any:
        found = ufunc.reduceat(np.append(values[self._order], 0.0), self._starts)
        found[self._empty] = 0.0
        return found


class Cavity:
    """The cavity equations of a graph, solved at one point after the other."""

    def __init__(self, graph: Graph, tolerance: float) -> None:
        self._graph, self._tolerance = graph, tolerance
        self._rows, self._columns = EndSums(graph.rows, graph.size), EndSums(graph.columns, graph.size)
        self._first: dict[float, Messages] = {}

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

    def _start(self, point: float) -> Messages:
        """The state at the first angle of the nearest point that was solved before, or that of no matrix at all."""
        if self._first:
            return self._first[min(self._first, key=lambda other: abs(np.log(other / point)))]
        alone = -1j / point**0.5
        return Messages(np.full(len(self._graph.rows), alone), np.full(self._graph.size, alone))

    def _sweep(self, root: complex, state: Messages) -> Messages:
        """One step of the equations: from columns to rows and back."""
        graph = self._graph
        # so far below its largest values, those of a matrix are differences of large numbers
        careful = abs(root) ** 2 < 1e-8 * graph.squares.max(initial=0.0)
        free = root - graph.noise * state.columns.mean()
        rows, messages = self._rows.solve(free, graph.squares * state.edges, careful=careful)
        free = np.full(graph.size, root - graph.noise @ rows / graph.size)
        columns, messages = self._columns.solve(free, graph.squares * messages, careful=careful)
        return Messages(messages, columns)

    def _solve(self, root: complex, state: Messages, goal: float) -> tuple[Messages, float]:
        """Repeat the step until it changes ``w h_j`` by less than the goal in the mean, or too often.

        Each next state combines the last few such that the changes of the columns nearly cancel; a message that would
        leave the lower half-plane is averaged with its image instead. The change that was left comes with the result.
        """
        size, mixer, now = self._graph.size, Mixer(), _polar(state)
        for _ in range(MOST):
            image = self._sweep(root, state)
            change = abs(root) * float(np.abs(image.columns - state.columns).mean())
            move = (_polar(image) - now) / 2
            # columns that carry no mass yet may still be on their way: none may move by much of its own size
            if change < goal and np.abs(move[:, -size:]).mean() < max(goal, 0.005):
                break
            step = now + move
            now = mixer.mix(step, move)
            # angles beyond a right one leave the half-plane
            now = np.where(np.abs(now[1]) < np.pi / 2, now, step)
            state = _complex(now, size)
        return image, change


def _polar(state: Messages) -> Real:
    """Logarithms of the sizes of ``i h`` and its angles, of shape (2, e + N): messages of all sizes count alike."""
    values = np.concatenate(state)
    return np.stack([np.log(values.real**2 + values.imag**2) / 2, np.arctan2(values.real, -values.imag)])


def _complex(polar: Real, size: int) -> Messages:
    """The messages back from :func:`_polar`; the last ``size`` are the columns'."""
    values = np.exp(polar[0]) * (np.sin(polar[1]) - 1j * np.cos(polar[1]))
    return Messages(values[:-size], values[-size:])


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
        gram[-1] = gram[:, -1] = [np.vdot(each, change) for each in self._changes]
        self._gram = gram
        solid = gram + np.diag(REGULAR * gram.diagonal() + TINY)
        shares = np.linalg.solve(solid, np.ones(count))
        return np.tensordot(shares / shares.sum(), self._steps, 1)
