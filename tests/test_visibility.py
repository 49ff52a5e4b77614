"""One rule for hidden keys in every room: scans, watches, nn, operators and ensembles against an explicit matrix."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import bulkedge as be  # noqa: E402
from bulkedge.heads.measures.attention_measures import measure_heads  # noqa: E402
from bulkedge.heads.measures.layer_visibility import FEWEST  # noqa: E402
from bulkedge.models.hooks.attention_hooks import AttentionInputs  # noqa: E402
from bulkedge.models.hooks.attention_inputs import AttentionLayer  # noqa: E402
from bulkedge.models.watching.measures import NAMES, readings  # noqa: E402
from bulkedge.models.watching.moment_entropy import gaussian_rows  # noqa: E402
from bulkedge.nn import gap_free_attention  # noqa: E402
from bulkedge.nn.attention import shaped_matrix  # noqa: E402
from bulkedge.visibility import Visibility, additive, seen_keys  # noqa: E402

SPELLINGS = {
    "booleans": None,
    "infinity": (-np.inf, "float32"),
    "-1e4": (-1e4, "float32"),
    "-1e4 in halves": (-1e4, "float16"),
    "-1e9": (-1e9, "float32"),
    "-1e9 in doubles": (-1e9, "float64"),
    "least single": (float(np.finfo(np.float32).min), "float32"),
    "least half": (float(np.finfo(np.float16).min), "float16"),
    "least bfloat16": (-3.3895313892515355e38, "bfloat16"),
}
"""What stands for hidden keys, and the type of the mask."""
SHAPES = ["full", "causal", "window", "left", "right", "left and causal", "packed", "packed and causal"]


def drawn_visible(shape, tokens, rng):
    """Who sees whom, written out key by key."""
    cut = int(rng.integers(1, tokens))
    sequence = np.cumsum(rng.random(tokens) < 0.3)
    rules = {
        "causal": lambda i, j: j <= i,
        "window": lambda i, j: i - cut < j <= i,
        "left": lambda _, j: j >= cut,
        "right": lambda _, j: j < cut,
        "packed": lambda i, j: sequence[i] == sequence[j],
        "full": lambda *_: True,
    }
    chosen = [rules[each] for each in shape.split(" and ")]
    return np.array([[all(rule(i, j) for rule in chosen) for j in range(tokens)] for i in range(tokens)])


def explicit(scores, visible):
    """The attention matrix and the mean of its mask, row by row in double precision; rows that see no key are zero."""
    attention, mean = np.zeros(scores.shape), np.zeros(scores.shape)
    for i, seen in enumerate(visible):
        if seen.any():
            weights = np.exp(scores[i, seen] - scores[i, seen].max())
            attention[i, seen], mean[i, seen] = weights / weights.sum(), 1 / seen.sum()
    return attention, mean


class Case:
    """A head behind a mask in some spelling, and the matrices that it should have."""

    def __init__(self, spelling, shape, tokens, seed, *, biased):
        rng = np.random.default_rng(seed)
        self.tokens, self.dim = tokens, 4
        self.query, self.key = rng.standard_normal((2, tokens, self.dim))
        self.content = self.query @ self.key.T / 2
        self.visible = drawn_visible(shape, tokens, rng)
        distance = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens)))
        # ALiBi: multiples of a quarter, which all types know
        self.bias = -0.25 * distance if biased and SPELLINGS[spelling] else np.zeros(self.visible.shape)
        self.attention, self.mean = explicit(self.content + self.bias, self.visible)
        self.counts = self.visible.sum(axis=1)
        self.entropy = -np.sum(self.attention * np.log(np.where(self.attention > 0, self.attention, 1.0)), axis=1)
        if SPELLINGS[spelling] is None:
            self.mask = torch.tensor(self.visible)
        else:
            hidden, dtype = SPELLINGS[spelling]
            self.mask = torch.tensor(np.where(self.visible, self.bias, hidden), dtype=getattr(torch, dtype))

    def tensors(self):
        return [torch.tensor(each, dtype=torch.float32)[None, None] for each in (self.query, self.key)]


cases = st.builds(
    Case,
    st.sampled_from(sorted(SPELLINGS)),
    st.sampled_from(SHAPES),
    st.integers(3, 24),
    st.integers(0, 2**20),
    biased=st.booleans(),
)


@given(cases)
def test_the_rule(case):
    """Of torch and of NumPy; additive masks are minus infinity where a key is hidden and the bias elsewhere."""
    kinds = [case.mask] if case.mask.dtype == torch.bfloat16 else [case.mask, case.mask.numpy()]
    for mask in kinds:
        assert np.array_equal(np.asarray(seen_keys(mask)), case.visible)
        assert np.array_equal(np.asarray(additive(mask)), np.where(case.visible, case.bias, -np.inf))
        layer = Visibility(mask, causal=False, window=None, rows=case.tokens, keys=case.tokens)
        like = torch.ones(1) if mask is case.mask else np.ones(1)
        assert np.array_equal(np.asarray(layer.additive(slice(1, 3), like)), additive(mask)[1:3])
        short = layer.simplified()
        rows = slice(0, case.tokens)
        found = short.additive(rows, like)
        assert np.array_equal(0.0 if found is None else np.asarray(found), 0.0 if found is None else additive(mask))
        assert (found is None) == bool(case.visible.all() and not case.bias.any())


@given(cases)
def test_scans_agree_with_the_matrix(case):
    content = torch.tensor(case.content)[None]
    assume(case.visible.any())
    mask = case.mask
    found = measure_heads(content, mask)
    enough = case.counts >= min(FEWEST, case.tokens)
    rows = enough if enough.any() else case.counts > 0
    assert found["entropy"][0] == pytest.approx(case.entropy[rows].mean(), abs=1e-9)
    assert found["columns"][0] == pytest.approx(case.attention.sum(axis=0) / case.tokens, abs=1e-9)
    even = np.log(np.maximum(case.counts, 2))
    assert found["evenness"][0] == pytest.approx((case.entropy / even)[rows].mean(), abs=1e-9)
    assert found["s1"][0] == pytest.approx(np.linalg.norm(case.attention, 2), abs=1e-6)


@given(cases)
def test_layers_agree_with_the_matrix(case):
    layer = Visibility(case.mask[None, None], causal=False, window=None, rows=case.tokens, keys=case.tokens)
    found = AttentionLayer("", *case.tensors(), layer.simplified(), 0.5).attention()[0, 0].numpy()
    blind = case.counts == 0
    assert np.isnan(found[blind]).all()
    assert found[~blind] == pytest.approx(case.attention[~blind], abs=1e-5)


@given(cases)
def test_watches_agree_with_the_matrix(case):
    real = (case.counts >= 2) & case.visible.any(axis=0)
    assume(real.any())
    query, key = case.tensors()
    layer = Visibility(case.mask[None, None], causal=False, window=None, rows=case.tokens, keys=case.tokens)
    numbers = readings([AttentionInputs(query, key, None, 0.5, layer)], case.tokens)
    found = dict(zip(NAMES, numbers[:, 0, 0].tolist(), strict=True))
    assert found["entropy"] == pytest.approx(case.entropy[real].mean(), abs=1e-4)
    assert found["uniform_entropy"] == pytest.approx(np.log(case.counts[real]).mean(), abs=1e-5)
    assert found["keys"] == case.counts.max()
    spreads = [np.std((case.content + case.bias)[i, case.visible[i]]) for i in np.flatnonzero(real)]
    expected = gaussian_rows(*torch.tensor(np.array([spreads, np.log(case.counts[real])])).float()).entropy.mean()
    assert found["predicted_entropy"] == pytest.approx(float(expected), abs=1e-4)
    if not case.bias.any():  # all keys are near their row, so that nothing is taken as Gaussian
        assert found["expected_entropy"] == pytest.approx(case.entropy[real].mean(), abs=1e-3)


@given(cases)
def test_gap_free_attention_agrees_with_the_matrix(case):
    """Values that are the identity show the matrix itself; a row without a key has no mean."""
    query, key = case.tensors()
    mask = case.mask.float() if case.mask.is_floating_point() else case.mask
    sees = case.counts > 0
    found = gap_free_attention(query, key, torch.eye(case.tokens)[None, None], mask)[0, 0].numpy()
    assert found[sees] == pytest.approx((case.attention - case.mean)[sees], abs=1e-5)
    nothing = torch.zeros(1, 1, case.tokens, case.tokens, dtype=query.dtype)
    matrix = shaped_matrix(query, key, mask)[0, 0].numpy()
    assert matrix[sees] == pytest.approx((case.attention - case.mean)[sees], abs=1e-5)
    if case.mask.is_floating_point() and not case.bias.any():  # in the type of the mask: without scores A is C
        nothing = nothing.to(case.mask.dtype)
        found = gap_free_attention(nothing, nothing, nothing + torch.eye(case.tokens).to(nothing), case.mask)[0, 0]
        assert found.double().numpy()[sees] == pytest.approx(0.0, abs=2e-2)


@given(cases)
def test_operators_and_ensembles_agree_with_the_matrix(case):
    make = be.Mask.additive if case.mask.is_floating_point() else be.Mask.of
    if case.bias.any() or not case.visible.any(axis=1).all():
        biased = np.any(case.bias[case.visible] != 0)
        with pytest.raises(be.DomainError, match="adds a bias" if biased else "see no key"):
            make(case.mask)
        return
    mask = make(case.mask)
    operator = be.AttentionOperator(case.query, case.key, 0.5, mask)
    assert operator @ np.eye(case.tokens) == pytest.approx(case.attention, abs=1e-12)
    assert operator.centred() @ np.eye(case.tokens) == pytest.approx(case.attention - case.mean, abs=1e-12)
    if case.tokens < 16:
        return
    model = be.SoftmaxAttention(case.tokens, 3, 0.7, mask=mask)
    expected, mean = explicit(0.7 * model.scores(np.random.default_rng(1)), case.visible)
    assert model.sample(np.random.default_rng(1)) == pytest.approx(expected, abs=1e-12)
    assert mask.mean() == pytest.approx(mean, abs=1e-15)


def test_where_the_rule_ends():
    """9000 below the largest entry of the row, and rows that are that far below zero see nothing."""
    rows = np.array([[0, -8999, -9000], [50, -8949, -8950.5], [-8999, -17998, -17999], [-9000, -9000, -9001]])
    expected = [[True, True, False], [True, True, False], [True, True, False], [False] * 3]
    for mask in (rows, rows.astype(np.float32), torch.tensor(rows)):
        assert seen_keys(mask).tolist() == expected
    lowest = torch.finfo(torch.float16).min
    half = torch.tensor([[0, lowest], [lowest, lowest], [-torch.inf, -torch.inf]], dtype=torch.float16)
    assert seen_keys(half).tolist() == [[True, False], [False, False], [False, False]]
    # 32 - 9000 is -8960 in bfloat16
    assert seen_keys(torch.tensor([[32.0, -8960.0]], dtype=torch.bfloat16)).tolist() == [[True, True]]
    assert seen_keys(torch.zeros(2, 0)).shape == (2, 0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert seen_keys(torch.tensor(rows)).tolist() == expected
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.zeros(5, 6), r"attn_mask has shape \(5, 6\); give one that broadcasts to \(1, 2, 6, 6\), rows and keys"),
        (torch.zeros(6), r"attn_mask has shape \(6,\)"),
        (torch.zeros(1, 1, 2, 6, 6), "attn_mask has shape"),
        (torch.ones(6, 6, dtype=torch.int64), "attn_mask is of torch.int64; give booleans"),
        (torch.zeros(6, 6, device="meta"), "attn_mask is on meta and scores are on cpu"),
    ],
)
def test_masks_that_do_not_fit_scores(mask, words):
    query = torch.zeros(1, 2, 6, 4)
    with pytest.raises(be.DomainError, match=words):
        gap_free_attention(query, query, query, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_numbers_are_not_taken_for_what_is_seen(dtype):
    """Of an additive mask, zeros were taken for hidden keys, and its large numbers for visible ones."""
    with pytest.raises(be.DomainError, match=r"visible is of .*: give booleans"):
        be.visibility.softmax(torch.zeros(2, 3), torch.zeros(2, 3, dtype=dtype))


def test_a_mask_of_one_column_is_for_all_keys():
    query, key, value = torch.randn(3, 1, 2, 6, 4, generator=torch.Generator().manual_seed(0)).unbind()
    column = torch.tensor([0.0, 0.5, -1.0, 0.0, 2.0, 0.0])[:, None]
    expected = gap_free_attention(query, key, value)
    torch.testing.assert_close(gap_free_attention(query, key, value, column), expected, atol=1e-6, rtol=0)


def test_rows_that_see_nothing_are_said():
    with pytest.raises(be.DomainError, match="no row of a head sees any key"):
        measure_heads(np.zeros((1, 4, 4)), np.full((4, 4), -1e9))
    with pytest.raises(be.DomainError, match=r"queries \[1\] see no key"):
        be.Mask.additive(np.array([[0.0, -1e4], [-1e9, -1e9]]))
    with pytest.raises(be.DomainError, match=r"has shape \(2,\) and holds float64; give a matrix"):
        be.Mask.additive([0.0, -1e9])


class Causal(torch.nn.Module):
    """torch's attention behind a causal mask in some spelling."""

    def __init__(self, hidden, tokens=48):
        super().__init__()
        torch.manual_seed(0)
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.register_buffer("mask", torch.full((tokens, tokens), hidden).triu(1))

    def forward(self, input):  # noqa: A002 - what modules without names are called with
        return self.attention(input, input, input, attn_mask=self.mask, need_weights=False)[0]


@pytest.mark.parametrize("hidden", [-1e9, -1e4, float(np.finfo(np.float32).min)])
def test_spellings_change_nothing_of_scans_and_watches(hidden):
    """Of a causal attention -1e9 for minus infinity changed 18 of 69 columns of a scan, and what a watch predicts."""
    tables, watched = [], []
    inputs = 2 * torch.randn(1, 48, 32, generator=torch.Generator().manual_seed(1))
    for each in (-np.inf, hidden):
        model = Causal(each)
        tables.append(be.scan(model, {"input": inputs}, draws=5, probe=False, rng=0).table)
        with be.watch(model.train(), every=1) as watch:
            model(inputs)
        watched.append(watch.table)
    for plain, other in (tables, watched):
        for column in plain.columns:
            one, two = plain[column].to_numpy(), other[column].to_numpy()
            assert np.array_equal(one, two, equal_nan=one.dtype.kind == "f"), column
    assert tables[0]["entropy"].between(0.5, 3.7).all()
