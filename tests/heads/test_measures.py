"""Measures of attention matrices, against loops over their entries."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from bulkedge.heads.measures.attention_measures import (
    COMPARED,
    MEASURES,
    MOST_SINKS,
    comparison_measures,
    measure_heads,
)
from bulkedge.heads.measures.layer_visibility import FEWEST, NEAR, LayerVisibility
from bulkedge.heads.measures.singular_values import LEVELS

TOKENS = 40


def attention(scores):
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def centred(scores):
    """Without the means of rows and columns."""
    scores = scores - scores.mean(axis=1, keepdims=True)
    return scores - scores.mean(axis=0)


def common(a, seen):
    """Rows with the head's own preferences, one entry at a time."""
    tokens = len(a)
    x = np.array(
        [
            sum(a[i, j] for i in range(tokens)) / sum(1 / seen[i].sum() for i in range(tokens) if seen[i, j])
            for j in range(tokens)
        ]
    )
    return np.array([np.where(row, x, 0.0) / x[row].sum() for row in seen])


def by_loops(content, bias, ids):
    """All measures of one head without sinks, one entry at a time."""
    tokens = len(content)
    seen = np.isfinite(bias)
    a = attention(content + bias)
    rows = [i for i in range(tokens) if seen[i].sum() >= FEWEST]
    spreads = [np.var(content[i, seen[i]]) for i in rows]
    entropy = [-sum(p * math.log(p) for p in a[i] if p > 0) for i in rows]
    stripes = {
        k: np.mean([a[i, i + k] for i in rows if 0 <= i + k < tokens])
        for k in range(-(tokens // 2), tokens // 2 + 1)
        if any(0 <= i + k < tokens for i in rows)
    }
    best = max(stripes, key=lambda k: stripes[k])
    same = [
        sum(a[i, j] for j in range(tokens) if j != i and ids[j] == ids[i])
        for i in range(tokens)
        if any(j != i and ids[j] == ids[i] and seen[i, j] for j in range(tokens))
    ]
    values = np.linalg.svd(a, compute_uv=False)
    shares = values**2 / np.sum(values**2)
    some = seen.any(axis=0)
    squares = np.linalg.svd(centred(content[:, some]), compute_uv=False) ** 2
    fitted = common(a, seen)
    same_fitted = [
        sum(fitted[i, j] for j in range(tokens) if j != i and ids[j] == ids[i])
        for i in range(tokens)
        if any(j != i and ids[j] == ids[i] and seen[i, j] for j in range(tokens))
    ]
    spread = sum((a[i, j] - 1 / seen[i].sum()) ** 2 for i in rows for j in range(tokens) if seen[i, j])
    missed = sum((a[i, j] - fitted[i, j]) ** 2 for i in rows for j in range(tokens) if seen[i, j])
    return {
        "beta": math.sqrt(np.mean(spreads)),
        "entropy": np.mean(entropy),
        "evenness": np.mean([h / math.log(seen[i].sum()) for h, i in zip(entropy, rows, strict=True)]),
        "largest": np.mean([a[i].max() for i in rows]),
        "sink_mass": 0.0,
        "sink_count": 0.0,
        "sink_position": -1.0,
        "offset": best,
        "offset_mass": stripes[best],
        "same_token_mass": np.mean(same),
        "same_token_excess": np.mean(same) - np.mean(same_fitted),
        "column_energy": np.sum(a * fitted) ** 2 / (np.sum(a**2) * np.sum(fitted**2)),
        "near_mass": sum(a[i, j] - fitted[i, j] for i in rows for j in range(tokens) if abs(i - j) <= NEAR) / len(rows),
        "column_share": max(1 - missed / spread, 0.0),
        "content_rank": squares.sum() ** 2 / (squares**2).sum(),
        "stable_rank": np.sum(values**2) / values[0] ** 2,
        "effective_rank": math.exp(-sum(p * math.log(p) for p in shares if p > 0)),
        "s1": values[0],
        "gap": 1 - values[1] / values[0],
    }


def bias_of(mask):
    if mask == "full":
        return np.zeros((TOKENS, TOKENS))
    seen = np.tri(TOKENS) > 0
    if mask == "window":
        seen &= np.tri(TOKENS, k=-25) == 0
    return np.where(seen, 0.0, -np.inf)


@pytest.mark.parametrize("mask", ["full", "causal", "window"])
def test_against_loops(mask):
    rng = np.random.default_rng(3)
    content, bias = 0.7 * rng.standard_normal((3, TOKENS, TOKENS)), bias_of(mask)
    ids = rng.integers(0, 8, TOKENS)
    found = measure_heads(content, None if mask == "full" else bias, ids)
    assert set(found) == {*MEASURES, "spectrum", "columns"}
    for head in range(3):
        for name, value in by_loops(content[head], bias, ids).items():
            assert found[name][head] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        np.testing.assert_allclose(found["columns"][head], attention(content[head] + bias).mean(axis=0))
        values = np.sort(np.linalg.svd(attention(content[head] + bias), compute_uv=False))
        expected = np.interp(LEVELS, np.linspace(0, 1, TOKENS), values)
        np.testing.assert_allclose(found["spectrum"][head], expected, atol=2e-8)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_a_sink_is_taken_away(mask):
    """The other numbers are those of the same scores without that key; its own place is zero in all matrices."""
    rng = np.random.default_rng(4)
    content, bias = 0.5 * rng.standard_normal((2, TOKENS, TOKENS)), bias_of(mask)
    content[0, :, 3] += 6.0
    found = measure_heads(content, bias, rng.integers(0, 8, TOKENS))
    whole = attention(content[0] + bias)
    rows = np.isfinite(bias).sum(axis=1) >= FEWEST
    assert found["sink_count"].tolist() == [1.0, 0.0]
    assert found["sink_position"].tolist() == [3.0, -1.0]
    assert found["sink_mass"][0] == pytest.approx(whole[rows, 3].mean())
    hidden = bias.copy()
    hidden[:, 3] = -np.inf
    scores = content[0] + hidden
    rest = np.array([attention(row[None])[0] if np.any(np.isfinite(row)) else np.zeros(TOKENS) for row in scores])
    values = np.linalg.svd(rest, compute_uv=False)
    assert found["stable_rank"][0] == pytest.approx(np.sum(values**2) / values[0] ** 2)
    top = np.linalg.svd(whole, compute_uv=False)
    assert found["s1"][0] == pytest.approx(top[0], rel=1e-9)
    assert found["gap"][0] == pytest.approx(1 - top[1] / top[0], rel=1e-7)
    kept = np.isfinite(hidden)
    spreads = [np.var(content[0, i, kept[i]]) for i in range(TOKENS) if rows[i]]
    assert found["beta_without_sink"][0] == pytest.approx(math.sqrt(np.mean(spreads)))


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_common_preferences_have_all_the_column_energy(mask):
    """Rows that differ only by what they see: energy one, and nothing near beyond what the columns put there.

    Behind a mask preferences are what keys get over what an even spread would give them; rows that prefer others to
    these sums weigh them a little differently, by the spread of the sums of preferences that they see: 0.8/sqrt(16 to
    40) here.
    """
    rng = np.random.default_rng(5)
    content = np.broadcast_to(0.8 * rng.standard_normal(TOKENS), (1, TOKENS, TOKENS)).copy()
    found = measure_heads(content, bias_of(mask), np.arange(TOKENS))
    assert found["column_energy"][0] == pytest.approx(1.0, abs=1e-9 if mask == "full" else 0.8**2 / 16)
    assert found["near_mass"][0] == pytest.approx(0.0, abs=5e-3)
    assert found["stable_rank"][0] == pytest.approx(1.0, abs=1e-9) or mask == "causal"


def test_near_mass_is_what_is_beyond_the_columns():
    distance = np.abs(np.subtract.outer(np.arange(TOKENS), np.arange(TOKENS)))
    content = np.where(distance <= NEAR, 4.0, 0.0)[None]
    found = measure_heads(content, None, np.arange(TOKENS))
    a = attention(content[0])
    columns = a.mean(axis=0)
    near = distance <= NEAR
    expected = np.mean(np.sum(a * near, axis=1)) - np.mean(np.sum(columns[None] * near, axis=1))
    assert found["near_mass"][0] == pytest.approx(expected)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_column_share_is_beyond_an_even_spread(mask):
    """None for even rows, which have all the energy that columns can have; all for rows that agree."""
    rng = np.random.default_rng(8)
    content = np.zeros((3, TOKENS, TOKENS))
    content[1] = rng.standard_normal(TOKENS)
    content[2] = rng.standard_normal((TOKENS, TOKENS)) / 4
    found = measure_heads(content, bias_of(mask), np.arange(TOKENS))
    assert found["column_energy"][[0, 2]] == pytest.approx([1.0, 0.94], abs=0.03)
    assert found["column_share"][:2] == pytest.approx([0.0, 1.0], abs=1e-9 if mask == "full" else 1 / 16)
    assert found["column_share"][2] < 0.1


@pytest.mark.parametrize("width", [4, 8])
def test_fading_with_the_distance_is_near_and_no_column(width):
    """Behind a causal mask these rows share preferences, ``exp(j/width)``; it is the distance that they are about."""
    places = np.arange(4 * TOKENS)
    content = -np.abs(places[:, None] - places)[None] / width
    found = measure_heads(content, np.where(np.tri(4 * TOKENS) > 0, 0.0, -np.inf), places)
    within = 1 - math.exp(-(NEAR + 1) / width)
    assert found["near_mass"][0] > 0.6 * within
    assert found["column_share"][0] < 0.4


def test_keys_that_a_fraction_of_the_rows_wants_are_no_sinks():
    content = np.zeros((2, 2 * TOKENS, 2 * TOKENS))
    content[0, : TOKENS // 2, 7] = 12.0  # a quarter of the rows, all that they have
    content[1, :, 7] = 3.3  # all rows, a quarter of what they have
    found = measure_heads(content, None, np.arange(2 * TOKENS))
    assert found["sink_count"].tolist() == [0.0, 1.0]
    assert found["sink_mass"][1] == pytest.approx(0.25, abs=0.01)


def test_largest_values_next_to_many_close_ones():
    """A sink, and rows that look at their own few keys: s2 to s12 within 3 %. From a Gram matrix, values are right to
    1e-8 of the largest; twelve rounds of subspace iteration had left s2 wrong by 2 %."""
    tokens, rng = np.arange(300), np.random.default_rng(2)
    content = 4.0 * (tokens[:, None] // 4 == tokens // 4) + 0.1 * rng.standard_normal((300, 300))
    content[:, 205] = 5.5
    found = measure_heads(content[None])
    values = np.linalg.svd(attention(content), compute_uv=False)
    assert found["sink_count"][0] == 1
    assert found["s1"][0] == pytest.approx(values[0], rel=1e-8)
    assert found["gap"][0] == pytest.approx(1 - values[1] / values[0], abs=1e-7)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 12])
def test_many_equal_keys_are_no_sinks(count):
    """Up to four keys that share the attention are sinks; of more none is singled out, and nothing is taken away."""
    content = np.zeros((1, 2 * TOKENS, 2 * TOKENS))
    keys = np.random.default_rng(9).choice(2 * TOKENS, count, replace=False)
    content[:, :, keys] = 9.0
    found = measure_heads(content, None, np.arange(2 * TOKENS))
    assert found["sink_count"][0] == (count if count <= MOST_SINKS else 0)
    assert found["sink_mass"][0] == pytest.approx(1.0 if count <= MOST_SINKS else 0.0, abs=0.02)
    assert found["column_share"][0] == pytest.approx(0.0 if count <= MOST_SINKS else 1.0, abs=1e-9)


def test_weak_keys_beside_a_strong_sink_are_none():
    content = np.zeros((1, 2 * TOKENS, 2 * TOKENS))
    content[:, :, 7] = 8.0
    content[:, :, 20:23] = 6.5
    found = measure_heads(content, None, np.arange(2 * TOKENS))
    assert (found["sink_count"][0], found["sink_position"][0]) == (1.0, 7.0)


def test_the_rank_of_scores_counts_directions():
    """What rows and columns add is not counted, nor keys and rows that are padding, nor sinks."""
    rng = np.random.default_rng(10)
    left, right = (np.linalg.qr(x - x.mean(axis=0))[0] for x in rng.standard_normal((2, TOKENS, 3)))
    content = 9 * left @ right.T + 5 * rng.standard_normal(TOKENS)[:, None] + 0.3 * rng.standard_normal(TOKENS)
    assert measure_heads(content[None])["content_rank"][0] == pytest.approx(3.0, rel=1e-9)
    wide = np.full((1, TOKENS + 9, TOKENS + 9), 50.0) * rng.standard_normal(TOKENS + 9)[:, None]
    wide[:, :, TOKENS:] *= rng.standard_normal(9)
    wide[0, :TOKENS, :TOKENS] = content
    bias = np.where(np.arange(TOKENS + 9) < TOKENS, 0.0, -np.inf) + np.zeros((TOKENS + 9, 1))
    bias[TOKENS:] = -np.inf
    assert measure_heads(wide, bias)["content_rank"][0] == pytest.approx(3.0, rel=1e-9)


def test_rectangles_have_no_positions():
    content = np.random.default_rng(6).standard_normal((2, 30, 50))
    found = measure_heads(content)
    for name in ("offset", "offset_mass", "near_mass", "same_token_mass", "same_token_excess"):
        assert np.isnan(found[name]).all()
    values = np.linalg.svd(attention(content[1]), compute_uv=False)
    assert found["s1"][1] == pytest.approx(values[0])
    assert found["stable_rank"][1] == pytest.approx(np.sum(values**2) / values[0] ** 2)


def test_torch_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    content, bias, ids = rng.standard_normal((2, TOKENS, TOKENS)), bias_of("causal"), rng.integers(0, 8, TOKENS)
    plain = measure_heads(content, bias, ids)
    other = measure_heads(*(torch.from_numpy(each) for each in (content, bias, ids)))
    for name, values in plain.items():
        np.testing.assert_allclose(other[name], values, rtol=1e-9, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_what_is_compared_is_what_is_measured(mask):
    """With a sink in one head: the same numbers from both functions, and the same rank of scores from factors."""
    rng = np.random.default_rng(8)
    query, key = rng.standard_normal((2, 2, TOKENS, 5))
    key[0, 3] += 4 * query[0].mean(axis=0) / np.linalg.norm(query[0].mean(axis=0))
    query[0] += query[0].mean(axis=0) * 12
    content, ids = query @ np.swapaxes(key, 1, 2), rng.integers(0, 8, TOKENS)
    visibility = LayerVisibility.of(content, bias_of(mask), ids)
    plain, factored = (
        measure_heads(content, bias_of(mask), ids),
        measure_heads(content, visibility=visibility, factors=(query, key)),
    )
    assert plain["sink_count"].max() > 0
    brief = comparison_measures(content, visibility)
    assert set(brief) == {*COMPARED, "spectrum"}
    for name, values in factored.items():
        np.testing.assert_allclose(plain[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
        if name in brief:
            np.testing.assert_array_equal(brief[name], values, err_msg=name)


@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("score", [-800.0, 0.0, 4.0, 800.0])
def test_a_sink_outside_of_the_keys(score, sunk):
    """It takes its share of every row, which the matrix with one column more shows; the rest is as without it."""
    rng = np.random.default_rng(5)
    content = rng.standard_normal((2, 40, 40))
    content[:, :, 3] += 5.0 * sunk
    bias = np.where(np.tri(40) > 0, 0.0, -np.inf)
    ids = rng.integers(0, 9, 40)
    found = measure_heads(content, bias, ids, sink_scores=np.full(2, score))
    plain = measure_heads(content, bias, ids)
    whole = softmax(np.concatenate([content + bias, np.full((2, 40, 1), score)], axis=-1), axis=-1)
    attention = whole[..., :-1]
    values = np.linalg.svd(attention, compute_uv=False)
    np.testing.assert_allclose(found["s1"], values[:, 0], rtol=1e-7, atol=1e-200)
    if score < 100:
        np.testing.assert_allclose(found["gap"], 1 - values[:, 1] / values[:, 0], rtol=1e-6)
    busy = np.arange(40) >= FEWEST - 1
    share = whole[..., -1] + attention[..., 3] * sunk
    np.testing.assert_allclose(found["sink_mass"], share[:, busy].mean(axis=1), rtol=1e-10, atol=1e-12)
    for name in set(plain) - {"s1", "gap", "sink_mass"}:
        np.testing.assert_array_equal(found[name], plain[name], err_msg=name)
