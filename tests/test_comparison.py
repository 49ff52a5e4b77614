"""Comparison: distances, outliers and their false-alarm rate."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigvalsh_tridiagonal

import bulkedge as be

spectrum_of = partial(be.Spectrum.of, unit="eigenvalues")


@pytest.mark.parametrize("law", [be.Semicircle(), be.MarchenkoPastur(2.0), be.FussCatalan(3)], ids=repr)
def test_quantiles_of_a_law_are_close_to_it(law):
    n = 500
    result = be.compare(spectrum_of(law.ppf((np.arange(n) + 0.5) / n)), law)
    assert result.ks == pytest.approx(1 / (2 * n), rel=1e-6)
    assert result.wasserstein < 4 * (law.edge - law.lower_edge) / n
    assert result.outliers == ()


def test_distances_of_a_shifted_law():
    """Moving every value by h moves the distribution by h in Wasserstein distance."""
    law, n, h = be.Semicircle(), 2000, 0.01
    values = law.ppf((np.arange(n) + 0.5) / n) + h
    result = be.compare(spectrum_of(values), law, level=1e-6)
    assert result.wasserstein == pytest.approx(h, rel=1e-2)
    assert result.ks == pytest.approx(h / np.pi, rel=0.1)


def test_weights_count():
    law = be.EmpiricalLaw([1.0, 2.0], [1, 3])
    weighted = be.Spectrum(np.array([1.0, 2.0]), np.array([0.25, 0.75]), 100, be.Unit.EIGEN)
    assert be.compare(weighted, law).ks == 0
    assert be.compare(spectrum_of([1.0, 2.0]), law).ks == pytest.approx(0.25)


def test_rounding_beside_an_atom_does_not_count():
    """A rank-deficient covariance has zeros of either sign at the level of rounding."""
    law = be.MarchenkoPastur(2.0)
    values = np.concatenate([np.linspace(-1e-15, 1e-15, 100), law.ppf(0.5 + (np.arange(100) + 0.5) / 200)])
    assert be.compare(spectrum_of(values), law).ks < 0.006


def test_values_below_the_rounding_of_the_decomposition_only_count():
    """Where they lie says nothing: garbage and the law's own quantiles are at the same distance."""
    law, n = be.FussCatalan(3), 400
    values = law.ppf((np.arange(n) + 0.5) / n)
    rounding = values[40] * 1.01
    garbage = np.where(values < rounding, values[0], values)
    assert be.compare(spectrum_of(garbage, rounding=rounding), law).ks == pytest.approx(1 / (2 * n), rel=1e-6)
    assert be.compare(spectrum_of(garbage), law).ks > 0.05


@pytest.mark.parametrize(("zeros", "distance"), [(0.5, 0.0), (0.55, 0.0), (0.6, 0.0), (0.8, 0.2), (0.3, 0.3)])
def test_rounding_beside_an_atom_may_be_of_the_atom_or_of_the_bulk(zeros, distance):
    """Half of this law is at zero, a tenth below the rounding: between the two any number of zeros is right."""
    law, n = be.MarchenkoPastur(2.0), 400
    rounding = float(law.ppf(0.6))
    levels = (np.arange(n) + 0.5) / n
    values = np.where(levels < zeros, 0.0, np.maximum(law.ppf(levels), np.nextafter(rounding, np.inf)))
    values = np.where((levels > zeros) & (levels < 0.6) & (zeros >= 0.5), rounding / 2, values)
    found = be.compare(spectrum_of(values, rounding=rounding), law).ks
    assert found == pytest.approx(distance, abs=1.1 / n)


@pytest.mark.parametrize("law", [be.ProductLaw((1.0, 1.0)), be.MarchenkoPastur(0.5), be.MarchenkoPastur(1.0)])
@pytest.mark.parametrize("rank", [0, 1, 20, 90])
def test_zeros_of_a_matrix_of_low_rank_count_where_the_law_has_no_atom(law, rank):
    """A hundred values of which some are zero are at least that share from a law that has none there."""
    values = np.append(np.zeros(100 - rank), law.ppf((np.arange(rank) + 0.5) / max(rank, 1)))
    assert be.compare(spectrum_of(values), law).ks == pytest.approx(1 - rank / 100, abs=0.01)


def test_outliers_are_called_and_left_out_of_the_distances():
    rng = np.random.default_rng(0)
    noise = be.Wigner(400).sample(rng)
    direction = np.ones(400) / 20
    values = np.linalg.eigvalsh(noise + 3 * np.outer(direction, direction))
    result = be.compare(spectrum_of(values), be.Semicircle())
    assert len(result.outliers) == 1
    assert result.outliers[0] == pytest.approx(3 + 1 / 3, abs=0.2)
    assert result.wasserstein < 0.02
    assert abs(result.edge_error) < 0.03


