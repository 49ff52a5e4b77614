"""What the claims of *width* rest on and no claim can see: estimators, gradients, expansions and quadratures."""

import numpy as np
import pytest
import xarray as xr
from scipy.special import ndtr

from bulkedge.lab.studies.width import distribution_function, excess, extrapolate, kurtosis, slope
from bulkedge.lab.studies.width.activations import gap
from bulkedge.lab.studies.width.kl_decay import NODES as POINTS
from bulkedge.lab.studies.width.kl_decay import (
    REACH,
    WidthKlDecay,
    divergence,
    exact_divergences,
    gaussians,
    leading_order,
)
from bulkedge.lab.studies.width.positions import kernel_moments, rotate
from bulkedge.lab.studies.width.sequence import WidthSequence, joint_limit, scaled_kernel
from bulkedge.lab.studies.width.training import LayerParameters, WidthTraining
from bulkedge.programs import ACTIVATIONS, FiniteMixture, HeadMixture, equal_correlations
from bulkedge.support.estimates import Estimate


def gaussian_data(variance, base, noise=0.0, batches=4, seed=0):
    """A dataset of ``width/kl-decay`` where both laws are Gaussian, with noisy batches."""
    rng = np.random.default_rng(seed)
    x, t = REACH * (POINTS + 1) / 2, 10 * (POINTS + 1)
    density, phi = gaussians(np.array([variance]), x)[:, 0], np.exp(-(t**2) * variance / 2)
    waves = rng.standard_normal((1, batches, 1))
    return xr.Dataset(
        {
            "density": (("width", "batch", "x"), density * (1 + noise * waves * (np.cos(x) - np.exp(-variance / 2)))),
            "characteristic": (("width", "batch", "t"), phi + noise * waves * t**2 * np.exp(-t)),
            "exact_density": (("width", "x"), density[None]),
            "exact_characteristic": (("width", "t"), phi[None]),
            "limit_density": ("x", gaussians(np.array([base]), x)[:, 0]),
            "limit_characteristic": ("t", np.exp(-(t**2) * base / 2)),
        },
        coords={"width": [7], "x": x, "t": t},
    )


@pytest.mark.parametrize(("variance", "base"), [(1.0, 1.5), (0.8, 0.7)])
def test_divergences_of_gaussians_are_those_in_closed_form(variance, base):
    kl = (variance / base - 1 - np.log(variance / base)) / 2
    energy = (2 * np.sqrt(variance + base) - np.sqrt(2 * variance) - np.sqrt(2 * base)) * np.sqrt(2 / np.pi)
    data = gaussian_data(variance, base)
    assert exact_divergences(data)[:, 0] == pytest.approx([kl, energy], rel=1e-6)
    assert [divergence(data, 7, kind).value for kind in ("kl", "energy")] == pytest.approx([kl, energy], rel=1e-6)


@pytest.mark.parametrize("kind", ["kl", "energy"])
def test_scatter_of_the_batches_does_not_bias_divergences(kind):
    """Both laws agree, so all that is seen is scatter: zero in the mean over 200 sets; plain estimates are not."""
    corrected, plain = [], []
    for seed in range(200):
        data = gaussian_data(1.0, 1.0, noise=0.1, batches=10, seed=seed)
        corrected.append(divergence(data, 7, kind).value)
        mean = data.assign(
            exact_density=data.density.mean("batch"), exact_characteristic=data.characteristic.mean("batch")
        )
        plain.append(exact_divergences(mean)[("kl", "energy").index(kind), 0])
    good, bad = Estimate.of(corrected), Estimate.of(plain)
    assert abs(good.value) < 4 * good.error
    assert bad.value > 8 * bad.error


def test_the_divergence_falls_as_the_square_of_the_width():
    """Locally the exponent is near -1.7 at widths of four to six, and tends to two with a correction of order 1/n."""
    limit, x = HeadMixture(equal_correlations(2)), REACH * (POINTS + 1) / 2
    values, weights, _ = limit.kernel_values(1.0)
    base = gaussians(values, x) @ weights
    found = {}
    for width in (4, 6, 512, 1024, 2048):
        density = FiniteMixture(limit, width).pdf(x)
        found[width] = REACH * np.polynomial.legendre.leggauss(100)[1] @ (density * np.log(density / base))
    assert np.log(found[6] / found[4]) / np.log(6 / 4) == pytest.approx(-1.69, abs=0.01)
    exponents = [np.log2(found[2 * width] / found[width]) + 2 for width in (512, 1024)]
    assert exponents[0] / exponents[1] == pytest.approx(2, abs=0.1)
    assert leading_order(WidthKlDecay()) == pytest.approx(1024**2 * found[1024], rel=0.01)


