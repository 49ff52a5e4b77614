"""Gates of heads: the same as columns of the output projection; means in the place of heads; nothing stays behind."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import MODELS, UNFUSED, build, hidden  # noqa: E402

from bulkedge.models import capture  # noqa: E402
from bulkedge.models.hooks.gates import HeadGates  # noqa: E402
from bulkedge.support.errors import DomainError  # noqa: E402

PROJECTIONS = {
    "gpt2": "h.{}.attn.c_proj",
    "llama": "layers.{}.self_attn.o_proj",
    "bert": "encoder.layer.{}.attention.output.dense",
}
LAYERS, HEADS, WIDTH = 3, 4, 8
OFF = [(0, 1), (1, 0), (1, 3), (2, 2)]


def columns(model, name, layer, head):
    """What a head's output meets in the weights of the projection, to be written to."""
    weight = model.get_submodule(PROJECTIONS[name].format(layer)).weight.data
    part = slice(head * WIDTH, (head + 1) * WIDTH)
    return weight[part] if name == "gpt2" else weight[:, part].T  # Conv1D has inputs first


def off(gates):
    return gates.without([(gates.sites[layer].name, head) for layer, head in OFF])


@pytest.mark.parametrize("name", sorted(PROJECTIONS))
def test_a_gate_of_zero_is_zeros_in_the_columns_of_the_projection(name):
    """Llama's heads share keys in pairs, and one of a pair goes without the other."""
    model, inputs = build(name)
    before, changed = hidden(model, inputs), copy.deepcopy(model)
    gates = HeadGates.of(model, **inputs)
    assert [(site.heads, site.key_heads) for site in gates.sites] == [(HEADS, 2 if name == "llama" else HEADS)] * LAYERS
    for layer, head in OFF:
        columns(changed, name, layer, head)[:] = 0
    with gates.on(off(gates)):
        found = hidden(model, inputs)
    torch.testing.assert_close(found, hidden(changed, inputs), rtol=1e-5, atol=1e-5)
    assert (found - before).abs().max() > 1e-2
    with gates.on(torch.ones(gates.count)):
        torch.testing.assert_close(hidden(model, inputs), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", sorted(PROJECTIONS))
def test_gates_between_scale_columns_and_differ_by_sequence(name):
    model, inputs = build(name)
    gates, changed = HeadGates.of(model, **inputs), copy.deepcopy(model)
    columns(changed, name, 1, 2)[:] *= 0.3
    values = torch.ones(3, gates.count)
    values[1, HEADS + 2] = 0.3
    before = hidden(model, inputs)
    with gates.on(values):
        found = hidden(model, inputs)
    torch.testing.assert_close(found[1], hidden(changed, inputs)[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[[0, 2]], before[[0, 2]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(PROJECTIONS))
def test_the_mean_in_the_place_of_a_head_is_a_bias(name):
    model, inputs = build(name)
    gates, changed = HeadGates.of(model, **inputs), copy.deepcopy(model)
    torch.manual_seed(1)
    means = [torch.randn(HEADS, WIDTH) for _ in gates.sites]
    for layer, head in OFF:
        projection = changed.get_submodule(PROJECTIONS[name].format(layer))
        added = means[layer][head] @ columns(changed, name, layer, head)
        bias = 0 if projection.bias is None else projection.bias.data
        projection.bias = torch.nn.Parameter(bias + added)
        columns(changed, name, layer, head)[:] = 0
    with gates.on(off(gates), means):
        found = hidden(model, inputs)
    torch.testing.assert_close(found, hidden(changed, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(MODELS | UNFUSED))
def test_nothing_is_left_on_the_model(name):
    """Neither after a pass nor after an exception, with gates and while outputs are read."""
    model, inputs = build(name)
    before, state = hidden(model, inputs), copy.deepcopy(model.state_dict())
    names = [each for each, _ in model.named_parameters()]
    gates, seen = HeadGates.of(model, **inputs), []
    with (
        gates.on(off(gates), [torch.ones(each.heads, WIDTH) for each in gates.sites]),
        gates.reading(lambda *each: seen.append(each)),
    ):
        assert not torch.equal(hidden(model, inputs), before)
    assert [each[0].name for each in seen] == [each.name for each in capture(model, **inputs)]
    with pytest.raises(ZeroDivisionError), gates.on(off(gates)), gates.reading(lambda *_: 1 / 0):
        hidden(model, inputs)
    assert torch.equal(hidden(model, inputs), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert [each for each, _ in model.named_parameters()] == names
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", sorted(PROJECTIONS))
def test_outputs_are_read_and_mapped_as_the_projection_maps_them(name):
    model, inputs = build(name)
    gates, seen, given = HeadGates.of(model, **inputs), {}, {}
    projections = [model.get_submodule(PROJECTIONS[name].format(layer)) for layer in range(LAYERS)]
    handles = [each.register_forward_hook(lambda one, _, out: given.update({one: out})) for each in projections]
    with torch.no_grad(), gates.reading(lambda site, outputs, residual: seen.update({site.name: (outputs, residual)})):
        model(**inputs)
    for each in handles:
        each.remove()
    states = hidden_states(model, inputs)
    for layer, site in enumerate(gates.sites):
        outputs, residual = seen[site.name]
        mapped = torch.einsum("bthd,hde->bte", outputs, site.weights())
        bias = 0 if projections[layer].bias is None else projections[layer].bias
        torch.testing.assert_close(mapped + bias, given[projections[layer]], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(residual, states[layer].norm(dim=-1))


def hidden_states(model, inputs):
    with torch.no_grad():
        return model(**inputs, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_attention_has_gates_and_outputs(batch_first):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=batch_first)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    inputs, seen = {"src": torch.randn(3, 5, 16)}, {}
    gates, before, names = HeadGates.of(model, **inputs), model(**inputs), list(model.state_dict())
    with torch.no_grad(), gates.reading(lambda site, outputs, _: seen.update({site.name: outputs})):
        torch.testing.assert_close(model(**inputs), before)
    changed = copy.deepcopy(model)
    changed.layers[1].self_attn.out_proj.weight.data[:, 8:] = 0
    with gates.on(gates.without([("layers.1.self_attn", 1)])):
        torch.testing.assert_close(model(**inputs), changed(**inputs))
    own = model.layers[0].self_attn
    mapped = torch.einsum("bthd,hde->bte", seen["layers.0.self_attn"], gates.sites[0].weights()) + own.out_proj.bias
    torch.testing.assert_close(mapped, own(*[inputs["src"]] * 3)[0])
    with pytest.raises(DomainError, match="one row of gates"), gates.on(torch.ones(3, gates.count)):
        pass
    assert isinstance(own.out_proj.weight, torch.nn.Parameter)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(**inputs), before)


def test_bad_heads_and_models_are_refused():
    model, inputs = build("gpt2")
    gates = HeadGates.of(model, **inputs)
    assert len(gates.places()) == gates.count == LAYERS * HEADS
    for bad in (("h.0.attn", HEADS), ("h.9.attn", 0)):
        with pytest.raises(DomainError, match=f"no head {bad[1]} in '{bad[0]}'"):
            gates.without([bad])
    with pytest.raises(DomainError, match="Linear: no projection"):
        HeadGates.of(torch.nn.Linear(3, 3), input=torch.ones(1, 3))
