"""Bugs planted in small models are each found, and healthy models of every architecture have none."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import MODELS, UNFUSED, PlainGPT, build, padded  # noqa: E402
from torch import nn  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.nn import apply_patch, transform  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

WIDTH, TOKENS, WORDS = 32, 24, 50
IDS = torch.arange(3 * TOKENS).view(3, TOKENS) * 7 % WORDS


def kinds(found):
    return [each.kind for each in found.findings]


@pytest.mark.parametrize("name", sorted(MODELS | UNFUSED))
def test_healthy_models_have_none(name):
    model, inputs = build(name, factor=1)
    if name != "vit":
        inputs |= {"attention_mask": torch.ones_like(inputs["input_ids"])}
    before = {key: each + 0.01 * torch.randn(each.shape) for key, each in model.state_dict().items()}
    model.train()
    found = be.check_attention(model, inputs, before=before)
    assert str(found).startswith("no bugs found"), found
    assert found.causal == (name not in {"bert", "vit"})
    assert {"positions", "twins", "still"} <= set(found.tested)
    assert ("future" in found.tested) == found.causal
    assert ("padding" in found.tested) == (name != "vit")
    assert all(each.training for each in model.modules())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_batches_with_padding_give_none(name, side):
    model, inputs = build(name, factor=1)
    assert be.check_attention(model, padded(inputs, side)).findings == ()


def test_healthy_models_of_ones_own_have_none():
    found = be.check_attention(PlainGPT(), IDS)
    assert found.findings == ()
    assert found.causal
    assert found.untested.keys() == {"padding", "still"}
    with pytest.raises(DomainError, match="neither a tensor"):
        be.check_attention(PlainGPT(), [[1, 2]])
    with pytest.raises(DomainError, match="single token"):
        be.check_attention(PlainGPT(), torch.ones(1, 8, dtype=torch.long))
    with pytest.raises(DomainError, match="could be read"):
        be.check_attention(nn.Linear(3, 3), torch.ones(1, 4, 3))


@pytest.mark.parametrize("bug", ["one ahead", "added"])
@pytest.mark.parametrize("layer", range(3))
def test_a_mask_that_leaks_is_found_in_its_layer(layer, bug):
    bugs = [""] * 3
    bugs[layer] = bug
    (found,) = be.check_attention(PlainGPT(*bugs), IDS).findings
    assert (found.kind, found.modules) == ("future", (f"layers.{layer}",))
    assert found.number > 0.01
    assert "4 heads of one layer attend to later keys" in str(found)
    assert "Remedy: compare the mask" in str(found)


def test_a_leak_of_all_layers_is_found_where_the_model_is_said_to_be_causal():
    model = PlainGPT("one ahead", "one ahead")
    assert be.check_attention(model, IDS, causal=True).findings[0].kind == "future"
    leaking, inputs = build("llama", factor=1)

    @transform("leaks")
    def leaks(call, parameters):
        return call._replace(mask=None, causal=False)

    with apply_patch(leaking, "leaks"):
        assert kinds(be.check_attention(leaking, inputs)) == ["future"]


def test_tokens_that_mix_outside_of_attention_are_found():
    model = PlainGPT()
    model.mixes = True
    (found,) = be.check_attention(model, IDS).findings
    assert found.kind == "future"
    assert "no attention looks ahead" in found.words
    assert "first in layers.0" in found.words


def test_positions_that_make_no_difference_are_found():
    model = PlainGPT()
    model.zero = True
    assert kinds(be.check_attention(model, IDS)) == ["positions"]
    for name in ("gpt2", "llama", "bert"):
        model, inputs = build(name, factor=1)
        zeros = torch.zeros_like(inputs["input_ids"])
        assert kinds(be.check_attention(model, inputs | {"position_ids": zeros})) == ["positions"]


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_an_ignored_padding_mask_is_found(name):
    model, inputs = build(name, factor=1)
    inputs |= {"attention_mask": torch.ones_like(inputs["input_ids"])}

    @transform("sees all")
    def sees_all(call, parameters):
        return call._replace(mask=None, causal=name == "llama")

    with apply_patch(model, "sees all"):
        (found,) = be.check_attention(model, inputs).findings
    assert found.kind == "padding"
    assert "3 of 3 layers" in found.words or "real tokens change" in found.words


def test_tied_heads_and_layers_are_found():
    model = PlainGPT()
    weight, bias = model.layers[1].qkv.weight.data, model.layers[1].qkv.bias.data
    weight[WIDTH + 8 : WIDTH + 16], bias[WIDTH + 8 : WIDTH + 16] = weight[WIDTH : WIDTH + 8], bias[WIDTH : WIDTH + 8]
    (found,) = be.check_attention(model, IDS).findings
    assert (found.kind, found.modules) == ("twins", ("layers.1",))
    assert "key heads 0 and 1" in found.words
    model = PlainGPT()
    model.layers[2].qkv = model.layers[0].qkv
    (found,) = be.check_attention(model, IDS).findings
    assert (found.kind, found.modules) == ("twins", ("layers.0", "layers.2"))


def test_heads_that_never_move_need_two_states():
    model = PlainGPT()
    before = copy.deepcopy(model)
    with torch.no_grad():
        model.layers[0].qkv.weight += 0.01
        model.layers[1].qkv.weight[:8] += 0.01  # queries of one head
    (found,) = be.check_attention(model, IDS, before=before.state_dict()).findings
    assert (found.kind, found.modules) == ("still", ("layers.1", "layers.2"))
    assert found.number == 7 / 12
    assert be.check_attention(model, IDS, before=before).findings == (found,)
    assert "still" in be.check_attention(model, IDS).untested


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_models_of_two_parts_are_tested_by_their_decoder(name):
    import transformers

    torch.manual_seed(0)
    if name == "t5":
        config = transformers.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    else:
        parts = {f"{part}_{what}": number for part in ("encoder", "decoder")
                 for what, number in {"layers": 2, "attention_heads": 4, "ffn_dim": 64}.items()}  # fmt: skip
        config = transformers.BartConfig(vocab_size=WORDS, d_model=32, max_position_embeddings=64, **parts)
    model = (transformers.T5Model if name == "t5" else transformers.BartModel)(config)
    found = be.check_attention(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)})
    assert found.findings == ()
    assert "future" in found.tested
    assert "two parts" in found.untested["padding"]


@pytest.mark.parametrize("bugs", [("", "", "one ahead"), ("", "", "")])
def test_a_watch_finds_the_cheap_ones(bugs):
    model = PlainGPT(*bugs)
    if not any(bugs):
        weight, bias = model.layers[1].qkv.weight.data, model.layers[1].qkv.bias.data
        weight[WIDTH + 8 : WIDTH + 16] = weight[WIDTH : WIDTH + 8]
        bias[WIDTH + 8 : WIDTH + 16] = bias[WIDTH : WIDTH + 8]
    with be.watch(model.train(), every=1) as watched:
        model(IDS)
    found = {(each.kind, each.layer, each.head) for each in watched.alarms if each.grade != "note"}
    assert found == ({("leak", 2, None)} if any(bugs) else {("twins", 1, 0), ("twins", 1, 1)})


def test_a_watch_finds_leaks_of_all_layers_where_they_say_that_they_are_causal():
    @transform("leaks in training")
    def leaks(call, parameters):
        return call._replace(mask=None, causal=False)

    model, inputs = build("llama", factor=1)
    with apply_patch(model.train(), "leaks in training"), be.watch(model, every=1) as watched:
        model(**inputs)
    assert [each.kind for each in watched.alarms if each.grade == "alarm"] == ["leak"] * 3


def test_torchs_own_masks_are_tested():
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    batch = {"src": torch.randn(2, 12, 16), "src_key_padding_mask": torch.zeros(2, 12, dtype=torch.bool)}
    found = be.check_attention(layer, batch)
    assert kinds(found) == ["positions"]  # it adds none by itself
    assert "padding" in found.tested
