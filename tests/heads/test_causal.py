"""Causal heads from moments of blocks, against their attention matrices."""

import numpy as np
import pytest

from bulkedge.heads import CausalChannel, Channel
from bulkedge.heads.softmax import log_mean_exponential
from bulkedge.propagation.trainability import softmax_of_gaussians
from bulkedge.support.errors import DomainError


def attention(q, k, scale):
    """The causal attention matrix, and the logarithms of its normalisers."""
    scores = scale * q @ np.swapaxes(k, -1, -2)
    weights = np.where(np.tri(q.shape[-2]) > 0, np.exp(scores), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / total, np.log(total[..., 0])


def rotated(vectors, base=100.0):
    """Rotary positions: pair i of the coordinates turns by ``base**(-i/pairs)`` from a token to the next."""
    tokens, dim = vectors.shape[-2:]
    angle = np.arange(tokens)[:, None] * base ** (-np.arange(dim // 2) / (dim // 2))
    first, second = vectors[..., : dim // 2], vectors[..., dim // 2 :]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def heads(tokens, sinks=(), beta=1.5, seed=0):
    """Heads with a mean query, spreads that differ by direction, rotary positions, and keys that all queries like."""
    rng, dim, count = np.random.default_rng(seed), 16, 4
    spread = 0.8 ** np.arange(dim)
    spread *= np.sqrt(beta / np.sum(spread**2) ** 0.5)
    q, k = rng.standard_normal((2, count, tokens, dim)) * spread
    mean = rng.standard_normal((count, 1, dim)) * spread * 0.7
    q, k = rotated(q + mean), rotated(k)
    for sink in sinks:
        along = q[:, tokens // 4 :].mean(axis=1)
        k[:, sink] += 5 * along / np.sum(along**2, axis=-1, keepdims=True)
    return q, k


def agreement(found, weights):
    """Median correlation of logarithms, and largest total variation, over heads."""
    columns = weights.mean(axis=-2)
    pairs = zip(np.log(found), np.log(columns), strict=True)
    correlation = np.median([np.corrcoef(mine, exact)[0, 1] for mine, exact in pairs])
    return correlation, np.max(np.abs(found - columns).sum(axis=-1) / 2)


@pytest.mark.parametrize("sinks", [(), (0, 33)])
@pytest.mark.parametrize("block", [1, 32])
def test_popularity_with_rotary_positions_and_sinks(sinks, block):
    q, k = heads(400, sinks)
    weights, normalisers = attention(q, k, 1.0)
    head = CausalChannel.from_qk(q, k, 1.0, block=block)
    correlation, variation = agreement(head.popularity, weights)
    assert correlation > 0.98
    assert variation < 0.06
    np.testing.assert_allclose(head.total, 1, atol=0.1)
    assert np.abs(head.log_normaliser - normalisers).mean() < 0.06
    entropy = -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=-1)
    assert np.abs(head.entropy - entropy).mean() < 0.1
    # the rival: moments of all rows, and each key as often as it is seen
    seen = np.cumsum(1 / np.arange(400, 0, -1))[::-1]
    plain = Channel.from_qk(q, k, 1.0).popularity(k) * seen
    rival = agreement(plain / plain.sum(axis=-1, keepdims=True), weights)
    assert rival[1] > 2 * variation
    if sinks:
        assert set(sinks) <= set(head.explicit[0])
        without = CausalChannel.from_qk(q, k, 1.0, block=block, explicit=0)
        assert agreement(without.popularity, weights)[1] > 2 * variation


@pytest.mark.parametrize(("tokens", "block", "explicit"), [(1, 1, 0), (7, 8, 0), (32, 32, 2), (45, 4, 45), (45, 64, 0)])
def test_exact_without_rectangles(tokens, block, explicit):
    """One triangle, or all keys explicit: nothing is left to moments."""
    q, k = heads(tokens, beta=3.0, seed=1)
    weights, normalisers = attention(q, k, 1.0)
    head = CausalChannel.from_qk(q, k, 1.0, block=block, explicit=explicit)
    np.testing.assert_allclose(head.popularity, weights.mean(axis=-2), rtol=1e-10)
    np.testing.assert_allclose(head.log_normaliser, normalisers, rtol=1e-10, atol=1e-10)
    entropy = -np.sum(weights * np.log(np.where(weights > 0, weights, 1)), axis=-1)
    np.testing.assert_allclose(head.entropy, entropy, atol=1e-10)
    np.testing.assert_allclose(head.total, 1, rtol=1e-10)


@pytest.mark.parametrize("tokens", [2, 3, 17, 33, 64, 65])
@pytest.mark.parametrize("block", [1, 3, 8])
def test_rows_see_nothing_that_comes_after_them(tokens, block):
    """Later tokens, and those that fill up the last block, change no row before them; explicit keys may."""
    q, k = heads(tokens, seed=tokens)
    last = tokens // 2
    other_q, other_k = q.copy(), k.copy()
    other_q[:, last:] += 3
    other_k[:, last:] -= 7
    first, other = (CausalChannel.from_qk(*each, 1.0, block, 0) for each in ((q, k), (other_q, other_k)))
    np.testing.assert_array_equal(first.log_normaliser[:, :last], other.log_normaliser[:, :last])
    assert not np.any(first.log_normaliser[:, last:] == other.log_normaliser[:, last:])
    np.testing.assert_allclose(first.popularity.sum(axis=-1), 1, rtol=1e-12)


def test_constants_in_the_keys_drop_out():
    q, k = heads(70, (0,), seed=3)
    first, other = (CausalChannel.from_qk(q, each, 1.0, block=8) for each in (k, k + 0.5))
    np.testing.assert_allclose(first.popularity, other.popularity, rtol=1e-9)
    np.testing.assert_allclose(first.entropy, other.entropy, atol=1e-12)


def test_batches_and_libraries():
    torch = pytest.importorskip("torch")
    q, k = heads(50, (0,), seed=4)
    batch = CausalChannel.from_qk(q.reshape(2, 2, 50, 16), k.reshape(2, 2, 50, 16), block=8, explicit=3)
    assert batch.popularity.shape == (2, 2, 50)
    assert batch.total.shape == (2, 2)
    assert batch.explicit.shape == (2, 2, 3)
    one = CausalChannel.from_qk(q[3], k[3], block=8, explicit=3)
    np.testing.assert_allclose(batch.popularity[1, 1], one.popularity, rtol=1e-12)
    for kind, close in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        tensors = (torch.tensor(each, dtype=kind, requires_grad=True) for each in (q[3], k[3]))
        found = CausalChannel.from_qk(*tensors, block=8, explicit=3)
        for name in ("popularity", "entropy", "log_normaliser"):
            assert getattr(found, name).dtype == kind
            np.testing.assert_allclose(getattr(found, name).numpy(), getattr(one, name), rtol=close, atol=close)


@pytest.mark.parametrize("factor", [3, 5])
def test_decoder_at_initialisation(factor):
    """A Llama with random weights, larger ones than usual so that its scores spread by one and more."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from bulkedge.models import capture

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, hidden_size=128, intermediate_size=128, vocab_size=100
    )
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_proj.weight.mul_(factor)
            layer.self_attn.k_proj.weight.mul_(factor)
    for layer in capture(model, input_ids=torch.randint(0, 100, (1, 256))):
        weights = layer.attention()[0].numpy()
        head = CausalChannel.from_qk(layer.query[0], layer.key[0], layer.scale)
        correlation, variation = agreement(head.popularity.double().numpy(), weights)
        assert correlation > 0.98
        assert variation < 0.1


def test_mean_logarithms_of_exponentials():
    """Entropies are what the rows' tables have; beyond the table the logarithm goes on as its tangent."""
    deviation = np.array([0.0, 0.3, 2.0, 7.7, 12.0])
    for count in (2, 100, 10**6):
        value, score = log_mean_exponential(np, deviation, count)
        entropy = [softmax_of_gaussians(float(each), count).entropy for each in deviation]
        np.testing.assert_allclose(np.log(count) + value - score, entropy, atol=1e-6)
        sharp, sharper = (log_mean_exponential(np, np.array([each]), count)[0][0] for each in (12.0, 13.0))
        assert sharper - sharp == pytest.approx(score[-1] / 12)
    many = log_mean_exponential(np, np.array([1.0]), 10**9)
    assert many[0][0] == pytest.approx(0.5, abs=1e-7)


@pytest.mark.parametrize(
    ("q", "k", "options", "match"),
    [
        (np.ones((3, 4)), np.ones((4, 4)), {}, "of the same tokens"),
        (np.ones(4), np.ones(4), {}, "q has shape"),
        (np.ones((0, 4)), np.ones((0, 4)), {}, "q has shape"),
        (np.ones((3, 4)), np.full((3, 4), np.inf), {}, "k has entries"),
        (np.ones((3, 4)), np.ones((3, 4)), {"block": 0}, "block = 0"),
        (np.ones((3, 4)), np.ones((3, 4)), {"explicit": -1}, "explicit = -1"),
    ],
)
def test_what_is_refused(q, k, options, match):
    with pytest.raises(DomainError, match=match):
        CausalChannel.from_qk(q, k, **options)
