"""Softmax attention, simulated, against its laws and predictions, at seeds that nothing was tuned on."""

import re
import warnings

import numpy as np
import pytest
from scipy.stats import kstest

import bulkedge as be
from bulkedge.ensembles.attention import taylor
from bulkedge.laws.attention.finite_head import heavy_share
from bulkedge.visibility import prefix_mean_values


@pytest.mark.parametrize("qk_norm", [False, True])
def test_finite_head_law_at_the_size_of_a_real_head(qk_norm):
    """2048 tokens, 64 dimensions, beta 1: at most 0.015, and a fourth of the proportional law's distance."""
    model = be.SoftmaxAttention(2048, 64, 1.0, qk_norm=qk_norm)
    found = model.spectrum(np.random.default_rng(101))
    distance = be.compare(found, model.law()).ks
    assert distance < 0.015
    with pytest.warns(be.RegimeWarning, match="degrees of the exponential are taken as noise"):
        assert distance < be.compare(found, model.law("proportional")).ks / 4


@pytest.mark.slow
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tokens", [1024, 2048, 4096])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("beta", [0.25, 0.5, 1.0, 1.25])
def test_finite_head_law_over_the_grid(request, beta, head_dim, tokens, qk_norm):
    """The goals; one of the 72 cells misses its own with this draw, and says so until it does not."""
    if (beta, head_dim, tokens, qk_norm) == (1.25, 128, 1024, True):
        missed = "0.0279 with this draw, 0.0195 to 0.0219 with seven others: a draw of heavy tails"
        request.applymarker(pytest.mark.xfail(strict=True, reason=missed))
    model = be.SoftmaxAttention(tokens, head_dim, beta, qk_norm=qk_norm)
    distance = be.compare(
        model.spectrum(np.random.default_rng(102)), be.FiniteHeadLaw(beta, head_dim, tokens, qk_norm)
    ).ks
    assert distance < (0.015 if tokens >= 2048 and beta <= 1 else 0.025)


def test_large_entries_deform_the_bulk_as_free_spikes():
    """At beta 1.25, 128 dimensions and 1024 tokens a law that takes them as Gaussian noise is off by 0.03."""
    model = be.SoftmaxAttention(1024, 128, 1.25, qk_norm=True)
    law = model.law("finite head")
    assert be.compare(model.spectrum(np.random.default_rng(111)), law).ks < 0.025


@pytest.mark.parametrize(("beta", "head_dim", "qk_norm"), [(1.75, 32, True), (1.75, 64, False), (2.0, 128, True)])
def test_with_entries_of_all_sizes_the_law_goes_on(beta, head_dim, qk_norm):
    """With 0.3 of the variance and more in entries that leave the bulk: 0.025 at most, and 0.6 of what it was."""
    model = be.SoftmaxAttention(1000, head_dim, beta, qk_norm=qk_norm)
    found = model.spectrum(np.random.default_rng(313))
    with pytest.warns(be.RegimeWarning, match="Take the law of sharp heads, HeadLaw, or simulate"):
        bulk = be.FiniteHeadLaw(beta, head_dim, 1000, qk_norm)
    with pytest.warns(be.RegimeWarning):
        entire = be.FiniteHeadLaw(beta, head_dim, 1000, qk_norm, large_entries=True)
    distance = be.compare(found, entire).ks
    assert distance < 0.025
    assert distance < be.compare(found, bulk).ks * 0.6


def test_heavy_share():
    """Against four million draws: the share of the variance beyond sqrt(T) standard deviations."""
    beta, tokens = 1.2, 300
    f = np.exp(beta * np.random.default_rng(105).standard_normal(4_000_000) - beta**2 / 2) - 1
    scale = np.sqrt(np.expm1(beta**2) * tokens)
    share = np.mean(f**2 * (f > scale)) / np.expm1(beta**2)
    assert heavy_share(beta, tokens) == pytest.approx(share, rel=0.1)


