"""The limit of one attention layer in quadrature: density, tails, moments and characteristic function of a coordinate.

Given the scores, a coordinate at one position is Gaussian with variance ``K = (k_1 + ... + k_H)/H``, where the ``k_a``
are independent copies of ``k = a' gram a``, ``a = softmax(p)``, with p Gaussian of covariance
``score_variance gram_ii gram`` (*width*, Theorem 3.1). So everything follows from the law of k: the coordinate has
characteristic function ``(E exp(-t**2 k/(2 H)))**H`` and excess kurtosis ``3 Var k/(H (E k)**2)``
(docs/theory/width.md, "One coordinate in quadrature").

>>> import numpy as np
>>> one, many = (HeadMixture(np.eye(3), heads=heads) for heads in (1, 100))
>>> round(one.excess_kurtosis(), 4), round(many.excess_kurtosis(), 6)
(0.1927, 0.001927)
>>> infinite_head_kernel(np.eye(2)).value.round(6)
array([[0.636838, 0.5     ],
       [0.5     , 0.636838]])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal
from scipy.special import factorial2, ndtr, ndtri

from bulkedge.programs.gaussian import STEPS, cholesky, lattice, mean
from bulkedge.programs.graph import Program, softmax, trace
from bulkedge.programs.graph import linear as weighted
from bulkedge.programs.instructions import check_gram
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate

SETTLED = 1e-3
"""Largest relative difference to the rule with every other node. Both rules converge geometrically, so the error of
the finer one is about the square of that difference."""
SCORES = Interval(1e-6, 100)


@dataclass(frozen=True, eq=False)
class HeadMixture(Parametric):
    """Law of a coordinate of an attention layer with finitely many heads, at one position, as the width grows.

    The integral over the scores has a direction for each input but one: up to five inputs.
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

    def kernel_values(self, scale: float) -> tuple[Real, Real, Real]:
        """Values of k for one head, where the scores of the position have covariance ``scale * gram``.

        Parameters
        ----------
        scale : float
            Variance of a score, over that of an input.

        Returns
        -------
        values : array of shape (nodes,)
            k at the nodes of a trapezoidal rule over the scores.
        weights : array of shape (nodes,)
            Weights of the nodes, which sum to one.
        even : array of shape (nodes,)
            Weights in the coarser rule that takes every other node, to judge the error by.
        """
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
        Integers(0, 40).check("order", order)
        return 0.0 if order % 2 else float(factorial2(order - 1)) * self.kernel_moment(order // 2) if order else 1.0

    def variance(self) -> float:
        """``E K``, which does not depend on the number of heads."""
        return self.kernel_moment(1)

    def excess_kurtosis(self, head_dim: float = math.inf) -> float:
        """``3 Var K/(E K)**2``: the number of heads divides it.

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
        grid = np.atleast_1d(np.asarray(t, dtype=float))
        found = np.array([weights @ np.exp(-(each**2) * values / (2 * self.heads)) for each in grid.ravel()])
        return (found.reshape(grid.shape) ** self.heads).reshape(np.shape(t))

    def _frequencies(self, x: Real) -> tuple[Real, float]:
        """Frequencies t for Fourier inversion at the points x, and their spacing.

        A spacing h adds copies of the density at multiples of 2 pi/h, which lie twenty deviations or more beyond all x;
        at the last frequency the characteristic function is below rounding.
        """
        values, _ = self._single
        step = 2 * np.pi / (2 * float(np.max(np.abs(x), initial=0.0)) + 20 * float(values.max()) ** 0.5)
        last = (2 * 37 / max(float(values.min()), 1e-3 * self.variance())) ** 0.5
        return step * (np.arange(int(last / step) + 1) + 0.5), step

    def pdf(self, x: Any) -> Any:
        """Density of the coordinate, by Fourier inversion of its characteristic function.

        Parameters
        ----------
        x : array_like
            Values of the coordinate, of any shape.

        Returns
        -------
        array
            The density there, of the same shape; right to an absolute error near the rounding unit, so its far tail is
            not.

        Examples
        --------
        >>> import numpy as np
        >>> layer = HeadMixture(np.eye(3), heads=1)
        >>> float(layer.pdf(0.0)) > (2 * np.pi * layer.variance()) ** -0.5      # a higher peak than the Gaussian's
        True
        """
        point = np.asarray(x, dtype=float)
        t, step = self._frequencies(point)
        return np.cos(point[..., None] * t) @ self.characteristic(t) * step / np.pi

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
        return 0.5 - np.sin(point[..., None] * t) @ (self.characteristic(t) / t) * step / np.pi

    def gaussian_sf(self, x: Any) -> Any:
        """What a Gaussian of the same variance says of the tail.

        Parameters
        ----------
        x : array_like
            Values of the coordinate, of any shape.

        Returns
        -------
        array
            ``P(g > x)`` for Gaussian g, of the same shape.
        """
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
    SCORES.check("score_variance", score_variance)
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
    """
    return trace(weighted, infinite_head_kernel(gram, rng=rng).value)
