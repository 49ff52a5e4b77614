"""The law of heads at any beta against simulated heads that nothing was tuned on, and its rivals."""

import warnings

import numpy as np
import pytest

import bulkedge as be

CASES = [
    # beta, head_dim, tokens, qk_norm, draws, mask; the law's stated accuracy has to hold for single draws
    (2.0, 64, 700, True, 4, "full"),
    (2.5, 48, 900, False, 4, "full"),
    (4.0, 96, 700, False, 4, "full"),
    (4.0, 64, 900, True, 4, "full"),
    (8.0, 64, 600, False, 3, "full"),
    (20.0, 64, 500, True, 3, "full"),
    (1.5, 96, 900, False, 3, "causal"),
    (2.5, 48, 700, True, 4, "causal"),
    (4.0, 64, 1000, True, 3, "causal"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "head_dim", "tokens", "qk_norm", "draws", "mask"), CASES)
def test_simulation(beta, head_dim, tokens, qk_norm, draws, mask):  # noqa: PLR0913, PLR0917
    """Draws keep the accuracy that the law states; the law of flat heads is twice as far, or farther."""
    model = be.SoftmaxAttention(tokens, head_dim, beta, qk_norm, mask)
    law = model.law()
    assert isinstance(law, be.HeadLaw)
    rng = np.random.default_rng([20261123, tokens, int(beta)])
    found = [model.spectrum(rng) for _ in range(draws)]
    distances = [be.compare(each, law).ks for each in found]
    assert max(distances) < law.accuracy
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", be.RegimeWarning)
        family = be.CausalHeadLaw if law.causal else be.FiniteHeadLaw
        flat = family(min(beta, 4.0), head_dim, tokens, qk_norm)
    assert np.mean([be.compare(each, flat).ks for each in found]) > 2 * np.mean(distances)


@pytest.mark.slow
def test_both_laws_meet():
    """Where a head goes over from the law of flat heads to the table, the two differ by what both state."""
    flat = max(beta for beta in np.linspace(0.8, 1.6, 17) if be.HeadLaw(float(beta), 64, 2048).is_flat)
    low, high = be.HeadLaw(float(flat), 64, 2048), be.HeadLaw(float(flat) + 0.05, 64, 2048)
    levels = np.linspace(0.05, 0.95, 19)
    # a step of 0.05 in beta moves the values by itself: they are compared with their mean
    apart = high.cdf(low.ppf(levels) * high.mean() / low.mean()) - levels
    assert np.abs(apart).max() < low.accuracy + high.accuracy
