"""Goodness of fit: moments of the statistics against drawn matrices, rates of rejection, and what is refused."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.inference.linear_statistics import chebyshev_sums, one_cut
from bulkedge.inference.nulls import exchangeable_distances

HALF = be.MarchenkoPastur(0.5)
MEDIAN = float(HALF.ppf(0.5))


def wigner_values(size, dyson, draws, rng):
    """Eigenvalues of Gaussian matrices, in the tridiagonal form of Dumitriu and Edelman."""
    form, index = np.zeros((draws, size, size)), np.arange(size)
    form[:, index, index] = rng.normal(scale=np.sqrt(2 / (size * dyson)), size=(draws, size))
    form[:, index[1:], index[:-1]] = np.sqrt(rng.chisquare(dyson * index[:0:-1], (draws, size - 1)) / (size * dyson))
    return np.linalg.eigvalsh(form)


def covariance_values(dim, samples, draws, rng, drawn=None):
    """Eigenvalues of sample covariances of given or Gaussian entries of shape (draws, samples, dim)."""
    drawn = rng.standard_normal((draws, samples, dim)) if drawn is None else drawn
    return np.linalg.eigvalsh(drawn.swapaxes(1, 2) @ drawn / samples)


def p_values(values, law, **known):
    return np.array(
        [be.goodness_of_fit(be.Spectrum.of(each, "eigenvalues"), law(each), **known).value for each in values]
    )


@pytest.mark.parametrize("law", [be.Semicircle(2.0), be.MarchenkoPastur(0.3, 2.0), be.MarchenkoPastur(3.0)], ids=repr)
def test_means_of_chebyshev_polynomials_are_the_integrals(law):
    """A quantile rule of the continuous part: its error is 1/points, times the degree."""
    shape, points = one_cut(law), 20_000
    mass = 1 / law.ratio if shape.atom else 1.0
    values = law.ppf(1 - mass * (np.arange(points) + 0.5) / points)
    degree = np.arange(1, 7)
    measured = chebyshev_sums((values - shape.centre) / shape.half, 6) / points
    np.testing.assert_allclose(measured, shape.means(degree), atol=6 / points)


@pytest.mark.parametrize(("dyson", "law"), [(1, be.Semicircle()), (4, be.Semicircle()), (1, HALF)])
def test_means_and_variances_of_drawn_matrices(dyson, law):
    """Four standard errors of a thousand draws, 5/size of a deviation and 15/size of a variance."""
    size, draws, rng, degree = 60, 1000, np.random.default_rng(1), np.arange(1, 4)
    wigner = isinstance(law, be.Semicircle)
    values = wigner_values(size, dyson, draws, rng) if wigner else covariance_values(size, 2 * size, draws, rng)
    shape = one_cut(law)
    sums = np.array([chebyshev_sums((each - shape.centre) / shape.half, 3) for each in values])
    variance = degree / (2 * dyson)
    expected = size * shape.means(degree) + (2 / dyson - 1) * np.array([0.0, 0.5, 0.0])
    assert np.all(np.abs(sums.mean(axis=0) - expected) < np.sqrt(variance) * (4 / draws**0.5 + 5 / size))
    assert np.all(np.abs(sums.var(axis=0) / variance - 1) < 4 * np.sqrt(2 / draws) + 15 / size)


CALIBRATED = {
    "wigner 20": lambda rng: p_values(wigner_values(20, 1, 800, rng), lambda _: be.Semicircle()),
    "complex wigner": lambda rng: p_values(wigner_values(40, 2, 800, rng), lambda _: be.Semicircle(), dyson=2),
    "wishart": lambda rng: p_values(covariance_values(40, 80, 800, rng), lambda _: HALF),
    "square": lambda rng: p_values(covariance_values(30, 30, 800, rng), lambda _: be.MarchenkoPastur(1.0)),
    "zeros": lambda rng: p_values(covariance_values(60, 30, 600, rng), lambda _: be.MarchenkoPastur(2.0)),
    "estimated scale": lambda rng: p_values(
        covariance_values(40, 80, 300, rng),
        lambda each: be.MarchenkoPastur(0.5, float(np.median(each) / MEDIAN)),
        estimated=("scale",),
    ),
    "signs": lambda rng: p_values(
        covariance_values(40, 80, 0, rng, rng.choice([-1.0, 1.0], (800, 80, 40))), lambda _: HALF, kurtosis=-2
    ),
}


@pytest.mark.parametrize("name", CALIBRATED)
def test_rates_of_rejection_are_the_level(name):
    """0.01 beside the level 0.05, the stated calibration, and three standard errors of the draws."""
    found = CALIBRATED[name](np.random.default_rng(2))
    assert abs(np.mean(found <= 0.05) - 0.05) < 0.01 + 3 * np.sqrt(0.05 * 0.95 / len(found))
    assert np.mean(found <= 0.5) == pytest.approx(0.5, abs=0.03 + 1.5 / np.sqrt(len(found)))


def test_a_wrong_law_is_refuted():
    """Ratio 0.55 for 0.5 and scale 1.1 for 1 are refuted; a scale that was estimated may be off by its own error."""
    values = covariance_values(60, 120, 100, np.random.default_rng(3))
    assert np.mean(p_values(values, lambda _: be.MarchenkoPastur(0.55)) < 0.05) > 0.8
    assert np.mean(p_values(values, lambda _: be.MarchenkoPastur(0.5, 1.1)) < 0.05) > 0.8
    fitted = {"estimated": ("scale",)}
    assert np.mean(p_values(values, lambda e: be.MarchenkoPastur(0.7, float(e.mean())), **fitted) < 0.05) > 0.8
    assert np.mean(p_values(1.02 * values, lambda _: HALF, **fitted) < 0.05) < 0.12


def test_outliers_are_set_aside_with_what_their_signals_do():
    """Means of the p-values are one half; without the correction for the signals they are far below."""
    rng = np.random.default_rng(4)
    drawn = rng.standard_normal((150, 240, 120))
    drawn[:, :, :3] *= [3.0, 2.5, 2.2]
    values = covariance_values(120, 240, 0, rng, drawn)
    fits = [be.goodness_of_fit(be.Spectrum.of(each, "eigenvalues"), HALF) for each in values]
    assert np.mean([fit.outliers for fit in fits]) == pytest.approx(3, abs=0.1)
    assert np.mean([fit.value for fit in fits]) == pytest.approx(0.5, abs=0.1)
    assert np.mean([fit.value <= 0.05 for fit in fits]) < 0.11
    assert "3 outliers set aside" in fits[0].words


def test_a_simulated_fit_is_exact():
    """Fifteen nulls and twenty draws of each, three standard errors."""
    model, shares, rng = be.GaussianProduct(24, (1.0, 1.0)), [], np.random.default_rng(5)
    for seed in range(15):
        found = [be.goodness_of_fit(model.spectrum(rng), model, draws=39, rng=seed) for _ in range(20)]
        shares.append(np.mean([each.value <= 0.1 for each in found]))
        assert found[0].draws == 39
    assert abs(np.mean(shares) - 0.1) < 3 * np.std(shares) / np.sqrt(15) + 0.01
    other = be.GaussianProduct(24, (0.5, 1.0))
    assert be.goodness_of_fit(other.spectrum(rng), model, draws=99).value < 0.05


def test_effects_of_estimates_are_removed():
    """A row of another scale is the farthest of all; with the estimates of the scales it is one among many."""
    rng, scales = np.random.default_rng(6), np.exp(0.05 * np.random.default_rng(7).standard_normal(80))
    scales[-1] = 1.25
    values = scales[:, None] * wigner_values(30, 1, 80, rng)
    alone, _ = exchangeable_distances(values)
    corrected, _ = exchangeable_distances(values, np.log(scales)[:, None])
    assert np.argmax(alone) == 79
    assert np.sum(corrected >= corrected[-1]) > 10


def test_compare_shows_the_fit_where_it_is_known():
    rng = np.random.default_rng(7)
    square = be.spectrum(rng.standard_normal((50, 50)) / 50**0.5)
    assert be.compare(square, be.QuarterCircle()).fit == be.compare(square.squared(), be.MarchenkoPastur(1.0)).fit
    assert "whole fit" in be.compare(square, be.QuarterCircle())._repr_html_()
    wide = be.spectrum(rng.standard_normal((50, 100)) / 50**0.5)
    kernel = be.compare(wide.squared(), be.MarchenkoPastur(2.0))
    assert kernel.fit.value == pytest.approx(be.compare(wide.squared().scaled(0.5), HALF).fit.value, rel=1e-6)
    for law in (be.SumLaw((1.0,), (np.inf,)), be.FussCatalan(1).squared(), square):
        assert be.compare(square, law).fit is None
    small = be.spectrum(rng.standard_normal((10, 10)))
    assert be.compare(small, be.QuarterCircle(10.0)).fit is None
    assert "whole fit" not in be.compare(small, be.QuarterCircle(10.0))._repr_html_()


def test_what_is_refused():
    values = be.Wishart(40, 80).spectrum(np.random.default_rng(8))
    for message, law, known in (
        ("Pass the ensemble", be.FussCatalan(2), {}),
        ("not a law, an ensemble", "mp", {}),
        ("no parameter", HALF, {"estimated": ("sigma",)}),
        ("kurtosis", HALF, {"kurtosis": -3}),
        ("must be alike", be.GaussianProduct(24, (1.0,)), {"draws": 19}),
        ("are of laws", be.GaussianProduct(40, (1.0,)), {"draws": 19, "kurtosis": 1.0}),
    ):
        with pytest.raises(be.DomainError, match=message):
            be.goodness_of_fit(values, law, **known)
    with pytest.raises(be.DomainError, match="20 values"):
        be.goodness_of_fit(be.Spectrum.of(np.arange(1.0, 9.0), "eigenvalues"), HALF)
    operator = be.spectrum(be.spectra.MatrixOperator(np.random.default_rng(9).standard_normal((60, 60))))
    if operator.error or len(operator.values) < operator.size:
        with pytest.raises(be.DomainError, match="not computed"):
            be.goodness_of_fit(operator, HALF)


def test_a_kernel_in_single_precision_is_a_kernel():
    data = np.random.default_rng(4).standard_normal((50, 100)).astype(np.float32)
    law, fits = be.MarchenkoPastur(2.0), []
    for kind in (np.float32, float):
        sample = data.astype(kind).T @ data.astype(kind) / 50
        fits.append(be.goodness_of_fit(be.Spectrum.of(np.linalg.eigvalsh(sample), "eigenvalues"), law).value)
    assert fits[0] == pytest.approx(fits[1], abs=1e-4)
    assert fits[1] > 0.05


def test_estimated_parameters_count_once_and_are_numbers():
    spectrum = be.Wishart(100, 200).spectrum(np.random.default_rng(3))
    law = be.MarchenkoPastur(0.5)
    once, twice = (be.goodness_of_fit(spectrum, law, estimated=("scale",) * count) for count in (1, 2))
    assert once == twice
    for name in ("law", "shift"):
        with pytest.raises(be.DomainError, match=rf"estimated = '{name}' is no parameter .* are \['factor'\]"):
            be.goodness_of_fit(spectrum, law.scaled(1.5), estimated=(name,))
