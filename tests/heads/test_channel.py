"""The channel of a head against attention matrices of Gaussian queries and keys, and against closed forms.

Sizes: 1500 tokens, means over eight draws. Corrections to the channel are of order 1/tokens times the squared norm, so
that 2 % of a singular value and 0.01 nats are several times what is left; what was measured is beside each.
"""

from functools import cache

import numpy as np
import pytest
from scipy.linalg import eigvalsh

from bulkedge.heads import Channel, softmax
from bulkedge.heads.channel import popularity
from bulkedge.heads.softmax import softmax_of_gaussians, transforms
from bulkedge.support.errors import DomainError

TOKENS, DRAWS = 1500, 8
COUPLINGS = [np.array([0.5, 0.3, 0.2, 0.1]), np.full(6, 0.3)]
MEANS = [0.0, 0.7]
FAR = 2.5
"""A mean query that makes most of the scores: the spread of rows depends on it to second order."""


def attention(couplings, mean, rng, tokens=TOKENS):
    """Queries and keys in the channel's own coordinates, and their attention."""
    u, y = rng.standard_normal((2, tokens, len(couplings)))
    scores = (couplings * (u + mean)) @ y.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return couplings * (u + mean), y, weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module", params=[(a, m) for a in range(2) for m in MEANS], ids=str)
def measured(request):
    """Means over draws of entropy, participation, squared norm and leading singular values."""
    which, mean = request.param
    rng, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        _, _, weights = attention(COUPLINGS[which], mean, rng)
        top = (TOKENS - 1 - len(COUPLINGS[which]), TOKENS - 1)
        values = eigvalsh(weights @ weights.T, subset_by_index=top)[::-1]
        entropy = -np.sum(weights * np.log(weights)) / TOKENS
        equal = np.sum(COUPLINGS[which] == COUPLINGS[which][0])  # that many values are equal in the limit
        following = np.sqrt(values[1 : 1 + equal]).mean()
        norm = np.sum(weights**2)
        found.append([entropy, norm / TOKENS, norm, np.sqrt(values[0]), following])
    return Channel(COUPLINGS[which], np.full(len(COUPLINGS[which]), mean)), np.mean(found, axis=0)


def rows_at(largest):
    """Entropy and participation of rows of Gaussian scores, at standard deviations of the scores in steps of 1/25."""
    grid = np.linspace(0, largest, int(25 * largest) + 1)
    return [(grid, each) for each in zip(*map(row_at, grid.tolist()), strict=True)]


@cache
def row_at(beta):
    return softmax_of_gaussians(beta, TOKENS)


@pytest.mark.parametrize("couplings", COUPLINGS, ids=len)
@pytest.mark.parametrize("mean", [*MEANS, FAR])
def test_rows(couplings, mean):
    """Against the mean over 100,000 drawn queries of what is exact for each; 1 % is what these draws leave."""
    channel = Channel(couplings, mean)
    queries = np.random.default_rng(6).standard_normal((100_000, len(couplings))) + mean
    beta = np.sqrt(np.sum((couplings * queries) ** 2, axis=1))
    entropy, participation = (np.interp(beta, *known).mean() for known in rows_at(np.ceil(beta.max())))
    assert channel.rows(TOKENS).entropy == pytest.approx(entropy, abs=0.002)
    assert channel.rows(TOKENS).participation == pytest.approx(participation, rel=0.03)


def test_rows_of_drawn_attention(measured):
    channel, (entropy, *_) = measured
    # keys are shared by the rows of a draw: the mean of eight draws is known to 0.01
    assert channel.rows(TOKENS).entropy == pytest.approx(entropy, abs=0.03)


def test_singular_values(measured):
    channel, (*_, norm, first, second) = measured
    # the bulk of noise adds to the finite matrix's norm; its mean was off by 4 % at most
    assert channel.squared_norm == pytest.approx(norm, rel=0.06)
    assert channel.perron == pytest.approx(first, rel=0.02)
    # noise adds about 1/(2 tokens ratio**2) of the bulk's variance to each
    assert channel.ratio == pytest.approx(second / first, rel=0.06)
    exact = channel.singular_values(4000)
    assert exact[0] == channel.perron
    assert np.sum(exact**2) == pytest.approx(channel.squared_norm, rel=1e-3)
    assert np.all(np.diff(exact) <= 0)


