"""Factors for longer contexts: against drawn rows, brute quadrature and closed forms, and where there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.heads import Channel, published_rules, score_scales
from bulkedge.heads.channel import popularity
from bulkedge.heads.channel.popularity import Directions, _log_tail, _slope, top_share
from bulkedge.heads.score_scales import LLAMA_FLOOR, LLAMA_SCALE
from bulkedge.heads.softmax import SHARPEST, KeyNumbers, mean_rows, rows_of, spreads
from bulkedge.propagation import softmax_of_gaussians

ROWS = ("entropy", "relative entropy", "participation", "mean participation")
OF = {"entropy": "entropy", "relative entropy": "entropy", "participation": "participation"}


def drawn(beta, tokens, rows, rng):
    """Entropy and sum of squares of drawn rows."""
    scores = beta * rng.standard_normal((rows, tokens))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return -np.sum(weights * np.log(np.maximum(weights, 1e-300)), axis=1), np.sum(weights**2, axis=1)


def measured(keep, tokens, entropy, squares):
    """What is kept, a number for each row."""
    return {
        "entropy": entropy,
        "relative entropy": entropy / np.log(tokens),
        "participation": squares,
        "mean participation": 1 / squares,
    }[keep]


@pytest.mark.parametrize("keep", ROWS)
@pytest.mark.parametrize("beta", [0.8, 2.0, 6.0])
def test_drawn_rows_keep_what_they_should_and_would_not_without(beta, keep):
    rng = np.random.default_rng(3)
    factor = score_scales(beta, 128, 1024, keep)
    before, after, plain = (
        measured(keep, tokens, *drawn(spread, tokens, rows, rng))
        for spread, tokens, rows in ((beta, 128, 8000), (factor * beta, 1024, 2000), (beta, 1024, 2000))
    )
    error = np.hypot(before.std() / 8000**0.5, after.std() / 2000**0.5)
    assert abs(after.mean() - before.mean()) < 4 * error
    if abs(np.log(factor)) > 0.05:
        assert abs(plain.mean() - before.mean()) > 4 * error


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("participation", [2.13, 1.44, 1.31]),
        ("mean participation", [2.22, 1.54, 1.38]),
        ("entropy", [2.84, 1.70, 1.43]),
    ],
)
def test_definitions_differ(keep, expected):
    """One over the mean of the sum of squares, and the mean of one over it, from 4096 to 131072 tokens."""
    np.testing.assert_allclose(score_scales([1.0, 2.0, 3.0], 4096, 131072, keep), expected, atol=0.006)


@pytest.mark.parametrize("beta", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("tokens", [3, 5000])
def test_mean_number_of_keys_is_that_of_brute_quadrature(beta, tokens):
    z = np.linspace(-11, 11, 3001)
    mass = np.exp(-(z**2) / 2)
    mass /= mass.sum()
    log_s = np.arange(-np.log(tokens) - 22 * beta - 30, 22 * beta + 5, 0.2)
    x = np.exp(np.minimum(log_s[:, None] + 2 * beta * z, 7.0))
    lost, root, whole = -np.expm1(-x) @ mass, (np.sqrt(x) * np.exp(-x)) @ mass, (x * np.exp(-x)) @ mass
    log_phi = np.log1p(-np.minimum(lost, 1 - 1e-16))
    both = whole * np.exp((tokens - 1) * log_phi) + (tokens - 1) * root**2 * np.exp((tokens - 2) * log_phi)
    assert KeyNumbers.of(beta, tokens).mean(tokens) == pytest.approx(0.2 * tokens * both.sum(), rel=1e-6)


def test_two_keys_are_a_single_integral():
    """``(1 + r)**2/(1 + r**2)`` of the ratio r of two weights, whose logarithm is Gaussian."""
    g = np.linspace(-12, 12, 20_001)
    mass = np.exp(-(g**2) / 2)
    ratio = np.exp(2.0 * 2**0.5 * g)
    assert KeyNumbers.of(2.0, 2).mean(2) == pytest.approx(
        np.sum(mass * (1 + ratio) ** 2 / (1 + ratio**2)) / mass.sum(), rel=1e-7
    )


@pytest.mark.parametrize("tokens", [2, 64, 4096])
@pytest.mark.parametrize("of", ["entropy", "participation", "keys"])
def test_tables_and_what_is_beyond_them(tokens, of, monkeypatch):
    monkeypatch.setattr("bulkedge.heads.softmax.BETA", be.support.domains.Interval(0, 1000))
    beta = np.array([0.02, 0.7, 4.0, 11.99, 12.01, 40.0, 60.0, 200.0])
    with np.errstate(over="ignore"):  # beyond its domain
        exact = [
            KeyNumbers.of(each, tokens).mean(tokens)
            if of == "keys"
            else getattr(softmax_of_gaussians(each, tokens), of)
            for each in beta
        ]
    found, one = rows_of(beta, tokens, of), 0.0 if of == "entropy" else 1.0
    inside = beta <= SHARPEST
    np.testing.assert_allclose(found[inside], np.array(exact)[inside], rtol=2e-5)
    np.testing.assert_allclose((found - one)[~inside], (np.array(exact) - one)[~inside], rtol=4e-3)


CHANNEL = Channel([[0.9, 0.5, 0.3], [2.0, 1.0, 0.2]], [[0.0, 0.5, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize("keep", ROWS)
def test_rows_of_a_channel_are_averaged_before_they_are_kept(keep):
    """At the factor the mean over rows of drawn queries is what it was, to the error of the rule over the rows."""
    factor = score_scales(CHANNEL, 200, 3000, keep)
    queries = CHANNEL.mean[:, None] + np.random.default_rng(8).standard_normal((2, 20_000, 3))
    beta = np.sqrt(np.sum((CHANNEL.couplings[:, None] * queries) ** 2, axis=-1))

    def kept(scale, tokens):
        mean = rows_of(scale * beta, tokens, OF.get(keep, "keys")).mean(axis=-1)
        return mean / np.log(tokens) if keep == "relative entropy" else mean

    # rows that look at many keys are few, and count most: 2048 queries have a mean number of keys to 6 %, these to 2 %
    close = 0.2 if keep == "mean participation" else 0.01
    np.testing.assert_allclose(kept(factor[:, None], 3000), kept(1.0, 200), rtol=close)
    assert np.all(np.abs(factor / score_scales(CHANNEL.beta, 200, 3000, keep) - 1) > 1e-3)


@settings(max_examples=25, deadline=None)
@given(
    beta=st.floats(0.05, 60.0),
    tokens=st.sampled_from([16, 200, 4096]),
    new=st.sampled_from([16, 200, 4096]),
    keep=st.sampled_from(ROWS),
)
def test_there_and_back_again(beta, tokens, new, keep):
    factor = score_scales(beta, tokens, new, keep)
    if not np.isnan(factor):
        assert factor * score_scales(factor * beta, new, tokens, keep) == pytest.approx(1, rel=2e-4)
    if new >= tokens:
        assert np.isfinite(factor)
        assert keep == "relative entropy" or factor >= 1


@pytest.mark.parametrize("keep", ROWS)
def test_heads_in_an_array_are_what_each_is_alone(keep):
    betas = np.array([[0.3, 1.0, 2.0], [4.0, 15.0, 70.0]])
    found = score_scales(betas, 100, 1000, keep)
    alone = [[score_scales(float(each), 100, 1000, keep) for each in row] for row in betas]
    np.testing.assert_allclose(found, alone, rtol=1e-8)
    assert isinstance(alone[0][0], float)


def test_cool_heads_have_a_closed_form():
    """``log T - beta**2/2`` is kept by ``beta'**2 = beta**2 + 2 log(T'/T)``, far below the freezing point."""
    assert score_scales(1.0, 10**10, 10**11) == pytest.approx((1 + 2 * np.log(10)) ** 0.5, rel=1e-3)
    assert score_scales(1.0, 10**10, 10**11, "participation") == pytest.approx((1 + np.log(10)) ** 0.5, rel=1e-2)


def test_where_there_is_no_factor_and_where_there_is_none_needed():
    assert np.isnan(score_scales(0.0, 100, 200))
    assert score_scales(0.0, 100, 200, "relative entropy") == 1
    assert np.isnan(score_scales(0.1, 200, 100))  # a row over a hundred keys has no such entropy
    for keep in ROWS:
        assert score_scales([0.0, 2.0], 100, 100, keep).tolist() == [1, 1]


@pytest.mark.parametrize("channel", [Channel([0.5, 0.3]), Channel([[0.5, 0.3], [0.8, 0.1]])])
def test_the_gap_does_not_depend_on_the_number_of_tokens(channel):
    found = score_scales(channel, 100, 10**6, "gap")
    np.testing.assert_array_equal(np.isnan(found), channel.condensed)
    np.testing.assert_array_equal(np.nan_to_num(found, nan=1.0), np.ones(np.shape(channel.condensed)))


HEADS = {
    "anisotropic": ([0.5, 0.3, 0.2, 0.1], [0.0] * 4),
    "mean query": ([0.5, 0.3, 0.2, 0.1], [1.0, 0.0, 1.0, 0.0]),
    "many directions": ([0.5] * 16, [0.5] * 16),
    "condensed": ([1.0, 0.8, 0.5, 0.3], [0.0] * 4),
}


def largest_share(couplings, mean, tokens, rng):
    queries, keys = mean + rng.standard_normal((400, len(mean))), rng.standard_normal((tokens, len(mean)))
    scores = (queries * couplings) @ keys.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.max(np.mean(weights / weights.sum(axis=1, keepdims=True), axis=0))


@pytest.mark.parametrize("name", HEADS)
def test_the_most_popular_key_keeps_its_share(name):
    """Medians over draws; their errors, 6 to 10 %, and the 15 % of the approximation add up."""
    rng = np.random.default_rng(1)
    couplings, mean = map(np.array, HEADS[name])
    channel = Channel(couplings, mean)
    factor = score_scales(channel, 200, 800, "popularity")
    shares = [
        np.median([largest_share(scale * couplings, mean, tokens, rng) for _ in range(60)])
        for scale, tokens in ((1.0, 200), (factor, 800), (1.0, 800))
    ]
    predicted = top_share(channel.couplings, channel.drift, 200)
    assert abs(np.log(predicted / shares[0])) < 0.3
    assert abs(np.log(shares[1] / shares[0])) < 0.3
    assert shares[2] < 0.7 * shares[0]


@pytest.mark.parametrize("beta", [0.1, 0.4])
def test_shares_are_summed_at_keys_between_neighbours(beta, monkeypatch):
    """With a mean query of zero, the log of a weak key's share is half its level: half the variance of its scores."""
    asked, normaliser = [], popularity._normaliser
    monkeypatch.setattr(popularity, "_normaliser", lambda *given: asked.append(given) or normaliser(*given))
    top_share(np.full(16, beta / 4), np.zeros(16), 500)
    mass, log_share, level = asked[0]
    assert mass.sum() == pytest.approx(1.0, abs=0.02)
    assert np.diff(log_share) / np.diff(level) == pytest.approx(0.5, abs=beta**2 / 30 + 1e-3)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dims=st.integers(1, 48),
    size=st.floats(-5, 3),
    mean=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    tokens=st.floats(0.31, 12),
)
def test_the_tail_of_popularity_is_where_it_should_be(seed, dims, size, mean, tokens):
    """Newton's steps against a search between ends that needs no derivative, for heads of all temperatures."""
    rng = np.random.default_rng(seed)
    couplings = 10**size * rng.gamma(0.7, 1.0, (3, dims)) + 1e-6
    drift = mean * couplings * rng.standard_normal((3, dims))
    rho, linear = couplings**2 / (1 + couplings**2), drift / (1 + couplings**2)
    heads, largest = Directions.of(rho, linear, drift), rho.max(-1, keepdims=True)
    wanted = np.log(np.log(2) / int(10**tokens))

    def excess(logs):
        slope = -np.expm1(-np.exp(logs)) / largest
        keys = heads.levels(slope)
        return _log_tail(slope, slope * keys.mean - keys.generating, keys) - wanted

    low, high = np.full((3, 1), -30.0), np.full((3, 1), np.log(30.0))
    none = ~((excess(low) >= 0) & (excess(high) <= 0))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = np.where(excess(middle) >= 0, middle, low), np.where(excess(middle) >= 0, high, middle)
    expected = np.where(none, np.nan, np.exp(low))
    expected = np.nan_to_num(expected)  # of two keys that are popular for one reason, none need be beyond the mean
    assert np.all(expected > 0) or int(10**tokens) == 2
    found = -np.log1p(-_slope(heads, largest, wanted) * largest)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_heads_without_couplings_like_no_key_more():
    channel = Channel([[0.0, 0.0], [0.5, 0.2]])
    assert top_share(channel.couplings, channel.drift, 50)[0] == pytest.approx(1 / 50)
    assert np.isnan(score_scales(channel, 50, 500, "popularity")[0])


