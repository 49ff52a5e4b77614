"""Rank collapse, kernel, Jacobian and gradients of stacks, simulated, against theory; seeds nothing was tuned on."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles.markov import without_gap
from bulkedge.propagation.gradients import gradient_norms

RATIOS = [0.25, 0.5, 1.0]


def means(draw, tokens, draws, seed):
    """Mean of the draws at T and 2T, extrapolated by ``2 m(2T) - m(T)`` (the bias is of order 1/T), and its error."""
    rng = np.random.default_rng(seed)
    sets = [np.array([draw(size, rng) for _ in range(count)]) for size, count in ((tokens, draws), (2 * tokens, draws))]
    (small, large), (low, high) = ([part.mean(axis=0) for part in sets], [part.var(axis=0, ddof=1) for part in sets])
    return 2 * large - small, np.sqrt((4 * high + low) / draws)


def slopes(sizes, draws, entries, seed):
    """Slopes of log(sr - 1) in log T with a term in 1/T, weighted by the errors of the means; and their errors."""
    rng = np.random.default_rng(seed)
    logs = [
        np.log([
            [layer.stable_rank_excess for layer in be.AttentionStack(3, size, size, entries=entries).layers(rng)]
            for _ in range(max(8, draws * sizes[0] // size))
        ])
        for size in sizes
    ]  # fmt: skip
    results = []
    for depth in range(3):
        y = np.array([part[:, depth].mean() for part in logs])
        error = np.array([part[:, depth].std(ddof=1) / np.sqrt(len(part)) for part in logs])
        design = np.stack([np.ones(len(sizes)), np.log(sizes), 1 / np.array(sizes)], axis=1) / error[:, None]
        covariance = np.linalg.inv(design.T @ design)
        results.append(((covariance @ design.T @ (y / error))[1], np.sqrt(covariance[1, 1])))
    return np.array(results)


def test_slopes_of_rank_collapse_in_width():
    """1 - 2l for l = 1, 2, 3 (*propagation*, Proposition 3): two standard errors each, which are below 0.15."""
    found = slopes((32, 64, 128, 256), 300, "exponential", 201)
    assert np.all(np.abs(found[:, 0] - [-1, -3, -5]) < 2 * found[:, 1])
    assert np.all(found[:, 1] < 0.15)


@pytest.mark.slow
def test_slopes_of_rank_collapse_in_width_with_the_entries_of_the_paper():
    """Lognormal entries have a fourth moment of 41, so the limit comes later: from 100 tokens on."""
    found = slopes((100, 200, 400, 800), 200, "lognormal", 202)
    assert np.all(np.abs(found[:, 0] - [-1, -3, -5]) < 2 * found[:, 1])
    assert np.all(found[:, 1] < 0.2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_stable_rank_with_the_gap_has_the_predicted_constant(depth):
    """Mean of ``(sr - 1)/prediction`` with the largest eigenvalue's own fluctuation divided out: four errors."""

    def draw(size, rng):
        stack = be.AttentionStack(depth, size, 2 * size, entries="exponential")
        *_, layer = stack.layers(rng)
        relative = layer.stable_rank_excess / stack.predicted_stable_rank_excess()
        return relative * (layer.singular_values[-1] ** 2 / stack.width**depth) ** 2

    mean, error = means(draw, 40, 100, 203)
    assert abs(mean - 1) < 4 * error
    assert error < 0.06


@pytest.mark.parametrize("values", ["gaussian", "orthogonal"])
def test_stable_rank_without_the_gap(values):
    """Median over forty draws within 8%: the largest of 200 values fluctuates by n**(-2/3), and enters squared."""
    stack = be.AttentionStack(2, 200, 300, gap=False, values=values, entries="exponential")
    rng = np.random.default_rng(204)
    found = [be.stable_rank(x @ x.T) for x in (stack.sample(rng) for _ in range(40))]
    assert np.median(found) == pytest.approx(1 + stack.predicted_stable_rank_excess(), rel=0.08)


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_moments_of_the_kernel(ratio, depth):
    """Proposition 7: mean one and variance depth (1 + ratio) at mean one; extrapolated in T, four standard errors."""

    def draw(size, rng):
        stack = be.AttentionStack(depth, size, round(size / ratio), gap=False, entries="exponential")
        values = stack.spectrum(rng).values / stack.mean_eigenvalue
        return values.mean(), np.mean(values**2)

    mean, error = means(draw, 40, 60, 205)
    second = 1 + depth * (1 + ratio)
    assert np.all(np.abs(mean - [1.0, second]) < 4 * error)
    assert np.all(error < [0.05, 0.1 * second])


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_moments_of_the_jacobian(ratio, depth):
    """Proposition 8: mean one and second moment (1 + depth)**2 at mean one; extrapolated in T, four standard errors."""

    def draw(size, rng):
        values = _jacobian(be.AttentionStack(depth, size, round(size / ratio), gap=False, entries="exponential"), rng)
        return values.mean(), np.mean(values**2)

    mean, error = means(draw, 32, 60, 206)
    assert np.all(np.abs(mean - [1.0, (1 + depth) ** 2]) < 4 * error)
    assert np.all(error < [0.06, 0.12 * (1 + depth) ** 2])


