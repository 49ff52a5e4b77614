"""Single large entries of softmax attention: how many singular values they push beyond a point.

An entry x of ``sqrt(T) (A - uu')`` is a perturbation of rank one. Entries at random places are free of each other, so
that n of them in a row add ``n x**2 w/(1 - x**2 w**2)`` to the R-transform of the symmetrised law, where noise of the
same variance adds ``n x**2 w`` (:class:`~bulkedge.laws.attention.finite_head.FiniteHeadLaw` does so up to the size at
which an entry leaves the bulk). With entries of *all* sizes in it, the law has no edge at a finite number of tokens but
a thin tail: its mass beyond a point, times T, is the expected number of singular values there. That counts what
counting large entries one by one misses: entries that leave only because their row or column holds others, and the edge
of the bulk, which those below the threshold push outwards. They are a third to a half of all values beyond the edge.

>>> count = LargeEntries(beta=1.0, head_dim=300, tokens=300).beyond(9.188)      # simulated: 1.6
>>> round(count, 1)
1.8
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from bulkedge.laws.attention.finite_head import (
    cosine_quadrature,
    harmonics,
    log_coefficients,
    log_harmonics,
    norm_quadrature,
    separate,
)
from bulkedge.support.arrays import Complex, Real
from bulkedge.support.errors import UnresolvedError

NODES = 300  # quadrature nodes for the cosine of query and key
SIZES = 8  # quadrature nodes for the norms of queries and of keys
MOST_DEGREES = 60
HIGHEST, LOWEST = 1e3, 1e-5
"""Its ends, in units of the singular value; below the lower one the integrand is taken as constant."""


class EntryTerms(NamedTuple):
    """What the resolvent's equations need; R sizes of rows, S of columns (the same), E entries, K degrees."""

    weights: Real  # probabilities of the sizes, (R,)
    variances: Real  # ``B_k`` of the degrees of low rank, (K,)
    ratios: Real  # their harmonics a token, (K,)
    rows: Real  # squares of their row factors, (K, R)
    columns: Real  # squares of their column factors, (K, S)
    noise: Real  # variance of what is left, (R, S)
    squares: Real  # squared sizes of entries, (E, R, S)
    fourth: Real  # number of such entries in a row, times the square of that, (E, R, S)
    gaussian: Real  # the sum of fourth powers that Gaussian entries of the same variance would have, (R, S)


