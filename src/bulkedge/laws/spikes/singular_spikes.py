"""Outlying singular values: what a rank-one signal ``x u v'`` does to a matrix M that does not know its directions.

M is n x m with ``ratio = n/m``, and the law is that of its n singular values, with a zero for each row in excess of
columns. On the other side, m values are those n with further zeros, or without as many of them:

    left:   phi(z)  = int z/(z**2 - t**2) dmu(t),
    right:  phi~(z) = ratio phi(z) + (1 - ratio)/z.

An outlier is where ``D(z) = phi(z) phi~(z) = 1/x**2``, above the bulk, in its gaps or below it; squared overlaps are
``-2 phi/(x**2 D')`` with u and ``-2 phi~/(x**2 D')`` with v (Benaych-Georges and Nadakuditi 2012).
M is to be invariant under rotations from both sides, or u and v independent of it and uniform.

>>> from bulkedge.laws.classical.product import MarchenkoPastur
>>> spike = singular_spike(MarchenkoPastur(0.5), 2.0, ratio=0.5)          # white noise, half as many rows as columns
>>> round(float(spike.singular_value), 10)                                # sqrt((1 + x**2) (ratio + x**2))/x
2.3717082451
>>> round(float(spike.left_overlap), 10), round(float(spike.right_overlap), 10)
(0.8611111111, 0.775)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.spikes.rank_one import STRONGEST, atom_masses, grouped, merged
from bulkedge.laws.spikes.singular_response import MISSING, OfBothSigns, OfSquares, OfValues, Singular
from bulkedge.laws.units import UNIT, Unit
from bulkedge.support.domains import FINITE, Interval, shown
from bulkedge.support.errors import DomainError, UnitError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

RATIO = Interval(1e-6, 1e6)
SAME = 0.01
"""Ratios of finite matrices differ from that of their law by less."""


@dataclass(frozen=True)
class SingularOutlier:
    """A singular value outside the bulk.

    Attributes
    ----------
    singular_value : float
        Where it is.
    location : float
        The same in the units of the law: squared, for a law of squared singular values.
    left_overlap, right_overlap : float
        Squared overlaps of its singular vectors with those of the signal: the left ones have an entry for each row.
    gap : tuple of float
        The ends ``(lo, hi)`` of the gap of the bulk that it lies in, in the units of the law: from zero below the bulk,
        to infinity above it.
    strength : float
        The signal that makes it.
    """

    singular_value: float
    location: float
    left_overlap: float
    right_overlap: float
    gap: tuple[float, float]
    strength: float


@dataclass(frozen=True)
class SingularSpike:
    """What a signal of rank one does to the singular values of a matrix; arrays where the strength was an array.

    Attributes
    ----------
    singular_value : float
        The largest outlier; without one, the upper end of the bulk. Above a law without upper end it is infinite.
    location : float
        The same in the units of the law: squared, for a law of squared singular values.
    left_overlap, right_overlap : float
        Squared overlaps of its singular vectors with those of the signal, zero without an outlier. The left ones have
        an entry for each row.
    detectable : bool
        Whether there is an outlier anywhere: above the bulk, in one of its gaps, or below it.
    threshold : float
        Strengths, as singular values, above which there is an outlier above the bulk.
    outliers : tuple of SingularOutlier
        All of them, in increasing order; a gap can hold two. If the strength was an array, an array of such tuples.
    """

    singular_value: Any
    location: Any
    left_overlap: Any
    right_overlap: Any
    detectable: Any
    threshold: float
    outliers: Any

    @property
    def together(self) -> tuple[SingularOutlier, ...]:
        """The outliers of all strengths in increasing order: what signals along orthogonal directions make."""
        return merged(self.outliers)


def singular_spike(
    law: Law, strength: ArrayLike, ratio: float | None = None, unit: Unit | str | None = None
) -> SingularSpike:
    """Signal of the given singular value in a matrix of the given law: see :meth:`bulkedge.Law.singular_spike`."""
    given = FINITE.check("strength", strength)
    if not np.all((given >= 1 / STRONGEST) & (given <= STRONGEST)):
        raise DomainError(
            f"strength = {shown(strength)} is outside its domain [{1 / STRONGEST:g}, {STRONGEST:g}]: "
            "it is a singular value"
        )
    flat, response = given.ravel(), singular_response(law, ratio, unit)
    found = response.outliers(np.append(1 / flat, -1 / flat), np.tile(response.reach(flat), 2))
    order = np.argsort(found.point, kind="stable")
    number = found.target % max(len(flat), 1)
    parts = (number, response.value(found.point), found.point, found.left, found.right, found.gap)
    records = [
        (k, SingularOutlier(value, location, left, right, response.gaps.ends(gap), float(flat[k])))
        for k, value, location, left, right, gap in zip(*(each[order].tolist() for each in parts), strict=True)
    ]
    outliers = grouped(records, given.shape)
    groups = outliers.ravel().tolist() if given.shape else [outliers]
    tops = np.array([_largest(law, response, group) for group in groups]).reshape(len(flat), 4).T
    seen = np.array([bool(group) for group in groups], dtype=bool)
    value, location, left, right, detectable = (each.reshape(given.shape)[()] for each in (*tops, seen))
    return SingularSpike(value, location, left, right, detectable, response.threshold(), outliers)


def _largest(law: Law, response: Singular, group: tuple[SingularOutlier, ...]) -> tuple[float, float, float, float]:
    """Singular value, location and overlaps of the largest outlier, or the end of the bulk."""
    if law._unbounded:
        return np.inf, np.inf, 0.0, 0.0
    if group:
        last = group[-1]
        return last.singular_value, last.location, last.left_overlap, last.right_overlap
    return float(response.value(np.array(law.edge))), law.edge, 0.0, 0.0


def _unit_of(law: Law, unit: Unit | str | None) -> Unit:
    """What the values of the law are taken for: squared singular values, if they are eigenvalues of a Gram matrix."""
    own, chosen = (
        Unit.SQUARED if each is Unit.EIGEN else each
        for each in (law.unit, law.unit if unit is None else Unit(UNIT.check("unit", unit)))
    )
    if chosen is Unit.VALUES or (own is not chosen and (own is not Unit.VALUES or chosen is Unit.SYMMETRISED)):
        raise UnitError(
            f"unit = {shown(unit)}: {law!r} is a law of {law.unit}; for one of plain values, say whether these are "
            "'singular values' or 'squared singular values'"
        )
    if chosen is not Unit.SYMMETRISED and law.lower_edge < 0:
        raise UnitError(f"{law!r} reaches down to {law.lower_edge:g}, so its values are not (squared) singular values")
    return chosen


def _ratio_of(law: Law, ratio: float | None) -> float:
    """Rows over columns: the law's own, which a given one must agree with, or the given one."""
    own = law._aspect
    if ratio is None:
        if own is None:
            raise DomainError(f"ratio is needed: {law!r} does not say of how many rows and columns its matrix is")
        return own
    given = RATIO.check("ratio", ratio)
    if own is not None and abs(given - own) > SAME * own:
        raise DomainError(
            f"ratio = {ratio!r}: {law!r} is the law of a matrix with rows/columns = {own:g}; leave it out"
        )
    zeros = float(atom_masses(law, np.zeros(1))[0])
    if 1 - given * (1 - zeros) < -MISSING:
        raise DomainError(
            f"ratio = {ratio!r}: of the values of a matrix with that many rows for each column at least "
            f"{1 - 1 / given:.6g} are zero, but {law!r} has an atom of {zeros:.6g} there"
        )
    return given


def singular_response(law: Law, ratio: float | None = None, unit: Unit | str | None = None) -> Singular:
    """How a matrix of a law responds on its left and on its right."""
    ratio = _ratio_of(law, ratio)
    kinds: dict[Unit, Callable[[Law, float], Singular]] = {
        Unit.SQUARED: OfSquares,
        Unit.SINGULAR: OfValues,
        Unit.SYMMETRISED: OfBothSigns,
    }
    return kinds[_unit_of(law, unit)](law, ratio)
