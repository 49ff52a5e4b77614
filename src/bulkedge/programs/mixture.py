"""One coordinate of an attention layer in quadrature: its density, tails, moments and characteristic function.

Given the scores, a coordinate at one position is Gaussian with variance ``K = (k_1 + ... + k_H)/H``, where the ``k_a``
are independent copies of ``k = a' gram a``, ``a = softmax(p)``, with p Gaussian of covariance
``score_variance gram_ii gram`` (*width*, Theorem 3.1). So everything follows from the law of k: the coordinate has
characteristic function ``(E exp(-t**2 k/(2 H)))**H`` and excess kurtosis ``3 Var k/(H (E k)**2)``
(docs/theory/width.md, "One coordinate in quadrature").

Heads of d dimensions (:class:`FiniteMixture`) have such a law too, exact at any width (ours). Given its query, the
scores of a position are Gaussian with their variance times ``|q|**2/d``; given the scores, what a head attends to is
a Gaussian vector of d coordinates with variance k. So the output projection sees ``k |z|**2/d``, z Gaussian, and a
coordinate is Gaussian given ``K = (k_1 r_1 + ... + k_H r_H)/H`` with independent ``r = chi_d**2/d``: characteristic
function ``(E (1 + t**2 k/(H d))**(-d/2))**H``, where k is averaged over the length of the query too. As d grows this
is :class:`HeadMixture`.

>>> import numpy as np
>>> limit = HeadMixture(np.eye(2))
>>> narrow, wide = (FiniteMixture(limit, dim).pdf(0.0) for dim in (8, 1e5))
>>> bool(narrow > wide), bool(abs(wide - limit.pdf(0.0)) < 1e-5)     # narrow heads have a higher peak
(True, True)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import factorial2, gammaln, ndtr, ndtri

from bulkedge.programs.activations import STEPS, cholesky, lattice, mean
from bulkedge.programs.graph import Program, softmax, trace
from bulkedge.programs.graph import linear as weighted
from bulkedge.programs.instructions import check_gram
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, GENERATOR, REAL, Instance, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

# largest relative difference to the rule with every other node: both rules converge geometrically, so the error of the
# finer one is about the square of that difference
SETTLED = 1e-3
BLOCK = 4096  # frequencies that are summed at once
SCORES = Interval(1e-6, 100)
NODES = 40  # to which the law of k is compressed: functions of k that are integrated here are far smoother than that
LEAST = 4  # dimensions of all heads together: with fewer the characteristic function decays too slowly


class CoordinateLaw(Parametric):
    """Law of a coordinate that is given by its characteristic function."""

    @abstractmethod
    def _characteristic(self, t: Real) -> Real:
        """The characteristic function."""

    @abstractmethod
    def _frequencies(self, x: Real) -> tuple[Real, float]:
        """Frequencies for Fourier inversion at the points x, and their spacing."""

    @takes(t=FINITE)
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
        return self._characteristic(np.asarray(t, dtype=float))

    @takes(x=FINITE)
    def pdf(self, x: Any) -> Any:
        """Density of the coordinate, by Fourier inversion of its characteristic function.

        Parameters
        ----------
        x : array_like
            Values of the coordinate, of any shape.

        Returns
        -------
        array
            The density there, of the same shape; right to an absolute 1e-13, so its far tail is not.

        Examples
        --------
        >>> import numpy as np
        >>> layer = HeadMixture(np.eye(3), heads=1)
        >>> float(layer.pdf(0.0)) > (2 * np.pi * layer.variance()) ** -0.5      # a higher peak than the Gaussian's
        True
        """
        point = np.asarray(x, dtype=float)
        t, step = self._frequencies(point)
        return _waves(np.cos, point, t, self._characteristic(t)) * step / np.pi

    @takes(x=FINITE)
    def sf(self, x: Any) -> Any:
        """``P(y > x)`` for x >= 0, to an absolute 1e-13.

        Parameters
        ----------
        x : array_like
            Non-negative values of the coordinate, of any shape.

        Returns
        -------
        array
            The probabilities, of the same shape.
        """
        point = np.asarray(x, dtype=float)
        t, step = self._frequencies(point)
        return 0.5 - _waves(np.sin, point, t, self._characteristic(t) / t) * step / np.pi


def _waves(wave: Any, x: Real, t: Real, weights: Real) -> Any:
    """``sum_t wave(x t) weights(t)`` at all points x."""
    parts = (slice(start, start + BLOCK) for start in range(0, len(t), BLOCK))
    return sum(wave(x[..., None] * t[part]) @ weights[part] for part in parts)


@dataclass(frozen=True, eq=False)
class HeadMixture(CoordinateLaw):
    """Law of a coordinate of an attention layer with finitely many heads, at one position, as the width grows.

    The integral over the scores has a direction for each input but one: up to five inputs.

    >>> round(float(HeadMixture(np.eye(2), heads=2).pdf(0.0)), 4)
    0.5035
    """

    gram: Any
    heads: int = parameter(Integers(1, 10**6), "number of heads", 1)
    position: int = parameter(Integers(0, 4), "which of the inputs attends", 0)
    score_variance: float = parameter(SCORES, "variance of query weights times that of key weights", 1.0)

    def __post_init__(self) -> None:
        """Check the parameters, and that the integral is small enough."""
        super().__post_init__()
        object.__setattr__(self, "gram", check_gram(self.gram))
        if len(self.gram) > 1 + max(STEPS) or self.position >= len(self.gram):
            raise DomainError(
                f"position = {self.position} of {len(self.gram)} inputs: up to five are integrated over; draw "
                "attention_layer(gram).kernels(rng, draws) for more"
            )

    @cached_property
    def _single(self) -> tuple[Real, Real]:
        """Values of k for one head, and their weights."""
        values, weights, even = self.kernel_values(self.score_variance * self.gram[self.position, self.position])
        self._check_convergence(float(weights @ values**2), float(even @ values**2))
        return values, weights

    @takes(scale=Interval(0, 1e12))
    def kernel_values(self, scale: float) -> tuple[Real, Real, Real]:
        """Values of k for one head, where the scores of the position have covariance ``scale * gram``."""
        size = len(self.gram) - 1
        if size == 0:
            return self.gram[0], np.ones(1), np.ones(1)
        nodes, weights, even = lattice(size)
        apart = np.hstack([np.eye(size), -np.ones((size, 1))])  # softmax sees differences only
        factor = cholesky((scale * apart @ self.gram @ apart.T)[:, :, None])[:, :, 0]
        attention = softmax(np.vstack([factor @ nodes.T, np.zeros(len(nodes))]))
        return np.sum(attention * (self.gram @ attention), axis=0), weights, even

    def _check_convergence(self, fine: float, coarse: float) -> None:
        apart = abs(float(fine / coarse) - 1)
        if apart > SETTLED:
            raise DomainError(f"score_variance = {self.score_variance:g} is too large: two rules differ by {apart:.1g}")

    @takes(order=Integers(0, 40))
    def kernel_moment(self, order: int) -> float:
        """``E K**order``, from the power series of ``(E exp(k x))**H``.

        Parameters
        ----------
        order : int
            Which moment, zero or more.

        Returns
        -------
        float
            The moment of the conditional variance K of a coordinate, exact up to the quadrature over the scores.
        """
        values, weights = self._single
        series = np.array([weights @ values**j / math.factorial(j) for j in range(order + 1)])
        total = np.eye(1, order + 1)[0]
        for bit in f"{self.heads:b}":
            total = np.convolve(total, total)[: order + 1]
            if bit == "1":
                total = np.convolve(total, series)[: order + 1]
        return float(total[order] * math.factorial(order) / self.heads**order)

    @takes(order=Integers(0, 40))
    def moment(self, order: int) -> float:
        """``E y**order`` of the coordinate, which is ``(order - 1)!! E K**(order/2)`` for even orders.

        Parameters
        ----------
        order : int
            Which moment, from 0 to 40.

        Returns
        -------
        float
            The moment; zero for odd orders.
        """
        return 0.0 if order % 2 else float(factorial2(order - 1)) * self.kernel_moment(order // 2) if order else 1.0

    def variance(self) -> float:
        """``E K``, which does not depend on the number of heads."""
        return self.kernel_moment(1)

    @takes(head_dim=Interval(1, 10**6, infinity=True))
    def excess_kurtosis(self, head_dim: float = math.inf) -> float:
        """``3 Var K/(E K)**2``, inversely proportional to the number of heads.

        With heads of ``head_dim`` dimensions it is known too, and exact at any width (ours). Scores of a position are
        Gaussian given its query, with variance times ``|q|**2/d``, and the values are seen through d dimensions, which
        gives ``k |z|**2/d``, z Gaussian: ``(3/H) ((1 + 2/d) E k**2/(E k)**2 - 1)``, where k is averaged over queries.

        Parameters
        ----------
        head_dim : int or inf
            Dimensions d of a head; infinitely many by default, the limit of :class:`HeadMixture`.

        Returns
        -------
        float
            ``E y**4/(E y**2)**2 - 3``.
        """
        scale = self.score_variance * self.gram[self.position, self.position]
        first, second, coarse = 0.0, 0.0, 0.0
        for length, mass in zip(*chi_square_rule(head_dim), strict=True):
            values, weights, even = self.kernel_values(scale * length)
            first += mass * (weights @ values)
            second += mass * (weights @ values**2)
            coarse += mass * (even @ values**2)
        self._check_convergence(second, coarse)
        return float(3 / self.heads * ((1 + 2 / head_dim) * second / first**2 - 1))

    def _characteristic(self, t: Real) -> Real:
        values, weights = self._single
        found = np.array([weights @ np.exp(-(each**2) * values / (2 * self.heads)) for each in t.ravel()])
        return found.reshape(t.shape) ** self.heads

    def _frequencies(self, x: Real) -> tuple[Real, float]:
        """Frequencies t for Fourier inversion at the points x, and their spacing."""
        # copies of the density lie 2 pi/spacing apart, twenty deviations beyond all x; the last is below rounding
        values, _ = self._single
        step = 2 * np.pi / (2 * float(np.max(np.abs(x), initial=0.0)) + 20 * float(values.max()) ** 0.5)
        last = (2 * 37 / max(float(values.min()), 1e-3 * self.variance())) ** 0.5
        return step * (np.arange(int(last / step) + 1) + 0.5), step

    @takes(x=REAL)
    def gaussian_sf(self, x: Any) -> Any:
        """What a Gaussian of the same variance says of the tail."""
        return ndtr(-np.asarray(x, dtype=float) / self.variance() ** 0.5)


def chi_square_rule(dim: float) -> tuple[Real, Real]:
    """Nodes and weights for means over ``chi_d**2/d``."""
    if math.isinf(dim):
        return np.ones(1), np.ones(1)
    Integers(1, 10**6).check("head_dim", dim)
    alpha = dim / 2 - 1
    steps = np.arange(24)
    # Golub and Welsch: the recurrence of the Laguerre polynomials, whose weights overflow where gamma does
    nodes, vectors = eigh_tridiagonal(2 * steps + alpha + 1, np.sqrt(steps[1:] * (steps[1:] + alpha)))
    return nodes * 2 / dim, vectors[0] ** 2


@dataclass(frozen=True, eq=False)
class FiniteMixture(CoordinateLaw):
    """Law of a coordinate of an attention layer whose heads have d dimensions; d = n for heads as wide as the layer.

    >>> round(float(FiniteMixture(HeadMixture(np.eye(2)), head_dim=16).pdf(0.0)), 4)
    0.5338
    """

    limit: HeadMixture = parameter(
        Instance(HeadMixture), "inputs, heads and score variance: the law for infinitely many dimensions"
    )
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

    def _characteristic(self, t: Real) -> Real:
        values, weights = self._single
        total = self.head_dim * self.limit.heads
        powers = np.exp(-self.head_dim / 2 * np.log1p(t[..., None] ** 2 * values / total))
        return np.asarray((powers @ weights) ** self.limit.heads)

    def _frequencies(self, x: Real) -> tuple[Real, float]:
        """Frequencies for Fourier inversion at the points x, and their spacing."""
        # the density decays as a Gaussian of variance one, or as exp(-|x| sqrt(d H)) if that is slower
        largest, total = float(self._single[0].max()), self.head_dim * self.limit.heads
        reach = largest**0.5 * max(20.0, 45 / total**0.5)
        step = 2 * np.pi / (2 * float(np.max(np.abs(x), initial=0.0)) + reach)
        last = 4 * self.variance() ** -0.5
        # absolute error of densities and tails that the last frequency may leave
        while last * float(self._characteristic(np.array(last))) > 1e-14 * np.pi * (total - 1):
            last *= 1.2
        return step * (np.arange(int(last / step) + 1) + 0.5), step

    @takes(x=FINITE)
    def pdf(self, x: Any) -> Any:
        """Density of the coordinate; with one head a sum of Gaussians, whose far tail is right in relative terms."""
        if self.limit.heads > 1:
            return super().pdf(x)
        values, weights = self._variances
        squares = np.asarray(x, dtype=float)[..., None] ** 2 / (2 * values)
        return np.exp(-squares) @ (weights / np.sqrt(2 * np.pi * values))

    @takes(x=FINITE)
    def sf(self, x: Any) -> Any:
        """``P(y > x)`` for x >= 0, as accurate as :meth:`pdf`."""
        if self.limit.heads > 1:
            return super().sf(x)
        values, weights = self._variances
        return ndtr(-np.asarray(x, dtype=float)[..., None] / np.sqrt(values)) @ weights

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


def compress(values: Real, weights: Real, nodes: int = NODES) -> tuple[Real, Real]:
    """A discrete law with fewer points: the Gauss rule that has its moments up to ``2 nodes - 1``."""
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


@takes(score_variance=SCORES, rng=GENERATOR)
def infinite_head_kernel(gram: Any, score_variance: float = 1.0, rng: np.random.Generator | None = None) -> Estimate:
    """``E[A gram A']``, the kernel of the Gaussian process of infinitely many heads (Hron et al. 2020).

    By quadrature up to three inputs, by scrambled Sobol points beyond, which need ``rng`` and have a standard error.

    Parameters
    ----------
    gram : array_like of shape (inputs, inputs)
        ``x_i · x_j / n`` of the inputs; symmetric, positive semidefinite.
    score_variance : float
        Variance of the query weights times that of the key weights.
    rng : numpy.random.Generator, optional
        Scrambles the Sobol points; needed for four inputs and more.

    Returns
    -------
    Estimate
        The kernel, of shape (inputs, inputs), and its standard error of the same shape, zero for quadrature.

    Raises
    ------
    DomainError
        If there are more than three inputs and no generator.

    Examples
    --------
    >>> infinite_head_kernel([[1.0]]).value
    array([[1.]])
    """
    sigma = check_gram(gram)
    if len(sigma) > 3:
        return _sobol_kernel(sigma, score_variance, rng)
    found = np.empty_like(sigma)
    for i, j in combinations_with_replacement(range(len(sigma)), 2):
        found[i, j] = found[j, i] = _row_product(sigma, score_variance, i, j)
    return Estimate(found, np.zeros_like(found))


def _row_product(sigma: Real, score_variance: float, i: int, j: int) -> float:
    """``E[a_i' gram a_j]``, where a_i is row i of the attention."""
    size = len(sigma) - 1
    if size == 0:
        return float(sigma[0, 0])
    apart = np.hstack([np.eye(size), -np.ones((size, 1))])
    inner = score_variance * apart @ sigma @ apart.T

    def attention(scores: Any) -> Any:
        return softmax(np.stack([*scores, np.zeros_like(scores[0])], axis=-2))

    def bilinear(*scores: Any) -> Any:
        left, right = attention(scores[:size]), attention(scores[-size:])
        return np.sum(left * np.einsum("ij,...jd->...id", sigma, right), axis=-2)

    rows = np.array([[sigma[i, i]]]) if i == j else sigma[np.ix_([i, j], [i, j])]
    return float(mean(bilinear, np.kron(rows, inner)[:, :, None])[0])


def _sobol_kernel(sigma: Real, score_variance: float, rng: np.random.Generator | None) -> Estimate:
    from scipy.stats import qmc  # half a second to import, for this function alone

    if rng is None:
        raise DomainError(f"{len(sigma)} inputs are too many for quadrature: give rng, for Sobol points")
    factor = cholesky(sigma[:, :, None])[:, :, 0]
    found = []
    for stream in rng.spawn(16):
        uniform = qmc.Sobol(sigma.size, rng=stream).random_base2(12)
        noise = ndtri(np.clip(uniform, 1e-15, 1 - 1e-15)).reshape(-1, *sigma.shape)
        scores = score_variance**0.5 * factor @ noise @ factor.T
        attention = softmax(np.moveaxis(scores, 0, -1))
        half = np.einsum("ijd,jk->dik", attention, factor)
        found.append(np.einsum("dik,djk->ij", half, half) / len(half))
    return Estimate(np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / len(found) ** 0.5)


@takes(rng=GENERATOR)
def infinite_head_layer(gram: Any, rng: np.random.Generator | None = None) -> Program:
    """The program whose output has the law of an attention layer with infinitely many heads: a weight on its kernel.

    Parameters
    ----------
    gram : array_like of shape (inputs, inputs)
        ``x_i · x_j / n`` of the inputs; symmetric, positive semidefinite.
    rng : numpy.random.Generator, optional
        For four inputs and more; see :func:`infinite_head_kernel`.

    Returns
    -------
    Program
        It returns a family of Gaussian vectors, one for each input, with that kernel as their covariance.

    Examples
    --------
    >>> print(infinite_head_layer(np.eye(1)))
    x0 = input       1 vectors of width n
    W1 = weight      matrix n × n
    g2 = W1 x0       1 vectors of width n
    return g2
    """
    return trace(weighted, infinite_head_kernel(gram, rng=rng).value)
