"""Which matrix a law is of: its rows over its columns, where the law knows them, and the atoms of its kernel."""

import numpy as np
import pytest

import bulkedge as be


@pytest.mark.parametrize(
    "law", [be.AttentionLaw(1.0, 1.0), be.AttentionLaw(0.7, 2.0).sqrt(), be.QuarterCircle(1.0)], ids=repr
)
def test_laws_of_square_matrices_have_the_spikes_of_square_ones(law):
    given, own = law.singular_spike(9.0, 1.0), law.singular_spike(9.0)
    assert given.location == own.location
    with pytest.raises(be.DomainError, match="rows/columns = 1; leave it out"):
        law.singular_spike(9.0, 0.5)


def test_a_gram_matrix_has_its_ratio():
    law = be.MarchenkoPastur(0.3)
    assert law.singular_spike(4.0).location == law.singular_spike(4.0, 0.3).location


@pytest.mark.parametrize("ratio", [0.5, 1.0, np.nextafter(1.0, 0)])
@pytest.mark.parametrize("law", [be.MarchenkoPastur, lambda ratio: be.ProductLaw((ratio, 0.7))])
def test_no_atom_without_a_kernel(law, ratio):
    """At ratio one the kernel is empty: an atom of mass zero would be one too many."""
    assert law(ratio).atoms == ()


@pytest.mark.parametrize("law", [be.MarchenkoPastur, lambda ratio: be.ProductLaw((ratio, 0.7))])
def test_the_kernel_is_an_atom(law):
    ((place, mass),) = law(4.0).atoms
    assert (place, mass) == (0.0, 0.75)
