"""Free sums and products by explicit maps over random atoms, at several scales, against independent references.

Each law must have mass one, the atoms of Bercovici and Voiculescu, additive mean and variance, and the Cauchy transform
that plain iteration of the subordination equation gives above the axis.
"""

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.support.errors import UnresolvedError

SCALES = [0.01, 1.0, 30.0]
NO_ATOM = 3e-13
"""Masses below it are rounding: whether there is an atom of that mass cannot be told."""
RATIOS = st.floats(-2, np.log10(20)).map(lambda exponent: 10**exponent)
NEXT_TO_ONE = st.tuples(st.sampled_from([-1, 1]), st.floats(-15, -3)).map(lambda pair: 1 + pair[0] * 10 ** pair[1])


@st.composite
def atomic_laws(draw, low=-5.0):
    """One to six atoms, some nearly equal, repeated or light, at one of the scales."""
    values = draw(st.lists(st.floats(low, 5), min_size=1, max_size=6))
    weights = draw(st.lists(st.floats(0.05, 1), min_size=len(values), max_size=len(values)))
    kind = draw(st.sampled_from(["plain", "close", "repeated", "light"]))
    if kind in ("close", "repeated"):
        apart = 10 ** draw(st.floats(-9, -3)) if kind == "close" else 0.0
        values, weights = values + [value + apart for value in values], weights + weights[::-1]
    if kind == "light":
        weights = [weights[0] * 10 ** draw(st.floats(-12, -2)), *weights[1:]]
    # atoms closer than 1e-10 to each other, or with less than 1e-9 between them and zero, are another matter
    values = np.round(np.array(values), 10)
    return be.EmpiricalLaw(values * draw(st.sampled_from(SCALES)), weights)


def mass(law):
    return (law.continuum.mass if law.continuum else 0.0) + sum(share for _, share in law.atoms)


def assert_sum(law, atomic, other, r):
    """Mass, mean, variance and Cauchy transform of the free sum of atoms with a law of R-transform r."""
    width = np.sqrt(atomic.var() + other.var())
    assert mass(law) == pytest.approx(1, abs=1e-10)
    size = abs(atomic.mean()) + abs(other.mean()) + width
    assert law.mean() == pytest.approx(atomic.mean() + other.mean(), abs=1e-10 * size)
    assert law.var() == pytest.approx(width**2, rel=1e-10)
    z = np.linspace(law.lower_edge, law.edge, 5) + 1j * width * np.array([0.3, 0.5, 1.0, 0.5, 0.3])
    exact = reference.subordinated_cauchy(reference.atomic_cauchy(atomic.values, atomic.weights), r, z)
    assert np.abs(law.cauchy(z) / exact - 1).max() < 1e-10


def assert_atoms(law, atomic, jump_rate, shift=0.0):
    """Atoms survive with what exceeds the jump rate."""
    kept = {place + shift: share - jump_rate for place, share in atomic.atoms if share - jump_rate > NO_ATOM}
    found = [(place, share) for place, share in law.atoms if share > NO_ATOM]
    assert len(found) == len(kept)
    for (place, share), (expected, rest) in zip(found, sorted(kept.items()), strict=True):
        assert place == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert share == pytest.approx(rest, abs=1e-12)


@given(atomic_laws(), RATIOS, st.sampled_from(SCALES))
def test_atoms_and_marchenko_pastur(atomic, ratio, scale):
    other = be.MarchenkoPastur(ratio, scale)
    law = be.free_add(atomic, other)
    assert_sum(law, atomic, other, lambda g: scale / (1 - ratio * scale * g))
    if len(atomic.atoms) > 1:
        assert_atoms(law, atomic, 1 / ratio)


def is_refused(law):
    """Whether a law is refused, in words."""
    try:
        _ = law.continuum
    except UnresolvedError as error:
        return "move the parameters" in str(error)
    return False


