"""Matrices of independent entries whose variance depends on the row and the column.

>>> law = ProfileLaw([[1.0, 2.0], [0.5, 4.0]])
>>> round(law.mean(), 10)                         # the average variance
1.875
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bulkedge.laws.classical.empirical import EmpiricalLaw
from bulkedge.laws.classical.free import FreeProduct
from bulkedge.laws.classical.product import MarchenkoPastur
from bulkedge.laws.distribution import Unit
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import BulkDensity, Law
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Each, Interval, Parametric, parameter
from bulkedge.support.errors import DomainError


@dataclass(frozen=True)
class ProfileLaw(Parametric, Law):
    """Squared singular values of a square matrix with independent entries, whose variance is constant on each block.

    An entry in row block i and column block j has variance ``variances[i][j]/T`` for T rows; the blocks take the given
    shares of rows and columns (equal ones by default). The diagonals of the resolvent solve ``g_i = 1/(z - sum_j c_j
    v_ij h_j)``, ``h_j = 1/(z - sum_i r_i v_ij g_i)``, a quadratic vector equation (Ajanki, Erdos and Kruger 2017). A
    mask that leaves blocks without variance is another matter: see :class:`~bulkedge.laws.attention.causal.CausalLaw`.

    >>> law = ProfileLaw([[1.0, 4.0]], columns=[0.9, 0.1])                 # a tenth of the columns are larger
    >>> round(law.edge, 4), round(law.mean(), 4)
    (8.0401, 1.3)
    """

    unit = Unit.SQUARED
    matrix = "a matrix of independent entries of variance v_ij/T"

    variances: tuple[tuple[float, ...], ...] = parameter(
        Each(Each(Interval(0.05, 20), most=16), most=16), "variances of the blocks, a tuple for each row of blocks"
    )
    rows: Sequence[float] | None = None
    columns: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check that the blocks form a matrix, and that the shares fit."""
        super().__post_init__()
        if len({len(row) for row in self.variances}) > 1:
            raise DomainError(f"variances = {self.variances!r} must have as many members in each row")
        for name, count in (("rows", len(self.variances)), ("columns", len(self.variances[0]))):
            object.__setattr__(self, name, _shares(name, getattr(self, name), count))

    def _bulk(self) -> BulkDensity | None:
        variances, rows, columns = (np.asarray(each, dtype=float) for each in (self.variances, self.rows, self.columns))
        if 1 in variances.shape:  # sizes of rows or columns alone: Silverstein's law, which has an explicit map
            population = EmpiricalLaw(variances, rows if len(columns) == 1 else columns)
            return FreeProduct(population, MarchenkoPastur(1.0))._bulk()
        # one term for each column block, which has no other columns
        mean = rows @ variances
        problem = ProfiledSum(
            mean * columns,
            np.full(len(columns), np.inf),
            Profile(rows, (variances / mean).T),
            Profile(columns, np.diag(1 / columns)),
        )
        return bulk_of(problem, ())


def _shares(name: str, given: Sequence[float] | None, count: int) -> tuple[float, ...]:
    shares: Real = np.full(count, 1 / count) if given is None else FINITE.check(name, given)
    if shares.shape != (count,) or not np.all(shares > 0) or not abs(shares.sum() - 1) < 1e-9:
        raise DomainError(f"{name} = {given!r} must be {count} positive shares that sum to one, a share for each block")
    return tuple((shares / shares.sum()).tolist())
