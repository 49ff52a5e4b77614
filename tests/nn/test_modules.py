"""The module beside torch's own."""

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


def test_keys_that_are_no_tokens_are_refused():
    with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn add keys that are no tokens"):
        GapFreeAttention(32, 4, add_zero_attn=True)