@given(atomic_laws(), st.sampled_from([0.0, 1e-13, 1e-11, 1e-9, 1e-7, 1e-5, 1e-3, -1e-9, -1e-7, -1e-5]), st.data())
def test_atoms_that_just_survive(atomic, excess, data):
    """One atom survives, or not, by a hair: the bulk ends in a spike of density as fine as the hair squared.

    Where that is finer than double precision next to other atoms, the law is refused in words.
    """
    share = data.draw(st.sampled_from(atomic.weights.tolist()))
    if not 1e-4 < share < 0.99:
        return
    ratio, scale = 1 / (share * (1 - excess)), data.draw(st.sampled_from(SCALES))
    other = be.MarchenkoPastur(ratio, scale)
    law = be.free_add(atomic, other)
    if is_refused(law):
        return
    assert_sum(law, atomic, other, lambda g: scale / (1 - ratio * scale * g))
    assert_atoms(law, atomic, 1 / ratio)
    moved = law.scaled(-30.0)
    assert mass(moved) == pytest.approx(1, abs=1e-10)
    assert moved.mean() == pytest.approx(-30 * law.mean(), rel=1e-9, abs=1e-9 * scale)


@pytest.mark.parametrize("excess", [0.0, 1e-3, -1e-3])
@pytest.mark.parametrize("scale", SCALES)
def test_an_atom_that_survives_by_a_thousandth(excess, scale):
    """Or not at all: such laws are not refused."""
    atomic, ratio = be.EmpiricalLaw([-1.0, 0.5, 2.0], [1, 2, 5]), 4 / (1 - excess)
    other = be.MarchenkoPastur(ratio, scale)
    law = be.free_add(atomic, other)
    assert_sum(law, atomic, other, lambda g: scale / (1 - ratio * scale * g))
    assert_atoms(law, atomic, 1 / ratio)


@given(atomic_laws(), st.floats(-1, 1), st.sampled_from(SCALES))
def test_atoms_and_semicircle(atomic, exponent, scale):
    variance = (scale * 10**exponent) ** 2
    law = be.free_add(atomic, be.Semicircle(variance))
    assert_sum(law, atomic, be.Semicircle(variance), lambda g: variance * g)
    assert law.atoms == ()


@given(atomic_laws(), st.lists(st.floats(-1, 1), min_size=4, max_size=4), st.sampled_from(SCALES))
def test_atoms_and_low_rank_terms(atomic, exponents, scale):
    a, b, p, q = (10**exponent for exponent in exponents)
    variances, ratios = (scale**2 * a, scale**2 * b), (p, q)
    other = be.SumLaw(variances, ratios)
    law = be.free_add(atomic, other)
    assert_sum(
        law,
        atomic,
        other,
        lambda g: sum(v * g / (1 - v / c * g**2) for v, c in zip(variances, ratios, strict=True)),
    )
    if len(atomic.atoms) > 1:
        assert_atoms(law, atomic, p + q)


@given(atomic_laws(low=0.0), RATIOS | NEXT_TO_ONE, st.sampled_from(SCALES), st.booleans())
def test_atoms_through_a_sample_covariance(atomic, ratio, scale, flip):
    """Free products, of positive and of negative atoms; mean and variance, kernel and Cauchy transform."""
    if atomic.values.tolist() == [0.0]:
        return
    atomic = atomic.scaled(-1.0) if flip else atomic
    law = be.free_mul(atomic, be.MarchenkoPastur(ratio, scale))
    assert mass(law) == pytest.approx(1, abs=1e-10)
    assert law.mean() == pytest.approx(scale * atomic.mean(), rel=1e-10)
    variance = scale**2 * (atomic.var() + ratio * atomic.mean() ** 2)
    assert law.var() == pytest.approx(variance, rel=1e-9)
    kernel = max(1 - 1 / ratio, dict(atomic.atoms).get(0.0, 0.0))
    assert dict(law.atoms).get(0.0, 0.0) == pytest.approx(max(kernel, 0.0), abs=1e-12)
    z = np.linspace(law.lower_edge, law.edge, 5) + 1j * np.sqrt(variance) * np.array([0.5, 0.7, 1.0, 0.7, 0.5])
    exact = reference.silverstein_cauchy(scale * atomic.values, atomic.weights, ratio, z)
    assert np.abs(law.cauchy(z) / exact - 1).max() < 1e-10


SILVERSTEIN = {
    "positive": ([1.0, 5.0], [1 / 3, 2 / 3]),
    "negative": ([-3.0, -1.0], [0.7, 0.3]),
    "wide": ([1e-3, 1.0, 50.0], [0.2, 0.3, 0.5]),
}


