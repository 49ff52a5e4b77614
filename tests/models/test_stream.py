"""Attention modules one at a time: two-part models, torch's own module, running again, and leaving no trace."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import SMALL, build, checkpoint_activations, hidden  # noqa: E402

from bulkedge.models import capture, stream, watch  # noqa: E402
from bulkedge.nn import GapFreeAttention, patches  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

IDS = torch.arange(20)[None] % 11


def whisper():
    config = transformers.WhisperConfig(
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, d_model=32,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=50, max_source_positions=24, num_mel_bins=16,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(1, 16, 48), "decoder_input_ids": IDS, "use_cache": False}
    return transformers.WhisperModel(config).eval(), inputs


def t5():
    config = transformers.T5Config(
        num_layers=2, num_heads=4, d_model=32, d_kv=8, d_ff=64, vocab_size=50, decoder_start_token_id=0
    )
    return transformers.T5Model(config).eval(), {"input_ids": IDS, "decoder_input_ids": IDS, "use_cache": False}


def names_of(model):
    """Number of hooks of every module, its patches, and what hands out attentions."""
    hooks = [(len(each._forward_hooks), len(each._forward_pre_hooks)) for each in model.modules()]
    own = patches(model) if isinstance(model, transformers.PreTrainedModel) else ()
    return hooks, own, transformers.AttentionInterface.get_interface


@pytest.mark.parametrize("make", [whisper, t5])
def test_models_of_two_parts(make):
    torch.manual_seed(0)
    model, inputs = make()
    layers = capture(model, **inputs)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        answer = model(**inputs, output_attentions=True)
    decoder = [each for pair in zip(answer.decoder_attentions, answer.cross_attentions, strict=True) for each in pair]
    assert len(layers) == 6
    for layer, expected in zip(layers, (*answer.encoder_attentions, *decoder), strict=True):
        assert (layer.attention() - expected).abs().max() < 1e-5
    assert [layer.cross for layer in layers] == [False, False, False, True, False, True]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "boolean", "numbers"])
def test_torchs_own_attention(batch_first, masks):
    """Rectangles, both masks, and both orders of axes; against the weights that the module returns."""
    torch.manual_seed(1)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=batch_first, kdim=24, vdim=24)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x, y):
            seen = {"none": None, "boolean": torch.rand(10, 7) > 0.6, "numbers": torch.randn(10, 7)}[masks]
            if masks == "boolean":
                seen[:, 0] = False
            padding = None if masks == "none" else torch.arange(7)[None].repeat(2, 1) > 4
            padding = torch.randn(2, 7) if masks == "numbers" else padding
            options = {"attn_mask": seen, "key_padding_mask": padding, "average_attn_weights": False}
            self.weights = self.inner(x, y, y, **options)[1]
            return self.weights

    x, y = torch.randn(2, 10, 32), torch.randn(2, 7, 24)
    if not batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    outer = Outer()
    layers = capture(outer, x=x, y=y)
    assert [(layer.name, layer.cross) for layer in layers] == [("inner", True)]
    assert (layers[0].attention() - outer.weights).abs().max() < 1e-6


@pytest.mark.parametrize("padding", [False, True])
def test_causal_without_a_mask_is_seen(padding):
    """Gap-free attention takes the hint alone, which torch's own refuses."""
    torch.manual_seed(1)

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = GapFreeAttention(32, 4, batch_first=True, gamma=0.0)

        def forward(self, x):
            given = {"key_padding_mask": torch.arange(10)[None].repeat(2, 1) > 6} if padding else {}
            self.weights = self.inner(x, x, x, is_causal=True, average_attn_weights=False, **given)[1]
            return self.weights

    outer = Outer()
    (layer,) = capture(outer, x=torch.randn(2, 10, 32))
    assert not outer.weights.triu(1).any()
    assert (layer.attention() - outer.weights).abs().max() < 1e-6


def test_torchs_encoder_is_not_read_past():
    """Its fast path would not call the module."""
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    fast = torch.backends.mha.get_fastpath_enabled()
    assert len(capture(encoder, input=torch.randn(1, 9, 32))) == 2
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_keys_that_are_not_read_are_refused():
    module = torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True))
    module[0].self_attn.add_zero_attn = True
    with pytest.raises(DomainError, match="add_zero_attn"):
        capture(module, input=torch.randn(1, 5, 8))


def test_nothing_to_see_is_an_error():
    with pytest.raises(DomainError, match="without an attention"):
        capture(torch.nn.Linear(3, 3), input=torch.randn(1, 3))


def test_a_module_runs_again_on_what_it_was_given():
    model, inputs = build("llama")
    checkpoint_activations(model, on=False)
    before = hidden(model, inputs)
    trace = names_of(model)
    same = []

    def visit(each):
        layer = each.again()
        same.append(torch.equal(layer.query, each.layer.query) and torch.equal(layer.key, each.layer.key))
        assert layer.name == each.layer.name
        assert each.inputs.shape == (3, 20, 32)

    stream(model, visit, **inputs)  # with a cache, which must not grow
    assert same == [True, True, True]
    assert names_of(model) == trace
    assert torch.equal(hidden(model, inputs), before)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch is too old to leave compiled code")
def test_compiled_models_are_read_uncompiled():
    model, inputs = build("bert")
    expected = capture(model, **inputs)
    found = capture(torch.compile(model, backend="eager"), **inputs)
    assert [each.name for each in found] == [f"_orig_mod.{each.name}" for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.query, other.query)


def test_two_who_listen():
    """A model is read while it is watched: both hear it, and the one who leaves takes nothing along."""
    model, inputs = build("llama")
    plain = transformers.AttentionInterface.get_interface
    with watch(model.train(), every=1) as watched:
        names = [each.name for each in capture(model, **inputs)]
        model(**inputs)
    assert watched.data.sizes["step"] == 2
    assert list(watched.data.module.to_numpy()) == names
    assert transformers.AttentionInterface.get_interface is plain


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_a_watch_of_capped_scores_and_outer_sinks_leaves_nothing_behind(name):
    model, inputs = build(name)
    trace = names_of(model)
    with watch(model.train(), every=1) as watched:
        model(**inputs)
    assert watched.data.sizes["step"] == 1
    assert names_of(model) == trace


def test_an_exception_of_the_visitor_leaves_nothing_behind():
    model, inputs = build("gpt2")
    before = hidden(model, inputs)
    trace = names_of(model)

    def visit(each):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stream(model, visit, **inputs)
    assert names_of(model) == trace
    assert torch.equal(hidden(model, inputs), before)


def test_models_inside_of_other_modules():
    inner = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=50)).eval()

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = inner

        def forward(self, ids):
            return self.body(input_ids=ids).last_hidden_state.mean()

    names = [layer.name for layer in capture(Outer(), ids=IDS)]
    assert names == [f"body.encoder.layer.{k}.attention.self" for k in range(3)]
    assert patches(inner) == ()
