"""Outliers and overlaps against closed forms, and identities that hold whatever the law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.laws.spikes.rank_one import ResponseValues
from bulkedge.laws.spikes.singular_spikes import singular_response
from bulkedge.support.errors import DomainError, UnitError

SCALES = (1.0, 1e-8, 37.0)
PLACES = st.floats(-10, 10).map(lambda x: x if abs(x) > 1e-20 else 0.0)
ATOMS = st.lists(st.tuples(PLACES, st.floats(0.01, 1)), min_size=1, max_size=6)


@pytest.mark.parametrize("scale", SCALES)
def test_semicircle(scale):
    """theta + v/theta with overlap 1 - v/theta**2, at both ends."""
    theta = np.array([1.05, 1.5, 4.0, 1e3, -1.05, -2.0, -50.0])
    spike = be.Semicircle(scale**2).spike(scale * theta)
    assert np.allclose(spike.location, scale * (theta + 1 / theta), rtol=1e-12, atol=0)
    assert np.allclose(spike.overlap, 1 - theta**-2, rtol=1e-12, atol=0)
    assert spike.detectable.all()
    assert spike.threshold == pytest.approx(scale, rel=1e-12)
    assert spike.lower_threshold == pytest.approx(-scale, rel=1e-12)
    assert [each[0].gap for each in spike.outliers] == [(2 * scale, np.inf)] * 4 + [(-np.inf, -2 * scale)] * 3
    weak = be.Semicircle(scale**2).spike(scale * np.array([0.9, -0.9]))
    assert weak.location.tolist() == [2 * scale, -2 * scale]
    assert not weak.detectable.any()
    assert weak.outliers.tolist() == [(), ()]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ratio", [0.2, 0.9, 3.0])
def test_marchenko_pastur(ratio, scale):
    """theta u u' + Z'Z/V: x = theta - c, at (1 + x)(x + c)/x with overlap 1 - c/x**2 where |x| > sqrt(c).

    For c > 1 weak spikes lift an eigenvalue out of the kernel into the gap below the bulk, and negative ones push below
    zero by the same formula.
    """
    edge = ratio + np.sqrt(ratio)
    theta = np.array([1.1 * edge, 2 * edge, 30 * edge, -0.5, -4.0])
    if ratio > 1:
        theta = np.append(theta, [0.1, 0.9 * (ratio - np.sqrt(ratio))])
    theta = theta[np.abs(theta - ratio) > np.sqrt(ratio)]
    x = theta - ratio
    spike = be.MarchenkoPastur(ratio, scale).spike(scale * theta)
    assert np.allclose(spike.location, scale * (1 + x) * (x + ratio) / x, rtol=1e-12, atol=0)
    assert np.allclose(spike.overlap, 1 - ratio / x**2, rtol=1e-11, atol=0)
    assert spike.threshold == pytest.approx(scale * edge, rel=1e-12)
    assert [len(each) for each in spike.outliers] == [1] * len(theta)
    if ratio > 1:
        assert spike.outliers[-1][0].gap == pytest.approx((0, scale * (np.sqrt(ratio) - 1) ** 2), rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ratio", [0.3, 2.0])
def test_white_samples(ratio, scale):
    """Baik and Silverstein, Paul, on both sides of the bulk: present where |theta - 1| > sqrt(c), if there is room."""
    theta = np.array([0.0, 0.2, 0.44, 1 + 1.01 * np.sqrt(ratio), 5.0, 1e4])
    spike = be.EmpiricalLaw([scale]).sample_spike(scale * theta, ratio)
    x = theta - 1
    seen = (np.abs(x) > np.sqrt(ratio)) & ((x > 0) | (ratio < 1))
    assert spike.detectable.tolist() == seen.tolist()
    assert np.allclose(spike.location[seen], (scale * theta * (1 + ratio / x))[seen], rtol=1e-12, atol=0)
    assert np.allclose(spike.overlap[seen], ((1 - ratio / x**2) / (1 + ratio / x))[seen], rtol=1e-12, atol=0)
    assert np.allclose(spike.location[~seen], scale * (1 + np.sqrt(ratio)) ** 2, rtol=1e-12)
    assert spike.threshold == pytest.approx(scale * (1 + np.sqrt(ratio)), rel=1e-12)
    assert spike.lower_threshold == (pytest.approx(scale * (1 - np.sqrt(ratio)), rel=1e-12) if ratio < 1 else -np.inf)
    gaps = [each[0].gap for each in spike.outliers[seen]]
    assert gaps[-1] == pytest.approx((scale * (1 + np.sqrt(ratio)) ** 2, np.inf), rel=1e-12)
    if ratio < 1:
        assert gaps[0] == pytest.approx((-np.inf, scale * (1 - np.sqrt(ratio)) ** 2), rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ratio", [0.1, 1.0, 4.0])
def test_signals_in_white_noise(ratio, scale):
    """Gavish and Donoho, Benaych-Georges and Nadakuditi: n x m entries of variance s**2/m, ratio = n/m.

    At ``sqrt((1 + x**2)(c + x**2))/x`` with left overlap ``(x**4 - c)/(x**4 + c x**2)`` and right overlap ``(x**4 -
    c)/(x**4 + x**2)``, above ``c**(1/4)``; nothing below the bulk, nor between it and the zeros of a tall matrix.
    """
    x = np.array([1.01, 1.3, 3.0, 40.0]) * ratio**0.25
    law = be.MarchenkoPastur(ratio, scale**2)
    value = scale * np.sqrt((1 + x**2) * (ratio + x**2)) / x
    left, right = (x**4 - ratio) / (x**4 + ratio * x**2), (x**4 - ratio) / (x**4 + x**2)
    for spike, square in ((law.singular_spike(scale * x), 2), (law.sqrt().singular_spike(scale * x), 1)):
        assert np.allclose(spike.singular_value, value, rtol=1e-12, atol=0)
        assert np.allclose(spike.location, value**square, rtol=1e-12, atol=0)
        assert np.allclose(spike.left_overlap, left, rtol=0, atol=1e-12)
        assert np.allclose(spike.right_overlap, right, rtol=0, atol=1e-12)
        assert spike.threshold == pytest.approx(scale * ratio**0.25, rel=1e-12)
        assert [len(each) for each in spike.outliers] == [1] * len(x)
    assert not law.singular_spike(0.99 * scale * ratio**0.25).detectable


def test_transposing_exchanges_left_and_right():
    """The m values of M' are the n of M and m - n zeros."""
    wide = be.free_mul(be.EmpiricalLaw([1.0, 9.0]), be.MarchenkoPastur(0.25))
    tall = be.free_mul(be.MarchenkoPastur(1.0), be.EmpiricalLaw([0.0, 1.0, 9.0], [6, 1, 1]))
    with pytest.raises(DomainError, match=r"at least 0.8 are zero"):
        tall.singular_spike(1.0, ratio=5.0)
    for strength, count in ((0.2, 0), (1.0, 1), (3.0, 2), (10.0, 2)):
        one = wide.singular_spike(strength, ratio=0.25).outliers
        other = tall.singular_spike(strength, ratio=4.0).outliers
        assert len(one) == len(other) == count
        for here, there in zip(one, other, strict=True):
            assert here.singular_value == pytest.approx(there.singular_value, rel=1e-9)
            assert here.left_overlap == pytest.approx(there.right_overlap, rel=1e-7)
            assert here.right_overlap == pytest.approx(there.left_overlap, rel=1e-7)


