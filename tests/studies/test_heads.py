"""What the studies of real heads share, and formulas of their own."""

import numpy as np
import pytest

from bulkedge.ensembles import SoftmaxAttention
from bulkedge.heads import ChannelLaw
from bulkedge.lab.studies.heads import long_context, trained
from bulkedge.lab.studies.heads.long_context import generator, squared_values
from bulkedge.lab.studies.heads.shrinkage import loss_of
from bulkedge.laws import MarchenkoPastur


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
    monkeypatch.setattr(long_context, "find_spec", pytest.fail)
    rng = np.random.default_rng(1)
    assert generator(rng, long_context.LARGE - 1) is rng


def test_many_tokens_without_a_gpu_are_drawn_here(monkeypatch):
    monkeypatch.setattr(long_context, "find_spec", lambda name: None)
    rng = np.random.default_rng(1)
    assert generator(rng, long_context.LARGE) is rng


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


def squares_of(query, key, ids):
    """Squared singular values of attention between words, by projecting the whole text: all but the zeros."""
    weights = np.exp(query @ key.T)
    weights /= weights.sum(axis=1, keepdims=True)
    same = (ids == ids[:, None]) / np.sum(ids == ids[:, None], axis=0)
    values = np.linalg.svd(np.sqrt(len(ids)) * same @ (weights - weights.mean(axis=0)) @ same, compute_uv=False) ** 2
    return np.sort(values)[-(len(np.unique(ids)) - 1) :]


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_values_of_a_trained_head_are_those_between_words_in_their_places(apart, monkeypatch):
    """Held against laws of words in their places and at the means of them, here of fixed ones.

    Where every place of a word has the same query and key, the values are those of the whole attention matrix, which
    repeats only fill up with zeros, and both laws are asked for the same.
    """
    rng, words, laws, asked = np.random.default_rng(3), 30, [MarchenkoPastur(each) for each in (1.0, 0.5, 0.8)], []
    order = [laws[0], laws[1], laws[2], laws[0]]  # between words, at their means, between tokens, of nameless tokens

    def from_qk(query, key, scale, labels=None, *, average=True):
        asked.append((query, key, scale, labels, average))
        return order[len(asked) - 1]

    monkeypatch.setattr(ChannelLaw, "from_qk", from_qk)
    monkeypatch.setattr(trained, "FiniteHeadLaw", lambda *given: laws[2] if given == (0.5, 5, words) else None)
    ids = rng.permutation(np.concatenate([np.arange(words), rng.integers(0, words, 25)]))
    query, key = (rng.standard_normal((2, words, 5)) * np.array([[[0.5]], [[1.0]]]))[:, ids]
    query, key = query + apart * rng.standard_normal(query.shape), key + apart * rng.standard_normal(key.shape)
    head = trained.TrainedHead("text", 1, 2, query, key, ids, np.nextafter(trained.FLAT, 0), 0.5, 0.1)
    found = trained._measured(head)
    values = squares_of(query, key, ids)
    if not apart:
        weights = np.exp(query @ key.T)
        weights /= weights.sum(axis=1, keepdims=True)
        whole = np.linalg.svd(np.sqrt(len(ids)) * (weights - weights.mean(axis=0)), compute_uv=False) ** 2
        assert values == pytest.approx(np.sort(whole)[-(words - 1) :], rel=1e-10)
    assert found["value"] == pytest.approx(np.quantile(values, trained.LEVELS), rel=1e-11)
    steps = np.arange(words) / (words - 1)
    for law, distance, predicted in zip(laws, found["distance"], found["predicted"], strict=True):
        expected = max(np.abs(law.cdf(values) - steps[1:]).max(), np.abs(law.cdf(values) - steps[:-1]).max())
        assert distance == pytest.approx(expected, abs=1e-11)
        assert predicted == pytest.approx(law.cdf(found["value"]))
    assert [each[4] for each in asked] == [True, True, False, True]
    assert asked[3][3] is None
    here, there, itself = asked[:3]
    means = [np.stack([each[ids == word].mean(axis=0) for word in ids]) for each in (query, key)]
    assert np.array_equal(here[0], query)
    assert np.array_equal(here[1], key)
    assert there[0] == pytest.approx(means[0])
    assert there[1] == pytest.approx(means[1])
    assert np.array_equal(itself[0], query)
    assert all(each[2] == 1.0 and np.array_equal(each[3], ids) for each in asked[:3])
    asked.clear()
    sharp = trained._measured(head._replace(coupling=trained.FLAT))
    assert np.isnan(sharp["distance"][2]), "of a sharp head the finite-head law is not asked"
    assert np.isnan(sharp["predicted"][2]).all()
    assert sharp["distance"][:2] == found["distance"][:2]
