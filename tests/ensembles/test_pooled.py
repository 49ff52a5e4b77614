"""Pooled sequences: their closed forms, to rounding, and what is refused."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles.correlations import product_loading
from bulkedge.ensembles.pooled import critical_strength, spectral_alignment
from bulkedge.ensembles.weights import causal_noise, causal_signal

LENGTH = 10
PREFIX = be.recovery.prefix_correlation(LENGTH, 4, 0.6)
SPIKED = be.recovery.spiked_correlation(LENGTH, [0, 0, 1, 1, 0, -0.5, 1, 0, 0, 0], 6.0)
WEIGHTS = {
    "mean": be.recovery.mean_weights(LENGTH),
    "causal": be.recovery.causal_weights(LENGTH),
    "optimal": be.recovery.optimal_weights(PREFIX),
}


def model(signal=1.5, **changes):
    chosen = {"dim": 600, "vocab": 1200, "samples": 1500, "weights": "causal", "correlation": PREFIX} | changes
    chosen["weights"] = WEIGHTS[chosen["weights"]]
    return be.PooledSequences(signal=signal, **chosen)


# -- weights and correlations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 7, 50])
def test_causal_weights_in_closed_form(length):
    """Against the attention matrix itself, to rounding."""
    attention = np.tri(length, length, -1)
    attention[0, 0] = 1
    attention /= attention.sum(axis=1, keepdims=True)
    weights = be.recovery.causal_weights(length)
    assert weights == pytest.approx(attention.mean(axis=0), abs=1e-15)
    assert causal_noise(length) == pytest.approx(weights @ weights, abs=1e-14)
    for prefix in range(1, length + 1):
        alpha = weights @ be.recovery.prefix_correlation(length, prefix, 0.7) @ weights
        assert causal_signal(length, prefix, 0.7) == pytest.approx(alpha, abs=1e-14)


def test_optimal_weights_reach_the_largest_eigenvalue():
    for correlation in (PREFIX, SPIKED, be.recovery.autoregressive_correlation(LENGTH, 0.4), np.eye(LENGTH)):
        weights = be.recovery.optimal_weights(correlation)
        assert weights.sum() == pytest.approx(1.0, abs=1e-12)
        reached = weights @ correlation @ weights / (weights @ weights)
        assert reached == pytest.approx(np.linalg.eigvalsh(correlation)[-1], rel=1e-12)
    assert be.recovery.optimal_weights(np.eye(3)) == pytest.approx(np.full(3, 1 / 3))
    assert be.recovery.optimal_weights(PREFIX) == pytest.approx([0.25] * 4 + [0.0] * 6)


def test_a_supremum_without_a_maximiser_is_refused():
    """The top eigenvector (1, -1) sums to zero, so lambda_max = 1.5 is approached and never reached."""
    correlation = np.array([[1.0, -0.5], [-0.5, 1.0]])
    with pytest.raises(ValueError, match=r"lambda_max = 1.5: it is a supremum without a maximiser"):
        be.recovery.optimal_weights(correlation)
    far = np.array([0.5 + 1e4, 0.5 - 1e4])
    assert far @ correlation @ far / (far @ far) == pytest.approx(1.5, abs=1e-7)


def test_self_attention_weights():
    """Rows of softmax over what came before; without scores the harmonic weights."""
    rng = np.random.default_rng(0)
    sequences = rng.standard_normal((5, LENGTH, 30))
    weights = be.recovery.self_attention_weights(sequences, 2.0)
    assert weights.shape == (5, LENGTH)
    assert weights.sum(axis=1) == pytest.approx(np.ones(5))
    assert weights[:, -1] == pytest.approx(np.zeros(5))
    assert be.recovery.self_attention_weights(sequences, 0.0) == pytest.approx(
        np.tile(be.recovery.causal_weights(LENGTH), (5, 1))
    )
    with pytest.raises(ValueError, match="sequences must have shape"):
        be.recovery.self_attention_weights(sequences[0, 0])
    with pytest.raises(ValueError, match="score_scale = nan"):
        be.recovery.self_attention_weights(sequences, np.nan)


@pytest.mark.parametrize(
    ("correlation", "product"),
    [
        (PREFIX, True),
        (SPIKED, True),
        (np.array([[1.0, -0.3], [-0.3, 1.0]]), True),
        (be.recovery.prefix_correlation(5, 5, 1.0), True),
        (be.recovery.autoregressive_correlation(6, 0.5), False),
        (be.recovery.autoregressive_correlation(6, -0.5), False),
    ],
)
def test_signs_have_their_correlation(correlation, product):
    """160,000 rows: entries are within five standard errors of at most 1/400."""
    assert (product_loading(correlation) is not None) == product
    signs = be.recovery.draw_signs(correlation, 160_000, np.random.default_rng(1))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert np.abs(signs.mean(axis=0)).max() < 5 / 400
    assert np.abs(signs.T @ signs / 160_000 - correlation).max() < 5 / 400


@pytest.mark.parametrize(
    ("correlation", "message"),
    [
        (np.ones((2, 3)), "must be a square matrix; got shape \\(2, 3\\)"),
        ([[1, np.nan], [np.nan, 1]], "NaN or infinite"),
        ([[1, 0.5], [0.4, 1]], "not symmetric: entries differ from their mirror by 0.1"),
        ([[2, 0.5], [0.5, 1]], "diagonal that differs from 1 by 1"),
        ([[1, 1.5], [1.5, 1]], "eigenvalue -0.5"),
        (1.5 * np.eye(3) - 0.5, "no construction here gives signs"),
    ],
)
def test_what_is_no_correlation_of_signs_is_refused(correlation, message):
    with pytest.raises(ValueError, match=message):
        be.recovery.draw_signs(correlation, 10, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: be.recovery.prefix_correlation(5, 6, 0.5), "prefix = 6 is outside its domain"),
        (lambda: be.recovery.prefix_correlation(5, 2, -0.5), "correlation = -0.5 is outside its domain"),
        (lambda: be.recovery.spiked_correlation(3, [0, 0, 0], 1.0), "direction must be a vector of length 3"),
        (lambda: be.recovery.spiked_correlation(3, [1, 0], 1.0), "direction must be a vector of length 3"),
        (lambda: be.recovery.spiked_correlation(2, [1, 0], np.nan), "strength = nan"),
        (lambda: be.recovery.autoregressive_correlation(3, 1.1), "correlation = 1.1"),
        (lambda: be.recovery.mean_weights(0), "length = 0"),
    ],
)
def test_bad_models_of_correlation_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- the predictions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [300, 1200, 6000])
@pytest.mark.parametrize("signal", [1.4, 2.0, 3.0])
def test_additive_table_is_the_paper(vocab, signal):
    """Equations 6, 7, 8, 22 and 27 of *recovery* with omega = alpha rho**2/kappa, solved as written there."""
    pooled = model(signal, vocab=vocab, table="additive")
    delta, gamma, kappa = pooled.vocab_ratio, pooled.sample_ratio, pooled.kappa
    omega = pooled.alpha * signal**2 / kappa
    population = pooled.population_spike()
    level = kappa * omega * (omega + 1 - delta) / (omega - delta)
    assert omega > delta + np.sqrt(delta)
    assert population.location == pytest.approx(level, rel=1e-12)
    assert population.overlap == pytest.approx(1 - delta / (omega - delta) ** 2, rel=1e-12)
    # equation 7: kappa u (1 - delta - delta u) = level (1 + u) for u = lambda m = (1 - gamma - lambda/level)/gamma. Of
    # its roots, the other belongs to x' = delta/x, the same level's other omega; it runs away as delta goes to zero
    u = np.roots([kappa * delta, level - kappa + kappa * delta, level]).real.max()
    outlier = level * (1 - gamma - gamma * u)
    m = u / outlier
    # equations 31 to 33: the companion's slope from the cubic F(z, m) = kappa m f g - 1 - z m
    f, g = 1 - delta - delta * u, 1 - gamma - gamma * u
    by_m = kappa * (f * g - delta * u * g - gamma * u * f) - outlier
    by_z = -kappa * m * m * (delta * g + gamma * f) - m
    slope = gamma * -by_z / by_m + (1 - gamma) / outlier**2
    overlap = 1 / (outlier * level * slope)
    sample, alignment = pooled.sample_spike(), pooled.alignment()
    assert sample.location == pytest.approx(outlier, rel=1e-12)
    assert sample.overlap == pytest.approx(overlap, rel=1e-12)
    assert alignment.total == pytest.approx(overlap * (1 - delta / (omega - delta) ** 2), rel=1e-12)
    assert alignment.table == 1.0


@pytest.mark.parametrize("signal", [1.2, 2.0])
@pytest.mark.parametrize("vocab", [400, 1200, 6000])
def test_finite_table_without_correlation_is_the_classical_spiked_model(vocab, signal):
    """At alpha = kappa: location of Baik, Ben Arous and Peche, overlap of Paul, with the noise in units of kappa."""
    pooled = model(signal, vocab=vocab, correlation=np.eye(LENGTH))
    delta, square, population, alignment = pooled.vocab_ratio, signal**2, pooled.population_spike(), pooled.alignment()
    assert pooled.alpha == pytest.approx(pooled.kappa, rel=1e-15)
    detectable = signal**4 > delta
    assert population.detectable == detectable
    if detectable:
        classical = (1 + square) * (1 + delta / square)
        assert population.location == pytest.approx(pooled.kappa * classical, rel=1e-12)
        paul = (1 - delta / square**2) / (1 + delta / square)
        assert alignment.population * alignment.table == pytest.approx(paul, rel=1e-12)
    assert pooled.threshold().population == pytest.approx(delta**0.25, rel=1e-12)


@pytest.mark.parametrize("table", ["finite", "additive"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_closed_forms_are_what_the_laws_say(table, weights):
    """Spikes of the population's law, read off its Cauchy transform: 1e-12, and 1e-11 where its slope enters."""
    pooled = model(1.4, weights=weights, table=table)
    law = pooled.population_bulk()
    population = law.spike(pooled.kappa * pooled.strength)
    sample = law.sample_spike(population.location, pooled.sample_ratio)
    for found, expected in ((pooled.population_spike(), population), (pooled.sample_spike(), sample)):
        assert found.location == pytest.approx(expected.location, rel=1e-12)
        assert found.overlap == pytest.approx(expected.overlap, rel=1e-11)
        assert found.threshold == pytest.approx(expected.threshold, rel=1e-9)
        assert found.detectable == expected.detectable


