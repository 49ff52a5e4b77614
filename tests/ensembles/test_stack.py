"""Stacks of attention: what they are made of, their gradients by two routes, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

import bulkedge as be
from bulkedge.ensembles.markov import without_gap, without_outliers
from bulkedge.propagation.gradients import estimated_gradient_norms, gradient_norms, pullback
from bulkedge.propagation.moments import deepest, tradeoff
from bulkedge.propagation.trainability import freezing_beta, softmax_of_gaussians

STACKS = {
    "plain": be.AttentionStack(3, 7, 9),
    "no gap": be.AttentionStack(3, 7, 9, gap=False, values="orthogonal"),
    "skip": be.AttentionStack(3, 7, 9, skip=0.7),
    "rescaled skip, no gap": be.AttentionStack(4, 7, 9, skip=1.0, skip_scaling="rescaled", gap=False),
    "identity": be.AttentionStack(3, 7, 9, attention="identity"),
    "LayerNorm": be.AttentionStack(3, 7, 9, layer_norm=True, skip=1.0),
    "key-query": be.AttentionStack(3, 7, 9, attention="key-query", gap=False),
    "key-query, all on": be.AttentionStack(
        3, 7, 9, attention="key-query", layer_norm=True, skip=1.0, skip_scaling="rescaled"
    ),
    "xavier": be.AttentionStack(2, 7, 9, attention="xavier"),
}


def torch_gradients(torch, stack, layers, cotangent):
    """The same through torch: the layers are run again on tensors, and differentiated."""
    signal, values = torch.as_tensor(stack.start()), []
    for layer in layers:
        parts = {name: torch.as_tensor(part) for name, part in vars(layer.weights).items() if part is not None}
        values.append(parts["values"].requires_grad_())
        _, signal = stack.step(signal, replace(layer.weights, **parts))
    return torch.autograd.grad(signal, values, torch.as_tensor(cotangent))


@pytest.mark.parametrize("name", STACKS)
def test_reverse_mode_agrees_with_torch(name):
    torch = pytest.importorskip("torch")
    stack, rng = STACKS[name], np.random.default_rng(11)
    layers = list(stack.layers(rng))
    cotangent = rng.standard_normal((7, 9))
    theirs = torch_gradients(torch, stack, layers, cotangent)
    for mine, other in zip(pullback(stack, layers, cotangent), theirs, strict=True):
        assert mine == pytest.approx(other.numpy(), rel=1e-9, abs=1e-12 * np.abs(mine).max())


@pytest.mark.parametrize("name", [name for name, stack in STACKS.items() if stack.linear])
def test_kronecker_form_agrees_with_the_jacobian(name):
    """Every row of the Jacobian, by reverse mode: rounding only."""
    stack = STACKS[name]
    layers = list(stack.layers(np.random.default_rng(12)))
    rows = [pullback(stack, layers, each.reshape(7, 9)) for each in np.eye(63)]
    whole = [sum(np.sum(row[k] ** 2) for row in rows) for k in range(stack.depth)]
    assert gradient_norms(stack, layers) == pytest.approx(np.array(whole), rel=1e-10)


def test_probes_estimate_the_norm():
    """Two hundred probes: five standard errors."""
    stack = STACKS["plain"]
    layers = list(stack.layers(np.random.default_rng(13)))
    estimate, error = estimated_gradient_norms(stack, layers, np.random.default_rng(14), 200)
    assert np.all(np.abs(estimate - gradient_norms(stack, layers)) < 5 * error)


def test_gradients_that_are_refused():
    with pytest.raises(ValueError, match="the Kronecker form needs a linear stack"):
        gradient_norms(STACKS["LayerNorm"], STACKS["LayerNorm"].layers(np.random.default_rng(0)))
    deep = be.AttentionStack(10, 4, 4, skip=1.0)
    with pytest.raises(ValueError, match=r"depth = 10 with skip has 2\*\*9 ways"):
        gradient_norms(deep, deep.layers(np.random.default_rng(0)))
    stack = be.AttentionStack(2, 7, 9, gap="all")
    with pytest.raises(ValueError, match="not differentiable"):
        pullback(stack, stack.layers(np.random.default_rng(0)), np.zeros((7, 9)))


def test_layers_and_their_parts():
    """Same seed, same signal; attention without the gap sums to zero; LayerNorm gives length one and mean zero."""
    stack = be.AttentionStack(3, 20, 30, gap=False)
    layers = list(stack.layers(np.random.default_rng(1)))
    assert np.array_equal(layers[-1].signal, stack.sample(np.random.default_rng(1)))
    assert layers[0].attention.sum(axis=1) == pytest.approx(np.zeros(20), abs=1e-14)
    assert layers[1].signal == pytest.approx(layers[1].attention @ layers[0].signal @ layers[1].weights.values)
    assert layers[2].stable_rank == pytest.approx(be.stable_rank(layers[2].signal @ layers[2].signal.T))
    assert layers[2].effective_rank == pytest.approx(be.effective_rank(layers[2].signal))
    normed = be.AttentionStack(2, 20, 30, layer_norm=True).sample(np.random.default_rng(2))
    assert np.linalg.norm(normed, axis=1) == pytest.approx(np.ones(20))
    assert normed.mean(axis=1) == pytest.approx(np.zeros(20), abs=1e-14)


def test_the_gap_may_be_told_by_any_boolean():
    for kept in (True, np.array([True])[0], 1):
        signals = [be.AttentionStack(2, 6, 6, gap=gap).sample(np.random.default_rng(9)) for gap in (kept, not kept)]
        assert signals[0] == pytest.approx(be.AttentionStack(2, 6, 6).sample(np.random.default_rng(9)))
        assert signals[1] == pytest.approx(be.AttentionStack(2, 6, 6, gap=False).sample(np.random.default_rng(9)))


def test_distinct_share_and_cosine_similarity_say_the_same_of_tokens_of_equal_length():
    """``|mean|**2 = (1 + (T - 1) cosine)/T`` for tokens of length one."""
    *_, layer = be.AttentionStack(1, 20, 30, layer_norm=True).layers(np.random.default_rng(3))
    assert 1 - layer.distinct_share == pytest.approx((1 + 19 * layer.cosine_similarity) / 20)


def test_orthogonal_values_and_skip_scaling():
    weights = be.AttentionStack(1, 8, 12, values="orthogonal", value_variance=2.0).weights(np.random.default_rng(4))
    assert weights.values @ weights.values.T == pytest.approx(24 * np.eye(12), abs=1e-12)
    plain = be.AttentionStack(1, 8, 12, skip=1.0).weights(np.random.default_rng(4)).values
    rescaled = be.AttentionStack(1, 8, 12, skip=1.0, skip_scaling="rescaled").weights(np.random.default_rng(4)).values
    assert rescaled == pytest.approx(np.sqrt(12) * plain)


def test_key_query_attention_is_the_softmax_of_scores_of_scale_beta():
    """On orthonormal tokens T A has the variance asked for, exp(beta**2) - 1; Xavier's scaling leaves nothing."""
    layer = next(be.AttentionStack(1, 300, 300, attention="key-query").layers(np.random.default_rng(5)))
    assert 300 * np.sum(without_gap(layer.attention) ** 2) / 300 == pytest.approx(1.0, rel=0.1)
    flat = next(be.AttentionStack(1, 300, 300, attention="xavier").layers(np.random.default_rng(5)))
    assert np.abs(300 * flat.attention - 1).max() < 0.02