def test_stages_of_the_proof():
    """All six share their bulk; the last is the linear model, whose law is exact: 8/n."""
    model = be.SoftmaxAttention(400, 400, 0.6)
    stages = model.stages(np.random.default_rng(106))
    law = model.law("proportional")
    distances = [be.compare(be.spectrum(each).squared(), law).ks for each in stages]
    assert distances[-1] < 8 / 400
    assert max(distances) < 20 / 400
    assert stages.fixed_normaliser.sum(axis=1) == pytest.approx(np.zeros(400), abs=1e-10)


def test_taylor_polynomial():
    """Centred, and its variance and slope those of the exponential when the degree is large."""
    beta = 0.8
    polynomial = taylor(beta, 30)
    assert (polynomial.variance, polynomial.slope) == pytest.approx((np.expm1(beta**2), beta), rel=1e-12)
    x = np.linspace(-3, 3, 7)
    assert polynomial(x) == pytest.approx(np.expm1(beta * x - beta**2 / 2), abs=1e-9)


def test_scores_are_of_unit_variance_and_inputs_are_used():
    model = be.SoftmaxAttention(200, 100, 1.0, inputs=np.eye(200)[:, ::-1].copy())
    scores = model.scores(np.random.default_rng(107))
    assert scores.var() == pytest.approx(1.0, abs=0.05)
    twice = be.SoftmaxAttention(200, 100, 1.0, inputs=2 * np.eye(200)).scores(np.random.default_rng(107))
    assert twice.var() == pytest.approx(16.0, rel=0.05)
    assert kstest(scores[0] / scores[0].std(), "norm").pvalue > 1e-4


def test_inputs_that_are_not_orthonormal():
    """600 Gaussian tokens in 300 dimensions, beta 0.5: 24/n, where the law of orthonormal tokens is at 0.15."""
    rng = np.random.default_rng(108)
    inputs = rng.standard_normal((600, 300))
    inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
    model = be.SoftmaxAttention(600, 300, 0.5, inputs=inputs)
    assert be.compare(model.spectrum(rng), model.law()).ks < 24 / 600


def given_tokens(kind, rng):  # noqa: PLR0911 - a kind a line
    """280 tokens of unit length, of as many kinds as texts have structure."""

    def unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    count, width = 280, {"few dimensions": 64, "fewer": 16}.get(kind, 512)
    own, words = unit(rng.standard_normal((count, width))), unit(rng.standard_normal((90, width)))
    if kind == "mean":
        return unit(own + words[0])
    if kind == "repeated":
        return words[rng.integers(0, 90, count)]
    if kind == "near repeats":
        return unit(words[rng.integers(0, 90, count)] + 0.35 * own)
    if kind == "long and short":
        return own * np.exp(0.2 * rng.standard_normal((count, 1)))
    if kind == "autoregressive":
        for t in range(1, count):
            own[t] = 0.9 * own[t - 1] + np.sqrt(1 - 0.81) * own[t]
    if kind == "positions":
        angles = np.arange(count)[:, None] * np.exp(-np.linspace(0, 6, 32))
        waves = np.hstack([np.sin(angles), np.cos(angles)]) @ rng.standard_normal((64, width))
        return unit(words[rng.integers(0, 90, count)] + 0.7 * unit(waves))
    if kind == "two levels":
        return unit(own[:, :64] * np.where(np.arange(64) < 16, 2.0, 1.0))
    return unit(own)


