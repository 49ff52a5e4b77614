"""Attention whose columns are liked more or less: popular keys in the law of the squared singular values.

If the columns of A have popularity pi_j (sum one: keys that all queries favour, sinks), then ``A = 1 pi' + F diag(pi)``
with F the centred matrix of a head without column effects, at the inverse temperature of the scores less their row and
column means. So ``sqrt(T) (A - 1 pi')`` is that head's matrix with column j multiplied by ``T pi_j``: the law of its
squared singular values is the free product with the law of ``(T pi_j)**2`` (docs/theory/finite_head.md, "Popular
columns"). The laws of attention here are sums of low-rank terms whose columns may have sizes, and the popularity is one
more factor of these, the same in all terms: no free product has to be computed.

>>> from bulkedge.laws import FiniteHeadLaw
>>> law = FiniteHeadLaw(beta=0.7, head_dim=64, tokens=1200, qk_norm=True)
>>> liked = law.with_columns([1.0, 1.0, 4.0])              # every third column takes two thirds of the attention
>>> round(liked.mean() / law.mean(), 10)                   # mean of (1/2, 1/2, 2) squared
1.5
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bulkedge.laws.engine.profiles import ProfiledSum, SharedSizes
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.laws.units import Unit
from bulkedge.support.arrays import Real
from bulkedge.support.domains import POSITIVE

BIN = 1.0
"""Width of a bin of ``log (T pi_j)**2``. Two atoms stand for the columns of a bin, with the first three moments of
their squares: that moves the distribution function by 4e-4 at most for log-normal popularity, whatever its spread."""
SMALLEST = 1e-4
"""Popularity over its mean below which columns count as no smaller: their values are below 1e-8 of the others."""


class WithPopularKeys(Law):
    """A law of attention that is a profiled sum: its columns can be given a popularity."""

    @abstractmethod
    def profiled_sum(self) -> ProfiledSum:
        """The law as a sum of terms with sizes of rows and columns."""

    def with_columns(self, popularity: Any) -> Law:
        """The law of the squared singular values of ``sqrt(T) (A - 1 pi')`` when columns have popularity pi.

        Scores have a column effect where queries have a mean, or where some keys are sinks. This law is then taken at
        the inverse temperature of the scores minus the means of their rows and of their columns.

        Parameters
        ----------
        popularity : array_like of shape (n,)
            Positive numbers, one for each column or for a sample of columns, of any normalisation: the column means of
            A, or :meth:`bulkedge.heads.Channel.popularity`. Numbers below 1e-4 of the mean count as 1e-4 of it.

        Returns
        -------
        Law
            This law itself if all columns are alike.

        Examples
        --------
        >>> from bulkedge.laws import AttentionLaw
        >>> law = AttentionLaw(1.0, 0.5)
        >>> law.with_columns([0.3, 0.3, 0.3]) == law
        True
        """
        values = POSITIVE.check("popularity", popularity)
        values = values / values.max()
        squares, shares = column_atoms(values / values.mean())
        if len(squares) == 1:
            return self
        return ColumnLaw(self, tuple(squares.tolist()), tuple(shares.tolist()))


def column_atoms(popularity: Real) -> tuple[Real, Real]:
    """A few atoms for the law of the squares of the popularity, two for each bin on a logarithmic scale.

    The two atoms have mean, variance and third moment of the squares in their bin: with the skewness s they lie at
    ``s/2 -+ sqrt(1 + s**2/4)`` standard deviations about the mean.
    """
    squares = np.maximum(popularity, SMALLEST) ** 2
    logs = np.log(squares)
    low, span = logs.min(), np.ptp(logs)
    # bins are wider where popularity spans more than eight decades
    count = min(int(np.ceil(span / BIN)), 40) if span > 0 else 1
    bins = np.minimum((logs - low) * (count / span if span > 0 else 0.0), count - 1).astype(int)
    atoms: list[tuple[float, float]] = []
    for each in np.unique(bins):
        inside = squares[bins == each]
        mean, deviation = inside.mean(), inside.std()
        if deviation <= 1e-7 * mean:
            atoms.append((mean, len(inside)))
            continue
        skewness = np.mean(((inside - mean) / deviation) ** 3)
        for side in (-1.0, 1.0):
            place = skewness / 2 + side * np.sqrt(1 + skewness**2 / 4)
            atoms.append((mean + deviation * place, len(inside) / (1 + place**2)))
    places, masses = np.array(atoms).T
    return places, masses / len(squares)


@dataclass(frozen=True)
class ColumnLaw(Law):
    """A law of attention with popular columns; made by :meth:`WithPopularKeys.with_columns`.

    Attributes
    ----------
    law : WithPopularKeys
        The law of the head without column effects.
    squares, shares : tuple of float
        Atoms of the law of ``(T pi_j)**2`` and their masses.
    """

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - 1 pi')"

    law: WithPopularKeys
    squares: tuple[float, ...]
    shares: tuple[float, ...]

    def profiled_sum(self) -> ProfiledSum:
        """The law as a sum of terms with sizes of rows and columns."""
        head, shares, squares = self.law.profiled_sum(), np.array(self.shares), np.array(self.squares)
        mean = float(shares @ squares)
        columns = head.columns._replace(shared=SharedSizes(shares, squares / mean))
        return ProfiledSum(head.variances * mean, head.ratios, head.rows, columns)

    def _bulk(self) -> BulkDensity | None:
        return bulk_of(self.profiled_sum(), ())