def test_outliers_are_projected_out():
    attention = be.RandomMarkov(60).sample(np.random.default_rng(6))
    values = np.linalg.svd(attention, compute_uv=False)
    by_count = without_outliers(attention, count=3)
    assert by_count.removed == 3
    assert np.linalg.svd(by_count.matrix, compute_uv=False)[:5] == pytest.approx(values[3:8])
    by_edge = without_outliers(attention, edge=float(values[:2].mean()))
    assert by_edge.removed == 1
    stack = be.AttentionStack(1, 60, 60, gap="all")
    assert next(stack.layers(np.random.default_rng(7))).attention.shape == (60, 60)
    with pytest.raises(ValueError, match="give one of the two"):
        without_outliers(attention)
    with pytest.raises(ValueError, match="count = 61 is outside its domain"):
        without_outliers(attention, count=61)


def test_isometry_moments_are_those_of_the_laws():
    for values in ("gaussian", "orthogonal"):
        stack = be.AttentionStack(3, 50, 100, gap=False, values=values, value_variance=0.7)
        for of, law in (("kernel", stack.law()), ("jacobian", stack.jacobian_law())):
            trade = tradeoff(stack, of)
            assert law.mean() == pytest.approx(trade.mean, rel=1e-10)
            assert law.var() == pytest.approx(trade.spread * trade.mean**2, rel=1e-9)
    identity = be.AttentionStack(2, 50, 100, attention="identity", values="orthogonal")
    assert (tradeoff(identity).spread, identity.law().atoms[0][0]) == (0.0, 10_000.0)
    assert identity.jacobian_law().atoms == identity.law().atoms