@pytest.mark.parametrize("table", ["finite", "additive"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_closed_forms_of_outlier_alignment_and_thresholds(table, weights):
    """In x = omega - delta: see ``spectral_alignment``; thresholds are roots of x**2 = delta and of a cubic."""
    pooled = model(1.4, weights=weights, table=table)
    delta, gamma, kappa = pooled.vocab_ratio, pooled.sample_ratio, pooled.kappa
    x = pooled.strength - delta
    outlier = kappa * (1 + x) * (x + delta) * (x + gamma) / x**2
    assert pooled.sample_spike().location == pytest.approx(outlier, rel=1e-12)
    alignment = pooled.alignment()
    closed = spectral_alignment(pooled.strength, delta, gamma)
    assert alignment.sample * alignment.population == pytest.approx(closed, rel=1e-12)
    critical = np.roots([1, 0, -(delta + gamma + delta * gamma), -2 * delta * gamma]).real.max()
    assert critical_strength(delta, gamma) == pytest.approx(delta + critical, rel=1e-13)
    for found, least in zip(pooled.threshold(), (np.sqrt(delta), critical), strict=True):
        square = (delta + least) * kappa / pooled.alpha - (delta if table == "finite" else 0.0)
        assert found == pytest.approx(np.sqrt(max(square, 0.0)), rel=1e-12)
    assert pooled.bulk().edge == pytest.approx(
        kappa * (1 + critical) * (critical + delta) * (critical + gamma) / critical**2, rel=1e-12
    )


def test_the_threshold_is_where_the_outlier_leaves():
    for table in ("finite", "additive"):
        least = model(table=table).threshold()
        assert least.population < least.sample
        assert model(1.001 * least.sample, table=table).sample_spike().detectable
        below = model(0.999 * least.sample, table=table)
        assert not below.sample_spike().detectable
        assert below.sample_spike().location == pytest.approx(below.bulk().edge, rel=1e-12)
        assert below.alignment().total == 0.0
        assert spectral_alignment(below.strength, below.vocab_ratio, below.sample_ratio) == 0.0


def test_noise_of_the_class_means_alone_may_leave_the_bulk():
    """alpha/kappa = 2.8 and delta = 2: an outlier without any signal, and no overlap with what is not there."""
    pooled = model(0.0, vocab=300, weights="optimal")
    assert pooled.threshold().sample == 0.0
    assert pooled.sample_spike().detectable
    assert pooled.alignment().total == 0.0
    assert not model(0.0, vocab=300, weights="optimal", table="additive").population_spike().detectable


def test_weights_that_cancel_the_signal():
    both = np.array([[1.0, 1.0], [1.0, 1.0]])
    pooled = be.PooledSequences(50, 100, 100, 3.0, [3.0, -2.0], both)
    assert pooled.alpha == pytest.approx(1.0)
    opposite = be.PooledSequences(50, 100, 150, 3.0, [0.5, 0.5], 2 * np.eye(2) - both)
    assert opposite.alpha == 0.0
    assert opposite.threshold() == (np.inf, np.inf)


def test_mean_of_the_table():
    for centered, table in ((True, "finite"), (False, "additive"), (True, "additive")):
        pooled = model(0.1, centered=centered, table=table)
        assert pooled.mean_strength == 0.0
        assert not pooled.mean_spike().detectable
        assert not pooled.mean_outranks()
    kept = model(0.1, centered=False)
    assert kept.mean_strength == pytest.approx(kept.vocab_ratio / kept.kappa)
    assert kept.mean_outranks()
    least = np.sqrt(kept.vocab_ratio * (1 / kept.alpha - 1))
    assert model(0.999 * least, centered=False).mean_outranks()
    assert not model(1.001 * least, centered=False).mean_outranks()


# -- the draws ---------------------------------------------------------------------------------------------------------


def test_a_draw_is_what_it_says():
    pooled = model(2.0, dim=20, vocab=30, samples=40)
    draw = pooled.draw(np.random.default_rng(2))
    embedded = draw.table[draw.tokens]
    assert draw.rows == pytest.approx(np.einsum("t,ntd->nd", pooled.weights, embedded))
    assert np.array_equal(draw.tokens < 15, draw.signs > 0)
    assert draw.table.mean(axis=0) == pytest.approx(np.zeros(20), abs=1e-14)
    assert np.linalg.norm(draw.mean) == pytest.approx(2.0)
    assert np.array_equal(pooled.sample(np.random.default_rng(2)), draw.rows)
    additive = model(2.0, dim=20, vocab=30, samples=40, table="additive").draw(np.random.default_rng(2))
    assert additive.table[:15].mean(axis=0) == pytest.approx(additive.mean, abs=1e-14)
    assert additive.table[15:].mean(axis=0) == pytest.approx(-additive.mean, abs=1e-14)


@pytest.mark.parametrize("noise", ["gaussian", "uniform", "rademacher"])
def test_noise_has_unit_variance(noise):
    table = model(0.0, dim=200, vocab=1000, noise=noise, centered=False).draw(np.random.default_rng(3)).table
    assert table.mean() == pytest.approx(0.0, abs=5 / np.sqrt(200_000))
    assert table.var() == pytest.approx(1.0, abs=5 * np.sqrt(2 / 200_000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.full(10, 0.2)}, "weights sums to 2; it must be finite numbers that sum to one: divide"),
        ({"weights": [np.nan, 1.0]}, "weights contains NaN"),
        ({"weights": [[1.0]]}, "weights must be a vector"),
        ({"weights": [1.0]}, "weights are for 1 positions and correlation for 10"),
        ({"correlation": 2 * np.eye(10)}, "correlation has a diagonal"),
        ({"correlation": np.full((10, 10), np.nan)}, "correlation contains NaN"),
        ({"vocab": 7}, "vocab = 7 is odd"),
        ({"vocab": 2}, "vocab = 2 is outside its domain"),
        ({"samples": 1}, "samples = 1 is outside its domain"),
        ({"signal": np.nan}, "signal = nan is outside its domain"),
        ({"signal": -1.0}, "signal = -1.0 is outside its domain"),
        ({"table": "exact"}, "table = 'exact' is outside its domain"),
        ({"noise": "cauchy"}, "noise = 'cauchy' is outside its domain"),
        ({"centered": None}, "centered = None is outside its domain"),
    ],
)
def test_bad_input_is_refused(change, message):
    valid = {"dim": 20, "vocab": 40, "samples": 60, "signal": 1.0, "weights": WEIGHTS["mean"], "correlation": PREFIX}
    with pytest.raises(ValueError, match=message):
        be.PooledSequences(**(valid | change))


