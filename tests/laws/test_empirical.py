"""Laws of atoms: merged, normalised, equal by value; and what free convolutions ask of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.laws.classical.free import _is_point, _is_symmetric
from bulkedge.support.errors import DomainError


@given(st.integers(1, 3000), st.floats(-1e3, 1e3))
def test_repeated_values_are_one_point(n, value):
    law = be.EmpiricalLaw(np.full(n, value))
    assert law.atoms == ((value, 1.0),)
    assert _is_point(law)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1e3)), min_size=1, max_size=30))
def test_equal_by_value(pairs):
    values, weights = np.array(pairs).T
    if not weights.sum() > 1e-300:
        return
    law, again = be.EmpiricalLaw(values, weights), be.EmpiricalLaw(values[::-1], weights[::-1])
    assert np.allclose(law.weights, again.weights, rtol=1e-14)
    # what was normalised stays as it is
    twice = be.EmpiricalLaw(law.values, law.weights)
    assert law == twice
    assert hash(law) == hash(twice)
    assert law.scaled(2.0).scaled(0.5) == law


def test_composed_laws_are_equal_by_value():
    def build(values):
        atomic, noise = be.EmpiricalLaw(values), be.MarchenkoPastur(0.5)
        return [
            atomic,
            be.free_add(atomic, noise),
            be.free_mul(atomic, noise),
            be.free_add(atomic, atomic),
            be.free_mul(atomic, noise).scaled(3.0),
            be.free_mul(atomic, noise).squared(),
            be.free_mul(atomic, noise).sqrt(),
            be.rectangular_add(atomic, atomic, 0.5),
        ]

    assert build([1.0, 5.0, 5.0]) == build([5.0, 1.0, 5.0])
    assert len({*build([1.0, 5.0, 5.0]), *build([5.0, 5.0, 1.0])}) == len(build([1.0, 2.0]))
    assert all(one != other for one, other in zip(build([1.0, 5.0]), build([1.0, 5.000001]), strict=True))
    assert be.EmpiricalLaw([1.0]) != 1.0
    assert be.EmpiricalLaw([-0.0, 1.0]) == be.EmpiricalLaw([0.0, 1.0])
    assert hash(be.EmpiricalLaw([-0.0, 1.0])) == hash(be.EmpiricalLaw([0.0, 1.0]))


def test_atoms_cannot_be_changed_behind_the_hash():
    values = np.array([1.0, 2.0])
    law = be.EmpiricalLaw(values)
    values[0] = 7.0
    assert law.values.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="read-only"):
        law.weights[0] = 0.5


def test_weights_whose_sum_is_beyond_range():
    assert be.EmpiricalLaw([1.0, 2.0], [1e308, 1e308]).atoms == ((1.0, 0.5), (2.0, 0.5))


def test_symmetry_asks_atoms_too():
    """The density alone does not tell: purely atomic laws have none."""
    assert _is_symmetric(be.EmpiricalLaw([-2.0, -1.0, 1.0, 2.0]))
    assert not _is_symmetric(be.EmpiricalLaw([-1.0, 1.0], [1, 2]))
    assert not _is_symmetric(be.EmpiricalLaw([-1.0, 0.5, 1.0]))
    with pytest.raises(DomainError, match="neither"):
        be.rectangular_add(be.EmpiricalLaw([-1.0, 1.0], [1, 2]), be.EmpiricalLaw([1.0]), 0.5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_symmetry_of_mixed_laws(scale):
    """Atoms and bulk together: one side lighter, or the interval moved."""
    symmetric = be.free_add(be.EmpiricalLaw([-3.0, 3.0]), be.SumLaw((1.0,), (0.2,))).scaled(scale)
    assert len(symmetric.atoms) == 2
    assert _is_symmetric(symmetric)
    assert not _is_symmetric(
        be.free_add(be.EmpiricalLaw([-3.0, 3.0], [9, 11]), be.SumLaw((1.0,), (0.2,))).scaled(scale)
    )
    assert not _is_symmetric(be.free_add(be.EmpiricalLaw([-3.0, 3.0]), be.MarchenkoPastur(0.5)).scaled(scale))
