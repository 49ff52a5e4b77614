"""Traces and Cholesky factors against the eigenvalue decomposition that they replace, in NumPy and in torch."""

import numpy as np
import pytest

from bulkedge.heads import Channel
from bulkedge.heads.channel import moments
from bulkedge.heads.channel.popularity import forms
from bulkedge.heads.softmax import mean_rows
from bulkedge.support.errors import DomainError

HEADS, TOKENS, DIM = 3, 120, 6
KINDS = ("plain", "mean", "cold", "sharp", "stretched", "few tokens", "one query", "one key", "a dead head")


def head(kind, seed):
    """Queries and keys of three heads, with a mean query, of the kind named."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, HEADS, 4 if kind == "few tokens" else TOKENS, DIM))
    if kind not in {"plain", "a dead head"}:
        q = q + rng.standard_normal((HEADS, 1, DIM))
    if kind == "stretched":  # directions of queries and keys of very different sizes, in a basis turned at random
        turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
        stretch = np.geomspace(0.1, 10, DIM)
        q, k = q / stretch @ turn.T, k * stretch @ turn.T
    if kind == "one query":
        q = np.repeat(q[:, :1], TOKENS, axis=1)
    if kind == "one key":
        k = np.repeat(k[:, :1], TOKENS, axis=1)
    if kind == "a dead head":
        q[1] = 0.0
    scale = {"cold": 1e-4, "sharp": 5.0}.get(kind, 1.0)
    return q, scale * k + 3.0


def by_eigenvalues(q, k, scale):
    """Couplings, drift and the three forms of all keys of one head, each direction by itself."""
    mean, queries = scale * q.mean(axis=0), scale**2 * np.cov(q.T, bias=True)
    rest, keys = k - k.mean(axis=0), np.cov(k.T, bias=True)
    values, vectors = np.linalg.eigh(keys)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    values, vectors = np.linalg.eigh(root.T @ queries @ root)
    values = np.where(values > 1e-14 * values.max(), values, 0.0)
    drift = vectors.T @ root.T @ mean
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)
    z = rest @ (queries @ root @ vectors) * np.sqrt(inverse)  # a_i y_i
    # what the mean query adds to a key, which may see it along directions without couplings
    shrunken = [rest @ np.linalg.matrix_power(np.linalg.inv(np.eye(DIM) + queries @ keys), n) @ mean for n in (1, 2, 3)]
    one = 1 + values
    first = z**2 @ (0.5 / one) + shrunken[0] - np.sum(drift**2 / one + np.log(one)) / 2
    second = z**2 @ ((1 + values / 2) / one**2) + shrunken[1] - np.sum(drift**2 / one**2 + values / one) / 2
    third = z**2 @ one**-3.0 - 2 * (shrunken[1] - shrunken[2])
    third = third + np.sum(values * drift**2 / one**3 + values**2 / one**2 / 2)
    return np.sqrt(values[::-1]), drift[::-1], np.stack([first, second, third], axis=-1)


def libraries():
    """NumPy, and torch where it is installed."""
    yield np.asarray
    try:
        import torch
    except ImportError:
        return
    yield torch.asarray


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_no_decomposition_is_needed(kind, seed, monkeypatch):
    """Sums over directions and the forms of keys, with couplings out of reach."""

    def refused(*_):
        raise AssertionError("this needs no couplings")

    q, k = head(kind, seed)
    exact = [by_eigenvalues(*each, 0.7) for each in zip(q, k, strict=True)]
    for library in libraries():
        with monkeypatch.context() as patch:
            patch.setattr("bulkedge.heads.channel.gaussian_channel.find_couplings", refused)
            channel = Channel.from_qk(library(q), library(k), 0.7)
            channel.popularity(library(k))
            found = np.asarray(forms(library(k), channel._forms))
            betas = [channel.beta, channel.interaction, channel.effective_dim, channel.rows(500).entropy]
        for index, (couplings, drift, wanted) in enumerate(exact):
            np.testing.assert_allclose(found[index], wanted, rtol=1e-11, atol=1e-11 * max(1.0, np.abs(wanted).max()))
            square, drifts = couplings**2, drift**2
            beta, interaction = np.sqrt(square.sum() + drifts.sum()), np.sqrt(square.sum())
            entropy = mean_rows((square + drifts).sum(), np.sum(2 * square * (square + 2 * drifts)), 500)[0]
            # without couplings there is only rounding, which the root makes larger
            size = np.abs(q).max() * np.abs(k).max()
            tiny = 1e-8 * size if interaction < 1e-6 * size else 1e-12
            assert betas[0][index] == pytest.approx(beta, rel=1e-11, abs=1e-12)
            assert betas[1][index] == pytest.approx(interaction, rel=1e-11, abs=tiny)
            assert betas[3][index] == pytest.approx(entropy, abs=1e-9)
            if interaction > 1e-6 * size:
                dim = square.sum() ** 2 / np.sum(square**2)
                assert betas[2][index] == pytest.approx(dim, rel=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_directions_say_the_same_as_sums(kind):
    """What is asked of couplings later agrees with what was known without them."""
    channel = Channel.from_qk(*head(kind, 5))
    squares = channel.couplings**2
    np.testing.assert_allclose(channel.interaction**2, squares.sum(axis=-1), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(channel.beta**2, np.sum(squares + channel.drift**2, axis=-1), rtol=1e-10, atol=1e-14)
    where = channel.couplings > 0
    np.testing.assert_allclose((channel.couplings * channel.mean)[where], channel.drift[where], rtol=1e-12)
    again = Channel(channel.couplings, channel.mean)
    assert repr(again) == repr(Channel(channel.couplings, channel.mean)) == repr(channel)
    np.testing.assert_allclose(again.interaction, channel.interaction, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("spread", [1e-120, 1e-60, 1e60])
def test_scores_of_any_size(spread):
    """Sums of fourth powers neither vanish nor overflow."""
    q, k = head("plain", 6)
    plain, other = Channel.from_qk(q, k), Channel.from_qk(spread * q, k)
    np.testing.assert_allclose(other.effective_dim, plain.effective_dim, rtol=1e-12)
    np.testing.assert_allclose(other.beta, spread * plain.beta, rtol=1e-12)


def test_keys_outside_the_span_of_the_known_ones():
    """Of few known keys, others may lie outside their span: the Gaussian integral over queries is what they get."""
    rng = np.random.default_rng(7)
    q, known = rng.standard_normal((200, 3)), np.outer(rng.standard_normal(50), [1.0, 0.0, 0.0])
    channel = Channel.from_qk(q, known, 0.5)
    keys = rng.standard_normal((40, 3))
    mean, inverse = 0.5 * q.mean(axis=0), np.linalg.inv(0.25 * np.cov(q.T, bias=True))
    posterior = np.linalg.inv(inverse + np.cov(known.T, bias=True))
    field = keys - known.mean(axis=0) + inverse @ mean  # E exp(q.k - q'Kq/2), by completing the square
    log = np.einsum("ni,ij,nj->n", field, posterior, field) / 2
    weights = np.exp(log - log.max())
    np.testing.assert_allclose(channel.popularity(keys, limit=True), weights / weights.sum(), rtol=1e-11)


@pytest.mark.parametrize("which", ["q", "k"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_what_is_not_finite_has_a_name(which, value):
    for library in libraries():
        arrays = dict(zip("qk", head("plain", 8), strict=True))
        arrays[which][1, 5, 2] = value
        with pytest.raises(DomainError, match=f"{which} has entries"):
            Channel.from_qk(*map(library, arrays.values()))


def test_scores_that_overflow_are_refused():
    q, k = head("plain", 9)
    for library in libraries():
        with pytest.raises(DomainError, match="variances of their scores"):
            Channel.from_qk(library(1e140 * q), library(1e140 * k))


def test_libraries_may_differ():
    """Queries of one library and keys of another, as before."""
    torch = pytest.importorskip("torch")
    q, k = head("mean", 10)
    plain = Channel.from_qk(q, k)
    for mixed in (Channel.from_qk(torch.asarray(q), k), Channel.from_qk(q, torch.asarray(k))):
        np.testing.assert_allclose(mixed.beta, plain.beta, rtol=1e-13)
        np.testing.assert_allclose(mixed.popularity(k), plain.popularity(k), rtol=1e-11)


def test_the_host_asks_once():
    """One transfer for a channel, its spread and its entropies; for popularity one question a step, and one after."""
    torch = pytest.importorskip("torch")
    asked = []

    class Listener(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            name = getattr(function, "__name__", "")
            if name in {"cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__"}:
                asked.append(name)
            return function(*arguments, **(options or {}))

    q, k = (torch.asarray(each) for each in head("mean", 11))
    with Listener():
        channel = Channel.from_qk(q, k)
        assert np.all(channel.beta > 0)
        assert np.all(channel.effective_dim > 1)
        channel.rows(500)
        assert asked == ["cpu", "numpy"]
        asked.clear()
        channel.popularity(k)
        assert set(asked) == {"__bool__"}
        assert len(asked) < 9
        asked.clear()
        channel.popularity(k, limit=True)
        assert asked == ["__bool__"]


def test_moments_stay_where_they_are():
    torch = pytest.importorskip("torch")
    q = head("plain", 12)[0]
    found, exact = moments.moments(torch.asarray(q, dtype=torch.float32)), moments.moments(q)
    assert found.mean.dtype == found.covariance.dtype == torch.float64
    for mine, wanted in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine.numpy(), wanted, atol=1e-6)
