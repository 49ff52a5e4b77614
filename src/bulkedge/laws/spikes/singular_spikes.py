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

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bulkedge.laws.distribution import UNIT, Unit
from bulkedge.laws.engine.measure.cauchy import atom_transforms
from bulkedge.laws.engine.measure.continuum import Gaps, gaps_between
from bulkedge.laws.spikes.rank_one import (
    STRONGEST,
    Response,
    ResponseValues,
    atom_masses,
    group_by_strength,
    merge_outliers,
)
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FINITE, Interval, shown
from bulkedge.support.errors import DomainError, UnitError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

RATIO = Interval(1e-6, 1e6)
MISSING = 1e-9  # zeros that a law may lack before it cannot be that of so many rows: the accuracy of the mass of atoms


@dataclass(frozen=True)
class SingularOutlier:
    """A singular value outside the bulk.

    >>> from bulkedge.laws import MarchenkoPastur
    >>> round(singular_spike(MarchenkoPastur(0.5), 2.0, ratio=0.5).outliers[0].singular_value, 4)
    2.3717

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
    """The outlying singular values that a rank-one signal makes; fields are arrays if the strength was an array.

    >>> from bulkedge.laws import MarchenkoPastur
    >>> spike = singular_spike(MarchenkoPastur(0.5), 2.0, ratio=0.5)
    >>> round(float(spike.singular_value), 4), bool(spike.detectable), round(spike.threshold, 4)
    (2.3717, True, 0.8409)

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
        return merge_outliers(self.outliers)


class SingularResponse(Response):
    """Responses ``zeros/z + phi`` (left) and ``other_zeros/z + ratio phi`` (right): zeros apart, or they cancel."""

    def __init__(self, law: Law, ratio: float) -> None:
        self.law, self.ratio = law, ratio
        self.gaps = _positive_gaps(law)
        self.zeros = float(atom_masses(law, np.zeros(1))[0])
        other = 1 - ratio * (1 - self.zeros)
        self.other_zeros = other if other > MISSING else 0.0

    @abstractmethod
    def phi(self, s: Real) -> tuple[Real, Real]:
        """The left response without its zeros, and its derivative in s."""

    @abstractmethod
    def residue(self, s: Real) -> Real:
        """The factor that makes the mass of an atom at s the residue of the left response."""

    def value(self, s: Real) -> Real:
        """The singular value z that belongs to a value of the coordinate."""
        return s

    def reach(self, strength: Real) -> Real:
        """How far from the edge outliers can be: the root of D is at most one over the distance to the bulk."""
        return strength

    def threshold(self) -> float:
        """One over the root of D at the upper end of the bulk."""
        if self.law._unbounded:
            return np.inf
        limit = float(self.limits()[0, -1])
        return 1 / limit if limit else np.inf

    def at(self, s: Real) -> ResponseValues:
        """Both responses and their derivatives in s."""
        phi, slope = self.phi(s)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = self.value(s)
            pole, pole_slope = 1 / z, -self.metric(s) / z**2
            # without zeros there is no pole, not even where z is zero
            (left, left_slope), (right, right_slope) = (
                (zeros * pole, zeros * pole_slope) if zeros else (0.0, 0.0) for zeros in (self.zeros, self.other_zeros)
            )
        phi_right, slope_right = self.ratio * phi, self.ratio * slope
        return ResponseValues(left + phi, left_slope + slope, right + phi_right, right_slope + slope_right)

    def masses(self, s: Real) -> tuple[Real, Real]:
        """Residues at atoms but that at zero, next to which numbers are as fine as they need to be."""
        mass = np.where(s == 0, 0.0, atom_masses(self.law, s)) * self.residue(s)
        return mass, self.ratio * mass

    def limits(self) -> Real:
        """As for any response, but at zero, where D is infinite if both sides have zeros."""
        limits = super().limits()
        limits[0, self.gaps.low == 0] = np.inf if self.zeros and self.other_zeros else 0.0
        return limits


