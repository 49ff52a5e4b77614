"""Formulas under the studies of heads: what needs no sampling, or is checked here against a simulation of its own."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import nbinom

from bulkedge.lab.studies.equivalence import large_entries, poisson, shares
from bulkedge.lab.studies.equivalence.causal import EquivalenceCausal
from bulkedge.lab.studies.equivalence.finite_head import _floor
from bulkedge.lab.studies.equivalence.outliers import EquivalenceOutliers
from bulkedge.lab.studies.equivalence.poisson import EquivalencePoisson
from bulkedge.lab.studies.equivalence.poisson_rate import SPLIT, second_order, transport_constant
from bulkedge.laws import FiniteHeadLaw, MarchenkoPastur, QuarterCircle, Semicircle, SharpHeadLaw
from bulkedge.laws.attention.causal_head import mean_values
from bulkedge.laws.attention.finite_head import log_coefficients
from bulkedge.laws.attention.perron import perron
from bulkedge.laws.distribution import Unit
from bulkedge.spectra import Spectrum
from bulkedge.support.estimates import Estimate
from bulkedge.visibility import Mask, prefix_mean_values, softmax


def test_the_norm_of_the_cesaro_matrix_tends_to_two():
    """Hardy's inequality; the distance is of order 1/log(T)**2, and leaving out small sizes moves the fit by 0.001."""
    sizes = 2.0 ** np.arange(8, 21, 2)
    norms = [prefix_mean_values(int(size), 1)[0] for size in sizes]
    fit = curve_fit(lambda x, top, a, b: top - a / (x + b) ** 2, np.log(sizes), norms, p0=(2.0, 40.0, 6.0))
    assert fit[0][0] == pytest.approx(2.0, abs=0.005)


@pytest.mark.parametrize(("beta", "dim"), [(0.5, 32), (1.0, 64)])
def test_the_edge_at_long_contexts_is_that_of_the_linear_degree(beta, dim):
    """Its values spread by 2 sqrt(head_dim/tokens) on either side, once for queries and once for keys."""
    tokens = 2**20
    logs = log_coefficients(dim, np.array([beta * np.sqrt(dim)]), 1)[:, 0]
    edge = np.sqrt(FiniteHeadLaw(beta, dim, tokens, qk_norm=True).edge / tokens)
    assert edge / np.exp(logs[1] - logs[0]) == pytest.approx(1.0, abs=4 * (dim / tokens) ** 0.5)


@pytest.mark.parametrize("beta", [0.3, 0.6])
def test_singular_values_of_the_mean_to_second_order(beta):
    """Against draws of independent scores; the Cesaro matrix alone is many errors away."""
    tokens, rng = 40, np.random.default_rng(0)
    visible = Mask.causal(tokens).visible(np.zeros((tokens, tokens)))
    draws = [
        np.linalg.svd(softmax(beta * rng.standard_normal((tokens, tokens)), visible), compute_uv=False)[:3].mean()
        for _ in range(4000)
    ]
    found, theory = Estimate.of(draws), mean_values(tokens, beta, 3)
    predicted, bare = np.mean(theory.bare + theory.shift), np.mean(theory.bare)
    assert abs(found.value - predicted) < 4.5 * found.error + np.mean(theory.error)
    assert abs(found.value - bare) > 10 * found.error


def test_causal_takes_head_dimensions_in_any_order():
    """And few tokens: every claim has a number."""
    study = EquivalenceCausal(tokens=64, head_dims=(300, 32), draws=4)
    data = study.simulate(0)
    assert data.head_dim.values.tolist() == [32, 300]
    claims = study.claims(data)
    assert all(np.isfinite([claim.measured.value, claim.predicted, claim.finite_size]).all() for claim in claims)
    assert "fails" not in {claim.verdict for claim in claims}


def test_nothing_found_is_no_agreement():
    """Draws without a single outlier have an error all the same, and refute the expected number where that is large."""
    study = EquivalenceOutliers(tokens=100, betas=(1.2,), draws=30)
    data = study.simulate(0)
    empty = data.assign(found=0 * data.found, without_columns=0 * data.found, outside=np.nan * data.outside)
    assert {claim.verdict for claim in study.claims(empty)[:1]} == {"fails"}


def test_the_largest_of_many_scores():
    """The mean of the largest of 100 normal numbers is in tables: 2.50759."""
    study = EquivalencePoisson(tokens=100, head_dim=10_000)
    assert study.largest() == pytest.approx(2.50759 * (1 + 3 / 4 / 10_000), rel=1e-5)


def test_the_popularity_of_keys_when_rows_are_one_hot():
    """Two rows choose the same of T keys with probability (1 + t)/T."""
    tokens, dim, rows, rng = 100, 200, 1500, np.random.default_rng(1)
    pairs = []
    for _ in range(150):
        key, query = rng.standard_normal((tokens, dim)), rng.standard_normal((rows, dim))
        chosen = np.bincount((query @ key.T).argmax(axis=1), minlength=tokens)
        pairs.append(tokens * np.sum(chosen * (chosen - 1.0)) / (rows * (rows - 1)) - 1)
    found, predicted = Estimate.of(pairs), EquivalencePoisson(tokens=tokens, head_dim=dim).popularity()
    assert abs(found.value - predicted) < 4.5 * found.error + predicted**2  # the next order
    assert found.value > 10 * found.error


