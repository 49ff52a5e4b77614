"""Heads that are off: the same as zeros in their slices of what the output projection gets; the model comes back."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import build, hidden  # noqa: E402

from bulkedge.models import ablate_heads, capture  # noqa: E402
from bulkedge.nn import patches, remove_gap  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

PROJECTIONS = {
    "gpt2": ("h.{}.attn", "h.{}.attn.c_proj"),
    "llama": ("layers.{}.self_attn", "layers.{}.self_attn.o_proj"),
    "bert": ("encoder.layer.{}.attention.self", "encoder.layer.{}.attention.output.dense"),
}
HEADS, WIDTH = 4, 8


def paths(name, layer):
    return (each.format(layer) for each in PROJECTIONS[name])


def sliced(model, projection, heads, inputs):
    """What the model says with zeros in the slices of some heads before an output projection."""

    def hook(module, arguments):
        given = arguments[0].clone()
        for head in heads:
            given[..., head * WIDTH : (head + 1) * WIDTH] = 0
        return (given, *arguments[1:])

    handle = model.get_submodule(projection).register_forward_pre_hook(hook)
    found = hidden(model, inputs)
    handle.remove()
    return found


@pytest.mark.parametrize("heads", [[0], [1, 2], [3], list(range(HEADS))])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_the_same_as_zeros_before_the_output_projection(name, heads):
    """Llama's heads share keys and values in pairs, and one of a pair goes without the other."""
    model, inputs = build(name)
    state, before = copy.deepcopy(model.state_dict()), hidden(model, inputs)
    attention, projection = paths(name, 1)
    expected = sliced(model, projection, heads, inputs)
    with ablate_heads(model, {attention: heads}):
        found = hidden(model, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # another kernel, single precision
    assert (found - before).abs().max() > 1e-2
    assert torch.equal(hidden(model, inputs), before)
    assert patches(model) == ()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_all_heads_of_a_layer_leave_nothing(name):
    model, inputs = build(name)
    attention, projection = paths(name, 2)
    given = []
    handle = model.get_submodule(projection).register_forward_hook(lambda _, each, __: given.append(each[0]))
    with ablate_heads(model, {attention: range(HEADS)}):
        hidden(model, inputs)
    handle.remove()
    assert given[0].abs().max() == 0


def test_vision_and_layers_by_their_captured_names():
    model, inputs = build("vit")
    before, layers = hidden(model, inputs), capture(model, **inputs)
    with ablate_heads(model, {layer.name: [0] for layer in layers}):
        found = hidden(model, inputs)
    assert not torch.equal(found, before)
    assert torch.equal(hidden(model, inputs), before)


def test_restored_after_an_exception():
    model, inputs = build("llama")
    before = hidden(model, inputs)
    with pytest.raises(KeyboardInterrupt), ablate_heads(model, {"layers.0.self_attn": [1]}):
        raise KeyboardInterrupt
    assert torch.equal(hidden(model, inputs), before)
    assert patches(model) == ()


def test_with_another_patch_and_one_in_another():
    model, inputs = build("bert")
    first, second = (next(paths("bert", k)) for k in (0, 1))
    with remove_gap(model):
        before = hidden(model, inputs)
        with ablate_heads(model, {first: [0], second: [2]}):
            both = hidden(model, inputs)
        with ablate_heads(model, {first: [0]}), ablate_heads(model, {second: [2]}):
            assert torch.equal(hidden(model, inputs), both)
        assert torch.equal(hidden(model, inputs), before)
    assert not torch.equal(both, before)


def test_torchs_own_attention():
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 64, batch_first=True).eval()
    given, weight = torch.randn(2, 9, HEADS * WIDTH), model.self_attn.out_proj.weight
    with torch.no_grad():
        before = model(given)
        with ablate_heads(model, {"self_attn": [1]}):
            found = model(given)
        kept = weight.clone()
        weight[:, WIDTH : 2 * WIDTH] = 0
        torch.testing.assert_close(found, model(given))
        weight.copy_(kept)
        assert model.self_attn.out_proj.weight is weight
        assert torch.equal(model(given), before)


def test_what_is_not_there_is_refused():
    model, inputs = build("bert")
    with pytest.raises(DomainError, match="no modules"), ablate_heads(model, {"layers.9": [0]}):
        pass
    for heads in ([4], [-1]):
        with pytest.raises(DomainError, match="heads 0 to 3"), ablate_heads(model, {next(paths("bert", 0)): heads}):
            hidden(model, inputs)
    with pytest.raises(DomainError, match="past"), ablate_heads(model, {"encoder.layer.0.output": [0]}):
        hidden(model, inputs)
    assert patches(model) == ()


def test_a_copy_made_meanwhile_is_whole():
    model, inputs = build("bert")
    before = hidden(model, inputs)
    with ablate_heads(model, {next(paths("bert", 0)): [0]}):
        assert not torch.equal(hidden(model, inputs), before)
        other = copy.deepcopy(model)
        assert torch.equal(hidden(other, inputs), before)
    assert torch.equal(hidden(other, inputs), before)


def test_heads_that_were_seen_and_not_switched_off_are_refused():
    """Their projection is no linear map that could be found."""
    model, inputs = build("llama")
    attention = model.layers[0].self_attn
    attention.o_proj = torch.nn.Sequential(torch.nn.Conv1d(HEADS * WIDTH, HEADS * WIDTH, 1))
    attention.o_proj.forward = lambda given: attention.o_proj[0](given.mT).mT
    with (
        pytest.raises(DomainError, match="do not meet in a linear projection"),
        ablate_heads(model, {"layers.0.self_attn": [0]}),
    ):
        hidden(model, inputs)
