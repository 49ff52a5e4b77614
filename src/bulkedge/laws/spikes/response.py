"""Outliers of a perturbation of rank one, from how the unperturbed matrix responds on its left and on its right.

A perturbation ``x u v'`` of a matrix M makes an outlier at z where ``phi(z) phi~(z) = 1/x**2``: phi is the limit of ``z
u' (z**2 - M M')**-1 u``, phi~ that of ``z v' (z**2 - M' M)**-1 v``. Both decrease on every gap of the bulk, and the
squared overlaps with u and v are ``-2 phi/(x**2 D')`` and ``-2 phi~/(x**2 D')``, where ``D = phi phi~``
(Benaych-Georges and Nadakuditi 2012). For ``theta u u'`` and symmetric M both are the Cauchy transform, and the
condition is ``G = 1/theta``.

With the sign that both have in common, ``sqrt(D)`` decreases on every gap, so it takes the values 1/x and -1/x at most
once in each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.crossings import Gaps, crossings
from bulkedge.support.arrays import Index, Real

COARSE = 1e10
"""Next to an atom, distances of fewer roundings of its location than this are solved for instead of subtracted."""
ROUNDING = 1 + 1e-9


class Pair(NamedTuple):
    """Left and right response at some points, and their derivatives."""

    left: Real
    left_slope: Real
    right: Real
    right_slope: Real


class Found(NamedTuple):
    """Outliers: number of the target and of the gap, location, left and right overlap."""

    target: Index
    gap: Index
    point: Real
    left: Real
    right: Real


class Response(ABC):
    """Both responses as functions of a coordinate s in which the gaps are known exactly: z itself, or its square."""

    gaps: Gaps
    ratio = 1.0
    """Rows over columns: the right response over the left one, but for zeros."""

    @abstractmethod
    def at(self, s: Real) -> Pair:
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

    def outliers(self, targets: Real, reach: Real) -> Found:
        """All outliers for targets ``1/theta`` or ``+-1/x``; they lie within reach of the ends of the outer gaps."""
        found = crossings(self.root, self.gaps, self.limits(), targets, ROUNDING * reach)
        if not len(found.point):
            return Found(found.target, found.gap, found.point, found.point, found.point)
        value = targets[found.target]
        pair = self._beside_atoms(found.point, found.gap, value)
        return Found(found.target, found.gap, found.point, *self._overlaps(found.point, pair, value))

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

    def _overlaps(self, point: Real, pair: Pair, value: Real) -> tuple[Real, Real]:
        """Squared overlaps of outliers at points where the root of D takes the given values."""
        # phi/D' is one over phi~' + phi' phi~/phi
        # both have one sign, and their product is the square of the value. Between atoms next to each other one of them
        # may cancel to zero, or to a rounding error of the other sign: then the larger one tells their quotient
        known = pair.left * pair.right > 0
        larger = np.maximum(np.abs(pair.left), np.abs(pair.right))
        power = np.where(np.abs(pair.left) > np.abs(pair.right), -2.0, 2.0)
        rest = np.where(larger == 0, self.ratio, (np.where(larger == 0, 1.0, larger) / np.abs(value)) ** power)
        quotient = np.where(known, pair.right / np.where(known, pair.left, 1.0), rest)
        slopes = pair.right_slope + pair.left_slope * quotient, pair.left_slope + pair.right_slope / quotient
        left, right = (np.minimum(-2 * self.metric(point) * value**2 / slope, 1.0) for slope in slopes)
        return left, right

    def _beside_atoms(self, point: Real, gap: Index, value: Real) -> Pair:
        """The responses at outliers, at which the root of D is to take the given values.

        Next to an atom the responses are ``mass/distance + rest``, and numbers may be too coarse for the distance. The
        rests are not sensitive to it, and with them the distance solves a quadratic equation.
        """
        low, high = self.gaps.low[gap], self.gaps.high[gap]
        beyond = point - low < high - point
        end, side = np.where(beyond, low, high), np.where(beyond, 1.0, -1.0)
        grain = np.spacing(np.abs(end))
        offset = side * np.maximum(np.abs(point - end), 2 * grain)
        pair, (a, b) = self.at(end + offset), self.masses(end)
        close = (a > 0) & (b > 0) & (np.abs(offset) < COARSE * grain)
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


def signed_root(pair: Pair) -> tuple[Real, Real]:
    """The root of the product of both responses with their common sign, zero if they have none; and its derivative."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        sign = (np.sign(pair.left) + np.sign(pair.right)) / 2
        sign = np.where(np.abs(sign) == 1, sign, 0.0)
        root = sign * np.sqrt(np.abs(pair.left)) * np.sqrt(np.abs(pair.right))
        slope = (pair.left * pair.right_slope + pair.left_slope * pair.right) / (2 * root)
    unknown = np.isnan(pair.left) | np.isnan(pair.right)
    return np.where(unknown, np.nan, root), slope
