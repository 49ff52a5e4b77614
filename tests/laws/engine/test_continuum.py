"""Affine images of resolved measures: panels are moved, not fitted again, so large shifts cost nothing."""

from fractions import Fraction

import numpy as np
import pytest

import bulkedge as be

LAWS = (be.FussCatalan(3), be.MarchenkoPastur(0.5), be.free_mul(be.EmpiricalLaw([1.0, 8.0]), be.MarchenkoPastur(0.1)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("factor", [1.0, 0.03, 40.0, -1.0, -7.5])
@pytest.mark.parametrize("shift", [0.0, 3.25, -2048.0])
def test_moved_measures_are_the_measure_moved(law, factor, shift):
    """Quantiles, moments and transforms of ``f x + s``; to the rounding of a number of the size of the shift."""
    image = law.continuum.moved(Fraction(factor), Fraction(shift))
    levels = np.linspace(0.01, 0.99, 22) * law.continuum.mass  # none at the gap
    expected = factor * law.continuum.ppf(levels if factor > 0 else law.continuum.mass - levels) + shift
    assert image.ppf(levels) == pytest.approx(expected, rel=1e-12, abs=1e-13)
    assert image.mass == pytest.approx(law.continuum.mass, abs=1e-14)
    assert image.moment(2, shift) == pytest.approx(factor**2 * law.continuum.moment(2), rel=1e-12)
    points = np.array([0.5 + 0.5j, 3.0 + 0.01j])
    found = image.transforms((factor * points if factor > 0 else np.conj(factor * points)) + shift)[0]
    expected = law.continuum.transforms(points)[0] / factor
    assert found == pytest.approx(expected if factor > 0 else np.conj(expected), rel=1e-9)


def test_a_hard_edge_far_from_zero():
    """Near 2043 a double has 13 digits; the mass near the edge, which goes like the fourth root, keeps all of them."""
    law = be.free_add(be.FussCatalan(3, 5.0), be.EmpiricalLaw([2043.0]))
    assert law.cdf(2043.0 + 1e-6) == pytest.approx(float(be.FussCatalan(3, 5.0).cdf(1e-6)), rel=1e-4)
    assert law.var() == pytest.approx(be.FussCatalan(3, 5.0).var(), rel=1e-12)