@pytest.mark.parametrize(
    ("kind", "beta", "most"),
    [
        ("mean", 0.8, 0.025),
        ("repeated", 0.6, 0.02),
        ("near repeats", 0.8, 0.03),
        ("autoregressive", 0.8, 0.05),
        ("positions", 0.8, 0.05),
        ("few dimensions", 0.5, 0.05),
        ("two levels", 0.8, 0.05),
        ("long and short", 0.8, 0.05),
    ],
)
def test_law_of_given_tokens(kind, beta, most):
    """What the law says of itself, or half of it; the law of orthonormal tokens is at 0.06 to 0.7."""
    rng = np.random.default_rng(20261121)
    model = be.SoftmaxAttention(280, 64, beta, inputs=given_tokens(kind, rng))
    found = [model.spectrum(rng) for _ in range(2)]
    near, far = (
        np.mean([be.compare(each, law).ks for each in found]) for law in (model.law(), be.FiniteHeadLaw(beta, 64, 280))
    )
    assert near < most
    assert near < far - 0.02


@pytest.mark.parametrize("kind", ["fewer", "long"])
def test_inputs_that_the_law_does_not_know_are_warned_of(kind):
    """Sixteen columns, for which the law is 0.1 off, and lengths that vary by a factor of four."""
    rng = np.random.default_rng(5)
    tokens = given_tokens("fewer" if kind == "fewer" else "orthonormal", rng)
    if kind == "long":
        tokens = tokens * np.exp(0.6 * rng.standard_normal((280, 1)))
    with pytest.warns(be.RegimeWarning, match="directions only" if kind == "fewer" else "squared distances"):
        be.SoftmaxAttention(280, 64, 0.3, inputs=tokens).law()
    with pytest.raises(ValueError, match="all the same token"):
        be.SoftmaxAttention(50, 40, 0.5, inputs=np.ones((50, 3))).law()


def test_layers_of_a_stack_are_known_or_warned_of():
    """Heads on the tokens of layers two to five: 0.05, or a warning."""
    rng, known = np.random.default_rng(20261122), 0
    stack = be.AttentionStack(4, 280, 400, attention="key-query", layer_norm=True, gap=False)
    for layer in stack.layers(rng):
        model = be.SoftmaxAttention(280, 64, 1.0, inputs=layer.signal)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            law = model.law()
        if not told:
            known += 1
            assert be.compare(model.spectrum(rng), law).ks < 0.05
    assert known >= 2


def test_causal_attention_is_lower_triangular():
    attention = be.SoftmaxAttention(50, 16, 1.0, mask="causal").sample(np.random.default_rng(0))
    assert np.array_equal(attention, np.tril(attention))
    assert attention.sum(axis=1) == pytest.approx(np.ones(50))


def test_law_of_causal_attention_is_that_of_heads():
    """Whatever the dimensions; outside its domain there is none, but for flat heads of very many dimensions."""
    assert be.SoftmaxAttention(1000, 64, 0.8, mask="causal").law() == be.CausalHeadLaw(0.8, 64, 1000)
    assert be.SoftmaxAttention(100, 400, 0.5, mask="causal").law() == be.CausalHeadLaw(0.5, 400, 100)
    assert be.SoftmaxAttention(700, 11_000, 0.5, mask="causal").law() == be.CausalHeadLaw(0.5, 4096, 700)
    assert be.SoftmaxAttention(2000, 9000, 0.5, mask="causal").law() == be.CausalLaw(np.expm1(0.25))
    for model, message in (
        (be.SoftmaxAttention(1000, 16, 0.5, mask="causal"), "head_dim = 16 is outside its domain without qk_norm"),
        (be.SoftmaxAttention(2000, 9000, 2.0, mask="causal"), "head_dim = 9000 is outside its domain"),
    ):
        with pytest.raises(ValueError, match=f"{message}.*Simulate it"):
            model.law()
    assert be.SoftmaxAttention(10_000, 64, 1.6, mask="causal").law() == be.HeadLaw(1.6, 64, 10_000, causal=True)
    with pytest.warns(be.RegimeWarning, match="CausalHeadLaw at beta = 1.6 and 10000 tokens: .*causal=True.*simulate"):
        be.CausalHeadLaw(1.6, 64, 10_000)


