"""The resolvent of a sum of products of sizes alone: signs forgotten, rows and columns with weights of their own.

Row i and column j of an l x l matrix are joined by ``sum_n s_n F_in G_jn/sqrt(l)`` and noise of variance ``V_ij/l``,
with ``F**2``, ``G**2`` and V known and signs random. Over rows and columns, the diagonals g and h of its resolvent at
``z**2`` solve

    g_i = 1/(z - sum_n s_n**2 F_in**2 h_n/d_n - mean_j V_ij h_j),       h_n = mean_j G_jn**2 h_j,
    h_j = 1/(z - sum_n s_n**2 G_jn**2 g_n/d_n - mean_i V_ij g_i),       g_n = mean_i F_in**2 g_i,

with ``d_n = 1 - l s_n**2 g_n h_n`` (docs/theory/channel.md). They are solved off the axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bulkedge.arrays import Complex, Index, Real
from bulkedge.errors import UnresolvedError

MEMORY = 6
"""Steps that Anderson's acceleration looks back on."""
RESTART = 40
"""It forgets them after so many, in case they lead nowhere."""
MOST = 4000
SLACK = 100.0
"""After so many steps a point is taken whose change is within this factor of the tolerance."""


@dataclass(frozen=True)
class Equations:
    """The equations of one head, and one image under them.

    Attributes
    ----------
    squares : array of shape (n,)
        ``s**2`` of the terms.
    rows : array of shape (n, r)
        ``F**2`` at the distinct queries, times how often each is repeated.
    columns : array of shape (n, c)
        ``G**2`` at the distinct keys, likewise.
    noise : array of shape (r, c)
        V, times both numbers of repeats.
    tokens : int
        Number of tokens l.
    total : int
        What sums over rows or columns are divided by to be means: l, or the number of sampled tokens.
    """

    squares: Real
    rows: Real
    columns: Real
    noise: Real
    tokens: int
    total: int

    def image(self, state: Complex, z: Complex) -> Complex:
        """Right-hand sides of the equations.

        Parameters
        ----------
        state : array of shape (r + c, p)
            g over h, at each of p points.
        z : array of shape (p,)
            The points.

        Returns
        -------
        array of shape (r + c, p)
            What the equations make of them.
        """
        count = self.rows.shape[1]
        g, h = state[:count], state[count:]
        squares = self.squares[:, None]
        rows, columns = _times(self.rows, g) / self.total, _times(self.columns, h) / self.total
        dressed = squares / (1 - self.tokens * squares * rows * columns)
        pull = _times(self.rows.T, dressed * columns) + _times(self.noise, h) / self.total
        push = _times(self.columns.T, dressed * rows) + _times(self.noise.T, g) / self.total
        return 1 / (z - np.concatenate([pull, push]))

    def solve(self, z: Complex, start: Complex, tolerance: float) -> Complex:
        """The solution at points off the axis.

        Parameters
        ----------
        z : array of shape (p,)
            Points with positive real and imaginary part, or on the imaginary axis.
        start : array of shape (r + c, p)
            First guess: g over h, with negative imaginary parts.
        tolerance : float
            Largest change of any ``|z| g`` or ``|z| h`` under the equations that counts as solved.

        Returns
        -------
        array of shape (r + c, p)
            g over h.

        Raises
        ------
        UnresolvedError
            If some point was not solved.
        """
        found, missed = _accelerated(
            lambda state, which: self.image(state, z[which]), start, np.abs(z), tolerance, MOST
        )
        left = np.max(np.abs(self.image(found[:, missed], z[missed]) - found[:, missed]), axis=0) * np.abs(z[missed])
        missed = missed[left > SLACK * tolerance]
        if len(missed):
            raise UnresolvedError(f"the equations of a head were not solved at |z| = {np.abs(z[missed])[:3]}")
        return found

    def approach(self, z: Complex, start: Complex, tolerance: float, steps: int) -> Complex:
        """As :meth:`solve`, but only so many steps: what was reached by then is returned.

        Parameters
        ----------
        z : array of shape (p,)
            Points, as for :meth:`solve`.
        start : array of shape (r + c, p)
            First guess.
        tolerance : float
            As for :meth:`solve`.
        steps : int
            Steps at most.

        Returns
        -------
        array of shape (r + c, p)
            g over h, nearly.
        """
        return _accelerated(lambda state, which: self.image(state, z[which]), start, np.abs(z), tolerance, steps)[0]


def _times(matrix: Real, state: Complex) -> Complex:
    """A real matrix times complex columns, as one product of real ones."""
    flat = np.ascontiguousarray(state).view(float)
    return np.ascontiguousarray(matrix @ flat).view(complex)


def _accelerated(
    image: Callable[[Complex, Index], Complex], start: Complex, sizes: Real, tolerance: float, most: int
) -> tuple[Complex, Index]:
    """Fixed points of ``image``, one for each column, by Anderson's acceleration of the averaged iteration.

    ``image`` also takes the numbers of the columns that it is given. A step that leaves the lower half-plane, which the
    equations never do, is replaced by an average of the last state and its image. Also returned are the numbers of the
    columns that were not solved within so many steps.
    """
    result, active, state = start.copy(), np.arange(start.shape[1]), start
    images: list[Complex] = []
    changes: list[Complex] = []
    for step in range(most):
        if step % RESTART == 0:
            images, changes = [], []
        mapped = image(state, active)
        change = mapped - state
        done = np.max(np.abs(change), axis=0) * sizes[active] < tolerance
        if done.any():
            result[:, active[done]] = mapped[:, done]
            active, mapped, change, state = active[~done], mapped[:, ~done], change[:, ~done], state[:, ~done]
            images, changes = [each[:, ~done] for each in images], [each[:, ~done] for each in changes]
        if not len(active):
            return result, active
        mean = (mapped + state) / 2
        images, changes = [*images[-MEMORY:], mapped], [*changes[-MEMORY:], change]
        state = _mixed(images, changes) if len(images) > 1 else mean
        # a late start is for what does not converge: averages alone always do, however slowly
        wrong = np.any(state.imag >= 0, axis=0) | ~np.all(np.isfinite(state), axis=0) | (step > MOST // 2)
        state[:, wrong] = mean[:, wrong]
    result[:, active] = state
    return result, active


def _mixed(images: list[Complex], changes: list[Complex]) -> Complex:
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
