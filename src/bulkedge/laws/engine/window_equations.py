"""Sums of low-rank terms behind a sliding window, discretised: an operator for each term instead of a number.

Row i of a matrix sees the columns ``i - width < j <= i``; N channels join them with variance ``omega(i)`` in each term.
With W the mask, H and G the diagonals of ``E[b**2 h]`` and ``omega E[a**2 g]``, ``w g`` and ``w h`` those of the
resolvent at w,

    p = diag W (1/H - w W'GW/N)**-1 W',          r = diag W' (1/G - w WHW'/N)**-1 W,
    1/g = w (1 - sum_k omega_k a_k**2 p_k),      1/h = w (1 - sum_k b_k**2 r_k)

(docs/theory/windows.md). Places fall into stretches of one window each, with the same cells in all: a row of a stretch
sees the cells before it there, and those after it in the stretch before. So the matrices are block tridiagonal.

The equations are those of a finite matrix of Gaussian blocks: its transform is that of a law, whatever the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bulkedge.laws.engine.masked_equations import SizeGroups
from bulkedge.support.arrays import BoolArray, Complex, Real

MEMORY = 8  # steps that the next one is extrapolated from
MIXING = 0.7  # share of what was missed in the next iterate
SLOW = 0.1  # miss over error: next to zero the fixed point attracts slowly
MOST_STEPS = 200
SMALLEST = 1e-3  # weight of cells that lie beyond the ends, over their size: it keeps matrices regular


@dataclass(frozen=True, eq=False)
class WindowProblem:
    """The equations of the module; places are numbered stretch by stretch."""

    depths: tuple[float, ...]  # how far below the variance the law begins to be represented, if it can be
    tokens: int  # number of tokens T, that is of rows and of columns
    # row_weights, column_weights: (stretches, cells) how many of the rows and of the columns are in each cell
    row_weights: Real
    column_weights: Real
    pulls: Real  # (places, terms) ``omega_k`` at each place
    inverse_ranks: Real  # (terms,) ``1/N_k``; zero for noise
    rows: SizeGroups  # rows, columns: their sizes, for all places alike
    columns: SizeGroups

    blunt = True  # rows at the ends see fewer columns, and reach further than the others

    @property
    def terms(self) -> int:
        """Number of terms k: there are as many unknowns on each side."""
        return len(self.inverse_ranks)

    @property
    def middle(self) -> float:
        """Logarithm of the variance of most rows."""
        return float(np.median(self._logs_of_variance))

    @property
    def top(self) -> float:
        """A logarithm beyond all values."""
        return float(np.log(4) + self._logs_of_variance.max()) + 1

    @property
    def _logs_of_variance(self) -> Real:
        seen = sum(kept.sum(axis=1) for kept in self._kernels) * self.row_weights.max()
        return np.log((self.pulls.sum(axis=1) * np.tile(seen, len(self.row_weights)))[self.row_weights.ravel() > 1e-3])

    @cached_property
    def _kernels(self) -> tuple[Real, Real]:
        """Which cells a row sees, in its own stretch and in the one before: half of the cell that it ends in."""
        eye, every = np.eye(self.row_weights.shape[1]), np.ones((self.row_weights.shape[1],) * 2)
        return np.tril(every, -1) + eye / 2, np.triu(every, 1) + eye / 2

    def far(self, w: Complex) -> Complex:
        """The unknowns at points so large that rows and columns do not see each other."""
        weights = np.tile(self.column_weights[..., None] + 0j, (len(w), 1, 1, self.terms)) / w[:, None, None, None]
        p = _seen(self._kernels, weights)
        state = np.zeros((weights[0, ..., 0].size, len(w), 2 * self.terms), dtype=complex)
        state[..., : self.terms] = np.log(p).reshape(len(w), -1, self.terms).swapaxes(0, 1)
        return state

    def solve(self, state: Complex, logs: Complex, tolerance: float) -> tuple[Complex, Complex, BoolArray]:
        """Unknowns and Cauchy transform at ``exp(logs)``, and where they are found: a fixed point, by Anderson."""
        # Walker and Ni (2011): the next iterate is the combination of the last ones whose residual is least
        shape, w = state.shape, np.exp(logs)
        x, cauchy = state.swapaxes(0, 1).reshape(len(w), -1).copy(), np.full(len(w), np.nan + 0j)
        active, done = np.arange(len(w)), np.zeros(len(w), dtype=bool)
        points, misses = (np.zeros((len(w), 0, x.shape[1]), dtype=complex) for _ in range(2))
        with np.errstate(all="ignore"):  # a point that runs away ends as not done
            for _ in range(MOST_STEPS):
                image, cauchy[active] = self._image(x[active].reshape(-1, shape[0], shape[2]), w[active])
                miss = image.reshape(len(active), -1) - x[active]
                points = np.concatenate([points[:, -MEMORY:], x[active, None]], axis=1)
                misses = np.concatenate([misses[:, -MEMORY:], miss[:, None]], axis=1)
                largest = np.abs(miss).max(axis=1)
                x[active] = _extrapolated(points, misses)
                done[active] = largest < SLOW * tolerance
                kept = (largest >= SLOW * tolerance) & np.isfinite(x[active]).all(axis=1)
                active, points, misses = active[kept], points[kept], misses[kept]
                if not len(active):
                    break
        return x.reshape(len(w), shape[0], shape[2]).swapaxes(0, 1), cauchy, done

    def _image(self, state: Complex, w: Complex) -> tuple[Complex, Complex]:
        """What the unknowns of each point make of themselves, and the Cauchy transform: (points, places, 2 terms)."""
        unknown, k = np.exp(state), self.terms
        p, r, over_w = unknown[..., :k], 1 - unknown[..., k:], 1 / w[:, None, None]
        groups = self.rows, self.columns
        g, h = (over_w / (1 - seen @ side.squares[0]) for side, seen in zip(groups, (self.pulls * p, r), strict=True))
        out = [
            ((each * side.shares[0]) @ side.squares[0].T * weights.ravel()[:, None]).reshape(
                len(w), *weights.shape, self.terms
            )
            for each, side, weights in zip((g, h), groups, (self.row_weights, self.column_weights), strict=True)
        ]
        cauchy = ((h @ self.columns.shares[0]) @ self.column_weights.ravel()) / self.column_weights.sum()
        into_rows, into_columns = self._incoming(out[0] * self.pulls.reshape(*self.row_weights.shape, k), out[1], w)
        image = np.concatenate([np.log(into_rows), np.log(1 - into_columns)], axis=-1)
        return image.reshape(len(w), -1, 2 * k), cauchy

    def _incoming(self, g: Complex, h: Complex, w: Complex) -> tuple[Complex, Complex]:
        """Both fields of each term, p and r, of shape (points, stretches, cells, terms)."""
        back = [kernel.T for kernel in self._kernels]
        p, r = _seen(self._kernels, h), _seen(back, g, forwards=False)
        # terms of low rank pass on what comes in; the square of a cell's half is a fourth, and the rest is noise
        rest = [kernel - kernel**2 for kernel in self._kernels]
        for k in np.flatnonzero(self.inverse_ranks):
            part = slice(k, k + 1)
            passed = through_channels(self._kernels, g[..., k], h[..., k], self.inverse_ranks[k] * w)
            p[..., k] = passed[0] + _seen(rest, h[..., part])[..., 0]
            r[..., k] = passed[1] + _seen([each.T for each in rest], g[..., part], forwards=False)[..., 0]
        return p, r


def _seen(kernels: Sequence[Real], values: Complex, *, forwards: bool = True) -> Complex:
    """Sums over the cells that are seen, in the same stretch and in the one before (or after) it."""
    own, other = (_product(kernel, values) for kernel in kernels)
    if forwards:
        own[:, 1:] += other[:, :-1]
    else:
        own[:, :-1] += other[:, 1:]
    return own


def _product(matrix: Real, values: Complex) -> Complex:
    """A real matrix times complex ones, by real arithmetic."""
    return np.asarray((matrix @ np.ascontiguousarray(values).view(float)).view(complex))


def through_channels(kernels: tuple[Real, Real], g: Complex, h: Complex, c: Complex) -> tuple[Complex, Complex]:
    """Both fields of a term of low rank, each of shape (points, stretches, cells)."""
    # the inverse of 1 - c sqrt(G) W H W' sqrt(G), block tridiagonal: by elimination from the last stretch
    (own, before), root, c = kernels, np.sqrt(g), c[:, None, None, None]
    seen = (own * h[..., None, :]) @ own.T
    seen[:, 1:] += (before * h[:, :-1, None, :]) @ before.T
    matrix = np.eye(len(own)) - c * root[..., :, None] * seen * root[..., None, :]
    beside = -c * root[:, 1:, :, None] * ((before * h[:, :-1, None, :]) @ own.T) * root[:, :-1, None, :]
    across = beside.swapaxes(-1, -2)
    stretches = range(g.shape[1])
    inverse = [np.linalg.inv(matrix[:, -1])]
    for a in stretches[-2::-1]:
        inverse.insert(0, np.linalg.inv(matrix[:, a] - across[:, a] @ inverse[0] @ beside[:, a]))
    found, linked = np.empty_like(matrix), np.empty_like(beside)
    found[:, 0] = inverse[0]
    for a in stretches[1:]:
        pushed = inverse[a] @ beside[:, a - 1]
        linked[:, a - 1] = -pushed @ found[:, a - 1]
        found[:, a] = inverse[a] - linked[:, a - 1] @ (across[:, a - 1] @ inverse[a])
    p = (np.diagonal(found, axis1=-2, axis2=-1) - 1) / (c[..., 0] * g)
    found *= root[..., :, None] * root[..., None, :]
    linked *= root[:, 1:, :, None] * root[:, :-1, None, :]
    r = ((found @ own) * own).sum(axis=-2)
    r[:, :-1] += ((found[:, 1:] @ before + 2 * linked @ own) * before).sum(axis=-2)
    return p, r


def _extrapolated(points: Complex, misses: Complex) -> Complex:
    """The next iterate from the last ones and what they missed; both of shape (points, steps, unknowns)."""
    if points.shape[1] == 1:
        return np.asarray(points[:, 0] + misses[:, 0] / 2)
    moved, gained = np.diff(points, axis=1), np.diff(misses, axis=1)
    gram = gained.conj() @ gained.swapaxes(1, 2)
    scale = np.einsum("pii->pi", gram).real.max(axis=1)
    gram += 1e-13 * scale[:, None, None] * np.eye(gram.shape[1])
    share = np.linalg.solve(gram, gained.conj() @ misses[:, -1, :, None])[..., 0]
    new = points[:, -1] + MIXING * misses[:, -1] - ((moved + MIXING * gained) * share[..., None]).sum(axis=1)
    return np.asarray(new)
