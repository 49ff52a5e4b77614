"""Images of laws: what their values are, and which moments are infinite."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.classical.images import Affine

UNIT = be.Unit


@pytest.mark.parametrize(
    ("law", "unit"),
    [
        (be.Semicircle().scaled(0.5), UNIT.EIGEN),
        (be.Semicircle().scaled(-2.0), UNIT.EIGEN),
        (Affine.of(be.Semicircle(), 1.0, 3.0), UNIT.EIGEN),
        (be.QuarterCircle().scaled(0.5), UNIT.SINGULAR),
        (be.QuarterCircle().scaled(2.0), UNIT.SINGULAR),
        (be.QuarterCircle().scaled(-1.0), UNIT.VALUES),
        (Affine.of(be.QuarterCircle(), 1.0, 3.0), UNIT.VALUES),
        (be.QuarterCircle().squared(), UNIT.SQUARED),
        (be.QuarterCircle().squared().squared(), UNIT.VALUES),
        (be.AttentionLaw(1.0, 1.0).sqrt(), UNIT.SINGULAR),
        (be.AttentionLaw(1.0, 1.0).sqrt().sqrt(), UNIT.VALUES),
        (be.MarchenkoPastur(0.5).sqrt(), UNIT.SINGULAR),
        (be.SumLaw((1.0,), (1.0,)).squared(), UNIT.SQUARED),
        (be.EmpiricalLaw([1.0]).squared(), UNIT.VALUES),
        (be.free_add(be.Semicircle(), be.MarchenkoPastur(0.5)), UNIT.EIGEN),
        (be.free_add(be.SumLaw((1.0,), (1.0,)), be.SumLaw((1.0,), (0.5,))), UNIT.SYMMETRISED),
        (be.free_mul(be.AttentionLaw(1.0, 1.0), be.EmpiricalLaw([1.0, 2.0])), UNIT.SQUARED),
        (be.free_mul(be.MarchenkoPastur(0.5), be.EmpiricalLaw([1.0, 2.0])), UNIT.EIGEN),
        (be.rectangular_add(be.QuarterCircle(), be.EmpiricalLaw([1.0]), 0.5), UNIT.SINGULAR),
    ],
)
def test_units(law, unit):
    assert law.unit is unit


def test_laws_say_of_which_matrix():
    assert be.AttentionLaw(1.0, 1.0).describes == "squared singular values of sqrt(T) (A - uu')"
    assert be.EmpiricalLaw([1.0]).describes == "values"
    assert "times 2 plus 0" in be.AttentionLaw(1.0, 1.0).scaled(2.0).matrix


@pytest.mark.parametrize(
    ("law", "first"),
    [
        (be.CausalLaw(2.0), 1),
        (be.CausalLaw(2.0).scaled(3.0), 1),
        (be.CausalLaw(2.0).sqrt(), 2),
        (be.CausalLaw(2.0).squared(), 1),
    ],
)
def test_infinite_moments(law, first):
    """The density of the causal law falls like 1/x**2: its mean is infinite, that of its root is finite."""
    for order in range(1, first):
        assert np.isfinite(law.moment(order))
    assert np.isinf(law.moment(first))
    assert np.isinf(law.moment(first + 2))
    assert np.isinf(law.var())


def test_equal_laws_are_resolved_once():
    """Equal by value, also when composed; a law that was resolved lends its panels to its equals."""
    make = [lambda: be.free_mul(be.EmpiricalLaw([1.0, 5.0]), be.MarchenkoPastur(0.5)).scaled(2.0) for _ in range(2)]
    first, second = (each() for each in make)
    assert first == second
    assert hash(first) == hash(second)
    assert first.continuum is second.continuum
    assert first != be.free_mul(be.EmpiricalLaw([1.0, 5.1]), be.MarchenkoPastur(0.5)).scaled(2.0)


@pytest.mark.parametrize("law", [be.Semicircle(2.0), be.SumLaw((1.0, 0.5), (0.5, np.inf)), be.MarchenkoPastur(0.3)])
def test_squares_of_soft_edges_are_soft(law):
    """Both halves of a symmetric law end there, and ``x**2`` moves by twice the edge times what x moves by."""
    squared = law.squared()
    assert squared.has_soft_edge
    assert squared.edge == pytest.approx(law.edge**2, rel=1e-13)
    halves = 0.5 if law.lower_edge < 0 else 1.0  # the density of both halves, next to the edge
    assert squared.edge_scale == pytest.approx(2 * law.edge * law.edge_scale * halves ** (2 / 3), rel=1e-9)
