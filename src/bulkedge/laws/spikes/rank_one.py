"""Outliers and overlaps: what a perturbation of rank one does to the spectrum of a law.

Everything is read off one function and its derivative: the Cauchy transform G for additive perturbations, and ``lam(x)
= x (1 + ratio psi(x))`` for sample covariances (docs/theory/transforms.md, "Spikes"). A perturbation can make an
outlier in every gap of the bulk, and beyond both of its ends; atoms count as part of the bulk.

More generally, a perturbation ``x u v'`` of a matrix M makes an outlier at z where ``phi(z) phi~(z) = 1/x**2``: phi is
"the limit of ``z u' (z**2 - M M')**-1 u``, phi~ that of ``z v' (z**2 - M' M)**-1 v``. These are the responses of M on
its left and on its right. Both decrease on every gap of the bulk, and the squared overlaps with u and v are ``-2
phi/(x**2 D')`` and ``-2 phi~/(x**2 D')``, where ``D = phi phi~`` (Benaych-Georges and Nadakuditi 2012). With the sign
that both responses have in common, ``sqrt(D)`` decreases on every gap, so it takes the values 1/x and -1/x at most once
in each. For ``theta u u'`` and symmetric M both are the Cauchy transform, and the condition is ``G = 1/theta``;
:mod:`bulkedge.laws.spikes.singular_spikes` has singular values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from bulkedge.laws.engine.measure.continuum import CLOSEST, Gaps, crossings, gaps_between
from bulkedge.support.arrays import EPS, BoolArray, Index, Real
from bulkedge.support.domains import FINITE, Interval, shown
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

STRONGEST = 1e150  # squares of strengths, and of their inverses, must be numbers
RATIO = Interval(1e-12, 1e12)


@dataclass(frozen=True)
class Outlier:
    """An eigenvalue outside the bulk.

    >>> from bulkedge.laws import Semicircle
    >>> Semicircle().spike(2.0).outliers[0].gap
    (2.0, inf)

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
    """The outliers that a rank-one perturbation makes; fields are arrays if the strength was an array.

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
        return merge_outliers(self.outliers)


def merge_outliers(outliers: Any) -> tuple[Any, ...]:
    """Outliers of one strength or of an array of strengths as one tuple, in increasing order."""
    groups = outliers.ravel().tolist() if isinstance(outliers, np.ndarray) else [outliers]
    return tuple(sorted((each for group in groups for each in group), key=lambda each: each.location))


def group_by_strength(records: list[tuple[int, Any]], shape: tuple[int, ...]) -> Any:
    """Records with the number of their strength, as a tuple for each strength: an array of tuples of that shape."""
    groups: list[list[Any]] = [[] for _ in range(int(np.prod(shape)))]
    for number, record in records:
        groups[number].append(record)
    result = np.empty(len(groups), dtype=object)
    for k, group in enumerate(groups):
        result[k] = tuple(group)
    return result.reshape(shape)[()]


# -- how a matrix responds ---------------------------------------------------------------------------------------------


class ResponseValues(NamedTuple):
    """Left and right response at some points, and their derivatives."""

    left: Real
    left_slope: Real
    right: Real
    right_slope: Real


class OutlierPoints(NamedTuple):
    """Outliers: number of the target and of the gap, location, left and right overlap."""

    target: Index
    gap: Index
    point: Real
    left: Real
    right: Real


class Response(ABC):
    """Both responses as functions of a coordinate s in which the gaps are known exactly: z itself, or its square."""

    gaps: Gaps
    ratio = 1.0  # rows over columns: the right response over the left one, but for zeros

    @abstractmethod
    def at(self, s: Real) -> ResponseValues:
        """The responses and their derivatives in s, at points of gaps or at their ends."""

    @abstractmethod
    def masses(self, s: Real) -> tuple[Real, Real]:
        """Residues in s of the left and the right response: zero where there is no atom."""

    def metric(self, s: Real) -> Real:
        """The derivative of the eigenvalue or singular value z in the coordinate s."""
        return np.ones(s.shape)

    def root(self, s: Real) -> tuple[Real, Real]:
        """The root of D with the common sign of the responses, zero if they have none; and its derivative."""
        return signed_root(self.at(s))

    def limits(self) -> Real:
        """That root at the ends of the gaps, approached from inside: axes (end, gap)."""
        ends = np.array([self.gaps.low, self.gaps.high])
        finite = np.isfinite(ends)
        limits = np.zeros(ends.shape)
        limits[finite] = self.root(ends[finite])[0]
        # an atom or a hard edge pushes away from itself
        atom = np.zeros(ends.shape, dtype=bool)
        atom[finite] = (self.masses(ends[finite])[0] > 0) | ~np.isfinite(limits[finite])
        return np.where(atom, np.array([[np.inf], [-np.inf]]), limits)

    def outliers(self, targets: Real, reach: Real) -> OutlierPoints:
        """All outliers for targets ``1/theta`` or ``+-1/x``; they lie within reach of the ends of the outer gaps."""
        found = crossings(self.root, self.gaps, self.limits(), targets, (1 + 1e-9) * reach)
        if not len(found.point):
            return OutlierPoints(found.target, found.gap, found.point, found.point, found.point)
        value = targets[found.target]
        pair = self._values_near_atoms(found.point, found.gap, value)
        return OutlierPoints(found.target, found.gap, found.point, *self._overlaps(found.point, pair, value))

    def signals(self, s: Real) -> tuple[Real, Real, Real]:
        """The other way round: from outliers to the perturbations that make them."""
        strength, left, right = np.zeros((3, len(s)))
        index = np.searchsorted(self.gaps.low, s, side="right") - 1
        outside = (index >= 0) & (s > self.gaps.low[index]) & (s < self.gaps.high[index])
        outside[outside] = self.root(s[outside])[0] != 0
        pair = self.at(s[outside])
        value = signed_root(pair)[0]
        strength[outside] = 1 / value
        left[outside], right[outside] = self._overlaps(s[outside], pair, value)
        return strength, left, right

    def _overlaps(self, point: Real, pair: ResponseValues, value: Real) -> tuple[Real, Real]:
        """Squared overlaps of outliers at points where the root of D takes the given values."""
        # phi/D' is one over phi~' + phi' phi~/phi
        # both have one sign, and their product is the square of the value. Between atoms next to each other one of them
        # may cancel to zero, or to a rounding error of the other sign: then the larger one gives their quotient
        known = pair.left * pair.right > 0
        larger = np.maximum(np.abs(pair.left), np.abs(pair.right))
        power = np.where(np.abs(pair.left) > np.abs(pair.right), -2.0, 2.0)
        rest = np.where(larger == 0, np.sqrt(self.ratio), larger / np.abs(value)) ** power
        quotient = np.where(known, pair.right / np.where(known, pair.left, 1.0), rest)
        slopes = pair.right_slope + pair.left_slope * quotient, pair.left_slope + pair.right_slope / quotient
        left, right = (np.minimum(-2 * self.metric(point) * value**2 / slope, 1.0) for slope in slopes)
        return left, right

    def _values_near_atoms(self, point: Real, gap: Index, value: Real) -> ResponseValues:
        """The responses at outliers, at which the root of D is to take the given values."""
        # responses are mass/distance + rest, and the rest barely depends on it: the distance solves a quadratic
        low, high = self.gaps.low[gap], self.gaps.high[gap]
        beyond = point - low < high - point
        end, side = np.where(beyond, low, high), np.where(beyond, 1.0, -1.0)
        grain = np.spacing(np.abs(end))
        offset = side * np.maximum(np.abs(point - end), 2 * grain)
        pair, (a, b) = self.at(end + offset), self.masses(end)
        # next to an atom, distances of fewer roundings of its location than this are solved for instead of subtracted
        close = (a > 0) & (b > 0) & (np.abs(offset) < 1e10 * grain)
        if not close.any():
            return pair
        a, b, offset, value = a[close], b[close], offset[close], value[close]
        left, left_slope, right, right_slope = (each[close] for each in pair)
        left, right = left - a / offset, right - b / offset
        half = (a * right + b * left) / 2
        square = np.maximum(half**2 - a * b * (left * right - value**2), 0.0)
        inverse = (side[close] * np.sqrt(square) - half) / (a * b)
        left_slope, right_slope = (
            slope + mass / offset**2 - mass * inverse**2 for slope, mass in ((left_slope, a), (right_slope, b))
        )
        for whole, part in zip(pair, (left + a * inverse, left_slope, right + b * inverse, right_slope), strict=True):
            whole[close] = part
        return pair


def signed_root(pair: ResponseValues) -> tuple[Real, Real]:
    """The root of the product of both responses with their common sign, zero if they have none; and its derivative."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        sign = (np.sign(pair.left) + np.sign(pair.right)) / 2
        sign = np.where(np.abs(sign) == 1, sign, 0.0)
        root = sign * np.sqrt(np.abs(pair.left)) * np.sqrt(np.abs(pair.right))
        slope = (pair.left * pair.right_slope + pair.left_slope * pair.right) / (2 * root)
    unknown = np.isnan(pair.left) | np.isnan(pair.right)
    return np.where(unknown, np.nan, root), slope


