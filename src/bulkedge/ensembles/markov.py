"""Random Markov matrices: attention as if its scores were independent, and the repair of its spectrum.

>>> import numpy as np
>>> model = RandomMarkov(tokens=400, variance=1.0)
>>> attention = model.sample(np.random.default_rng(0))
>>> bool(np.allclose(attention.sum(axis=1), 1.0))
True
>>> round(float(np.linalg.norm(attention, 2)), 2), round(float(np.linalg.norm(without_gap(attention), 2)), 2)
(1.0, 0.11)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from bulkedge.arrays import Real
from bulkedge.domains import Choice, Integers, Interval, Parametric, parameter
from bulkedge.ensembles.base import Ensemble
from bulkedge.errors import DomainError
from bulkedge.laws.base import Law
from bulkedge.laws.semicircle import QuarterCircle
from bulkedge.spectra import Spectrum, spectrum

Entries = Literal["lognormal", "exponential", "uniform"]
ENTRIES = Choice(("lognormal", "exponential", "uniform"))
UNIFORM = Interval(1e-6, 1 / 3)


@dataclass(frozen=True)
class RandomMarkov(Parametric, Ensemble):
    """Non-negative i.i.d. entries of mean one, rows normalised; the law is that of ``sqrt(T) (A - uu')``, squared.

    *propagation*, Definition 1.1. Key-query attention on orthonormal tokens is one of these in its first layer, with
    ``variance = exp(beta**2) - 1`` (Proposition 1); softmax of scores of your own is
    :class:`~bulkedge.ensembles.attention.SoftmaxAttention`.
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
        """Draw A."""
        entries = self._entries(rng)
        return np.asarray(entries / entries.sum(axis=1, keepdims=True))

    def _entries(self, rng: np.random.Generator) -> Real:
        shape = (self.tokens, self.tokens)
        if self.entries == "exponential":
            return rng.standard_exponential(shape)
        if self.entries == "uniform":
            return 1 + np.sqrt(12 * self.variance) * (rng.random(shape) - 0.5)
        return np.asarray(np.exp(np.sqrt(np.log1p(self.variance)) * rng.standard_normal(shape)))

    def spectrum(self, rng: np.random.Generator) -> Spectrum:
        """Squared singular values of ``sqrt(T) (A - uu')``."""
        return spectrum(np.sqrt(self.tokens) * without_gap(self.sample(rng))).squared()

    def law(self) -> Law:
        """Quarter circle, squared (*propagation*, Lemma 3)."""
        return QuarterCircle(self.variance).squared()

    def outlier(self) -> float:
        """``T s_1(A)**2``, about ``T + variance``: the columns do not sum to one exactly (*propagation*, Theorem 2)."""
        return self.tokens + self.variance


def without_gap(attention: Any) -> Any:
    """``A - uu'``, the repair of *propagation*, equation 9; on values it costs one mean."""
    return attention - 1 / attention.shape[-1]


class Pruned(NamedTuple):
    """A matrix without its outliers, and how many singular directions were taken out."""

    matrix: Real
    removed: int


def without_outliers(attention: Real, *, count: int | None = None, edge: float | None = None) -> Pruned:
    """Project out the largest singular directions: so many, or all beyond an edge.

    Ours; *propagation* takes out one and leaves the others open.

    Parameters
    ----------
    attention : array of shape (T, T)
        A draw of the attention matrix.
    count : int, optional
        How many directions to take out.
    edge : float, optional
        The largest singular value that stays; one of the two must be given.
    """
    if (count is None) == (edge is None):
        raise DomainError(f"count = {count!r} and edge = {edge!r}: give one of the two")
    left, values, right = np.linalg.svd(attention)
    removed = int(np.sum(values > edge)) if count is None else Integers(0, len(values)).check("count", count)
    return Pruned(np.asarray((left[:, removed:] * values[removed:]) @ right[removed:]), removed)
