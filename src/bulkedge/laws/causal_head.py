"""Causal attention at the size of real heads: scores of low rank, behind a mask (ours).

A degree of the exponential of the scores is a low-rank matrix (:mod:`bulkedge.laws.finite_head`), and the mask breaks
its rank: column y and row x > y of ``sqrt(l) (A - C)`` are joined by all N channels of the degree, as ``sqrt(w(x))
p_x.q_y`` with ``w = B/x**2``. In the resolvent at ``z**2``, with diagonals g of rows and h of columns, a channel goes
back and forth between them: with T the mask, it is ``(1/h - T' w g T/phi)**-1``, the inverse of a Sturm-Liouville
operator, ``phi = N/l``. So its diagonal comes from two Riccati equations, one from each end,

    p' = h + (w g/phi) p**2,  p(0) = 0,        r' = -w g - (h/phi) r**2,  r(1) = 0,

and with ``d = 1 - p r/phi``, summed over the degrees,

    g = 1/(z - sum w p/d),        h = 1/(z - sum r/d).

Without a mask these are the equations of the finite-head law; with ``phi = inf``, those of the causal law. They are
solved off the axis, and the distribution function at x is the mean of ``Re z G(z)`` over ``|z| = x``, Im z > 0.

>>> CausalHeadDistribution(beta=0.5, head_dim=32, tokens=200).cdf([0.02, 0.3, 2.0]).round(2)
array([0.34, 0.69, 0.88])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.arrays import Complex, Real
from bulkedge.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.errors import DomainError, UnresolvedError
from bulkedge.laws.finite_head import FiniteHeadLaw
from bulkedge.progress import track

ANGLES = 8
"""Gauss nodes on the half-circle: twice as many change the distribution function by less than 1e-6."""
GROWTH = 1.05
"""Rows are taken together in blocks that grow by so much: the function is right to 0.003, and to 0.0005 above 0.2."""
NOISE = 20.0
"""A degree with so many harmonics a token is noise."""
TOLERANCE, MOST = 1e-6, 20_000


class Blocks(NamedTuple):
    """Blocks of tokens: how many there are in each, and the mean of ``l/i**2`` over its rows."""

    sizes: Real
    weights: Real


class Terms(NamedTuple):
    """Terms of the scores: variance and inverse rank of each, and what sizes (of given shares) make of it."""

    variances: Real
    inverse_ranks: Real
    shares: Real
    rows: Real
    columns: Real


@dataclass(frozen=True)
class CausalHeadDistribution(Parametric):
    """Distribution function of the squared singular values of ``sqrt(l) (A - C)``, A causal attention of one head.

    C is the mean of causal attention. It is no :class:`~bulkedge.laws.base.Law`: each point is solved for, in about a
    fifth of a second, and there is no density.
    """

    beta: float = parameter(Interval(1e-2, 2), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 10**5), "number of tokens l")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)

    def cdf(self, x: ArrayLike) -> Real:
        """Mass at or below x, which should be of the size of the bulk: very small values take very long.

        Raises
        ------
        UnresolvedError
            If the equations were not solved.
        """
        points = np.asarray(x, dtype=float)
        if not np.all((points > 0) & np.isfinite(points)):
            raise DomainError(f"x = {x!r} is outside its domain (0, inf)")
        nodes, weights = np.polynomial.legendre.leggauss(ANGLES)
        total = np.zeros(points.size)
        state: Complex | None = None
        # from the negative axis, where the equations are tame, each angle starting from the one before
        for node, weight in track(list(zip(nodes[::-1], weights[::-1], strict=True)), "angles"):
            root = np.sqrt(points.ravel() * np.exp(0.5j * np.pi * (node + 1)))
            if state is None:
                state = np.tile(1 / root, (2, len(self._blocks.sizes), len(self._terms.shares), 1))
            state = self._solved(root, state)
            columns = np.einsum("m,r,mrn->n", self._blocks.sizes, self._terms.shares, state[1])
            total += weight / 2 * (root * columns).real / self.tokens
        return np.clip(total, 0.0, 1.0).reshape(points.shape)[()]

    @cached_property
    def _blocks(self) -> Blocks:
        ends = [0]
        while ends[-1] < self.tokens:
            ends.append(min(self.tokens, max(ends[-1] + 1, int(ends[-1] * GROWTH))))
        sizes = np.diff(ends).astype(float)
        return Blocks(sizes, np.add.reduceat(self.tokens / np.arange(1.0, self.tokens + 1) ** 2, ends[:-1]) / sizes)

    @cached_property
    def _terms(self) -> Terms:
        law = FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm).profiled()
        # degrees come first; from the first full matrix on, and where there are many harmonics, terms are noise
        low = (law.ratios < NOISE) & (np.arange(len(law.ratios)) < np.argmax(np.isinf(law.ratios)))
        inverse = np.where(low, 1 / (self.tokens * law.ratios), 0.0)
        shares = law.rows.weights
        return Terms(law.variances[:, None], inverse[:, None], shares, law.rows.squares, law.columns.squares)

    def _solved(self, root: Complex, start: Complex) -> Complex:
        """The resolvent's diagonals, rows then columns, by averaging with their image until that changes nothing."""
        result, active, state = start.copy(), np.arange(len(root)), start
        for _ in range(MOST):
            image = self._image(state, root[active])
            change = np.max(np.abs(image - state), axis=(0, 1, 2)) * np.abs(root[active])
            state = (state + image) / 2
            done = change < TOLERANCE
            if done.any():
                result[..., active[done]] = state[..., done]
                active, state = active[~done], state[..., ~done]
            if not len(active):
                return result
        raise UnresolvedError(
            f"the equations of {self!r} were not solved at x = {np.abs(root[active][:3]) ** 2}: take larger values"
        )

    def _image(self, state: Complex, root: Complex) -> Complex:
        sizes, weights = (each[:, None, None] for each in self._blocks)
        terms = self._terms
        rows, columns = (
            np.einsum("kr,mrn->mkn", squares * terms.shares, each)
            for squares, each in zip((terms.rows, terms.columns), state, strict=True)
        )
        gain, back = sizes * columns / 2, sizes * weights * terms.variances * rows / 2
        left = _riccati(gain, back * terms.inverse_ranks)
        right = _riccati(back[::-1], gain[::-1] * terms.inverse_ranks)[::-1]
        dressed = 1 / (1 - left * right * terms.inverse_ranks)
        pull = weights * np.einsum("kr,mkn->mrn", terms.rows * terms.variances, left * dressed)
        push = np.einsum("kr,mkn->mrn", terms.columns, right * dressed)
        return 1 / (root - np.stack([pull, push]))


def _riccati(source: Complex, feedback: Complex) -> Complex:
    """``p' = source + feedback p**2`` from zero, in the middle of each block; both are given for half a block."""
    found, value = np.empty_like(source), np.zeros_like(source[0])
    for k, (gain, back) in enumerate(zip(source, feedback, strict=True)):
        value = value + gain
        value = found[k] = value / (1 - back * value)
        value = value + gain
        value = value / (1 - back * value)
    return found
