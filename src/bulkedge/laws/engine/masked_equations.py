"""Masked sums of low-rank terms: two Riccati equations, one from each end, as a boundary value problem.

Row i of a T x T matrix sees the columns j <= i. Term k joins them through ``N_k`` channels with variance
``omega_k(i)``; rows and columns fall into groups by their sizes a and b. With the diagonals ``z g`` and ``z h`` of the
resolvent at ``w = z**2``, which makes g, h, p and r Stieltjes transforms in w, and ``D = 1 - w p r/N``,

    p_k' =  E[b_k**2 h] + w omega_k E[a_k**2 g] p_k**2/N_k,        p = 0 on the left,
    r_k' = -omega_k E[a_k**2 g] - w E[b_k**2 h] r_k**2/N_k,        r = 0 on the right,
    1/g  =  w (1 - sum_k omega_k a_k**2 p_k/D_k),         1/h = w (1 - sum_k b_k**2 r_k/D_k)

(docs/theory/causal.md, "Heads of low rank behind a mask"). The last line closes the first two in every place by itself,
so the unknowns are p and r alone, in a two-point boundary value problem. They range over hundreds of orders of
magnitude, but their logarithms are smooth in ``log i``: the problem is posed for ``log p`` and ``log(1 - r)``, neither
of which vanishes in the upper half-plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import BoolArray, Complex, Real

Valued = tuple[Complex, Complex]  # values of equations and their derivatives
BLOCK = 2**17  # entries of the matrices of intervals that are made at once: two megabytes
DEPTHS = 80.0, 50.0, 30.0
"""How far below the logarithm of the variance the law begins to be represented: small values are hard to solve for."""
LAYER = 0.01
"""Width of the layer at the last rows, as a fraction of all, in which nodes are dense: small values live there."""


class LinearisedEquations(NamedTuple):
    """Equations of a step of Newton's method."""

    misses: Complex  # (m, s, 2 u) by how much the equation of each interval is not fulfilled
    before: Complex  # before, after: (m, s, 2 u, 2 u) its derivatives by the unknowns at the interval's start and stop
    after: Complex
    first: Valued  # first, last: the conditions at both ends, and their derivatives by the unknowns there
    last: Valued

    def step(self) -> Complex:
        """Solve for the step, by elimination from the first place to the last and substitution back."""
        # stable if solutions of the differential equation come either from the left or from the right
        u = self.first[0].shape[-1]
        value, slope = self.first
        found = np.linalg.solve(slope[..., :u], -np.concatenate([slope[..., u:], value[..., None]], axis=-1))
        affine, back = [found], []
        for miss, before, after in zip(self.misses, self.before, self.after, strict=True):
            moved = before[..., :u] @ affine[-1]
            matrix = np.concatenate([moved[..., :u] + before[..., u:], after[..., :u]], axis=-1)
            constant = miss[..., None] + moved[..., u:]
            found = np.linalg.solve(matrix, -np.concatenate([after[..., u:], constant], axis=-1))
            back.append(found[..., :u, :])
            affine.append(found[..., u:, :])
        value, slope = self.last
        moved = slope[..., :u] @ affine[-1]
        right = np.linalg.solve(moved[..., :u] + slope[..., u:], -(value[..., None] + moved[..., u:]))
        steps = np.empty((len(affine), *value.shape[:-1], 2 * u), dtype=complex)
        for k in range(len(affine) - 1, -1, -1):
            steps[k, :, u:] = right[..., 0]
            steps[k, :, :u] = (affine[k][..., :u] @ right + affine[k][..., u:])[..., 0]
            if k:
                right = back[k - 1][..., :u] @ right + back[k - 1][..., u:]
        return steps


def lobatto_middle(state: Complex, flow: Complex, steps: Real) -> Complex:
    """The state in the middle of each interval, by the cubic through values and derivatives at its ends."""
    length = steps[:, None, None]
    return np.asarray((state[1:] + state[:-1]) / 2 - length / 8 * (flow[1:] - flow[:-1]))


