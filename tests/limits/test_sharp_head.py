"""The law of sharp heads against simulated attention with independent scores, and its two limits."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.lab.studies.heads.sharp import rivals, sharp_attention


def pooled(beta, tokens, draws, seed):
    """Squared singular values of several draws, sorted."""
    rng = np.random.default_rng(seed)
    values = [np.linalg.svd(sharp_attention(beta, tokens, rng), compute_uv=False) ** 2 for _ in range(draws)]
    return np.sort(np.ravel(values)), np.mean(values, axis=1)


def distance(values, law):
    """Largest difference of the distribution functions, on both sides of each value."""
    steps = np.arange(len(values) + 1) / len(values)
    mass = law.cdf(values)
    return max(np.abs(mass - steps[1:]).max(), np.abs(mass - steps[:-1]).max())


def check(beta, tokens, draws, seed, close):
    values, means = pooled(beta, tokens, draws, seed)
    laws = rivals(beta, tokens)
    found = distance(values, laws["sharp"])
    assert found < close
    assert abs(means.mean() - laws["sharp"].mean()) < 5 * means.std(ddof=1) / draws**0.5 + laws["sharp"].mean() / tokens
    return found, distance(values, laws["quarter"]), distance(values, laws["poisson"])


def test_middle():
    """Six draws of 500 tokens, beta 3: 0.005 of the law, 2/T, and the noise of 3000 values, 1.6 over their root
    at most (values repel each other). Both limits are far."""
    found, quarter, poisson = check(3.0, 500, 6, 20261116, 0.005 + 2 / 500 + 1.6 / 3000**0.5)
    assert quarter > 4 * found
    assert poisson > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "seed"), [(0.5, 1), (1.0, 2), (2.0, 3), (3.0, 4), (6.0, 5), (10.0, 6)], ids=str)
def test_simulation(beta, seed):
    """Ten draws of 1200 tokens: 0.005 of the law, 2/T, and half the noise of 12,000 independent values at 95 %."""
    found, quarter, poisson = check(beta, 1200, 10, [20261117, seed], 0.005 + 2 / 1200 + 0.68 / 12_000**0.5)
    if beta >= 2:
        assert quarter > 5 * found
    assert poisson > 5 * found


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.5, 3.0, 10.0])
def test_few_tokens(beta):
    """Two hundred draws of 64 tokens: 0.005, a value in 64, and half the noise of 12,800 independent values at 95 %.

    Terms of order 1/T are left out: it is 0.006 at beta 0.5 and 3, and 0.02 at beta 10, for values below the largest.
    """
    check(beta, 64, 200, 20261118, 0.005 + 1 / 64 + 0.68 / 12_800**0.5)


@pytest.mark.slow
def test_large_beta_is_poisson():
    """Mass between multiples of T: one minus beta times M, the share of rows that are split, moves 0.1 at beta 50."""
    found = [be.SharpHeadLaw(beta, 1000).cdf(1000 * np.array([0.5, 1.5, 2.5, 3.5])) for beta in (12.0, 50.0)]
    away = [np.abs(each - be.PoissonLaw(1.0).cdf([0.5, 1.5, 2.5, 3.5])).max() for each in found]
    assert away[1] < away[0] / 3
    assert away[1] < 0.03
