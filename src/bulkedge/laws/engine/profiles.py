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


class PairedStep(NamedTuple):
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
        """One round; see :data:`~bulkedge.laws.engine.subordination.fixed_point.Step`."""
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


class SharedSizes(NamedTuple):
    """Sizes that rows (or columns) have in all terms alike, whatever their group.

    Attributes
    ----------
    weights : array of shape (f,)
        Share of the rows of each size; they sum to one.
    squares : array of shape (f,)
        The squared sizes, of mean one.
    """

    weights: Real
    squares: Real


ONE_SIZE = SharedSizes(np.ones(1), np.ones(1))


class Profile(NamedTuple):
    """Sizes of rows (or of columns), which fall into m groups.

    Attributes
    ----------
    weights : array of shape (m,)
        Share of the rows that is in each group; they sum to one.
    squares : array of shape (k, m)
        ``u_k**2``, the squared size of a row of each group in each of the k terms; its mean over the groups is one.
    shared : Sizes
        A further factor of the size, the same in all terms and independent of the group.
    """

    weights: Real
    squares: Real
    shared: SharedSizes = ONE_SIZE


class DistinctProfiles(NamedTuple):
    """The different profiles among those of the terms, d of them, as matrices for what is computed with them.

    Attributes
    ----------
    of_term : int array of shape (k,)
        Which of the different profiles each term has.
    variances : array of shape (d, k)
        The terms' variances, each in the row of its profile: sums over terms of the same profile.
    pulled : array of shape (m, d)
        The different profiles, as columns.
    averaged : array of shape (d, m)
        The same as rows, times the weights of the groups.
    responses : array of shape (d * d, m)
        Products of two profiles, times the weights.
    weights : array of shape (m,)
        Share of each group.
    shared : Sizes
        The factor p of the sizes that all terms have in common.
    """

    of_term: NDArray[np.intp]
    variances: Real
    pulled: Real
    averaged: Real
    responses: Real
    weights: Real
    shared: SharedSizes

    @classmethod
    def of(cls, profile: Profile, variances: Real) -> DistinctProfiles:
        """Find the different profiles."""
        known: dict[bytes, int] = {}
        of_term = np.array([known.setdefault(row.tobytes(), len(known)) for row in profile.squares], dtype=np.intp)
        different = profile.squares[[int(np.argmax(of_term == kind)) for kind in range(len(known))]]
        averaged = different * profile.weights
        responses = (averaged[:, None] * different).reshape(-1, different.shape[1])
        belongs = np.arange(len(known))[:, None] == of_term
        return cls(
            of_term, belongs * variances, different.T.copy(), averaged, responses, profile.weights, profile.shared
        )

    def resolvents(self, z: Complex, pull: Complex) -> Complex:
        """The resolvent's diagonal ``g = 1/(z - p**2 y)``, ``y = sum_k B_k u_k**2 t_k``, for each group and size p."""
        pulls = _product(self.pulled, _product(self.variances, pull))
        return 1 / (z - self.shared.squares[:, None, None] * pulls)

    def means(self, z: Complex, pull: Complex) -> tuple[Complex, Complex]:
        """Means over the shared sizes p for each group, ``E[p**2 g]`` and ``E[p**4 g**2]``, both of shape (m, n)."""
        each = self.resolvents(z, pull)
        if len(each) == 1:
            return each[0], each[0] ** 2
        weights, squares = self.shared
        flat = each.reshape(len(each), -1)
        first, second = _product((weights * squares)[None], flat), _product((weights * squares**2)[None], flat**2)
        return first.reshape(each.shape[1:]), second.reshape(each.shape[1:])

    def response(self, second: Complex) -> Complex:
        """How the means ``E[u_i**2 g]`` respond to the pulls on profiles j."""
        size = len(self.averaged)
        return _product(self.responses, second).reshape(size, size, -1)


