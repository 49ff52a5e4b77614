"""Attention matrices behind their masks: the wrong mask is refused, the right one gives the spectrum of the laws."""

import numpy as np
import pytest

import bulkedge as be
from bulkedge.visibility import softmax

RNG = np.random.default_rng(11)
SCORES = RNG.standard_normal((2, 40, 40))


@pytest.mark.parametrize("mask", ["full", "causal", be.Mask.window(40, 5)])
def test_the_mean_of_the_mask_is_taken_off(mask):
    seen = be.Mask.full(40) if mask == "full" else be.Mask.causal(40) if mask == "causal" else mask
    attention = softmax(SCORES, seen.visible())
    for k, found in enumerate(be.attention_spectrum(attention, mask)):
        centred = np.sqrt(40) * (attention[k] - seen.mean())
        assert found.unit is be.Unit.SQUARED
        assert found.values == pytest.approx(np.sort(np.linalg.svd(centred, compute_uv=False) ** 2), abs=1e-10)


def test_ensembles_agree():
    model = be.SoftmaxAttention(64, 16, 0.7, mask="causal")
    attention = model.sample(np.random.default_rng(0))
    expected = model.spectrum(np.random.default_rng(0)).values
    assert be.attention_spectrum(attention, "causal").values == pytest.approx(expected, abs=1e-12)


def test_cross_attention():
    attention = softmax(RNG.standard_normal((30, 50)))
    found = be.attention_spectrum(attention)
    assert found.size == 30
    assert found.values.sum() == pytest.approx(50 * np.sum((attention - 1 / 50) ** 2))


@pytest.mark.parametrize(
    ("attention", "mask", "message"),
    [
        (softmax(SCORES, be.Mask.causal(40).visible()), "full", "pass mask='causal'"),
        (softmax(SCORES), "causal", "has weight where"),
        (softmax(SCORES, be.Mask.padding([True] * 30 + [False] * 10).visible()), "full", "attended to by none"),
        (SCORES, "full", "are these scores|Are these scores"),
        (0.9 * softmax(SCORES), "full", "sum to one"),
        (softmax(SCORES)[0, 0], "full", "shape"),
        (softmax(SCORES), be.Mask.causal(41), "for .41, 41. queries"),
        (softmax(SCORES), "diagonal", "outside its domain"),
        (np.full((4, 4), np.nan), "full", "NaN"),
    ],
)
def test_what_is_no_attention_behind_its_mask_is_refused(attention, mask, message):
    with pytest.raises(be.DomainError, match=message):
        be.attention_spectrum(attention, mask)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors(dtype):
    """Single precision to 1e-5; bfloat16 entries are rounded to 2**-9 of themselves."""
    torch = pytest.importorskip("torch")
    attention = softmax(SCORES)
    found = be.attention_spectrum(torch.tensor(attention).to(getattr(torch, dtype)))
    expected = be.attention_spectrum(attention)
    tolerance = 1e-5 if dtype == "float32" else 0.05
    assert found.values == pytest.approx(expected.values, abs=tolerance)