def test_tails_of_the_limit_are_far_above_a_gaussian():
    """By quadrature: tens of times at five deviations for one head, as ``width/distribution`` has them."""
    mixture = HeadMixture(equal_correlations(4), 1, 0, 4.0)
    assert mixture.sf(5 * mixture.variance() ** 0.5) / ndtr(-5.0) > 20


def test_joint_limit_of_long_sequences():
    """``C``, the variance of the ratio of two sums to first order, by Gauss and Hermite's rule."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    for variance in (0.1, 0.25, 1.0):
        p = variance**0.5 * nodes
        terms = np.exp(2 * p - 2 * variance) - 2 * np.exp(p - variance / 2)
        spread = weights @ terms**2 - (weights @ terms) ** 2
        assert joint_limit(variance) == pytest.approx(3 * (spread + 2 * variance**2 + 2))
        assert joint_limit(variance, np.inf) == pytest.approx(6 * (variance**2 + 1))


def test_scaled_kernel_of_long_sequences():
    """Against draws of the scores given the query: five standard errors, and less than the correction itself."""
    rng, width, variance = np.random.default_rng(1), 40, 0.25
    scores = rng.standard_normal((60_000, width)) * np.sqrt(variance * rng.chisquare(width, (60_000, 1)) / width)
    weights = np.exp(scores)
    found = Estimate.of(width * np.sum(weights**2, axis=1) / np.sum(weights, axis=1) ** 2)
    correction = np.exp(variance) - scaled_kernel(variance, width)
    assert abs(found.value - scaled_kernel(variance, width)) < 5 * found.error + correction**2
    assert 5 * found.error < correction


def test_predicted_kurtosis_of_long_sequences_tends_to_the_joint_limit():
    predicted = WidthSequence(draws=2000)._predicted(256, np.random.default_rng(2))
    assert 256 * predicted["exact"].value == pytest.approx(joint_limit(0.25), rel=0.05)
    assert 256 * predicted["fixed"].value == pytest.approx(joint_limit(0.25) - joint_limit(0.25, np.inf), rel=0.1)


def test_moments_without_positions_are_those_of_the_mixture():
    gram = equal_correlations(3, 0.4)
    mixture = HeadMixture(gram, 1, 0, 2.0)
    found = kernel_moments(gram, 2 * gram, np.zeros(3))
    assert found == pytest.approx([mixture.variance(), mixture.excess_kurtosis()])
    assert kernel_moments(gram, 2 * gram, np.full(3, 5.0)) == pytest.approx(found)  # softmax sees differences only
    assert kernel_moments(gram, 1e-9 * gram, np.array([0, -50.0, -50.0]))[0] == pytest.approx(1)  # itself alone


def test_rotations():
    """They keep norms, leave position zero alone, and products depend on distances only."""
    keys = np.random.default_rng(3).standard_normal((4, 3, 16))
    turned = rotate(keys, np.array([0, 5, 9]))
    assert turned[:, 0] == pytest.approx(keys[:, 0])
    assert np.sum(turned**2, axis=2) == pytest.approx(np.sum(keys**2, axis=2))
    assert rotate(keys[..., :15], np.array([0, 5, 9]))[..., 14] == pytest.approx(keys[..., 14])  # of odd width
    further = rotate(keys, np.array([100, 105, 109]))
    assert turned @ turned.transpose(0, 2, 1) == pytest.approx(further @ further.transpose(0, 2, 1))


def test_gradients_are_derivatives_of_the_output():
    study, rng = WidthTraining(inputs=3, score_variance=2.0), np.random.default_rng(4)
    layer = LayerParameters(*(rng.standard_normal((5, 8, 3)) for _ in range(3)), rng.standard_normal((5, 8)))
    _, _, gradient = study.backward(layer)
    for name in LayerParameters._fields:
        along = rng.standard_normal(getattr(layer, name).shape)
        ends = [study.backward(layer._replace(**{name: getattr(layer, name) + h * along}))[1] for h in (1e-5, -1e-5)]
        expected = np.sum((getattr(gradient, name) * along).reshape(5, -1), axis=1)
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(expected, rel=1e-6, abs=1e-8)


def test_a_small_step_follows_the_tangent_kernel():
    """At a small rate the limit is linear: its output moves by the tangent kernel, to second order in the rate."""
    apart = []
    for rate in (1e-2, 1e-3):
        study = WidthTraining(rate=rate)
        step = study.limit(np.random.default_rng(5), 2000)
        linear = step.before - rate * (step.before - study.target) * step.tangent
        apart.append(np.mean(np.abs(step.after - linear)))
    assert apart[0] / apart[1] == pytest.approx(100, rel=0.1)


def test_statistics():
    rng = np.random.default_rng(6)
    variances = rng.gamma(3.0, 1.0, 4000)
    found = kurtosis(variances)
    assert found.value == pytest.approx(3 * variances.var() / variances.mean() ** 2)
    again = Estimate.jackknife(lambda v: 3 * v.var() / v.mean() ** 2, variances[:1000])
    assert kurtosis(variances[:1000]).error == pytest.approx(again.error, rel=0.02)
    draws = rng.standard_normal(4000)
    assert excess(draws).value == pytest.approx(np.mean(draws**4) / np.mean(draws**2) ** 2 - 3)
    assert abs(excess(draws).value) < 5 * excess(draws).error
    power = slope([1, 2, 4], [Estimate(8.0, 0.1), Estimate(2.0, 0.1), Estimate(0.5, 0.1)])
    assert power.value == pytest.approx(-2)
    assert extrapolate(Estimate(1.5, 0.3), Estimate(1.25, 0.2)) == pytest.approx((1.0, 0.5, np.inf))
    curves = distribution_function(np.full(100, 4.0), np.array([-2.0, 0.0, 2.0]))
    assert curves == pytest.approx(np.broadcast_to(ndtr([-1.0, 0.0, 1.0]), curves.shape))


def test_kernels_that_are_not_random_add_nothing():
    from bulkedge.programs import CLIP, RELU

    rng = np.random.default_rng(7)
    fixed = np.broadcast_to(equal_correlations(2, 0.3), (500, 2, 2))
    assert gap(CLIP, fixed).value == pytest.approx(0, abs=1e-12)
    scaled = fixed * rng.gamma(5.0, 0.2, (500, 1, 1))
    assert gap(RELU, scaled).value == pytest.approx(0, abs=1e-12)  # ReLU's moments are linear in the scale
    assert gap(CLIP, scaled).value < 0


def test_the_joint_limit_is_claimed_at_the_widest_layer():
    study = WidthSequence(draws=100, widths=(8, 12, 16))
    *_, last = study.claims(study.run(np.random.default_rng(0)))
    assert "16 inputs at width 16" in last.statement
    assert float(last.predicted) == scaled_kernel(study.score_variance, 16)


def test_every_activation_keeps_the_rate_of_the_divergence():
    """Softplus keeps all of it, ReLU half (both laws are even); GELU folds the negative side and keeps 0.62 to 0.65."""
    limit, y = HeadMixture(equal_correlations(2), 1, 0, 1.0), (np.arange(4000) + 0.5) / 4000 * 18 - 9
    variances, weights, _ = limit.kernel_values(1.0)
    laws = [gaussians(variances, y[2000:]) @ weights, *(FiniteMixture(limit, n).pdf(y[2000:]) for n in (32, 64, 128))]
    masses = np.array([np.concatenate([each[::-1], each]) / (2 * each.sum()) for each in laws])

    def divergences(name):
        values = ACTIVATIONS[name](y)
        edges = np.unique(np.append(np.linspace(values.min(), 0, 30), np.geomspace(1e-6, 9.1, 700))) - 1e-12
        base, *found = (np.histogram(values, np.append(edges, 20), weights=each)[0] for each in masses)
        kept = base > 0
        return np.array([each[kept] @ np.log(each[kept] / base[kept]) for each in found])

    whole = np.array([each @ np.log(each / masses[0]) for each in masses[1:]])
    assert divergences("softplus") == pytest.approx(whole, rel=0.01)
    assert divergences("relu") == pytest.approx(whole / 2, rel=0.01)
    gelu = divergences("gelu") / whole
    assert np.all((gelu > 0.6) & (gelu < 0.65))
    for name in ("relu", "gelu", "softplus"):
        assert np.diff(np.log2(divergences(name)))[-1] == pytest.approx(-2, abs=0.1)