def _product(matrix: Real, columns: Complex) -> Complex:
    """The product of a real matrix and a complex one, as one product of real matrices."""
    return np.asarray((matrix @ np.ascontiguousarray(columns).view(float)).view(complex))


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
        """A fraction of the largest value below which the bulk is taken to reach zero.

        Full matrices fill the neighbourhood of zero up to about their smallest variance: a ten thousandth
        of that, and 1e-10 at most.
        """
        full = np.isinf(self.ratios)
        sizes = self.variances[full, None] * self.rows.squares[full]
        shared = self.rows.shared.squares.min() * self.columns.shared.squares.min()
        least = shared * (sizes.T @ self.columns.squares[full]).min()
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
        shared = self.rows.shared.squares.max() * self.columns.shared.squares.max()
        norms = np.sqrt(self.variances * shared * self.rows.squares.max(axis=1) * self.columns.squares.max(axis=1))
        return 0.0, float(np.sum(norms * (1 + 1 / np.sqrt(self.ratios)) * 2)) ** 2

    def work(self, points: int) -> float:
        """Responses of each profile to each other, at each size of row and column."""
        return 6.4e-4 + points * self._work_of_point

    @cached_property
    def _work_of_point(self) -> float:
        pairs = sum(side.responses.size for side in (self._rows, self._columns))
        each = sum(len(side.weights) * len(side.shared.weights) for side in (self._rows, self._columns))
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

    @cached_property
    def _paired(self) -> PairedStep | None:
        """Rows and columns side by side, if each term has sizes of its own for both and there is no shared factor."""
        rows, columns, terms = self._rows, self._columns, len(self.variances)
        apart = len(rows.averaged) == len(columns.averaged) == terms
        if not apart or len(rows.weights) != len(columns.weights) or len(self.rows.shared.weights) > 1:
            return None
        if len(self.columns.shared.weights) > 1:
            return None
        sides = (rows, columns)
        pulled, averaged = np.stack([side.pulled @ side.variances for side in sides]), [side.averaged for side in sides]
        responses = np.stack([side.responses for side in sides])
        return PairedStep(pulled, np.stack(averaged), responses, self.variances[:, None], self._coupling, self._scale)

    def step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        """One round; see :data:`bulkedge.laws.engine.subordination.fixed_point.Step`."""
        return self._general_step(u, z) if self._paired is None else self._paired.step(u, z)

    def _general_step(self, u: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        root, c = np.sqrt(z), self._coupling
        a, b, rest = self._means(u)
        # what columns do to rows is t = b/rest, which changes by (db + c b**2 da)/rest**2; rows to columns likewise
        (g, g_square), (h, h_square) = self._rows.means(root, b / rest), self._columns.means(root, a / rest)
        image = -self._scale * np.concatenate([_product(self._rows.averaged, g), _product(self._columns.averaged, h)])
        rows, columns = self._rows.response(g_square), self._columns.response(h_square)
        size, moved = len(rows), 1 / rest**2
        jacobian = np.empty((len(u), len(u), len(z)), dtype=complex)
        jacobian[:size, :size] = rows * _product(self._rows.variances, moved * c * b**2)
        jacobian[size:, size:] = columns * _product(self._columns.variances, moved * c * a**2)
        jacobian[:size, size:] = self._through(rows, moved)
        jacobian[size:, :size] = self._through(columns, moved, back=True)
        error = 8 * EPS * (np.abs(image) + (np.abs(jacobian) * np.abs(u)).sum(axis=1))
        return image - u, jacobian, error

    def _through(self, response: Complex, moved: Complex, *, back: bool = False) -> Complex:
        """How one side responds to the other's variables: its response to each pull, and that pull to the variable.

        ``response`` has the shape (d, d, n), ``moved`` the shape (k, n): how the pull of each term responds.
        """
        own, other = (self._columns, self._rows) if back else (self._rows, self._columns)
        pulls = self.variances[:, None] * moved
        if len(own.averaged) == len(other.averaged) == len(pulls):
            # each term has both variables to itself
            return response * pulls
        between = np.zeros((len(own.averaged), len(other.averaged), pulls.shape[1]), dtype=complex)
        np.add.at(between, (own.of_term, other.of_term), pulls)
        return np.asarray(np.einsum("ijn,jkn->ikn", response, between))

    def cauchy(self, u: Complex, x: Real) -> Complex:
        """``E[g]/z``, the mean over rows of the resolvent's diagonal."""
        root = np.sqrt(x + 0j)
        shares = self._rows.shared.weights
        _, b, rest = self._means(u)
        each = self._rows.resolvents(root, b / rest)
        return np.asarray(np.tensordot(np.outer(shares, self.rows.weights), each, 2) / root)

    def count(self, u: Real, x: Real) -> Real:
        """Mass to the left of x in a gap: one less the share of singular values to the right of its root.

        The logarithm of the determinant is ``-E log g - E log h + sum_k phi_k (log(1/t_k) - log(1/b_k))`` up to terms
        that are real in gaps. All four arguments keep to their half-planes above the axis, so each factor that is
        negative in the gap counts fully, and those of 1/b count against those of 1/t.
        """
        root = np.sqrt(x) + 0j
        a, b, rest = self._means(u + 0j)
        rank = np.where(np.isfinite(self.ratios), self.ratios, 0.0)
        right = rank @ (((b / rest).real < 0) * 1.0 - (b.real < 0))
        for side, pull in ((self._rows, b / rest), (self._columns, a / rest)):
            each = side.resolvents(root, pull)
            right = right + np.tensordot(np.outer(side.shared.weights, side.weights), each.real < 0, 2)
        return np.asarray(1 - right)

    def edge_at_zero(self) -> Edge | None:
        """A finite density of singular values has a square-root singularity in their squares."""
        return Edge.hard(0.0)