@pytest.mark.parametrize("mean", [0.0, 0.7])
def test_popularity(mean):
    rng = np.random.default_rng(1)
    couplings = np.array([0.9, 0.6, 0.3])
    _, keys, weights = attention(couplings, mean, rng, 3000)
    columns = weights.mean(axis=0)
    found = Channel(couplings, mean).popularity(keys)
    assert found.sum() == pytest.approx(1)
    assert np.corrcoef(np.log(found), np.log(columns))[0, 1] > 0.99
    assert np.abs(found - columns).sum() / 2 < 0.03
    # without the normaliser ("expected attention"), which is the rival
    plain = np.exp(keys @ (couplings * mean) + 0.5 * keys**2 @ couplings**2)
    assert np.abs(plain / plain.sum() - columns).sum() / 2 > 0.1


@pytest.mark.parametrize(("beta", "most"), [(2.0, 0.05), (3.0, 0.1), (5.0, 0.19)])
def test_popularity_saturates(beta, most):
    """Sharp rows give a key one at most: total variation at 1000 tokens and 16 directions, two to three times less."""
    couplings = np.full(16, beta / 4)
    _, keys, weights = attention(couplings, 0.0, np.random.default_rng(13), 1000)
    columns, channel = weights.mean(axis=0), Channel(couplings)
    found, limit = (np.abs(channel.popularity(keys, limit=each) - columns).sum() / 2 for each in (False, True))
    assert found < most
    assert found < (limit if beta == 2 else 0.7 * limit)


def test_an_outlying_key_saturates():
    """A key five deviations out, along the mean query: its share to a quarter, where the limit has more than twice."""
    rng = np.random.default_rng(14)
    couplings, mean = np.array([0.8, 0.5, 0.3]), np.array([1.5, 0.0, 0.0])
    queries, keys, _ = attention(couplings, mean, rng, 1000)
    keys[0] = [5.0, 0.0, 0.0]
    scores = np.exp(queries @ keys.T)
    share = np.mean(scores[:, 0] / scores.sum(axis=1))
    channel = Channel(couplings, mean)
    assert 0.2 < share < 0.4
    assert channel.popularity(keys)[0] == pytest.approx(share, rel=0.25)
    assert channel.popularity(keys, limit=True)[0] > 2 * share


def test_other_coordinates_are_the_same_channel():
    """Any change of basis that leaves the scores as they are, and any constant in the keys."""
    rng = np.random.default_rng(2)
    queries, keys, _ = attention(np.array([0.6, 0.4, 0.1]), 0.5, rng, 400)
    basis = rng.standard_normal((3, 3)) + 2 * np.eye(3)
    first = Channel.from_qk(queries, keys, 1.0)
    other = Channel.from_qk(queries @ np.linalg.inv(basis), keys @ basis.T + 7.0, 1.0)
    np.testing.assert_allclose(first.couplings, other.couplings, rtol=1e-8)
    np.testing.assert_allclose(first.beta, other.beta, rtol=1e-8)
    np.testing.assert_allclose(first.popularity(keys), other.popularity(keys @ basis.T + 7.0), rtol=1e-8)
    # in its own coordinates the two formulas for popularity agree
    exact = Channel.from_moments(np.array([0.3, -0.2]), np.diag([0.25, 0.04]), np.eye(2))
    own = Channel([0.5, 0.2], [0.6, -1.0])
    y = rng.standard_normal((50, 2))
    np.testing.assert_allclose(exact.popularity(y), own.popularity(y), rtol=1e-12)
    np.testing.assert_allclose(exact.beta, own.beta, rtol=1e-12)


def test_batches_are_heads_one_by_one():
    rng = np.random.default_rng(3)
    queries, keys = rng.standard_normal((2, 2, 3, 100, 5))
    batch = Channel.from_qk(queries, keys)
    assert batch.couplings.shape == (2, 3, 5)
    one = Channel.from_qk(queries[1, 2], keys[1, 2])
    for name in ("beta", "interaction", "effective_dim", "perron", "ratio", "squared_norm", "growth", "condensed"):
        assert getattr(batch, name)[1, 2] == pytest.approx(getattr(one, name), rel=1e-12), name
    assert batch.rows(50).entropy[1, 2] == pytest.approx(one.rows(50).entropy)
    np.testing.assert_allclose(batch.popularity(keys)[1, 2], one.popularity(keys[1, 2]))


