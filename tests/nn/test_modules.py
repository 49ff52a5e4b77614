"""The module beside torch's own."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from bulkedge.nn import GapFreeAttention  # noqa: E402

CLOSE = {"atol": 1e-6, "rtol": 0}
"""Outputs are below one; sums of some tens of terms in single precision."""


def pair(**options):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(32, 4, **options)
    module = GapFreeAttention(32, 4, gamma=0.0, **options)
    module.load_state_dict(plain.state_dict())
    return plain, module


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


CAUSAL = torch.ones(10, 10, dtype=torch.bool).triu(1)
MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.arange(10) >= torch.tensor([[4], [10], [9]])},
    "causal": {"attn_mask": CAUSAL},
    "hinted": {"attn_mask": CAUSAL, "is_causal": True},
    "both": {"attn_mask": CAUSAL, "key_padding_mask": torch.arange(10) >= torch.tensor([[4], [10], [9]])},
    "bias": {"attn_mask": inputs(10, 10)},
    "bias and padding": {
        "attn_mask": inputs(10, 10),
        "key_padding_mask": torch.zeros(3, 10).masked_fill(torch.arange(10) > 7, -torch.inf),
    },
    "heads": {"attn_mask": inputs(12, 10, 10)},
}


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_without_gamma_it_is_the_plain_module(mask, batch_first, average):
    plain, module = pair(batch_first=batch_first)
    x = inputs(3, 10, 32) if batch_first else inputs(10, 3, 32)
    options = {"average_attn_weights": average} | MASKS[mask]
    output, weights = plain(x, x, x, **options)
    found, matrix = module(x, x, x, **options)
    torch.testing.assert_close(found, output, **CLOSE)
    torch.testing.assert_close(matrix, weights, **CLOSE)
    fused, nothing = module(x, x, x, need_weights=False, **options)
    torch.testing.assert_close(fused, output, **CLOSE)
    assert nothing is None


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_the_gap_free_matrix(mask):
    _, module = pair(batch_first=True)
    x = inputs(3, 10, 32)
    _, attention = module(x, x, x, average_attn_weights=False, **MASKS[mask])
    module.gamma = 1.0
    output, matrix = module(x, x, x, average_attn_weights=False, **MASKS[mask])
    seen = attention > 0
    torch.testing.assert_close(matrix, attention - seen / seen.sum(-1, keepdim=True), **CLOSE)
    torch.testing.assert_close(output, module(x, x, x, need_weights=False, **MASKS[mask])[0], **CLOSE)


def test_other_inputs():
    plain, module = pair(kdim=8, vdim=12, bias=False)
    arguments = inputs(7, 3, 32), inputs(10, 3, 8), inputs(10, 3, 12)
    for one, other in zip(plain(*arguments), module(*arguments), strict=True):
        torch.testing.assert_close(other, one, **CLOSE)
    plain, module = pair()
    x = inputs(10, 32)
    for one, other in zip(plain(x, x, x), module(x, x, x), strict=True):
        torch.testing.assert_close(other, one, **CLOSE)


def test_dropout_only_in_training():
    _, module = pair(dropout=0.5, batch_first=True)
    x = inputs(3, 10, 32)
    module.eval()
    assert torch.equal(module(x, x, x)[0], module(x, x, x)[0])
    module.train()
    assert not torch.equal(module(x, x, x)[0], module(x, x, x)[0])


def test_dropout_leaves_the_mean_and_shows_in_the_weights():
    """As in torch's module, weights are those that were computed with; they are zero or scaled, before ``C``."""
    _, module = pair(dropout=0.5, batch_first=True)
    module.gamma = 1.0
    x = inputs(3, 10, 32)
    attention = module.eval()(x, x, x, average_attn_weights=False)[1] + 0.1
    _, matrix = module.train()(x, x, x, average_attn_weights=False)
    kept = (matrix + 0.1).abs() > 1e-6
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(matrix + 0.1, torch.where(kept, 2 * attention, 0.0), **CLOSE)
    torch.manual_seed(0)
    many = torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(400)])
    error = many.std(0) / 20
    assert ((many.mean(0) - module.eval()(x, x, x)[0]).abs() < 5 * error + 1e-6).all()


def test_weights_may_be_made_elsewhere():
    module = GapFreeAttention(8, 2, learnable=True, device="meta", dtype=torch.float64)
    assert {each.dtype for each in module.parameters()} == {torch.float64}
    assert all(each.is_meta for each in module.parameters())


def test_coefficients_are_learnt_by_head():
    plain, _ = pair(batch_first=True)
    module = GapFreeAttention(32, 4, batch_first=True, alpha=0.5, learnable=True)
    module.load_state_dict(plain.state_dict())
    assert module.alpha.tolist() == [0.5] * 4
    x = inputs(3, 10, 32)
    module(x, x, x, need_weights=False, is_causal=True)[0].square().sum().backward()
    assert all(each.grad.shape == (4,) and each.grad.abs().min() > 0 for each in (module.alpha, module.beta))
    assert module.gamma.grad.abs().min() > 0
    with torch.no_grad():
        module.alpha.fill_(0.7)
    other = GapFreeAttention(32, 4, learnable=True)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.alpha, module.alpha)


