"""Stacks that are not square, and Markov matrices with heavy tails: simulation against theory, and warnings."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.propagation import skip_isometry
from bulkedge.propagation.gradients import gradient_norms
from bulkedge.propagation.moments import tradeoff
from bulkedge.support.errors import RegimeWarning

SHAPES = [(40, 400), (40, 100), (60, 66)]


@pytest.mark.parametrize("gap", [True, False])
@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_expected_gradients_of_wide_stacks(tokens, width, gap):
    """The mean of forty draws of two layers: four standard errors, and 2/T for rows that lose a direction each."""
    stack = be.AttentionStack(2, tokens, width, gap=gap, entries="exponential", value_variance=0.7)
    rng = np.random.default_rng(321)
    ratios = np.array([gradient_norms(stack, stack.layers(rng)) for _ in range(40)]) / stack.predicted_gradient()
    error = ratios.std(axis=0, ddof=1) / np.sqrt(len(ratios))
    assert np.all(np.abs(ratios.mean(axis=0) - 1) < 4 * error + 2 * 2 / tokens)
    assert np.all(error < 0.1)


@pytest.mark.parametrize(("tokens", "width"), SHAPES)
def test_kernel_of_wide_stacks(tokens, width):
    """Mean and spread of the kernel over sixty draws: four standard errors, and L/T of each.

    Over the mean the second moment is ``1 + L (1 + T/d)``: at T/d = 0.1 less than three fifths of a square stack's 5.
    """
    stack, rng = be.AttentionStack(2, tokens, width, gap=False, entries="exponential"), np.random.default_rng(322)
    values = np.array([stack.spectrum(rng).values for _ in range(60)]) / stack.mean_eigenvalue
    moments = np.array([values.mean(axis=1), np.mean(values**2, axis=1)])
    predicted = np.array([1.0, 1 + tradeoff(stack).spread])
    assert predicted[1] == pytest.approx(1 + 2 * (1 + tokens / width))
    error = moments.std(axis=1, ddof=1) / np.sqrt(60)
    assert np.all(np.abs(moments.mean(axis=1) - predicted) < 4 * error + predicted * 2 * 2 / tokens)
    assert stack.law().moment(2) == pytest.approx(stack.mean_eigenvalue**2 * predicted[1])


@pytest.mark.parametrize("values", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(("tokens", "width"), [(200, 100), (240, 80)])
def test_kernel_of_more_tokens_than_dimensions(tokens, width, depth, values):
    """*propagation*, after Proposition 7: an atom ``1 - d/T`` at zero. Distance to the law: a few 1/d, per layer."""
    stack = be.AttentionStack(depth, tokens, width, gap=False, values=values, entries="exponential")
    law, drawn = stack.law(), stack.spectrum(np.random.default_rng(324)).values
    assert law.atoms[0] == pytest.approx((0.0, 1 - width / tokens))
    assert law.mean() == pytest.approx(stack.mean_eigenvalue)
    assert law.var() == pytest.approx(tradeoff(stack).spread * law.mean() ** 2)
    squares = np.concatenate([np.zeros(tokens - width), np.sort(drawn)[-width:]])
    found = be.compare(be.Spectrum.of(squares, "eigenvalues"), law).ks
    assert found < (3 + depth) / width
    assert be.compare(stack.spectrum(np.random.default_rng(324)), law).ks == pytest.approx(found, abs=1e-9)
    # the law of as many factors of either kind that is right for fewer tokens than dimensions is far away
    few = be.ProductLaw((1.0,) * depth + (tokens / width,) * (depth if values == "gaussian" else 0), law.mean())
    assert be.compare(be.Spectrum.of(squares, "eigenvalues"), few).ks > 2 * found


@pytest.mark.parametrize("gap", [True, False])
def test_gradients_of_more_tokens_than_dimensions(gap):
    """The expectation is exact for exponential entries: four standard errors of 200 draws."""
    stack, rng = be.AttentionStack(2, 30, 20, gap=gap, entries="exponential"), np.random.default_rng(325)
    ratios = np.array([gradient_norms(stack, stack.layers(rng)) for _ in range(200)]) / stack.predicted_gradient()
    error = ratios.std(axis=0, ddof=1) / np.sqrt(len(ratios))
    assert np.all(np.abs(ratios.mean(axis=0) - 1) < 4 * error)
    assert np.all(error < 0.05)


def test_a_kernel_of_more_tokens_than_dimensions_needs_attention():
    with pytest.raises(ValueError, match="for a kernel without attention"):
        be.AttentionStack(2, 20, 10, attention="identity").law()
    assert be.AttentionStack(2, 20, 10, attention="identity").jacobian_law().mean() == pytest.approx(100.0)


@pytest.mark.parametrize(("tokens", "variance"), [(300, 1.0), (300, 4.0), (1000, 10.0)])
def test_outlier_of_lognormal_matrices(tokens, variance):
    """The mean of six draws, in units of what T + variance adds: four standard errors and 5 %."""
    model, rng = be.RandomMarkov(tokens, variance), np.random.default_rng(323)
    tops = [tokens * np.linalg.norm(model.sample(rng), 2) ** 2 - tokens for _ in range(6)]
    error = np.std(tops, ddof=1) / np.sqrt(6)
    assert model.outlier() - tokens == pytest.approx(np.mean(tops), rel=0.05, abs=4 * error)


def test_outlier_of_light_tails():
    for entries, variance in (("exponential", 1.0), ("uniform", 0.3)):
        assert be.RandomMarkov(400, variance, entries).outlier() == pytest.approx(400 + variance, rel=1e-4)


def test_outlier_and_law_of_very_unequal_entries_warn():
    """At 400 tokens and variance 400 the top is 460, where T + variance says 800."""
    model = be.RandomMarkov(400, 400.0)
    with pytest.warns(RegimeWarning, match="variance = 400 is too large for the outlier at 400 tokens"):
        bound = model.outlier()
    rng = np.random.default_rng(324)
    assert 400 < bound < np.mean([400 * np.linalg.norm(model.sample(rng), 2) ** 2 for _ in range(4)])
    with pytest.warns(RegimeWarning, match="the quarter circle is for light tails"):
        model.law()
    stack = be.AttentionStack(2, 50, 50, gap=False, variance=30.0)
    for ask in (stack.law, stack.jacobian_law, stack.predicted_stable_rank_excess):
        with pytest.warns(RegimeWarning, match="is for light tails"):
            ask()


@pytest.mark.parametrize(("depth", "trusted"), [(5, True), (6, False)])
def test_stacks_that_are_deep_for_their_tokens_warn(depth, trusted, recwarn):
    """From a tenth of the tokens on: the first depth that is trusted and the first that is not, at fifty tokens."""
    be.AttentionStack(depth, 50, 50, gap=False, entries="exponential").law()
    assert [each.category for each in recwarn] == ([] if trusted else [RegimeWarning])


def test_kernel_of_a_stack_with_skips():
    """Signal plus noise: distance of 150 values to the law, 5/n; the law of noise alone is far away."""
    model = skip_isometry(64, 0.5)
    drawn = np.linalg.svd(model.stack(150, 300).sample(np.random.default_rng(325)), compute_uv=False) ** 2
    found, law = be.Spectrum.of(np.sort(drawn), "squared singular values"), model.kernel_law(0.5)
    assert law.var() == pytest.approx(0.5 * (1 - np.exp(-1)))
    assert be.compare(found, law).ks < 5 / 150
    assert be.compare(found, be.MarchenkoPastur(0.5)).ks > 0.1


def test_variance_of_causal_stacks_with_skips():
    """The limit of many tokens has Bessel functions; finite masks tend to it, and windows are near 2c."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    limit = np.i0(1.0) - 1 + 2 * 0.25 * weights @ np.i0(2 * 0.25 * (1 + nodes))
    misses = [limit - skip_isometry(64, 0.5, be.Mask.causal(tokens)).limit for tokens in (100, 400)]
    assert 0 < misses[1] < misses[0] / 2
    assert misses[1] < 0.02
    assert skip_isometry(64, 0.5, be.Mask.window(400, 20)).limit == pytest.approx(1.0, abs=0.03)
    # as many layers as it takes, and the same mask for all: the recursion without a mask
    full = skip_isometry(8, 0.5, be.Mask.full(100))
    assert full.variance == pytest.approx(skip_isometry(8, 0.5).variance, rel=0.01)
    with pytest.raises(be.DomainError, match="the law is not"):
        full.law()