def test_isometry_is_a_trade():
    """The least distortion is where the curve of distortions has its minimum; mean one needs the value factor."""
    stack = be.AttentionStack(3, 50, 100, gap=False)
    trade = tradeoff(stack)
    means = np.linspace(0, 1, 100_001)
    assert trade.distortion(means).min() == pytest.approx(trade.least, abs=1e-8)
    assert means[trade.distortion(means).argmin()] == pytest.approx(trade.best_mean, abs=1e-5)
    assert trade.distortion(1.0) == trade.spread
    assert tradeoff(replace(stack, value_variance=trade.value_factor)).mean == pytest.approx(1.0)
    assert deepest(stack, 0.85) == 3  # 4.5/5.5 = 0.82, and 6/7 = 0.857 at depth four
    assert deepest(stack, 0.5) == 0
    # layers multiply norms with 100, which overflows after 154 of them
    assert deepest(be.AttentionStack(1, 20, 2000, gap=False), 0.995) == 197  # v = 1.01 depth, v/(1 + v)
    assert deepest(be.AttentionStack(1, 20, 2000, gap=False), 0.99999) == 1000
    with pytest.raises(be.UnresolvedError, match=r"100\*\*200, .* value_variance = 0.01 keeps norms"):
        tradeoff(be.AttentionStack(200, 20, 2000, gap=False))
    assert tradeoff(be.AttentionStack(200, 20, 2000, gap=False, value_variance=0.01)).mean == pytest.approx(1.0)
    with pytest.raises(ValueError, match="of = 'hessian' is outside its domain"):
        tradeoff(stack, "hessian")


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="use gap=False"):
        be.AttentionStack(2, 20, 20).law()
    for stack in (STACKS["LayerNorm"], STACKS["skip"], STACKS["key-query"]):
        for ask in (stack.law, stack.jacobian_law, stack.predicted_stable_rank_excess, stack.predicted_gradient):
            with pytest.raises(ValueError, match="without skip and LayerNorm"):
                ask()
    with pytest.raises(ValueError, match="tokens = 10 is outside its domain"):
        be.AttentionStack(2, 10, 9, attention="key-query")
    with pytest.raises(ValueError, match="gap = 'all' needs"):
        be.AttentionStack(2, 10, 10, attention="identity", gap="all")
    with pytest.raises(ValueError, match=r"variance = 0.5 is outside its domain \{1\} for exponential"):
        be.RandomMarkov(10, 0.5, "exponential")
    with pytest.raises(ValueError, match="for uniform entries"):
        be.AttentionStack(2, 10, 10, entries="uniform")


def test_softmax_of_gaussians():
    """Against its two closed ends, and against a hundred thousand rows: five standard errors."""
    assert softmax_of_gaussians(0.0, 50) == pytest.approx((np.log(50), 1 / 50), rel=1e-12)
    # small beta, to second order: the entropy is log T - beta**2 (1 - 1/T)/2, the participation (1 + beta**2 (1-1/T))/T
    small = softmax_of_gaussians(1e-3, 50)
    assert small == pytest.approx((np.log(50) - 0.49e-6, (1 + 0.98e-6) / 50), rel=1e-11)
    scores = 2.5 * np.random.default_rng(8).standard_normal((100_000, 20))
    weights = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    for mine, draws in zip(
        softmax_of_gaussians(2.5, 20), (-(weights * np.log(weights)).sum(axis=1), (weights**2).sum(axis=1)), strict=True
    ):
        assert abs(mine - draws.mean()) < 5 * draws.std() / np.sqrt(len(draws))


