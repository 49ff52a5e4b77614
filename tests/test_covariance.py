"""Population spectra and shrinkage of whole sample covariances, against populations that were planted."""

import numpy as np
import pytest

import bulkedge as be

DIM = 80
RANDOM = np.arange(DIM)
POPULATIONS = {
    "identity": np.ones(DIM),
    "two": np.repeat([1.0, 5.0], DIM // 2),
    "ramp": np.linspace(1.0, 10.0, DIM),
    "spikes": np.append(np.ones(DIM - 3), [10.0, 14.0, 20.0]),
    "decay": np.linalg.eigvalsh(0.6 ** np.abs(np.subtract.outer(RANDOM, RANDOM))),
}


def drawn(name, ratio, rng):
    """Sample eigenvalues, and the oracle: what the population has along each eigenvector."""
    population, samples = POPULATIONS[name], round(DIM / ratio)
    data = rng.standard_normal((samples, DIM)) * np.sqrt(population)
    values, vectors = np.linalg.eigh(data.T @ data / samples)
    values[: max(DIM - samples, 0)] = 0
    return values, (vectors**2 * population[:, None]).sum(axis=0)


def linear(values, ratio):
    """The best linear shrinkage of this very draw would need the oracle; this is the one for the mean squares."""
    mean = values.mean()
    spread = max((values**2).mean() - mean**2 * (1 + ratio), 0) / ((values**2).mean() - mean**2)
    return mean + spread * (values - mean)


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_loss_beyond_the_oracle_is_small(name, ratio):
    """Eight draws. Linear shrinkage never has a loss smaller by a fifth and two standard errors, nor has the sample."""
    rng, losses = np.random.default_rng(1), []
    for _ in range(8):
        values, oracle = drawn(name, ratio, rng)
        estimates = be.shrink_spectrum(values, ratio), linear(values, ratio), values
        losses.append([np.sum((each - oracle) ** 2) for each in estimates])
        assert estimates[0].mean() == pytest.approx(values.mean())
        assert np.all(estimates[0] > 0)
        assert np.all(np.diff(estimates[0]) > -1e-9 * values[-1])
    ours, others = np.array(losses)[:, :1], np.array(losses)[:, 1:]
    difference = ours - 1.2 * others
    assert np.all(difference.mean(axis=0) < 2 * difference.std(axis=0) / np.sqrt(7))
    if name in {"two", "spikes"} and ratio <= 1:
        assert ours.mean() < 0.6 * others.mean(axis=0).min()


def test_the_order_of_values_does_not_matter():
    rng = np.random.default_rng(2)
    values, _ = drawn("two", 0.5, rng)
    order = rng.permutation(DIM)
    np.testing.assert_allclose(be.shrink_spectrum(values[order], 0.5), be.shrink_spectrum(values, 0.5)[order])
    scaled = be.shrink_spectrum(2.0**20 * values, 0.5)
    np.testing.assert_allclose(scaled, 2.0**20 * be.shrink_spectrum(values, 0.5), rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "ratio"), [("two", 0.2), ("two", 1.0), ("ramp", 0.5), ("spikes", 0.5), ("decay", 2.0)]
)
def test_populations_are_found_within_their_error(name, ratio):
    """Wasserstein distances to what was planted, over the errors stated: near one, and twice at most in the mean."""
    rng, shares, quotients = np.random.default_rng(3), (np.arange(1000) + 0.5) / 1000, []
    truth = np.quantile(POPULATIONS[name], shares, method="inverted_cdf")
    for _ in range(5):
        found = be.free_deconvolve(drawn(name, ratio, rng)[0], ratio)
        quotients.append(np.abs(found.law.ppf(shares) - truth).mean() / found.error)
        assert found.error < 0.5 * truth.mean()
        assert found.p_value > 0.001
    assert 0.4 < np.mean(quotients) < 2


