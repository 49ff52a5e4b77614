"""Each scale does what it says, measured."""

import math

import numpy as np
import pytest
from scipy.special import roots_genlaguerre

torch = pytest.importorskip("torch")

from bulkedge.nn import GapFreeAttention, attended_power, initial_scales, initialise_stack  # noqa: E402
from bulkedge.nn.init import (  # noqa: E402
    _draw_gated,
    attention_variance,
    initialise,
    query_key_std,
    skip_weights,
    value_std,
)
from bulkedge.nn.power import _powers  # noqa: E402
from bulkedge.propagation import skip_isometry  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402
from bulkedge.visibility import Mask  # noqa: E402


def within(values, predicted, bias=0.0):
    """Mean within four standard errors, and a bias of known order."""
    values = np.asarray(values)
    error = values.std(ddof=1) / math.sqrt(len(values))
    assert abs(values.mean() - predicted) < 4 * error + bias, (values.mean(), error, predicted)


@pytest.mark.parametrize("norm", [None, 1.0, 3.0])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_scores_have_the_wanted_standard_deviation(norm, head_dim):
    rng, width = np.random.default_rng(3), 200
    std = query_key_std(1.3, width, tokens=100, token_norm=norm)
    found = []
    for _ in range(60):
        q, k = std * rng.standard_normal((2, width, head_dim))
        x = rng.standard_normal((40, width))
        x *= (math.sqrt(width) if norm is None else norm) / np.linalg.norm(x, axis=1, keepdims=True)
        found.append(((x @ q @ (x @ k).T / math.sqrt(head_dim)) ** 2)[~np.eye(40, dtype=bool)].mean())
    within(found, 1.3**2)


@pytest.mark.parametrize(("beta", "head_dim"), [(0.5, 16), (1.0, 16), (1.0, 256)])
def test_variance_of_attention(beta, head_dim):
    """Rows of softmax attention at 4000 tokens; the normaliser fluctuates by 1/tokens relative."""
    rng, tokens, found = np.random.default_rng(4), 4000, []
    for _ in range(400):
        q, keys = rng.standard_normal(head_dim), rng.standard_normal((tokens, head_dim))
        row = np.exp(beta * keys @ q / math.sqrt(head_dim))
        row /= row.sum()
        found.append(tokens * (row**2).sum() - 1)
    predicted = attention_variance(beta, head_dim)
    within(found, predicted, bias=math.exp(4 * beta**2) * 4 / tokens)
    assert attention_variance(beta) == pytest.approx(math.expm1(beta**2))
    assert attention_variance(beta, 10**8) == pytest.approx(math.expm1(beta**2), rel=1e-6)


def markov(tokens, variance, rng):
    """Lognormal entries of mean one and the wanted variance, rows normalised."""
    spread = math.sqrt(math.log1p(variance))
    matrix = np.exp(spread * rng.standard_normal((tokens, tokens)))
    return matrix / matrix.sum(axis=1, keepdims=True)


def normaliser_bias(variance, tokens):
    """By what share normalising rows of lognormal entries changes their variance: to first order in 1/tokens,
    E[sum x**2/(sum x)**2] = E[x**2]/tokens (1 + (3 variance - 2 (E[x**3]/E[x**2] - 1))/tokens).
    """
    shift = 3 * variance - 2 * ((1 + variance) ** 2 - 1)
    return 1.5 * abs(shift) * (1 + variance) / variance / tokens  # half as much again for what is left out


@pytest.mark.parametrize("nominal", [0.5, 1.5])
@pytest.mark.parametrize(("tokens", "width"), [(100, 100), (100, 200), (60, 240)])
@pytest.mark.parametrize("gap", [False, True])
def test_the_mean_of_sigma_stays_at_one(gap, tokens, width, nominal):
    rng, means = np.random.default_rng(5), []
    # normalising rows changes the variance at these sizes: it is measured, on other matrices
    found = [tokens * (markov(tokens, nominal, rng) ** 2).sum(axis=1).mean() - 1 for _ in range(200)]
    variance, uncertain = np.mean(found), 4 * np.std(found) / math.sqrt(200) / np.mean(found)
    for _ in range(120):
        signal = np.linalg.qr(rng.standard_normal((width, tokens)))[0].T
        trail = []
        for layer in (1, 2, 3, 4):
            attention = markov(tokens, nominal, rng) - (0 if gap else 1 / tokens)
            std = value_std(layer, tokens, width, variance, gap=gap)
            signal = attention @ signal @ (std * rng.standard_normal((width, width)))
            trail.append((signal**2).sum() / tokens)
        means.append(trail)
    for layer, values in enumerate(np.transpose(means), start=1):
        # entries of a row sum to zero, so that they are correlated by 1/tokens
        within(values, 1.0, bias=layer * (2 / tokens + uncertain))


