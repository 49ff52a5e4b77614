"""The finite-head law: its coefficients against fifty digits, its engine against the sum law, its limits."""

from math import comb

import mpmath as mp
import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.attention.finite_head import (
    cosine_quadrature,
    harmonics,
    log_coefficients,
    log_harmonics,
    norm_quadrature,
)
from bulkedge.laws.engine.profiles import Profile, ProfiledSum
from bulkedge.laws.engine.subordination.bulk import bulk_of
from bulkedge.laws.law import Law


@pytest.mark.parametrize(("dim", "kappa"), [(2, 1.4), (3, 0.01), (64, 8.0), (1000, 31.0), (4096, 192.0)])
def test_coefficients_against_bessel_functions(dim, kappa):
    """Up to 4096 dimensions, where the Bessel functions are zero in double precision; absolute error of logarithms."""
    with mp.workdps(50):
        order = mp.mpf(dim) / 2 - 1
        scale = mp.gamma(order + 1) * (2 / mp.mpf(kappa)) ** order
        exact = [float(mp.log(mp.besseli(order + k, kappa) * scale)) for k in range(7)]
    assert log_coefficients(dim, np.array([kappa]), 6)[:, 0] == pytest.approx(exact, abs=2e-13)


@pytest.mark.parametrize("dim", [2, 3, 16, 64])
def test_harmonics(dim):
    """Their number, their norm ``1/N_k``, and that they take the exponential apart."""
    number = [comb(dim + k - 1, k) - (comb(dim + k - 3, k - 2) if k > 1 else 0) for k in range(9)]
    assert np.exp(log_harmonics(dim, 8)) == pytest.approx(number, rel=1e-12)
    cosine, mass = cosine_quadrature(dim, 300)
    basis = harmonics(dim, 8, cosine)
    assert (basis * mass) @ basis.T == pytest.approx(np.diag(1 / np.array(number)), abs=1e-13)
    kappa = 2.0
    assert (basis * mass) @ np.exp(kappa * cosine) == pytest.approx(
        np.exp(log_coefficients(dim, np.array([kappa]), 8)[:, 0]), abs=1e-13
    )


def test_norms_have_the_moments_of_a_chi_law():
    """The nodes leave out less than one token in 10**6 at either end; the moments see that at 1e-5."""
    norms, weights = norm_quadrature(64, 10**6, 16)
    assert weights @ norms**2 == pytest.approx(1.0, abs=1e-5)
    assert weights @ norms**4 == pytest.approx(1 + 2 / 64, abs=1e-4)


class Flat(Law):
    atoms = ()
    unit = be.Unit.SQUARED

    def __init__(self, variances, ratios):
        profile = Profile(np.array([0.3, 0.7]), np.ones((len(variances), 2)))
        self.operation = ProfiledSum(np.array(variances), np.array(ratios), profile, profile)

    def _bulk(self):
        return bulk_of(self.operation, ())


@pytest.mark.parametrize(
    ("variances", "ratios"),
    [((1.0, 0.7), (1.0, np.inf)), ((1.0, 0.1), (0.3, np.inf)), ((1.0, 0.5, 0.2), (0.03, 1.0, np.inf))],
)
def test_without_profile_the_engine_gives_the_sum_law(variances, ratios):
    law, exact = Flat(variances, ratios), be.SumLaw(variances, ratios).squared()
    assert np.array(law.support) == pytest.approx(np.array(exact.support), rel=1e-12)
    x = exact.ppf(np.linspace(0.01, 0.99, 25))
    assert law.pdf(x) == pytest.approx(exact.pdf(x), rel=1e-11)


def test_two_sizes_of_rows_against_a_simulation():
    """Rows of variance 1/2 and 3/2, columns of variance 2/3 and 4/3: noise alone, 800 rows; rigid, so 8/n."""
    weights = np.full(2, 0.5)
    rows, columns = np.array([0.5, 1.5]), np.array([2.0, 4.0]) / 3

    class Noise(Flat):
        def __init__(self):
            self.operation = ProfiledSum(
                np.ones(1), np.array([np.inf]), Profile(weights, rows[None]), Profile(weights, columns[None])
            )

    n = 800
    noise = np.random.default_rng(0).standard_normal((n, n))
    matrix = np.sqrt(np.repeat(rows, n // 2))[:, None] * noise * np.sqrt(np.repeat(columns, n // 2)) / np.sqrt(n)
    assert be.compare(be.spectrum(matrix).squared(), Noise()).ks < 8 / n


@pytest.mark.filterwarnings("ignore::bulkedge.support.errors.RegimeWarning")
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("beta", [0.01, 1.0, 3.0])
def test_mass(beta, qk_norm):
    law = be.FiniteHeadLaw(beta, 64, 2048, qk_norm)
    assert law.cdf(law.edge) == pytest.approx(1.0, abs=1e-10)


def test_at_many_dimensions_it_is_the_law_of_the_proportional_regime():
    """They differ by the shrinkage and the higher degrees, both of order 1/d: extrapolated, by the square of that.

    At a beta where no entry is large: those fade more slowly.
    """
    near, far = (
        be.FiniteHeadLaw(0.3, d, d, qk_norm=True).edge / be.AttentionLaw(0.3, 1.0).edge - 1 for d in (4096, 1024)
    )
    assert far / near == pytest.approx(4.0, rel=0.1)
    assert (4 * near - far) / 3 == pytest.approx(0.0, abs=far**2)


def test_orthonormal_tokens_give_the_law_of_the_paper():
    law, exact = be.CorrelatedAttentionLaw(1.0, 0.5, be.EmpiricalLaw([1.0])), be.AttentionLaw(1.0, 0.5)
    x = exact.ppf(np.linspace(0.01, 0.99, 25))
    assert law.pdf(x) == pytest.approx(exact.pdf(x), rel=1e-11)
    with pytest.raises(ValueError, match="must be a law on"):
        be.CorrelatedAttentionLaw(1.0, 0.5, be.MarchenkoPastur(0.5, 2.0))
    with pytest.raises(ValueError, match="gram = 3 is outside its domain objects of class Law"):
        be.CorrelatedAttentionLaw(1.0, 0.5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 64, 2048), "beta = 0.0 is outside"),
        ((1.0, 1, 2048), "head_dim = 1 is outside"),
        ((1.0, 8, 2048), "head_dim = 8 is outside its domain without qk_norm: at least 32"),
        ((1.0, 32, 10**8), "tokens = 100000000 is outside its domain: at most 1e6"),
    ],
)
def test_domains(arguments, message):
    with pytest.raises(ValueError, match=message):
        be.FiniteHeadLaw(*arguments)