def test_law_of_causal_attention():
    """700 tokens, nearly independent scores, beta 0.5: 15/n, twice what was measured at other sizes."""
    model = be.SoftmaxAttention(700, 11_000, 0.5, mask="causal")
    assert be.compare(model.spectrum(np.random.default_rng(109)), model.law()).ks < 15 / 700


@pytest.mark.parametrize(("qk_norm", "seed"), [(True, 112), (False, 113)])
def test_law_of_causal_heads(qk_norm, seed):
    """600 tokens, 48 dimensions, beta 0.7, at deciles: 12/n, where the law of independent scores is off by a tenth."""
    values = (
        be.SoftmaxAttention(600, 48, 0.7, qk_norm=qk_norm, mask="causal").spectrum(np.random.default_rng(seed)).values
    )
    levels = np.array([0.2, 0.4, 0.6, 0.8])
    x = np.quantile(values, levels)
    distance = np.abs(be.CausalHeadLaw(0.7, 48, 600, qk_norm).cdf(x) - levels).max()
    assert distance < 12 / 600
    assert distance < np.abs(be.CausalLaw(np.expm1(0.49)).cdf(x) - levels).max() / 4


def test_law_of_causal_heads_of_many_dimensions():
    """It is the causal law, up to 1/n and what row sums take off the variance: 0.01."""
    x = np.array([0.01, 0.1, 1.0])
    found = be.CausalHeadLaw(0.3, 4096, 300, qk_norm=True).cdf(x)
    assert found == pytest.approx(be.CausalLaw(np.expm1(0.09)).cdf(x), abs=0.01)
    assert be.CausalHeadLaw(0.3, 64, 300).cdf([-1.0, -1e-300, np.inf]).tolist() == [0, 0, 1]


def test_popular_columns_of_causal_heads():
    """A mean query with 64 % of the score's variance, 500 tokens: 10/n, where equal columns are a tenth off."""
    rng, tokens, dim = np.random.default_rng(115), 500, 64
    queries, keys = (rng.standard_normal((tokens, dim)) for _ in range(2))
    queries, keys = (each * (dim**0.5 / np.linalg.norm(each, axis=1, keepdims=True)) for each in (queries, keys))
    popularity = np.exp(0.8 * keys[:, 0])
    weights = np.tril(popularity * np.exp(0.6 * queries @ keys.T / dim**0.5))
    mean = np.tril(np.ones((tokens, 1)) * popularity)
    matrix = weights / weights.sum(axis=1, keepdims=True) - mean / mean.sum(axis=1, keepdims=True)
    found = be.spectrum(tokens**0.5 * matrix).squared()
    law = be.CausalHeadLaw(0.6, dim, tokens, qk_norm=True)
    assert be.compare(found, law.with_columns(popularity)).ks < 10 / tokens
    assert be.compare(found, law).ks > 0.08


def test_largest_value_of_causal_heads():
    """Sampled from the first rows: one in four of 60 draws is above its level of a quarter, within four errors."""
    law = be.CausalHeadLaw(0.8, 64, 100, qk_norm=True)
    model = be.SoftmaxAttention(100, 64, 0.8, qk_norm=True, mask="causal")
    rng = np.random.default_rng(116)
    above = [model.spectrum(rng).values[-1] > law.finite_edge(100, 0.25) for _ in range(60)]
    assert np.mean(above) == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 60))


def test_outliers_of_causal_attention():
    """The Cesaro matrix's, moved by the fluctuations of the first rows: a tenth at beta 0.3."""
    model = be.SoftmaxAttention(400, 400, 0.3, mask="causal")
    found = be.spectrum(model.sample(np.random.default_rng(110))).values[:-4:-1] ** 2 * 400
    assert [each.kind for each in model.outliers(3)] == ["mean"] * 3
    assert [each.location for each in model.outliers(3)] == pytest.approx(found.tolist(), rel=0.1)


