"""One coordinate of an attention layer with heads of d dimensions, in quadrature: exact at any width (ours).

Given its query, the scores of a position are Gaussian with their variance times ``|q|**2/d``; given the scores, what a
head attends to is a Gaussian vector of d coordinates with variance k. So the output projection sees ``k |z|**2/d``, z
Gaussian, and a coordinate is Gaussian given ``K = (k_1 r_1 + ... + k_H r_H)/H`` with independent ``r = chi_d**2/d``:
characteristic function ``(E (1 + t**2 k/(H d))**(-d/2))**H``, where k is averaged over the length of the query too. As
d grows this is :class:`~bulkedge.programs.mixture.HeadMixture`.

>>> import numpy as np
>>> limit = HeadMixture(np.eye(2))
>>> narrow, wide = (FiniteMixture(limit, dim).pdf(0.0) for dim in (8, 1e5))
>>> bool(narrow > wide), bool(abs(wide - limit.pdf(0.0)) < 1e-5)     # narrow heads have a higher peak
(True, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import gammaln, ndtr

from bulkedge.programs.mixture import HeadMixture, chi_square_rule
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, Parametric, parameter
from bulkedge.support.errors import DomainError

NODES = 40
"""Nodes to which the law of k is compressed; functions of k that are integrated here are far smoother than that."""
LEAST = 4
"""Fewest dimensions of all heads together: with fewer the characteristic function decays too slowly."""
MISSED = 1e-14
"""Absolute error of densities and tails that the last frequency may leave."""
BLOCK = 4096
"""Frequencies that are summed at once."""


@dataclass(frozen=True, eq=False)
class FiniteMixture(Parametric):
    """Law of a coordinate of an attention layer whose heads have d dimensions; d = n for heads as wide as the layer.

    Attributes
    ----------
    limit : HeadMixture
        Inputs, heads and score variance; the law for infinitely many dimensions.
    """

    limit: HeadMixture
    head_dim: int = parameter(Integers(1, 10**6), "dimensions d of a head", 64)

    def __post_init__(self) -> None:
        """Check the parameters."""
        super().__post_init__()
        if self.head_dim * self.limit.heads < LEAST:
            raise DomainError(
                f"{self.limit.heads} heads of head_dim = {self.head_dim}: the law is resolved from {LEAST} dimensions "
                "on, all heads together; draw the layer for fewer"
            )

    @cached_property
    def _single(self) -> tuple[Real, Real]:
        """Values of k for one head, averaged over the length of its query, and their weights."""
        scale = self.limit.score_variance * self.limit.gram[self.limit.position, self.limit.position]
        values, weights = [], []
        for length, mass in zip(*chi_square_rule(self.head_dim), strict=True):
            nodes, own, _ = self.limit.kernel_values(scale * length)
            fewer, kept = compress(nodes, own, NODES // 2)
            values.append(fewer)
            weights.append(mass * kept)
        return compress(np.concatenate(values), np.concatenate(weights))

    def variance(self) -> float:
        """``E y**2``, which depends on the width through the lengths of queries alone."""
        values, weights = self._single
        return float(weights @ values)

    def excess_kurtosis(self) -> float:
        """``E y**4/(E y**2)**2 - 3``; see :meth:`HeadMixture.excess_kurtosis`."""
        return self.limit.excess_kurtosis(self.head_dim)

    def characteristic(self, t: Any) -> Any:
        """``E exp(i t y)`` of the coordinate, which is real because y is symmetric.

        Parameters
        ----------
        t : array_like
            Frequencies, of any shape.

        Returns
        -------
        array
            The characteristic function there, of the same shape.
        """
        values, weights = self._single
        total = self.head_dim * self.limit.heads
        square = np.asarray(t, dtype=float)[..., None] ** 2
        return (np.exp(-self.head_dim / 2 * np.log1p(square * values / total)) @ weights) ** self.limit.heads

    def _frequencies(self, x: Real) -> tuple[Real, float]:
        """Frequencies for Fourier inversion at the points x, and their spacing.

        Copies of the density at multiples of 2 pi over the spacing lie beyond all x, where it has decayed: as a
        Gaussian of variance one (the largest k), or as ``exp(-|x| sqrt(d H))`` if that is slower.
        """
        largest, total = float(self._single[0].max()), self.head_dim * self.limit.heads
        reach = largest**0.5 * max(20.0, 45 / total**0.5)
        step = 2 * np.pi / (2 * float(np.max(np.abs(x), initial=0.0)) + reach)
        last = 4 * self.variance() ** -0.5
        while last * float(self.characteristic(last)) > MISSED * np.pi * (total - 1):
            last *= 1.2
        return step * (np.arange(int(last / step) + 1) + 0.5), step

    def pdf(self, x: Any) -> Any:
        """Density of the coordinate.

        Parameters
        ----------
        x : array_like
            Values of the coordinate, of any shape.

        Returns
        -------
        array
            The density there, of the same shape. With one head it is a sum of Gaussians and right in relative terms, so
            that its logarithm may be taken far out; with more it is the Fourier transform of the characteristic
            function, right to an absolute 1e-13, so its far tail is not.
        """
        point = np.asarray(x, dtype=float)
        if self.limit.heads == 1:
            values, weights = self._variances
            squares = point[..., None] ** 2 / (2 * values)
            return np.exp(-squares) @ (weights / np.sqrt(2 * np.pi * values))
        t, step = self._frequencies(point)
        return _waves(np.cos, point, t, self.characteristic(t)) * step / np.pi

    def sf(self, x: Any) -> Any:
        """``P(y > x)`` for x >= 0.

        Parameters
        ----------
        x : array_like
            Non-negative values of the coordinate, of any shape.

        Returns
        -------
        array
            The probabilities, of the same shape; as accurate as :meth:`pdf`.
        """
        point = np.asarray(x, dtype=float)
        if self.limit.heads == 1:
            values, weights = self._variances
            return ndtr(-point[..., None] / np.sqrt(values)) @ weights
        t, step = self._frequencies(point)
        return 0.5 - _waves(np.sin, point, t, self.characteristic(t) / t) * step / np.pi

    @cached_property
    def _variances(self) -> tuple[Real, Real]:
        """Values of ``k chi_d**2/d`` for one head, and their weights: the trapezoidal rule in the logarithm."""
        half = self.head_dim / 2
        step = 0.35 / math.sqrt(1 + half)
        # to the left exp(u d/2) falls to rounding against exp(-u/2) of a Gaussian's height, to the right exp(-e**u)
        grid = np.arange(-36 / max(half - 0.5, 0.5) - 8 / math.sqrt(half), 3.5 + 8 / math.sqrt(half), step)
        logs = half * (np.log(half) + grid - np.exp(grid)) - gammaln(half)
        kept = logs > logs.max() - 90
        ratios, masses = np.exp(grid[kept]), np.exp(logs[kept]) * step
        values, weights = self._single
        return np.outer(values, ratios).ravel(), np.outer(weights, masses / masses.sum()).ravel()


def _waves(wave: Any, x: Real, t: Real, weights: Real) -> Any:
    """``sum_t wave(x t) weights(t)`` at all points x."""
    parts = (slice(start, start + BLOCK) for start in range(0, len(t), BLOCK))
    return sum(wave(x[..., None] * t[part]) @ weights[part] for part in parts)


def compress(values: Real, weights: Real, nodes: int = NODES) -> tuple[Real, Real]:
    """A discrete law with fewer points: the Gauss rule that has its moments up to ``2 nodes - 1``.

    Examples
    --------
    >>> x, w = compress(np.linspace(0, 1, 1001), np.full(1001, 1 / 1001), nodes=4)
    >>> len(x), bool(abs(w @ x**7 - np.mean(np.linspace(0, 1, 1001) ** 7)) < 1e-14)
    (4, True)
    """
    if len(values) <= nodes:
        return values, weights
    centre, spread = float(weights @ values), float(np.ptp(values)) or 1.0
    scaled = (values - centre) / spread
    basis = np.empty((nodes + 1, len(values)))
    basis[0] = np.sqrt(weights / weights.sum())
    diagonal, beside = [], []
    for k in range(nodes):
        image = scaled * basis[k]
        diagonal.append(float(image @ basis[k]))
        for _ in range(2):  # twice is enough for orthogonality to rounding
            image -= (basis[: k + 1] @ image) @ basis[: k + 1]
        norm = float(np.linalg.norm(image))
        if norm < 1e-12:
            break
        beside.append(norm)
        basis[k + 1] = image / norm
    found, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside[: len(diagonal) - 1]))
    return centre + spread * found, vectors[0] ** 2 * weights.sum()