# -- several classes ---------------------------------------------------------------------------------------------------


def test_two_equal_classes_are_pooled_sequences():
    """The spike through the matrix M(z) against the closed form, to the tolerance of its root search."""
    pooled = model(1.3)
    gram = 1.3**2 * np.array([[1.0, -1.0], [-1.0, 1.0]])
    mixture = be.PooledMixture(600, (600, 600), 1500, gram, WEIGHTS["causal"], PREFIX)
    (spike,) = mixture.spikes()
    assert spike.location == pytest.approx(pooled.sample_spike().location, rel=1e-10)
    assert spike.alignment == pytest.approx(pooled.alignment().total, rel=1e-10)
    assert mixture.law().edge == pytest.approx(pooled.bulk().edge, rel=1e-10)
    quiet = be.PooledMixture(600, (600, 600), 1500, 0.01 * gram, WEIGHTS["causal"], PREFIX).spikes()
    assert [each.detectable for each in quiet] == [False]
    assert quiet[0].location == pytest.approx(pooled.bulk().edge, rel=1e-10)


def test_white_noise_does_not_see_where_means_lie():
    """The resolvent between aligned means against its trace: the same for white noise, to rounding."""
    means, others = np.random.default_rng(4).standard_normal((3, 60)) / 4, (WEIGHTS["causal"], PREFIX)
    aligned = be.PooledMixture.aligned(
        means, np.eye(60), sizes=(30, 40, 50), samples=150, weights=others[0], correlation=others[1]
    )
    free = be.PooledMixture(60, (30, 40, 50), 150, means @ means.T, *others)
    np.testing.assert_allclose(aligned.spikes(), free.spikes(), rtol=1e-9)


