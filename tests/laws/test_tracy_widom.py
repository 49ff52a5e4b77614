"""Tracy-Widom laws against published values and independent determinants.

References: mean, variance, skewness and kurtosis from Bornemann (2010); cdf values from fifty-digit Fredholm
determinants computed here with a different kernel (the Airy kernel for beta = 2) and more nodes.
"""

import mpmath as mp
import numpy as np
import pytest

import bulkedge as be

MOMENTS = {1: (-1.2065335745820, 1.6077810345810), 2: (-1.7710868074116, 0.8131947928329)}


def airy_determinant(s, order=60):
    """det(1 - K_Ai) on (s, inf), by Gauss-Legendre on (s, s + 16)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    x = [mp.mpf(s) + 8 * (1 + mp.mpf(float(t))) for t in nodes]
    w = [mp.sqrt(8 * mp.mpf(float(v))) for v in weights]
    ai, slope = [mp.airyai(t) for t in x], [mp.airyai(t, derivative=1) for t in x]

    def kernel(i, j):
        if i == j:
            return slope[i] ** 2 - x[i] * ai[i] ** 2
        return (ai[i] * slope[j] - slope[i] * ai[j]) / (x[i] - x[j])

    matrix = mp.matrix(order, order)
    for i in range(order):
        for j in range(order):
            matrix[i, j] = (i == j) - w[i] * kernel(i, j) * w[j]
    return float(mp.det(matrix))


@pytest.mark.parametrize("s", [-5.0, -3.2, -1.0, 0.5, 2.0])
def test_cdf_against_airy_determinant(s):
    # the nodes above are double precision, which limits the reference to about 1e-14
    assert be.TracyWidom(2).cdf(s) == pytest.approx(airy_determinant(s), abs=1e-12)


@pytest.mark.parametrize(
    ("beta", "s", "value"),
    [(1, -2.0, 0.27432019790921786), (2, -2.0, 0.41322414250512255), (4, 0.0, 0.99857419735816854)],
)
def test_cdf_against_fifty_digit_values(beta, s, value):
    assert be.TracyWidom(beta).cdf(s) == pytest.approx(value, abs=1e-13)


@pytest.mark.parametrize("beta", [1, 2])
def test_moments(beta):
    law = be.TracyWidom(beta)
    assert (law.mean(), law.var()) == pytest.approx(MOMENTS[beta], abs=1e-11)


@pytest.mark.parametrize("beta", [1, 2, 4])
def test_routes_agree(beta):
    law = be.TracyWidom(beta)
    q = np.array([1e-12, 1e-6, 0.01, 0.5, 0.99])
    assert np.allclose(law.cdf(law.ppf(q)), q, rtol=1e-11)
    tail = np.array([1e-200, 1e-10, 0.01, 0.5])
    assert np.allclose(law.sf(law.isf(tail)), tail, rtol=1e-11)
    s = np.linspace(-6, 4, 41)
    step = 1e-5
    slope = (law.cdf(s + step) - law.cdf(s - step)) / (2 * step)
    assert np.allclose(law.pdf(s), slope, atol=1e-9)
    assert np.allclose(law.cdf(s) + law.sf(s), 1, atol=1e-15)
    draws = law.rvs(20000, np.random.default_rng(0))
    assert abs(draws.mean() - law.mean()) < 5 * np.sqrt(law.var() / 20000)


@pytest.mark.parametrize("beta", [1, 2, 4])
def test_odd_arguments(beta):
    law = be.TracyWidom(beta)
    assert (law.cdf(-np.inf), law.cdf(np.inf)) == (0, 1)
    assert np.isnan(law.cdf(np.nan))
    assert np.all(np.isnan(law.ppf([-0.1, 1.1])))
    assert law.cdf([]).shape == (0,)


def test_dyson_index_is_checked():
    with pytest.raises(ValueError, match=r"dyson = 3 is outside its domain \{1, 2, 4\}"):
        be.TracyWidom(3)


@pytest.mark.parametrize(("beta", "variance_of_diagonal"), [(1, 2.0), (2, 1.0), (4, 0.5)])
def test_largest_eigenvalue_of_the_gaussian_ensembles(beta, variance_of_diagonal):
    """The convention at beta = 4 in particular: the tridiagonal ensemble of Dumitriu and Edelman, 4000 draws."""
    from scipy.linalg import eigh_tridiagonal

    n, corner, draws = 10**5, 400, 2000
    rng = np.random.default_rng(beta)
    tops = []
    for _ in range(draws):
        main = rng.normal(scale=np.sqrt(variance_of_diagonal / n), size=corner)
        off = np.sqrt(rng.chisquare(beta * (n - 1 - np.arange(corner - 1))) / (beta * n))
        tops.append(
            eigh_tridiagonal(main, off, eigvals_only=True, select="i", select_range=(corner - 1, corner - 1))[0]
        )
    scaled = n ** (2 / 3) * (np.array(tops) - 2)
    law = be.TracyWidom(beta)
    assert abs(scaled.mean() - law.mean()) < 4 * np.sqrt(law.var() / draws) + 0.01
    assert scaled.var() == pytest.approx(law.var(), rel=0.15)
