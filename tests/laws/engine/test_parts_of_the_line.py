"""Parts of the line by themselves: islands in coordinates of their own, slivers beside edges, points between points."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from bulkedge.laws.engine.measure.edges import Edge
from bulkedge.laws.engine.subordination.shifted_islands import Chart, about, doubtful, overlaid, surroundings
from bulkedge.laws.engine.subordination.starting_points import Known, _nearest, between
from bulkedge.laws.engine.subordination.unresolved_edges import bridged, ending

CENTRES = (Fraction(-3), Fraction(7, 3), Fraction(100_003, 10))
RADII = (0.5, 1e-9, 1e-14)


def circle(x, radius):
    """The semicircle of a radius about zero, and an error by which it is told apart."""
    x = np.asarray(x, dtype=float)
    return np.sqrt(np.maximum(radius**2 - x**2, 0.0)), np.full(x.shape, radius)


def charts():
    """Semicircles about places at which points of the line are coarser and coarser for them."""
    return [
        Chart(
            centre,
            float(centre) - 1,
            float(centre) + 1,
            ([(Edge.soft(-radius), Edge.soft(radius))], lambda x, radius=radius: circle(x, radius)),
        )
        for centre, radius in zip(CENTRES, RADII, strict=True)
    ]


def elsewhere(x):
    """What is known of the line without charts."""
    return 10 + np.asarray(x), np.full(np.shape(x), 5.0)


def test_charts_replace_the_intervals_that_they_hold():
    """Intervals within a chart, its ends included, make way for its own, and all come in order."""
    pairs = [(-4.0, -3.5), (-3.4, -2.0), (-2.0, -1.9), (-4.1, -2.5), (-2.5, -1.8), (0.0, 1.0)]
    intervals = [(Edge.soft(low), Edge.soft(high)) for low, high in pairs]
    held = [charts()[0].holds(pair) for pair in intervals]
    assert held == [True, True, False, False, False, False]
    found, _ = overlaid(intervals[2:], elsewhere, charts())
    expected = [*intervals[2:], *(pair for chart in charts() for pair in chart.intervals())]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [left.exact for left, _ in found] == sorted(left.exact for left, _ in found)
    assert overlaid(intervals[:2], elsewhere, charts()[:1])[0] == charts()[0].intervals()
    for chart, radius in zip(charts(), RADII, strict=True):
        ((left, right),) = chart.intervals()
        # remainders are known to a rounding error of themselves
        assert float(left.exact - chart.centre) == pytest.approx(-radius, rel=1e-15, abs=1e-28)
        assert float(right.exact - chart.centre) == pytest.approx(radius, rel=1e-15, abs=1e-28)


def test_a_chart_is_read_from_its_centre():
    """At points of the line, within charts and elsewhere; a chart ends where its part does."""
    _, density = overlaid([], elsewhere, charts())
    for chart, radius in zip(charts(), RADII, strict=True):
        x = float(chart.centre) + np.array([-0.9, -0.3, 0.0, 0.2, 0.4, 0.9])
        value, error = density(x)
        assert value == pytest.approx(circle(x - float(chart.centre), radius)[0], abs=0)
        assert error.tolist() == [radius] * len(x)
        ends = np.array([chart.low, chart.high, chart.low - 0.5, chart.high + 0.5])
        assert density(ends)[0].tolist() == elsewhere(ends)[0].tolist()
    assert density(np.zeros(0))[0].shape == (0,)
    mixed = np.array([5.0, float(CENTRES[0]) + 0.3, 6.0])
    assert density(mixed)[0] == pytest.approx([15.0, 0.4, 16.0])


def test_beside_an_edge_distances_are_as_fine_as_numbers():
    """Each edge of a chart from its own side, at distances far below the rounding of its location."""
    everything, density = overlaid([(Edge.soft(20.0), Edge.soft(21.0))], elsewhere, charts())
    places = {(edge.location, side) for pair in everything for edge, side in zip(pair, (1.0, -1.0), strict=True)}
    for chart, radius in zip(charts(), RADII, strict=True):
        ((left, right),) = chart.intervals()
        distance = radius * np.array([1e-8, 1e-3, 0.5, 1.0, 1.5])
        for edge, side in ((left, 1.0), (right, -1.0)):
            value, error, exact = density.beside(np.full(5, edge.location), np.full(5, side), distance)
            assert exact.all()
            assert value == pytest.approx(np.sqrt(distance * (2 * radius - distance)), rel=1e-6)
            assert error.tolist() == [radius] * 5
            if (edge.location, -side) not in places:
                assert not density.beside(np.full(5, edge.location), np.full(5, -side), distance)[2].any()
    location, direction = np.array([20.0, 21.0, charts()[0].intervals()[0][0].location]), np.array([1.0, -1.0, 1.0])
    value, _, exact = density.beside(location, direction, np.array([0.25, 0.25, 0.25]))
    assert exact.tolist() == [False, False, True]
    assert value == pytest.approx([30.25, 30.75, np.sqrt(0.25 * 0.75)])


def survey_of(x, inside, hidden=(), finite=None):
    """What charts read of a survey: points, which are in the bulk, and between which mass is hidden."""
    x, inside = np.array(x, dtype=float), np.array(inside, dtype=bool)
    state = np.where(np.ones(len(x), dtype=bool) if finite is None else np.array(finite), 1.0 + 0j, np.nan)[None]
    steps = np.diff(inside.astype(int))
    concealed = np.zeros(len(x) - 1, dtype=bool)
    concealed[list(hidden)] = True
    runs = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1) + 1
    return SimpleNamespace(x=x, inside=inside, state=state, hidden=concealed, runs=lambda: runs)


def test_stretches_of_a_survey():
    """Two intervals, [1, 3] and [5, 6] about points 2 and 5.5, and mass between 8 and 9."""
    survey = survey_of([0, 1, 2, 3, 5, 5.5, 6, 8, 9, 12], [0, 0, 1, 0, 0, 1, 0, 0, 0, 0], hidden=[7])
    assert doubtful(survey, np.array([True, False])) == [(1.0, 3.0), (8.0, 9.0)]
    assert doubtful(survey, np.array([False, True])) == [(5.0, 6.0), (8.0, 9.0)]
    assert about(survey, np.array([0.5, 4.0])).tolist() == [False, False]
    assert about(survey, np.array([1.0])).tolist() == [True, False]
    assert about(survey, np.array([3.0])).tolist() == [True, False]
    assert about(survey, np.array([4.5, 5.0])).tolist() == [False, True]
    assert about(survey, np.array([6.0, 2.5])).tolist() == [True, True]


@pytest.mark.parametrize(
    ("place", "expected"),
    [(5.5, (5.0, 6.0)), (4.0, (3.0, 6.0)), (5.0, (3.0, 6.0)), (6.0, (5.0, 8.0)), (7.0, (5.0, 8.0)), (-1.0, (0.0, 6.0)),
     (0.0, (0.0, 6.0)), (20.0, (5.0, 12.0)), (12.0, (5.0, 12.0)), (3.0, (1.0, 6.0)), (8.0, (5.0, 8.0))],
)  # fmt: skip
def test_the_nearest_gaps_about_a_stretch_and_a_place(place, expected):
    """Points of gaps that hold the stretch from 5 to 6 and the place; strictly, if the place is an end of it."""
    survey = survey_of([0, 1, 2, 3, 5, 5.5, 6, 7.5, 8, 12], [0, 0, 1, 0, 0, 1, 0, 0, 0, 0], finite=[1] * 7 + [0, 1, 1])
    assert surroundings(survey, (5.0, 6.0), place) == expected


def test_the_nearest_place_by_trying_all():
    """The first of two that are equally near."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10):
        places = np.unique(rng.integers(-20, 20, count)).astype(float)
        x = np.arange(-50, 50) / 2
        expected = np.argmin(np.abs(x[:, None] - places), axis=1)
        assert _nearest(places, x).tolist() == expected.tolist()


