"""Heads that are cut out: outputs of the smaller model are those of the whole one with gates; saved, loaded, nested."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import SMALL, build, padded  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.models.hooks.gates import HeadGates  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

TOKENS = {"vocab_size": 50, "max_position_embeddings": 64}
SHARED = SMALL | TOKENS | {"num_key_value_heads": 2, "head_dim": 8}
SEQUENCES = {"vocab_size": 50, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
SEQUENCES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64}
SEQUENCES |= {"decoder_start_token_id": 2}
MORE = {
    "qwen2": lambda: transformers.Qwen2Model(transformers.Qwen2Config(**SMALL, **TOKENS, num_key_value_heads=2)),
    "qwen3": lambda: transformers.Qwen3Model(transformers.Qwen3Config(**SHARED)),
    "mistral": lambda: transformers.MistralModel(transformers.MistralConfig(**SHARED)),
    "gemma": lambda: transformers.GemmaModel(transformers.GemmaConfig(**SHARED)),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, vocab_size=50)
    ),
    "bart": lambda: transformers.BartModel(transformers.BartConfig(**SEQUENCES)),
    "t5": lambda: transformers.T5Model(
        transformers.T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    ),
}  # fmt: skip
ALL = ("gpt2", "llama", "bert", "vit", "gemma2", "gpt_oss", *MORE)
PATHS = {"llama": "layers.{}.self_attn", "gpt2": "h.{}.attn"}


def model_and_inputs(name):
    if name not in MORE:
        return build(name)
    torch.manual_seed(0)
    model = MORE[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)
    inputs = {"input_ids": torch.randint(3, 50, (3, 20))}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, 50, (3, 9))
    return model, inputs


def outputs(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def gated(model, inputs, off, means=None):
    gates = HeadGates.of(model, **inputs)
    ordered = None if means is None else [means[site.name] for site in gates.sites]
    with gates.on(gates.without((name, head) for name, heads in off.items() for head in heads), ordered):
        return outputs(model, inputs)


def uneven(gates):
    """One head, two of a group, one of each group, a whole layer, and so on around."""
    patterns = ([1], [2, 3], [0, 2], [0, 1, 2])
    return {site.name: patterns[k % 4] for k, site in enumerate(gates.sites)}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("replace", ["zero", "mean"])
def test_outputs_are_those_with_gates(name, replace, tmp_path):
    model, inputs = model_and_inputs(name)
    gates = HeadGates.of(model, **inputs)
    off, means = uneven(gates), {site.name: torch.randn(4, 8) for site in gates.sites}
    means = means if replace == "mean" else None
    expected, before = gated(model, inputs, off, means), outputs(model, inputs)
    found = be.nn.prune_heads(model, off, replace, means=means)
    assert found.obstacle
    assert found.parameters[1] == sum(each.numel() for each in model.parameters())
    torch.testing.assert_close(outputs(model, inputs), expected, rtol=1e-5, atol=2e-5)
    assert (expected - before).abs().max() > 1e-2
    copied = copy.deepcopy(model)
    torch.testing.assert_close(outputs(copied, inputs), outputs(model, inputs), rtol=0, atol=0)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(outputs(loaded, inputs), outputs(model, inputs), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "vit"])
def test_alike_layers_load_with_transformers_alone(name, tmp_path):
    """Whole groups of keys go, or as many heads of each; no patch is on the model, and the cache is smaller."""
    model, inputs = model_and_inputs(name)
    gates = HeadGates.of(model, **inputs)
    groups = {site.name: [2, 3] if k % 2 else [0, 1] for k, site in enumerate(gates.sites)}
    expected = gated(model, inputs, groups)
    found = be.nn.prune_heads(model, groups)
    assert (found.obstacle, be.nn.patches(model)) == ("", ())
    assert found.cache[0] == 2 * found.cache[1]
    assert (model.config.num_attention_heads, model.config.head_dim) == (2, 8)
    torch.testing.assert_close(outputs(model, inputs), expected, rtol=1e-5, atol=2e-5)
    model.save_pretrained(tmp_path)
    assert "bulkedge" not in (tmp_path / "config.json").read_text()
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(outputs(loaded, inputs), outputs(model, inputs), rtol=0, atol=0)


def test_modules_of_ones_own_are_refused_with_a_remedy():
    with pytest.raises(DomainError, match=r"modules of your own cannot be cut: .*ablate_heads"):
        be.nn.prune_heads(torch.nn.TransformerEncoderLayer(16, 2), [(0, 0)])


def test_means_need_a_bias_and_llama_has_one_if_asked(tmp_path):
    model, inputs = build("llama")
    groups = {f"layers.{k}.self_attn": [0, 2] for k in range(3)}
    means = {name: torch.randn(4, 8) for name in groups}
    expected = gated(model, inputs, groups, means)
    found = be.nn.prune_heads(model, groups, "mean", means=means)
    assert (found.obstacle, model.config.attention_bias) == ("", True)
    assert found.cache[0] == found.cache[1]
    model.save_pretrained(tmp_path)
    for each in (model, type(model).from_pretrained(tmp_path).eval()):
        torch.testing.assert_close(outputs(each, inputs), expected, rtol=1e-5, atol=2e-5)


def test_twice_with_other_patches_padding_and_a_cache(tmp_path):
    """The second time heads are numbered as they are by then; patches nest, and what was cut stays cut."""
    model, inputs = build("llama")
    inputs = padded(inputs, "left")
    with be.nn.remove_gap(model):
        expected = gated(model, inputs, {"layers.0.self_attn": [0, 2], "layers.1.self_attn": [3]})
    be.nn.prune_heads(model, [(0, 0), (1, 3)])
    be.nn.prune_heads(model, {"layers.0.self_attn": [1]})
    plain = outputs(model, inputs)
    with be.nn.remove_gap(model):
        torch.testing.assert_close(outputs(model, inputs), expected, rtol=1e-5, atol=2e-5)
        model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(outputs(loaded, inputs), expected, rtol=1e-5, atol=2e-5)
    be.nn.restore(loaded)
    torch.testing.assert_close(outputs(loaded, inputs), plain, rtol=0, atol=0)
    with pytest.raises(DomainError, match="does not come back"):
        be.nn.restore(model, "pruned heads")
    with pytest.raises(DomainError, match="does not have that patch"):
        be.nn.restore(model)
    ids = inputs["input_ids"][1:2]
    with torch.no_grad():
        first = model(ids[:, :12], use_cache=True)
        second = model(ids[:, 12:], past_key_values=first.past_key_values).last_hidden_state
    torch.testing.assert_close(second, outputs(model, {"input_ids": ids})[:, 12:], rtol=1e-5, atol=2e-5)


def test_a_scan_of_the_model_before_the_cut_is_refused():
    """Heads have other numbers now."""
    model, inputs = build("gpt2")
    found = be.scan(model, inputs, draws=0, probe=False, importance=True)
    removal = found.removable(2)
    be.nn.prune_heads(model, removal)
    before = outputs(model, inputs)
    with pytest.raises(DomainError, match=r"heads were chosen when h.*had 4 heads"):
        be.nn.prune_heads(model, removal)
    with pytest.raises(DomainError, match="was cut since: scan again"):
        found.moved(removal)
    torch.testing.assert_close(outputs(model, inputs), before, rtol=0, atol=0)


def test_gradients_reach_what_is_left():
    model, inputs = build("gpt2")
    be.nn.prune_heads(model.train(), [(0, 1)])
    model(**inputs).last_hidden_state.square().sum().backward()
    assert all(each.grad is not None for each in model.parameters())
    assert model.h[0].attn.c_attn.weight.grad.shape == (32, 72)


@pytest.mark.parametrize(
    ("heads", "options", "words"),
    [
        ([], {}, "there is no head to remove"),
        ({"h.0.attn": []}, {}, "there is no head to remove"),
        ([(0, 1.7)], {}, "whole numbers"),
        ([("0", "1")], {}, "whole numbers"),
        ({"h.0.attn": [0.5]}, {}, "whole numbers"),
        ([(3, 0)], {}, "there is no layer 3: attention modules are numbered 0 to 2"),
        ([(0, 4)], {}, r"heads = \[4\] of h.0.attn, which has 4, numbered from 0"),
        ({"h.9.attn": [0]}, {}, "attention modules of GPT2Model are h.0.attn, h.1.attn, h.2.attn"),
        ([(0, 0)], {"replace": "noise"}, "replace"),
        ([(0, 0)], {"replace": "mean"}, "no mean outputs of h.0.attn"),
        ([(0, 0)], {"replace": "mean", "means": {"h.0.attn": torch.ones(3, 8)}}, "shape"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(heads, options, words):
    model, inputs = build("gpt2")
    before = outputs(model, inputs)
    with pytest.raises(DomainError, match=words):
        be.nn.prune_heads(model, heads, **options)
    torch.testing.assert_close(outputs(model, inputs), before, rtol=0, atol=0)
    assert be.nn.patches(model) == ()


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(DomainError, match="not a transformers model"):
        be.nn.prune_heads(torch.nn.TransformerEncoderLayer(16, 2), [(0, 0)])
