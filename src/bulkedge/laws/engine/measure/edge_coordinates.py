"""Densities beside their edges: points given as distances from an edge, not as rounded numbers of the line.

An interval of width 1e-9 at x = 5, or the spike of density that an atom leaves when it has just dissolved, is finer
than double precision resolves at x. Its inverse map is not: about a real base point c, which is itself kept as a
distance from the nearest atom, ``z(c + h) - z(c)`` and ``h`` have full relative accuracy. So the fixed point is sought
in h, for a given distance from z(c), with one base point for each edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.panels import BesideEdges, Density
from bulkedge.laws.engine.subordination.curve import Curve
from bulkedge.support.arrays import EPS, Complex, Mask, Real

if TYPE_CHECKING:
    from bulkedge.laws.engine.measure.edges import Edge, Interval

Curves = dict[tuple[float, float], Curve]
"""Curves in coordinates of their edge, by the location of the edge and the side on which they lie."""


class LocalMap(NamedTuple):
    """An inverse map about a base point.

    Attributes
    ----------
    point : Fraction
        The base point c, beyond double precision.
    value : Fraction
        ``z(c)``, likewise.
    pole : float
        How far c is to the right of the nearest pole of the Cauchy transform; zero if it is one.
    critical : bool
        Whether ``z'(c) = 0``.
    rise : callable
        ``rise(h)`` returns ``z(c + h) - z(c)``, ``z'(c + h)``, the size of the terms of the first (its rounding error
        in units) and the Cauchy transform of the law at ``z(c + h)``.
    """

    point: Fraction
    value: Fraction
    pole: float
    critical: bool
    rise: Callable[[Complex], tuple[Complex, Complex, Real, Complex]]


@dataclass(frozen=True)
class Base:
    """An edge, and the map about the real point below it.

    Attributes
    ----------
    edge : Edge
        The edge or cut.
    local : LocalMap, optional
        The map about the base point c; none where there are no such coordinates.
    shift : float
        How far the edge is from ``z(c)``: zero but for cuts inside the bulk.
    """

    edge: Edge
    local: LocalMap | None = None
    shift: float = 0.0


def curve_beside(local: LocalMap, shift: float, distance: Real, h: Complex) -> Curve:
    """The curve above the bulk in coordinates of an edge."""

    def step(h: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        rise, slope, size, _ = local.rise(h[0])
        target = z + shift
        return (target - rise)[None], (1 - slope)[None, None], 4 * EPS * (np.abs(target) + size)[None]

    def critical_step(h: Complex, z: Complex) -> tuple[Complex, Complex, Real]:
        # z(c + h) - z(c) = h**2 Q(h) with Q the Cauchy transform of a probability measure, so that h -> sqrt(z/Q) is a
        # self-map of the half-plane as well. Close to the edge Q is constant: this map is attracting as no other is
        rise, slope, size, _ = local.rise(h[0])
        root = np.sqrt(z / rise) * h[0]
        image = np.where(root.imag < 0, -root, root)
        jacobian = image / h[0] * (1 - slope * h[0] / (2 * rise))
        return (image - h[0])[None], jacobian[None, None], 4 * EPS * (np.abs(image) * (1 + size / np.abs(rise)))[None]

    return Curve(critical_step if local.critical else step, lambda h, _: local.rise(h[0])[3], distance, h[None])


def beside_edges(density: Density, curves: Curves) -> Density:
    """A density that uses the given curve for points beside the edge with its (location, side)."""

    def beside(location: Real, direction: Real, distance: Real) -> tuple[Real, Real, Mask]:
        value, error = np.zeros(location.shape), np.zeros(location.shape)
        exact = np.zeros(location.shape, dtype=bool)
        for (place, side), curve in curves.items():
            here = (location == place) & (direction == side)
            exact |= here
            if here.any():
                value[here], error[here] = curve.density((direction * distance)[here])
        if not exact.all():
            value[~exact], error[~exact] = density((location + direction * distance)[~exact])
        return value, error, exact

    return BesideEdges(density, beside)


def moved_beside(
    inner: BesideEdges, density: Density, pairs: list[tuple[Interval, Interval]], factor: float
) -> Density:
    """The density of an affine image, which keeps the accuracy of the original beside its edges."""
    turn, size = float(np.sign(factor)), abs(factor)
    origins = {
        (image.location, side * turn): edge.location
        for edges, images in pairs
        for edge, image, side in zip(edges, images, (1.0, -1.0), strict=True)
    }

    def beside(location: Real, direction: Real, distance: Real) -> tuple[Real, Real, Mask]:
        origin = location.copy()
        for (place, side), original in origins.items():
            origin[(location == place) & (direction == side)] = original
        value, error, exact = inner.beside(origin, direction * turn, distance / size)
        return value / size, error / size, exact

    return BesideEdges(density, beside)