def test_singular_values_of_the_cesaro_matrix():
    matrix = np.tril(np.ones((200, 200))) / np.arange(1, 201)[:, None]
    assert prefix_mean_values(200, 5) == pytest.approx(np.linalg.svd(matrix, compute_uv=False)[:5], rel=1e-12)
    assert prefix_mean_values(10**6, 1)[0] < 2


def test_regimes():
    assert be.SoftmaxAttention(1000, 64, 0.5).regime().name == "finite head"
    assert be.SoftmaxAttention(1000, 64, 2.0).regime().name == "sharp"
    assert be.SoftmaxAttention(1000, 64, 60.0).regime().name == "one-hot"
    with pytest.warns(be.RegimeWarning, match=r"draws is up to 0.42.*law\('sharp'\)"):
        assert be.SoftmaxAttention(1000, 64, 60.0, qk_norm=True).law().atoms[1][0] == 1000
    assert be.SoftmaxAttention(1000, 64, 8.0).law() == be.HeadLaw(8.0, 64, 1000)
    assert be.SoftmaxAttention(1000, 64, 2.0, qk_norm=True).law("sharp") == be.HeadLaw(2.0, 64, 1000, qk_norm=True)
    with pytest.warns(be.RegimeWarning, match="beta = 4, the nearest .* beta = 8, .* up to 0.34.*HeadLaw"):
        assert be.SoftmaxAttention(1000, 64, 8.0).law("finite head") == be.FiniteHeadLaw(4.0, 64, 1000, head_beta=8.0)
    with pytest.warns(be.RegimeWarning, match="beta = 7: .* low degrees are left out of causal heads so sharp"):
        assert be.SoftmaxAttention(1000, 64, 7.0, mask="causal").law() == be.HeadLaw(7.0, 64, 1000, causal=True)
    assert be.SoftmaxAttention(1000, 64, 1.0, mask="causal").law() == be.CausalHeadLaw(1.0, 64, 1000)
    with pytest.raises(ValueError, match="laws of masked attention are for orthonormal tokens"):
        be.SoftmaxAttention(50, 40, 1.0, mask="causal", inputs=np.eye(50)).law()
    with pytest.warns(UserWarning, match="not near for these inputs, which have squared distances"):
        be.SoftmaxAttention(50, 40, 0.1, inputs=np.diag(np.geomspace(0.3, 2, 50))).law()
    with pytest.raises(ValueError, match="without qk_norm"):
        be.SoftmaxAttention(50, 40, 1.0, qk_norm=True, inputs=np.eye(50)).law()
    with pytest.raises(ValueError, match="give a row for each of 50 tokens"):
        be.SoftmaxAttention(50, 16, 1.0, inputs=np.eye(3))


@pytest.mark.parametrize(
    "model",
    [be.SoftmaxAttention(50, 40, mask="causal"), be.SoftmaxAttention(50, 40, inputs=np.eye(50))],
    ids=["causal", "inputs"],
)
def test_what_is_known_for_plain_attention_only_is_refused_elsewhere(model):
    if model.inputs is not None:
        for ask in (model.perron, model.outliers):
            with pytest.raises(ValueError, match="outliers are known for orthonormal tokens"):
                ask()
    for ask in (model.expected_entry_outliers, model.median_second):
        with pytest.raises(ValueError, match="outliers are known for attention to all of"):
            ask()
    with pytest.raises(ValueError, match="stages of the proof"):
        model.stages(np.random.default_rng(0))


def test_long_tokens_make_the_scores_larger_and_the_law_says_so():
    long = be.SoftmaxAttention(200, 100, 0.5, inputs=2 * np.eye(200))
    # one of the 200 directions is the mean token's
    assert long.heavy_share() == pytest.approx(be.SoftmaxAttention(200, 100, 2.0).heavy_share(), rel=0.02)
    with pytest.warns(be.RegimeWarning, match="single large entries"):
        assert long.law().head.beta == pytest.approx(2.0 * (1 - 1 / 200))
    with pytest.raises(ValueError, match="regime = 'one-hot' is for attention to all of orthonormal tokens"):
        long.law("one-hot")