@pytest.mark.parametrize(
    ("means", "covariance", "message"),
    [
        (np.ones((2, 3)), np.eye(4), "must be \\(classes, 4\\)"),
        (np.ones((2, 4)), -np.eye(4), "covariance has the eigenvalue -1"),
        (np.full((2, 4), np.nan), np.eye(4), "means contains NaN"),
    ],
)
def test_bad_means_are_refused(means, covariance, message):
    others = {"sizes": (20, 20), "samples": 60, "weights": WEIGHTS["mean"], "correlation": PREFIX}
    with pytest.raises(ValueError, match=message):
        be.PooledMixture.aligned(means, covariance, **others)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loadings": np.eye(2, 19)}, "it must be \\(2, 20\\)"),
        ({"loadings": 2 * np.eye(2, 20)}, "gram differs"),
        ({"sizes": (10,)}, "sizes are for 1 classes and gram for 2"),
        ({"gram": [[1.0, 2.0], [2.0, 1.0]]}, "gram has the eigenvalue -1"),
        ({"gram": [[1.0, np.nan], [np.nan, 1.0]]}, "gram contains NaN"),
        ({"correlation": be.recovery.autoregressive_correlation(10, 0.5)}, "labels are copied or fresh"),
        ({"correlation": SPIKED}, "labels are copied or fresh"),
        ({"weights": [1.0]}, "weights are for 1 positions and correlation for 10"),
        ({"noise_covariance": be.Semicircle()}, "is not a law on a bounded part of"),
        ({"noise_covariance": 1.0}, "objects of class Law"),
    ],
)
def test_bad_mixtures_are_refused(change, message):
    valid = {"dim": 20, "sizes": (20, 20), "samples": 60, "gram": np.eye(2)}
    valid |= {"weights": WEIGHTS["mean"], "correlation": PREFIX}
    with pytest.raises(ValueError, match=message):
        be.PooledMixture(**(valid | change))