@pytest.mark.parametrize("name", SILVERSTEIN)
@pytest.mark.parametrize("excess", [sign * 10.0**-power for power in (3, 6, 8, 10) for sign in (1, -1)])
def test_products_next_to_ratio_one(name, excess):
    """The bulk ends at the square of the excess, about which the density is as in fifty digits.

    There the map that is iterated hardly contracts: its multiplier has a modulus of one but for rounding.
    """
    values, weights = SILVERSTEIN[name]
    law, ratio = be.free_mul(be.EmpiricalLaw(values, weights), be.MarchenkoPastur(1 + excess)), 1 + excess
    sign, low = np.sign(law.mean()), min(abs(end) for interval in law.support for end in interval)
    assert mass(law) == pytest.approx(1, abs=1e-12)
    assert law.var() == pytest.approx(np.dot(weights, np.square(values)) + excess * law.mean() ** 2, rel=1e-11)
    for factor in (1 + 1e-6, 1.01, 2.0, 50.0):
        exact = reference.silverstein_density_beside_zero(values, weights, ratio, sign * factor * low)
        # points are rounded, and so is their distance from the edge
        assert law.pdf(sign * factor * low) == pytest.approx(float(exact), rel=1e-12 + 1e-15 / (factor - 1))


@pytest.mark.parametrize("excess", [-1e-7, 1e-10])
@pytest.mark.parametrize("law", [be.Semicircle(), be.EmpiricalLaw([-1.0, 5.0], [1, 2])], ids=["semicircle", "atoms"])
def test_signed_products_next_to_ratio_one(law, excess):
    """Zero lies in the bulk, or next to it, and the density changes there over the square of the excess."""
    product = be.free_mul(law, be.MarchenkoPastur(1 + excess))
    assert mass(product) == pytest.approx(1, abs=1e-11)
    assert product.var() == pytest.approx(law.var() + (1 + excess) * law.mean() ** 2, rel=1e-10)
    z = np.array([0.1, -0.3, 1.0]) + 0.5j
    u = z
    for _ in range(2000):
        # Silverstein's equation, x = u (1 + ratio psi(u)), by damped iteration
        u = u + 0.1 * (z - u * (1 + (1 + excess) * (u * law.cauchy(u) - 1)))
    exact = (1 / u - -excess / z) / (1 + excess)
    assert np.abs(product.cauchy(z) / exact - 1).max() < 1e-10


ORDINARY = {
    "level points within rounding of atoms": (be.EmpiricalLaw([-0.7, 0.3]), be.MarchenkoPastur(0.03)),
    "one value, six times": (be.EmpiricalLaw(np.ones(6)), be.MarchenkoPastur(0.5)),
    "both atoms at the critical mass": (be.EmpiricalLaw([0.0, 1.0]), be.MarchenkoPastur(2.0)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_sums(name):
    atomic, other = ORDINARY[name]
    law = be.free_add(atomic, other)
    assert mass(law) == pytest.approx(1, abs=1e-12)
    assert law.mean() == pytest.approx(atomic.mean() + 1, abs=1e-12)
    assert law.var() == pytest.approx(atomic.var() + other.ratio, rel=1e-12)


SIMULATED = {
    "light noise": (be.EmpiricalLaw([-7.0, 3.0]), 0.03, 1.0),
    "surviving atoms": (be.EmpiricalLaw([0.0, 1.0, 4.0], [5, 3, 2]), 4.0, 0.3),
    "large": (be.EmpiricalLaw([-60.0, 30.0, 33.0]), 0.5, 30.0),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_sums_against_a_matrix(name):
    """A diagonal matrix plus a Wishart matrix of 1000 dimensions: eigenvalues follow the law to a few in a thousand."""
    atomic, ratio, scale = SIMULATED[name]
    n = 1000
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((n, round(n / ratio)))
    matrix = np.diag(atomic.ppf((np.arange(n) + 0.5) / n)) + scale * ratio / n * noise @ noise.T
    values = np.linalg.eigvalsh(matrix)
    law = be.free_add(atomic, be.MarchenkoPastur(ratio, scale))
    # between atoms: at an atom the distribution function jumps by more than one eigenvalue
    x = np.array([low + (high - low) * share for low, high in law.support for share in (0.1, 0.3, 0.5, 0.7, 0.9)])
    assert np.abs(law.cdf(x) - np.searchsorted(values, x) / n).max() < 5e-3