def test_published_rules():
    rules = published_rules(4096, 131072)
    expected = {"log length": 17 / 12, "SSMax": 17 / 12, "YaRN": 1.8133, "LongRoPE": 17 / 12, "Llama 4": 1.2833}
    assert rules == pytest.approx(expected, abs=1e-4)
    assert set(published_rules(4096, 4096).values()) == {1.0}
    assert published_rules(8192 * 2, 8192 * 5)["Llama 4"] == pytest.approx(
        (1 + 0.1 * np.log(6)) / (1 + 0.1 * np.log(3))
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 10, 20), "not negative|none is negative"),
        ((float("nan"), 10, 20), "beta"),
        ((1.0, 1, 20), "tokens"),
        ((1.0, 10, 2.5), "new_tokens"),
        ((1.0, 10, 20, "rank"), "keep"),
        ((1.0, 10, 20, "gap"), "needs a Channel"),
        ((1.0, 10, 20, "popularity"), "needs a Channel"),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(be.DomainError, match=message):
        score_scales(*arguments)


def test_mean_rows_are_the_means_of_the_rule():
    mean, variance = np.array([2.0, 5.0]), np.array([1.0, 0.0])
    beta, weights = spreads(mean, variance)
    np.testing.assert_allclose(np.sum(weights * beta**2, axis=-1), mean)
    np.testing.assert_allclose(np.sum(weights * beta**4, axis=-1) - mean**2, variance, atol=1e-12)
    entropy, participation = mean_rows(mean, variance, 100)
    assert entropy[1] == pytest.approx(softmax_of_gaussians(5**0.5, 100).entropy, rel=1e-7)
    assert participation[1] == pytest.approx(softmax_of_gaussians(5**0.5, 100).participation, rel=1e-5)