def atom_masses(law: Law, s: Real) -> Real:
    """The mass of the atom of a law at each point."""
    if not len(law.locations):
        return np.zeros(s.shape)
    index = np.minimum(np.searchsorted(law.locations, s), len(law.locations) - 1)
    return np.where(law.locations[index] == s, law.masses[index], 0.0)


# -- additive perturbations --------------------------------------------------------------------------------------------


def support_gaps(law: Law) -> Gaps:
    """The intervals without mass: below the law, between its intervals and atoms, and above it if it ends there."""
    atoms = [(place, place) for place, _ in law.atoms]
    return gaps_between([*law.support, *atoms], open_above=not law._unbounded)


def additive_spike(law: Law, theta: ArrayLike) -> Spike:
    """Spike of strength theta, of either sign, added to a matrix of the given law."""
    strength = FINITE.check("theta", theta)
    if not np.all((np.abs(strength) >= 1 / STRONGEST) & (np.abs(strength) <= STRONGEST)):
        raise DomainError(f"theta = {shown(theta)} is outside its domain [{1 / STRONGEST:g}, {STRONGEST:g}] in size")
    flat, response = strength.ravel(), SymmetricResponse(law)
    # |G| is at most one over the distance to the law, so the point is within |theta| of it
    found = response.outliers(1 / flat, np.abs(flat))
    rows = zip(found.target.tolist(), found.gap.tolist(), found.point.tolist(), found.left.tolist(), strict=True)
    records = [(k, Outlier(point, share, response.gaps.ends(gap), float(flat[k]))) for k, gap, point, share in rows]
    with np.errstate(divide="ignore"):
        upper, lower = 1 / response.limits()[[0, 1], [-1, 0]] + 0.0
    thresholds = (np.inf if law._unbounded else upper), lower
    return _spike(law, strength, group_by_strength(records, strength.shape), thresholds)


