"""Sums of Gaussian products with variance profiles: low-rank terms whose rows and columns have sizes of their own.

``sum_k sqrt(B_k) diag(u_k) P_k Q_k' diag(v_k)/sqrt(l N_k)`` with P_k, Q_k Gaussian l x N_k: with g and h the diagonals
of the resolvent, ``a_k = E[u_k**2 g]`` and ``b_k = E[v_k**2 h]``,

    g = 1/(z - sum_k B_k u_k**2 t_k),   t_k = b_k/(1 - B_k a_k b_k/phi_k),   phi_k = N_k/l,

and the same for h with rows and columns exchanged (docs/theory/finite_head.md, "Lengths of queries and keys: profiled
sums"). In the variables ``1/a_k`` and ``1/b_k`` this is the fixed point of a self-map of a product of upper
half-planes, like any free convolution here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bulkedge.arrays import EPS, Complex, Real
from bulkedge.laws.engine.edges import Edge
from bulkedge.laws.engine.problem import Problem


class Profile(NamedTuple):
    """Sizes of rows (or of columns), which fall into m groups.

    Attributes
    ----------
    weights : array of shape (m,)
        Share of the rows that is in each group; they sum to one.
    squares : array of shape (k, m)
        ``u_k**2``, the squared size of a row of each group in each of the k terms; its mean over the groups is one.
    """

    weights: Real
    squares: Real


@dataclass(frozen=True, repr=False)
class ProfiledSum(Problem):
    """The law of the squared singular values.

    Attributes
    ----------
    variances, ratios : arrays of shape (k,)
        ``B_k`` and ``phi_k``; the profiles have unit mean square, and a term of infinite ratio is a full matrix.
    rows, columns : Profile
        Sizes of rows and columns.
    """

    variances: Real
    ratios: Real
    rows: Profile
    columns: Profile

    def __repr__(self) -> str:
        return f"a sum of {len(self.variances)} terms of variance {self.variances.sum():.4g} together, with profiles"

    @property
    def smallest(self) -> float:
        """A fraction of the largest value below which the bulk is taken to reach zero.

        Full matrices fill the neighbourhood of zero up to about their smallest variance: a ten thousandth
        of that, and 1e-10 at most.
        """
        full = np.isinf(self.ratios)
        sizes = self.variances[full, None] * self.rows.squares[full]
        return float(min(1e-4 * (sizes.T @ self.columns.squares[full]).min() / self.bounds()[1], 1e-10))

    @property
    def size(self) -> int:
        """Number of variables."""
        return 2 * len(self.variances)

    @property
    def positive(self) -> bool:
        """Always: these are squares."""
        return True

    def bounds(self) -> tuple[float, float]:
        """Norms of the terms add up at most."""
        norms = np.sqrt(self.variances * self.rows.squares.max(axis=1) * self.columns.squares.max(axis=1))
        return 0.0, float(np.sum(norms * (1 + 1 / np.sqrt(self.ratios)) * 2)) ** 2

    def work(self, points: int) -> float:
        """Responses of each term to each other, at each size of row and column."""
        terms, sizes = len(self.variances), len(self.rows.weights) + len(self.columns.weights)
        return 6.4e-4 + points * (1.6e-5 + 1.3e-8 * terms**2 * sizes)

    def far(self, z: Complex) -> Complex:
        """Far away the resolvent's diagonals are ``1/sqrt(z)``, and the profiles have unit mean square."""
        return np.tile(np.sqrt(z), (self.size, 1))

    def _side(self, z: Complex, profile: Profile, pull: Complex) -> tuple[Complex, Complex]:
        """The resolvent's diagonal g for each group, of shape (m, n), and ``E[u_k**2 g]``, of shape (k, n).

        ``pull`` has the shape (k, n): what the columns contribute to rows through each term (t in the module), or the
        rows to columns (s); z has the shape (n,).
        """
        resolvent = 1 / (z - profile.squares.T @ (self.variances[:, None] * pull))
        return resolvent, (profile.squares * profile.weights) @ resolvent

    @property
    def _coupling(self) -> Real:
        """``B_k/phi_k``, a column."""
        return (self.variances / self.ratios)[:, None]

    def _pulls(self, u: Complex) -> tuple[Complex, Complex, Complex, Complex]:
        """``1/a``, ``1/b`` and what columns do to rows, ``t``, and rows to columns, ``s``; all of shape (k, n)."""
        alpha, beta, c = u[: len(self.variances)], u[len(self.variances) :], self._coupling
        return alpha, beta, 1 / (beta - c / alpha), 1 / (alpha - c / beta)

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """One round; see :data:`bulkedge.laws.engine.fixed_point.Step`."""
        root = np.sqrt(z)
        alpha, beta, t, s = self._pulls(u)
        c = self._coupling
        g, a = self._side(root, self.rows, t)
        h, b = self._side(root, self.columns, s)
        image = np.concatenate([1 / a, 1 / b])
        rows = self._response(self.rows, g) * (image[: len(a), None] ** 2) * t[None] ** 2
        columns = self._response(self.columns, h) * (image[len(a) :, None] ** 2) * s[None] ** 2
        jacobian = np.concatenate(
            [
                np.concatenate([rows * (c / alpha**2)[None], rows], axis=1),
                np.concatenate([columns, columns * (c / beta**2)[None]], axis=1),
            ]
        )
        error = 8 * EPS * (np.abs(image) + np.einsum("ijn,jn->in", np.abs(jacobian), np.abs(u)))
        return image - u, jacobian, error

    def _response(self, profile: Profile, resolvent: Complex) -> Complex:
        """``B_j E[u_k**2 u_j**2 g**2]``, of shape (k, k, n): how ``E[u_k**2 g]`` responds to the pull of term j."""
        weighted = profile.weights[:, None] * resolvent**2
        return np.einsum("kr,jr,rn->kjn", profile.squares, profile.squares * self.variances[:, None], weighted)

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``E[g]/z``, the mean over rows of the resolvent's diagonal."""
        root = np.sqrt(x + 0j)
        g, _ = self._side(root, self.rows, self._pulls(u)[2])
        return self.rows.weights @ g / root

    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x in a gap: signs of the factors of the determinant."""
        root = np.sqrt(x) + 0j
        alpha, beta, t, s = self._pulls(u + 0j)
        g, _ = self._side(root, self.rows, t)
        h, _ = self._side(root, self.columns, s)
        rank = np.where(np.isfinite(self.ratios), self.ratios, 0.0)
        negative = rank @ ((1 - self._coupling / (alpha * beta)).real < 0)
        return 1 - (negative + (self.rows.weights @ (g.real < 0) + self.columns.weights @ (h.real < 0)) / 2)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
