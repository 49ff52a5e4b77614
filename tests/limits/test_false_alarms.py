"""The false-alarm rate of ``finite_edge`` over sizes, by the tridiagonal forms of Dumitriu and Edelman."""

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