def test_the_default_scale_is_that_of_transformers():
    rng = np.random.default_rng(4)
    queries, keys = rng.standard_normal((2, 4000, 16))
    assert Channel.from_qk(queries, keys).beta == pytest.approx(1.0, rel=0.02)
    assert Channel.from_qk(queries, keys).effective_dim == pytest.approx(16, rel=0.05)


def test_isotropic_heads_have_the_known_perron_value():
    """``1 + beta**4/(4 d)`` to leading order, for d equal couplings."""
    channel = Channel(np.full(400, 0.05))
    assert channel.perron == pytest.approx(1 + 1 / (4 * 400), rel=1e-4)


@pytest.mark.parametrize("mean", [0.0, 0.4])
def test_the_norm_is_that_of_the_density(mean):
    """``E t**2`` by quadrature in one direction."""
    x, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    u, y = x[:, None] + mean, x[None, :]
    density = np.exp(0.3 * u * y - 0.3**2 * u**2 / 2)
    assert Channel([0.3], [mean]).squared_norm == pytest.approx(w @ density**2 @ w, rel=1e-10)
    values = np.linalg.svd(np.sqrt(w)[:, None] * density * np.sqrt(w), compute_uv=False)
    np.testing.assert_allclose(Channel([0.3], [mean]).singular_values(5), values[:5], rtol=1e-8)


def test_past_the_threshold():
    channel = Channel([0.8, 0.1])
    assert channel.condensed
    assert channel.ratio == 1
    assert channel.perron == channel.squared_norm == np.inf
    assert channel.growth == pytest.approx((1.28 - 1) / (2 * 2.28))
    with pytest.raises(DomainError, match="unbounded"):
        channel.singular_values(3)
    assert Channel([np.sqrt(0.5) - 1e-9]).growth == 0


def test_hot_rows_freeze():
    """The annealed entropy is negative here; a row of a thousand keys is not."""
    channel = Channel(np.full(16, 1.2))
    annealed = np.log(1000) - channel.beta**2 / 2
    assert annealed < 0 < channel.rows(1000).entropy < 2
    rng = np.random.default_rng(5)
    weights = np.concatenate([attention(channel.couplings, 0.0, rng, 1000)[2] for _ in range(4)])
    entropy = -np.sum(weights * np.log(np.maximum(weights, 1e-300))) / len(weights)
    # rows of one draw share their keys: 0.05 is four standard errors of four draws
    assert channel.rows(1000).entropy == pytest.approx(entropy, abs=0.05)


@pytest.mark.parametrize(
    ("q", "k", "match"),
    [
        (np.ones((1, 4)), np.ones((3, 4)), "moments need two"),
        (np.ones((3, 4)), np.ones((3, 5)), "both are"),
        (np.full((3, 4), np.nan), np.ones((3, 4)), "finite|NaN"),
    ],
)
def test_what_is_refused(q, k, match):
    with pytest.raises(DomainError, match=match):
        Channel.from_qk(q, k)


def test_couplings_that_are_refused():
    for couplings in ([], [-0.1], [np.inf]):
        with pytest.raises(DomainError):
            Channel(couplings)
    with pytest.raises(DomainError, match="mean has shape"):
        Channel([0.1, 0.2], [1.0, 2.0, 3.0])
    with pytest.raises(DomainError, match="not keys of these heads"):
        Channel([0.1, 0.2]).popularity(np.ones((5, 3)))