@dataclass(frozen=True)
class LargeEntries:
    """The law of ``sqrt(T) (A - uu')`` with its large entries, as a count of singular values beyond a point."""

    beta: float
    head_dim: int
    tokens: int
    qk_norm: bool = False

    def beyond(self, square: float) -> float:
        """Expected number of squared singular values beyond a point."""
        # (2/pi) int_0^inf (s/(s**2 + y**2) - Re G(s + iy)) dy, s the root of the point: well conditioned off the axis
        s = float(np.sqrt(square))
        # points of the integral along a vertical line, spaced evenly in the logarithm of the height
        heights = np.geomspace(HIGHEST, LOWEST, 180) * s
        size = len(self._terms.weights)
        g = np.full(size, 1 / (s + 1j * heights[0]))
        h, transforms = g.copy(), []
        for height in heights:
            g, h = self._solve(g, h, s + 1j * height)
            transforms.append(self._terms.weights @ (g + h) / 2)
        missing = (s / (s**2 + heights**2) - np.real(transforms)) * heights
        mass = np.trapezoid(missing[::-1], np.log(heights[::-1])) + missing[-1]
        return float(max(self.tokens * 2 / np.pi * mass, 0.0))

    @cached_property
    def _terms(self) -> EntryTerms:
        norms, weights = (
            (np.ones(1), np.ones(1)) if self.qk_norm else norm_quadrature(self.head_dim, self.tokens, SIZES)
        )
        cosine, mass = cosine_quadrature(self.head_dim, NODES)
        entry = self._entries(cosine, norms)
        mean: Real = np.tensordot(mass, entry, 1)
        row_mean = (mean @ weights)[:, None]
        entry, mean = np.asarray(entry / row_mean), np.asarray(mean / row_mean)
        number = np.exp(log_harmonics(self.head_dim, MOST_DEGREES))
        # a degree with this many harmonics a token is as good as noise
        low = np.flatnonzero(number[1:] < 200.0 * self.tokens) + 1
        basis = harmonics(self.head_dim, MOST_DEGREES, cosine)[low]
        coefficients = np.einsum("kc,c,crs->krs", basis, mass, entry)
        rest = entry - mean - np.einsum("k,krs,kc->crs", number[low], coefficients, basis)
        parts = [separate(np.sqrt(n) * each, weights) for n, each in zip(number[low], coefficients, strict=True)]
        variances, rows, columns = (np.array(part) for part in zip(*parts, strict=True))
        # A - uu' vanishes on the constant vector: one direction fewer than T
        kept = 1 - 1 / self.tokens
        squares = np.maximum(entry - 1, 0.0) ** 2 / self.tokens
        fourth = self.tokens * mass[:, None, None] * squares**2
        counts = fourth.max(axis=(1, 2)) > 1e-12 * fourth.max()  # the others are rounding
        return EntryTerms(
            weights, kept * variances, number[low] / self.tokens, rows, columns,
            kept * np.tensordot(mass, rest**2, 1), squares[counts], fourth[counts],
            3 * np.tensordot(mass, (entry - 1) ** 2, 1) ** 2 / self.tokens,
        )  # fmt: skip

    def _entries(self, cosine: Real, norms: Real) -> Real:
        """``T A_ij`` by cosine, norm of the query and norm of the key; an entry is part of its own row's sum."""
        kappa = self.beta * np.sqrt(self.head_dim)
        if self.qk_norm:
            log_normaliser = log_coefficients(self.head_dim, np.array([kappa]), 0)
        else:
            log_normaliser = np.repeat((self.beta * norms[:, None]) ** 2 / 2, len(norms), axis=1)
        plain = np.exp(cosine[:, None, None] * kappa * np.outer(norms, norms) - log_normaliser)
        return np.asarray(plain / (1 + (plain - 1) / self.tokens))

    def _solve(self, g: Complex, h: Complex, z: complex) -> tuple[Complex, Complex]:
        """Diagonals of the resolvent over the sizes of rows and columns, by Newton from those at a point nearby."""
        size = len(g)
        for _ in range(60):
            excess, jacobian = self._equations(g, h, z)
            step = np.linalg.solve(jacobian, excess)
            current, share = np.concatenate([g, h]), 1.0
            while np.any((current - share * step).imag > 0):
                share /= 2
            current = current - share * step
            g, h = current[:size], current[size:]
            if np.abs(step).max() < 1e-10 * np.abs(current).max():
                return g, h
        raise UnresolvedError(f"no resolvent of {self} was found at the singular value {z.real:g} + {z.imag:g}i")

    def _equations(self, g: Complex, h: Complex, z: complex) -> tuple[Complex, Complex]:
        """``1/g - z + self-energy`` and the same for h, with their Jacobian."""
        # self-energy of a row: degrees, noise, and g h**2 sum n x**4/(1 - x**2 g h) of entries beyond their variance
        terms = self._terms
        apart = 1 - terms.squares * np.multiply.outer(g, h)
        jump = (terms.fourth / apart).sum(axis=0) - terms.gaussian
        slope = (terms.fourth * terms.squares / apart**2).sum(axis=0)
        mirrored = terms._replace(rows=terms.columns, columns=terms.rows, noise=terms.noise.T)
        first, own_g, cross_g = _side(terms, jump, slope, g, h)
        second, own_h, cross_h = _side(mirrored, jump.T, slope.T, h, g)
        return np.concatenate([first - z, second - z]), np.block([[own_g, cross_g], [cross_h, own_h]])


def _side(terms: EntryTerms, jump: Complex, slope: Complex, x: Complex, y: Complex) -> tuple[Complex, Complex, Complex]:
    """``1/x + self-energy`` of rows with resolvent x (columns y), and its derivatives in x and in y."""
    # jump is sum n x**4/(1 - x**2 g h) over the entries, by sizes of row and column; slope its derivative in g h
    p, variances = terms.weights, terms.variances
    a, b = (terms.rows * p) @ x, (terms.columns * p) @ y
    coupling = variances / terms.ratios
    factor = 1 - coupling * a * b
    pushed = jump @ (p * y**2)
    value = 1 / x + terms.rows.T @ (variances * b / factor) + terms.noise @ (p * y) + x * pushed
    own = terms.rows.T @ ((variances * coupling * b**2 / factor**2)[:, None] * (terms.rows * p))
    own = own + np.diag(pushed + x * (slope @ (p * y**3)) - 1 / x**2)
    cross = terms.rows.T @ ((variances / factor**2)[:, None] * (terms.columns * p)) + terms.noise * p
    cross = cross + 2 * x[:, None] * jump * (p * y) + x[:, None] ** 2 * slope * (p * y**2)
    return value, own, cross
