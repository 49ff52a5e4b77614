"""Two-point boundary value problems with separated conditions: Lobatto's formula, and block elimination.

There are 2 u unknowns at each of m + 1 places; u conditions hold at the first place and u at the last. Everything is
done for s problems at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bulkedge.support.arrays import Complex, Real

Valued = tuple[Complex, Complex]
"""Values of equations and their derivatives."""


class Linear(NamedTuple):
    """Equations of a step of Newton's method.

    Attributes
    ----------
    misses : array of shape (m, s, 2 u)
        By how much the equation of each interval is not fulfilled.
    before, after : arrays of shape (m, s, 2 u, 2 u)
        Its derivatives by the unknowns at the interval's start and stop.
    first, last : pairs of arrays of shape (s, u) and (s, u, 2 u)
        The conditions at both ends, and their derivatives by the unknowns there.
    """

    misses: Complex
    before: Complex
    after: Complex
    first: Valued
    last: Valued

    def step(self) -> Complex:
        """Solve for the step, by elimination from the first place to the last and substitution back.

        At each place the first u unknowns are an affine function of the last u: the sweep is stable if solutions of
        the differential equation either come from the left or from the right.
        """
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
