"""What the studies of *recovery* compute without sampling: roots, thresholds, limits of weights, uneven rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles import pooled
from bulkedge.ensembles.pooled import critical_strength, spectral_alignment
from bulkedge.ensembles.weights import causal_noise, causal_signal, pool, self_attention_weights
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.claims import difference
from bulkedge.lab.studies.items import ITEMS
from bulkedge.lab.studies.recovery import (
    Predictions,
    correlations,
    extrapolate,
    outlier_roots,
    thresholds,
    weights_of,
)
from bulkedge.lab.studies.recovery.data_dependent import UnevenRows
from bulkedge.lab.studies.recovery.layers import layer_weights, limit_weights
from bulkedge.lab.studies.recovery.outlier import RecoveryOutlier
from bulkedge.lab.studies.recovery.phase_diagram import RecoveryPhaseDiagram
from bulkedge.lab.studies.recovery.population import RecoveryPopulation
from bulkedge.lab.studies.recovery.thresholds import RecoveryThresholds
from bulkedge.support.errors import UnresolvedError
from bulkedge.support.estimates import Estimate

RATIOS = [(0.5, 1 / 3), (0.1, 0.8), (2.0, 0.05), (0.3, 3.0)]


@pytest.mark.parametrize(("delta", "gamma"), RATIOS)
def test_cubic_of_the_bulk(delta, gamma):
    """Equation 5: ``kappa m (1 - delta - delta z m)(1 - gamma - gamma z m) = 1 + z m`` with m = -G."""
    kappa = 0.3
    law = be.ProductLaw((delta, gamma), kappa)
    z = law.edge * np.array([1.3, 2.0]) + 0.1j
    m = -law.cauchy(z)
    left = kappa * m * (1 - delta - delta * z * m) * (1 - gamma - gamma * z * m)
    np.testing.assert_allclose(left, 1 + z * m, rtol=1e-9)


@pytest.mark.parametrize(("delta", "gamma"), RATIOS)
def test_roots_of_equation_7(delta, gamma):
    """The smaller is the outlier of the spike, the larger that of the other strength with the same population."""

    def level(x):
        return (1 + x) * (x + delta) / x

    x = np.sqrt(delta) * np.array([1.01, 1.5, 4.0])
    np.testing.assert_allclose(level(x), level(delta / x), rtol=1e-12)
    smaller, larger = outlier_roots(level(x), delta, gamma)
    np.testing.assert_allclose(smaller, level(x) * (1 + gamma / x), rtol=1e-7)
    np.testing.assert_allclose(larger, level(x) * (1 + gamma * x / delta), rtol=1e-7)
    assert np.all(larger > smaller)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_unlimited_vocabulary_gives_the_formula_of_paul(gamma):
    """``(1 - gamma/x**2)/(1 + gamma/x)`` for a population eigenvalue 1 + x, of ratio gamma."""
    x = np.sqrt(gamma) * np.array([1.1, 2.0, 5.0])
    np.testing.assert_allclose(spectral_alignment(x, 1e-12, gamma), (1 - gamma / x**2) / (1 + gamma / x), rtol=1e-9)


@pytest.mark.parametrize("table", ["finite", "additive"])
@pytest.mark.parametrize(("delta", "gamma"), RATIOS)
def test_thresholds_fall_as_more_signal_is_kept(table, delta, gamma):
    """Over any grid of alpha/kappa; strictly, until noise alone is seen in a finite table."""
    kept = np.linspace(0.5, 6.0, 30)
    found = Predictions(kept, gamma, table).threshold(np.array(delta))
    falls = np.diff(found)
    assert np.all(falls <= 0)
    assert np.all(falls[found[1:] > 0] < 0)
    if table == "additive":
        np.testing.assert_allclose(found, np.sqrt(critical_strength(delta, gamma) / kept), rtol=1e-12)


def test_optimal_weights_move_the_boundary_at_every_vocabulary_ratio():
    """Figure 2: the frontier moves to weaker signals, and more of the map is recovered."""
    data = RecoveryPhaseDiagram(resolution=40, dim=50, draws=2, table="additive").simulate(0)
    rise = data.boundary.sel(weighting="optimal") - data.boundary.sel(weighting="mean")
    assert float(rise.max()) < 0
    seen = (data.alignment > 0).mean(("signal", "vocab_ratio"))
    assert float(seen.sel(weighting="optimal")) > 1.1 * float(seen.sel(weighting="mean"))


@pytest.mark.parametrize(("length", "prefix"), [(5, 2), (20, 4), (20, 20), (160, 8)])
def test_causal_scalars_in_harmonic_numbers(length, prefix):
    """Proposition 2 and equation 43."""
    matrix = be.recovery.prefix_correlation(length, prefix, 0.6)
    weights = weights_of("causal", matrix)
    assert causal_noise(length) == pytest.approx(weights @ weights, rel=1e-12)
    assert causal_signal(length, prefix, 0.6) == pytest.approx(weights @ matrix @ weights, rel=1e-12)


def test_curves_of_two_sizes_cross_where_they_are_equal():
    """Exact for straight logarithms; of three crossings, which only noise makes, the middle one; nan without any."""
    at = np.array(thresholds.SIGNALS)
    growth = np.array([at - 0.93, [-1.0, 0.1, -0.1, 0.1, 1.0], at + 1, at - 2])
    found = thresholds.crossing(np.exp(growth), np.ones_like(growth))
    np.testing.assert_allclose(found[:1], 0.93, rtol=1e-12)
    assert found[1] == pytest.approx(1.1)
    assert np.isnan(found[2:]).all()


@pytest.mark.parametrize(
    ("factor", "options"),
    [
        (1.15, {"prefixes": (4, 12), "dim": 80}),
        pytest.param(1.15, {}, marks=pytest.mark.slow),
        pytest.param(1.0, {"draws": 200}, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_threshold_of_the_sample_is_noticed(monkeypatch, factor, options):
    """The signal at which outlier and bulk part is measured: nothing of it comes from the law that is tested."""

    def wrong(*ratios):
        return factor**2 * critical_strength(*ratios)

    for module in (pooled, setting, thresholds):
        monkeypatch.setattr(module, "critical_strength", wrong)
    study = RecoveryThresholds(**options, sequences=1000, longest=32)
    claims = list(study.statements(study.simulate(1)))[:3]
    failed = [claim.statement for claim in claims if claim.verdict == "fails"]
    assert bool(failed) == (factor != 1)


def test_the_other_branch_of_equation_7_is_noticed(monkeypatch):
    """The text takes the larger root; outliers are simulated."""
    roots = setting.outlier_roots
    monkeypatch.setattr(setting, "outlier_roots", lambda *ratios: roots(*ratios)[::-1])
    study = RecoveryOutlier(**RecoveryOutlier.small)
    failed = [claim.statement for claim in study.claims(study.simulate(1)) if claim.verdict == "fails"]
    assert "largest eigenvalue from 1.5 thresholds on" in failed


def test_family_of_strengths():
    """The ensemble of a strength has it, in either table; both sizes of threshold agree with the laws."""
    for table in ("finite", "additive"):
        model = RecoveryPopulation(dim=100, table=table).model(2.0)
        assert model.strength == pytest.approx(2.0, rel=1e-12)
        expected = model.population_bulk().spike(2.0 * model.kappa)
        assert float(model.population_spike().location) == pytest.approx(float(expected.location), rel=1e-9)


def test_same_rows_are_the_closed_form():
    """Where all rows keep the same, uneven ones are those of Theorems 3 and 4."""
    for weighting in ("mean", "causal"):
        model = RecoveryPopulation(dim=300, vocab_ratio=0.4, sample_ratio=0.7).model(3.0)
        model = replace(model, weights=weights_of(weighting, model.correlation), signal=1.6)
        same = UnevenRows(np.full(3, model.alpha), np.full(3, model.kappa), 1.6**2, 0.4, model.sample_ratio)
        location, overlap = same.spike()
        assert location == pytest.approx(float(model.sample_spike().location), rel=1e-8)
        assert overlap == pytest.approx(model.alignment().total, rel=1e-6)


def test_uneven_rows_against_a_draw():
    """Half of the rows keep much noise and much signal, the others little: Gaussian rows of that kind, d = 400."""
    rng = np.random.default_rng(3)
    dim, samples, delta, gamma = 400, 1600, 0.5, 0.25
    noises, squares = np.repeat([2.0, 0.5], samples // 2), np.repeat([1.5, 0.25], samples // 2)
    found = []
    for _ in range(12):
        table = rng.standard_normal((int(dim / delta), dim))
        noise = rng.standard_normal((samples, len(table))) @ table / np.sqrt(len(table))
        rows = np.sqrt(noises)[:, None] * noise
        rows[:, 0] += np.sqrt(squares) * rng.choice([-1.0, 1.0], samples) * 3.0
        values, vectors = np.linalg.eigh(rows.T @ rows / samples)
        found.append((values[-1], vectors[0, -1] ** 2))
    predicted = UnevenRows(squares, noises, 9.0, delta, gamma).spike()
    for one, theory in zip(np.array(found).T, predicted, strict=True):
        estimate = Estimate.of(one)
        # four standard errors, and a few 1/d
        assert abs(estimate.value - theory) < 4 * estimate.error + 3 * theory / dim


def test_no_outlier_is_said_so():
    with pytest.raises(UnresolvedError, match="below the threshold"):
        UnevenRows(np.full(4, 0.1), np.full(4, 1.0), 0.5, 0.5, 0.5).spike()


def test_two_layers_attend_evenly_and_three_do_not():
    """Products of rows of uniform causal attention depend on the later row alone, so that scores cancel."""
    assert limit_weights(12, 0.0).sum(axis=1) == pytest.approx(np.ones(3))
    with_scores, without = limit_weights(12, 2.5), limit_weights(12, 0.0)
    np.testing.assert_allclose(with_scores[:2], without[:2], rtol=1e-12)
    assert np.abs(with_scores[2] - without[2]).max() > 0.005


def test_the_first_of_the_layers_is_self_attention():
    sequences = np.random.default_rng(0).standard_normal((5, 8, 30))
    products = sequences @ np.swapaxes(sequences, -1, -2) / 30
    found = layer_weights(products, 1.3, 1.3 * products)
    np.testing.assert_allclose(found[:, 0], self_attention_weights(sequences, 1.3), rtol=1e-12)


def test_pooling_with_weights_of_each_sequence():
    rng = np.random.default_rng(0)
    table, tokens, weights = rng.standard_normal((9, 4)), rng.integers(0, 9, (5, 3)), rng.random((5, 3))
    np.testing.assert_allclose(pool(table, tokens, weights), np.einsum("nl,nld->nd", weights, table[tokens]))
    np.testing.assert_allclose(pool(table, tokens, weights[0]), np.einsum("l,nld->nd", weights[0], table[tokens]))


def test_extrapolation_takes_off_the_first_order():
    """``limit + c/d`` at d and d/2, two small draws for each large one."""
    limit, slope = 3.0, 7.0
    large, small = np.full((4, 2), limit + slope / 100), np.full((8, 2), limit + slope / 50)
    np.testing.assert_allclose(extrapolate(large, small), np.full((4, 2), limit), rtol=1e-12)


def test_difference_of_estimates():
    found = difference(Estimate(3.0, 0.3, 9.0), Estimate(1.0, 0.4, 9.0))
    assert found.value == pytest.approx(2.0)
    assert found.error == pytest.approx(0.5)


def test_correlations_of_figure_4():
    """The spiked model is where optimal weights gain most, and causal ones are no better than the mean by much."""
    kept = {}
    for name, matrix in correlations().items():
        weights = {each: weights_of(each, matrix) for each in ("mean", "causal", "optimal")}
        kept[name] = {each: w @ matrix @ w / (w @ w) for each, w in weights.items()}
        assert kept[name]["optimal"] == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-9)
    assert kept["prefix"]["optimal"] > kept["prefix"]["causal"] > kept["prefix"]["mean"]
    assert kept["spiked"]["optimal"] > 1.5 * max(kept["spiked"]["causal"], kept["spiked"]["mean"])


@pytest.mark.parametrize("item", [each for each in ITEMS["recovery"] if each.tested], ids=lambda item: item.name)
def test_tests_of_items_exist(item):
    file, name = item.tested.split("::")
    assert f"def {name}(" in (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