class SymmetricResponse(Response):
    """Both responses of a symmetric matrix are its Cauchy transform."""

    def __init__(self, law: Law) -> None:
        self.law, self.gaps = law, support_gaps(law)

    def at(self, s: Real) -> ResponseValues:
        """G and its derivative, as the left and as the right response."""
        g, slope, _, _ = (part.real for part in self.law.transforms(s + 0j))
        return ResponseValues(g, slope, g.copy(), slope.copy())

    def masses(self, s: Real) -> tuple[Real, Real]:
        """The masses of atoms at the points, on both sides the same."""
        mass = atom_masses(self.law, s)
        return mass, mass


def _spike(law: Law, strength: Real, outliers: Any, thresholds: tuple[float, float]) -> Spike:
    """The record of the outliers, with the outermost one of each strength."""
    location, overlap = np.empty(strength.shape), np.zeros(strength.shape)
    detectable: BoolArray = np.zeros(strength.shape, dtype=bool)
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
        gap: _sample_gap(law, gaps.ends(gap), flat[seen & (holding == gap)], ratio)
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
    return Spike(top[0], top[1], top[2], threshold, group_by_strength(records, shape), lower)


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


def _sample_gap(law: Law, gap: tuple[float, float], seen: Real, ratio: float) -> tuple[float, float]:
    """The gap of the sample's bulk that eigenvalues in a gap of the population's are seen in."""
    # lam' = 1 - ratio int (t/(x - t))**2 is concave on a gap, so positive on one interval (Silverstein and Choi 1995)
    nearest = float(seen.min()), float(seen.max())
    ends = [_critical_point(law, end, near, ratio) for end, near in zip(gap, nearest, strict=True)]
    low, high = (_sample_level(law, end, ratio) for end in ends)
    return low, high


def _critical_point(law: Law, end: float, inside: float, ratio: float) -> float:
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
    return _critical_point(law, law.edge, law.edge + 2 * (ratio + np.sqrt(ratio)) * scale, ratio)


def _lower_sample_threshold(law: Law, ratio: float) -> float:
    """The critical point of ``lam`` between zero and the law: below it, eigenvalues are seen below the bulk."""
    if ratio >= 1 or law.lower_edge == 0:
        return -np.inf
    return _critical_point(law, law.lower_edge, 0.0, ratio)
