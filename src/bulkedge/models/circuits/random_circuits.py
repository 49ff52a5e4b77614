"""Circuits of random weights: the law of their singular values, their edge, and how far finite ones are from the law.

With factors of shape (left, dim) and (right, dim) and independent entries, the squared singular values of ``left factor
@ right factor'`` follow a ``ProductLaw`` with the smallest of the three numbers over the two others as its ratios.

>>> null = RandomHead.of(768, 64, 768)
>>> round(null.law.edge, 3), round(null.edge, 3)
(2.037, 2.131)
>>> values = null.draw(np.random.default_rng(1))
>>> float(null.distance(values)) < 2 * null.typical_distance()
True
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bulkedge.laws.classical.product import ProductLaw
from bulkedge.laws.classical.tracy_widom import TracyWidom
from bulkedge.support.arrays import Real

LEVEL = 0.01
"""Probability that random weights have a singular value beyond the edge."""
DRAWS = 49
"""Random heads behind the distance that random weights are expected to have."""


@dataclass(frozen=True)
class RandomHead:
    """A circuit of random weights: what the numbers of a head are held against.

    Attributes
    ----------
    shape : tuple of int
        Width of the left factor, dimension that both share, width of the right factor.
    law : ProductLaw
        Law of the squared singular values, in units of their mean.
    edge : float
        What the largest of them exceeds with probability :data:`LEVEL`.
    root : float
        Mean of the singular values themselves under the law.
    """

    shape: tuple[int, int, int]
    law: ProductLaw
    edge: float
    root: float

    @classmethod
    def of(cls, left: int, dim: int, right: int) -> RandomHead:
        """The null of heads of a given shape."""
        return _random_head(left, dim, right)

    @property
    def size(self) -> int:
        """How many singular values are not zero."""
        return min(self.shape)

    def scale(self, values: Real) -> Real:
        """The mean of squared singular values that random weights would have, for these."""
        return (values.mean(axis=-1) / self.root) ** 2

    def distance(self, values: Real) -> Real:
        """Kolmogorov distance between all squared singular values of a head and the law."""
        scale = self.scale(values)[..., None]
        unit = np.divide(values**2, scale, out=np.zeros_like(values), where=scale > 0)
        upto = np.arange(1, self.size + 1) / self.size
        at = self.law.cdf(unit)
        largest = np.maximum(np.abs(upto - at), np.abs(upto - 1 / self.size - at)).max(axis=-1)
        return np.where(scale[..., 0] > 0, largest, np.nan)

    def p_largest(self, values: Real) -> Real:
        """Probability that the largest singular value of random weights is as far out, in the Tracy-Widom limit."""
        scale = self.scale(values)
        there = scale > 0
        top = np.divide(values[..., -1] ** 2, scale, out=np.zeros_like(scale), where=there)
        beyond = (top - self.law.edge) / (self.law.edge_scale * self.size ** (-2 / 3))
        return np.where(there, TracyWidom(1).sf(beyond), np.nan)

    def typical_distance(self) -> float:
        """The median distance of random weights of this shape, from :data:`DRAWS` draws with a seed of their own."""
        return _typical_distance(self)

    def draw(self, rng: np.random.Generator) -> Real:
        """Singular values of a random circuit."""
        left, dim, right = self.shape
        return singular_values(_triangle(left, dim, rng) @ _triangle(right, dim, rng).T)


@lru_cache(maxsize=256)
def _random_head(left: int, dim: int, right: int) -> RandomHead:
    small, *others = sorted((left, dim, right))
    # on the smallest of the three spaces the product has no kernel, and the law no atom
    law = ProductLaw(tuple(small / each for each in others))
    return RandomHead((left, dim, right), law, law.finite_edge(small, LEVEL), law.sqrt().mean())


@lru_cache(maxsize=256)
def _typical_distance(null: RandomHead) -> float:
    rng = np.random.default_rng(0)
    return float(np.median(null.distance(np.stack([null.draw(rng) for _ in range(DRAWS)]))))


def _triangle(width: int, dim: int, rng: np.random.Generator) -> Real:
    """The triangular factor of a Gaussian matrix of shape (width, dim); the matrix itself if it is not tall."""
    if width < dim:
        return rng.standard_normal((width, dim))
    triangle = np.triu(rng.standard_normal((dim, dim)), 1)
    np.fill_diagonal(triangle, np.sqrt(rng.chisquare(width - np.arange(dim))))
    return triangle


def singular_values(matrices: Real) -> Real:
    """Singular values of each of a stack of matrices."""
    return np.linalg.svd(matrices, compute_uv=False)[..., ::-1]
