"""Random Markov matrices: attention as if its scores were independent, and the repair of its spectrum."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from bulkedge.ensembles.base import Ensemble
from bulkedge.laws.attention.finite_head import heavy_share
from bulkedge.laws.attention.perron import perron_of_independent
from bulkedge.laws.classical.semicircle import QuarterCircle
from bulkedge.laws.law import Law
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.arrays import Real
from bulkedge.support.domains import MATRIX, Array, Choice, Integers, Interval, Parametric, parameter, takes
from bulkedge.support.errors import DomainError, RegimeWarning
from bulkedge.support.random import numpy_generator

Entries = Literal["lognormal", "exponential", "uniform"]
ENTRIES = Choice(("lognormal", "exponential", "uniform"))
UNIFORM = Interval(1e-6, 1 / 3)


@dataclass(frozen=True)
class RandomMarkov(Parametric, Ensemble):
    """Non-negative i.i.d. entries of mean one, rows normalised; the law is that of ``sqrt(T) (A - uu')``, squared.

    *propagation*, Definition 1.1. Key-query attention on orthonormal tokens, with ``variance = exp(beta**2) - 1``, is
    close to one of these in its first layer only if its head dimension is far above T: scores are a matrix of that
    rank, and not independent as Proposition 1 has them. At a head dimension of T the laws stay apart, by a Kolmogorov
    distance of 0.115 at ``beta = 0.5``, and at 64 dimensions and 320 tokens by 0.40 (``propagation/key-query``). For
    those there is :class:`~bulkedge.ensembles.attention.SoftmaxAttention`.

    >>> model = RandomMarkov(tokens=300, variance=0.5)
    >>> round(float(model.spectrum(np.random.default_rng(0)).values[-1]), 2), model.law().edge
    (2.12, 2.0)
    """

    tokens: int = parameter(Integers(2, 10**5), "number of tokens T")
    variance: float = parameter(Interval(1e-6, 1e30), "variance of an entry before normalisation", 1.0)
    entries: Entries = parameter(ENTRIES, "their distribution", "lognormal")  # a declaration

    def __post_init__(self) -> None:
        """Check the parameters, and that there are such entries of mean one."""
        super().__post_init__()
        if self.entries == "exponential" and self.variance != 1:
            raise DomainError(f"variance = {self.variance!r} is outside its domain {{1}} for exponential entries")
        if self.entries == "uniform" and self.variance > UNIFORM.high:
            raise DomainError(
                f"variance = {self.variance!r} is outside its domain {UNIFORM} for uniform entries: "
                "they would be negative (lognormal ones may have any variance)"
            )

    def sample(self, rng: np.random.Generator) -> Real:
        """Draw the attention matrix A, of shape (tokens, tokens); its rows sum to one."""
        entries = self._entries(rng)
        return np.asarray(entries / entries.sum(axis=1, keepdims=True))

    def _entries(self, rng: np.random.Generator) -> Real:
        rng, shape = numpy_generator(rng), (self.tokens, self.tokens)
        if self.entries == "exponential":
            return rng.standard_exponential(shape)
        if self.entries == "uniform":
            return 1 + np.sqrt(12 * self.variance) * (rng.random(shape) - 0.5)
        return np.asarray(np.exp(np.sqrt(np.log1p(self.variance)) * rng.standard_normal(shape)))

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Squared singular values of ``sqrt(T) (A - uu')``."""
        return spectrum(np.sqrt(self.tokens) * without_gap(self.sample(rng))).squared()

    def law(self) -> Law:
        """Quarter circle, squared (*propagation*, Lemma 3).

        A warning says where lognormal entries are so unequal that single ones hold the variance.
        """
        self.check_tails("the quarter circle", stacklevel=3)
        return QuarterCircle(self.variance).squared()

    def check_tails(self, what: str, stacklevel: int = 2) -> None:
        """Warn if a prediction is for lighter tails than these entries have at this number of tokens."""
        share = self.heavy_share()
        # share of the variance in single large entries up to which the quarter circle is trusted: at 0.13 to 0.15 the
        # Kolmogorov distance is 0.05 with 400 tokens and 0.075 with 60, at 0.35 to 0.5 it is 0.13 to 0.17
        if share > 0.2:
            warnings.warn(
                f"{what} is for light tails: with variance = {self.variance:g} at {self.tokens} tokens {share:.0%} of "
                "the variance is in entries that leave the bulk on their own. More tokens or less variance help",
                RegimeWarning,
                stacklevel=stacklevel,
            )

    def heavy_share(self) -> float:
        """Share of the variance in entries large enough to leave the bulk on their own; zero unless lognormal."""
        return heavy_share(self._beta, self.tokens) if self.entries == "lognormal" else 0.0

    @property
    def _beta(self) -> float:
        """Standard deviation of the logarithms of lognormal entries."""
        return float(np.sqrt(np.log1p(self.variance)))

    def outlier(self) -> float:
        """``T s_1(A)**2``, about ``T + variance``: the columns do not sum to one exactly (*propagation*, Theorem 2).

        It is ``T/(1 - v)`` with v the variance of the column sums (:mod:`bulkedge.laws.attention.perron`), which is
        ``variance/T`` where tails are light. A warning says where it is a lower bound only.
        """
        if self.entries != "lognormal":
            return self.tokens / (1 - self.variance / self.tokens)
        found = perron_of_independent(self._beta, self.tokens)
        if not found.trusted:
            warnings.warn(
                f"variance = {self.variance:g} is too large for the outlier at {self.tokens} tokens: the largest "
                f"weight is {found.largest:.2f}. This is a lower bound only",
                RegimeWarning,
                stacklevel=2,
            )
        return self.tokens * found.square


@takes(attention=Array(least=2))
def without_gap(attention: Any) -> Any:
    """``A - uu'``, the repair of *propagation*, equation 9; on values it costs one mean.

    Parameters
    ----------
    attention : array with axes (..., query, key)
        Attention to all, whose rows sum to one; NumPy or torch.

    Returns
    -------
    array of the same shape
        Its rows sum to zero.

    Examples
    --------
    >>> without_gap(np.array([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [[0.0, 0.0], [0.5, -0.5]]
    """
    return attention - 1 / attention.shape[-1]


class Pruned(NamedTuple):
    """A matrix without its outliers, and how many singular directions were taken out."""

    matrix: Real
    removed: int


@takes(attention=MATRIX, edge=Interval(0, math.inf))
def without_outliers(attention: Real, *, count: int | None = None, edge: float | None = None) -> Pruned:
    """Project out the largest singular directions: a given number of them, or all beyond an edge.

    Ours; *propagation* takes out one and leaves the others open.

    Parameters
    ----------
    attention : array of shape (T, T)
        A draw of the attention matrix.
    count : int, optional
        How many directions to take out.
    edge : float, optional
        The largest singular value that stays; one of the two must be given.

    Returns
    -------
    Pruned
        The matrix of shape (T, T), and how many directions were taken out.

    Examples
    --------
    >>> without_outliers(np.array([[3.0, 0.0], [0.0, 1.0]]), edge=2.0).matrix.round(12) + 0.0
    array([[0., 0.],
           [0., 1.]])
    """
    if (count is None) == (edge is None):
        raise DomainError(f"count = {count!r} and edge = {edge!r}: give one of the two")
    left, values, right = np.linalg.svd(attention)
    removed = int(np.sum(values > edge)) if count is None else Integers(0, len(values)).check("count", count)
    return Pruned(np.asarray((left[:, removed:] * values[removed:]) @ right[removed:]), removed)