def test_false_alarm_rate():
    """Largest of 200 eigenvalues of a Gaussian orthogonal matrix (its tridiagonal form), 20000 draws.

    The rate approaches the level from below, with corrections of order n**(-1/3): measured 0.8 to 0.9 of it at n = 50
    to 1000. A user who asks for 5 % gets at most 5 %.
    """
    n, draws = 200, 20000
    rng = np.random.default_rng(7)
    largest = np.empty(draws)
    for k in range(draws):
        main = rng.normal(scale=np.sqrt(2 / n), size=n)
        off = np.sqrt(rng.chisquare(np.arange(n - 1, 0, -1)) / n)
        largest[k] = eigvalsh_tridiagonal(main, off, select="i", select_range=(n - 1, n - 1))[0]
    for level in (0.1, 0.05):
        alarms = np.mean(largest > be.Semicircle().finite_edge(n, level))
        assert 0.75 * level < alarms < 1.05 * level


def test_singular_values_against_a_signed_law_are_refused():
    spectrum = be.spectrum(np.random.default_rng(0).standard_normal((5, 5)))
    with pytest.raises(ValueError, match="pass two that match"):
        be.compare(spectrum, be.Semicircle())


def test_different_scales_are_refused():
    with pytest.raises(ValueError, match="different scales"):
        be.compare(spectrum_of([100.0, 101.0]), be.Semicircle())


def test_law_without_square_root_edge():
    """Beyond a last atom everything is an outlier."""
    result = be.compare(spectrum_of([1.0, 2.0, 2.5]), be.EmpiricalLaw([1.0, 2.0]))
    assert result.outliers == (2.5,)
    with pytest.raises(ValueError, match="no square-root edge"):
        _ = be.EmpiricalLaw([1.0, 2.0]).edge_scale


@pytest.mark.parametrize(
    ("values", "law"), [([-1.0, -1.0, 0.0], be.EmpiricalLaw([-1.0, 0.0])), ([0.0, 1.0, 2.0], be.PoissonLaw(1.0))]
)
def test_an_edge_at_zero_or_infinity_has_no_relative_error(values, law):
    assert np.isnan(be.compare(be.Spectrum.of(values, law.unit), law).edge_error)


def test_edge_scale_of_known_laws():
    """Semicircle: 1. Marchenko-Pastur: Johnstone's (1 + sqrt(c)) (1 + 1/sqrt(c))**(1/3) in units of V**(-2/3)."""
    assert be.Semicircle().edge_scale == pytest.approx(1, rel=1e-12)
    c = 0.3
    johnstone = (1 + np.sqrt(c)) * (1 + 1 / np.sqrt(c)) ** (1 / 3) * c ** (2 / 3)
    assert be.MarchenkoPastur(c).edge_scale == pytest.approx(johnstone, rel=1e-11)


@pytest.mark.parametrize(
    ("arguments", "message"), [((0, 0.01), "n = 0"), ((10, 0.0), "level = 0.0"), ((10, 1.0), "level = 1.0")]
)
def test_finite_edge_checks_its_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        be.Semicircle().finite_edge(*arguments)


UNITS = list(be.Unit)
EXACT = {
    (be.Unit.SINGULAR, be.Unit.SQUARED),
    (be.Unit.SQUARED, be.Unit.SINGULAR),
    (be.Unit.SINGULAR, be.Unit.SYMMETRISED),
    (be.Unit.SQUARED, be.Unit.SYMMETRISED),
    (be.Unit.SQUARED, be.Unit.EIGEN),
}
BESIDE = {
    be.Unit.EIGEN: be.MarchenkoPastur(1.0),
    be.Unit.SINGULAR: be.QuarterCircle(),
    be.Unit.SQUARED: be.QuarterCircle().squared(),
    be.Unit.SYMMETRISED: be.SumLaw((1.0,), (np.inf,)),
    be.Unit.VALUES: be.EmpiricalLaw(be.MarchenkoPastur(1.0).ppf((np.arange(2000) + 0.5) / 2000)),
}
"""The same law of a square Gaussian matrix, in every unit."""


@pytest.mark.parametrize("theirs", UNITS)
@pytest.mark.parametrize("own", [be.Unit.EIGEN, be.Unit.SINGULAR, be.Unit.SQUARED, be.Unit.VALUES])
def test_units_convert_exactly_or_not_at_all(own, theirs):
    """A square Gaussian matrix lies on its law in every unit that converts (8/n, rigid), and all else is refused."""
    singular = np.linalg.svd(np.random.default_rng(8).standard_normal((400, 400)) / 20, compute_uv=False)
    spectrum = be.Spectrum.of(singular if own is be.Unit.SINGULAR else singular**2, own)
    if own is theirs or be.Unit.VALUES in (own, theirs) or (own, theirs) in EXACT:
        different = (
            be.Unit.VALUES in (own, theirs)
            and own is not be.Unit.SINGULAR
            and theirs
            in (
                be.Unit.SINGULAR,
                be.Unit.SYMMETRISED,
            )
        )
        result = be.compare(spectrum, BESIDE[theirs])
        if different or (own is be.Unit.SINGULAR and theirs is be.Unit.VALUES):
            assert result.ks > 0.05  # plain values are taken as they are
        else:
            assert result.ks < 8 / 400
    else:
        with pytest.raises(be.UnitError, match="pass two that match"):
            be.compare(spectrum, BESIDE[theirs])


