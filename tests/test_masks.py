"""Masks against their written-out matrices, and the one softmax against SciPy's."""

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.visibility import (
    BooleanMask,
    MaskOrName,
    WindowMask,
    mask_for,
    prefix_mean_values,
    softmax,
)
from bulkedge.visibility.layers import Chunks, Window, structure

MASKS = {
    "full": be.Mask.full(7),
    "cross": be.Mask.cross(5, 9),
    "causal": be.Mask.causal(8),
    "window": be.Mask.window(9, 3),
    "both sides": be.Mask.window(6, 3, after=1),
    "chunks": be.Mask.chunks(5, 2),
    "causal chunks": be.Mask.chunks(5, 3, causal=True),
    "padding": be.Mask.padding([True, False, True, True]),
    "padding of other queries": be.Mask.padding([True, False, True, True], queries=6),
    "any": be.Mask.of(np.array([[True, False], [True, True], [False, True]])),
    "both": be.Mask.causal(5) & be.Mask.padding([True, True, False, True, False]),
}


WRITTEN = {
    "full": ["1" * 7] * 7,
    "cross": ["1" * 9] * 5,
    "causal": ["1" * k + "0" * (8 - k) for k in range(1, 9)],
    "window": ["100000000", "110000000"] + ["0" * k + "111" + "0" * (6 - k) for k in range(7)],
    "both sides": ["110000", "111000", "011100", "001110", "000111", "000011"],
    "chunks": ["11000", "11000", "00110", "00110", "00001"],
    "causal chunks": ["10000", "11000", "11100", "00010", "00011"],
    "padding": ["1011"] * 4,
    "padding of other queries": ["1011"] * 6,
    "any": ["10", "11", "01"],
    "both": ["10000", "11000", "11000", "11010", "11010"],
}
"""The same masks by hand: a row for each query, 1 where it sees the key."""


@pytest.mark.parametrize("name", MASKS)
def test_masks_against_hand_written_ones(name):
    assert ["".join("01"[seen] for seen in row) for row in MASKS[name].visible().tolist()] == WRITTEN[name]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_conformance(mask):
    """Counts, mean and singular values are those of the matrix; singular values to rounding."""
    visible = mask.visible()
    assert visible.shape == mask.shape == (mask.queries, mask.keys)
    assert visible.dtype == bool
    assert mask.counts().tolist() == visible.sum(axis=1).tolist()
    mean = mask.mean()
    assert mean.sum(axis=1) == pytest.approx(np.ones(mask.queries))
    assert np.array_equal(mean > 0, visible)
    assert np.all(np.ptp(np.where(visible, mean, mean.max(axis=1, keepdims=True)), axis=1) < 1e-15)
    dense = np.linalg.svd(mean, compute_uv=False)
    values = mask.singular_values()
    assert values == pytest.approx(dense[: len(values)], rel=1e-12)
    assert np.all(dense[len(values) :] < 1e-12)
    assert mask.singular_values(1) == pytest.approx(dense[:1], rel=1e-12)
    assert mask.uniform == bool(np.all(visible == visible[0]))
    assert mask == BooleanMask(visible) or not isinstance(mask, BooleanMask)
    assert hash(mask) == hash(mask)
    assert len(repr(mask)) < 80


def test_window_and_causal():
    assert np.array_equal(be.Mask.window(6, 6).visible(), np.tri(6, dtype=bool))
    assert be.Mask.window(6, 10) == be.Mask.causal(6)
    assert np.array_equal(be.Mask.window(5, 1).visible(), np.eye(5, dtype=bool))
    assert WindowMask(6, 5).unlimited is False


def test_causal_values_of_a_million_tokens():
    """The norm of the Cesaro matrix tends to two from below (Brown, Halmos and Shields 1965)."""
    assert 1.8 < prefix_mean_values(10**6, 1)[0] < 2
    with pytest.raises(be.DomainError, match="is not written out"):
        be.Mask.causal(10**6).mean()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: be.Mask.full(0), "tokens|queries = 0 is outside"),
        (lambda: be.Mask.window(5, 0), "width = 0 is outside"),
        (lambda: be.Mask.padding([1, 0, 1]), "must be booleans"),
        (lambda: be.Mask.padding([False, False]), "see no key"),
        (lambda: be.Mask.of(np.eye(3)), "must be booleans"),
        (lambda: be.Mask.of(np.tri(4, 4, -1, dtype=bool)), r"queries \[0\] see no key"),
        (lambda: be.Mask.causal(4) & be.Mask.causal(5), "masks of one shape"),
        (lambda: be.SoftmaxAttention(32, 8, mask=be.Mask.causal(33)), "there are 32 tokens"),
        (lambda: be.SoftmaxAttention(32, 8, mask="band"), "outside its domain {'full', 'causal'} or a Mask"),
        (lambda: be.SoftmaxAttention(64, 8, mask=be.Mask.window(64, 4)).law(), "no law .* width = 4 is outside"),
        (
            lambda: be.SoftmaxAttention(32, 8, mask=be.Mask.of(np.eye(32, dtype=bool) | (np.arange(32) < 3))).law(),
            "no law is known for mask",
        ),
        (lambda: be.Mask.window(9, 3, after=3), "after = 3 is outside its domain: below width = 3"),
    ],
)
def test_bad_masks(make, message):
    with pytest.raises(be.DomainError, match=message):
        make()


