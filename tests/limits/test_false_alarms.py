"""False-alarm rates: of ``finite_edge`` over sizes, by the forms of Dumitriu and Edelman, and of the nulls."""

import numpy as np
import pytest
from scipy.linalg import eigvalsh_tridiagonal

import bulkedge as be

DRAWS = 20_000


def wigner_tops(n, rng):
    """Largest eigenvalues of Gaussian orthogonal matrices."""
    for _ in range(DRAWS):
        main = rng.normal(scale=np.sqrt(2 / n), size=n)
        off = np.sqrt(rng.chisquare(np.arange(n - 1, 0, -1)) / n)
        yield eigvalsh_tridiagonal(main, off, select="i", select_range=(n - 1, n - 1))[0]


def wishart_tops(n, rng):
    """Largest eigenvalues of sample covariances of twice as many samples as dimensions, ``B B'`` with B bidiagonal."""
    for _ in range(DRAWS):
        main = rng.chisquare(2 * n - np.arange(n))
        below = rng.chisquare(n - 1 - np.arange(n - 1))
        diagonal = (main + np.append(0.0, below)) / (2 * n)
        off = np.sqrt(main[:-1] * below) / (2 * n)
        yield eigvalsh_tridiagonal(diagonal, off, select="i", select_range=(n - 1, n - 1))[0]


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize(
    ("law", "tops"),
    [(be.Semicircle(), wigner_tops), (be.MarchenkoPastur(0.5), wishart_tops)],
    ids=["wigner", "wishart"],
)
def test_false_alarms_stay_below_the_level(law, tops, n):
    """Corrections of order n**(-1/3) make alarms rarer; four standard errors of 20000 draws are allowed above."""
    largest = np.fromiter(tops(n, np.random.default_rng(n)), float)
    for level in (0.05, 0.01):
        rate = np.mean(largest > law.finite_edge(n, level))
        assert 0.5 * level < rate < level + 4 * np.sqrt(level / DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "size"),
    [
        (be.Wigner(20), 20),
        (be.Wishart(20, 20), 20),
        (be.Wishart(5, 500), 5),
        (be.GaussianProduct(40, (1.0, 1.0)), 40),
        (be.GaussianProduct(60, (5.0, 0.2)), 60),
        (be.GaussianSum(60, (1.0, 1.0), (0.2, np.inf)), 60),
        (be.GaussianSum(60, (1.0, 0.5), (0.5, 0.3)), 60),
    ],
    ids=repr,
)
def test_laws_that_null_of_takes_are_calibrated(model, size):
    """At the smallest sizes that it takes as laws: 5000 draws, four standard errors above the level."""
    null, rng = be.null_of(model, size), np.random.default_rng(7)
    assert isinstance(null, be.LawNull)
    p = np.array([null.p_value(model.spectrum(rng)).value for _ in range(5000)])
    for level in (0.1, 0.05, 0.01):
        assert 0.4 * level < np.mean(p < level) < level + 4 * np.sqrt(level / 5000)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head_dim", "beta"), [("white", 64, 0.6), ("white", 128, 0.5), ("levels", 64, 0.6)])
def test_nulls_of_given_inputs_call_the_share_they_say(kind, head_dim, beta):
    """Rows of unequal length, 20 nulls and 20 draws for each; as nulls their laws call 15 to 35 % at 0.05."""
    rng = np.random.default_rng(9)
    inputs = rng.standard_normal((80, 64)) * np.repeat([1.0, 2.0 if kind == "levels" else 1.0], 32)
    inputs /= np.sqrt((inputs**2).sum(axis=1).mean())
    model = be.SoftmaxAttention(80, head_dim, beta, inputs=inputs)
    shares = []
    for seed in range(20):
        null = be.null_of(model, 80, draws=39, rng=seed)
        shares.append(np.mean([null.p_value(model.spectrum(rng)).value <= 0.1 for _ in range(20)]))
    assert abs(np.mean(shares) - 0.1) < 4 * np.std(shares) / np.sqrt(20)
