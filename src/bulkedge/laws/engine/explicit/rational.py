"""The inverse map of a free sum with a law of atoms, about a critical point, without cancellation.

With w the distance of u from one of the atoms (the anchor, of mass m0), the Cauchy transform of the atoms is ``P/w``,
``P = m0 + w H(w)``, H that of the other atoms, and the jumps of the map are ``J = G/(1 - t G) = P/D``, ``D = w - t P``:
finite at the anchor. For a base point c at distance v from the anchor, ``h = w - v`` and sums over the other atoms,
with m their masses and b their distances from the anchor,

    S1 = sum m/((w - b)(v - b)),   S2 = sum m/(v - b)**2,   S3 = sum m/((w - b)(v - b)**2),

algebra gives ``J(u) - J(c) - h J'(c) = h**2 (m0 + w v**2 S3 + t K)/(D(u) D(c)**2)`` with

    K = v P(c) (S1 - v S3) - (m0 + v**2 S2)(H(c) - w S1).

At a critical point ``1 + sum J'(c) = 0``, so these add up to ``z(c + h) - z(c)``, with full relative accuracy however
small h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq

from bulkedge.laws.engine.measure.edge_coordinates import LocalMap
from bulkedge.support.arrays import EPS, Complex, Real

MOST_WIDENINGS = 12
"""The bracket about a critical point grows by four each time, from a few units in its last place to 1e7 as many."""


@dataclass(frozen=True)
class LocalSum:
    """The inverse map ``u + sum masses J`` over atoms, near points that are given by their distance to an atom.

    Attributes
    ----------
    atoms, shares : arrays of shape (k,)
        Atoms of the law and their masses.
    places, masses : arrays of shape (j,)
        Atoms t of the Levy measure and their masses.
    exact : callable
        The map in exact arithmetic.
    """

    atoms: Real
    shares: Real
    places: Real
    masses: Real
    exact: Callable[[Fraction], Fraction]

    def about(self, u: float, snap: float | None = None) -> LocalMap:
        """The map about u or, with ``snap``, about the critical point next to u: the atom that is as close as that."""
        index = int(np.abs(self.atoms - u).argmin())
        anchored = Anchored(
            float(self.shares[index]),
            np.delete(self.atoms, index) - self.atoms[index],
            np.delete(self.shares, index),
            self.places,
            self.masses,
        )
        anchor = float(self.atoms[index])
        offset = u - anchor
        if snap is not None:
            offset = anchored.critical_point(offset, 4 * float(np.spacing(max(abs(u), abs(anchor)))))
            offset = offset if abs(offset) > snap else 0.0
        slope = anchored.slope(offset) if snap is None else 0.0
        point = Fraction(anchor) + Fraction(offset)
        return LocalMap(point, self.exact(point), offset, snap is not None, lambda h: anchored.rise(offset, slope, h))


@dataclass(frozen=True)
class Anchored:
    """The same map in distances from one of the atoms, the anchor.

    Attributes
    ----------
    mass : float
        Mass of the anchor.
    others, shares : arrays of shape (k - 1,)
        Distances of the other atoms from it, and their masses.
    places, masses : arrays of shape (j,)
        Atoms of the Levy measure and their masses.
    """

    mass: float
    others: Real
    shares: Real
    places: Real
    masses: Real

    def slope(self, v: float) -> float:
        """``z'`` at distance v from the anchor."""
        inverse = 1 / (v - self.others)
        below = v - self.places * (self.mass + v * (inverse @ self.shares))
        with np.errstate(divide="ignore"):
            return float(1 - (self.mass + v**2 * (inverse**2 @ self.shares)) * np.sum(self.masses / below**2))

    def critical_point(self, v: float, width: float) -> float:
        """The zero of the slope next to v, which is off by a multiple of the width."""
        for _ in range(MOST_WIDENINGS):
            low, high = v - width, v + width
            if self.slope(low) * self.slope(high) < 0:
                return float(brentq(self.slope, low, high, xtol=float(np.finfo(float).tiny), rtol=4 * EPS))
            width *= 4
        return v

    def rise(self, v: float, slope: float, h: Complex) -> tuple[Complex, Complex, Real, Complex]:
        """``z(c + h) - z(c)``, ``z'(c + h)``, the size of the terms of the first, and G, for c with the given slope."""
        m0, t, m, w = self.mass, self.places, self.shares, v + h
        near, far = 1 / (v - self.others), 1 / (w[:, None] - self.others)
        s1, s2, s3 = far @ (m * near), np.sum(m * near**2), far @ (m * near**2)
        p_base, h_base = m0 + v * (near @ m), near @ m
        p = m0 + w * (far @ m)
        d_base, d = v - t * p_base, w[:, None] - t * p[:, None]
        e_base = m0 + v**2 * s2
        k = v * p_base * (s1 - v * s3) - e_base * (h_base - w * s1)
        bend = (m0 + w * v**2 * s3)[:, None] + t * k[:, None]
        jump = h[:, None] ** 2 * bend / (d * d_base**2)
        # J' = -(m0 + w**2 sum m/(w - b)**2)/D**2, and its difference between u and c
        quotients = (w[:, None] * far + v * near) * self.others * far * near
        e_rise, d_rise = -h * (quotients @ m), h[:, None] * (1 - t * (h_base - w * s1)[:, None])
        rate = e_base * d_rise * (d + d_base) / (d * d_base) ** 2 - e_rise[:, None] / d**2
        size = self._size(v, h, d, d_base)
        return jump @ self.masses + slope * h, rate @ self.masses + slope, size + np.abs(slope * h), m0 / w + far @ m

    def _size(self, v: float, h: Complex, d: Complex, d_base: Real) -> Real:
        """The terms of ``z(c + h) - z(c)`` with all signs positive: its rounding error in units."""
        m0, t, m, w = self.mass, np.abs(self.places), self.shares, np.abs(v + h)
        near, far = np.abs(1 / (v - self.others)), np.abs(1 / ((v + h)[:, None] - self.others))
        s1, s2, s3, v = far @ (m * near), np.sum(m * near**2), far @ (m * near**2), abs(v)
        p_base, p = m0 + v * (near @ m), m0 + w * (far @ m)
        k = v * p_base * (s1 + v * s3) + (m0 + v**2 * s2) * (near @ m + w * s1)
        bend = (m0 + w * v**2 * s3)[:, None] + t * k[:, None]
        lost = (w[:, None] + t * p[:, None]) / np.abs(d) + 2 * (v + t * p_base) / np.abs(d_base)
        return np.asarray((np.abs(h)[:, None] ** 2 * bend / np.abs(d * d_base**2) * (1 + lost)) @ self.masses)
