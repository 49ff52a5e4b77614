"""The law of sliding windows: its equations by dense matrices, its limits, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

import bulkedge as be
from bulkedge.laws.attention.causal_head import causal_equations, row_terms
from bulkedge.laws.attention.window import stationary, window_equations
from bulkedge.laws.classical.images import MixtureLaw
from bulkedge.laws.engine.masked_equations import SizeGroups
from bulkedge.laws.engine.window_equations import WindowProblem

LAW = be.WindowLaw(0.6, 32, 400, 80, qk_norm=True)


def solved(problem, log):
    """Unknowns and Cauchy transform at a point, on a ray from far away."""
    state = problem.far(np.exp(np.array([8 + 1j * log.imag])))
    for each in np.linspace(8, log.real, 20):
        state, cauchy, done = problem.solve(state, np.array([each + 1j * log.imag]), 1e-7)
    assert done.all()
    return state[:, 0], cauchy[0]


def between(law):
    """The law far from the ends, with QK-norm, by the explicit route."""
    terms = stationary(law)
    return be.SumLaw(tuple(terms.variances), tuple(terms.ratios)).squared()


@pytest.mark.parametrize("after", [0, 20])
def test_the_equations_hold_with_dense_matrices(after):
    """The equations of the module, with the mask as one matrix and inverses of whole matrices."""
    problem = window_equations(replace(LAW, after=after, tokens=240, qk_norm=False), cells=5)
    w = np.exp(0.3 + 0.5j)
    state, cauchy = solved(problem, np.log(w))
    cells = problem.row_weights.size
    place = np.subtract.outer(np.arange(cells), np.arange(cells))
    mask = ((place >= 0) & (place <= 5)) * np.where((place == 0) | (place == 5), 0.5, 1.0)
    p, r = np.exp(state[:, : problem.terms]), 1 - np.exp(state[:, problem.terms :])
    rows, columns, shares = problem.rows.squares[0], problem.columns.squares[0], problem.rows.shares[0]
    g, h = 1 / (w * (1 - (problem.pulls * p) @ rows)), 1 / (w * (1 - r @ columns))
    down, across = problem.row_weights.ravel(), problem.column_weights.ravel()
    assert cauchy == pytest.approx((h @ shares) @ across / across.sum())
    # a matrix and its transpose have one law; cells beyond the ends carry a weight of 0.001, and are not square
    assert cauchy == pytest.approx((g @ shares) @ down / down.sum(), rel=3e-3)
    for k in range(problem.terms):
        into_rows, into_columns = (
            across * ((h * shares) @ columns[k]),
            down * problem.pulls[:, k] * ((g * shares) @ rows[k]),
        )
        c, half = w * problem.inverse_ranks[k], mask - mask**2
        back = (mask * into_rows) @ mask.T
        forth = (mask.T * into_columns) @ mask
        back = np.linalg.inv(np.eye(cells) - c * back * into_columns) @ back
        forth = np.linalg.inv(np.eye(cells) - c * forth * into_rows) @ forth
        if c == 0:
            back, forth, half = np.zeros_like(back), np.zeros_like(forth), mask
        assert p[:, k] == pytest.approx(np.diag(back) + half @ into_rows, rel=1e-5)
        assert r[:, k] == pytest.approx(np.diag(forth) + half.T @ into_columns, rel=1e-5)


def test_of_one_column_and_row_it_is_explicit():
    """One cell that sees half of itself is a quarter of a circle: ``1/g = w (1 - g/2)``."""
    ones = SizeGroups(np.ones((1, 1)), np.ones((1, 1, 1)))
    weights = np.full((1, 1), 4.0)
    problem = WindowProblem((30.0,), 4, weights, weights, np.full((1, 1), 0.25), np.zeros(1), ones, ones)
    for w in np.exp([1.0 + 0.4j, -1 + 0.8j]):
        assert solved(problem, np.log(w))[1] == pytest.approx(1 - np.sqrt(1 - 2 / w), rel=1e-6)


def test_a_window_as_long_as_the_sequence_is_a_causal_head():
    """Two Riccati equations for the same thing, with a mesh of their own: twice the cells are nearer to them."""
    law, w = be.WindowLaw(0.6, 32, 400, 400, qk_norm=True), np.exp(1.0 + 0.5j)
    equations = causal_equations(row_terms(0.6, 32, 400, qk_norm=True), 400, 60)
    expected = solved(equations, np.log(w))[1]
    errors = [abs(solved(window_equations(law, cells), np.log(w))[1] / expected - 1) for cells in (8, 16, 32)]
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.6 * errors[1]
    assert errors[2] < 0.005


def test_far_from_the_ends_the_law_is_the_sum_over_frequencies():
    """The middle of many windows, place by place, has the transform of a law that knows no places."""
    law, point, found = be.WindowLaw(0.6, 32, 800, 80, qk_norm=True), 1.0 + 0.5j, []
    for cells in (6, 12):
        problem = window_equations(law, cells)
        r = 1 - np.exp(solved(problem, point)[0][:, problem.terms :]).reshape(-1, cells, problem.terms)
        weights = problem.column_weights[4] / 80
        found.append((weights / (1 - r[4].sum(axis=-1))).sum() * np.exp(-point))
    # cells are off by their size squared
    expected = (
        be.SumLaw(tuple(stationary(law).variances), tuple(stationary(law).ratios)).squared().cauchy(np.exp(point))
    )
    assert (4 * found[1] - found[0]) / 3 == pytest.approx(expected, rel=2e-3)


def test_the_mean_is_that_of_the_variances():
    """All values on average: each row's variance times the keys that it sees."""
    problem = window_equations(LAW)
    middle = np.cumsum(problem.row_weights) - problem.row_weights.ravel() / 2
    expected = problem.row_weights.ravel() * np.minimum(middle, LAW.width) @ problem.pulls.sum(axis=1) / LAW.tokens
    assert LAW.mean() == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_longer_sequences_have_ends_and_a_middle():
    """The share of the ends falls with the length, and so does the atom of what is not represented."""
    long, longer = (be.WindowLaw(0.6, 32, tokens, 80, qk_norm=True) for tokens in (1280, 12800))
    assert longer.atoms[0][1] == pytest.approx(long.atoms[0][1] / 10)
    places = (
        be.SumLaw(tuple(stationary(longer).variances), tuple(stationary(longer).ratios)).squared().ppf([0.2, 0.5, 0.8])
    )
    assert longer.cdf(places) == pytest.approx([0.2, 0.5, 0.8], abs=0.01)


