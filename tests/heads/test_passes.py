"""Blocks of rows: measures do not depend on their height, and products stand for matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bulkedge.heads.measures import singular_values as singular
from bulkedge.heads.measures.attention_measures import COMPARED, PROBES, comparison_measures, measure_heads, spread
from bulkedge.heads.measures.layer_visibility import LayerVisibility
from bulkedge.spectra.operators import AttentionOperator

ROWS = 30


def drawn(seed, kind):
    """Scores of two heads, what is added to them, and tokens."""
    rng = np.random.default_rng(seed)
    content = 2 * rng.standard_normal((2, ROWS, ROWS))
    distance = np.subtract.outer(np.arange(ROWS), np.arange(ROWS))
    hidden = {
        "full": None,
        "causal": distance < 0,
        "window": (distance < 0) | (distance >= 9),
        "padding": np.broadcast_to(rng.random(ROWS) < 0.3, (1, ROWS)),
        "blind": distance <= 0,  # the first row sees nothing
        "biased": distance < 0,
    }[kind]
    bias = None if hidden is None else np.where(hidden, -np.inf, 0.0)
    if kind == "biased":
        bias = bias - 0.2 * rng.random((2, 1, 1)) * distance
    if rng.random() < 0.5:
        content[0, :, 3] += 6.0  # a sink
    return content, bias, rng.integers(0, 6, ROWS)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["full", "causal", "window", "padding", "blind", "biased"]),
    st.integers(1, ROWS),
    st.booleans(),
)
def test_measures_do_not_depend_on_the_blocks(seed, kind, height, outside):
    """Of all masks, with sinks among the keys and outside of them; scores as an array and as a function."""
    content, bias, ids = drawn(seed, kind)
    sinks = np.array([0.5, -1.0]) if outside else None
    whole = LayerVisibility(np, (ROWS, ROWS), bias, ids, content)
    cut = LayerVisibility(np, (ROWS, ROWS), bias, ids, content, height)
    called = LayerVisibility(
        np, (ROWS, ROWS), None if bias is None else lambda rows: _rows(bias, rows), ids, content, height
    )
    expected = measure_heads(content, visibility=whole, factors=_factors(content), sink_scores=sinks)
    for visibility, scores in ((cut, content), (called, lambda rows: content[:, rows])):
        found = measure_heads(scores, visibility=visibility, factors=_factors(content), sink_scores=sinks)
        for name, each in expected.items():
            # small singular values are roots of rounding
            rounding = 1e-6 if name in {"spectrum", "gap"} else 1e-10
            np.testing.assert_allclose(found[name], each, rtol=1e-9, atol=rounding, err_msg=f"{kind} {name}")
        np.testing.assert_allclose(spread(scores, visibility), spread(content, whole), rtol=1e-12)


def _rows(bias, rows):
    return bias if bias.shape[-2] == 1 else bias[..., rows, :]


def _factors(content):
    return content, np.broadcast_to(np.eye(ROWS), content.shape)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_an_operator_stands_for_the_rows(mask, sink, monkeypatch):
    """The whole matrix as an operator, of which sinks are cut out, beside products by rows and all singular values."""
    rng = np.random.default_rng(4)
    query, key = rng.standard_normal((2, 1, 60, 8))
    key[:, 2] += 9.0 * sink
    query[..., :] += 1.0 * sink
    content = query @ key.swapaxes(-1, -2)
    bias = None if mask == "full" else np.where(np.tri(60) > 0, 0.0, -np.inf)
    visibility = LayerVisibility(np, (60, 60), bias, np.arange(60) % 7, content)
    expected = measure_heads(content, visibility=visibility)
    assert bool(expected["sink_count"][0]) == sink
    monkeypatch.setattr(singular, "COMPUTED", 10)
    for operator in (None, lambda head: AttentionOperator(query[head], key[head], 1.0, mask)):
        found, beside = (
            measure_heads(content, visibility=visibility, operator=operator),
            comparison_measures(content, visibility, operator),
        )
        for name in ("stable_rank", "effective_rank", "s1", "gap", "spectrum"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
        for name in COMPARED:
            np.testing.assert_array_equal(beside[name], found[name])


def test_the_rank_of_many_scores_under_a_cap_is_estimated():
    """From as many random vectors as there are tokens it is exact; from fewer it has the error that is said."""
    rng = np.random.default_rng(5)
    content = np.tanh(rng.standard_normal((1, 300, 40)) @ rng.standard_normal((1, 40, 300)) / 4)
    exact = measure_heads(content)["content_rank"]
    found = measure_heads(content, visibility=LayerVisibility(np, (300, 300), None, None, content, 50))["content_rank"]
    assert found == pytest.approx(exact, rel=0.1)
    assert found != pytest.approx(exact, rel=1e-9)
    assert PROBES < 300
