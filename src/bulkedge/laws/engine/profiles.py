"""Sums of Gaussian products with variance profiles: low-rank terms whose rows and columns have sizes of their own.

``sum_k sqrt(B_k) diag(u_k) P_k Q_k' diag(v_k)/sqrt(T N_k)`` with P_k, Q_k Gaussian T x N_k: with g and h the diagonals
of the resolvent, ``a_k = E[u_k**2 g]`` and ``b_k = E[v_k**2 h]``,

    g = 1/(z - sum_k B_k u_k**2 t_k),   t_k = b_k/(1 - B_k a_k b_k/phi_k),   phi_k = N_k/T,

and the same for h with rows and columns exchanged (docs/theory/finite_head.md, "Lengths of queries and keys: profiled
sums"). In the variables ``-a_k`` and ``-b_k`` this is the fixed point of a self-map of a product of upper half-planes,
like any free convolution here; in gaps they pass through zero, never through infinity. Terms whose rows have the same
sizes share a variable, and so do terms whose columns have: where only the columns differ, and alike in all terms, there
are two variables for any number of terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bulkedge.laws.engine.measure.panels import Edge
from bulkedge.laws.engine.subordination.problem import Problem
from bulkedge.support.arrays import EPS, Complex, Real


def _as_real(u: Any, root: Any) -> tuple[Any, Any]:
    """Variables and roots of points as real numbers, where they are: in gaps, on the positive axis."""
    return (u, root) if root.imag.any() or u.imag.any() else (u.real, root.real)


def _product(matrices: Real, columns: Complex) -> Complex:
    """Products of real matrices ``(..., i, j)`` with real or complex ones ``(..., j, n)``, by real arithmetic."""
    if columns.dtype == float:
        return np.asarray(matrices @ columns)
    return np.asarray((matrices @ np.ascontiguousarray(columns).view(float)).view(complex))


class Profile(NamedTuple):
    """Sizes of rows (or of columns), which fall into m groups."""

    weights: Real  # (m,): share of the rows that is in each group; they sum to one
    squares: Real  # (k, m): ``u_k**2``, the squared size of a row in each term, of mean one over the groups


class DistinctProfiles(NamedTuple):
    """The different profiles among those of the terms, d of them, as matrices for what is computed with them."""

    of_term: NDArray[np.intp]  # (k,): which of the different profiles each term has
    variances: Real  # (d, k): the terms' variances, each in the row of its profile: sums over terms of one profile
    pulled: Real  # (m, d): the different profiles, as columns
    averaged: Real  # (d, m): the same as rows, times the weights of the groups
    responses: Real  # (d * d, m): products of two profiles, times the weights
    weights: Real  # (m,): share of each group

    @classmethod
    def of(cls, profile: Profile, variances: Real) -> DistinctProfiles:
        """Find the different profiles."""
        known: dict[bytes, int] = {}
        of_term = np.array([known.setdefault(row.tobytes(), len(known)) for row in profile.squares], dtype=np.intp)
        different = profile.squares[[int(np.argmax(of_term == kind)) for kind in range(len(known))]]
        averaged = different * profile.weights
        responses = (averaged[:, None] * different).reshape(-1, different.shape[1])
        belongs = np.arange(len(known))[:, None] == of_term
        return cls(of_term, belongs * variances, different.T.copy(), averaged, responses, profile.weights)

    def resolvents(self, z: Complex, pull: Complex) -> Complex:
        """The resolvent's diagonal ``g = 1/(z - sum_k B_k u_k**2 t_k)`` for each group, of shape (m, n)."""
        return 1 / (z - _product(self.pulled, _product(self.variances, pull)))

    def response(self, second: Complex) -> Complex:
        """How the means ``E[u_i**2 g]`` respond to the pulls on profiles j."""
        size = len(self.averaged)
        return _product(self.responses, second).reshape(size, size, -1)


