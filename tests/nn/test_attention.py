"""Gap-free and shaped attention against explicit matrices, forward and backward."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as plain  # noqa: E402

from bulkedge.nn.attention import CHUNK, _chunked_sums, gap_free_attention, running_sums, shaped_attention  # noqa: E402  # noqa: E402
from bulkedge.visibility import Mask  # noqa: E402

SINGLE = 1e-6
"""Absolute error in single precision: outputs are of order one, and sums of a few hundred terms round to 1e-7."""


def tensors(*shapes, seed=0, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng).to(dtype).requires_grad_() for shape in shapes]


def admitted(rows, columns, options):
    """The keys that a row may see."""
    seen, mask = torch.ones(rows, columns, dtype=torch.bool), options.get("attn_mask")
    if options.get("is_causal"):
        seen = seen.tril()
    if mask is not None:
        seen = seen & (mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2)
    return seen


def explicit(q, k, v, options, shape=(0.0, 1.0, 1.0)):
    """alpha I + beta A - gamma C as a matrix, in double precision, times the values."""
    q, k, v = (each.double() for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for each in (k, v))
    scores = q @ k.mT * options.get("scale", q.shape[-1] ** -0.5)
    seen, mask = admitted(*scores.shape[-2:], options), options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask.double()
    attention = torch.nan_to_num(scores.masked_fill(~seen, -torch.inf).softmax(-1))
    centre = seen.double() / seen.sum(-1, keepdim=True).clamp(min=1)
    alpha, beta, gamma = (torch.as_tensor(each, dtype=torch.double).view(-1, 1, 1) for each in shape)
    own = alpha * v if scores.shape[-1] == scores.shape[-2] else 0.0
    return own + (beta * attention - gamma * centre) @ v


def padding(batch, tokens):
    lengths = torch.linspace(1, tokens, batch).long()
    return (torch.arange(tokens) < lengths[:, None])[:, None, None, :]


def causal_padding(tokens):
    """Left padding under a causal mask: its first rows see nothing."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril() & torch.flip(padding(2, tokens), (-1,))


def additive(tokens, dtype=torch.float32):
    """A bias of finite numbers, minus infinity and the least number, as transformers writes it."""
    bias = torch.randn(2, 4, tokens, tokens, generator=torch.Generator().manual_seed(9)).to(dtype)
    bias[..., 3] = torch.finfo(dtype).min
    bias[:, 1, :, 5:] = -torch.inf
    return bias


CASES = {
    "plain": {},
    "scale": {"scale": 0.2},
    "causal": {"is_causal": True},
    "padding": {"attn_mask": padding(2, 150)},
    "padding, expanded": {"attn_mask": padding(2, 150).expand(-1, -1, 150, -1)},
    "padding, written out": {"attn_mask": padding(2, 150).expand(-1, -1, 150, -1).clone()},
    "causal and left padding": {"attn_mask": causal_padding(150)},
    "two-dimensional mask": {"attn_mask": torch.ones(150, 150, dtype=torch.bool).tril(3)},
    "mask for each head": {"attn_mask": torch.rand(2, 4, 150, 150, generator=torch.Generator().manual_seed(3)) < 0.5},
    "bias": {"attn_mask": additive(150)},
}


@pytest.mark.parametrize("heads", [4, 2, 1], ids=["all heads", "two share", "all share"])
@pytest.mark.parametrize("case", CASES)
def test_forward_and_backward_equal_the_explicit_matrix(case, heads):
    q, k, v = tensors((2, 4, 150, 16), (2, heads, 150, 16), (2, heads, 150, 16))
    options = CASES[case]
    output = gap_free_attention(q, k, v, **options, enable_gqa=heads < 4)
    reference = explicit(q, k, v, options)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output.double(), reference, atol=SINGLE, rtol=0)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((output * weights).sum(), (q, k, v))
    expected = torch.autograd.grad((reference * weights).sum(), (q, k, v))
    terms = explicit(q, k, v, options, shape=(0, 1, 0))
    largest = torch.autograd.grad((terms * weights).sum(), v)[0].abs().max()
    for one, other in zip(found, expected, strict=True):
        # for values, A'G and C'G may cancel; each sums over 150 rows of up to four heads, and each addition rounds
        rounding = 2.0**-24 * (150 * 4 / heads) ** 0.5 * float(largest)
        torch.testing.assert_close(one, other, atol=2 * SINGLE + rounding, rtol=1e-5)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("case", CASES)
