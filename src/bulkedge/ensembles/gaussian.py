"""Gaussian matrices: the finite models of the semicircle, Marchenko-Pastur, product and sum laws.

>>> import numpy as np
>>> GaussianSum(tokens=200, variances=(1.0, 0.7), ratios=(0.5, float("inf"))).spectrum(np.random.default_rng(0)).size
200
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import matmul
from typing import Any

import numpy as np

from bulkedge.ensembles.base import Ensemble
from bulkedge.laws.classical.product import MarchenkoPastur, ProductLaw
from bulkedge.laws.classical.semicircle import Semicircle, SumLaw
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import Each, Integers, Interval, Parametric, parameter
from bulkedge.support.random import normal

SIZE = Integers(2, 10**6)
VARIANCE = Interval(1e-30, 1e30)


@dataclass(frozen=True)
class Wigner(Parametric, Ensemble):
    """Symmetric Gaussian matrix; its eigenvalues follow :class:`~bulkedge.laws.classical.semicircle.Semicircle`.

    >>> model = Wigner(size=200)
    >>> round(float(model.spectrum(np.random.default_rng(0)).values[-1]), 2), model.law().edge
    (2.01, 2.0)
    """

    size: int = parameter(SIZE, "number of rows")
    variance: float = parameter(VARIANCE, "variance of the limit", 1.0)

    def sample(self, rng: Any) -> Any:
        """Draw ``sqrt(variance/(2 size)) (W + W')``, W with independent standard Gaussian entries."""
        w = normal(rng, (self.size, self.size))
        return (self.variance / (2 * self.size)) ** 0.5 * (w + w.T)

    def spectrum(self, rng: Any) -> Spectrum:
        """All eigenvalues of a draw."""
        return spectrum(self.sample(rng), kind="eigen")

    def law(self) -> Law:
        """Semicircle."""
        return Semicircle(self.variance)


@dataclass(frozen=True)
class Wishart(Parametric, Ensemble):
    """Sample covariance of white noise; its eigenvalues follow :class:`~bulkedge.laws.MarchenkoPastur`.

    >>> model = Wishart(dim=100, samples=400)
    >>> round(float(model.spectrum(np.random.default_rng(0)).values[-1]), 2), model.law().edge
    (2.22, 2.25)
    """

    dim: int = parameter(SIZE, "dimension D")
    samples: int = parameter(SIZE, "samples V")
    scale: float = parameter(VARIANCE, "variance of the noise", 1.0)

    def sample(self, rng: Any) -> Any:
        """Draw ``scale Z'Z/N``, Z of shape (N, D) with independent standard Gaussian entries."""
        z = normal(rng, (self.samples, self.dim))
        return z.T @ z * (self.scale / self.samples)

    def spectrum(self, rng: Any) -> Spectrum:
        """All D eigenvalues of a draw, zeros included."""
        return spectrum(self.sample(rng), kind="eigen")

    def law(self) -> Law:
        """Marchenko-Pastur with ratio D/N."""
        return MarchenkoPastur(self.dim / self.samples, self.scale)


@dataclass(frozen=True)
class GaussianProduct(Parametric, Ensemble):
    """Product of rectangular Gaussian matrices.

    Its squared singular values follow :class:`~bulkedge.laws.classical.product.ProductLaw`.

    >>> model = GaussianProduct(dim=200, ratios=(0.5, 1.0))
    >>> round(float(model.spectrum(np.random.default_rng(0)).values[-1]), 1), round(model.law().edge, 1)
    (5.4, 5.5)
    """

    dim: int = parameter(SIZE, "rows D of the product")
    ratios: tuple[float, ...] = parameter(Each(Interval(1e-6, 1e6), most=30), "ratios D/N_i to the inner dimensions")
    scale: float = parameter(VARIANCE, "mean squared singular value", 1.0)

    def _widths(self) -> list[int]:
        return [max(1, round(self.dim / ratio)) for ratio in self.ratios]

    def sample(self, rng: Any) -> Any:
        """``sqrt(scale) G_1 ... G_m/sqrt(N_1 ... N_m)``, G_i of size N_{i-1} x N_i."""
        widths = [self.dim, *self._widths()]
        factors = (normal(rng, shape) / shape[1] ** 0.5 for shape in pairwise(widths))
        return self.scale**0.5 * reduce(matmul, factors)

    def spectrum(self, rng: Any) -> Spectrum:
        """Squared singular values, the D - N zero ones of a narrow product included."""
        matrix = self.sample(rng)
        return spectrum(matrix @ matrix.T, kind="eigen")

    def law(self) -> Law:
        """Product law with the ratios as realised by whole numbers."""
        return ProductLaw(tuple(self.dim / width for width in self._widths()), self.scale)


@dataclass(frozen=True)
class GaussianSum(Parametric, Ensemble):
    """Low-rank Gaussian terms plus noise.

    Its squared singular values follow :class:`~bulkedge.laws.classical.semicircle.SumLaw`, squared. The linear model of
    *equivalence*: ``sum_k b_k P_k Q_k'/sqrt(T N_k)``, an infinite ratio being a full matrix ``b W/sqrt(T)``.

    >>> model = GaussianSum(tokens=200, variances=(1.0, 0.7), ratios=(0.5, float("inf")))
    >>> round(float(model.spectrum(np.random.default_rng(0)).values[-1]), 1), round(model.law().edge, 1)
    (10.2, 10.8)
    """

    tokens: int = parameter(SIZE, "size T of the matrix")
    variances: tuple[float, ...] = parameter(Each(VARIANCE), "variances b_k**2 of the terms")
    ratios: tuple[float, ...] = parameter(Each(Interval(1e-6, 1e6, infinity=True)), "rank ratios N_k/T")

    def __post_init__(self) -> None:
        """Check the parameters, and that there is one ratio for each variance."""
        super().__post_init__()
        SumLaw(self.variances, self.ratios)

    def _rank(self, ratio: float) -> int:
        return max(1, round(ratio * self.tokens))

    def sample(self, rng: Any) -> Any:
        """Draw the sum of the terms, of shape (tokens, tokens)."""
        return sum(self._term(*each, rng) for each in zip(self.variances, self.ratios, strict=True))

    def _term(self, variance: float, ratio: float, rng: Any) -> Any:
        if np.isinf(ratio):
            return (variance / self.tokens) ** 0.5 * normal(rng, (self.tokens, self.tokens))
        rank = self._rank(ratio)
        p, q = (normal(rng, (self.tokens, rank)) for _ in range(2))
        return (variance / (self.tokens * rank)) ** 0.5 * p @ q.T

    def spectrum(self, rng: Any) -> Spectrum:
        """All squared singular values of a draw."""
        return spectrum(self.sample(rng)).squared()

    def law(self) -> Law:
        """Sum law, squared, with the ratios as realised by whole numbers."""
        ratios = tuple(each if np.isinf(each) else self._rank(each) / self.tokens for each in self.ratios)
        return SumLaw(self.variances, ratios).squared()