@pytest.mark.parametrize("strength", [0.3, 0.7])
def test_skips_keep_the_mean_and_forget_the_input_slowly(strength):
    rng, tokens, width, variance = np.random.default_rng(6), 80, 80, 1.0
    carry, branch = skip_weights(np.sqrt(1 - strength**2))
    means, shares = [], []
    for _ in range(100):
        start = signal = np.linalg.qr(rng.standard_normal((width, tokens)))[0].T
        for layer in (1, 2, 3):
            attention = markov(tokens, variance, rng) - 1 / tokens
            std = value_std(layer, tokens, width, variance, gap=False)
            signal = carry * signal + branch * attention @ signal @ (std * rng.standard_normal((width, width)))
        means.append((signal**2).sum() / tokens)
        shares.append((signal * start).sum() / tokens)
    within(means, 1.0, bias=3 * strength**2 * (normaliser_bias(variance, tokens) + 2 / tokens))
    within(shares, (1 - strength**2) ** 1.5)


def layer_normed(tokens, width, rng, similarity=0.0):
    """Gaussian tokens after layer normalisation, which may share a direction."""
    x = torch.randn(tokens, width, generator=rng) * math.sqrt(1 - similarity)
    x = x + math.sqrt(similarity) * torch.randn(width, generator=rng)
    return torch.nn.functional.layer_norm(x, (width,))


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize(("tokens", "draws"), [(12, 600), (24, 400), (96, 80), (384, 25)])
def test_initialised_modules_keep_the_power_of_their_inputs(tokens, draws, gap, mask):
    """Tokens from an eighth of the width to four times as many; layer normalisation leaves a dimension less."""
    rng, width, sizes = torch.Generator().manual_seed(tokens), 96, []
    module = GapFreeAttention(width, 3, batch_first=True, gamma=0.0 if gap else 1.0)
    for _ in range(draws):
        x = layer_normed(tokens, width, rng)[None]
        initialise(module, 1.0, tokens, rng, mask=mask)
        output = module(x, x, x, need_weights=False, is_causal=mask == "causal")[0].detach()
        sizes.append(float(output.square().sum() / x.square().sum()))
    within(sizes, 1.0, bias=1 / width)
    assert np.std(sizes) / math.sqrt(draws) < 0.02  # else the test says little
    assert module.out_proj.bias.abs().max() == 0


@pytest.mark.parametrize("beta", [0.5, 2.0])
@pytest.mark.parametrize("similarity", [0.0, 0.5])
def test_power_of_rows_behind_any_mask(beta, similarity):
    """Attention as a matrix, of small heads, with tokens on the sphere, behind a window and padding."""
    rng, tokens, width, head_dim, found = np.random.default_rng(8), 40, 50, 10, {False: [], True: []}
    mask = Mask.window(tokens, 9) & Mask.padding(np.arange(tokens) < 35)
    visible, mean, common = mask.visible(), mask.mean(), np.eye(width)[0] * math.sqrt(width)
    std = query_key_std(beta, width)
    for _ in range(600):
        x = rng.standard_normal((tokens, width))
        x[:, 0] *= similarity == 0
        x *= math.sqrt(width) / np.linalg.norm(x, axis=1, keepdims=True)
        x = math.sqrt(similarity) * common + math.sqrt(1 - similarity) * x
        q, k = std * rng.standard_normal((2, width, head_dim))
        scores = np.where(visible, x @ q @ (x @ k).T / math.sqrt(head_dim), -np.inf)
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        for gap in (False, True):
            found[gap].append((((attention - (0 if gap else mean)) @ x) ** 2).mean())
    for gap, values in found.items():
        predicted = attended_power(beta, tokens, width, head_dim, gap=gap, mask=mask, similarity=similarity)
        # independent tokens have uniform directions exactly; those that share one have one dimension less
        within(values, predicted, bias=predicted * (similarity > 0) / width)


