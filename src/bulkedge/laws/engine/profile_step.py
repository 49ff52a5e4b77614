"""One round of a sum with profiles whose terms all have sizes of their own: rows and columns go side by side.

The equations are those of :mod:`bulkedge.laws.engine.profiles`. Most calls of the map are of few points and cost what
calls cost, so that half as many operations on arrays of twice the size are nearly twice as fast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bulkedge.support.arrays import EPS, Complex, Real


class Paired(NamedTuple):
    """The round trip of a sum in which each of k terms has sizes of its own for its rows and for its columns.

    Rows and columns go through the same operations, as the first axis of length two of all arrays; at real points of
    gaps all of it is done in real numbers.

    Attributes
    ----------
    pulled : array of shape (2, m, k)
        Profiles times variances, as columns: from the pulls of the terms to those on each group.
    averaged : array of shape (2, k, m)
        Profiles times weights of the groups.
    responses : array of shape (2, k * k, m)
        Products of two profiles, times the weights.
    variances, coupling : arrays of shape (k, 1)
        ``B_k``, and ``B_k/phi_k``.
    scale : float
        The variables are ``-a_k`` and ``-b_k`` times this.
    """

    pulled: Real
    averaged: Real
    responses: Real
    variances: Real
    coupling: Real
    scale: float

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """One round; see :data:`~bulkedge.laws.engine.subordination.newton.Step`."""
        terms, points = len(self.variances), len(z)
        u, root = _as_real(u, np.sqrt(z))
        own = (u / -self.scale).reshape(2, terms, points)
        other = own[::-1]
        moved = 1 / (1 - self.coupling * own[0] * own[1])
        # what columns do to rows is t = b moved, which changes by (db + c b**2 da) moved**2; rows to columns likewise
        diagonal = 1 / (root - _side_by_side(self.pulled, other * moved))
        image = -self.scale * _side_by_side(self.averaged, diagonal)
        response = _side_by_side(self.responses, diagonal**2).reshape(2, terms, terms, points)
        across = self.variances * moved**2
        within = self.coupling * other**2 * across
        jacobian = np.empty((2, terms, 2, terms, points), dtype=response.dtype)
        for side in (0, 1):
            np.multiply(response[side], within[side], out=jacobian[side, :, side])
            np.multiply(response[side], across, out=jacobian[side, :, 1 - side])
        sizes = np.abs(u).reshape(2, terms, points)
        felt = np.abs(within) * sizes + np.abs(across) * sizes[::-1]
        error = 8 * EPS * (np.abs(image) + np.einsum("sijn,sjn->sin", np.abs(response), felt))
        shape = (2 * terms, points)
        return image.reshape(shape) - u, jacobian.reshape(2 * terms, *shape), error.reshape(shape)


def _as_real(u: Any, root: Any) -> tuple[Any, Any]:
    """Variables and roots of points as real numbers, where they are: in gaps, on the positive axis."""
    return (u, root) if root.imag.any() or u.imag.any() else (u.real, root.real)


def _side_by_side(matrices: Real, columns: Complex) -> Complex:
    """Products of real matrices ``(2, i, j)`` with real or complex ones ``(2, j, n)``, as products of real matrices."""
    if columns.dtype == float:
        return np.asarray(matrices @ columns)
    return np.asarray((matrices @ np.ascontiguousarray(columns).view(float)).view(complex))