def test_rows_are_quick_and_lose_nothing(monkeypatch):
    """Between the points of the table, at small, middle, large and freezing scales, against the exact integrals."""
    spreads = np.random.default_rng(8).uniform([[0], [0], [12]], [[1], [12], [48]], (3, 10)).ravel()
    for tokens, nats, relative in ((2, 2e-8, 1e-5), (1500, 1e-7, 1e-5), (10**12, 1e-6, 1e-3)):
        # no variance over rows: all have the spread of their mean
        entropy, participation = softmax.mean_rows(spreads**2, np.zeros_like(spreads), tokens)
        exact = np.transpose([softmax_of_gaussians(float(each), tokens) for each in spreads])
        np.testing.assert_allclose(entropy, exact[0], atol=nats, rtol=0)
        np.testing.assert_allclose(participation, exact[1], rtol=relative)
    softmax.forget()
    calls = []
    monkeypatch.setattr(softmax, "transforms", lambda *each: calls.append(each) or transforms(*each))
    Channel([0.5, 0.2]).rows(1501)
    assert 0 < len(calls) < 60  # half a millisecond each; sharp rows' table, which costs ten times as much, is not made
    made = len(calls)
    Channel([0.5, 0.2]).rows(977)
    assert len(calls) == made  # other numbers of keys share what depends on the spread alone


