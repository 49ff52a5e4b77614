"""Attention with popular columns, simulated: a mean query that carries most of the variance of the scores."""

import numpy as np
import pytest

import bulkedge as be

TOKENS, DIM = 1000, 64


def liked_attention(share, beta, *, qk_norm, rng, size=(TOKENS, DIM)):
    """Attention of queries with a mean, its column means, and the deviation of scores minus row and column means."""
    dim = size[1]
    queries, keys = rng.standard_normal((2, *size))
    mean = rng.standard_normal(dim)
    if qk_norm:
        queries, keys = (np.sqrt(dim) * each / np.linalg.norm(each, axis=1)[:, None] for each in (queries, keys))
    mean *= np.sqrt(dim) / np.linalg.norm(mean)
    scores = beta / np.sqrt(dim) * (np.sqrt(1 - share) * queries + np.sqrt(share) * mean) @ keys.T
    attention = np.exp(scores - scores.max(axis=1)[:, None])
    attention /= attention.sum(axis=1)[:, None]
    centred = scores - scores.mean(axis=0) - scores.mean(axis=1)[:, None] + scores.mean()
    return attention, attention.mean(axis=0), float(centred.std())


@pytest.mark.parametrize(("share", "qk_norm"), [(0.35, True), (0.8, True), (0.6, False)])
def test_popular_columns(share, qk_norm):
    """At most 0.012, the distance of a head without popular columns at this size; a tenth of the plain law's."""
    rng = np.random.default_rng(211)
    attention, popularity, beta = liked_attention(share, 1.2, qk_norm=qk_norm, rng=rng)
    found = be.spectrum(np.sqrt(TOKENS) * (attention - popularity)).squared()
    plain = be.FiniteHeadLaw(beta, DIM, TOKENS, qk_norm)
    distance = be.compare(found, plain.with_columns(popularity)).ks
    assert distance < 0.012
    assert distance < be.compare(found, plain).ks / 10


@pytest.mark.parametrize(
    ("beta", "qk_norm", "liked"),
    [
        (1.0, False, 1 / np.arange(1, 401)),
        (1.0, True, np.append(155.0, np.ones(399))),
        (0.5, True, np.append(918.0, np.ones(399))),
        (1.0, True, np.append(np.full(5, 80.0), np.ones(395))),
    ],
    ids=["Zipf", "a sink of 0.28", "a sink of 0.7", "five sinks"],
)
def test_the_edge_is_where_sinks_end(beta, qk_norm, liked):
    """Within 0.85 and 1.5 of the largest value drawn, which is 1.7 to 19 times nearer than in proportion to popularity.

    A sink that has a share of its rows cannot have a multiple of that. The margin is that of one key's length and of
    the fluctuation of one column.
    """
    rng = np.random.default_rng(5)
    scores = beta * be.SoftmaxAttention(400, 64, beta, qk_norm).scores(rng)
    attention = np.exp(scores) * liked
    attention /= attention.sum(axis=1)[:, None]
    law = be.FiniteHeadLaw(beta, 64, 400, qk_norm).with_columns(attention.mean(axis=0))
    top = 400 * np.linalg.norm(attention - attention.mean(axis=0), 2) ** 2
    assert 0.85 < law.edge / top < 1.5


@pytest.mark.parametrize(
    ("tokens", "dim", "share", "beta", "seed"),
    [
        (500, 32, 0.7, 1.0, 103),
        (600, 128, 0.5, 1.0, 103),
        pytest.param(1000, 64, 0.35, 1.2, 101, marks=pytest.mark.slow),
        pytest.param(1000, 64, 0.6, 1.2, 103, marks=pytest.mark.slow),
        pytest.param(1500, 48, 0.3, 0.8, 102, marks=pytest.mark.slow),
    ],
)
def test_the_edge_is_where_lengths_of_the_popular_keys_end(tokens, dim, share, beta, seed):
    """Within 0.9 and 1.6 of the largest value drawn, as in 28 draws of seven settings, so that one beyond stands out.

    The most popular key is one key and has one length, which is rarely the largest of all: the product of the two
    extremes is up to four times the largest value.
    """
    rng = np.random.default_rng(seed)
    attention, popularity, left = liked_attention(share, beta, qk_norm=False, rng=rng, size=(tokens, dim))
    matrix = np.sqrt(tokens) * (attention - popularity)
    law = be.FiniteHeadLaw(left, dim, tokens).with_columns(popularity)
    top = np.linalg.norm(matrix, 2) ** 2
    assert 0.9 < law.edge / top < 1.6
    one, two = (each / np.linalg.norm(each) for each in rng.standard_normal((2, tokens)))
    planted = matrix + np.sqrt(1.8 * top) * np.outer(one, two)
    assert np.linalg.norm(planted, 2) ** 2 > law.edge


def attention_with_sinks(tokens, beta, rng):
    """Causal attention with QK-norm and two sinks of a quarter of the last row each, and its popularity."""
    popularity = np.append([tokens / 2, tokens / 2], np.ones(tokens - 2))
    weights = np.tril(np.exp(beta * be.SoftmaxAttention(tokens, DIM, beta, qk_norm=True).scores(rng)) * popularity)
    return weights / weights.sum(axis=1, keepdims=True), popularity


def test_two_sinks_of_causal_heads_with_half_of_the_mass():
    """600 tokens, less the mean and less what is left of each row: 10/n, which values 1.1 times as large exceed."""
    tokens, beta = 600, 0.6
    attention, popularity = attention_with_sinks(tokens, beta, np.random.default_rng(31))
    means = np.tril(np.tile(popularity, (tokens, 1)))
    others = attention * (np.arange(tokens) > 1)
    seen = np.tril(np.ones(tokens) * (np.arange(tokens) > 1)[:, None] * (np.arange(tokens) > 1))
    own = others - others.sum(axis=1, keepdims=True) * seen / np.maximum(seen.sum(axis=1, keepdims=True), 1)
    plain = be.CausalHeadLaw(beta, DIM, tokens, qk_norm=True)
    law = plain.with_columns(popularity)
    for matrix in (attention - means / means.sum(axis=1, keepdims=True), own):
        found = be.spectrum(tokens**0.5 * matrix).squared()
        assert be.compare(found, law).ks < 10 / tokens
        assert be.compare(be.Spectrum.of(1.1 * found.values, be.Unit.SQUARED), law).ks > 10 / tokens
        assert be.compare(found, plain).ks > 0.2


def test_largest_values_with_two_sinks():
    """The means of ten draws, within the law's error and three standard errors; the third is that of the mean."""
    tokens, rng = 256, np.random.default_rng(32)
    drawn = []
    for _ in range(10):
        attention, popularity = attention_with_sinks(tokens, 0.8, rng)
        drawn.append(tokens * np.linalg.eigvalsh(attention @ attention.T)[:-4:-1])
    found = be.CausalHeadLaw(0.8, DIM, tokens, qk_norm=True).with_columns(popularity).outliers(3)
    assert [each.kind for each in found] == ["sink", "sink", "mean"]
    for each, mean, deviation in zip(found, np.mean(drawn, axis=0), np.std(drawn, axis=0), strict=True):
        assert abs(each.location - mean) < each.error + 3 * deviation / 10**0.5
        assert each.error < 0.15 * each.location