def test_units_of_one_matrix_give_one_spike():
    atoms = be.EmpiricalLaw([1.0, 4.0])
    named = [atoms.singular_spike(1.0, 0.5, unit) for unit in ("eigenvalues", "squared singular values")]
    assert named[0] == named[1]
    rooted = be.EmpiricalLaw([1.0, 2.0]).singular_spike(1.0, 0.5, "singular values")
    assert rooted.singular_value == pytest.approx(named[0].singular_value, rel=1e-14)
    assert rooted.right_overlap == pytest.approx(named[0].right_overlap, rel=1e-13)
    law = be.SumLaw((1.0, 0.01), (0.05, np.inf))
    assert len(law.squared().support) == 2
    counts = [len(law.singular_spike(strength).outliers) for strength in (0.05, 0.3, 2.0, 6.0)]
    assert counts == [0, 1, 1, 1]
    for strength in (0.3, 2.0, 6.0):
        spikes = [each.singular_spike(strength) for each in (law, law.squared(), law.squared().sqrt())]
        for each in zip(*(spike.outliers for spike in spikes), strict=True):
            assert np.ptp([one.singular_value for one in each]) < 1e-11
            assert np.ptp([one.left_overlap for one in each]) < 1e-9
        above = law.spike(strength)
        assert (above.location, above.overlap) == pytest.approx(
            (spikes[0].singular_value, spikes[0].left_overlap), rel=1e-12
        )


