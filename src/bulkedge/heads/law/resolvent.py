"""The resolvent of a sum of products of sizes: signs forgotten, rows and columns with weights of their own.

Row i and column j of a T x T matrix are joined by ``sum_n s_n F_in G_jn/sqrt(T)`` and noise of variance ``V_ij/T``,
with ``F**2``, ``G**2`` and V known and signs random. Over rows and columns, the diagonals g and h of its resolvent at
``z**2`` solve

    g_i = 1/(z - sum_n s_n**2 F_in**2 h_n/d_n - mean_j V_ij h_j),       h_n = mean_j G_jn**2 h_j,
    h_j = 1/(z - sum_n s_n**2 G_jn**2 g_n/d_n - mean_i V_ij g_i),       g_n = mean_i F_in**2 g_i,

with ``d_n = 1 - T s_n**2 g_n h_n`` (docs/theory/anisotropic.md). Two things are more than sizes. Row i and column i may
be the same token, whose query and key are not independent: then the signs of ``F_in G_in`` are kept, and each token
has a 2 x 2 resolvent. And an entry of the noise may be so large that a row or column consists of little else: then it
is an edge, with the resolvents of its ends *without it* (the cavity equations of sparse matrices). All is solved off
the axis.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import BoolArray, Complex, Index, Real
from bulkedge.support.errors import AccuracyWarning, UnresolvedError

MOST = 4000  # steps after which a point is given up; only averages are taken in the second half of them
HEAVY = 0.05
"""An entry whose variance times ``|g h|`` is larger is an edge: at most twenty are in a row, since ``|g|`` times the
whole sum is below one; each of the others is wrong by the square of that."""


class DiagonalTerms(NamedTuple):
    """What tokens are to themselves: row i and column i are of token i."""

    products: Real  # (n, c): ``F_in G_in``, with its sign, times how often token i is repeated
    # (c,): what the terms leave of the entries (i, i) of the matrix, ``sqrt(T)`` and the number of repeats included
    rest: Real


class Edges(NamedTuple):
    """Entries that are taken one by one: their rows and columns, and their variances with all factors."""

    rows: Index
    columns: Index
    variances: Real


NO_EDGES = Edges(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros(0))


@dataclass(frozen=True)
class Equations:
    """The equations of one head, and one image under them."""

    # rows of a state: g, h, cavities of the edges' rows, of their columns, and elements between both sides of one token

    squares: Real  # (n,): ``s**2`` of the terms
    rows: Real  # (n, r): ``F**2`` at the distinct queries, times how often each is repeated
    columns: Real  # (n, c): ``G**2`` at the distinct keys, likewise
    noise: Real  # (r, c): V, times both numbers of repeats
    tokens: int  # number of tokens T
    total: int  # what sums over rows or columns are divided by to be means: T, or the number of sampled tokens
    own: DiagonalTerms | None = None  # given if row i and column i are the same token
    edges: Edges = NO_EDGES  # entries that are not in ``noise``

    def start(self, z: Complex) -> Complex:
        """The state of a matrix of zeros."""
        diagonal = sum(self.noise.shape) + 2 * len(self.edges.variances)
        return np.concatenate([np.ones((diagonal, len(z))) / z, np.zeros((self._pairs, len(z)), dtype=complex)])

    @property
    def _pairs(self) -> int:
        """How many rows are the same token as a column: all or none."""
        return 0 if self.own is None else len(self.own.rest)

    def _parts(self, state: Complex) -> list[Complex]:
        """What a state with any number of edges consists of: g, h, cavities, elements between row and column."""
        rows, columns = self.noise.shape
        return np.split(state, [rows, rows + columns, len(state) - self._pairs])

    def without_edges(self, state: Complex) -> Complex:
        """A state of these equations, which have no edges, from one of equations of the same size with edges."""
        g, h, _, between = self._parts(state)
        return np.concatenate([g, h, between])

    def turn(self, state: Complex, turns: Complex) -> Complex:
        """States at points off the imaginary axis, guessed from one on it."""
        diagonal, between = np.split(state, [len(state) - self._pairs])
        start = diagonal * turns
        start = np.where(start.imag < 0, start, start.real - 1e-3j * np.abs(start))
        # elements between row and column are real on the axis; kept so, they are possible whatever g and h are
        return np.concatenate([start, np.repeat(between.real, len(turns), axis=1).astype(complex)])

    def with_edges(self, state: Complex) -> tuple[Equations, Complex]:
        """The same head with its heavy entries taken one by one."""
        g, h, _, between = self._parts(state)
        sizes = np.abs(g), np.abs(h)
        rows, columns = np.nonzero(self.noise / self.total * (sizes[0] * sizes[1].T) > HEAVY)
        rest = self.noise.copy()
        rest[rows, columns] = 0.0
        edges = Edges(rows, columns, self.noise[rows, columns] / self.total)
        guess = np.concatenate([g, h, g[rows], h[columns], between])
        return replace(self, noise=rest, edges=edges), guess

    def image(self, state: Complex, z: Complex) -> Complex:
        """Right-hand sides of the equations."""
        g, h, cavities, between = self._parts(state)
        strengths = np.sqrt(self.squares / self.tokens)[:, None]
        rows, columns = (_times(*each) * (self.tokens / self.total) for each in ((self.rows, g), (self.columns, h)))
        lead = 1.0 if self.own is None else 1 - strengths * _times(self.own.products, between)
        dressed = strengths / (lead**2 - strengths**2 * rows * columns)
        pull = _times(self.rows.T, strengths * dressed * columns) + _times(self.noise, h) / self.total
        push = _times(self.columns.T, strengths * dressed * rows) + _times(self.noise.T, g) / self.total
        # each end of an edge is pulled at by the cavity of the other end
        edges, (at_rows, at_columns) = self.edges, np.split(cavities, 2)
        by_columns, by_rows = (edges.variances[:, None] * each for each in (at_columns, at_rows))
        np.add.at(pull, edges.rows, by_columns)
        np.add.at(push, edges.columns, by_rows)
        left, right = z - pull, z - push
        if self.own is None:
            g, h = 1 / left, 1 / right
        else:
            joined = _times(self.own.products.T, dressed * lead) + self.own.rest[:, None]
            determinant = left * right - joined**2
            g, h, between = right / determinant, left / determinant, joined / determinant
        without = 1 / (1 / g[edges.rows] + by_columns), 1 / (1 / h[edges.columns] + by_rows)
        return np.concatenate([g, h, *without, between])

    def outside(self, state: Complex) -> BoolArray:
        """Where a state is none of a resolvent, whose imaginary part is negative."""
        g, h, cavities, between = (each.imag for each in self._parts(state))
        wrong: BoolArray = ~np.all(np.isfinite(state), axis=0)
        for each in (g, h, cavities):
            wrong |= np.any(each >= 0, axis=0)
        if self.own is not None:  # the imaginary part of a 2 x 2 resolvent is negative definite
            wrong |= np.any(between**2 >= g * h, axis=0)
        return wrong

    def solve(self, z: Complex, start: Complex, tolerance: float) -> Complex:
        """The solution at points off the axis."""
        found, missed = _anderson(self, z, start, tolerance, MOST)
        if len(missed):
            self._check_unsolved(found[:, missed], z[missed], tolerance)
        return found

    def _check_unsolved(self, state: Complex, z: Complex, tolerance: float) -> None:
        """Warn of points whose mean change is within ten times the tolerance, and refuse others."""
        g, h, _, _ = self._parts(np.abs(self.image(state, z) - state))
        left = np.mean(np.concatenate([g, h]), axis=0) * np.abs(z)
        where = f"at |z| = {np.abs(z[np.argmax(left)]):.2g} the equations of a head were"
        if not np.max(left) <= 10 * tolerance:
            raise UnresolvedError(f"{where} not solved: they change the state by {np.max(left):.2g} in the mean")
        warnings.warn(f"{where} solved to {np.max(left):.1g} in the mean only", AccuracyWarning, stacklevel=3)

    def approach(self, z: Complex, start: Complex, tolerance: float, steps: int) -> Complex:
        """As :meth:`solve`, but only so many steps: what was reached by then is returned."""
        return _anderson(self, z, start, tolerance, steps)[0]


def _times(matrix: Real, state: Complex) -> Complex:
    """A real matrix times complex columns, as one product of real ones."""
    flat = np.ascontiguousarray(state).view(float)
    return np.ascontiguousarray(matrix @ flat).view(complex)


def _anderson(equations: Equations, z: Complex, start: Complex, tolerance: float, most: int) -> tuple[Complex, Index]:
    """Fixed points of the equations by Anderson's accelerated iteration, and the numbers of the columns not solved."""
    # a step to what is no state of a resolvent is replaced by an average of the last state and its image
    result, active, state = start.copy(), np.arange(start.shape[1]), start
    images: list[Complex] = []
    changes: list[Complex] = []
    for step in range(most):
        if step % 40 == 0:  # in case they lead nowhere
            images, changes = [], []
        mapped = equations.image(state, z[active])
        change = mapped - state
        done = np.max(np.abs(change), axis=0) * np.abs(z[active]) < tolerance
        if done.any():
            result[:, active[done]] = mapped[:, done]
            active, mapped, change, state = active[~done], mapped[:, ~done], change[:, ~done], state[:, ~done]
            images, changes = [each[:, ~done] for each in images], [each[:, ~done] for each in changes]
        if not len(active):
            return result, active
        mean = (mapped + state) / 2
        images, changes = [*images[-6:], mapped], [*changes[-6:], change]
        state = _mix(images, changes) if len(images) > 1 else mean
        # averages alone always converge, however slowly: the last resort for what did not when accelerated
        wrong = equations.outside(state) | (step > MOST // 2)
        state[:, wrong] = mean[:, wrong]
    result[:, active] = state
    return result, active


def _mix(images: list[Complex], changes: list[Complex]) -> Complex:
    """The combination of images whose changes, combined likewise, are least."""
    steps = np.stack([changes[-1] - each for each in changes[:-1]])
    moves = np.stack([images[-1] - each for each in images[:-1]])
    gram = np.einsum("anp,bnp->pab", steps.conj(), steps)
    right = np.einsum("anp,np->pa", steps.conj(), changes[-1])
    floor = 1e-10 * np.einsum("paa->p", gram).real + 1e-300
    gram = gram + floor[:, None, None] * np.eye(len(steps))
    weights = np.linalg.solve(gram, right[..., None])[..., 0]
    mixed: Complex = images[-1] - np.einsum("pa,anp->np", weights, moves)
    return mixed
