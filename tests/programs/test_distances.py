"""Distances between draws, against closed forms and brute force."""

import numpy as np
import pytest
from scipy.stats import gaussian_kde, wasserstein_distance

from bulkedge.programs.distances import (
    energy_distance,
    estimate,
    kl_divergence,
    sliced_wasserstein,
    two_sample_test,
)


def pairwise(x, y):
    return np.linalg.norm(x[:, None] - y[None, :], axis=-1)


def brute_energy(x, y):
    n, m = len(x), len(y)
    return 2 * pairwise(x, y).mean() - pairwise(x, x).sum() / (n * (n - 1)) - pairwise(y, y).sum() / (m * (m - 1))


def test_energy_distance_of_numbers_is_the_sum_over_pairs():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(300), 0.3 + rng.standard_normal(200)
    assert energy_distance(x, y) == pytest.approx(brute_energy(x[:, None], y[:, None]), abs=1e-12)


def test_energy_distance_of_vectors_tends_to_the_sum_over_pairs():
    """Twenty thousand directions: the mean over the sphere to within one in a hundred."""
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((100, 3)), 1 + rng.standard_normal((80, 3))
    assert energy_distance(x, y, directions=20_000) == pytest.approx(brute_energy(x, y), rel=0.01)


def test_wasserstein_of_numbers():
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal(500), 0.5 + rng.standard_normal(500)
    assert sliced_wasserstein(x, y) == pytest.approx(wasserstein_distance(x, y), rel=0.01)


def test_divergence_of_two_gaussians():
    """Closed form; bandwidths blur both by about two in a hundred, and the draws are half a million."""
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal(500_000), 1.5 * rng.standard_normal(500_000)
    exact = np.log(1.5) + 1 / (2 * 1.5**2) - 0.5
    assert kl_divergence(x, y) == pytest.approx(exact, rel=0.03)
    assert abs(kl_divergence(x, rng.standard_normal(500_000))) < 2e-4


def test_kernel_density_on_a_grid_is_that_of_scipy():
    from bulkedge.programs.distances import _kernel_density

    draws = np.random.default_rng(4).standard_normal(2000)
    grid = np.linspace(-5, 5, 2048)
    assert _kernel_density(draws, grid)[0] == pytest.approx(gaussian_kde(draws)(grid), abs=1e-4)


def test_bootstrap_error_is_the_scatter_of_the_distance():
    """Forty pairs of sets; the scatter itself is known to one in nine, and the bootstrap is not exact: a factor 1.6."""
    rng = np.random.default_rng(5)
    pairs = [(rng.standard_normal(400), 0.5 + rng.standard_normal(400)) for _ in range(40)]
    scatter = np.std([energy_distance(x, y) for x, y in pairs], ddof=1)
    error = np.mean([estimate(energy_distance, x, y, rng, resamples=20).error for x, y in pairs[:10]])
    assert scatter / 1.6 < error < 1.6 * scatter


def test_the_test_has_its_level_and_some_power():
    """Eighty tests at level one in five under one law: binomial, within four standard deviations."""
    rng = np.random.default_rng(6)
    rejected = sum(
        two_sample_test(rng.standard_normal(60), rng.standard_normal(50), rng, permutations=49) <= 0.2
        for _ in range(80)
    )
    assert abs(rejected - 16) < 4 * np.sqrt(80 * 0.2 * 0.8)
    assert two_sample_test(rng.standard_normal(500), 1 + rng.standard_normal(500), rng, permutations=99) == 0.01


def test_bad_draws():
    rng = np.random.default_rng(0)
    for bad in ([1.0], [1.0, np.nan], np.zeros((2, 2, 2))):
        with pytest.raises(ValueError, match="first"):
            energy_distance(bad, [1.0, 2.0])
    with pytest.raises(ValueError, match="resamples = 1 is outside"):
        estimate(energy_distance, [1.0, 2.0], [1.0, 2.0], rng, resamples=1)
    with pytest.raises(ValueError, match="permutations = 0 is outside"):
        two_sample_test([1.0, 2.0], [1.0, 2.0], rng, permutations=0)