def test_heights_above_new_points():
    """As far as the nearest point of the bulk is, and no less than 1e-6 of the point; points of gaps do not count."""
    inside = np.array([False, True, True, False])
    known = Known(np.array([0.0, 1.0, 2.0, 4.0]), np.array([[1j, 2j, 3j, 4j], [5j, 6j, 7j, 8j]]), inside)
    height, start = known.above(np.array([-3.0, 1.4, 1.6, 4.0, 2.0]))
    assert height == pytest.approx([4.0, 0.4, 0.4, 2.0, 2e-6])
    assert start.tolist() == [[2j, 2j, 3j, 3j, 3j], [6j, 6j, 7j, 7j, 7j]]
    assert known._replace(inside=np.zeros(4, dtype=bool)).above(np.zeros(1)) is None


@pytest.mark.parametrize("count", [2, 3, 7])
def test_points_cut_a_stretch_evenly(count):
    """Evenly on the line, or by the logarithm of the distance from zero; the first part is shorter by 0.1618."""
    steps = np.arange(1, count) - 0.1618

    def check(found, low, high):
        assert found == pytest.approx(low + (high - low) * steps / count, rel=1e-12)

    check(between(-1.0, 3.0, count, None), -1.0, 3.0)
    # next to each other on a scale of decades there is no reason for one: up to a factor of eight
    for sign in (1.0, -1.0):
        low, high = sorted((sign, 8 * sign))
        check(between(low, high, count, 1e-3), low, high)
        low, high = sorted((sign, 8.001 * sign))
        check(np.log(sign * between(low, high, count, 1e-3)), 0.0, np.log(8.001))
        # down to the bottom, and no further
        low, high = sorted((1e-9 * sign, sign))
        check(np.log(sign * between(low, high, count, 1e-3)), np.log(1e-3), 0.0)
        low, high = sorted((0.0, sign))
        check(np.log(sign * between(low, high, count, 1e-3)), np.log(1e-3), 0.0)
    both = between(-2.0, 5.0, count, 1e-3)
    check(np.log(-both[: count - 1]), np.log(2.0), np.log(1e-3))
    check(np.log(both[count - 1 :]), np.log(1e-3), np.log(5.0))
    # a side that is shorter than the bottom has one point, over and over
    assert between(-1e-5, 5.0, count, 1e-3)[: count - 1] == pytest.approx(-1e-3)
    assert between(-2.0, 1e-5, count, 1e-3)[count - 1 :] == pytest.approx(1e-3)