def test_atoms_of_split_and_uneven_rows():
    """For huge beta Poisson's, but for the popularity of keys; at beta = 50 those of a sharp head."""
    study = EquivalencePoisson(tokens=300, head_dim=300)
    found = study.predicted(1000.0)
    assert found[0] == 0
    assert found[-1] == pytest.approx(1.0, abs=1e-3)
    counts = np.arange(5)
    uneven = nbinom.pmf(counts, 1 / study.popularity(), 1 / (1 + study.popularity()))
    # one row in M/beta is split, and moves a value or two; a bin has two ends
    moved = 2 * study.largest() / 1000 + 2 * poisson.SOBOL
    np.testing.assert_allclose(np.diff(found)[::10][:5], uneven, atol=moved)
    same, law = poisson._cavity(50.0, 300, 0.0), SharpHeadLaw(50.0, 300)
    integers = 10 * counts[1:]
    np.testing.assert_allclose(same[integers], law.cdf(300 * poisson.ENDS[integers]), atol=2 * poisson.SOBOL + 1 / 300)


@pytest.mark.parametrize("beta", [0.3, 0.7])
def test_the_tilt_of_keys_is_theta_3(beta):
    """The popularity of keys has the variance theta_3/d = beta**4/(2 d), up to terms of order 1/d and 1/T."""
    assert perron(beta, 4000, 4000).tilt * 4000 / (beta**4 / 2) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("beta", "tokens", "head_dim", "seen"), [(1.0, 500, 500, False), (0.6, 512, 32, True)])
def test_where_the_term_of_rank_one_makes_an_outlier(beta, tokens, head_dim, seen):
    """In a gap of the bulk at the size of real heads, and not at all in the setting of the paper's figures."""
    law = FiniteHeadLaw(beta, head_dim, tokens)
    spike = law.singular_spike(beta**2 * np.sqrt(tokens / head_dim / 2))
    assert bool(spike.outliers) is seen
    assert all(law.support[0][1] < each.location < law.support[-1][0] for each in spike.outliers)


def test_shares_of_laws():
    """Quantiles of the law have no share of the rival, those of the rival all of it."""
    law, rival = Semicircle(1.0).squared(), MarchenkoPastur(0.5)
    levels = (np.arange(4000) + 0.5) / 4000
    for source, expected in ((law, 0.0), (rival, 1.0)):
        found = shares([Spectrum.of(source.ppf(levels), Unit.SQUARED)] * 2, law, rival)
        assert found.draws == pytest.approx(expected, abs=found.response / 4000)


def test_large_entries():
    """Against entries of independent scores, normalised by their mean."""
    rng, beta, tokens = np.random.default_rng(2), 1.0, 300
    counts = []
    for _ in range(40):
        entries = (np.exp(beta * rng.standard_normal((tokens, tokens)) - beta**2 / 2) - 1) / tokens**0.5
        counts.append(np.sum(entries**2 > np.expm1(beta**2)))
    found = Estimate.of(counts)
    assert abs(found.value - large_entries(beta, tokens)) < 4.5 * found.error


@pytest.mark.parametrize(("beta", "size"), [(0.5, 60), (1.1, 40)])
def test_the_floor_of_finite_sizes(beta, size):
    """Distribution functions of one log-normal Markov matrix less its mean, and of a quarter circle, step by step."""
    found = _floor(beta, size, np.random.default_rng(6))
    weights = np.exp(beta * np.random.default_rng(6).standard_normal((size, size)))
    rows = np.array([row / row.sum() for row in weights])
    values = np.sort(np.linalg.svd(rows - np.full((size, size), 1 / size), compute_uv=False)) * size**0.5
    masses, steps = QuarterCircle(np.exp(beta**2) - 1).cdf(values), np.arange(size + 1) / size
    # a value of zero, that of the constant vector, is at the end of the support
    expected = max(np.abs(masses - steps[1:]).max(), np.abs(masses - steps[:-1])[1:].max())
    assert found == pytest.approx(expected, abs=1e-12)


def test_the_second_order_of_one_hot_rows():
    """Rows of a Poisson process with exponential intensity: both orders, to a tenth of the second."""
    rng, order = np.random.default_rng(9), 0.2
    gaps = np.cumsum(rng.exponential(size=(50_000, 20)), axis=1)
    weights = (gaps / gaps[:, :1]) ** (-1 / order)  # exp(-x): scores below the largest, times beta
    weights /= weights.sum(axis=1, keepdims=True)
    found = Estimate.of((1 - weights[:, 0]) ** 2 + np.sum(weights[:, 1:] ** 2, axis=1))
    second = second_order() * order**2
    assert abs(found.value - SPLIT * order - second) < 4 * found.error
    assert abs(found.value - SPLIT * order) > 6 * found.error
    # leaving each quantile where it is, or moving all of them, costs more than the best transport
    assert 0 < transport_constant() < SPLIT
