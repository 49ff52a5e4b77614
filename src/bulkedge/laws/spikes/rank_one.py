"""Outliers and overlaps: what a perturbation of rank one does to the spectrum of a law.

Everything is read off one function and its derivative: the Cauchy transform G for additive perturbations, and ``lam(x)
= x (1 + ratio psi(x))`` for sample covariances (docs/theory/transforms.md, "Spikes"). A perturbation can make an
outlier in every gap of the bulk, and beyond both of its ends; atoms count as part of the bulk.
:mod:`bulkedge.laws.spikes.singular_spikes` has the same for singular values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.laws.engine.measure.crossings import CLOSEST, Gaps, gaps_between
from bulkedge.laws.spikes.response import Pair, Response
from bulkedge.support.arrays import EPS, Mask, Real
from bulkedge.support.domains import FINITE, Interval, shown
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

STRONGEST = 1e150
"""Squares of strengths, and of their inverses, must be numbers."""
RATIO = Interval(1e-12, 1e12)


@dataclass(frozen=True)
class Outlier:
    """An eigenvalue outside the bulk.

    Attributes
    ----------
    location : float
        Where it is.
    overlap : float
        Squared overlap of its eigenvector with the direction of the perturbation.
    gap : tuple of float
        The ends ``(lo, hi)`` of the gap of the bulk that it lies in; infinite below and above the bulk.
    strength : float
        The perturbation that makes it: theta.
    """

    location: float
    overlap: float
    gap: tuple[float, float]
    strength: float


@dataclass(frozen=True)
class Spike:
    """What a perturbation of rank one does to a spectrum; arrays where the strength was an array.

    Attributes
    ----------
    location : float
        The outermost outlier: the largest one, and the smallest one for a negative strength. Without an outlier it is
        the end of the bulk on that side. Above a law without upper end it is infinite.
    overlap : float
        Squared overlap of its eigenvector with the direction of the perturbation; zero without an outlier.
    detectable : bool
        Whether there is an outlier anywhere: beyond the bulk or in one of its gaps.
    threshold : float
        Strengths above it make an outlier above the bulk. In gaps there may be outliers at smaller strengths.
    outliers : tuple of Outlier
        All of them, in increasing order. If the strength was an array, an array of such tuples.
    lower_threshold : float
        Strengths below it make an outlier below the bulk; minus infinity if none does.
    """

    location: Any
    overlap: Any
    detectable: Any
    threshold: float
    outliers: Any = ()
    lower_threshold: float = -np.inf

    @property
    def together(self) -> tuple[Outlier, ...]:
        """The outliers of all strengths in increasing order: what perturbations along orthogonal directions make."""
        return merged(self.outliers)


def merged(outliers: Any) -> tuple[Any, ...]:
    """Outliers of one strength or of an array of strengths as one tuple, in increasing order."""
    groups = outliers.ravel().tolist() if isinstance(outliers, np.ndarray) else [outliers]
    return tuple(sorted((each for group in groups for each in group), key=lambda each: each.location))


def grouped(records: list[tuple[int, Any]], shape: tuple[int, ...]) -> Any:
    """Records with the number of their strength, as a tuple for each strength: an array of tuples of that shape."""
    groups: list[list[Any]] = [[] for _ in range(int(np.prod(shape)))]
    for number, record in records:
        groups[number].append(record)
    result = np.empty(len(groups), dtype=object)
    result[:] = [None] * len(groups)
    for k, group in enumerate(groups):
        result[k] = tuple(group)
    return result.reshape(shape)[()]


def support_gaps(law: Law) -> Gaps:
    """The intervals without mass: below the law, between its intervals and atoms, and above it if it ends there."""
    atoms = [(place, place) for place, _ in law.atoms]
    return gaps_between([*law.support, *atoms], open_above=not law._unbounded)


# -- additive perturbations --------------------------------------------------------------------------------------------


def additive_spike(law: Law, theta: ArrayLike) -> Spike:
    """Spike of strength theta, of either sign, added to a matrix of the given law."""
    strength = FINITE.check("theta", theta)
    if not np.all((np.abs(strength) >= 1 / STRONGEST) & (np.abs(strength) <= STRONGEST)):
        raise DomainError(
            f"theta = {shown(theta)} is outside its domain: sizes from {1 / STRONGEST:g} to {STRONGEST:g}"
        )
    flat, response = strength.ravel(), Additive(law)
    # |G| is at most one over the distance to the law, so the point is within |theta| of it
    found = response.outliers(1 / flat, np.abs(flat))
    rows = zip(found.target.tolist(), found.gap.tolist(), found.point.tolist(), found.left.tolist(), strict=True)
    records = [(k, Outlier(point, share, response.gaps.ends(gap), float(flat[k]))) for k, gap, point, share in rows]
    with np.errstate(divide="ignore"):
        upper, lower = 1 / response.limits()[[0, 1], [-1, 0]] + 0.0
    thresholds = (np.inf if law._unbounded else upper), lower
    return _spike(law, strength, grouped(records, strength.shape), thresholds)


class Additive(Response):
    """Both responses of a symmetric matrix are its Cauchy transform."""

    def __init__(self, law: Law) -> None:
        self.law, self.gaps = law, support_gaps(law)

    def at(self, s: Real) -> Pair:
        """G and its derivative, as the left and as the right response."""
        g, slope, _, _ = (part.real for part in self.law.transforms(s + 0j))
        return Pair(g, slope, g.copy(), slope.copy())

    def masses(self, s: Real) -> tuple[Real, Real]:
        """The masses of atoms at the points, on both sides the same."""
        mass = atom_masses(self.law, s)
        return mass, mass


def atom_masses(law: Law, s: Real) -> Real:
    """The mass of the atom of a law at each point."""
    if not len(law.locations):
        return np.zeros(s.shape)
    index = np.minimum(np.searchsorted(law.locations, s), len(law.locations) - 1)
    return np.where(law.locations[index] == s, law.masses[index], 0.0)


def _spike(law: Law, strength: Real, outliers: Any, thresholds: tuple[float, float]) -> Spike:
    """The record of the outliers, with the outermost one of each strength."""
    location, overlap = np.empty(strength.shape), np.zeros(strength.shape)
    detectable: Mask = np.zeros(strength.shape, dtype=bool)
    for index in np.ndindex(strength.shape):
        group = outliers[index] if strength.shape else outliers
        rising = strength[index] > 0
        detectable[index] = bool(group)
        if group and not (rising and law._unbounded):
            outermost = group[-1] if rising else group[0]
            location[index], overlap[index] = outermost.location, outermost.overlap
        else:
            location[index] = law.edge if rising else law.lower_edge
    threshold, lower = (float(each) for each in thresholds)
    return Spike(location[()], overlap[()], detectable[()], threshold, outliers, lower)


# -- sample covariances ------------------------------------------------------------------------------------------------


def sample_spike(law: Law, theta: ArrayLike, ratio: float) -> Spike:
    """Population eigenvalue theta beside a population bulk of the given law, seen through samples."""
    strength = FINITE.check("theta", theta)
    if not np.all((strength >= 0) & (strength <= STRONGEST)):
        raise DomainError(f"theta = {shown(theta)} is outside its domain [0, {STRONGEST:g}]")
    ratio = RATIO.check("ratio", ratio)
    if law.lower_edge < 0:
        raise DomainError(f"a population covariance is positive, but {law!r} reaches down to {law.lower_edge:g}")
    flat, gaps = strength.ravel(), support_gaps(law)
    threshold, lower = _sample_threshold(law, ratio), _lower_sample_threshold(law, ratio)
    holding = gaps.holding(flat)
    factor, slope = np.ones(flat.shape), np.zeros(flat.shape)
    outside = holding >= 0
    factor[outside], slope[outside] = _sample_map(law, flat[outside], ratio)
    seen = slope > 0
    images = {
        gap: _image(law, gaps.ends(gap), flat[seen & (holding == gap)], ratio)
        for gap in np.unique(holding[seen]).tolist()
    }
    location = np.full(flat.shape, np.inf if np.isinf(threshold) else _sample_level(law, threshold, ratio))
    location[seen], overlap = flat[seen] * factor[seen], np.zeros(flat.shape)
    overlap[seen] = np.minimum(slope[seen] / factor[seen], 1.0)
    records = [
        (k, Outlier(float(location[k]), float(overlap[k]), images[int(holding[k])], float(flat[k])))
        for k in np.flatnonzero(seen).tolist()
    ]
    shape = strength.shape
    top: list[Any] = [each.reshape(shape)[()] for each in (location, overlap, seen)]
    return Spike(top[0], top[1], top[2], threshold, grouped(records, shape), lower)


def _sample_map(law: Law, level: Real, ratio: float) -> tuple[Real, Real]:
    """``lam(x)/x`` and the derivative of ``lam``."""
    _, _, psi, d_psi = (part.real for part in law.transforms(level + 0j))
    with np.errstate(invalid="ignore"):  # at an atom both are infinite, with opposite signs
        return 1 + ratio * psi, 1 + ratio * (psi + level * d_psi)


def _sample_level(law: Law, level: float, ratio: float) -> float:
    """``lam``, where it may be infinitely far out, or zero."""
    if not np.isfinite(level) or not level:
        return level
    return level * float(_sample_map(law, np.array([level]), ratio)[0][0])


def _image(law: Law, gap: tuple[float, float], seen: Real, ratio: float) -> tuple[float, float]:
    """The gap of the sample's bulk that eigenvalues in a gap of the population's are seen in.

    ``lam' = 1 - ratio int (t/(x - t))**2`` is concave on a gap, so that it is positive on one interval, around those
    eigenvalues, which ``lam`` maps to the gap (Silverstein and Choi 1995).
    """
    ends = [_turn(law, end, float(near), ratio) for end, near in zip(gap, (seen.min(), seen.max()), strict=True)]
    low, high = (_sample_level(law, end, ratio) for end in ends)
    return low, high


def _turn(law: Law, end: float, inside: float, ratio: float) -> float:
    """Where ``lam'`` vanishes between the end of a gap and a point at which it is positive; the end if nowhere."""
    if not np.isfinite(end):
        return end

    def slope(v: float) -> float:
        rise = float(_sample_map(law, np.array([end + (inside - end) * np.exp(v)]), ratio)[1][0])
        return rise if np.isfinite(rise) else -1e300

    if slope(CLOSEST) >= 0:  # the density vanishes so fast that lam increases from the end on; or the end is zero
        return end
    return float(end + (inside - end) * np.exp(brentq(slope, CLOSEST, 0.0, xtol=1e-15, rtol=8 * EPS)))


def _sample_threshold(law: Law, ratio: float) -> float:
    """The critical point of ``lam`` beyond the edge, or the edge; its value there is the edge of the sample bulk."""
    if np.isinf(law.edge):
        return np.inf
    # psi <= edge/(x - edge), so the slope is positive once x - edge exceeds (ratio + sqrt(ratio)) edge
    scale = max(law.edge, float(np.finfo(float).tiny))
    return _turn(law, law.edge, law.edge + 2 * (ratio + np.sqrt(ratio)) * scale, ratio)


def _lower_sample_threshold(law: Law, ratio: float) -> float:
    """The critical point of ``lam`` between zero and the law: below it, eigenvalues are seen below the bulk."""
    if ratio >= 1 or law.lower_edge == 0:
        return -np.inf
    return _turn(law, law.lower_edge, 0.0, ratio)