def test_shaped_attention(case, heads, per_head):
    q, k, v = tensors((2, 4, 150, 16), (2, heads, 150, 16), (2, heads, 150, 16))
    shape = [0.3, 0.8, 0.5]
    if per_head:
        shape = [each * torch.linspace(0.5, 1.5, 4) for each in shape]
        shape = [each.requires_grad_() for each in shape]
    names = dict(zip(("alpha", "beta", "gamma"), shape, strict=True))
    options = CASES[case]
    output = shaped_attention(q, k, v, **options, enable_gqa=heads < 4, **names)
    reference = explicit(q, k, v, options, shape=shape)
    torch.testing.assert_close(output.double(), reference, atol=SINGLE, rtol=0)
    if per_head:
        found = torch.autograd.grad((output**2).sum(), shape)
        expected = torch.autograd.grad((reference**2).sum(), shape)
        # each is a sum of ten thousand products
        torch.testing.assert_close(found, expected, atol=0, rtol=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 1e-12], ids=["centred first", "centred after"])
@pytest.mark.parametrize("case", [name for name in CASES if name != "bias"])
def test_double_precision_is_double(case, dropout):
    q, k, v = (each.double() for each in tensors((2, 4, 150, 16), (2, 2, 150, 16), (2, 2, 150, 16)))
    output = gap_free_attention(q, k, v, **CASES[case], dropout_p=dropout, enable_gqa=True)
    torch.testing.assert_close(output, explicit(q, k, v, CASES[case]), atol=1e-11, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_is_as_exact_as_the_kernel(case):
    q, k, v = tensors((2, 4, 150, 16), (2, 4, 150, 16), (2, 4, 150, 16), dtype=torch.bfloat16)
    options = CASES[case]
    output = gap_free_attention(q, k, v, **options)
    assert output.dtype == torch.bfloat16
    kernel = (plain(q, k, v, **options).double() - explicit(q, k, v, options, shape=(0, 1, 0))).abs().max()
    error = (output.double() - explicit(q, k, v, options)).abs().max()
    # values reach 4, where bfloat16 rounds by 2**-7; the mean adds three roundings to those of the kernel
    assert error <= kernel + 3 * 2.0**-7
    found = torch.autograd.grad(output.sum(), v)[0].double()
    expected = torch.autograd.grad(explicit(q, k, v, options).sum(), v)[0].double()
    floor = torch.autograd.grad(plain(q, k, v, **options).sum(), v)[0].double()
    exact = torch.autograd.grad(explicit(q, k, v, options, shape=(0, 1, 0)).sum(), v)[0].double()
    assert (found - expected).abs().max() <= (floor - exact).abs().max() + 3 * 2.0**-8 * exact.abs().max()


def test_values_with_a_mean_survive_bfloat16():
    """Subtracted after the kernel, a mean of 30 leaves errors of 30 * 2**-9 = 0.06 and more."""
    q, k, v = tensors((1, 4, 256, 16), (1, 4, 256, 16), (1, 4, 256, 16), dtype=torch.bfloat16)
    shifted = (v + 30).detach()
    error = (gap_free_attention(q, k, shifted).double() - explicit(q, k, shifted, {})).abs().max()
    after = (plain(q, k, shifted) - shifted.mean(-2, keepdim=True)).double() - explicit(q, k, shifted, {})
    assert error < 0.03 < after.abs().max()


def test_the_running_mean_of_a_long_context_is_accumulated_in_single_precision():
    """A running sum kept in bfloat16 would stop growing at 256 = 1/2**-8 and be off by a factor of 128."""
    value = torch.ones(1, 1, 32768, 2, dtype=torch.bfloat16)
    output = shaped_attention(value, value, value, is_causal=True, beta=0.0)
    # sum and weight are rounded once each, and the product again
    assert (output + 1).abs().max() <= 3 * 2.0**-8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_do_not_overflow(dtype):
    value = torch.full((1, 1, 4096, 2), 100.0, dtype=dtype)
    masks = {"attn_mask": torch.ones(1, 1, 4096, dtype=torch.bool)}, {"is_causal": True}, {}
    for options in masks:
        output = gap_free_attention(value, value, value, **options)
        assert output.dtype == dtype
        assert output.abs().max() <= 100 * 3 * 2.0**-8


@pytest.mark.parametrize("sums", [running_sums, _chunked_sums], ids=["CPU", "GPU"])
@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 7])
def test_running_sums(tokens, sums):
    (value,) = tensors((2, 3, tokens, 5))
    torch.testing.assert_close(sums(value.double()), value.double().cumsum(-2), atol=1e-12, rtol=0)
    assert torch.autograd.gradcheck(sums, (value[:1, :1].double(),), fast_mode=True)
    transposed = value.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(sums(transposed), sums(value), atol=0, rtol=0)


@pytest.mark.parametrize("sums", [running_sums, _chunked_sums], ids=["CPU", "GPU"])
def test_running_sums_are_rounded_once(sums):
    """Or twice, for the chunks before and for the whole; a sum kept in bfloat16 would stop growing at 256."""
    (value,) = tensors((1, 2, 32768, 3), seed=2)
    value = (value.detach() + 1).bfloat16()
    exact = value.double().cumsum(-2)
    assert ((sums(value).double() - exact) / exact.abs().clamp(min=4)).abs().max() <= 2 * 2.0**-8


