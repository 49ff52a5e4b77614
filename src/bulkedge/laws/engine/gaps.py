"""The bulk of a free convolution: its support from a survey of the line, then the density between the edges.

The survey (:mod:`bulkedge.laws.engine.survey`) counts the mass to the left of points in gaps. The density must fill
each interval with the mass counted beside it; where it does not, or has no solution above some point, the survey goes
on.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from bulkedge.arrays import EPS, Mask, Real
from bulkedge.laws.engine.account import Account, unresolved
from bulkedge.laws.engine.cauchy import GAUSS_NODES, GAUSS_WEIGHTS
from bulkedge.laws.engine.charts import Bulk, Chart, Zone, doubtful, overlaid, surroundings
from bulkedge.laws.engine.curve import Curve
from bulkedge.laws.engine.edges import Edge, Interval
from bulkedge.laws.engine.fixed_point import BranchError
from bulkedge.laws.engine.panels import Density, Panels, fit
from bulkedge.laws.engine.slivers import bridged, ending
from bulkedge.laws.engine.subordination import Problem
from bulkedge.laws.engine.survey import CLOSE, Atoms, Survey

View = Callable[[float], tuple[Fraction, Problem]]
FINE = 1e-11
"""Mass that may be missed in an interval before it is looked at from nearby."""


def bulk_of(operation: Problem, atoms: Atoms, view: View | None = None) -> Bulk | None:
    """The bulk of a free convolution; see :func:`_bulk_of`, in which trial points may overflow.

    Parameters
    ----------
    operation : Problem
        The law, as a fixed-point problem.
    atoms : tuple of (location, mass)
        Its atoms.
    view : callable, optional
        The same law seen from the place nearest to a point of the line at which it may have structure finer than
        numbers there: the place, and the law of the distance from it.

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
        return _bulk_of(operation, atoms, Account(), view)


def _bulk_of(operation: Problem, atoms: Atoms, account: Account, view: View | None = None) -> Bulk | None:
    """The bulk of a free convolution: the support by counting, then the curve above it.

    A gap too narrow for the first sections shows itself when the density is resolved: some point of it has no solution
    above.
    """
    survey = Survey.of(operation, atoms, account)
    inside = survey.inside
    curve = Curve(survey.step, operation.cauchy, survey.x[inside], survey.state[:, inside], operation.far)
    # points of intervals whose edges stay are the same from round to round
    known = _remembering(_kept_from_zero(operation, curve.density))
    error_at: Real = np.zeros(0)
    for _ in range(20):
        ends = survey.edges()
        if not ends:
            return None
        curve.include(survey.x[survey.inside], survey.state[:, survey.inside])
        density = ending(known, survey.slivers)
        try:
            kinds = cut(_kinds(operation, curve, ends), operation.edge_at_zero())
            panels = fit(kinds, density)
        except BranchError as error:
            error_at, before = error.x, len(survey.x)
            survey.examine(error.x)
            if len(survey.x) > before:
                survey.refine()
            elif not bridged(survey, error.x, ends):
                break
        else:
            masses = _masses(panels, ends)
            if view is not None:
                # islands of which something is missed are looked at from nearby
                charts = _charts(survey, survey.missed(masses) > FINE, view, account)
                if charts:
                    return overlaid(kinds, density, charts)
            if survey.complete(masses):
                return kinds, density
    raise unresolved(operation, "the density between the edges has no solution above", error_at)


def _charts(survey: Survey, missed: Mask, view: View, account: Account) -> list[Chart]:
    """The stretches of the line of which mass is missed, each resolved as seen from nearby."""
    charts: list[Chart] = []
    for stretch in doubtful(survey, missed):
        if any(chart.low <= stretch[0] and stretch[1] <= chart.high for chart in charts):
            continue
        views = [view(place) for place in stretch]
        centre, operation = min(views, key=lambda each: min(abs(float(each[0]) - end) for end in stretch))
        low, high = surroundings(survey, stretch, float(centre))
        atoms = tuple((float(Fraction(place) - centre), mass) for place, mass in survey.atoms)
        found = _bulk_of(Zone(operation, float(low - centre), float(high - centre)), atoms, account)
        if found is not None:
            charts = [chart for chart in charts if not (low <= chart.low and chart.high <= high)]
            charts.append(Chart(centre, low, high, found))
    return charts


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


def _remembering(density: Density) -> Density:
    """The same density, which remembers its values, point by point.

    A density is fitted at least twice, here to see whether it can be and later by the law, at the same points.
    """
    known: dict[float, tuple[float, float]] = {}

    def remembered(x: Real) -> tuple[Real, Real]:
        places = x.tolist()
        fresh = np.array([place for place in dict.fromkeys(places) if place not in known])
        if len(fresh):
            # trial points of Newton's method may be anything; what comes out of it is checked
            with np.errstate(all="ignore"):
                value, error = density(fresh)
            known.update(zip(fresh.tolist(), zip(value.tolist(), error.tolist(), strict=True), strict=True))
        both = np.array([known[place] for place in places]).reshape(-1, 2)
        return both[:, 0], both[:, 1]

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
