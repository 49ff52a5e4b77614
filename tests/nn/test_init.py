"""Each scale does what it says, measured."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bulkedge.nn import GapFreeAttention  # noqa: E402
from bulkedge.nn.init import attention_variance, initialise, query_key_std, skip_weights, value_std  # noqa: E402


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
    carry, branch = skip_weights(strength)
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


@pytest.mark.parametrize("gap", [False, True])
def test_initialised_modules(gap):
    """Scores and outputs of the module itself, on tokens of norm sqrt(width), as after layer normalisation."""
    torch.manual_seed(7)
    tokens, width, scores, sizes = 200, 256, [], []
    module = GapFreeAttention(width, 4, batch_first=True, gamma=0.0 if gap else 1.0)
    x = torch.linalg.qr(torch.randn(width, tokens))[0].T[None] * math.sqrt(width)
    for _ in range(30):
        initialise(module, beta=0.8, tokens=tokens, gap=gap)
        q, k, _ = (x @ module.in_proj_weight.T).chunk(3, -1)
        scores.append(float((q[..., :64] @ k[..., :64].mT / 8).detach().square().mean()))
        sizes.append(float(module(x, x, x, need_weights=False)[0].detach().square().sum() / x.square().sum()))
    within(scores, 0.8**2)
    within(sizes, 1.0, bias=normaliser_bias(attention_variance(0.8, 64), tokens) + 2 / tokens)
    assert module.out_proj.bias.abs().max() == 0


def test_mistakes():
    with pytest.raises(ValueError, match=r"beta = 5 is beyond sqrt\(2 log\(tokens\)\) = 3.72 at 1000 tokens"):
        query_key_std(5, 64, tokens=1000)
    with pytest.raises(ValueError, match="beta = 3 has no finite variance with head_dim = 16"):
        attention_variance(3, 16)
    with pytest.raises(ValueError, match=r"strength = 1.5 is outside its domain \[0, 1\]"):
        skip_weights(1.5)
    with pytest.raises(ValueError, match="layer = 0 is outside its domain"):
        value_std(0, 10, 10, 1.0, gap=True)
    with pytest.raises(ValueError, match="module has keys or values of another width"):
        initialise(torch.nn.MultiheadAttention(8, 2, kdim=4), 1.0, 10)