def test_the_sums_of_a_gpu_in_attention(monkeypatch):
    monkeypatch.setattr("bulkedge.nn.attention.running_sums", lambda value, _: _chunked_sums(value))
    q, k, v = tensors((2, 4, 150, 16), (2, 2, 150, 16), (2, 2, 150, 16))
    output = gap_free_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(output.double(), explicit(q, k, v, {"is_causal": True}), atol=SINGLE, rtol=0)


@pytest.mark.parametrize("width", [1, 7, 149, 150])
def test_the_mean_over_a_window_is_that_of_the_mask(width):
    """A difference of running sums where the mask is known to be a window, a product with it where it is not."""
    made, window = tensors((2, 4, 150, 16), (2, 2, 150, 16), (2, 2, 150, 16)), Mask.window(150, width)
    expected = explicit(*made, {"attn_mask": window.visible(made[0])})
    for mask in (window, window.visible(made[0])):
        found = gap_free_attention(*made, attn_mask=mask, enable_gqa=True)
        torch.testing.assert_close(found.double(), expected, atol=SINGLE, rtol=0)
        gradients = [torch.autograd.grad(each.square().sum(), made, retain_graph=True) for each in (found, expected)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=20 * SINGLE, rtol=0)  # of order ten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_a_window_are_rounded_once(dtype):
    """A window of 100 tokens behind 32,668 others: in single precision the long sums would round to 1/16."""
    (value,) = tensors((1, 2, 32768, 3), seed=2)
    value = (value.detach() + 30).to(dtype)
    exact = value.double().unfold(-2, 100, 1).sum(-1)
    error = (running_sums(value, 100)[..., 99:, :].double() - exact).abs() / exact.abs()
    assert error.max() <= 1.01 * torch.finfo(dtype).eps / 2


def test_the_first_token_of_causal_attention():
    q, k, v = tensors((1, 2, 100, 8), (1, 2, 100, 8), (1, 2, 100, 8))
    assert gap_free_attention(q, k, v, is_causal=True)[..., 0, :].abs().max() <= SINGLE
    shaped = shaped_attention(q, k, v, is_causal=True, alpha=1.0)
    torch.testing.assert_close(shaped[..., 0, :], v[..., 0, :], atol=SINGLE, rtol=0)


def test_shaped_attention_is_the_identity_where_scores_vanish():
    q, k, v = tensors((1, 2, 100, 8), (1, 2, 100, 8), (1, 2, 100, 8))
    for options in ({}, {"is_causal": True}):
        torch.testing.assert_close(shaped_attention(0 * q, k, v, alpha=1.0, **options), v, atol=SINGLE, rtol=0)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=["full", "causal"])
def test_dropout_drops_the_attention_and_not_the_mean(options):
    q, k, v = tensors((1, 4, 150, 16), (1, 4, 150, 16), (1, 4, 150, 16))
    torch.manual_seed(4)
    output = gap_free_attention(q, k, v, dropout_p=0.3, **options)
    torch.manual_seed(4)
    dropped = plain(q, k, torch.eye(150).expand(1, 4, -1, -1), dropout_p=0.3, **options)
    assert (dropped == 0).float().mean() > 0.25
    seen = admitted(150, 150, options)
    centre = seen / seen.sum(-1, keepdim=True)
    torch.testing.assert_close(output, (dropped - centre) @ v, atol=SINGLE, rtol=0)


