"""Queries and keys as the scores see them: attention made of them is the model's own."""

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import MODELS, SMALL, UNFUSED, build, hidden, padded  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402
from transformers import masking_utils  # noqa: E402

from bulkedge.models import capture, stream, watch  # noqa: E402
from bulkedge.nn import apply_patch, patches, remove_gap, transform  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402


def eager(model, inputs):
    """What the model itself calls its attention weights."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation(before)
    return found


def assert_own(layers, weights, *, blind=False):
    assert len(layers) == len(weights)
    for layer, expected in zip(layers, weights, strict=True):
        found = layer.attention()
        seen = found.isfinite().all(-1)  # rows of padding that see nothing are nan here and arbitrary there
        # single precision: scores of a few units, weights below one
        assert (found[seen] - expected[seen]).abs().max() < 1e-5
        assert seen.all() or blind


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_attention_is_the_models_own(name, padding, implementation):
    model, inputs = build(name)
    model.set_attn_implementation(implementation)
    if padding is not None:
        if name == "vit":
            pytest.skip("images have no padding")
        inputs = padded(inputs, padding)
    layers = capture(model, **inputs)
    assert_own(layers, eager(model, inputs), blind=padding == "left")
    # masks that hide nothing or just the future are none, whoever writes them
    assert all((layer.mask is None) == (padding is None) for layer in layers)
    assert all(layer.causal == (padding is None and name in {"gpt2", "llama"}) for layer in layers)


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", sorted(UNFUSED))
def test_caps_windows_and_sinks_are_the_models_own(name, padding):
    model, inputs = build(name)
    inputs = inputs if padding is None else padded(inputs, padding)
    layers = capture(model, **inputs)
    weights = eager(model, inputs)
    # behind a window rows far into the padding see nothing, unless there is a sink
    assert_own(layers, weights, blind=name == "gemma2" and padding is not None)
    plain = [replace(layer, softcap=None, sinks=None).attention() for layer in layers]
    missed = [(a - b)[a.isfinite()].abs().max() for a, b in zip(plain, weights, strict=True)]
    assert min(missed) > 0.01  # they matter
    assert [layer.causal for layer in layers] == [padding is None and n % 2 == 1 for n in range(3)]
    assert model.config._attn_implementation == "eager"


def test_the_models_own_kernel_computes():
    """Outputs in a pass that is read are bit for bit those of the implementation that the model has."""
    for name, implementation in (("llama", "eager"), ("llama", "sdpa"), ("gemma2", "eager"), ("gpt_oss", "eager")):
        model, inputs = build(name)
        model.set_attn_implementation(implementation)
        answer = stream(model, lambda visit: visit.again(), **inputs)
        assert torch.equal(answer.last_hidden_state, hidden(model, inputs))


def registered(monkeypatch, name, attend, mask):
    """An implementation of attention under a name, for the length of a test."""
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, name, attend)
    monkeypatch.setitem(transformers.AttentionMaskInterface._global_mapping, name, mask)


def dense(seen_of, factor=1.0):
    """A kernel that returns its weights; ``seen_of`` makes booleans of what it is given."""

    def attend(module, query, key, value, attention_mask, **wanted):
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        seen = seen_of(attention_mask, wanted.get("sliding_window"), query.shape[2], len(query))
        scores = (factor * wanted["scaling"] * query @ key.mT).masked_fill(~seen, torch.finfo(query.dtype).min)
        weights = scores.softmax(-1)
        weights = weights * seen.any(-1, keepdim=True)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attend


def from_padding(mask, window, rows, batch):
    """What flash attention sees: padding, the past, and a window."""
    seen = torch.ones(rows, rows).tril().bool()
    seen = seen if window is None else seen.triu(1 - window)
    return seen.expand(batch, 1, rows, rows) if mask is None else seen & mask[:, None, None, :].bool()


def block_mask(*, batch_size, q_length, kv_length, mask_function, attention_mask=None, **_):
    """What transformers makes for flex attention, without a compiler."""
    if attention_mask is not None:
        mask_function = masking_utils.and_masks(mask_function, masking_utils.padding_mask_function(attention_mask))
    return create_block_mask(mask_function, batch_size, None, q_length, kv_length, device="cpu")


def from_function(mask, window, rows, batch):
    """What flex attention sees."""
    places = torch.arange(rows)
    pairs = [[[bool(mask.mask_mod(b, 0, i, j)) for j in places] for i in places] for b in range(batch)]
    return torch.tensor(pairs)[:, None]


@pytest.mark.parametrize("padding", [None, "right"])
@pytest.mark.parametrize("kernel", ["padding", "function"])
def test_masks_in_other_shapes(monkeypatch, kernel, padding):
    """Padding beside a causal flag and a window, and a function of row and key, as those kernels take them."""
    flash = kernel == "padding"
    mask = masking_utils.flash_attention_mask if flash else block_mask
    registered(monkeypatch, kernel, dense(from_padding if flash else from_function), mask)
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64, sliding_window=8
    )
    model = transformers.MistralModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 50, (3, 20))}
    inputs = inputs if padding is None else padded(inputs, padding)
    expected, watched = eager(model, inputs), readings(model, inputs)
    model.set_attn_implementation(kernel)
    assert_own(capture(model, **inputs), expected, blind=padding is not None)
    for name, values in readings(model, inputs).items():
        np.testing.assert_allclose(values, watched[name], rtol=1e-4, atol=1e-5, err_msg=name)


POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]])
ENDS = torch.tensor([0, 7, 8, 20], dtype=torch.int32)


def varlen(module, query, key, value, attention_mask, **wanted):
    """Flash attention of packed sequences: what is of another sequence is not seen."""
    assert attention_mask is None
    ends = wanted.get("cu_seq_lens_q")
    if ends is None:
        ends = torch.cat([(wanted["position_ids"][0] == 0).nonzero()[:, 0], torch.tensor([query.shape[2]])])
    number = (torch.arange(query.shape[2])[:, None] >= ends).sum(1)
    same = number[:, None] == number
    return dense(lambda _, window, rows, batch: from_padding(None, window, rows, batch) & same)(
        module, query, key, value, None, **wanted
    )


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("way", ["positions", "ends", "one sequence"])
def test_packed_sequences_of_flash_attention(monkeypatch, way, window):
    """Without a mask: by positions that begin anew, or by where sequences end."""
    registered(monkeypatch, "flash_varlen", varlen, masking_utils.flash_attention_mask)
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        **SMALL, num_key_value_heads=2, vocab_size=50, max_position_embeddings=64, sliding_window=window
    )
    model = transformers.MistralModel(config).eval()
    positions = torch.arange(20)[None] if way == "one sequence" else POSITIONS
    inputs = {"input_ids": torch.randint(0, 50, (1, 20)), "position_ids": positions, "use_cache": False}
    expected, watched = eager(model, inputs), readings(model, inputs)
    model.config._attn_implementation_internal = "flash_varlen"  # transformers refuses kernels that are not installed
    if way == "ends":
        inputs |= {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS, "max_length_q": 12, "max_length_k": 12}
    layers = capture(model, **inputs)
    assert_own(layers, expected)
    assert [layer.mask is None for layer in layers] == [way == "one sequence"] * len(layers)
    for name, values in readings(model, inputs).items():
        np.testing.assert_allclose(values, watched[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_packed_sequences_of_patched_models():
    model, _ = build("llama")
    inputs = {"input_ids": torch.randint(0, 50, (1, 20)), "position_ids": POSITIONS, "use_cache": False}
    expected = capture(model, **inputs)
    ends = {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}
    with remove_gap(model):
        found = capture(model, **inputs, **ends)
    # rows of the first layer see the same; what they are given changes after it
    torch.testing.assert_close(found[0].attention(), expected[0].attention(), atol=1e-6, rtol=0)


def test_packed_sequences_that_are_not_read(monkeypatch):
    registered(monkeypatch, "other", varlen, masking_utils.flash_attention_mask)
    model, _ = build("llama")
    model.set_attn_implementation("other")
    inputs = {"input_ids": torch.arange(20)[None], "cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}
    with pytest.raises(DomainError, match=r"packs sequences without a mask \(cu_seq_lens_q\)"):
        capture(model, **inputs)


def readings(model, inputs):
    """What a watch reads of one pass of training."""
    with watch(model.train(), every=1, rows=20) as watched:
        model(**inputs)
    model.eval()
    return watched.data.drop_vars("module")


def test_a_kernel_that_computes_something_else_is_noticed(monkeypatch):
    registered(monkeypatch, "sharp", dense(from_padding, 1.01), masking_utils.flash_attention_mask)
    model, inputs = build("llama")
    model.set_attn_implementation("sharp")
    with pytest.raises(DomainError, match=r"layers.0.self_attn: LlamaAttention computes something else"):
        capture(model, **inputs)


@pytest.mark.parametrize(("name", "words"), [("gemma2", "caps its scores"), ("gpt_oss", "sink outside of its keys")])
def test_a_kernel_that_may_not_cap_is_refused(monkeypatch, name, words):
    registered(monkeypatch, "fused", dense(from_padding), masking_utils.flash_attention_mask)
    model, inputs = build(name)
    model.set_attn_implementation("fused")
    with pytest.raises(DomainError, match=rf"{words} .* 'fused' does not compute; .*'eager'"):
        capture(model, **inputs)


def test_the_model_is_left_as_it_was():
    model, inputs = build("llama")
    before = hidden(model, inputs)
    names = [layer.name for layer in capture(model, **inputs)]
    assert names == [f"layers.{k}.self_attn" for k in range(3)]
    assert patches(model) == ()
    assert torch.equal(hidden(model, inputs), before)


def test_patches_are_seen_and_stay():
    model, inputs = build("bert")
    plain = capture(model, **inputs)

    @transform("halved")
    def halved(call, parameters):
        return call._replace(query=call.query / 2, scale=3 * call.scale)

    with apply_patch(model, "halved"), remove_gap(model):
        changed = capture(model, **inputs)
        assert [each.kind for each in patches(model)] == ["halved", "gap_free"]
    assert torch.equal(changed[0].query, plain[0].query / 2)
    assert changed[0].scale == 3 * plain[0].scale


def test_a_pass_that_fails_leaves_nothing_behind():
    model, _ = build("bert")
    plain = transformers.AttentionInterface.get_interface
    with pytest.raises(ValueError, match="input_ids"):
        capture(model)
    assert transformers.AttentionInterface.get_interface is plain
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_a_configuration_copied_while_reading_is_a_plain_one():
    model, inputs = build("bert")
    copies = []
    handle = model.encoder.layer[0].register_forward_pre_hook(lambda *_: copies.append(copy.deepcopy(model.config)))
    capture(model, **inputs)
    handle.remove()
    assert copies[0].to_dict() == model.config.to_dict()


def test_attention_past_the_interface_is_refused():
    config = transformers.GPTJConfig(n_layer=1, n_head=2, n_embd=16, rotary_dim=4, vocab_size=50, n_positions=32)
    with pytest.raises(DomainError, match=r"without an attention|by itself"):
        capture(transformers.GPTJModel(config).eval(), input_ids=torch.arange(9)[None])