@pytest.mark.parametrize("beta", [0.01, 0.3, 1.0, 3.0])
def test_power_of_two_tokens_is_an_integral(beta):
    """With large heads and widths, ``(A - C) X`` is ``tanh(beta z/sqrt(2))/2`` times the difference of two tokens."""
    z, weights = np.polynomial.hermite_e.hermegauss(200)
    expected = (weights * np.tanh(beta * z / math.sqrt(2)) ** 2).sum() / weights.sum() / 2
    assert attended_power(beta, 2, 10**7, 10**7) == pytest.approx(expected, rel=1e-5)
    assert attended_power(beta, 2, 10**7, 10**7, gap=True) == pytest.approx(0.5 + expected, rel=1e-5)


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("width", [6, 40])
def test_power_of_two_tokens_in_few_dimensions(width, gap):
    """The same integral with what the sphere and the norm of the query add: components of tokens that are not Gaussian.

    Less its mean the row is ``tanh(|u| (t - t')/2)/2`` times the difference of the tokens, which is orthogonal to their
    mean in expectation, because the tokens may be exchanged.
    """
    beta, (nodes, weights) = 1.5, np.polynomial.legendre.leggauss(200)
    angle = nodes * math.pi / 2
    t, density = math.sqrt(width) * np.sin(angle), weights * np.cos(angle) ** (width - 2)
    density /= density.sum()
    squares, shares = roots_genlaguerre(40, width / 2 - 1)
    norms = beta * np.sqrt(squares / (width / 2))
    difference = np.tanh(norms[:, None, None] * np.subtract.outer(t, t) / 2) ** 2 / 4
    power = 2 * (width - np.multiply.outer(t, t)) / width
    expected = np.einsum("n,i,j,nij->", shares / shares.sum(), density, density, difference * power)
    mean = 0.5 if gap else 0.0
    assert attended_power(beta, 2, width, 10**7, gap=gap) == pytest.approx(mean + expected, rel=1e-4)


@pytest.mark.parametrize("gap", [False, True])
def test_power_of_three_tokens_in_few_dimensions(gap):
    """From three tokens on, the mean of the tokens and what attention leans towards are correlated."""
    beta, width, (nodes, weights) = 1.5, 6, np.polynomial.legendre.leggauss(40)
    angle = nodes * math.pi / 2
    density = weights * np.cos(angle) ** (width - 2)
    density /= density.sum()
    t = np.stack(np.meshgrid(*3 * [math.sqrt(width) * np.sin(angle)], indexing="ij"))
    squares, shares = roots_genlaguerre(24, width / 2 - 1)
    expected = 0.0
    for square, share in zip(squares, shares / shares.sum(), strict=True):
        row = np.exp(beta * math.sqrt(square / (width / 2)) * t)
        row = row / row.sum(axis=0) - (0 if gap else 1 / 3)
        power = (row * t).sum(axis=0) ** 2 + (row**2 * (width - t**2)).sum(axis=0)
        expected += share * np.einsum("i,j,k,ijk->", density, density, density, power) / width
    assert attended_power(beta, 3, width, 10**7, gap=gap) == pytest.approx(expected, rel=1e-4)


def test_limits_of_power():
    """One token is itself; very many leave what leans towards the query, less what the sphere bends: 2/width."""
    assert attended_power(1.0, 1, 64, 16, gap=True) == pytest.approx(1.0, abs=1e-12)
    assert attended_power(1.0, 1, 64, 16) == pytest.approx(0.0, abs=1e-12)
    beta, tokens, width = 0.7, 10**7, 4096
    leading = beta**2 / width + (math.exp(beta**2) - 1) / tokens
    assert attended_power(beta, tokens, width, 4096) == pytest.approx(leading, rel=4 / width)
    rows = np.mean(_powers(1.2, tuple(range(1, 301)), 48, 12, gap=False))
    assert attended_power(1.2, 300, 48, 12, mask="causal") == pytest.approx(rows, rel=1e-6)


def test_one_seed_one_module():
    plain, other = torch.nn.MultiheadAttention(32, 4), torch.nn.MultiheadAttention(32, 4)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    initialise(plain, 1.0, 20, torch.Generator().manual_seed(5))
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(7)
    initialise(other, 1.0, 20, torch.Generator().manual_seed(5))
    assert torch.equal(plain.in_proj_weight, other.in_proj_weight)
    initialise(other, 1.0, 20, torch.Generator().manual_seed(6))
    assert not torch.equal(plain.in_proj_weight, other.in_proj_weight)