@pytest.mark.parametrize(("rows", "columns"), [(1, 90), (7, 90), (70, 90), (90, 70)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_queries_and_keys_of_different_lengths(rows, columns, is_causal):
    q, k, v = tensors((2, 4, rows, 8), (2, 2, columns, 8), (2, 2, columns, 8))
    output = gap_free_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    torch.testing.assert_close(output.double(), explicit(q, k, v, {"is_causal": is_causal}), atol=SINGLE, rtol=0)


def test_cached_decoding_continues_the_causal_pass():
    q, k, v = tensors((2, 4, 80, 8), (2, 4, 80, 8), (2, 4, 80, 8))
    whole = gap_free_attention(q, k, v, is_causal=True)
    for step in (0, 1, 40, 79):
        one = gap_free_attention(q[..., step : step + 1, :], k[..., : step + 1, :], v[..., : step + 1, :])
        torch.testing.assert_close(one, whole[..., step : step + 1, :], atol=SINGLE, rtol=0)
    mask = torch.ones(80, 80, dtype=torch.bool).tril()[70:]
    last = gap_free_attention(q[..., 70:, :], k, v, attn_mask=mask)
    torch.testing.assert_close(last, whole[..., 70:, :], atol=SINGLE, rtol=0)


@pytest.mark.parametrize("case", ["plain", "padding"])
def test_second_derivatives(case):
    q, k, v = (each.double() for each in tensors((1, 2, 6, 3), (1, 2, 6, 3), (1, 2, 6, 3)))
    mask = padding(2, 6)[:1] if case == "padding" else None
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivatives
        assert torch.autograd.gradgradcheck(lambda *each: gap_free_attention(*each, attn_mask=mask), (q, k, v))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("case", ["plain", "causal", "padding", "bias"])
def test_compiled_in_one_graph(case):
    q, k, v = tensors((2, 4, 150, 16), (2, 4, 150, 16), (2, 4, 150, 16))
    compiled = torch.compile(gap_free_attention, fullgraph=True, backend="aot_eager")
    one, other = compiled(q, k, v, **CASES[case]), gap_free_attention(q, k, v, **CASES[case])
    torch.testing.assert_close(one, other, atol=SINGLE, rtol=0)
    for a, b in zip(torch.autograd.grad(one.sum(), (q, v)), torch.autograd.grad(other.sum(), (q, v)), strict=True):
        torch.testing.assert_close(a, b, atol=4 * SINGLE, rtol=1e-5)


def test_mistakes():
    q, k, v = tensors((2, 4, 5, 8), (2, 4, 9, 8), (2, 4, 9, 8))
    with pytest.raises(ValueError, match="alpha weighs the value of each query's own token, but there are 5 queries"):
        shaped_attention(q, k, v, alpha=0.5)
    with pytest.raises(ValueError, match=r"query has shape \(5, 8\); attention needs"):
        gap_free_attention(q[0, 0], k[0, 0], v[0, 0])


@pytest.mark.parametrize(
    "mask",
    [
        Mask.full(12),
        Mask.causal(12),
        Mask.window(12, 4),
        Mask.padding(np.arange(12) < 9),
        Mask.causal(12) & Mask.padding(np.arange(12) != 5),
    ],
    ids=["full", "causal", "window", "padding", "both"],
)
def test_masks_of_the_library(mask, monkeypatch):
    """Against the mask's own mean matrix; full and causal ones go to the kernels that know them."""
    q, k, v = torch.randn(3, 2, 4, 12, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).unbind()
    given = []

    def spy(query, key, value, mask, *rest, **options):
        given.append(mask)
        return plain(query, key, value, mask, *rest, **options)

    monkeypatch.setattr("bulkedge.nn.attention.scaled_dot_product_attention", spy)
    found = gap_free_attention(q, k, v, mask)
    visible = torch.tensor(mask.visible())
    attention = (q @ k.mT / 8**0.5).masked_fill(~visible, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, (attention - mask.mean(q)) @ v, atol=1e-12, rtol=0)
    known = mask in (Mask.full(12), Mask.causal(12))
    assert (given[0] is None) == known
    assert known or (given[0].stride(0) == 0) == mask.uniform


def test_masks_of_the_library_that_do_not_fit():
    q = torch.zeros(1, 1, 12, 8)
    with pytest.raises(ValueError, match=r"is for \(11, 11\) queries and keys; there are 12 and 12"):
        gap_free_attention(q, q, q, Mask.causal(11))
    with pytest.raises(ValueError, match="is_causal = True both say who sees whom"):
        gap_free_attention(q, q, q, Mask.causal(12), is_causal=True)


def test_a_bias_that_hides_is_no_key():
    """However code writes minus infinity: the mean is over the keys that are left."""
    query, key, value = torch.randn(3, 1, 2, 6, 8, generator=torch.Generator().manual_seed(3)).unbind()
    hidden = torch.arange(6) > 3
    expected = gap_free_attention(query, key, value, ~hidden.expand(6, 6))
    for least in (-torch.inf, torch.finfo(torch.float32).min, -1e9):
        mask = torch.zeros(6, 6).masked_fill(hidden, least)
        torch.testing.assert_close(gap_free_attention(query, key, value, mask), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_takes_inputs_of_several_types(compiled):
    """As where rotations leave queries and keys in single precision; without autocast they are refused."""
    query, key, value = torch.randn(3, 2, 2, 16, 8, generator=torch.Generator().manual_seed(1))
    attend = torch.compile(gap_free_attention, backend="eager", fullgraph=True) if compiled else gap_free_attention
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(query, key, value.bfloat16(), is_causal=True)
    expected = gap_free_attention(query, key, value, is_causal=True)
    assert (found.float() - expected).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * value.abs().max()
    with pytest.raises(ValueError, match=r"value is torch\.bfloat16"):
        gap_free_attention(query, key, value.bfloat16())
