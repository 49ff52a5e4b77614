"""Masked sums of low-rank terms: two Riccati equations, one from each end, as a boundary value problem.

Row i of an l x l matrix sees the columns j <= i. Term k joins them through ``N_k`` channels with variance
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
from typing import NamedTuple

import numpy as np

from bulkedge.arrays import Complex, Real
from bulkedge.laws.engine.two_point import Linear, lobatto, lobatto_middle

LAYER = 0.01
"""Width of the layer at the last rows, as a fraction of all, in which nodes are dense: small values live there."""


class Mesh(NamedTuple):
    """Places between 1 and l: m intervals in ``log i``, with the middle of each.

    Attributes
    ----------
    places : array of shape (2 m + 1,)
        Ends and middles of intervals, in increasing order; real numbers.
    steps : array of shape (m,)
        Lengths of the intervals in ``log i``.
    weights : array of shape (2 m + 1,)
        Simpson's weights for the mean over the tokens 1 to l.
    """

    places: Real
    steps: Real
    weights: Real


def mesh(tokens: int, intervals: int) -> Mesh:
    """Nodes that are even in ``log i - 3/2 log(1 + LAYER - i/l)``: dense at both ends.

    Parameters
    ----------
    tokens : int
        Number of tokens l.
    intervals : int
        Number of intervals m.

    Returns
    -------
    Mesh
        Of 2 m + 1 places.
    """
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


class Side(NamedTuple):
    """Groups of rows, or of columns, by their size.

    Attributes
    ----------
    shares : array of shape (places, groups)
        How many of the rows (columns) of a place are in each group.
    squares : array of shape (places, terms, groups)
        Squared sizes in each term.
    """

    shares: Real
    squares: Real

    def at(self, which: slice) -> Side:
        """The same at some of the places.

        Parameters
        ----------
        which : slice
            Of the places.

        Returns
        -------
        Side
            Of these places.
        """
        return Side(self.shares[which], self.squares[which])


class Local(NamedTuple):
    """The equations at n places and s points w, for k terms.

    Attributes
    ----------
    flow : array of shape (n, s, 2 k)
        Derivatives by ``log i`` of the unknowns, ``log p`` and ``log(1 - r)``.
    slope : array of shape (n, s, 2 k, 2 k)
        Their derivatives by the unknowns.
    mean : array of shape (n, s)
        Mean of h over the columns of a place.
    sources : pair of arrays of shape (n, s, k)
        ``E[b_k**2 h]``, and ``omega_k E[a_k**2 g]``.
    responses : pair of arrays of shape (n, s, k, 2 k)
        Their derivatives by the unknowns.
    """

    flow: Complex
    slope: Complex
    mean: Complex
    sources: tuple[Complex, Complex]
    responses: tuple[Complex, Complex]


@dataclass(frozen=True, eq=False)
class Masked:
    """The boundary value problem of the module.

    Attributes
    ----------
    grid : Mesh
        The places.
    tokens : int
        Number of tokens l.
    pulls : array of shape (places, terms)
        ``omega_k`` at each place.
    inverse_ranks : array of shape (terms,)
        ``1/N_k``; zero for noise.
    rows, columns : Side
        Their sizes.
    """

    grid: Mesh
    tokens: int
    pulls: Real
    inverse_ranks: Real
    rows: Side
    columns: Side

    @property
    def terms(self) -> int:
        """Number of terms k: there are as many unknowns on each side."""
        return len(self.inverse_ranks)

    def far(self, w: Complex) -> Complex:
        """The unknowns at points so large that rows and columns do not see each other: ``p = i/w``, and r is zero.

        Parameters
        ----------
        w : complex array of shape (s,)
            The points, of argument between 0 and pi.

        Returns
        -------
        complex array of shape (m + 1, s, 2 k)
            The unknowns at the ends of the intervals.
        """
        places = self.grid.places[::2]
        state = np.zeros((len(places), len(w), 2 * self.terms), dtype=complex)
        state[..., : self.terms] = (np.log(places)[:, None] - np.log(np.abs(w)) - 1j * np.angle(w))[..., None]
        return state

    def linearised(self, state: Complex, w: Complex) -> tuple[Linear, Complex]:
        """The discretised equations, linear about a state.

        Parameters
        ----------
        state : complex array of shape (m + 1, s, 2 k)
            The unknowns at the ends of the intervals.
        w : complex array of shape (s,)
            The points.

        Returns
        -------
        linear : Linear
            The equations of Newton's step.
        cauchy : complex array of shape (s,)
            The Cauchy transform of the state: the mean of h over all columns.
        """
        ends, middles = slice(None, None, 2), slice(1, None, 2)
        here = self._local(state, w, ends)
        middle = self._local(lobatto_middle(state, here.flow, self.grid.steps), w, middles)
        weights = self.grid.weights
        cauchy = np.tensordot(weights[ends], here.mean, 1) + np.tensordot(weights[middles], middle.mean, 1)
        inner = lobatto(state, (here.flow, here.slope), (middle.flow, middle.slope), self.grid.steps)
        k, eye = self.terms, np.eye(2 * self.terms)
        # one column lies before the first place, and half a row behind the last
        ratio = here.sources[0][0] * np.exp(-state[0, :, :k])
        first = 1 - ratio, ratio[..., None] * eye[:k] - here.responses[0][0] * np.exp(-state[0, :, :k, None])
        kept = np.exp(-state[-1, :, k:])
        ratio = (1 - here.sources[1][-1] / 2) * kept
        last = 1 - ratio, ratio[..., None] * eye[k:] + here.responses[1][-1] / 2 * kept[..., None]
        return Linear(*inner, first, last), cauchy

    def _local(self, state: Complex, w: Complex, which: slice) -> Local:
        """The equations at some of the places; see the module for the letters."""
        places, omega, k = self.grid.places[which, None, None], self.pulls[which, None, :], self.terms
        point = w[None, :, None]
        p, kept = np.exp(state[..., :k]), np.exp(state[..., k:])
        r, coupling = 1 - kept, self.inverse_ranks * point
        # feedback within a term: p/D and r/D, and their derivatives by both unknowns
        dressed = 1 / (1 - coupling * p * r)
        square = dressed**2
        by_p, by_r = p * square, -kept * square
        gain, back = coupling * p**2, coupling * r**2
        mean, h, h_out = _side(self.columns.at(which), r * dressed, point)
        _, g, g_out = _side(self.rows.at(which), omega * p * dressed, point)
        g, g_out = omega * g, omega[..., None] * g_out * omega[..., None, :]
        by_h = np.concatenate([h_out * (back * by_p)[..., None, :], h_out * by_r[..., None, :]], axis=-1)
        by_g = np.concatenate([g_out * by_p[..., None, :], g_out * (gain * by_r)[..., None, :]], axis=-1)
        up, down = places / p, places / kept
        flow = np.concatenate([up * (h + gain * g), down * (g + back * h)], axis=-1)
        first, last = by_h + gain[..., None] * by_g, by_g + back[..., None] * by_h
        slope = np.concatenate([up[..., None] * first, down[..., None] * last], axis=-2)
        # p and 1 - r in the equations themselves: those of log p are h/p + gain g/p
        terms = np.arange(k)
        slope[..., terms, terms] += up * (gain * g - h)
        slope[..., terms + k, terms + k] -= down * (g + back * h) + 2 * places * coupling * h * r
        return Local(flow, slope, mean, (h, g), (by_h, by_g))


def _side(side: Side, seen: Complex, point: Complex) -> tuple[Complex, Complex, Complex]:
    """The diagonal of the resolvent on one side, from what it sees of the other; n places, s points, k terms.

    Returns
    -------
    mean : array of shape (n, s)
        Mean of ``g = 1/(w (1 - sum_k a_k**2 seen_k))`` over the groups.
    sources : array of shape (n, s, k)
        ``E[a_k**2 g]``.
    responses : array of shape (n, s, k, k)
        Their derivatives by what is seen, ``E[a_k**2 a_j**2 w g**2]``.
    """
    n, k, groups = side.squares.shape
    g = 1 / (point * (1 - seen @ side.squares))
    shares = g * side.shares[:, None, :]
    turned = np.swapaxes(side.squares, 1, 2)
    pairs = (turned[..., :, None] * turned[..., None, :]).reshape(n, groups, k * k)
    responses = (point * g * shares @ pairs).reshape(*seen.shape, k)
    return shares.sum(axis=-1), shares @ turned, responses