# -- identities --------------------------------------------------------------------------------------------------------


@given(ATOMS, st.floats(-20, 20).filter(lambda theta: abs(theta) > 1e-6))
def test_eigenvectors_are_complete(atoms, theta):
    """Of purely atomic laws, outliers take up the direction, u'u = 1, and its mean, u'(A + theta u u')u."""
    law = be.EmpiricalLaw(*zip(*atoms, strict=True))
    outliers = law.spike(theta).outliers
    width = max(law.edge - law.lower_edge, abs(theta))
    assert len(outliers) == len(law.atoms) or np.diff([place for place, _ in law.atoms]).min() < 1e-11
    assert sum(each.overlap for each in outliers) == pytest.approx(1, abs=1e-9)
    centre = sum(each.overlap * (each.location - law.mean()) for each in outliers)
    assert centre == pytest.approx(theta, abs=1e-9 * width + 1e-14)


@given(ATOMS, st.floats(1e-6, 20), st.floats(0.05, 1))
def test_singular_vectors_are_complete(atoms, strength, ratio):
    """Rows of an invertible matrix likewise; the columns have a kernel, unless the matrix is square."""
    places, weights = zip(*atoms, strict=True)
    law = be.EmpiricalLaw(np.abs(places) + 0.01, weights)
    for shape in (1.0, ratio):
        outliers = law.singular_spike(strength, shape, unit="singular values").outliers
        assert sum(each.left_overlap for each in outliers) == pytest.approx(1, abs=1e-8)
        right = sum(each.right_overlap for each in outliers)
        if shape > 1 - 1e-12:
            assert right == pytest.approx(1, abs=1e-8)
        else:  # less by about the share of the kernel, which may be lost in the rounding of the sum
            assert right < 1 + (1e-8 if shape > 1 - 1e-6 else 0)


@pytest.mark.parametrize("apart", [1e-8, 1e-9, 1e-10, 1e-11])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 1.0])
def test_singular_vectors_are_complete_beside_atoms_next_to_each_other(apart, ratio):
    """Between such atoms a response may be nothing but its rounding, of either sign or none."""
    rng = np.random.default_rng(3)
    for _ in range(12):
        places, weights = rng.uniform(0.5, 3, 3), rng.uniform(0.1, 1, 6)
        law = be.EmpiricalLaw(np.append(places, places * (1 + apart)), weights)
        outliers = law.singular_spike(10 ** rng.uniform(-3, 1.5), ratio, unit="singular values").outliers
        assert sum(each.left_overlap for each in outliers) == pytest.approx(1, abs=1e-8)
        right = sum(each.right_overlap for each in outliers)
        assert right == pytest.approx(1, abs=1e-8) if ratio == 1 else right < 1


@pytest.mark.parametrize("theta", [1e-3, 1e-7, 1e-11, 1e-15, 1e-17, -1e-17])
def test_weak_spikes_share_the_eigenspace_of_an_atom(theta):
    """An outlier at distance ``m theta`` from an atom of mass m has overlap m, however coarse numbers are there."""
    law = be.EmpiricalLaw([1.0, 2.0, 5.0], [2, 3, 5])
    spike = law.spike(theta)
    assert [each.overlap for each in spike.outliers] == pytest.approx([0.2, 0.3, 0.5], abs=abs(theta) + 1e-14)
    assert [each.location for each in spike.outliers] == pytest.approx(
        [1 + 0.2 * theta, 2 + 0.3 * theta, 5 + 0.5 * theta], rel=theta**2 + 1e-15
    )