def test_the_fused_encoder_layer_does_not_pass_it_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    plain = layer.self_attn
    layer.self_attn = GapFreeAttention(32, 4, batch_first=True)
    layer.self_attn.load_state_dict(plain.state_dict())
    x = inputs(3, 10, 32)
    with torch.inference_mode():
        inference = layer(x)
    torch.testing.assert_close(inference, layer(x), **CLOSE)
    layer.self_attn = plain
    assert (layer(x) - inference).abs().max() > 0.01


PADDING = MASKS["padding"]["key_padding_mask"]
CALLS = {
    "weights": {},
    "full": {"need_weights": False},
    "causal": {"need_weights": False, "is_causal": True},
    "padding": {"need_weights": False, "key_padding_mask": PADDING},
    "both": {"need_weights": False, "key_padding_mask": PADDING, "is_causal": True},
}


class Attend(nn.Module):
    """One tensor as queries, keys and values."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.options = GapFreeAttention(32, 4, batch_first=True), options

    def forward(self, x):
        return self.attention(x, x, x, **self.options)[0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_without_a_mask_beside_padding(need_weights):
    """The hint must not be lost where padding has to be written out."""
    _, module = pair(batch_first=True)
    module.gamma = 1.0
    x = inputs(3, 10, 32)
    given = {"key_padding_mask": PADDING, "need_weights": need_weights}
    output, _ = module(x, x, x, is_causal=True, **given)
    torch.testing.assert_close(output, module(x, x, x, attn_mask=CAUSAL, **given)[0], **CLOSE)
    later = x.clone()
    later[:, 7:] += 1.0
    torch.testing.assert_close(module(later, later, later, is_causal=True, **given)[0][:, :7], output[:, :7], **CLOSE)


@pytest.mark.parametrize("written", [torch.bool, torch.float32])
def test_rows_that_see_nothing_get_zeros_and_finite_gradients(written):
    _, module = pair(batch_first=True)
    module.gamma = 1.0
    x = inputs(3, 10, 32).requires_grad_()
    hidden = CAUSAL.clone()
    hidden[4] = True
    mask = hidden if written is torch.bool else torch.zeros(10, 10).masked_fill(hidden, -torch.inf)
    outputs = []
    for need_weights in (True, False):
        output, weights = module(x, x, x, attn_mask=mask, need_weights=need_weights)
        outputs.append(output)
        assert weights is None or not weights[:, 4].any()
        torch.testing.assert_close(output[:, 4], module.out_proj.bias.expand(3, -1), **CLOSE)
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        assert torch.isfinite(gradient).all()
    torch.testing.assert_close(*outputs, **CLOSE)


def test_one_tensor_is_projected_once(monkeypatch):
    calls = []
    linear = torch.nn.functional.linear
    monkeypatch.setattr("bulkedge.nn.modules.linear", lambda *given: calls.append(given[1].shape) or linear(*given))
    _, module = pair()
    x, y, z = inputs(10, 3, 32), inputs(10, 3, 32), inputs(10, 3, 32)
    for arguments, shapes in (
        ((x, x, x), [(96, 32)]),
        ((x, y, y), [(32, 32), (64, 32)]),
        ((x, y, z), 3 * [(32, 32)]),
        ((x, x, z), 3 * [(32, 32)]),
    ):
        calls.clear()
        module(*arguments)
        assert calls == shapes


def test_weights_go_both_ways_and_copies_are_alike():
    plain, module = pair(batch_first=True, add_bias_kv=True, add_zero_attn=True)
    module.gamma = 1.0
    other = nn.MultiheadAttention(32, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    other.load_state_dict(module.state_dict(), strict=True)
    x = inputs(3, 10, 32)
    assert torch.equal(other(x, x, x)[0], plain(x, x, x)[0])
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):  # noqa: S301 - written here
        assert torch.equal(copied(x, x, x)[0], module(x, x, x)[0])
    learnable = GapFreeAttention(32, 4, gamma=0.5, learnable=True)
    with pytest.raises(RuntimeError, match=r'Unexpected key.* "alpha", "beta", "gamma"'):
        nn.MultiheadAttention(32, 4).load_state_dict(learnable.state_dict(), strict=True)


def test_weights_can_be_drawn_again():
    for options in ({}, {"kdim": 8}):
        _, module = pair(**options)
        before = [each.clone() for each in module.parameters()]
        module._reset_parameters()
        assert any(not torch.equal(*each) for each in zip(module.parameters(), before, strict=True))
        assert not module._qkv_same_embed_dim


@pytest.mark.parametrize("call", CALLS)
def test_autocast_is_near_single_precision(call):
    module, x = Attend(**CALLS[call]), inputs(3, 10, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(x)
    assert output.dtype is torch.bfloat16
    # numbers below one, each rounded a few times to eight bits
    torch.testing.assert_close(output.float(), module(x), atol=4 * 2**-8, rtol=0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("call", ["full", "causal", "padding"])
def test_compiled_in_one_graph(call):
    module, x = Attend(**CALLS[call]), inputs(3, 10, 32).requires_grad_()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x), **CLOSE)
    one, other = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (compiled, module))
    torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize("call", ["full", "causal"])
def test_exported_for_any_number_of_tokens(call):
    module, x = Attend(**CALLS[call]).eval(), inputs(3, 10, 32)
    sizes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}}
    exported = torch.export.export(module, (x,), dynamic_shapes=sizes).module()
    other = inputs(2, 17, 32)
    torch.testing.assert_close(exported(other), module(other), **CLOSE)


def test_means_are_taken_before_they_hide_what_tokens_differ_by():
    """In bfloat16, of tokens that have much in common: the mean of the values could go through the output projection.

    That is the same algebra, ``(A - C) V W = A V W - (C V) W``, and one vector a sequence; but ``A V`` is rounded near
    the mean by then, and what is left has lost its digits.
    """
    torch.manual_seed(0)
    module = GapFreeAttention(128, 4, batch_first=True, bias=False, dtype=torch.bfloat16)
    x = torch.nn.functional.layer_norm(torch.randn(2, 256, 128) + 4 * torch.randn(2, 1, 128), (128,)).bfloat16()
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*3 * [x.double()], need_weights=False)[0]
        found = [module(x, x, x, need_weights=need_weights)[0] for need_weights in (True, False)]
        mean = module.out_proj(torch.nn.functional.linear(x.mean(1, keepdim=True), module.in_proj_weight[256:]))
        module.gamma = 0.0
        rival = module(x, x, x, need_weights=False)[0] - mean
    errors = [float((each.double() - exact).norm() / exact.norm()) for each in (*found, rival)]
    assert max(errors[:2]) < 0.1
    assert errors[2] > 0.3


def encoder(**options):
    torch.manual_seed(0)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2, **options)
    for layer in stack.layers:
        module = GapFreeAttention(32, 4, batch_first=True)
        module.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = module
    return stack


@pytest.mark.parametrize("given", [{}, {"mask": CAUSAL, "is_causal": True}, {"src_key_padding_mask": PADDING}])
def test_stacks_of_encoders_in_training_and_inference(given):
    stack, x = encoder(enable_nested_tensor=False), inputs(3, 10, 32)
    expected = stack.train()(x, **given)
    with torch.inference_mode():
        torch.testing.assert_close(stack.eval()(x, **given), expected, **CLOSE)
    with torch.no_grad():
        for layer in stack.layers:
            layer.self_attn.gamma = 0.0
        assert (stack(x, **given) - expected).abs().max() > 0.01


def test_decoder_layers_attend_to_memory_without_the_gap():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True).eval()
    x, memory = inputs(3, 10, 32), inputs(3, 7, 32)
    plain = layer(x, memory, tgt_mask=CAUSAL, tgt_is_causal=True)
    for name in ("self_attn", "multihead_attn"):
        module = GapFreeAttention(32, 4, batch_first=True)
        module.load_state_dict(getattr(layer, name).state_dict())
        setattr(layer, name, module)
    hinted = layer(x, memory, tgt_mask=CAUSAL, tgt_is_causal=True)
    torch.testing.assert_close(hinted, layer(x, memory, tgt_mask=CAUSAL), **CLOSE)
    assert (hinted - plain).abs().max() > 0.01


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_with_the_way_out():
    stack, x = encoder().eval(), inputs(3, 10, 32)
    with torch.no_grad(), pytest.raises(ValueError, match="set its use_nested_tensor = False"):
        stack(x, src_key_padding_mask=PADDING)
    stack.use_nested_tensor = False
    with torch.no_grad():
        assert torch.isfinite(stack(x, src_key_padding_mask=PADDING)).all()


@pytest.mark.parametrize(
    ("message", "arguments", "given"),
    [
        ("attn_mask is of torch.int64", 3 * [(10, 3, 32)], {"attn_mask": CAUSAL.long()}),
        (r"attn_mask has shape \(1, 10\)", 3 * [(10, 3, 32)], {"attn_mask": CAUSAL[:1]}),
        (r"key_padding_mask has shape \(10, 3\)", 3 * [(10, 3, 32)], {"key_padding_mask": PADDING.T}),
        (r"key_padding_mask has shape \(3, 10\); give \(10,\)", 3 * [(10, 32)], {"key_padding_mask": PADDING}),
        ("as many values as keys", [(10, 3, 32), (10, 3, 32), (9, 3, 32)], {}),
        ("query, key, value have shapes", [(10, 3, 32), (10, 1, 32), (10, 1, 32)], {}),
        ("query, key, value have shapes", 3 * [(2, 10, 3, 32)], {}),
    ],
)
def test_what_would_be_something_else_quietly_is_refused(message, arguments, given):
    _, module = pair()
    with pytest.raises(ValueError, match=message):
        module(*(inputs(*shape) for shape in arguments), **given)