def test_mixtures():
    """Masses, moments and densities are the means of those of the laws, also where edges of one lie inside another."""
    laws = be.MarchenkoPastur(0.5), be.MarchenkoPastur(2.0), be.EmpiricalLaw([0.0, 1.0])
    law, places = MixtureLaw(laws, (0.5, 0.3, 0.2)), np.array([0.05, 0.5, 1.0, 2.0, 4.0])
    for name in ("cdf", "pdf"):
        parts = [share * getattr(each, name)(places) for share, each in zip(law.shares, laws, strict=True)]
        assert getattr(law, name)(places) == pytest.approx(sum(parts), abs=1e-12)
    assert law.moment(3) == pytest.approx(0.5 * laws[0].moment(3) + 0.3 * laws[1].moment(3) + 0.1, rel=1e-12)
    assert law.atoms == ((0.0, pytest.approx(0.25)), (1.0, pytest.approx(0.1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: be.WindowLaw(0.5, 32, 100, 101), "width = 101 is outside its domain: at most tokens = 100"),
        (lambda: be.WindowLaw(0.5, 32, 100, 50, after=50), "after = 50 is outside its domain: below width = 50"),
        (lambda: be.WindowLaw(0.5, 16, 100, 50), "head_dim = 16 is outside its domain without qk_norm"),
        (lambda: be.WindowLaw(0.5, 32, 100, 8), "width = 8 is outside its domain"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(be.DomainError, match=message):
        make()


def test_masks_choose_their_law():
    """Windows and chunks, also if they were written as matrices; the last chunk may be shorter."""
    head = {"tokens": 640, "head_dim": 32, "beta": 0.6, "qk_norm": True}
    band = be.Mask.window(640, 80)
    for mask in (band, be.Mask.of(band.visible())):
        assert be.SoftmaxAttention(**head, mask=mask).law() == be.WindowLaw(0.6, 32, 640, 80, qk_norm=True)
    both = be.SoftmaxAttention(**head, mask=be.Mask.window(640, 81, after=40)).law()
    assert both == be.WindowLaw(0.6, 32, 640, 81, after=40, qk_norm=True)
    chunks = be.SoftmaxAttention(**head, mask=be.Mask.chunks(640, 160)).law()
    assert chunks == be.FiniteHeadLaw(0.6, 32, 160, qk_norm=True).scaled(4.0)
    ragged = be.SoftmaxAttention(**head, mask=be.Mask.chunks(640, 480)).law()
    parts = be.FiniteHeadLaw(0.6, 32, 480, qk_norm=True).mean(), be.FiniteHeadLaw(0.6, 32, 160, qk_norm=True).mean()
    assert ragged.mean() == pytest.approx(0.75 * parts[0] * 640 / 480 + 0.25 * parts[1] * 4, rel=1e-9)


def test_the_largest_value_where_a_few_keys_follow():
    """First rows see ten keys more: draws reach 0.9 to 1.1 of the edge, and those of a decoder 4.7 times as far."""
    model = be.SoftmaxAttention(600, 16, 0.3, qk_norm=True, mask=be.Mask.window(600, 32, after=10))
    law, rng = be.WindowLaw(0.3, 16, 600, 32, after=10, qk_norm=True), np.random.default_rng(20261125)
    largest = [model.spectrum(rng).values[-1] for _ in range(3)]
    assert max(largest) < 1.1 * law.finite_edge(600, 0.05) < 2 * max(largest)


@pytest.mark.slow
def test_long_sequences_of_narrow_windows():
    """The middle of 62 windows of 32 keys, which took more work than a law may cost; draws keep the accuracy."""
    model = be.SoftmaxAttention(2000, 64, 0.5, mask=be.Mask.window(2000, 32))
    law = be.WindowLaw(0.5, 64, 2000, 32)
    assert be.compare(model.spectrum(np.random.default_rng(20261126)), law).ks < law.accuracy