@pytest.mark.parametrize("tokens", [2, 1000, 10**6, 10**12])
def test_softmax_of_gaussians_at_any_size(tokens):
    """One minus the mean weight counts as often as there are tokens: its digits have to be there."""
    assert softmax_of_gaussians(0.0, tokens) == pytest.approx((np.log(tokens), 1 / tokens), rel=1e-12)
    exact = softmax_of_gaussians(0.3, tokens)
    # annealed, up to (e**(beta**2) - 1)**2/T and two tokens, whose closed form is in the other test
    if tokens > 2:
        assert exact == pytest.approx((np.log(tokens) - 0.045, np.exp(0.09) / tokens), rel=3 / tokens + 1e-11)
    # two ways to place the nodes meet here
    below, above = (softmax_of_gaussians(0.5 + shift, tokens) for shift in (-1e-9, 1e-9))
    assert below == pytest.approx(above, rel=1e-8)


def test_two_hot_tokens():
    """Their weights are logistic in a Gaussian difference of ``beta sqrt(2)``: one integral of a smooth function."""
    x = np.linspace(-12, 12, 200_001)
    mass = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
    for beta in (0.7, 5.0, 20.0, 48.0):
        with np.errstate(over="ignore"):
            weight = 1 / (1 + np.exp(np.sqrt(2) * beta * x))
        logs = np.log(np.where(weight > 0, weight, 1.0))
        expected = (-2 * mass @ (weight * logs), 2 * mass @ weight**2)
        assert softmax_of_gaussians(beta, 2) == pytest.approx(expected, rel=1e-9)


def test_softmax_freezes():
    """Entropy per log T tends to 1 - (beta/beta_c)**2 below the transition: by a millionth part of T it is close."""
    tokens = 10**6
    beta = freezing_beta(tokens) / 2
    assert softmax_of_gaussians(beta, tokens).entropy / np.log(tokens) == pytest.approx(0.75, abs=0.005)
    frozen = [softmax_of_gaussians(1.5 * freezing_beta(size), size).entropy for size in (10**3, 10**6)]
    assert frozen[1] < 1.3 * frozen[0]  # bounded beyond it, while log T doubles


@pytest.mark.parametrize("gap", [True, False])
def test_shares_are_exact_at_few_tokens(gap):
    """Six tokens, one layer, forty thousand attention matrices: five standard errors; 1/T counts here."""
    tokens, beta, skip = 6, 1.5, 0.6
    weights = np.exp(beta * np.random.default_rng(20261119).standard_normal((40_000, tokens, tokens)))
    attention = weights / weights.sum(axis=2, keepdims=True) - (0 if gap else 1 / tokens)
    mean = attention.mean(axis=1)  # the mean token after attention to orthonormal tokens
    common = skip**2 / tokens + (1 - skip**2) * (mean**2).sum(axis=1)
    apart = skip**2 * (1 - 1 / tokens) + (1 - skip**2) * ((attention - mean[:, None]) ** 2).sum(axis=(1, 2)) / tokens
    share = apart.mean() / (apart + common).mean()
    error = np.std(apart - share * (apart + common)) / (apart + common).mean() / np.sqrt(len(apart))
    predicted = be.propagation.Trainability(tokens, 1, skip, gap=gap).distinct_share(beta)
    assert abs(predicted - share) < 5 * error


def test_trainability_verdicts():
    design = be.propagation.Trainability(tokens=64, depth=6, skip=0.7)
    low, high = design.window()
    assert high == freezing_beta(64)
    assert design.distinct_share(low) == pytest.approx(0.5, abs=1e-4)
    assert [design.verdict(beta) for beta in (low - 0.01, low + 0.01, high + 0.01)] == [
        "rank collapse",
        "inside",
        "entropy collapse",
    ]
    assert be.propagation.Trainability(64, 6, 0.9).window()[0] == 0.0
    assert be.propagation.Trainability(64, 50).window() is None
    assert be.propagation.Trainability(64, 50, gap=False).verdict(1.0) == "inside"
    assert be.propagation.Trainability(64, 3, gap=False).distinct_share(0.0) == 0.0
    with pytest.raises(ValueError, match="beta = 49"):
        design.verdict(49)


def test_ranks_of_matrices():
    assert be.stable_rank(np.eye(5)) == 5
    assert be.effective_rank(np.outer([1.0, 2.0], [3.0, 4.0])) == pytest.approx(1.0)
    for function in (be.stable_rank, be.effective_rank):
        with pytest.raises(ValueError, match="not zero"):
            function(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="row of zeros"):
        be.cosine_similarity(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="two rows at least"):
        be.cosine_similarity(np.ones((1, 3)))
