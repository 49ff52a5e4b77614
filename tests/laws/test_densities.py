"""Densities that are written out with special functions, as ``scipy.stats`` takes half a second to import.

Both sides are exponentials of sums whose terms reach 1e4, of which double precision leaves 1e4 * 2e-16 = 2e-12.
"""

import numpy as np
import pytest
from scipy.stats import chi2, norm, poisson

import bulkedge as be
from bulkedge.laws.attention.finite_head import heavy_share, norm_quadrature
from bulkedge.programs.mixture import HeadMixture

ROUNDING = 2e-12


@pytest.mark.parametrize("rate", [1e-3, 0.3, 1.0, 7.7, 123.4, 1e3])
def test_poisson(rate):
    counts, masses = np.array(be.PoissonLaw(rate=rate).atoms).T
    np.testing.assert_allclose(masses, poisson.pmf(counts, rate), rtol=ROUNDING)


@pytest.mark.parametrize("dim", [2, 32, 128, 1000])
@pytest.mark.parametrize("tokens", [16, 4096, 10**6])
def test_norms_of_gaussian_vectors(dim, tokens):
    norms, mass = norm_quadrature(dim, tokens, 24)
    nodes, weights = np.polynomial.legendre.leggauss(24)
    low, high = np.sqrt(chi2.ppf([0.5 / tokens, 1 - 0.5 / tokens], dim) / dim)
    np.testing.assert_allclose(norms, (low + high) / 2 + (high - low) / 2 * nodes, rtol=1e-14)
    expected = weights * norms * chi2.pdf(dim * norms**2, dim)
    np.testing.assert_allclose(mass, expected / expected.sum(), rtol=ROUNDING)


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("tokens", [1, 512, 1e6])
def test_heavy_share(beta, tokens):
    variance = np.expm1(beta**2)
    cut = (np.log1p(np.sqrt(variance * tokens)) + beta**2 / 2) / beta
    above = np.exp(beta**2) * norm.sf(cut - 2 * beta) - 2 * norm.sf(cut - beta) + norm.sf(cut)
    assert heavy_share(beta, tokens) == pytest.approx(above / variance, rel=1e-14)


@pytest.mark.parametrize("x", [-3.0, 0.0, 0.7, 10.0, 30.0])
def test_the_gaussian_tail_of_a_mixture(x):
    mixture = HeadMixture(np.eye(3), heads=2)
    assert mixture.gaussian_sf(x) == pytest.approx(norm.sf(x / mixture.variance() ** 0.5), rel=1e-14)
