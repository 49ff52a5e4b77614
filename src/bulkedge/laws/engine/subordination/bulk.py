"""The bulk of a free convolution: its support from a survey of the line, then the density between the edges.

The survey (:mod:`bulkedge.laws.engine.subordination.support`) counts the mass to the left of points in gaps. The
density must fill each interval with the mass counted beside it; where it does not, or has no solution above some point,
the survey goes on.
"""

from __future__ import annotations

import numpy as np

from bulkedge.laws.engine.measure.cauchy import GAUSS_NODES, GAUSS_WEIGHTS
from bulkedge.laws.engine.measure.continuum import Continuum
from bulkedge.laws.engine.measure.panels import DensityFunction, Edge, Panels, SupportInterval, cut_at_zero, fit
from bulkedge.laws.engine.subordination.fixed_point import BranchError, FixedPointCurve
from bulkedge.laws.engine.subordination.problem import ACCURACY, Problem, WorkBudget, lost_variance, unresolved
from bulkedge.laws.engine.subordination.support import CLOSE, SupportSurvey
from bulkedge.support.arrays import EPS, Real
from bulkedge.support.errors import UnresolvedError


def bulk_of(
    operation: Problem, atoms: tuple[tuple[float, float], ...]
) -> tuple[list[SupportInterval], DensityFunction] | None:
    """The bulk of a free convolution; see :func:`_bulk_of`, in which trial points may overflow."""
    account = WorkBudget()
    with np.errstate(all="ignore"):
        bulk = _bulk_of(operation, atoms, account)
    account.allow_images()
    return bulk


def _bulk_of(
    operation: Problem, atoms: tuple[tuple[float, float], ...], account: WorkBudget
) -> tuple[list[SupportInterval], DensityFunction] | None:
    """The bulk of a free convolution: the support by counting, then the curve above it."""
    survey = SupportSurvey.of(operation, atoms, account)
    bulk = _between_edges(survey)
    if survey.light or not lost_variance(operation.moments(), survey.x, survey.mass) > ACCURACY:
        return bulk
    try:
        survey.light, survey.rounds = True, 0
        survey.refine()
        return _between_edges(survey)
    except UnresolvedError:
        # what is lost is then held against the variance that the law must have
        return bulk


def _between_edges(survey: SupportSurvey) -> tuple[list[SupportInterval], DensityFunction] | None:
    """The bulk of a law whose support has been surveyed; None if a point has no solution, in a gap not seen before."""
    operation, inside = survey.operation, survey.inside
    curve = FixedPointCurve(survey.step, operation.cauchy, survey.x[inside], survey.state[:, inside], operation.far)
    curve.prove = survey.prove
    # points of intervals whose edges stay are the same from round to round
    density = _with_memory(_constant_near_zero(operation, curve.density))
    error_at: Real = np.zeros(0)
    # edges by their place, and by whether the bulk lies to the right
    found: dict[tuple[float, bool], Edge] = {}
    for _ in range(20):
        ends = survey.edges()
        if not ends:
            return None
        curve.include(survey.x[survey.inside], survey.state[:, survey.inside])
        try:
            kinds = cut_at_zero(_edge_types(operation, curve, ends, found), operation.edge_at_zero())
            panels = fit(kinds, density)
        except BranchError as error:
            error_at, before = error.x, len(survey.x)
            survey.examine(error.x)
            if len(survey.x) == before:
                break
            survey.refine()
        else:
            if survey.complete(_masses(panels, ends)):
                return kinds, _interpolate_where_hidden(density, panels, kinds)
    raise unresolved(operation, "the density between the edges has no solution above", error_at)


def _masses(panels: Panels, ends: list[tuple[float, float]]) -> Real:
    """The mass of a density between each pair of edges."""
    each = (panels.mass_density(panels.sites(GAUSS_NODES)) @ GAUSS_WEIGHTS) * (panels.stop - panels.start) / 2
    interval = np.searchsorted([low for low, _ in ends], panels.middle) - 1
    return np.asarray(np.bincount(interval, weights=each, minlength=len(ends)), dtype=float)


def _constant_near_zero(operation: Problem, density: DensityFunction) -> DensityFunction:
    """The same density, constant next to zero where it is finite there and in the bulk of a product."""
    # heights are lost in rounding there; the error is x log x over a stretch that holds a mass of 1e-10
    if not operation.flat_at_zero:
        return density
    nearest = CLOSE * float(np.ptp(operation.bounds()))

    def constant_near_zero(x: Real) -> tuple[Real, Real]:
        return density(np.copysign(np.maximum(np.abs(x), nearest), x))

    return constant_near_zero


def _with_memory(density: DensityFunction) -> DensityFunction:
    """The same density with its values remembered: it is fitted at least twice, at the same points."""
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


def _interpolate_where_hidden(
    density: DensityFunction, panels: Panels, intervals: list[SupportInterval]
) -> DensityFunction:
    """The same density, read off its converged panels where rounding next to an edge hides its solution."""
    resolved = Continuum(panels.take(np.argsort(np.minimum(*panels.ends()), kind="stable")), tuple(intervals))

    def everywhere(x: Real) -> tuple[Real, Real]:
        try:
            return density(x)
        except BranchError as error:
            hidden = np.isin(x, error.x)
            value = resolved.pdf(x)
            # panels are converged to 1e-13
            error_bound = 1e-12 * value
            if not hidden.all():
                value[~hidden], error_bound[~hidden] = everywhere(x[~hidden])
            return value, error_bound

    return everywhere


def _edge_types(
    operation: Problem, curve: FixedPointCurve, ends: list[tuple[float, float]], found: dict[tuple[float, bool], Edge]
) -> list[SupportInterval]:
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
            found[place, length > 0] = _edge_type(place, slope)

    def kind(place: float, *, rightwards: bool) -> Edge:
        return known if place == 0 and known is not None else found[place, rightwards]

    return [(kind(low, rightwards=True), kind(high, rightwards=False)) for low, high in ends]


def _slopes(curve: FixedPointCurve, places: Real, close: Real, lengths: Real) -> Real:
    """Slopes of the log of a density over that of the distance from edges; nan where heights drown in rounding."""
    slopes, left = np.full(len(places), np.nan), np.arange(len(places))
    for closer in (1.0, 10.0, 100.0, 1e3):
        apart = np.copysign(np.minimum(closer * close, 1e-4 * np.abs(lengths)), lengths)[left]
        further, nearer = np.split(curve.nearby((places[left] + np.array([[1.0], [0.1]]) * apart).ravel()), 2)
        slopes[left] = np.log10(further / nearer)
        left = left[np.isnan(slopes[left])]
        if not len(left):
            break
    return slopes


def _edge_type(place: float, slope: float) -> Edge:
    """The type of an edge next to which the density is like the distance to the power ``slope``."""
    kinds = [Edge.soft(place), Edge.hard(place), Edge.cusp(place), Edge.cusp(place, -1 / 3), Edge.plain(place)]
    nearest = min(kinds, key=lambda kind: abs(kind.exponent - slope))
    if abs(nearest.exponent - slope) < 0.05:
        return nearest
    # away from zero an edge is a critical point of the map, and its density a square root at last
    return Edge.plain(place, order=2) if place == 0 else Edge.soft(place)