def lobatto(state: Complex, here: Valued, middle: Valued, steps: Real, into: tuple[Complex, Complex]) -> Complex:
    """Simpson's rule for the change over each interval: Lobatto's formula of order four, with its derivatives."""
    (flow, slope), (flow_middle, slope_middle) = here, middle
    length, diagonal = steps[:, None, None, None], np.arange(state.shape[-1])
    # the state in the middle changes by half of that at either end, and by an eighth of the length times their slopes
    shared = length / 3 * slope_middle
    for matrix, ends, sign in zip(into, (slope[:-1], slope[1:]), (-1.0, 1.0), strict=True):
        np.matmul(slope_middle, ends, out=matrix)
        np.multiply(matrix, sign * length**2 / 12, out=matrix)
        np.subtract(matrix, shared, out=matrix)
        np.subtract(matrix, length / 6 * ends, out=matrix)
        matrix[..., diagonal, diagonal] += sign
    length = steps[:, None, None]
    return np.asarray(state[1:] - state[:-1] - length / 6 * (flow[1:] + 4 * flow_middle + flow[:-1]))


class Mesh(NamedTuple):
    """Places between 1 and T: m intervals in ``log i``, with the middle of each."""

    places: Real  # (2 m + 1,) ends and middles of intervals, in increasing order; real numbers
    steps: Real  # (m,) lengths of the intervals in ``log i``
    weights: Real  # (2 m + 1,) Simpson's weights for the mean over the tokens 1 to T


def mesh(tokens: int, intervals: int) -> Mesh:
    """Nodes that are even in ``log i - 3/2 log(1 + LAYER - i/T)``: dense at both ends."""
    near_the_end = np.log1p(-np.geomspace(0.9, 1e-5, 3000))
    fine = np.unique(np.concatenate([np.linspace(-np.log(tokens), near_the_end[0], 2000), near_the_end, [0.0]]))
    spacing = fine - 1.5 * np.log(1 + LAYER - np.exp(fine))
    ends = np.interp(np.linspace(spacing[0], spacing[-1], intervals + 1), spacing, fine) + np.log(tokens)
    ends[[0, -1]] = 0.0, np.log(tokens)
    steps = np.diff(ends)
    logs = np.empty(2 * intervals + 1)
    logs[::2], logs[1::2] = ends, (ends[1:] + ends[:-1]) / 2
    places, weights = np.exp(logs), np.zeros(len(logs))
    for offset, share in ((0, 1), (1, 4), (2, 1)):
        weights[offset : offset + 2 * intervals - 1 : 2] += share * steps / 6
    weights *= places
    # the first token lies before the first place, and all must count exactly
    weights *= (tokens - 1) / weights.sum()
    weights[0] += 1
    return Mesh(places, steps, weights / tokens)


class SizeGroups(NamedTuple):
    """Groups of rows, or of columns, by their size."""

    shares: Real  # (places, groups) how many of the rows (columns) of a place are in each group
    squares: Real  # (places, terms, groups) squared sizes in each term

    def at(self, which: slice) -> SizeGroups:
        """The same at some of the places."""
        return SizeGroups(self.shares[which], self.squares[which])


class LocalEquations(NamedTuple):
    """The equations at n places and s points w, for k terms."""

    flow: Complex  # (n, s, 2 k) derivatives by ``log i`` of the unknowns, ``log p`` and ``log(1 - r)``
    slope: Complex  # (n, s, 2 k, 2 k) their derivatives by the unknowns
    mean: Complex  # (n, s) mean of h over the columns of a place
    # first, last: ``E[b_k**2 h]`` at the first of the places, and ``omega_k E[a_k**2 g]`` at the last, with their
    # derivatives by the unknowns
    first: tuple[Complex, Complex]
    last: tuple[Complex, Complex]


