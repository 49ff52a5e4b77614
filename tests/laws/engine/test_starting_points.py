"""Points of the line between known points, and what is known next to them."""

import numpy as np
import pytest

from bulkedge.laws.engine.subordination.support import ProvedPoints, _nearest, section_points


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
    known = ProvedPoints(np.array([0.0, 1.0, 2.0, 4.0]), np.array([[1j, 2j, 3j, 4j], [5j, 6j, 7j, 8j]]), inside)
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

    check(section_points(-1.0, 3.0, count, None), -1.0, 3.0)
    # next to each other on a scale of decades there is no reason for one: up to a factor of eight
    for sign in (1.0, -1.0):
        low, high = sorted((sign, 8 * sign))
        check(section_points(low, high, count, 1e-3), low, high)
        low, high = sorted((sign, 8.001 * sign))
        check(np.log(sign * section_points(low, high, count, 1e-3)), 0.0, np.log(8.001))
        # down to the bottom, and no further
        low, high = sorted((1e-9 * sign, sign))
        check(np.log(sign * section_points(low, high, count, 1e-3)), np.log(1e-3), 0.0)
        low, high = sorted((0.0, sign))
        check(np.log(sign * section_points(low, high, count, 1e-3)), np.log(1e-3), 0.0)
    both = section_points(-2.0, 5.0, count, 1e-3)
    check(np.log(-both[: count - 1]), np.log(2.0), np.log(1e-3))
    check(np.log(both[count - 1 :]), np.log(1e-3), np.log(5.0))
    # a side that is shorter than the bottom has one point, over and over
    assert section_points(-1e-5, 5.0, count, 1e-3)[: count - 1] == pytest.approx(-1e-3)
    assert section_points(-2.0, 1e-5, count, 1e-3)[count - 1 :] == pytest.approx(1e-3)
