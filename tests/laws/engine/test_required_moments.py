"""Mean and variance that operands demand of a free convolution: what is off in them is refused."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.engine.subordination.problem import (
    FEWEST,
    SMALLEST_MASS,
    Multiplication,
    RequiredMoments,
    check_moments,
    least_mass,
)
from bulkedge.support.errors import UnresolvedError

LAWS = {
    "sum": be.free_add(be.EmpiricalLaw([0.0, 10.0], [0.9, 0.1]), be.Semicircle()),
    "product": be.free_mul(be.EmpiricalLaw([1.0, 20.0], [0.9, 0.1]), be.MarchenkoPastur(0.1)),
    "rectangular": be.rectangular_add(be.EmpiricalLaw([1.0, 20.0], [0.9, 0.1]), be.QuarterCircle(), 0.5).law,
}


@pytest.mark.parametrize("name", LAWS)
def test_laws_that_are_right_pass(name):
    law = LAWS[name]
    check_moments(law, law.continuum, law._known_moments())
    assert law.mean() == pytest.approx(law._known_moments().mean, rel=1e-11)
    assert law.var() == pytest.approx(law._known_moments().variance, rel=1e-11)


@pytest.mark.parametrize("name", LAWS)
def test_a_law_that_is_moved_is_refused(name):
    law = LAWS[name]
    moved = law.continuum.moved(Fraction(1), Fraction(law.edge * 1e-7))
    with pytest.raises(UnresolvedError, match=r"mean is off .* move the parameters"):
        check_moments(law, moved, law._known_moments())


@pytest.mark.parametrize("name", LAWS)
def test_a_law_without_its_last_island_is_refused(name):
    """Its mass, 1e-1, given to the rest so that the total says nothing."""
    law = LAWS[name]
    assert len(law.support) == 2
    low = law.support[1][0]
    kept = law.continuum.panels.middle < low
    rest = replace(law.continuum, panels=law.continuum.panels.take(kept), intervals=law.continuum.intervals[:1])
    with pytest.raises(UnresolvedError, match="off by"):
        check_moments(law, rest.normalised(law.continuum.mass), law._known_moments())


def test_what_counts_further_out():
    """Masses whose share of the variance is 1e-10, and none below what rounding leaves."""
    x = np.array([0.0, 1.0, 100.0, 1e6])
    assert least_mass(RequiredMoments(0.0, 1.0, 0.0), x) == pytest.approx(
        [SMALLEST_MASS, SMALLEST_MASS, FEWEST, FEWEST]
    )
    assert least_mass(RequiredMoments(0.0, 1.0, 0.0), np.array([10.0])) == pytest.approx([1e-12])
    assert least_mass(None, x) == pytest.approx([SMALLEST_MASS] * 4)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_what_counts_does_not_depend_on_the_scale(scale):
    x = np.array([0.3, 3.0, 9.0, 20.0])
    expected = least_mass(RequiredMoments(0.0, 1.0, 0.0), x)
    assert least_mass(RequiredMoments(0.0, scale**2, 0.0), scale * x) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_what_is_refused_does_not_depend_on_the_scale(scale):
    """A displacement of a hundredth of the slack passes, one of ten times the slack does not."""
    law = be.Semicircle(scale**2)
    slack = 1e-10 * scale + SMALLEST_MASS * 2 * scale
    demanded = RequiredMoments(0.0, scale**2, 0.0)
    check_moments(law, law.continuum.moved(Fraction(1), Fraction(slack / 100)), demanded)
    with pytest.raises(UnresolvedError, match="mean is off"):
        check_moments(law, law.continuum.moved(Fraction(1), Fraction(100 * slack)), demanded)


def test_normalised_measures_differ_by_a_constant():
    continuum = be.MarchenkoPastur(0.5).continuum
    half = continuum.normalised(0.5)
    assert half.mass == pytest.approx(0.5, rel=1e-14)
    assert half.pdf(np.array([1.0])) == pytest.approx(continuum.pdf(np.array([1.0])) / 2, rel=1e-13)


def test_more_atoms_are_more_work():
    """Or a law of thousands of values would be given up too late."""
    few, many = (Multiplication.of(be.EmpiricalLaw(np.arange(1.0, n)), be.MarchenkoPastur(0.5)) for n in (3, 3000))
    each = [law.work(2000) - law.work(1000) for law in (few, many)]
    assert each[1] > 5 * each[0]