def test_a_mask_does_not_change_behind_its_back():
    given_matrix = np.tri(4, dtype=bool)
    mask = be.Mask.of(given_matrix)
    given_matrix[3, 0] = False
    assert mask.visible()[3, 0]
    with pytest.raises(ValueError, match="read-only"):
        mask.visible()[3, 0] = False


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (be.Mask.full(9), Chunks(9, causal=False)),
        (be.Mask.causal(9), Chunks(9, causal=True)),
        (be.Mask.of(np.tri(9, dtype=bool)), Chunks(9, causal=True)),
        (be.Mask.window(9, 3), Window(3, 0)),
        (be.Mask.of(be.Mask.window(9, 4).visible()), Window(4, 0)),
        (be.Mask.window(9, 4, after=2), Window(4, 2)),
        (be.Mask.chunks(9, 4), Chunks(4, causal=False)),
        (be.Mask.chunks(9, 4, causal=True), Chunks(4, causal=True)),
        (be.Mask.padding([True] * 7 + [False] * 2), None),
        (be.Mask.chunks(9, 4) & be.Mask.window(9, 3), None),
    ],
)
def test_structure_of_masks(mask, found):
    """However a mask was written, laws know what it is."""
    assert structure(mask) == found


def test_names():
    assert mask_for("causal", 5) == be.Mask.causal(5)
    assert MaskOrName().parse("mask", "full") == "full"


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 2**20), st.floats(1e-3, 1e4))
def test_softmax(rows, columns, seed, size):
    """As SciPy's, also with scores of ten thousand; hidden keys weigh nothing and change nothing."""
    rng = np.random.default_rng(seed)
    scores = size * rng.standard_normal((rows, columns))
    assert softmax(scores) == pytest.approx(scipy.special.softmax(scores, axis=-1), abs=1e-15)
    assert softmax(scores, axis=0) == pytest.approx(scipy.special.softmax(scores, axis=0), abs=1e-15)
    visible = rng.random((rows, columns)) < 0.5
    visible[:, 0] = True
    hidden = softmax(scores, visible)
    other = softmax(np.where(visible, scores, rng.standard_normal(scores.shape)), visible)
    assert np.all(hidden[~visible] == 0)
    assert np.array_equal(hidden, other)


@pytest.mark.parametrize("mask", ["causal", be.Mask.window(60, 7), be.Mask.padding([True] * 50 + [False] * 10)])
def test_attention_behind_a_mask(mask):
    """What the mask hides is not attended to, and the mean that is taken off is the mask's."""
    model = be.SoftmaxAttention(60, 16, 0.4, mask=mask)
    attention = model.sample(np.random.default_rng(0))
    assert np.all(attention[~model.mask.visible()] == 0)
    assert attention.sum(axis=1) == pytest.approx(np.ones(60))
    centred = np.sqrt(60) * (attention - model.mask.mean())
    expected = np.linalg.svd(centred, compute_uv=False) ** 2
    assert model.spectrum(np.random.default_rng(0)).values == pytest.approx(np.sort(expected), abs=1e-12)
    rng = np.random.default_rng(1)
    tops = [60 * np.linalg.norm(model.sample(rng), 2) ** 2 for _ in range(40)]
    first = model.outliers(3)[0]
    assert abs(np.mean(tops) - first.location) < first.error + 3 * np.std(tops) / 40**0.5
    assert model.perron() == first.location > 60 * model.mask.singular_values(1)[0] ** 2


PACKED = np.kron(np.eye(3, dtype=bool), np.tril(np.ones((40, 40), dtype=bool)))


@pytest.mark.parametrize("beta", [0.7, 1.5, 3.0])
@pytest.mark.parametrize("mask", [be.Mask.window(120, 8), be.Mask.window(120, 40), be.Mask.of(PACKED), "causal"])
def test_outliers_behind_a_mask_decrease_and_have_an_honest_error(mask, beta):
    """Values in crowds were placed too low, out of order, with a third of the error."""
    model, rng = be.SoftmaxAttention(120, 32, beta, mask=mask), np.random.default_rng(20_270_105)
    drawn = 120 * np.array([np.linalg.svd(model.sample(rng), compute_uv=False)[:5] ** 2 for _ in range(12)])
    places, errors = (np.array(each) for each in list(zip(*model.outliers(5), strict=True))[1:])
    assert np.all(np.diff(places) <= 0)
    assert np.all(np.abs(drawn.mean(axis=0) - places) < errors + 3 * drawn.std(axis=0, ddof=1) / 12**0.5)
    assert errors[0] < {0.7: 0.3, 1.5: 0.75, 3.0: 3.0}[beta] * places[0]


def test_tokens_that_see_themselves_have_nothing_to_vary():
    model = be.SoftmaxAttention(40, 64, 1.0, mask=be.Mask.window(40, 1))
    assert {each[1:] for each in model.outliers(5)} == {(40.0, 0.0)}


def test_torch():
    torch = pytest.importorskip("torch")
    like = torch.zeros(3, dtype=torch.float32)
    mask = be.Mask.causal(4)
    assert mask.visible(like).dtype is torch.bool
    assert mask.mean(like).dtype is torch.float32
    assert np.array_equal(mask.mean(like).numpy(), mask.mean().astype(np.float32))
    assert be.Mask.of(torch.ones(2, 3, dtype=torch.bool)).shape == (2, 3)
    generator = torch.Generator().manual_seed(0)
    attention = be.SoftmaxAttention(40, 8, 0.5, mask=be.Mask.window(40, 5)).sample(generator)
    assert torch.all(attention[~torch.tensor(be.Mask.window(40, 5).visible())] == 0)