def check_what_law_states(rng, most):
    """A law is as near as it or its warning says, and where there is none the error has a remedy."""
    qk_norm, tokens, beta = bool(rng.integers(2)), int(np.exp(rng.uniform(3, np.log(most)))), rng.uniform(0.2, 12)
    dim, mask = int(np.exp(rng.uniform(np.log(8 if qk_norm else 32), 6.4))), rng.choice(["full", "causal"])
    model = be.SoftmaxAttention(tokens, dim, min(beta, rng.uniform(0.2, 12)), qk_norm, mask=str(mask))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            law = model.law()
            distance = be.compare(model.spectrum(rng), law).ks
        except be.UnresolvedError:
            return
        except ValueError as error:
            assert "Simulate it (be.null_of)" in str(error)  # noqa: PT017
            return
    stated = [float(re.search(r"draws is up to ([\d.]*\d)", str(each.message))[1]) for each in heard]
    accuracy = getattr(law, "accuracy", *stated)
    assert stated == [pytest.approx(accuracy, rel=0.05)] or accuracy < 0.02 + (0.7 / tokens**0.5) + 10 * beta / dim**2
    assert distance < accuracy


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("beta", [4.5, 8.0, 12.0, 40.0])
@pytest.mark.filterwarnings("ignore::bulkedge.RegimeWarning")
def test_no_law_is_nearer_than_the_one_taken(beta, qk_norm):
    """At any sharpness: laws of the bulk and of all entries, at this beta or the largest, and of one-hot rows."""
    model = be.SoftmaxAttention(300, 64, beta, qk_norm)
    found = model.spectrum(np.random.default_rng(20_270_104))
    others = [be.FiniteHeadLaw(min(beta, 4.0), 64, 300, qk_norm, entire) for entire in (False, True)]
    others.append(be.PoissonLaw(1.0).scaled(300))
    assert be.compare(found, model.law()).ks < min(be.compare(found, each).ks for each in others) + 0.03


@pytest.mark.parametrize(
    ("tokens", "head_dim", "beta"), [(400, 64, 0.5), (300, 16, 1.0), (200, 128, 2.0), (100, 64, 4)]
)
def test_the_proportional_law_says_how_far_it_is(tokens, head_dim, beta):
    """Few channels for a degree, or large entries: it was silent 0.05 to 0.99 away."""
    model = be.SoftmaxAttention(tokens, head_dim, beta, qk_norm=True)
    with pytest.warns(be.RegimeWarning, match="Simulate instead") as heard:
        law = model.law("proportional")
    stated = float(re.search(r"draws is up to ([\d.]*\d)", str(heard[0].message))[1])
    distance = be.compare(model.spectrum(np.random.default_rng(118)), law).ks
    assert stated / 4 < distance <= stated


@pytest.mark.parametrize("seed", range(4))
def test_a_law_is_as_near_as_it_says(seed):
    """At random sizes, score scales and masks; half a unit of the last digit of a warning."""
    rng = np.random.default_rng([20_270_102, seed])
    for _ in range(4):
        check_what_law_states(rng, 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_law_is_as_near_as_it_says_at_more_sizes(seed):
    rng = np.random.default_rng([20_270_103, seed])
    for _ in range(15):
        check_what_law_states(rng, 1500)


def test_torch_gives_the_same_law():
    torch = pytest.importorskip("torch")
    model = be.SoftmaxAttention(256, 64, 0.5)
    generator = torch.Generator().manual_seed(0)
    attention = model.sample(generator)
    assert isinstance(attention, torch.Tensor)
    assert be.compare(model.spectrum(generator), model.law()).ks < 20 / 256
    with pytest.raises(ValueError, match="neither a numpy"):
        model.sample(0)
