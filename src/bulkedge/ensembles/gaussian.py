"""Gaussian matrices: the finite models of the semicircle, Marchenko-Pastur, product and sum laws.

>>> import numpy as np
>>> GaussianSum(tokens=200, variances=(1.0, 0.7), ratios=(0.5, float("inf"))).spectrum(np.random.default_rng(0)).size
200
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bulkedge.arrays import Real
from bulkedge.domains import Each, Integers, Interval, Parametric, parameter
from bulkedge.ensembles.base import Ensemble
from bulkedge.laws.base import Law
from bulkedge.laws.product import MarchenkoPastur, ProductLaw
from bulkedge.laws.semicircle import Semicircle
from bulkedge.laws.sum import SumLaw
from bulkedge.spectra import Spectrum, spectrum

SIZE = Integers(2, 10**6)
VARIANCE = Interval(1e-30, 1e30)


@dataclass(frozen=True)
class Wigner(Parametric, Ensemble):
    """Symmetric Gaussian matrix; its eigenvalues follow :class:`~bulkedge.laws.semicircle.Semicircle`."""

    size: int = parameter(SIZE, "number of rows")
    variance: float = parameter(VARIANCE, "variance of the limit", 1.0)

    def sample(self, rng: np.random.Generator) -> Real:
        """``sqrt(variance/(2 size)) (W + W')``."""
        w = rng.standard_normal((self.size, self.size))
        return np.asarray(np.sqrt(self.variance / (2 * self.size)) * (w + w.T))

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Eigenvalues."""
        return spectrum(self.sample(rng), kind="eigen")

    def law(self) -> Law:
        """Semicircle."""
        return Semicircle(self.variance)


@dataclass(frozen=True)
class Wishart(Parametric, Ensemble):
    """Sample covariance of white noise; its eigenvalues follow :class:`~bulkedge.laws.product.MarchenkoPastur`."""

    dim: int = parameter(SIZE, "dimension d")
    samples: int = parameter(SIZE, "samples V")
    scale: float = parameter(VARIANCE, "variance of the noise", 1.0)

    def sample(self, rng: np.random.Generator) -> Real:
        """``scale Z'Z/V``."""
        z = rng.standard_normal((self.samples, self.dim))
        return np.asarray(z.T @ z * (self.scale / self.samples))

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Eigenvalues."""
        return spectrum(self.sample(rng), kind="eigen")

    def law(self) -> Law:
        """Marchenko-Pastur with ratio d/V."""
        return MarchenkoPastur(self.dim / self.samples, self.scale)


@dataclass(frozen=True)
class GaussianProduct(Parametric, Ensemble):
    """Product of rectangular Gaussian matrices.

    Its squared singular values follow :class:`~bulkedge.laws.product.ProductLaw`.
    """

    dim: int = parameter(SIZE, "rows d of the product")
    ratios: tuple[float, ...] = parameter(Each(Interval(1e-6, 1e6), most=30), "ratios d/N_i to the inner dimensions")
    scale: float = parameter(VARIANCE, "mean squared singular value", 1.0)

    def _widths(self) -> list[int]:
        return [max(1, round(self.dim / ratio)) for ratio in self.ratios]

    def sample(self, rng: np.random.Generator) -> Real:
        """``sqrt(scale) G_1 ... G_m/sqrt(N_1 ... N_m)``, G_i of size N_{i-1} x N_i."""
        product = np.sqrt(self.scale) * np.eye(self.dim)
        rows = self.dim
        for width in self._widths():
            product = product @ (rng.standard_normal((rows, width)) / np.sqrt(width))
            rows = width
        return np.asarray(product)

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Squared singular values, the d - N zero ones of a narrow product included."""
        matrix = self.sample(rng)
        return spectrum(matrix @ matrix.T, kind="eigen")

    def law(self) -> Law:
        """Product law with the ratios as realised by whole numbers."""
        return ProductLaw(tuple(self.dim / width for width in self._widths()), self.scale)


@dataclass(frozen=True)
class GaussianSum(Parametric, Ensemble):
    """Low-rank Gaussian terms plus noise.

    Its squared singular values follow :class:`~bulkedge.laws.sum.SumLaw`, squared. The linear model of *equivalence*:
    ``sum_k b_k P_k Q_k'/sqrt(l N_k)``, an infinite ratio being a full matrix ``b W/sqrt(l)``.
    """

    tokens: int = parameter(SIZE, "size l of the matrix")
    variances: tuple[float, ...] = parameter(Each(VARIANCE), "variances b_k**2 of the terms")
    ratios: tuple[float, ...] = parameter(Each(Interval(1e-6, 1e6, infinity=True)), "rank ratios N_k/l")

    def __post_init__(self) -> None:
        """Check the parameters, and that there is one ratio for each variance."""
        super().__post_init__()
        SumLaw(self.variances, self.ratios)

    def sample(self, rng: np.random.Generator) -> Real:
        """The sum of the terms."""
        total = np.zeros((self.tokens, self.tokens))
        for variance, ratio in zip(self.variances, self.ratios, strict=True):
            if np.isinf(ratio):
                total += np.sqrt(variance / self.tokens) * rng.standard_normal((self.tokens, self.tokens))
            else:
                rank = max(1, round(ratio * self.tokens))
                p, q = (rng.standard_normal((self.tokens, rank)) for _ in range(2))
                total += np.sqrt(variance / (self.tokens * rank)) * p @ q.T
        return total

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Squared singular values."""
        return spectrum(self.sample(rng)).squared()

    def law(self) -> Law:
        """Sum law, squared."""
        return SumLaw(self.variances, self.ratios).squared()