COUPLINGS, MEAN = np.tile([0.7, 0.5, 0.3], 4), 0.2


def causal_rows(rng, tokens, factor, draws):
    """Entropies and sums of squares of simulated causal heads: (draws, tokens) each."""
    found = []
    for _ in range(draws):
        queries, keys = rng.standard_normal((2, tokens, COUPLINGS.size))
        scores = np.where(np.tri(tokens) > 0, (factor * COUPLINGS * (MEAN + queries)) @ keys.T, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        found.append((-np.sum(weights * np.log(np.maximum(weights, 1e-300)), axis=1), np.sum(weights**2, axis=1)))
    return np.swapaxes(found, 0, 1)


def causal_kept(keep, entropy, squares):
    """Means over positions, with an error from the draws; numbers of keys are averaged over stretches of 1/32 first."""
    tokens = entropy.shape[1]
    if keep == "entropy":
        values = entropy.mean(axis=1)
    elif keep == "relative entropy":
        values = entropy.mean(axis=1) / np.log(np.arange(1, tokens + 1)).mean()
    else:
        each = squares if keep == "participation" else 1 / squares
        values = np.log(each.reshape(len(each), 32, -1).mean(axis=2)).mean(axis=1)
    return values.mean(), values.std(ddof=1) / len(values) ** 0.5


@pytest.mark.parametrize("keep", ROWS)
def test_causal_heads_keep_it_in_the_mean_over_positions(keep):
    """The channel of one head of 512 tokens, and others drawn alike: its own spreads are known to 1 %.

    That, and the scatter of one draw's keys, is 0.05 nats of an entropy and 0.07 of a logarithm.
    """
    rng = np.random.default_rng(12)
    queries, keys = rng.standard_normal((2, 512, COUPLINGS.size))
    channel = be.heads.CausalChannel.from_qk(COUPLINGS * (MEAN + queries), keys, 1.0)
    factor = score_scales(channel, 128, 1024, keep)
    before, after, plain = (
        causal_kept(keep, *causal_rows(rng, tokens, scale, draws))
        for tokens, scale, draws in ((128, 1.0, 60), (1024, factor, 5), (1024, 1.0, 5))
    )
    known = {"entropy": 0.05, "relative entropy": 0.01}.get(keep, 0.07)
    assert abs(after[0] - before[0]) < known + 4 * np.hypot(before[1], after[1])
    assert abs(plain[0] - before[0]) > 2 * (known + 4 * np.hypot(before[1], after[1]))  # the rival: no factor


def test_spreads_of_causal_rows_are_those_of_their_scores():
    queries, keys = np.random.default_rng(13).standard_normal((2, 2, 75, 6))
    channel = be.heads.CausalChannel.from_qk(queries, 3.0 + keys, 0.4, block=16)
    scores = 0.4 * queries @ (3.0 + keys).transpose(0, 2, 1)
    exact = [[head[row, : row + 1].std(ddof=1) if row else 0.0 for row in range(75)] for head in scores]
    np.testing.assert_allclose(channel.spread, exact, atol=1e-12)
    assert score_scales(channel, 75, 150).shape == (2,)
    with pytest.raises(be.DomainError, match="not known for causal heads"):
        score_scales(channel, 75, 150, "popularity")


def test_popularity_factors_are_those_of_a_finer_search():
    """The first factor past one at which the share is the old one, to 0.1 %, wherever steps find it."""
    rng = np.random.default_rng(14)
    channel = Channel(rng.gamma(1, 1, (12, 8)) * rng.uniform(0.1, 0.4, (12, 1)), 0.5 * rng.standard_normal((12, 8)))
    found = score_scales(channel, 300, 2400, "popularity")
    assert np.isfinite(found).sum() > 6
    for head in np.flatnonzero(np.isfinite(found)):
        couplings, drift = channel.couplings[head], channel.drift[head]
        new = [top_share(factor * couplings, factor * drift, 2400) for factor in found[head] * np.array([0.999, 1.001])]
        assert min(new) <= top_share(couplings, drift, 300) <= max(new)


@pytest.mark.parametrize(("kind", "rule"), [("yarn", "YaRN"), ("longrope", "LongRoPE")])
def test_published_rules_are_those_of_transformers(kind, rule):
    """Transformers multiplies cosines and sines of queries and keys by its factor: scores by its square."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 32.0, "original_max_position_embeddings": 4096}
    rope |= {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8} if kind == "longrope" else {}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=rope)
    _, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert published_rules(4096, 131072)[rule] == pytest.approx(factor**2)


def test_the_numbers_of_llama_4_are_those_of_its_configuration():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers import Llama4TextConfig

    config = Llama4TextConfig()
    assert (config.attn_scale, config.floor_scale) == (LLAMA_SCALE, LLAMA_FLOOR)
