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
    with pytest.raises(be.UnitError, match=r"spectrum holds singular values, the law .* is of eigenvalues.*squared"):
        null.p_value(be.spectrum(np.eye(3)))
    with pytest.raises(be.DomainError, match="members must be spectra of one unit"):
        SimulatedNull((be.spectrum(np.eye(3)), be.spectrum(np.eye(4))))
    with pytest.raises(be.DomainError, match="draws = 0 is outside"):
        SimulatedNull.of(MODEL, draws=0)


def test_simulations_are_kept_by_seed():
    assert SimulatedNull.of(MODEL, 9, rng=7) is SimulatedNull.of(be.Wishart(dim=40, samples=80), 9, rng=7)
    assert SimulatedNull.of(MODEL, 9, rng=7) is not SimulatedNull.of(MODEL, 9, rng=8)


def test_spectra_are_converted_where_units_say_how():
    """Singular values, their squares, the eigenvalues of a Gram matrix; else the error names the call to make."""
    stack = be.AttentionStack(2, 30, 40, gap=False, attention="identity")
    found = stack.spectrum(np.random.default_rng(1))
    null = LawNull(stack.law(), 30)
    assert (found.unit, null.law.unit) == (be.Unit.SQUARED, be.Unit.EIGEN)
    assert null.p_value(found) == null.p_value(be.Spectrum.of(found.values, "eigenvalues"))
    simulated = SimulatedNull.of(stack, draws=9)
    for statistic in ("largest", "distance"):
        assert simulated.p_value(found.sqrt(), statistic) == simulated.p_value(found, statistic)
    circle = LawNull(be.QuarterCircle(1.0), 30)
    assert circle.p_value(found) == circle.p_value(found.sqrt())
    total = be.SumLaw((1.0, 0.5), (0.5, np.inf))
    with pytest.raises(be.UnitError, match=r"take LawNull\(law.squared\(\), size\)"):
        LawNull(total, 60).p_value(found)
    assert LawNull(total.squared(), 30).p_value(found).draws is None


ATTENTION = be.AttentionLaw(0.5, 0.5)


@pytest.mark.parametrize(
    "law",
    [
        ATTENTION,
        be.FiniteHeadLaw(0.5, 64, 1024),
        be.HeadLaw(0.5, 64, 1024),
        be.WindowLaw(0.5, 64, 800, 100),
        be.CausalHeadLaw(0.5, 64, 800).scaled(2.0),
        ATTENTION.sqrt(),
        ATTENTION.with_columns([0.1, 0.5]),
        be.SoftmaxAttention(130, 64, 0.5, mask=be.Mask.chunks(130, 65)).law(),
    ],
    ids=lambda law: type(law).__name__,
)
def test_laws_of_attention_are_no_calibrated_nulls(law):
    """Their images neither: at 64 tokens and beta = 1 such a null calls 45 % of fresh heads at level 0.05."""
    with pytest.warns(be.RegimeWarning, match=r"is of attention.*be\.null_of\(ensemble, size\)"):
        LawNull(law, 64)


@pytest.mark.parametrize("law", [be.SumLaw((1.0,), (0.5,)).squared(), be.ProductLaw((1.0, 0.5)), be.Semicircle()])
def test_laws_of_gaussian_matrices_warn_of_nothing(law):
    assert LawNull(law, 64).edge(0.1) > law.edge - 0.5


def rows_of_unequal_length(kind):
    """Inputs whose rows are i.i.d. and not of equal length, of mean square one."""
    x = np.random.default_rng(8).standard_normal((48, 64))
    x *= {"white": np.ones(64), "two levels": np.where(np.arange(64) < 32, 1.0, 2.0)}[kind]
    return x / np.sqrt((x**2).sum(axis=1).mean())


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (be.SoftmaxAttention(64, 64, 0.5), 64),
        (be.SoftmaxAttention(64, 64, 3.0), 64),
        (be.SoftmaxAttention(64, 64, 0.5, mask=be.Mask.window(64, 8)), 64),
        (be.SoftmaxAttention(64, 16, 0.5, mask="causal"), 64),
        (be.SoftmaxAttention(48, 64, 0.6, inputs=rows_of_unequal_length("white")), 48),
        (be.SoftmaxAttention(48, 128, 0.5, inputs=rows_of_unequal_length("two levels")), 48),
        (be.RandomMarkov(60, 0.3), 60),
        (be.AttentionStack(2, 20, 30, gap=False), 20),
        (be.PooledSequences(20, 80, 60, 1.0, [1.0], [[1.0]]), 20),
        (be.Wishart(5, 9), 5),
        (be.GaussianProduct(40, (1.0,) * 4), 40),
        (be.GaussianSum(60, (1.0, 1.0), (0.05, np.inf)), 60),
    ],
)
def test_nulls_are_simulated_where_the_law_is_not_calibrated(model, size):
    """Laws that are approximate or heavy-tailed, that have outliers or no edge, or few values near it."""
    null = null_of(model, size, draws=3)
    assert isinstance(null, SimulatedNull)
    assert null.draws == 3
    assert null is null_of(model, size, draws=3)


@pytest.mark.parametrize(
    "model",
    [be.Wigner(60), be.Wishart(60, 90), be.GaussianProduct(100, (0.5, 1.0)), be.GaussianSum(100, (1.0,), (0.5,))],
)
def test_nulls_of_gaussian_matrices_are_laws(model):
    assert isinstance(null_of(model, 60 if isinstance(model, be.Wigner | be.Wishart) else 100), LawNull)