def _jacobian(stack, rng):
    """Squared singular values of ``(W_1 ... W_L)' (x) (A_L ... A_1)`` over their predicted mean."""
    values, attention = np.eye(stack.width), np.eye(stack.tokens)
    for layer in stack.layers(rng):
        values, attention = values @ layer.weights.values, layer.attention @ attention
    squares = [np.linalg.svd(part, compute_uv=False) ** 2 for part in (values, attention)]
    return np.outer(*squares).ravel() / stack.mean_eigenvalue


def test_jacobian_is_the_kronecker_product():
    """The matrix that differentiates the stack has the singular values that its two factors say."""
    stack = be.AttentionStack(2, 6, 8, gap=False)
    layers = list(stack.layers(np.random.default_rng(207)))
    whole = np.eye(48)
    for layer in layers:
        whole = np.kron(layer.weights.values.T, layer.attention) @ whole
    direct = np.sort(np.linalg.svd(whole, compute_uv=False) ** 2)[::-1] / stack.mean_eigenvalue
    factors = np.sort(_jacobian(stack, np.random.default_rng(207)))[::-1]
    assert factors == pytest.approx(direct, rel=1e-9, abs=1e-12 * direct[0])


@pytest.mark.parametrize(("depth", "distance"), [(1, 0.01), (2, 0.015), (3, 0.02)])
def test_laws_of_kernel_and_jacobian(depth, distance):
    """300 tokens, 600 dimensions: distances a few times 1/T, a row sum being lost at every layer."""
    stack = be.AttentionStack(depth, 300, 600, gap=False, entries="exponential")
    assert be.compare(stack.spectrum(np.random.default_rng(208)), stack.law()).ks < distance
    law = stack.jacobian_law().scaled(1 / stack.mean_eigenvalue)
    values = np.sort(_jacobian(stack, np.random.default_rng(209)))
    ranks = (np.arange(len(values)) + 0.5) / len(values)
    assert np.max(np.abs(law.cdf(values) - ranks)) < distance


@pytest.mark.parametrize("entries", ["lognormal", "exponential", "uniform"])
def test_random_markov_matrices(entries):
    """Theorem 2 and Lemma 3 at 500 tokens."""
    model = be.RandomMarkov(500, 1 / 3 if entries == "uniform" else 1.0, entries)
    rng = np.random.default_rng(210)
    assert be.compare(model.spectrum(rng), model.law()).ks < 0.02
    tops = [500 * np.linalg.norm(model.sample(rng), 2) ** 2 for _ in range(4)]
    # the tail of lognormal entries takes 6/T off their variance; the rest is of order 1/sqrt(T)
    assert np.mean(tops) == pytest.approx(model.outlier(), abs=4 * np.std(tops, ddof=1) / 2 + 0.05)


@pytest.mark.parametrize("gap", [True, False])
@pytest.mark.parametrize("depth", [1, 3])
def test_expected_gradients(gap, depth):
    """Mean over draws, extrapolated in T; the same at every layer; four standard errors."""

    def draw(size, rng):
        stack = be.AttentionStack(depth, size, size, gap=gap, entries="exponential")
        return gradient_norms(stack, stack.layers(rng)) / stack.predicted_gradient()

    mean, error = means(draw, 30, 200, 211)
    assert np.all(np.abs(mean - 1) < 4 * error)
    assert np.all(error < 0.12)


def test_outlier_that_stays_when_tokens_share_a_direction():
    """Second layer of key-query attention with the gap: four draws within four standard errors and a tenth.

    The tenth is what the bulk adds, ``edge**2/(2 tilt**2)`` or 2 %, and the softmax of few keys.
    """
    tokens, variance, ratios = 200, 0.3, []
    stack = be.AttentionStack(2, tokens, tokens, attention="key-query", layer_norm=True, variance=variance)
    for seed in range(213, 217):
        first, second = stack.layers(np.random.default_rng(seed))
        share = first.distinct_share
        tilt = np.sqrt(np.expm1(np.log1p(variance) * share * (1 - share)))
        ratios.append(np.linalg.norm(without_gap(second.attention), 2) / tilt)
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.std(ratios, ddof=1) / 2 + 0.1)


@pytest.mark.parametrize("gap", [True, False])
def test_distinct_share_over_the_trainability_map(gap):
    """Forty draws at each point: five standard errors, and L/d for the mean of a ratio."""
    rng = np.random.default_rng(212)
    for depth, skip, beta in ((2, 0.0, 1.0), (4, 0.0, 2.5), (6, 0.6, 0.5), (6, 0.7, 2.0), (8, 0.8, 2.8)):
        stack = be.AttentionStack(
            depth,
            48,
            96,
            gap=gap,
            skip=skip,
            value_variance=1 - skip**2,
            variance=np.expm1(beta**2),
        )
        found = [[*stack.layers(rng)][-1].distinct_share for _ in range(40)]
        predicted = be.propagation.Trainability(48, depth, skip, gap=gap).distinct_share(beta)
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert abs(np.mean(found) - predicted) < 5 * error + depth / 96 * predicted * (1 - predicted)
