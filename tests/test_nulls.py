"""Nulls: p-values that are uniform under the null, laws and simulations alike, and know their draws."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.inference.nulls import LawNull, SimulatedNull, null_of

MODEL = be.Wishart(dim=40, samples=80)


def test_a_law_calls_the_share_it_says():
    """400 draws at level 0.1: the count of p below 0.1 is binomial up to the n**(-1/3) bias of design.md (0.7 to 1)."""
    null = LawNull(MODEL.law(), 40)
    rng = np.random.default_rng(3)
    p = np.array([null.p_value(MODEL.spectrum(rng)).value for _ in range(400)])
    assert 0.03 < np.mean(p < 0.1) < 0.145
    assert null.edge(0.1) == MODEL.law().finite_edge(40, 0.1)
    assert null.p_value(be.Spectrum.of([1.0, null.edge(0.2)], "eigenvalues")).value == pytest.approx(0.2, rel=1e-9)


@pytest.mark.parametrize("statistic", ["largest", "distance", lambda each: float(each.values.mean())])
def test_simulated_p_values_are_uniform(statistic):
    """Ranks of a further draw among 9: every one of the ten p-values has probability 1/10; chi-square at 1e-4."""
    rng = np.random.default_rng(4)
    p = []
    for _ in range(200):
        null = SimulatedNull(tuple(be.Wishart(12, 30).spectrum(rng) for _ in range(9)))
        p.append(null.p_value(be.Wishart(12, 30).spectrum(rng), statistic).value)
    counts = np.bincount(np.round(10 * np.array(p)).astype(int), minlength=11)[1:]
    assert counts.sum() == 200
    assert np.sum((counts - 20) ** 2 / 20) < 33.7


def test_a_spike_is_found_by_both():
    rng = np.random.default_rng(5)
    z = rng.standard_normal((80, 40))
    z[:, 0] *= 3
    found = be.spectrum(z.T @ z / 80, kind="eigen")
    assert LawNull(MODEL.law(), 40).p_value(found).value < 1e-6
    simulated = SimulatedNull.of(MODEL, draws=19, rng=np.random.default_rng(6))
    assert simulated.p_value(found) == be.PValue(0.05, 19)
    assert simulated.edge(0.05) == max(each.values[-1] for each in simulated.members)
    assert simulated.edge(0.1) == sorted(each.values[-1] for each in simulated.members)[-2]
    assert simulated.distribution.cdf(simulated.edge(0.05)) == 1.0


def test_levels_need_draws():
    null = SimulatedNull.of(MODEL, draws=9, rng=1)
    with pytest.raises(be.DomainError, match=r"level = 0.01 needs 99 draws; there are 9"):
        null.edge(0.01)
    with pytest.raises(be.DomainError, match="statistic = 'smallest' is outside"):
        null.p_value(MODEL.spectrum(np.random.default_rng(0)), "smallest")
    with pytest.raises(be.DomainError, match="take a SimulatedNull"):
        LawNull(MODEL.law(), 40).p_value(MODEL.spectrum(np.random.default_rng(0)), "distance")
    with pytest.raises(be.UnitError, match="the null is of eigenvalues, the spectrum of singular values"):
        null.p_value(be.spectrum(np.eye(3)))
    with pytest.raises(be.DomainError, match="members must be spectra of one unit"):
        SimulatedNull((be.spectrum(np.eye(3)), be.spectrum(np.eye(4))))
    with pytest.raises(be.DomainError, match="draws = 0 is outside"):
        SimulatedNull.of(MODEL, draws=0)


def test_simulations_are_kept_by_seed():
    assert SimulatedNull.of(MODEL, 9, rng=7) is SimulatedNull.of(be.Wishart(dim=40, samples=80), 9, rng=7)
    assert SimulatedNull.of(MODEL, 9, rng=7) is not SimulatedNull.of(MODEL, 9, rng=8)


def test_which_null():
    """A law where there is one with an edge; a simulation for masks without a law, for heavy tails and for no edge."""
    assert isinstance(null_of(be.SoftmaxAttention(64, 64, 0.5), 64), LawNull)
    for model in (
        be.SoftmaxAttention(64, 64, 0.5, mask=be.Mask.window(64, 8)),
        be.SoftmaxAttention(64, 64, 3.0),
        be.SoftmaxAttention(64, 16, 0.5, mask="causal"),
    ):
        null = null_of(model, 64, draws=3)
        assert isinstance(null, SimulatedNull)
        assert null.draws == 3
        assert null.distribution.unit is be.Unit.SQUARED
