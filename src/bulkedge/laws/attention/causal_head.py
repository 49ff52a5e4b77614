"""Causal attention at the size of real heads: scores of low rank, behind a mask (ours).

A degree of the exponential of the scores is a matrix of rank N (:mod:`bulkedge.laws.attention.finite_head`), which the
mask does not keep: row x and column y < x of ``sqrt(T) (A - C)``, x and y in (0, 1), are joined as ``sqrt(w(x)) sum_c
P_xc Q_yc`` over N channels c, with ``w = B/x**2``. Let g and h be the diagonals of the resolvent at ``z**2`` over rows
and columns, ``phi = N/T``, and J the integral ``(J e)(x) = int_0^x e``, which stands for the mask. What a channel
carries from columns to rows is ``J (1/h - J' w g J/phi)**-1 J'``, the inverse of a Sturm-Liouville operator. So its
diagonal comes from two Riccati equations, one from each end,

    p' = h + (w g/phi) p**2,  p(0) = 0,        r' = -w g - (h/phi) r**2,  r(1) = 0,

and with ``d = 1 - p r/phi``, summed over the degrees,

    g = 1/(z - sum w p/d),        h = 1/(z - sum r/d).

Without a mask these are the equations of the finite-head law; with ``phi = inf``, those of the causal law
(docs/theory/causal.md, "Heads of low rank behind a mask", derives them). They are a boundary value problem for p and r
(:mod:`bulkedge.laws.engine.masked.riccati`), which is solved near the real axis by Newton's method.

>>> law = CausalHeadLaw(beta=0.5, head_dim=32, tokens=200)
>>> law.cdf([0.02, 0.3, 2.0]).round(2)
array([0.34, 0.69, 0.88])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.attention.causal_terms import Columns, columns_of, first_rows, intervals_for, masked, row_terms
from bulkedge.laws.distribution import Atoms
from bulkedge.laws.engine.masked.logarithmic import LogDensity, density
from bulkedge.laws.engine.measure.edges import Edge
from bulkedge.laws.law import COUNT, LEVEL, Bulk, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.domains import FINITE, Choice, Integers, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError
from bulkedge.visibility import prefix_mean_values

SMALLEST_GAUSSIAN = 32
"""Head dimension from which norms of queries and keys separate."""
SHARPEST = 1.5
"""Inverse temperature up to which the law is within 0.03 of draws, at 1000 tokens."""
MOST_VALUES = 1000


class CausalOutlier(NamedTuple):
    """A value beyond the bulk: squared singular value of ``sqrt(T) A``, and where it comes from."""

    kind: Literal["mean"]
    location: float


@dataclass(frozen=True)
class CausalHeadLaw(Parametric, Law):
    """Squared singular values of ``sqrt(T) (A - C)``, A causal attention of one head and C its mean.

    Values below ``exp(-80)`` times the variance of the last rows, about one in a hundred, are shown as an atom at zero;
    one value is zero, because rows sum to one.
    The edge is that of the equations; the largest values of a draw are those of its first rows, of which there are too
    few for a law, and :meth:`finite_edge` samples them.
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - C), A causal attention and C its mean"

    beta: float = parameter(Interval(0.05, 2), "inverse temperature: standard deviation of the scaled scores")
    head_dim: int = parameter(Integers(8, 4096), "dimension d of queries and keys")
    tokens: int = parameter(Integers(64, 2**20), "number of tokens T")
    qk_norm: bool = parameter(Choice((False, True)), "whether queries and keys are normalised", default=False)

    def __post_init__(self) -> None:
        """Check the parameters, and what they are together."""
        super().__post_init__()
        if self.head_dim < SMALLEST_GAUSSIAN and not self.qk_norm:
            raise DomainError(
                f"head_dim = {self.head_dim} is outside its domain without qk_norm: at least {SMALLEST_GAUSSIAN}, "
                "as norms that fluctuate more do not separate"
            )

    @property
    def atoms(self) -> Atoms:
        """What lies below the smallest value represented, at zero."""
        return ((0.0, self._table.below),)

    @property
    def _table(self) -> LogDensity:
        return _tabulated(self)

    @property
    def _columns(self) -> Columns | None:
        """Columns that are liked more, if there are any."""
        return None

    def _bulk(self) -> Bulk | None:
        table = self._table
        # intervals that touch, so that each has a scale of its own
        ends = np.exp(table.breaks).tolist()
        intervals = [(Edge.plain(low), Edge.plain(high)) for low, high in pairwise(ends)]
        intervals[0] = Edge.hard(ends[0], 8), intervals[0][1]
        intervals[-1] = intervals[-1][0], Edge.soft(ends[-1])

        def value(x: Real) -> tuple[Real, Real]:
            result = table(np.log(x)) / x
            return result, 64 * EPS * result

        return intervals, value

    # -- the first rows, and the mean ----------------------------------------------------------------------------------

    def finite_edge(self, n: int, level: float = 0.01, dyson: int = 1) -> float:
        """The value that the largest one of a draw exceeds with probability ``level``.

        It belongs to the first rows, which average over few tokens: ``T`` times the squared norm of a causal attention
        of a few dozen tokens less its mean. That is sampled, 2000 times with a fixed seed, so that a level is met to
        within a fifth of itself, and levels below 0.002 are not told apart.

        Parameters
        ----------
        n : int
            Number of values; the largest does not depend on it.
        level : float
            Probability of a false alarm.
        dyson : {1, 2, 4}
            Of no effect: attention is real.

        Returns
        -------
        float
            The quantile.
        """
        COUNT.check("n", n)
        del dyson
        level = LEVEL.check("level", level)
        return float(self.tokens * np.quantile(first_rows(self.beta), 1 - level))

    def reach(self, n: int, level: float, dyson: int = 1) -> float:
        """What the largest of n bulk values exceeds with probability ``level``: :meth:`finite_edge`."""
        return self.finite_edge(n, level, dyson)

    def outliers(self, most: int = 10) -> list[CausalOutlier]:
        """Values of ``sqrt(T) A`` itself that the mean contributes: ``T`` times the squared singular values of C.

        C is the Cesaro matrix, whose row i is uniform on 1 to i. It has a whole family of large values, the first of
        which tends to ``4 T``. The fluctuations of the first rows move them outwards, by about 0.02 of a singular value
        at beta 0.6. Single large entries of late rows do not stand out: values of the first rows reach further.

        Parameters
        ----------
        most : int
            How many.

        Returns
        -------
        list of CausalOutlier
            In decreasing order.
        """
        count = Integers(1, min(self.tokens, MOST_VALUES)).check("most", most)
        columns = self._columns
        weights = None if columns is None else columns.along(np.arange(1.0, self.tokens + 1))
        values = prefix_mean_values(self.tokens, count, weights)
        return [CausalOutlier("mean", self.tokens * value**2) for value in values.tolist()]

    def with_columns(self, popularity: ArrayLike) -> CausalHeadColumns:
        """The law if columns have popularity of their own: a mean query, or sinks.

        Weight j of row i is then ``pi_j exp(s_ij)`` over its sum over the visible prefix, ``sum_{k <= i} pi_k
        exp(s_ik)``: rows are renormalised, so that only ratios of popularities matter. Less its mean, ``pi_j/sum_{k <=
        i} pi_k``, the matrix is that of a head without popularity, column j times ``pi_j`` and row i over the mean of
        the popularities it sees.

        Parameters
        ----------
        popularity : array_like
            Positive numbers of any normalisation: one for each token, in order, or a sample of values that are taken to
            be independent of the place.

        Returns
        -------
        CausalHeadColumns
            The law of ``sqrt(T) (A - C)``, with C the mean given the popularity.
        """
        values = FINITE.check("popularity", popularity).ravel()
        if not values.size or not np.all(values > 0):
            raise DomainError("popularity must be one positive number at least, or one for each token")
        return CausalHeadColumns(self.beta, self.head_dim, self.tokens, self.qk_norm, columns_of(values, self.tokens))


@dataclass(frozen=True)
class CausalHeadColumns(CausalHeadLaw):
    """The law of a causal head whose columns have popularity; made by :meth:`CausalHeadLaw.with_columns`."""

    columns: Columns = None  # type: ignore[assignment]

    @property
    def _columns(self) -> Columns | None:
        return self.columns


@lru_cache(maxsize=64)
def _tabulated(law: CausalHeadLaw) -> LogDensity:
    """The density of a law by the logarithm of the value, once in a process."""
    terms = row_terms(law.beta, law.head_dim, law.tokens, qk_norm=law.qk_norm)
    found = density(masked(terms, law.tokens, intervals_for(law.head_dim, law.tokens), law._columns))
    # rows sum to one: the constant vector is mapped to zero, which the equations do not know
    others = 1 - 1 / law.tokens
    return replace(found, below=found.below * others + 1 / law.tokens, scale=found.scale * others)