def test_rows_of_one_and_the_same_query():
    """Queries that do not vary at all have no couplings, but their scores spread: by the mean query alone."""
    keys = np.random.default_rng(9).standard_normal((500, 3))
    query = np.array([1.0, -0.5, 0.3])
    channel = Channel.from_qk(np.tile(query, (500, 1)), keys, 1.0)
    scores = keys @ query
    assert channel.interaction == pytest.approx(0, abs=1e-7)
    assert channel.beta == pytest.approx(scores.std(), rel=1e-9)
    assert channel.rows(500).entropy == pytest.approx(softmax_of_gaussians(scores.std(), 500).entropy, abs=1e-6)
    weights = np.exp(scores - scores.max())
    np.testing.assert_allclose(channel.popularity(keys, limit=True), weights / weights.sum(), rtol=1e-9)
    # keys are taken as added to a normaliser that has them already: off by the largest share
    np.testing.assert_allclose(channel.popularity(keys), weights / weights.sum(), rtol=weights.max() / weights.sum())
    assert channel.perron == pytest.approx(np.exp(scores.var() / 2), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_single_precision(dtype, offset):
    """A mean of thirty standard deviations leaves couplings and popularity their digits: 30 * 30 * 6e-8 of a square."""
    rng = np.random.default_rng(10)
    q, k = rng.standard_normal((2, 3, 700, 8)) + offset * np.ones((2, 1, 1, 1)) * np.array([0, 1])[:, None, None, None]
    exact, rough = Channel.from_qk(q, k), Channel.from_qk(q.astype(dtype), k.astype(dtype))
    np.testing.assert_allclose(rough.couplings, exact.couplings, atol=3e-5 if dtype == np.float32 else 1e-13)
    found = rough.popularity(k.astype(dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, exact.popularity(k), rtol=3e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("tokens", [2, 5, 40])
def test_fewer_tokens_than_dimensions(tokens):
    """Covariances without full rank: couplings are those of the singular values of the centred arrays."""
    q, k = np.random.default_rng(tokens).standard_normal((2, 2, tokens, 16))
    centred = [each - each.mean(axis=1, keepdims=True) for each in (q, k)]
    # the nuclear values of (Q'Q)**(1/2) (K'K)**(1/2) are those of Q K', for centred Q and K
    scores = np.linalg.svd(centred[0] @ np.swapaxes(centred[1], -1, -2) / (4 * tokens), compute_uv=False)
    found = Channel.from_qk(q, k).couplings
    np.testing.assert_allclose(found[:, : min(tokens, 16)], scores[:, :16], atol=1e-7)
    assert np.all(found[:, tokens:] < 1e-6)


def test_torch_is_numpy():
    """The same numbers from tensors, with and without a graph, in every precision, and popularity as a tensor."""
    torch = pytest.importorskip("torch")
    q, k = np.random.default_rng(11).standard_normal((2, 2, 3, 60, 8))
    exact = Channel.from_qk(q, k)
    for kind, close in ((torch.float64, 1e-12), (torch.float32, 3e-6), (torch.float16, 1e-2), (torch.bfloat16, 0.1)):
        queries, keys = (torch.tensor(each, dtype=kind, requires_grad=True) for each in (q, k))
        channel = Channel.from_qk(queries, keys)
        np.testing.assert_allclose(channel.couplings, exact.couplings, atol=close)
        found = channel.popularity(keys)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
        np.testing.assert_allclose(found.numpy(), exact.popularity(k), rtol=10 * close)
    # a channel of one library knows keys of the other
    np.testing.assert_allclose(exact.popularity(torch.tensor(k)).numpy(), exact.popularity(k), rtol=1e-12)
    with pytest.raises(DomainError, match="k has entries"):
        exact.popularity(torch.full((2, 3, 4, 8), float("nan")))


def test_gap():
    """One minus ``s_2/s_1``, whatever the mean and the other directions."""
    channel = Channel([[0.5, 0.3], [0.1, 0.0], [0.0, 0.0], [0.9, 0.2]], [[1.0, 0.5], [0, 0], [0, 0], [0, 0]])
    values = Channel([0.5, 0.3], [1.0, 0.5]).singular_values(2)
    assert channel.gap()[0] == pytest.approx(1 - values[1] / values[0], rel=1e-12)
    np.testing.assert_allclose(channel.gap()[2:], [1.0, 0.0])
    assert channel.effective_dim[2] == 0
    first = Channel([[0.5, 0.3], [0.1, 0.0]])
    np.testing.assert_allclose(first.singular_values(30)[1], Channel([0.1, 0.0]).singular_values(30))


def test_many_heads_are_shared_out():
    """Enough heads for several threads, at different scales."""
    rng = np.random.default_rng(12)
    q, k = rng.standard_normal((2, 19, 30, 4)) * np.linspace(0.1, 3, 19)[:, None, None]
    batch = Channel.from_qk(q, k)
    for index in (0, 7, 18):
        np.testing.assert_allclose(batch.couplings[index], Channel.from_qk(q[index], k[index]).couplings, rtol=1e-9)


@pytest.mark.parametrize("shapes", [((3,), (3, 3), (2, 2)), ((3,), (2, 3, 3), (3, 3)), ((), (1, 1), (1, 1))])
def test_moments_that_do_not_fit(shapes):
    mean, queries, keys = (np.ones(each) for each in shapes)
    with pytest.raises(DomainError):
        Channel.from_moments(mean, queries, keys)


@pytest.mark.parametrize("deviation", [0.01, 0.5, 1.0, 2.0, 8.0])
def test_means_of_the_logistic_function(deviation):
    """Of a Gaussian, against quadrature: within the five per cent of the exponentials, and with its own slope."""
    g = np.linspace(-60, 60, 240_001)
    mean = np.array([-6.0, -2.0, -0.5, 0.5, 3.0, 9.0])
    density = np.exp(-(((g - mean[:, None]) / deviation) ** 2) / 2)
    exact = np.sum(density / (1 + np.exp(g)), axis=1) / density.sum(axis=1)
    log, slope = popularity.left_over(np, mean, np.full(6, deviation))
    np.testing.assert_allclose(np.exp(log), exact, rtol=0.05)
    step = 1e-5
    above, below = (popularity.left_over(np, mean + each, np.full(6, deviation))[0] for each in (step, -step))
    np.testing.assert_allclose((above - below) / (2 * step), slope, atol=1e-6)


@pytest.mark.parametrize("beta", [0.1, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("tokens", [2, 5, 700])
def test_shares_sum_to_one_before_they_are_made_to(beta, tokens, monkeypatch):
    """However sharp the head is, and also with fewer keys than it has directions."""
    logs = []

    def listened(*forms):
        logs.append(popularity.saturate(*forms))
        return logs[-1]

    monkeypatch.setattr("bulkedge.heads.channel.gaussian_channel.saturate", listened)
    keys = np.random.default_rng(tokens).standard_normal((3, tokens, 8))
    shares = Channel(np.full((3, 8), beta / np.sqrt(8))).popularity(keys)
    assert np.all(shares > 0)
    np.testing.assert_allclose(np.exp(logs[0]).sum(axis=-1), 1, atol=2e-5)
    np.testing.assert_array_equal(Channel(np.full(8, beta)).popularity(keys[0, :1]), [1.0])
