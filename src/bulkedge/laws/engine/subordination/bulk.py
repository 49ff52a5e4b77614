"""The bulk of a free convolution: its support from a survey of the line, then the density between the edges.

The survey (:mod:`bulkedge.laws.engine.subordination.support`) counts the mass to the left of points in gaps. The
density must fill each interval with the mass counted beside it; where it does not, or has no solution above some point,
the survey goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from bulkedge.laws.engine.measure.cauchy import GAUSS_NODES, GAUSS_WEIGHTS
from bulkedge.laws.engine.measure.continuum import Continuum
from bulkedge.laws.engine.measure.edges import Edge, Interval
from bulkedge.laws.engine.measure.panels import Density, Panels, fit
from bulkedge.laws.engine.subordination.curve import Curve
from bulkedge.laws.engine.subordination.fixed_point import BranchError
from bulkedge.laws.engine.subordination.moment_check import ACCURACY, lost
from bulkedge.laws.engine.subordination.problem import Problem
from bulkedge.laws.engine.subordination.shifted_islands import (
    Bulk,
    Chart,
    Zone,
    about,
    doubtful,
    overlaid,
    surroundings,
)
from bulkedge.laws.engine.subordination.support import CLOSE, Atoms, Survey
from bulkedge.laws.engine.subordination.unresolved_edges import bridged, ending
from bulkedge.laws.engine.subordination.work_budget import Account, unresolved
from bulkedge.support.arrays import EPS, Mask, Real
from bulkedge.support.errors import UnresolvedError

Found = dict[tuple[float, bool], Edge]
"""Edges by their place, and by whether the bulk lies to the right."""
INTERPOLATED = 1e-12
"""Relative error of a density read off its panels."""


class View(NamedTuple):
    """A law as it is seen from places at which it may have structure finer than numbers are there.

    Attributes
    ----------
    seen : callable
        From a point of the line to the nearest of the places, and the law of the distance from it.
    edges : bool
        Whether edges, too, may be finer; else only islands that are not found otherwise are looked at from nearby.
    """

    seen: Callable[[float], tuple[Fraction, Problem]]
    edges: bool


def bulk_of(operation: Problem, atoms: Atoms, view: View | None = None) -> Bulk | None:
    """The bulk of a free convolution; see :func:`_bulk_of`, in which trial points may overflow."""
    account = Account()
    with np.errstate(all="ignore"):
        bulk = _bulk_of(operation, atoms, account, view)
    account.settle()
    return bulk


def _bulk_of(operation: Problem, atoms: Atoms, account: Account, view: View | None = None) -> Bulk | None:
    """The bulk of a free convolution: the support by counting, then the curve above it."""
    survey = Survey.of(operation, atoms, account)
    survey.lenient = view is not None and view.edges
    bulk = _between_edges(survey, account, view)
    if survey.light or not lost(operation.moments(), survey.x, survey.mass) > ACCURACY:
        return bulk
    try:
        survey.light, survey.rounds = True, 0
        survey.refine()
        return _between_edges(survey, account, view)
    except UnresolvedError:
        # what is lost is then held against the variance that the law must have
        return bulk


def _between_edges(survey: Survey, account: Account, view: View | None) -> Bulk | None:
    """The bulk of a law whose support has been surveyed.

    A gap too narrow for the first sections shows itself when the density is resolved: some point of it has no solution
    above.
    """
    operation, inside = survey.operation, survey.inside
    curve = Curve(survey.step, operation.cauchy, survey.x[inside], survey.state[:, inside], operation.far)
    curve.inversion, curve.prove = operation.inversion(), survey.prove
    # points of intervals whose edges stay are the same from round to round
    known = _remembering(_kept_from_zero(operation, curve.density))
    error_at: Real = np.zeros(0)
    charts, found = Charts(survey, view, account), Found()
    for _ in range(20):
        ends = survey.edges()
        left = [pair for pair in ends if not charts.hold(*pair)]
        curve.include(survey.x[survey.inside], survey.state[:, survey.inside])
        density = ending(known, survey.slivers)
        try:
            kinds = cut(_kinds(operation, curve, left, found), operation.edge_at_zero()) if left else []
            panels = fit(kinds, density) if left else None
        except BranchError as error:
            error_at, before = error.x, len(survey.x)
            survey.examine(error.x)
            if len(survey.x) > before:
                survey.refine()
            elif not bridged(survey, curve, error.x, left) and not charts.add(about(survey, error.x)):
                break
        else:
            masses = _masses(panels, left) if panels else np.zeros(0)
            missed = survey.missed(masses, np.array([not charts.hold(*pair) for pair in ends], dtype=bool))
            density = density if panels is None else _interpolated(density, panels, kinds)
            # islands of which something is missed are looked at from nearby
            if charts.add(missed > survey.countable(np.array([low for low, _ in ends]))) or charts.found:
                return overlaid(kinds, density, charts.found)
            if survey.complete(missed):
                return (kinds, density) if kinds else None
    raise unresolved(operation, "the density between the edges has no solution above", error_at)


@dataclass
class Charts:
    """Stretches of the line that are resolved as seen from nearby, if there is a place to see them from.

    Attributes
    ----------
    survey : Survey
        What is known of the line.
    view : View or None
        See :func:`bulk_of`.
    account : Account
        Of the work.
    found : list of Chart
        The stretches.
    """

    survey: Survey
    view: View | None
    account: Account
    found: list[Chart] = field(default_factory=list)

    def hold(self, low: float, high: float) -> bool:
        """Whether one of the stretches contains an interval, or two points in gaps."""
        return any(chart.low <= low and high <= chart.high for chart in self.found)

    def add(self, missed: Mask) -> bool:
        """Resolve the stretches about intervals of which mass is missed, and those with mass but no interval."""
        known = len(self.found)
        if self.view is None:
            return False
        for stretch in doubtful(self.survey, missed & self.view.edges):
            if self.hold(*stretch):
                continue
            views = [self.view.seen(place) for place in stretch]
            centre, operation = min(views, key=lambda each: min(abs(float(each[0]) - end) for end in stretch))
            low, high = surroundings(self.survey, stretch, float(centre))
            atoms = tuple((float(Fraction(place) - centre), mass) for place, mass in self.survey.atoms)
            bulk = _bulk_of(Zone(operation, float(low - centre), float(high - centre)), atoms, self.account)
            if bulk is not None:
                self.found = [chart for chart in self.found if not (low <= chart.low and chart.high <= high)]
                self.found.append(Chart(centre, low, high, bulk))
        return len(self.found) > known


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


def _interpolated(density: Density, panels: Panels, intervals: list[Interval]) -> Density:
    """The same density, read off its panels at points where it has no solution.

    Next to an edge rounding may hide a solution. Panels that have converged know the density there; an image of the law
    asks for it at other points than those at which they were fitted.
    """
    resolved = Continuum(panels.take(np.argsort(np.minimum(*panels.ends()), kind="stable")), tuple(intervals))

    def everywhere(x: Real) -> tuple[Real, Real]:
        try:
            return density(x)
        except BranchError as error:
            hidden = np.isin(x, error.x)
            value = resolved.pdf(x)
            error_bound = INTERPOLATED * value
            if not hidden.all():
                value[~hidden], error_bound[~hidden] = everywhere(x[~hidden])
            return value, error_bound

    return everywhere


def _kinds(operation: Problem, curve: Curve, ends: list[tuple[float, float]], found: Found) -> list[Interval]:
    """The types of the edges: as the operation knows them, as found before, or from the slope of the density there."""
    known = operation.edge_at_zero()
    sides = [(low, high - low) for low, high in ends], [(high, low - high) for low, high in ends]
    fresh = [
        (place, length)
        for side in sides
        for place, length in side
        if (place != 0 or known is None) and (place, length > 0) not in found
    ]
    if fresh:
        places, lengths = np.array(fresh).T
        # as close to the edge as its rounding lets the slope be seen: further away another law may shine through
        close = np.maximum(1e-9 * np.abs(lengths), 1e5 * EPS * np.abs(places))
        slopes = _slopes(curve, places, close, lengths)
        for (place, length), slope in zip(fresh, slopes.tolist(), strict=True):
            found[place, length > 0] = _kind(place, slope)

    def kind(place: float, *, rightwards: bool) -> Edge:
        return known if place == 0 and known is not None else found[place, rightwards]

    return [(kind(low, rightwards=True), kind(high, rightwards=False)) for low, high in ends]


def _slopes(curve: Curve, places: Real, close: Real, lengths: Real) -> Real:
    """Slopes of the logarithm of a density over that of the distance from edges, at given distances from them.

    Where the height of the variables is lost in rounding at that distance, it is taken ten times as large, and again;
    where that does not help, the slope is not a number.
    """
    slopes, left = np.full(len(places), np.nan), np.arange(len(places))
    for closer in (1.0, 10.0, 100.0, 1e3):
        apart = np.copysign(np.minimum(closer * close, 1e-4 * np.abs(lengths)), lengths)[left]
        further, nearer = np.split(curve.nearby((places[left] + np.array([[1.0], [0.1]]) * apart).ravel()), 2)
        slopes[left] = np.log10(further / nearer)
        left = left[np.isnan(slopes[left])]
        if not len(left):
            break
    return slopes


def _kind(place: float, slope: float) -> Edge:
    """The type of an edge next to which the density is like the distance to the power ``slope``."""
    kinds = [Edge.soft(place), Edge.hard(place), Edge.cusp(place), Edge.cusp(place, -1 / 3), Edge.plain(place)]
    nearest = min(kinds, key=lambda kind: abs(kind.exponent - slope))
    if abs(nearest.exponent - slope) < 0.05:
        return nearest
    # away from zero an edge is a critical point of the map, and its density a square root at last
    return Edge.plain(place, order=2) if place == 0 else Edge.soft(place)


def cut(intervals: list[Interval], zero: Edge | None) -> list[Interval]:
    """The same intervals, the one that contains zero cut there: products are singular at zero also in their bulk."""
    if zero is None:
        return intervals
    result = []
    for left, right in intervals:
        inside = left.location < 0 < right.location
        result += [(left, zero), (zero, right)] if inside else [(left, right)]
    return result