@dataclass(frozen=True, repr=False)
class ProfiledSum(Problem):
    """The law of the squared singular values."""

    variances: Real  # (k,): ``B_k``; the profiles have unit mean square
    ratios: Real  # (k,): ``phi_k``; a term of infinite ratio is a full matrix
    rows: Profile
    columns: Profile

    @classmethod
    def alike(cls, variances: Sequence[float], ratios: Sequence[float]) -> ProfiledSum:
        """A sum whose rows and columns all have one size."""
        same = Profile(np.ones(1), np.ones((len(variances), 1)))
        return cls(np.array(variances), np.array(ratios), same, same)

    def __repr__(self) -> str:
        return f"a sum of {len(self.variances)} terms of variance {self.variances.sum():.4g} together, with profiles"

    @cached_property
    def _rows(self) -> DistinctProfiles:
        return DistinctProfiles.of(self.rows, self.variances)

    @cached_property
    def _columns(self) -> DistinctProfiles:
        return DistinctProfiles.of(self.columns, self.variances)

    @cached_property
    def smallest(self) -> float:
        """The fraction of the largest value below which the bulk counts as zero: 1e-4 of the smallest variance."""
        full = np.isinf(self.ratios)
        sizes = self.variances[full, None] * self.rows.squares[full]
        least = (sizes.T @ self.columns.squares[full]).min()
        return float(min(1e-4 * least / self.bounds()[1], 1e-10))

    @property
    def size(self) -> int:
        """Number of variables: that of different profiles."""
        return len(self._rows.averaged) + len(self._columns.averaged)

    @property
    def positive(self) -> bool:
        """Always: these are squares."""
        return True

    def bounds(self) -> tuple[float, float]:
        """Norms of the terms add up at most."""
        norms = np.sqrt(self.variances * self.rows.squares.max(axis=1) * self.columns.squares.max(axis=1))
        return 0.0, float(np.sum(norms * (1 + 1 / np.sqrt(self.ratios)) * 2)) ** 2

    def work(self, points: int) -> float:
        """Responses of each profile to each other, at each size of row and column."""
        return 6.4e-4 + points * self._work_of_point

    @cached_property
    def _work_of_point(self) -> float:
        pairs = sum(side.responses.size for side in (self._rows, self._columns))
        each = sum(len(side.weights) for side in (self._rows, self._columns))
        return 1.6e-5 + 1.3e-8 * (pairs + each)

    @cached_property
    def _scale(self) -> float:
        """The variables are ``-a_k`` and ``-b_k`` times this, which makes them as large as points of the line."""
        return float(self.bounds()[1] ** 1.5)

    def far(self, z: Complex) -> Complex:
        """Far away the resolvent's diagonals are ``1/sqrt(z)``, and the profiles have unit mean square."""
        return np.tile(-self._scale / np.sqrt(z), (self.size, 1))

    @cached_property
    def _coupling(self) -> Real:
        """``B_k/phi_k``, a column."""
        return (self.variances / self.ratios)[:, None]

    def _means(self, u: Complex) -> tuple[Complex, Complex, Complex]:
        """``a``, ``b`` and ``1 - B a b/phi`` for each term; all of shape (k, n)."""
        rows, values = len(self._rows.averaged), u / -self._scale
        a, b = values[:rows][self._rows.of_term], values[rows:][self._columns.of_term]
        return a, b, 1 - self._coupling * a * b

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """One round; see :data:`bulkedge.laws.engine.subordination.fixed_point.SelfMap`."""
        # at points of gaps all is real, and done in real numbers
        (u, root), c = _as_real(u, np.sqrt(z)), self._coupling
        a, b, rest = self._means(u)
        # what columns do to rows is t = b/rest, which changes by (db + c b**2 da)/rest**2; rows to columns likewise
        g, h = self._rows.resolvents(root, b / rest), self._columns.resolvents(root, a / rest)
        image = -self._scale * np.concatenate([_product(self._rows.averaged, g), _product(self._columns.averaged, h)])
        rows, columns = self._rows.response(g**2), self._columns.response(h**2)
        size, moved = len(rows), 1 / rest**2
        jacobian = np.empty((len(u), len(u), len(z)), dtype=u.dtype)
        jacobian[:size, :size] = rows * _product(self._rows.variances, moved * c * b**2)
        jacobian[size:, size:] = columns * _product(self._columns.variances, moved * c * a**2)
        jacobian[:size, size:] = self._through(rows, moved)
        jacobian[size:, :size] = self._through(columns, moved, back=True)
        error = 8 * EPS * (np.abs(image) + (np.abs(jacobian) * np.abs(u)).sum(axis=1))
        return image - u, jacobian, error

    def _through(self, response: Complex, moved: Complex, *, back: bool = False) -> Complex:
        """One side's response (d, d, n) to pulls, and the pulls' (k, n) to the other's variables, multiplied."""
        own, other = (self._columns, self._rows) if back else (self._rows, self._columns)
        pulls = self.variances[:, None] * moved
        if len(own.averaged) == len(other.averaged) == len(pulls):
            # each term has both variables to itself
            return response * pulls
        between = np.zeros((len(own.averaged), len(other.averaged), pulls.shape[1]), dtype=moved.dtype)
        np.add.at(between, (own.of_term, other.of_term), pulls)
        return np.asarray(np.einsum("ijn,jkn->ikn", response, between))

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``E[g]/z``, the mean over rows of the resolvent's diagonal."""
        root = np.sqrt(x + 0j)
        _, b, rest = self._means(u)
        return np.asarray(self.rows.weights @ self._rows.resolvents(root, b / rest) / root)

    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x in a gap: one minus the share of singular values to the right of its root."""
        # the log determinant is -E log g - E log h + sum_k phi_k (log(1/t_k) - log(1/b_k)) and real terms: each factor
        # keeps to its half-plane, so a negative one counts fully, and those of 1/b against those of 1/t
        root = np.sqrt(x) + 0j
        a, b, rest = self._means(u + 0j)
        rank = np.where(np.isfinite(self.ratios), self.ratios, 0.0)
        right = rank @ (((b / rest).real < 0) * 1.0 - (b.real < 0))
        for side, pull in ((self._rows, b / rest), (self._columns, a / rest)):
            right = right + side.weights @ (side.resolvents(root, pull).real < 0)
        return np.asarray(1 - right)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