def test_many_samples_tell_the_population():
    """Ten thousand samples of eighty dimensions: both atoms to 2 %."""
    found = be.free_deconvolve(drawn("two", 0.008, np.random.default_rng(4))[0], 0.008)
    assert found.error < 0.05
    np.testing.assert_allclose(found.law.ppf([0.25, 0.75]), [1.0, 5.0], rtol=0.05)
    assert found.law.cdf(2.5) == pytest.approx(0.5, abs=0.01)


def test_a_wrong_ratio_is_unresolved():
    values, _ = drawn("identity", 0.5, np.random.default_rng(5))
    with pytest.raises(be.UnresolvedError, match="no population explains"):
        be.free_deconvolve(values, 0.95)


def test_what_is_refused():
    values, _ = drawn("identity", 0.5, np.random.default_rng(6))
    for message, bad, ratio in (
        ("10 eigenvalues", values[:5], 0.5),
        ("not negative", values - 1, 0.5),
        ("50% of the values are zero, and 0% at ratio = 0.5", np.append(np.zeros(DIM), values), 0.5),
        ("0% of the values are zero, and 50% at ratio = 2", values, 2.0),
        ("ratio", values, -1.0),
        ("values", np.full(20, np.nan), 0.5),
        ("values go from", np.zeros(20), 0.5),
    ):
        for function in (be.shrink_spectrum, be.free_deconvolve):
            with pytest.raises(be.DomainError, match=message):
                function(bad, ratio)


def test_the_estimator_is_one_of_scikit_learn():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.utils.estimator_checks import check_estimator

    from bulkedge.inference.estimator import CovarianceShrinker

    checks = check_estimator(CovarianceShrinker(), on_skip=None)
    assert len(checks) > 30
    rng = np.random.default_rng(7)
    population = POPULATIONS["two"]
    data = 3.0 + rng.standard_normal((60, DIM)) * np.sqrt(population)
    found = CovarianceShrinker().fit(data)
    error = np.linalg.norm(found.covariance_ - np.diag(population))
    assert error < 0.7 * np.linalg.norm(np.cov(data.T) - np.diag(population))
    np.testing.assert_allclose(found.covariance_ @ found.precision_, np.eye(DIM), atol=1e-8)
    np.testing.assert_allclose(found.inverse_transform(found.transform(data)), data, rtol=1e-8)
    values = np.linalg.eigvalsh(np.cov(data.T))
    values[: DIM - 59] = 0
    # values of two decompositions, whose rounding the fit of the population magnifies
    np.testing.assert_allclose(np.sort(found.explained_variance_), be.shrink_spectrum(values, DIM / 59), rtol=1e-4)


def test_single_precision_leaves_a_kernel():
    """Zeros of eigenvalues of fewer samples than dimensions are 1e-7 in single precision, of either sign."""
    data = np.random.default_rng(77).standard_normal((60, 100)) * np.repeat([1.0, 2.0], 50)
    sample = data.T @ data / 60
    exact, rounded = (np.linalg.eigvalsh(sample.astype(kind)) for kind in (float, np.float32))
    shrunk = be.shrink_spectrum(exact, 5 / 3)
    assert np.allclose(be.shrink_spectrum(rounded, 5 / 3), shrunk, rtol=1e-4)


def test_constant_and_repeated_features_are_left_out():
    estimator = pytest.importorskip("bulkedge.inference.estimator").CovarianceShrinker()
    data = np.random.default_rng(5).standard_normal((90, 60)) * np.repeat([1.0, 2.0], 30)
    alone = estimator.fit(data).covariance_
    found = estimator.fit(np.hstack([data, np.full((90, 5), 3.0)])).covariance_
    assert np.allclose(found[:60, :60], alone, atol=1e-10)
    assert np.abs(found[60:]).max() < 1e-12
    twice = estimator.fit(np.hstack([data, data[:, :5]])).covariance_[:60, :60]
    truth = np.diag(np.repeat([1.0, 4.0], 30))
    assert np.linalg.norm(twice - truth) < 0.6 * np.linalg.norm(np.cov(data.T) - truth)
