"""What the studies of real heads share, and formulas of their own."""

import numpy as np
import pytest

from bulkedge.ensembles import SoftmaxAttention
from bulkedge.laws import MarchenkoPastur
from bulkedge.studies.heads import setting, trained
from bulkedge.studies.heads.setting import generator, squared_values
from bulkedge.studies.heads.shrinkage import loss_of


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_squared_values_on_torch_are_those_of_the_ensemble(mask):
    torch = pytest.importorskip("torch")
    model = SoftmaxAttention(60, 16, 0.8, mask=mask)
    found = squared_values(model, torch.Generator().manual_seed(4))
    expected = model.spectrum(torch.Generator().manual_seed(4))
    # eigenvalues of the Gram matrix: rounding of the largest
    np.testing.assert_allclose(found.values, expected.values, atol=1e-13 * expected.values[-1], rtol=0)
    assert found.unit == expected.unit


def test_numpy_stays_numpy():
    model = SoftmaxAttention(40, 16, 0.8)
    found = squared_values(model, np.random.default_rng(1))
    assert np.array_equal(found.values, model.spectrum(np.random.default_rng(1)).values)


def test_few_tokens_need_no_torch(monkeypatch):
    monkeypatch.setattr(setting, "find_spec", pytest.fail)
    rng = np.random.default_rng(1)
    assert generator(rng, setting.LARGE - 1) is rng


def test_many_tokens_without_a_gpu_are_drawn_here(monkeypatch):
    monkeypatch.setattr(setting, "find_spec", lambda name: None)
    rng = np.random.default_rng(1)
    assert generator(rng, setting.LARGE) is rng


@pytest.mark.parametrize(("loss", "order"), [("frobenius", "fro"), ("operator", 2), ("nuclear", "nuc")])
def test_the_loss_of_an_estimate_is_the_norm_of_its_error(loss, order):
    """``x u v' - eta w y'`` for unit vectors; signs are such that the overlaps have the same."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        u, w, v, y = (each / np.linalg.norm(each) for each in rng.standard_normal((4, 5)))
        y = y * np.sign((u @ w) * (v @ y))
        error = 1.3 * np.outer(u, v) - 0.8 * np.outer(w, y)
        found = loss_of(np.array(1.3), np.array(0.8), (u @ w) ** 2, (v @ y) ** 2, loss)
        assert found == pytest.approx(np.linalg.norm(error, order), rel=1e-12)


def test_words_at_the_mean_of_their_places_are_the_whole_text(monkeypatch):
    """Where every place of a word has the same query and key, its places are its mean, and both are the text.

    The values between words are then those of the whole attention matrix, which repeats only fill up with zeros.
    """
    rng, words, law = np.random.default_rng(3), 30, MarchenkoPastur(1.0)
    monkeypatch.setattr(trained.ChannelLaw, "from_qk", lambda *_, **__: law)  # what the values are held against
    query, key = rng.standard_normal((2, words, 5)) * np.array([[[0.5]], [[1.0]]])
    ids = rng.permutation(np.concatenate([np.arange(words), rng.integers(0, words, 25)]))
    found = trained._measured(trained.Head("text", 1, 2, query[ids], key[ids], ids, 1.0, 0.5, 0.1))
    weights = np.exp(query[ids] @ key[ids].T)
    weights /= weights.sum(axis=1, keepdims=True)
    values = np.linalg.svd(np.sqrt(len(ids)) * (weights - weights.mean(axis=0)), compute_uv=False) ** 2
    kept = np.sort(values)[-(words - 1) :]
    assert found["value"] == pytest.approx(np.quantile(kept, trained.LEVELS), rel=1e-11)
    steps = np.arange(words) / (words - 1)
    expected = max(np.abs(law.cdf(kept) - steps[1:]).max(), np.abs(law.cdf(kept) - steps[:-1]).max())
    (places, none), (mean, _) = found["distance"]
    assert (places, mean) == pytest.approx((expected, expected), abs=1e-11)
    assert np.isnan(none), "of a hot head the finite-head law is not asked"
    assert found["predicted"][0] == pytest.approx(law.cdf(found["value"]))
    # with places apart, words are sums of their places over the roots of their numbers
    apart = query[ids] + 0.3 * rng.standard_normal((len(ids), 5))
    found = trained._measured(trained.Head("text", 1, 2, apart, key[ids], ids, 1.0, 0.5, 0.1))
    middle = np.stack([apart[ids == word].mean(axis=0) for word in ids])
    weights = np.exp(middle @ key[ids].T)
    weights /= weights.sum(axis=1, keepdims=True)
    values = np.linalg.svd(np.sqrt(len(ids)) * (weights - weights.mean(axis=0)), compute_uv=False) ** 2
    assert found["value"] == pytest.approx(np.quantile(np.sort(values)[-(words - 1) :], trained.LEVELS), rel=1e-11)
    assert abs(found["distance"][0][0] - found["distance"][1][0]) > 1e-4
