"""Parts of the laws of heads against their definitions: popularity and features."""

import numpy as np
import pytest
from numpy.polynomial import hermite_e

from bulkedge.heads import Channel
from bulkedge.heads.channel.popularity import forms, own_forms
from bulkedge.heads.law.channel_cdf import FAR, LARGEST, Expander, MultiIndices, Tokens, _factor, _hermite, _moments


def test_forms_of_popularity_by_quadrature():
    """``x = exp(sum a u y - a**2 u**2/2)`` over Gaussian rows: log E x; mean and variance of log x with weight x."""
    rng = np.random.default_rng(0)
    couplings, mean, keys = rng.uniform(0.2, 2.0, 3), rng.standard_normal(3), 2 * rng.standard_normal((7, 3))
    channel = Channel(couplings, mean)
    found = forms(keys, own_forms(channel.couplings, channel.drift))
    u = np.linspace(-14, 14, 4001)
    log = channel.couplings * keys[..., None, :] * u[:, None] - (channel.couplings * u[:, None]) ** 2 / 2
    weight = np.exp(log - (u[:, None] - mean) ** 2 / 2)
    total = weight.sum(axis=1)
    level = (weight * log).sum(axis=1) / total
    variance = (weight * (log - level[:, None]) ** 2).sum(axis=1) / total
    first = np.log(total * (u[1] - u[0]) / np.sqrt(2 * np.pi))
    assert found == pytest.approx(np.stack([each.sum(axis=-1) for each in (first, level, variance)], axis=-1), rel=1e-9)


def test_hermite_polynomials_are_those_of_numpy():
    points = np.random.default_rng(1).standard_normal((3, 2))
    found = _hermite(points, 9)
    size = 1.0
    for n in range(10):
        size *= max(n, 1) ** 0.5
        assert found[n] == pytest.approx(hermite_e.hermeval(points, np.eye(10)[n]) / size, rel=1e-10)
    assert _hermite(points, 0).shape == (1, 3, 2)


def test_features_are_products_of_polynomials():
    ratios = np.array([0.8, 0.6, 0.3])
    indices = MultiIndices.largest(ratios, 40)
    points, factor = np.random.default_rng(2).standard_normal((5, 3)), np.arange(1.0, 6.0)
    exponents = np.zeros((40, 3), dtype=int)
    for n in range(1, 40):
        exponents[n] = exponents[indices.base[n]]
        exponents[n, indices.direction[n]] = indices.degree[n]
    table = _hermite(points, 40)
    expected = [factor * np.prod([table[k, :, j] for j, k in enumerate(each)], axis=0) for each in exponents]
    assert indices.features(points, factor) == pytest.approx(np.array(expected), rel=1e-10)
    # ratios that vanish make no terms, and without any there is number 0 alone
    assert set(MultiIndices.largest(np.array([0.5, 1e-13]), 6).direction.tolist()) == {-1, 0}
    assert MultiIndices.largest(np.array([1e-13]), 6).products.tolist() == [1.0]


def test_weighted_moments():
    """The covariance of weighted tokens is the square of the root, whose inverse leaves out what tokens do not have."""
    rng = np.random.default_rng(3)
    vectors, weights = rng.standard_normal((30, 4)) @ np.diag([2.0, 1.0, 0.3, 0.0]), rng.exponential(size=30)
    mean, root, inverse = _moments(vectors, weights)
    assert mean == pytest.approx(np.average(vectors, axis=0, weights=weights))
    covariance = np.cov(vectors.T, aweights=weights, ddof=0)
    assert root @ root == pytest.approx(covariance, abs=1e-12)
    assert inverse == pytest.approx(np.linalg.pinv(root, rcond=1e-6), abs=1e-10)
    # first direction kept, and first left out: 1e-10 of the largest variance
    for small, rank in ((1.1e-5, 2), (0.9e-5, 1)):
        pair = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, small], [0.0, -small]])
        assert np.linalg.matrix_rank(_moments(pair, np.ones(4)).inverse, tol=1e-3) == rank


def test_tokens_too_far_out_have_no_factor():
    logs = np.array([-3.0, np.nextafter(LARGEST, 0), LARGEST, 1e4, 0.0])
    found = _factor(logs, np.array([True, True, True, True, False]))
    assert found == pytest.approx([np.exp(-3), np.exp(LARGEST), 0, 0, 0])


def far_out(deviations):
    """Queries of one token far from thousands of equal pairs, in units of their deviation."""
    many = 100_000.0
    vectors = np.array([[1.0], [-1.0], [deviations]])
    weights = np.array([many, many, 1e-9])
    return Expander(Tokens(vectors, np.ones(3), np.zeros(3)), Tokens(0.01 * vectors, np.ones(3), np.zeros(3)), 5)(
        weights, weights
    )


def test_the_first_token_that_is_too_far_out():
    assert far_out(0.999 * FAR).rows[0].all()
    assert far_out(1.001 * FAR).rows[0].tolist()[2] == 0
    assert far_out(-1.001 * FAR).columns[0].tolist()[2] == 0


def test_factors_of_large_logarithms_are_shared_between_the_sides():
    """Rows times exp(250) and columns over it are the same matrix: no token is too large, and few terms make it."""
    rng = np.random.default_rng(4)
    query, key = 0.5 * rng.standard_normal((2, 20, 1))
    sides = [Tokens(each, np.ones(20), np.full(20, log)) for each, log in ((query, 250.0), (key, -250.0))]
    whole = np.exp(query @ key.T)
    for left, right in (sides, [Tokens(each.vectors, each.counts, -each.logs) for each in sides]):
        found = Expander(left, right, 30)(np.ones(20), np.ones(20))
        assert np.abs(found.rest / whole).max() < 1e-9
        assert found.rows[0].max() == pytest.approx(found.columns[0].max())


def test_multi_indices_are_kept_while_ratios_are_similar():
    """A tenth of each ratio and a hundredth of the largest; products are those of the ratios at hand."""
    sides = [Tokens(np.zeros((2, 2)), np.ones(2), np.zeros(2)) for _ in "qk"]
    expander = Expander(*sides, 12)
    expander._choose(np.array([0.5, 0.2]))
    kept = expander._indices
    expander._choose(np.array([0.5, 0.2249]))  # 0.02 + 0.005
    assert expander._indices is kept
    expander._choose(np.array([0.5, 0.1751]))
    assert expander._indices is kept
    exponents = np.zeros((12, 2), dtype=int)
    for n in range(1, 12):
        exponents[n] = exponents[kept.base[n]]
        exponents[n, kept.direction[n]] = kept.degree[n]
    other = np.array([0.51, 0.19])
    assert expander._powers(other) == pytest.approx(np.prod(other**exponents, axis=1))
    expander._choose(np.array([0.5, 0.2251]))
    assert expander._indices is not kept
