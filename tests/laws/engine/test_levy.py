"""Explicit inverse maps over laws of atoms: level points, poles and edges in exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.laws.engine.explicit import exact_cauchy, level_points

LAWS = {
    "two atoms": be.EmpiricalLaw([-0.7, 0.3]),
    "close atoms": be.EmpiricalLaw([1.0, 1.0 + 1e-9, 4.0]),
    "neighbouring numbers": be.EmpiricalLaw([1.0, np.nextafter(1.0, 2.0)]),
    "barely apart": be.EmpiricalLaw([0.0, 1e-200]),
    "light atom": be.EmpiricalLaw([-3.0, 5.0], [1.0, 1e-13]),
    "large": be.EmpiricalLaw([-150.0, 30.0, 31.0]),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("w", [1e4, 20.0, 0.05, -0.05, -20.0, -1e4])
def test_every_level_is_reached_between_any_two_atoms(name, w):
    """G falls from infinity to minus infinity between atoms, and reaches w once outside: as many points as atoms."""
    law = LAWS[name]
    points, slopes = level_points(law, w)
    assert len(points) == len(law.atoms)
    ends = np.concatenate([law.values, [np.inf]] if w > 0 else [[-np.inf], law.values])
    assert np.all((ends[:-1] <= points) & (points <= ends[1:]))
    assert np.all(slopes < 0)


@pytest.mark.parametrize("w", [30.0, 0.2, -0.7])
def test_level_points_and_slopes_against_a_polynomial(w):
    """``G = w`` for two atoms is a quadratic; at its roots the slopes are those of G."""
    low, high, share = -0.7, 0.3, 0.25
    law = be.EmpiricalLaw([low, high], [share, 1 - share])
    points, slopes = level_points(law, w)
    exact = np.sort(np.roots([w, -w * (low + high) - 1, w * low * high + share * high + (1 - share) * low]))
    assert points == pytest.approx(exact, rel=1e-13)
    assert slopes == pytest.approx(-share / (exact - low) ** 2 - (1 - share) / (exact - high) ** 2, rel=1e-10)


def test_a_level_point_that_rounds_onto_its_atom_keeps_its_slope():
    """Beside an atom of mass m the level w is reached at distance m/w, where ``G' = -w**2/m``."""
    law = be.EmpiricalLaw([-3.0, 5.0], [1.0, 1e-13])
    points, slopes = level_points(law, 1e4)
    assert points[1] == 5.0
    assert slopes[1] == pytest.approx(-1e8 / 1e-13, rel=1e-4)


def test_level_points_beside_a_bulk():
    """Beyond the edge of the semicircle ``K(w) = 1/w + w``; levels above G(edge) = 1 are not reached."""
    points, _ = level_points(be.Semicircle(), 0.5)
    assert points == pytest.approx([2.5], rel=1e-13)
    assert len(level_points(be.Semicircle(), 1.5)[0]) == 0


def test_transforms_are_infinite_at_atoms():
    """As the docstring says: G and G' at every atom, psi and psi' at all but zero, which has no part in them."""
    law = be.EmpiricalLaw([-2.0, 0.0, 4.0], [1, 1, 2])
    g, g_slope, psi, psi_slope = law.transforms(law.values + 0j)
    assert np.all(g.real == np.inf)
    assert np.all(g_slope.real == -np.inf)
    assert psi.real.tolist() == [-np.inf, -0.75, np.inf]
    assert psi_slope.real.tolist() == [np.inf, pytest.approx(0.125 - 0.125), -np.inf]
    assert law.cauchy(4.0) == np.inf


@pytest.mark.parametrize("ratio", [0.3, 2.0, 20.0])
def test_the_map_is_regular_at_atoms(ratio):
    """At an atom of mass m, z is the atom itself and ``z' = 1 - 1/(ratio m)``: it survives where that is positive."""
    law = be.EmpiricalLaw([-1.0, 0.5, 2.0], [1, 2, 5])
    value, slope, size = be.MarchenkoPastur(ratio, 3.0)._levy.map_over(law).evaluate(law.values + 0j)
    assert value == pytest.approx(law.values, abs=1e-12)
    assert slope == pytest.approx(1 - 1 / (ratio * law.weights), rel=1e-12)
    assert np.all(np.isfinite(size))


@given(st.sets(st.integers(-5000, 5000), min_size=2, max_size=6), st.floats(0.01, 20))
def test_edges_are_critical_values_in_exact_arithmetic(values, ratio):
    """At each end of a gap the slope of the map, as a rational number, vanishes to the rounding of the end."""
    law, levy = be.EmpiricalLaw(np.array(sorted(values)) / 1000), be.MarchenkoPastur(ratio)._levy
    inverse_map = levy.map_over(law)
    for gap in inverse_map._gaps():
        if gap.slope < 1e-6:
            continue
        for u in (gap.low, gap.high):
            if not np.isfinite(u) or u in law.values:
                continue
            step = Fraction(float(np.abs(inverse_map.barriers - u).min())) / 10**6
            left, right = (inverse_map.exact(Fraction(float(u)) + sign * step) for sign in (-1, 1))
            assert abs(float((right - left) / (2 * step))) < 1e-4


def test_exact_cauchy_is_exact():
    assert exact_cauchy(be.EmpiricalLaw([0.0, 1.0]), Fraction(1, 3)) == Fraction(3, 2) - Fraction(3, 4)