class ResponseOfSquares(SingularResponse):
    """From a law of squares, in the coordinate ``s = z**2``: ``phi = z G(s)``."""

    def value(self, s: Real) -> Real:
        """``z = sqrt(s)``."""
        return np.sqrt(s)

    def metric(self, s: Real) -> Real:
        """``dz/ds = 1/(2 sqrt(s))``."""
        with np.errstate(divide="ignore"):
            return 0.5 / np.sqrt(s)

    def reach(self, strength: Real) -> Real:
        """Distance of squares: ``(z + x)**2 - z**2`` at the edge z."""
        edge = 0.0 if self.law._unbounded else self.law.edge
        return strength * (strength + 2 * np.sqrt(edge))

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = z G(s)`` without zeros, and its derivative in s."""
        g, slope = _without_zeros(self.law, s)
        z = np.sqrt(s)
        with np.errstate(divide="ignore", invalid="ignore"):
            return z * g, g / (2 * z) + z * slope

    def residue(self, s: Real) -> Real:
        """An atom of mass m at s gives ``z m/(s' - s)`` near it: the factor is z."""
        return np.sqrt(s)


class ResponseOfValues(SingularResponse):
    """From a law of singular values: ``phi = (G(z) - G(-z))/2``."""

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = (G(z) - G(-z))/2`` without zeros: half of the law and half of its mirror image."""
        (g, slope), (mirrored, mirrored_slope) = _without_zeros(self.law, s), _without_zeros(self.law, -s)
        return (g - mirrored) / 2, (slope + mirrored_slope) / 2

    def residue(self, s: Real) -> Real:
        """Half: the other half of the atom is at the mirrored place."""
        return np.full(s.shape, 0.5)


class ResponseOfBothSigns(SingularResponse):
    """From a symmetrised law: ``phi = G(z)``."""

    def phi(self, s: Real) -> tuple[Real, Real]:
        """``phi = G(z)`` without zeros: the law has both signs already."""
        return _without_zeros(self.law, s)

    def residue(self, s: Real) -> Real:
        """One: the atom of the symmetrised law is half of that of the singular values already."""
        return np.ones(s.shape)


def _positive_gaps(law: Law) -> Gaps:
    """The gaps of a law among positive numbers, the first one from zero."""
    pieces = [(max(low, 0.0), high) for low, high in law.support if high > 0]
    atoms = [(place, place) for place, _ in law.atoms if place > 0]
    gaps = gaps_between([(0.0, 0.0), *pieces, *atoms], open_above=not law._unbounded)
    return Gaps(gaps.low[1:], gaps.high[1:])


def _without_zeros(law: Law, s: Real) -> tuple[Real, Real]:
    """G and its derivative at real points, minus what an atom at zero contributes."""
    total = np.zeros((4, len(s)), dtype=complex)
    if law.continuum:
        total += law.continuum.transforms(s + 0j)
    places, masses = law.locations[law.locations != 0], law.masses[law.locations != 0]
    if len(places):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            total += atom_transforms(s + 0j, places, np.stack([masses, masses * places], axis=1))
    return total[0].real, total[1].real


def singular_spike(
    law: Law, strength: ArrayLike, ratio: float | None = None, unit: Unit | str | None = None
) -> SingularSpike:
    """Signal of the given singular value in a matrix of the given law: see :meth:`bulkedge.Law.singular_spike`."""
    given = FINITE.check("strength", strength)
    if not np.all((given >= 1 / STRONGEST) & (given <= STRONGEST)):
        raise DomainError(f"strength = {shown(strength)} is outside its domain [{1 / STRONGEST:g}, {STRONGEST:g}]")
    flat, response = given.ravel(), singular_response(law, ratio, unit)
    found = response.outliers(np.append(1 / flat, -1 / flat), np.tile(response.reach(flat), 2))
    order = np.argsort(found.point, kind="stable")
    number = found.target % max(len(flat), 1)
    parts = (number, response.value(found.point), found.point, found.left, found.right, found.gap)
    records = [
        (k, SingularOutlier(value, location, left, right, response.gaps.ends(gap), float(flat[k])))
        for k, value, location, left, right, gap in zip(*(each[order].tolist() for each in parts), strict=True)
    ]
    outliers = group_by_strength(records, given.shape)
    groups = outliers.ravel().tolist() if given.shape else [outliers]
    tops = np.array([_largest(law, response, group) for group in groups]).reshape(len(flat), 4).T
    seen = np.array([bool(group) for group in groups], dtype=bool)
    value, location, left, right, detectable = (each.reshape(given.shape)[()] for each in (*tops, seen))
    return SingularSpike(value, location, left, right, detectable, response.threshold(), outliers)


def _largest(law: Law, response: SingularResponse, group: tuple[SingularOutlier, ...]) -> tuple[float, ...]:
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
    if own is not None and abs(given - own) > 0.01 * own:  # finite matrices differ from their law by less
        raise DomainError(f"ratio = {ratio!r}: {law!r} is of matrices with rows/columns = {own:g}; leave it out")
    zeros = float(atom_masses(law, np.zeros(1))[0])
    if 1 - given * (1 - zeros) < -MISSING:
        raise DomainError(
            f"ratio = {ratio!r}: of the values of a matrix with that many rows for each column at least "
            f"{1 - 1 / given:.6g} are zero, but {law!r} has an atom of {zeros:.6g} there"
        )
    return given


def singular_response(law: Law, ratio: float | None = None, unit: Unit | str | None = None) -> SingularResponse:
    """How a matrix of a law responds on its left and on its right."""
    ratio = _ratio_of(law, ratio)
    kinds: dict[Unit, Callable[[Law, float], SingularResponse]] = {
        Unit.SQUARED: ResponseOfSquares,
        Unit.SINGULAR: ResponseOfValues,
        Unit.SYMMETRISED: ResponseOfBothSigns,
    }
    return kinds[_unit_of(law, unit)](law, ratio)