def test_mistakes():
    with pytest.raises(ValueError, match=r"beta = 5 is beyond sqrt\(2 log\(tokens\)\) = 3.72 at 1000 tokens"):
        query_key_std(5, 64, tokens=1000)
    with pytest.raises(ValueError, match="beta = 3 has no finite variance with head_dim = 16"):
        attention_variance(3, 16)
    with pytest.raises(ValueError, match=r"skip = 1.5 is outside its domain \[0, 1\]"):
        skip_weights(1.5)
    with pytest.raises(ValueError, match="layer = 0 is outside its domain"):
        value_std(0, 10, 10, 1.0, gap=True)
    with pytest.raises(ValueError, match="module has keys or values of another width"):
        initialise(torch.nn.MultiheadAttention(8, 2, kdim=4), 1.0, 10, torch.Generator())
    with pytest.raises(ValueError, match=r"module has coefficients .*'gamma': \[1.0\].*scales are known for"):
        initialise(GapFreeAttention(8, 2, alpha=1.0, learnable=True), 1.0, 10, torch.Generator())
    with pytest.raises(ValueError, match=r"rng = 3 is no torch.Generator"):
        initialise(torch.nn.MultiheadAttention(8, 2), 1.0, 10, 3)
    with pytest.raises(ValueError, match=r"similarity = 1 is outside its domain \[0, 1\)"):
        attended_power(1.0, 10, 8, 4, similarity=1)
    with pytest.raises(ValueError, match="mask = 'half' is outside its domain"):
        attended_power(1.0, 10, 8, 4, mask="half")


def llama(depth):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers.LlamaModel(transformers.LlamaConfig(vocab_size=500, num_hidden_layers=depth, **sizes)).eval()


def jacobian(model, tokens):
    """Of the last states with respect to the first, relative to their sizes: mean and variance of squared values."""
    last = []
    handle = model.norm.register_forward_pre_hook(lambda _, given: last.append(given[0]))
    ids = torch.randint(500, (1, tokens), generator=torch.Generator().manual_seed(0))
    first = model.embed_tokens(ids).detach().requires_grad_()
    model(inputs_embeds=first)
    handle.remove()
    (end,), size = last, first.numel()
    every = torch.eye(size).view(size, *end.shape)
    rows = torch.autograd.grad(end, first, every, is_grads_batched=True)[0].view(size, size)
    values = torch.linalg.svdvals(rows * (first.detach().norm() / end.detach().norm())) ** 2
    return float(values.mean()), float(values.var() / values.mean() ** 2)


@pytest.mark.parametrize("depth", [24, pytest.param(48, marks=pytest.mark.slow)])
def test_a_new_decoder_of_any_depth_starts_close_to_an_isometry(depth):
    """Theory without gap and moving scores says 0.6; with them one to two (docs/initial_scales.md), at any depth."""
    default, model = llama(depth), llama(depth)
    scales, isometry = initial_scales(depth, 12, 32, 16, mask="causal"), skip_isometry(depth, 0.25)
    initialise_stack(model, scales, torch.Generator().manual_seed(1), isometry=isometry)
    mean, variance = jacobian(model, 12)
    assert 0.9 < mean < 1.4
    assert 0.4 < variance < 2.5
    assert jacobian(default, 12)[1] > 20


def test_gated_layers_have_the_power_they_are_drawn_for():
    """Mean squares of Jacobians at Gaussian tokens of power one, against the quadrature."""
    found, layer = [], llama(1).layers[0].mlp
    for seed in range(4):
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            _draw_gated(layer, 0.3, rng)
        rows = torch.func.vmap(torch.func.jacrev(layer))(torch.randn(64, 32, generator=rng))
        found.append(float(rows.detach().square().sum((1, 2)).mean() / 32))
    assert np.mean(found) == pytest.approx(0.3**2, rel=0.06)  # draws differ by 5 %


def test_isometry_is_refused_where_layers_do_not_fit():
    rng, isometry = torch.Generator().manual_seed(0), skip_isometry(2, 0.25)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4), 2, enable_nested_tensor=False)
    with pytest.raises(DomainError, match="isometry is for 2 layers; TransformerEncoder has 0 feed-forward layers"):
        initialise_stack(model, initial_scales(2, 128, 64, 16), rng, isometry=isometry)
    with pytest.raises(DomainError, match="isometry is for 2 layers; LlamaModel has 3 feed-forward layers"):
        initialise_stack(llama(3), initial_scales(3, 12, 32, 16, mask="causal"), rng, isometry=isometry)
