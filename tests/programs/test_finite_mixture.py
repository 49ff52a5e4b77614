"""The law of a coordinate at finite width: against Bessel functions, other quadratures and draws."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, kv, ndtr
from scipy.stats import chi2

from bulkedge.programs import FiniteMixture, HeadMixture, attention_layer, equal_correlations
from bulkedge.programs.mixture import compress

GRAM = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, -0.3], [0.2, -0.3, 1.4]])


def variance_gamma(x, dim):
    """Density of a standard Gaussian times the root of an independent ``chi**2/dim``: a Bessel function."""
    order, z = (dim - 1) / 2, np.abs(x) * dim**0.5
    log = np.log(dim) / 2 - np.log(np.pi) / 2 - gammaln(dim / 2) - order * np.log(2)
    return np.exp(log) * z**order * kv(order, z)


@pytest.mark.parametrize(("heads", "dim"), [(1, 4), (1, 5), (1, 33), (2, 3), (4, 2), (3, 16)])
def test_one_input_is_a_variance_gamma_law(heads, dim):
    """With one input there is nothing to attend to, and H heads of d dimensions are one of H d."""
    law = FiniteMixture(HeadMixture(np.eye(1), heads), dim)
    x = np.array([0.01, 0.3, 1.0, 2.5, 4.0])
    assert law.pdf(x) == pytest.approx(variance_gamma(x, heads * dim), abs=1e-12)
    tail = quad(variance_gamma, 1.5, np.inf, args=(heads * dim,), epsabs=1e-13)[0]
    assert float(law.sf(1.5)) == pytest.approx(tail, abs=1e-12)
    assert law.variance() == pytest.approx(1)
    assert law.excess_kurtosis() == pytest.approx(6 / (heads * dim))


def test_with_many_heads_tails_are_right_to_rounding():
    """At six deviations, where a Gaussian's tail is 1e-9; an error of 1e-10 there would be seen in figures."""
    law = FiniteMixture(HeadMixture(np.eye(1), 16), 16)
    for x in (3.0, 6.0):
        beyond = quad(lambda r, x=x: ndtr(-x / r**0.5) * 256 * chi2.pdf(256 * r, 256), 0.3, 3, epsabs=1e-16)[0]
        assert float(law.sf(x)) == pytest.approx(beyond, abs=2e-14)


def test_with_one_head_the_far_tail_is_right_in_relative_terms():
    law = FiniteMixture(HeadMixture(np.eye(1)), 4)
    assert law.pdf(12.0) == pytest.approx(variance_gamma(12.0, 4), rel=1e-8)


@pytest.mark.parametrize(("heads", "dim"), [(1, 4), (1, 64), (2, 8)])
def test_mass_and_moments(heads, dim):
    """Moments of the density by integration: one, the variance, and the kurtosis that is known otherwise."""
    law = FiniteMixture(HeadMixture(GRAM, heads, 1, 3.0), dim)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    x, w = 15 * (nodes + 1), 30 * weights
    zeroth, second, fourth = (w @ (law.pdf(x) * x**k) for k in (0, 2, 4))
    assert zeroth == pytest.approx(1, abs=1e-7)
    assert second == pytest.approx(law.variance(), rel=1e-6)
    assert fourth / second**2 - 3 == pytest.approx(law.excess_kurtosis(), abs=1e-4)
    assert law.characteristic(np.zeros(3)) == pytest.approx(np.ones(3))


@pytest.mark.parametrize("heads", [1, 3])
def test_wide_heads_are_the_limit(heads):
    limit = HeadMixture(GRAM, heads, 2, 2.0)
    x = np.linspace(0, 4, 9)
    apart = [np.abs(FiniteMixture(limit, dim).pdf(x) - limit.pdf(x)).max() for dim in (500, 1000)]
    assert apart[0] / apart[1] == pytest.approx(2, abs=0.05)  # the correction is of order 1/d
    assert apart[1] < 2e-3


def test_draws_of_the_layer():
    """Tail, and characteristic function, of 200 thousand coordinates at width 6: five standard errors."""
    law = FiniteMixture(HeadMixture(GRAM, 2, 0, 2.0), 6)
    y = attention_layer(GRAM, 2, score_variance=2.0).finite(6, np.random.default_rng(290), 200_000)[:, 0]
    for found, expected in ((y > 1.5, law.sf(1.5)), (np.cos(2 * y), law.characteristic(2.0)), (y**2, law.variance())):
        assert abs(found.mean() - expected) < 5 * found.std() / len(y) ** 0.5


def test_too_few_dimensions_are_refused():
    with pytest.raises(ValueError, match="1 heads of head_dim = 3: the law is resolved from 4 dimensions on"):
        FiniteMixture(HeadMixture(equal_correlations(2)), 3)


def test_compressed_laws_have_the_moments():
    rng = np.random.default_rng(291)
    values, weights = rng.uniform(0.2, 1, 500), rng.dirichlet(np.ones(500))
    fewer, kept = compress(values, weights, 10)
    assert len(fewer) == 10
    for power in range(20):
        assert kept @ fewer**power == pytest.approx(weights @ values**power, rel=1e-10)
    same, all_of_it = compress(values[:5], weights[:5], 10)
    assert np.array_equal(same, values[:5])
    assert np.array_equal(all_of_it, weights[:5])