def test_a_density_goes_on_as_a_power_between_a_point_and_its_edge():
    """On both kinds of sides, ends included; elsewhere it is what it is."""
    slivers = [(1.0, 1.5, 0.5), (4.0, 3.0, -0.5)]
    continued = ending(lambda x: (2 * x, np.full(len(x), 0.5)), slivers)
    x = np.array([0.5, 1.0, 1.125, 1.5, 2.0, 3.0, 3.75, 4.5])
    value, error = continued(x)
    assert value == pytest.approx([1.0, 0.0, 1.5, 3.0, 4.0, 6.0, 12.0, 9.0])
    assert error == pytest.approx([0.5, 0.0, 0.25, 0.5, 0.5, 0.5, 1.0, 0.5])
    plain = elsewhere
    assert ending(plain, []) is plain


class Seen:
    """A density ``height * distance**power`` beside an edge, which is not found closer to it than some distance."""

    def __init__(self, edge, height, power, least):
        self.edge, self.height, self.power, self.least = edge, height, power, least

    def nearby(self, x):
        distance = np.abs(x - self.edge)
        return np.where(distance >= self.least, self.height * distance**self.power, np.nan)


def seen_from(zero=None):
    return SimpleNamespace(operation=SimpleNamespace(edge_at_zero=lambda: zero), bridges=[])


@pytest.mark.parametrize(
    ("edge", "side", "zero", "power"),
    [(2.0, 1, None, 0.5), (5.0, -1, None, 0.5), (0.0, 1, Edge.hard(0.0), -0.5), (0.0, -1, Edge.hard(0.0, 3), -2 / 3)],
)
@pytest.mark.parametrize("quadruplings", [1, 8, 9, 17])
def test_a_sliver_is_bridged_if_it_is_too_light_to_count(edge, side, zero, power, quadruplings):
    """Its mass, of a power of the distance, is density times distance over one plus the power: 1e-11 is allowed.

    The first point at which a density is found is the one that decides, wherever it is in the order of trials.
    """
    ends = [(-9.0, -3.0), (2.0, 5.0)] if zero is None else [(-3.0, 0.0), (0.0, 4.0)]
    place = edge + side * 2.0**-42
    distance = abs(place - edge) * 4.0**quadruplings
    for mass, light in ((0.99e-11, True), (1.01e-11, False)):
        height = mass * (1 + power) / distance ** (1 + power)
        survey, curve = seen_from(zero), Seen(edge, height, power, 0.9 * distance)
        assert bridged(survey, curve, np.array([place]), ends) is light
        assert survey.bridges == ([(edge, edge + side * distance, pytest.approx(power))] if light else [])


def test_a_sliver_reaches_no_further_than_a_quarter_of_the_way_to_the_next_edge():
    """From the edge at 2 to that at 5: 0.75."""
    place = 2.0 + 0.7 / 4**3
    for least, found in ((0.69, True), (0.71, False)):
        survey = seen_from()
        assert bridged(survey, Seen(2.0, 1e-13, 0.5, least), np.array([place]), [(2.0, 5.0), (7.0, 8.0)]) is found
    assert not bridged(seen_from(), Seen(2.0, 1e-13, 0.5, 0.79), np.array([2.0 + 0.8 / 4**3]), [(2.0, 5.0)])
    assert not bridged(seen_from(), Seen(2.0, 1e-13, 0.5, 0.0), np.zeros(0), [(2.0, 5.0)])
