"""The top of softmax attention, simulated at seeds and sizes that nothing was tuned on, against its predictions."""

import warnings

import numpy as np
import pytest
from scipy.linalg import eigvalsh

import bulkedge as be
from bulkedge.laws.attention.perron import perron
from bulkedge.support.errors import RegimeWarning

SIZES = [(150, 24), (150, 300), (400, 48), (400, 700)]
BETAS = [0.3, 0.7, 1.2, 1.8, 2.7, 5.0]
DRAWS = 12


def tops(model, rng, draws=DRAWS):
    """Largest squared singular value of A, and mean square of its column sums, a row a draw."""
    last = [model.tokens - 1] * 2
    matrices = (model.sample(rng) for _ in range(draws))
    return np.array(
        [(eigvalsh(each @ each.T, subset_by_index=last)[0], np.mean(each.sum(axis=0) ** 2)) for each in matrices]
    )


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize(("tokens", "head_dim"), SIZES)
def test_perron_value_and_spread_of_column_sums(tokens, head_dim, qk_norm):
    """Where it is trusted, 3 % and four standard errors; the column sums at every beta, to a tenth and four errors.

    A tenth: scores of different queries share the other keys, which is left out and counts in few dimensions.
    """
    rng = np.random.default_rng(301 + tokens + head_dim)
    trusted = []
    for beta in BETAS:
        found = perron(beta, head_dim, tokens, qk_norm=qk_norm)
        draws = tops(be.SoftmaxAttention(tokens, head_dim, beta, qk_norm=qk_norm), rng)
        (top, square), error = draws.mean(axis=0), draws.std(axis=0, ddof=1) / np.sqrt(DRAWS)
        assert found.spread == pytest.approx(square - 1, rel=0.1, abs=4 * error[1])
        assert top > found.square - 4 * error[0] - 0.03 * top  # a lower bound anywhere
        if found.trusted:
            assert found.square == pytest.approx(top, rel=0.03, abs=4 * error[0])
        trusted.append(found.trusted)
    assert trusted == sorted(trusted, reverse=True)
    assert sum(trusted) in {3, 4}


@pytest.mark.parametrize(("beta", "head_dim", "qk_norm"), [(1.0, 32, True), (2.0, 32, True), (1.0, 64, False)])
def test_the_largest_entry_has_its_median(beta, head_dim, qk_norm):
    """Of 15 draws, to four standard errors and 5 %: sums of rows of 300 entries are taken at their typical value."""
    model, rng = be.SoftmaxAttention(300, head_dim, beta, qk_norm), np.random.default_rng(11)
    found = [model.sample(rng).max() for _ in range(15)]
    largest, error = perron(beta, head_dim, 300, qk_norm=qk_norm).largest, 1.25 * np.std(found) / 15**0.5
    assert abs(np.median(found) - largest) < 4 * error + 0.05 * largest


def test_perron_value_for_small_beta_is_the_expansion_of_the_paper():
    """``T (1 + beta**4/(2 d)) + exp(beta**2) - 1``, up to the next order in beta**2/d and 1/T."""
    for beta, head_dim, tokens in ((0.3, 64, 1000), (0.5, 256, 4000)):
        expansion = tokens * beta**4 / (2 * head_dim) + np.expm1(beta**2)
        found = be.SoftmaxAttention(tokens, head_dim, beta).perron() - tokens
        assert found == pytest.approx(expansion, rel=0.03)


def test_perron_value_beyond_its_regime_warns_and_is_a_lower_bound():
    """Four hundred tokens and dimensions at beta 3: simulated 640, where the expansion for small beta says 8543."""
    model = be.SoftmaxAttention(400, 400, 3.0)
    with pytest.warns(RegimeWarning, match="beta = 3 is too large for the Perron value at 400 tokens"):
        bound = model.perron()
    simulated = 400 * tops(model, np.random.default_rng(302), 6)[:, 0].mean()
    assert 0.6 * simulated < bound < simulated


@pytest.mark.parametrize(("beta", "accepted"), [(12.0, True), (12.001, False)])
def test_perron_value_at_the_end_of_its_domain(beta, accepted):
    model = be.SoftmaxAttention(100, 40, beta)
    if accepted:
        with pytest.warns(RegimeWarning, match="lower bound only"):
            assert 100 < model.perron() < 100 * 100
    else:
        with pytest.raises(ValueError, match=r"beta = 12.001 is outside its domain \(0, 12\]"):
            model.perron()


COUNTS = [(300, 300, 1.0, False), (180, 360, 0.95, False), (260, 90, 1.15, True), (220, 220, 1.05, True)]


@pytest.mark.parametrize(("tokens", "head_dim", "beta", "qk_norm"), COUNTS)
def test_number_of_values_beyond_the_edge(tokens, head_dim, beta, qk_norm):
    """A third, and three standard errors: the count of single entries was low by a third to a half.

    What is left out are fluctuations of the edge and the row sums' own: at these sizes a quarter at most.
    """
    model = be.SoftmaxAttention(tokens, head_dim, beta, qk_norm=qk_norm)
    edge, rng = be.FiniteHeadLaw(beta, head_dim, tokens, qk_norm).finite_edge(tokens), np.random.default_rng(303)
    counts = [np.sum(model.spectrum(rng).values > edge) for _ in range(80)]
    error = np.std(counts, ddof=1) / np.sqrt(len(counts))
    assert model.expected_entry_outliers() == pytest.approx(np.mean(counts), rel=1 / 3, abs=3 * error)
    assert error < 0.2 * np.mean(counts)


def test_where_the_outliers_are():
    """Medians of the first values of fifty draws: a tenth."""
    model = be.SoftmaxAttention(250, 250, 1.0)
    rng = np.random.default_rng(304)
    values = np.array([250 * be.spectrum(model.sample(rng)).values[:-4:-1] ** 2 for _ in range(50)])
    assert model.median_second() == pytest.approx(np.median(values[:, 1]), rel=0.1)
    first, *entries = model.outliers()
    assert first == ("mean", model.perron(), 0.03 * model.perron())
    assert [each.kind for each in entries] == ["entry"] * round(model.expected_entry_outliers())
    assert [each.location for each in entries] == pytest.approx(np.median(values[:, 1:], axis=0).tolist(), rel=0.1)
    assert len(model.outliers(1)) == 2


def test_without_large_entries_there_are_no_outliers():
    """At beta 0.3 the count vanishes, and the second value is at the edge: 3 %."""
    model = be.SoftmaxAttention(300, 300, 0.3)
    assert model.expected_entry_outliers() < 1e-3
    assert model.outliers() == [("mean", model.perron(), 0.03 * model.perron())]
    assert model.median_second() == be.FiniteHeadLaw(0.3, 300, 300).finite_edge(300, 0.5)


def test_where_large_entries_are_all_there_is_a_warning():
    with pytest.warns(RegimeWarning, match="no bulk to count values beyond"):
        be.SoftmaxAttention(400, 64, 2.0).expected_entry_outliers()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        be.SoftmaxAttention(400, 64, 1.4).expected_entry_outliers()


@pytest.mark.parametrize("head_dim", [24, 100, 600])
def test_one_hot_rows_choose_keys_of_large_norm(head_dim):
    """Squared column sums exceed those of the Poisson law, 2, by what theory says at its largest beta: a third."""
    model, rng = be.SoftmaxAttention(300, head_dim, 200.0), np.random.default_rng(305)
    square = np.mean([np.mean(model.sample(rng).sum(axis=0) ** 2) for _ in range(12)])
    assert square - 2 == pytest.approx(perron(12.0, head_dim, 300).tilt, rel=1 / 3, abs=0.1)