@dataclass(frozen=True, eq=False)
class MaskedProblem:
    """The boundary value problem of the module."""

    grid: Mesh  # the places
    tokens: int  # number of tokens T
    pulls: Real  # (places, terms) ``omega_k`` at each place
    inverse_ranks: Real  # (terms,) ``1/N_k``; zero for noise
    rows: SizeGroups  # rows, columns: their sizes
    columns: SizeGroups
    blunt: bool = False  # whether the density has no single edge, or features that are sharp in place of the edge

    depths = DEPTHS

    @property
    def terms(self) -> int:
        """Number of terms k: there are as many unknowns on each side."""
        return len(self.inverse_ranks)

    def far(self, w: Complex) -> Complex:
        """The unknowns at points so large that rows and columns do not see each other: ``p = i/w``, and r is zero."""
        places = self.grid.places[::2]
        state = np.zeros((len(places), len(w), 2 * self.terms), dtype=complex)
        state[..., : self.terms] = (np.log(places)[:, None] - np.log(np.abs(w)) - 1j * np.angle(w))[..., None]
        return state

    @property
    def middle(self) -> float:
        """Logarithm of the variance of the last row."""
        return float(np.log(self.pulls[-1].sum() * self.tokens))

    @property
    def top(self) -> float:
        """A logarithm beyond all values."""
        columns = np.einsum("pkg,pg->pk", self.columns.squares, self.columns.shares)
        spread = self.columns.squares.max() / columns.max()
        rows = (self.pulls * columns) * self.grid.places[:, None]
        # where no row stands out, terms of low rank reach furthest: (1 + sqrt(T/N))**2 times the variance
        low_rank = self.grid.weights @ rows @ (1 + np.sqrt(self.tokens * self.inverse_ranks)) ** 2
        return float(np.log(4 * max(rows.sum(axis=1).max(), low_rank) * spread**0.5)) + 1

    def solve(self, state: Complex, logs: Complex, tolerance: float) -> tuple[Complex, Complex, BoolArray]:
        """Unknowns and Cauchy transform at ``exp(logs)``, and where they are found: Newton's method, from a start."""
        state, cauchy = state.copy(), np.full(len(logs), np.nan + 0j)
        active, done = np.arange(len(logs)), np.zeros(len(logs), dtype=bool)
        with np.errstate(all="ignore"):  # a point that runs away ends as not done
            for _ in range(20):
                linear, cauchy[active] = self.linearised(state[:, active], np.exp(logs[active]))
                try:
                    step = linear.step()
                except np.linalg.LinAlgError:
                    break
                largest = np.abs(step).max(axis=(0, 2))
                state[:, active] += step * np.minimum(1.0, 1.5 / largest)[:, None]
                done[active] = largest < tolerance
                active = active[(largest >= tolerance) & (largest < 1e6)]
                if not len(active):
                    break
        return state, cauchy, done

    def linearised(self, state: Complex, w: Complex) -> tuple[LinearisedEquations, Complex]:
        """The discretised equations, linear about a state."""
        count, width = len(self.grid.steps), 2 * self.terms
        misses = np.empty((count, len(w), width), dtype=complex)
        before, after = (np.empty((*misses.shape, width), dtype=complex) for _ in range(2))
        cauchy, blocks = np.zeros(len(w), dtype=complex), []
        # intervals go in blocks whose matrices stay in the processor's cache
        size = max(1, BLOCK // (len(w) * width**2))
        for start in range(0, count, size):
            part = slice(start, min(start + size, count))
            here, misses[part], mean = self._block(state, w, part, (before[part], after[part]))
            cauchy += mean
            blocks.append(here)
        k, eye = self.terms, np.eye(width)
        # one column lies before the first place, and half a row behind the last
        source, response = blocks[0].first
        ratio = source * np.exp(-state[0, :, :k])
        first = 1 - ratio, ratio[..., None] * eye[:k] - response * np.exp(-state[0, :, :k, None])
        source, response = blocks[-1].last
        kept = np.exp(-state[-1, :, k:])
        ratio = (1 - source / 2) * kept
        last = 1 - ratio, ratio[..., None] * eye[k:] + response / 2 * kept[..., None]
        return LinearisedEquations(misses, before, after, first, last), cauchy

    def _block(
        self, state: Complex, w: Complex, part: slice, into: tuple[Complex, Complex]
    ) -> tuple[LocalEquations, Complex, Complex]:
        """Some of the intervals: what holds at their ends, by how much they miss, their part of the transform."""
        # derivatives go into the two arrays; the stop of an interval counts with the next one, but for the last
        start, stop, weights = part.start, part.stop, self.grid.weights
        within, steps = state[start : stop + 1], self.grid.steps[part]
        here = self._local(within, w, slice(2 * start, 2 * stop + 1, 2))
        middle = self._local(lobatto_middle(within, here.flow, steps), w, slice(2 * start + 1, 2 * stop, 2))
        own = weights[2 * start : 2 * stop + 1 : 2].copy()
        own[-1] *= stop == len(self.grid.steps)
        mean = np.tensordot(own, here.mean, 1) + np.tensordot(weights[2 * start + 1 : 2 * stop : 2], middle.mean, 1)
        misses = lobatto(within, (here.flow, here.slope), (middle.flow, middle.slope), steps, into)
        # matrices of the whole block are not kept
        return here._replace(slope=here.slope[:0].copy()), misses, mean

    def _local(self, state: Complex, w: Complex, which: slice) -> LocalEquations:
        """The equations at some of the places; see the module for the letters."""
        # points are the last axis inside: loops over a last axis of few terms are slow
        places, omega, k = self.grid.places[which, None, None], self.pulls[which, :, None], self.terms
        unknown = np.exp(np.ascontiguousarray(state.swapaxes(1, 2)))
        p, kept = unknown[:, :k], unknown[:, k:]
        r, coupling = 1 - kept, self.inverse_ranks[:, None] * w
        # feedback within a term: p/D and r/D, and their derivatives by both unknowns
        dressed = 1 / (1 - coupling * p * r)
        square = dressed**2
        by_p, by_r = p * square, -kept * square
        gain, back = coupling * p**2, coupling * r**2
        mean, h, h_out = _side(self.columns.at(which), self._pairs[1][which], r * dressed, w)
        _, g, g_out = _side(self.rows.at(which), self._pairs[0][which], omega * p * dressed, w)
        g, g_out = omega * g, (omega[:, :, None] * omega[:, None]) * g_out
        up, down = places / p, places / kept
        flow = np.concatenate([up * (h + gain * g), down * (g + back * h)], axis=1)
        # h changes by h_out (back by_p, by_r), g by g_out (by_p, gain by_r), for changes of log p and of log(1 - r)
        slope = np.empty((len(flow), 2 * k, 2 * k, len(w)), dtype=complex)
        through = gain[:, :, None] * g_out
        slope[:, :k, :k] = (h_out * back[:, None] + through) * (up[:, :, None] * by_p[:, None])
        slope[:, :k, k:] = (h_out + through * gain[:, None]) * (up[:, :, None] * by_r[:, None])
        through = back[:, :, None] * h_out
        slope[:, k:, :k] = (g_out + through * back[:, None]) * (down[:, :, None] * by_p[:, None])
        slope[:, k:, k:] = (g_out * gain[:, None] + through) * (down[:, :, None] * by_r[:, None])
        # p and 1 - r in the equations themselves: those of log p are h/p + gain g/p
        terms = np.arange(k)
        slope[:, terms, terms] += up * (gain * g - h)
        slope[:, terms + k, terms + k] -= down * (g + back * h) + 2 * places * coupling * h * r
        first = np.concatenate([h_out[0] * (back * by_p)[0], h_out[0] * by_r[0]], axis=1)
        last = np.concatenate([g_out[-1] * by_p[-1], g_out[-1] * (gain * by_r)[-1]], axis=1)
        return LocalEquations(
            np.ascontiguousarray(flow.swapaxes(1, 2)),
            np.ascontiguousarray(slope.transpose(0, 3, 1, 2)),
            mean,
            (h[0].T, first.transpose(2, 0, 1)),
            (g[-1].T, last.transpose(2, 0, 1)),
        )

    @cached_property
    def _pairs(self) -> tuple[Real, Real]:
        """Products of the squared sizes in two terms, for rows and columns: each of shape (places, k * k, groups)."""
        rows, columns = (
            (side.squares[:, :, None] * side.squares[:, None]).reshape(len(side.squares), -1, side.squares.shape[-1])
            for side in (self.rows, self.columns)
        )
        return rows, columns


def _side(side: SizeGroups, pairs: Real, seen: Complex, w: Complex) -> tuple[Complex, Complex, Complex]:
    """The diagonal of the resolvent on one side, from what it sees of the other; n places, k terms, s points."""
    # shapes: pairs, products of squared sizes, (n, k * k, groups); seen (n, k, s)
    n, k, _ = side.squares.shape
    g = 1 / (w * (1 - _product(side.squares.swapaxes(1, 2), seen)))
    shares = g * side.shares[:, :, None]
    responses = _product(pairs, w * g * shares).reshape(n, k, k, -1)
    return shares.sum(axis=1), _product(side.squares, shares), responses


def _product(matrices: Real, columns: Complex) -> Complex:
    """Products of real matrices ``(n, i, j)`` with complex ones ``(n, j, s)``, as products of real matrices."""
    return np.asarray((matrices @ np.ascontiguousarray(columns).view(float)).view(complex))
