"""The bulk of a free convolution: its support from a survey of the line, then the density between the edges.

The survey (:mod:`bulkedge.laws.engine.survey`) counts the mass to the left of points in gaps. The density must fill
each interval with the mass counted beside it; where it does not, or has no solution above some point, the survey goes
on.
"""

from __future__ import annotations

import numpy as np

from bulkedge.arrays import EPS, Real
from bulkedge.laws.engine.cauchy import GAUSS_NODES, GAUSS_WEIGHTS
from bulkedge.laws.engine.curve import Curve
from bulkedge.laws.engine.edges import Edge, Interval
from bulkedge.laws.engine.fixed_point import BranchError
from bulkedge.laws.engine.panels import Density, Panels, fit
from bulkedge.laws.engine.subordination import Problem
from bulkedge.laws.engine.survey import CLOSE, Atoms, Survey, unresolved


def bulk_of(operation: Problem, atoms: Atoms) -> tuple[list[Interval], Density] | None:
    """The bulk of a free convolution; see :func:`_bulk_of`, in which trial points may overflow.

    Parameters
    ----------
    operation : Problem
        The law, as a fixed-point problem.
    atoms : tuple of (location, mass)
        Its atoms.

    Returns
    -------
    tuple or None
        The intervals, as pairs of edges, and the density between them; None if the law has atoms alone.

    Raises
    ------
    BranchError
        If the support was not resolved.
    """
    with np.errstate(all="ignore"):
        return _bulk_of(operation, atoms)


def _bulk_of(operation: Problem, atoms: Atoms) -> tuple[list[Interval], Density] | None:
    """The bulk of a free convolution: the support by counting, then the curve above it.

    A gap too narrow for the first sections shows itself when the density is resolved: some point of it has no solution
    above.
    """
    survey = Survey.of(operation, atoms)
    error_at: Real = np.zeros(0)
    for _ in range(20):
        ends = survey.edges()
        if not ends:
            return None
        inside = survey.inside
        curve = Curve(survey.step, operation.cauchy, survey.x[inside], survey.state[:, inside], operation.far)
        density = _remembering(_ending(_kept_from_zero(operation, curve.density), survey.slivers))
        try:
            kinds = cut(_kinds(operation, curve, ends), operation.edge_at_zero())
            panels = fit(kinds, density)
        except BranchError as error:
            error_at, known = error.x, len(survey.x)
            survey.examine(error.x)
            if len(survey.x) == known:
                break
            survey.refine()
        else:
            if survey.complete(_masses(panels, ends)):
                return kinds, density
    raise unresolved(operation, "the density between the edges has no solution above", error_at)


def _masses(panels: Panels, ends: list[tuple[float, float]]) -> Real:
    """The mass of a density between each pair of edges."""
    each = (panels.mass_density(panels.sites(GAUSS_NODES)) @ GAUSS_WEIGHTS) * (panels.stop - panels.start) / 2
    interval = np.searchsorted([low for low, _ in ends], panels.middle) - 1
    return np.asarray(np.bincount(interval, weights=each, minlength=len(ends)), dtype=float)


def _kept_from_zero(operation: Problem, density: Density) -> Density:
    """The same density, constant next to zero where it is finite there and in the bulk of a product.

    There x is real to leading order in the variables, and their height above the axis is lost in rounding; the density
    is not constant by ``x log x`` over a stretch that holds a mass of 1e-10.
    """
    if not operation.flat_at_zero:
        return density
    nearest = CLOSE * float(np.ptp(operation.bounds()))

    def kept(x: Real) -> tuple[Real, Real]:
        return density(np.copysign(np.maximum(np.abs(x), nearest), x))

    return kept


def _ending(density: Density, slivers: list[list[float]]) -> Density:
    """The same density, continued as a square root between a known point of the bulk and the edge next to it."""

    def continued(x: Real) -> tuple[Real, Real]:
        inner, factor = x.copy(), np.ones(len(x))
        for edge, point in slivers:
            between = (x - edge) * (x - point) <= 0
            inner[between], factor[between] = point, np.sqrt((x[between] - edge) / (point - edge))
        value, error = density(inner)
        return factor * value, factor * error

    return continued if slivers else density


def _remembering(density: Density) -> Density:
    """The same density, which remembers its values.

    A density is fitted twice, here to see whether it can be and later by the law, at the same points in the same order.
    """
    known: dict[bytes, tuple[Real, Real]] = {}

    def remembered(x: Real) -> tuple[Real, Real]:
        key = x.tobytes()
        if key not in known:
            # trial points of Newton's method may be anything; what comes out of it is checked
            with np.errstate(all="ignore"):
                known[key] = density(x)
        return known[key]

    return remembered


def _kinds(operation: Problem, curve: Curve, ends: list[tuple[float, float]]) -> list[Interval]:
    """The types of the edges: as the operation knows them, or from the slope of the density there, all at once."""
    places = np.ravel(ends)
    lengths = np.repeat([high - low for low, high in ends], 2) * np.tile([1.0, -1.0], len(ends))
    known = operation.edge_at_zero()
    asked = places != 0 if known is not None else np.ones(len(places), dtype=bool)
    # as close to the edge as its rounding lets the slope be seen: further away another law may shine through
    close = np.maximum(1e-9 * np.abs(lengths), 1e5 * EPS * np.abs(places))
    apart = np.copysign(np.minimum(close, 1e-4 * np.abs(lengths)), lengths)
    slopes = np.zeros(len(places))
    if asked.any():
        density, _ = curve.density((places[asked] + np.array([[1.0], [0.1]]) * apart[asked]).ravel())
        slopes[asked] = np.log10(density[: asked.sum()] / density[asked.sum() :])
    edges = [
        known if place == 0 and known is not None else _kind(place, slope)
        for place, slope in zip(places.tolist(), slopes.tolist(), strict=True)
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _kind(place: float, slope: float) -> Edge:
    """The type of an edge next to which the density is like the distance to the power ``slope``."""
    kinds = [Edge.soft(place), Edge.hard(place), Edge.cusp(place), Edge.cusp(place, -1 / 3), Edge.plain(place)]
    nearest = min(kinds, key=lambda kind: abs(kind.exponent - slope))
    if abs(nearest.exponent - slope) < 0.05:
        return nearest
    # away from zero an edge is a critical point of the map, and its density a square root at last
    return Edge.plain(place, order=2) if place == 0 else Edge.soft(place)


def cut(intervals: list[Interval], zero: Edge | None) -> list[Interval]:
    """The same intervals, the one that contains zero cut there: products are singular at zero also in their bulk.

    Parameters
    ----------
    intervals : list of pairs of Edge
        Left and right edge of each interval.
    zero : Edge, optional
        How the density behaves at zero; None if it is analytic there.

    Returns
    -------
    list of pairs of Edge
        One more than before where zero lies inside.
    """
    if zero is None:
        return intervals
    result = []
    for left, right in intervals:
        inside = left.location < 0 < right.location
        result += [(left, zero), (zero, right)] if inside else [(left, right)]
    return result