def test_spikes_beside_a_tail():
    """No largest outlier between the atoms of a law without end; below it all is as usual."""
    law = be.free_mul(be.EmpiricalLaw([1.0, 2.0]), be.MarchenkoPastur(0.5))
    tail = be.free_add(be.PoissonLaw(), law)
    assert np.isinf(tail.edge) == np.isinf(tail.spike(1.0).location)
    assert be.PoissonLaw().singular_spike(2.0).singular_value == np.inf
    assert be.PoissonLaw().singular_spike(2.0).left_overlap == 0
    assert not be.CausalLaw(1.0).singular_spike(3.0).detectable


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: be.AttentionLaw(1.0, 1.0).spike(9.0), UnitError, r"law of squared singular values: singular_spike"),
        (lambda: be.QuarterCircle().spike(2.0), UnitError, "law of singular values: singular_spike"),
        (lambda: be.QuarterCircle().spikes([2.0]), UnitError, "singular_spike"),
        (lambda: be.Semicircle().singular_spike(2.0, 1.0), UnitError, "reaches down to -2"),
        (lambda: be.EmpiricalLaw([1.0]).singular_spike(2.0, 1.0), UnitError, "say whether these are 'singular values'"),
        (lambda: be.QuarterCircle().singular_spike(2.0, unit="squared singular values"), UnitError, "unit = "),
        (
            lambda: be.EmpiricalLaw([1.0]).singular_spike(2.0, 1.0, "symmetrised singular values"),
            UnitError,
            "say whether",
        ),
        (lambda: be.QuarterCircle().singular_spike(2.0, unit="metres"), DomainError, "unit = 'metres'"),
        (lambda: be.QuarterCircle().singular_spike(2.0, ratio=0.5), DomainError, "rows/columns = 1; leave it out"),
        (lambda: be.MarchenkoPastur(0.5).singular_spike(2.0, ratio=2.0), DomainError, "rows/columns = 0.5"),
        (lambda: be.ProductLaw((0.5, 0.3)).singular_spike(2.0), DomainError, "ratio is needed"),
        (lambda: be.ProductLaw((0.5, 0.3)).singular_spike(2.0, 2.0), DomainError, "at least 0.5 are zero"),
        (lambda: be.QuarterCircle().singular_spike(-2.0), DomainError, r"strength = -2.0 is outside its domain"),
        (lambda: be.Semicircle().spike([1.0, 0.0]), DomainError, r"theta = \[1.0, 0.0\]"),
        (lambda: be.Semicircle().spike(np.nan), DomainError, "theta contains NaN"),
        (lambda: be.Semicircle().spikes(["a"]), DomainError, "theta = "),
        (lambda: be.EmpiricalLaw([1.0]).sample_spike(-1.0, 0.5), DomainError, "theta = -1.0"),
        (lambda: be.EmpiricalLaw([1.0]).sample_spike(2.0, np.inf), DomainError, "ratio = inf"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_shapes():
    law = be.EmpiricalLaw([1.0, 2.0])
    assert law.spike([]).outliers.shape == law.spike([]).location.shape == (0,)
    assert law.singular_spike([], 1.0, "singular values").left_overlap.shape == (0,)
    assert law.sample_spike([], 0.5).outliers.shape == (0,)
    assert law.spike([[1.0, -1.0, 2.0]]).outliers.shape == (1, 3)
    assert isinstance(law.spike(1.0).outliers, tuple)
    assert len(law.spike([[1.0, -1.0, 2.0]]).together) == 6
    assert law.spikes(1.0) == law.spike(1.0).outliers


@pytest.mark.parametrize("lost", ["left", "right", "both"])
def test_overlaps_where_a_response_cancels(lost):
    """Next to atoms a response may be zero but for rounding: the other one, or their ratio, then says what it was."""
    response = singular_response(be.MarchenkoPastur(0.3))
    left = np.array([0.7, 0.2])
    right = left * (0.3 if lost == "both" else np.array([0.4, 3.0]))
    pair = ResponseValues(left, np.array([-20.0, -10.0]), right, np.array([-50.0, -30.0]))
    value, point = np.sqrt(left * right), np.array([3.0, 4.0])
    gone = {name: np.array([0.0, -1e-20 * (lost != "both")]) for name in ("left", "right") if lost in (name, "both")}
    found = response._overlaps(point, pair._replace(**gone), value)
    np.testing.assert_allclose(found, response._overlaps(point, pair, value), rtol=1e-12)