def test_squares_are_not_mistaken_for_roots():
    """The reproduction: a softmax matrix beside its law, squared by compare itself."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 400, 400))
    weights = np.exp(query @ key.T / 20)
    centred = 20 * (weights / weights.sum(axis=1, keepdims=True) - 1 / 400)
    law = be.AttentionLaw(1.0, 1.0)
    assert be.compare(be.spectrum(centred), law) == be.compare(be.spectrum(centred).squared(), law)


def test_the_larger_gram_matrix_has_a_kernel():
    """More columns than rows: M'M has zeros that the singular values of M leave out, and so has its law."""
    z = np.random.default_rng(1).standard_normal((200, 500)) / np.sqrt(200)
    larger, smaller = be.MarchenkoPastur(2.5), be.MarchenkoPastur(0.4, scale=2.5)
    assert be.compare(be.spectrum(z).squared(), larger).ks < 8 / 500
    assert be.compare(be.spectrum(z).squared(), smaller).ks < 8 / 200
    padded = be.spectrum(z).squared().padded()
    assert padded.size == 500
    assert padded.weights[0] == pytest.approx(0.6)
    assert be.spectrum(np.eye(3)).padded().size == 3


def test_a_batch_is_compared_one_by_one():
    rng = np.random.default_rng(2)
    batch = rng.standard_normal((2, 3, 60, 40)) / np.sqrt(60)
    spectra = be.spectrum(batch)
    law = be.MarchenkoPastur(40 / 60)
    assert spectra.shape == (2, 3)
    assert spectra.values.shape == (2, 3, 40)
    results = be.compare(spectra.squared(), law)
    assert results.shape == results.ks.shape == (2, 3)
    for index in np.ndindex(2, 3):
        alone = be.spectrum(batch[index])
        assert np.array_equal(spectra[index].values, alone.values)
        assert results[index] == be.compare(alone.squared(), law)
    assert results.outliers[1, 2] == results[1, 2].outliers
    assert len(results[0]) == 3
    assert be.compare(spectra[0].scaled(2.0).squared(), law.scaled(4.0)).ks == pytest.approx(results.ks[0], abs=1e-12)
    assert [each.size for each in spectra[1]] == [40] * 3
    assert spectra.squared().sqrt()[0, 0].values == pytest.approx(spectra[0, 0].values)
    with pytest.raises(AttributeError, match="has no attribute 'kss'"):
        results.kss  # noqa: B018


def test_a_spectrum_beside_another():
    """Two-sample distance, as SciPy has it; no outliers are called, since there is no edge."""
    scipy_stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    first, second = rng.random(50), rng.random(80) ** 2
    result = be.compare(be.Spectrum.of(first, "eigenvalues"), be.Spectrum.of(second, "eigenvalues"))
    assert result.ks == pytest.approx(scipy_stats.ks_2samp(first, second).statistic, abs=1e-12)
    assert result.wasserstein == pytest.approx(scipy_stats.wasserstein_distance(first, second), rel=0.02)
    assert result.outliers == ()
    assert np.isinf(result.finite_edge)


@pytest.mark.parametrize(
    ("spectrum", "law", "message"),
    [
        (np.eye(3), be.Semicircle(), "be.spectrum"),
        ([1.0, 2.0], be.Semicircle(), "be.Spectrum.of"),
        (be.spectrum(np.eye(3)), np.eye(3), "is not a law"),
        (be.spectrum(np.eye(3)), be.Semicircle, "is not a law"),
    ],
)
def test_first_tries_are_answered(spectrum, law, message):
    with pytest.raises(be.DomainError, match=message):
        be.compare(spectrum, law)


def test_causal_heads_have_a_law():
    """Compared at 300 tokens: 0.024 is the largest distance to a draw of docs/laws/causal.md."""
    model = be.SoftmaxAttention(300, 128, 0.5, qk_norm=True, mask="causal")
    law = be.CausalHeadLaw(0.5, 128, 300, qk_norm=True)
    result = be.compare(model.spectrum(np.random.default_rng(5)), law)
    assert result.ks < 0.024
    assert law.ppf(law.cdf([0.05, 1.0])) == pytest.approx([0.05, 1.0], rel=1e-9)
    assert result.outliers == ()


@given(st.lists(st.floats(0, 1), min_size=40, max_size=40), st.sampled_from([0.5, 1.0, 2.0]))
def test_where_values_below_the_rounding_are_does_not_matter(places, ratio):
    """Only their number does: quantiles of a law, with or without a mass at zero, stay half a step from it."""
    law, rounding = be.MarchenkoPastur(ratio), 0.4
    values = law.ppf((np.arange(40) + 0.5) / 40)
    moved = np.sort(np.where(values < rounding, rounding * np.array(places), values))
    spectrum = be.Spectrum(moved, np.full(40, 1 / 40), 40, be.Unit.EIGEN, rounding=rounding)
    assert be.compare(spectrum, law).ks == pytest.approx(1 / 80, abs=1e-9)
