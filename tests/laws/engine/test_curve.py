"""Where Newton's method starts on the curve above the bulk."""

import numpy as np
import pytest

from bulkedge.laws.engine.subordination.fixed_point import FixedPointCurve


def curve(x, u):
    """A curve with known points, of which nothing is asked but where to start."""
    return FixedPointCurve(None, None, np.asarray(x, dtype=float), np.asarray(u, dtype=complex))


def test_smooth_curves_are_followed_by_cubics():
    rng = np.random.default_rng(0)
    x, at = np.sort(rng.uniform(0, 1, 30)), rng.uniform(0.05, 0.95, 50)

    def height(t):
        return np.stack([1 + t - t**3 + 1j * (2 - t**2), 3 * t**2 - t + 1j * (1 + t**3)])

    order = rng.permutation(30)
    found = curve(x[order], height(x[order]))._start(at)
    np.testing.assert_allclose(found, height(at), rtol=1e-11)


def test_jumps_and_ends_are_left_to_lines():
    """A cubic that is far from the line through the neighbours is not used, and beyond the ends the last point is."""
    known = curve([0.0, 1.0, 2.0, 3.0], [[1j, 1j, 50j, 50j]])
    np.testing.assert_allclose(known._start(np.array([0.5, 1.5, -1.0, 4.0]))[0], [1j, 25.5j, 1j, 50j], rtol=1e-12)


@pytest.mark.parametrize("x", [[2.0], [2.0, 2.0], [1.0, 2.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
def test_few_points_and_points_known_twice(x):
    found = curve(x, [np.array(x) + 1j])._start(np.array([1.5, 2.0, 2.5]))[0]
    assert np.all(np.isfinite(found))
    assert np.all(found.imag > 0.4)
    assert np.all((found.real >= min(x) - 1e-12) & (found.real <= max(x) + 1e-12))


def test_nothing_starts_on_the_axis():
    assert np.all(curve([0.0, 1.0], [[1.0 + 0j, 2.0 + 0j]])._start(np.linspace(0, 1, 5)).imag > 0)
