"""Attention whose columns are liked more or less: popular keys in the law of the squared singular values.

If the columns of A have popularity pi_j (sum one: keys that all queries favour, sinks), then ``A = 1 pi' + F diag(pi)``
with F the centred matrix of a head without column effects, at the inverse temperature of the scores less their row and
column means. So ``sqrt(T) (A - 1 pi')`` is that head's matrix with column j multiplied by ``T pi_j``: the law of its
squared singular values is the free product with the law of ``(T pi_j)**2`` (docs/theory/finite_head.md, "Popular
columns"). The laws of attention here are sums of low-rank terms whose columns may have sizes, and the popularity is one
more factor of these, the same in all terms: no free product has to be computed.

A key with a large share of its rows varies less than in proportion to that share, because no weight exceeds one
(:func:`own_weight`): its column is multiplied by less than ``T pi_j``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.distribution import Unit
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.engine.subordination.problem import Multiplication
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import POSITIVE

BIN = 1.0
"""Width of a bin of ``log (T pi_j)**2``. Two atoms stand for the columns of a bin, with the first three moments of
their squares: that moves the distribution function by 4e-4 at most for log-normal popularity, whatever its spread."""
SMALLEST = 1e-4
"""Popularity over its mean below which columns count as no smaller: their values are below 1e-8 of the others."""


class WithPopularKeys(Law):
    """A law of attention that is a profiled sum: its columns can be given a popularity."""

    tokens: float = np.inf  # number of columns of the matrix, of which each has one popularity and one size

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
        values = values / values.mean()
        if np.isfinite(self.tokens):
            values = values * own_weight(values / self.tokens, float(np.log1p(self.mean())) ** 0.5, self.tokens)
        squares, shares = column_atoms(values)
        if len(squares) == 1:
            return self
        return ColumnLaw(self, tuple(squares.tolist()), tuple(shares.tolist()))


def own_weight(share: Real, beta: float, tokens: float) -> Real:
    """How much keys of these shares of all attention vary, relative to their share, over a key of ``1/tokens``."""
    # a share is 1/(1 + exp(-x - beta z)): a key that has much of its rows already cannot have a multiple of that
    z = np.linspace(-9.0, 9.0, 361)
    mass = np.exp(-(z**2) / 2)
    least = np.log(SMALLEST / tokens) - beta**2
    logits = np.linspace(least - 1.0, 8.0 * beta + 10.0, 400)
    weights = expit(logits[:, None] + beta * z)
    means = weights @ mass / mass.sum()
    relative = np.sqrt((weights - means[:, None]) ** 2 @ mass / mass.sum()) / means
    varies = np.interp(np.log(np.append(share, 1 / tokens)), np.log(means), relative)
    return np.asarray(varies[:-1] / varies[-1])


def column_atoms(popularity: Real) -> tuple[Real, Real]:
    """A few atoms for the law of the squares of the popularity, two for each bin on a logarithmic scale."""
    # with skewness s they lie at s/2 -+ sqrt(1 + s**2/4) deviations about the mean, which keeps three moments
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


def drawn_columns(profile: Profile, square: float, share: float, count: float) -> tuple[Real, Real]:
    """Weights and sizes of the groups of a profile, in order of their size, among the columns of one popularity."""
    # few columns do not reach as far as all: groups at both ends are joined until they hold half a column at least
    weights, least = profile.weights, 0.5 / (share * count)
    below, above = np.cumsum(weights) - weights, np.cumsum(weights[::-1])[::-1] - weights
    largest = int(np.argmax(above <= least))
    smallest = min(int(np.sum(below <= least)), largest)
    starts = np.unique(np.append(0, np.arange(smallest, largest + 1)))
    masses = np.add.reduceat(weights, starts)
    return share * masses, square * np.add.reduceat(profile.squares * weights, starts, axis=1) / masses


@dataclass(frozen=True)
class ColumnLaw(Law):
    """A law of attention with popular columns; made by :meth:`WithPopularKeys.with_columns`."""

    unit = Unit.SQUARED
    matrix = "sqrt(T) (A - 1 pi')"

    law: WithPopularKeys  # the law of the head without column effects
    # squares, shares: atoms of the law of ``(T pi_j)**2`` and their masses
    squares: tuple[float, ...]
    shares: tuple[float, ...]

    def profiled_sum(self) -> ProfiledSum:
        """The law as a sum of terms with sizes of rows and columns."""
        head = self.law.profiled_sum()
        atoms = zip(self.squares, self.shares, strict=True)
        groups = [drawn_columns(head.columns, square, share, self.law.tokens) for square, share in atoms]
        weights, squares = (np.concatenate(each, axis=-1) for each in zip(*groups, strict=True))
        means = squares @ weights
        return ProfiledSum(head.variances * means, head.ratios, head.rows, Profile(weights, squares / means[:, None]))

    def _bulk(self) -> BulkDensity | None:
        if len(self.law.profiled_sum().columns.weights) == 1:
            # columns of one size are free of their popularity, and one variable keeps more digits than two
            return bulk_of(Multiplication.of(self.law, EmpiricalLaw(self.squares, self.shares)), ())
        return bulk_of(self.profiled_sum(), ())
