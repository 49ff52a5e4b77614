"""Models with scaled scores: head by head, saved and loaded with the model, and off again bit for bit."""

import copy
import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import MODELS, SMALL, build, hidden  # noqa: E402

from bulkedge import nn  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.nn.patching import interface  # noqa: E402

HEADS = [0.5, 1.0, 2.0, 4.0]
"""Powers of two, by which floating-point numbers are multiplied without rounding."""


def scores(model, inputs):
    """Scores of all layers, and the names of these."""
    layers = capture(model, **inputs)
    return [layer.scale * (layer.query @ layer.key.mT) for layer in layers], [layer.name for layer in layers]


def first_scores(model, inputs):
    """Of the first layer, whose inputs no factor changes."""
    return scores(model, inputs)[0][0]


def forms_of_factors(model, inputs):
    """The ways to say factors, with what they are for the heads of the first layer."""
    names = scores(model, inputs)[1]
    table = np.tile(HEADS, (len(names), 1)) * 2.0 ** np.arange(len(names))[:, None]
    return {
        "number": (2.0, [2.0] * 4),
        "heads": (HEADS, HEADS),
        "tensor": (torch.tensor(HEADS), HEADS),
        "layers": (table, table[0]),
        "mapping": ({names[0]: HEADS, names[1]: 8.0}, HEADS),
        "other layer": ({names[1]: HEADS}, [1.0] * 4),
    }


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_multiplied_and_restored(name):
    model, inputs = build(name)
    before, state = hidden(model, inputs), copy.deepcopy(vars(model.config))
    plain = first_scores(model, inputs)
    for form, (factors, first) in forms_of_factors(model, inputs).items():
        with nn.scale_scores(model, factors):
            expected = plain * torch.tensor(first, dtype=plain.dtype)[:, None, None]
            assert torch.equal(first_scores(model, inputs), expected), form
            assert (hidden(model, inputs) - before).abs().max() > 0.01, form
        assert torch.equal(hidden(model, inputs), before)
        assert vars(model.config) == state


@pytest.mark.parametrize("name", MODELS)
def test_factors_go_to_the_layer_they_name(name):
    """The second layer's scores are multiplied, at the same inputs; those of the third have other inputs."""
    model, inputs = build(name)
    plain, names = scores(model, inputs)
    with nn.scale_scores(model, {names[1]: HEADS}):
        found, _ = scores(model, inputs)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], plain[1] * torch.tensor(HEADS)[:, None, None])
    assert not torch.equal(found[2], plain[2])


def test_ones_change_nothing_and_nesting_multiplies():
    model, inputs = build("llama")
    before = hidden(model, inputs)
    table = np.array(list(itertools.islice(itertools.cycle(HEADS), 12))).reshape(3, 4)
    with nn.scale_scores(model, 1.0):
        torch.testing.assert_close(hidden(model, inputs), before, atol=1e-5, rtol=0)
    with nn.scale_scores(model, table):
        once = hidden(model, inputs)
    for order in (0, 1):
        made = [nn.scale_scores(model, table), nn.scale_scores(model, 2.0), nn.remove_gap(model)]
        nn.restore(made[2])
        both = hidden(model, inputs)
        nn.restore(made[order])
        if order == 1:
            assert torch.equal(hidden(model, inputs), once)
        nn.restore(made[1 - order])
        assert torch.equal(hidden(model, inputs), before)
        with nn.scale_scores(model, 2 * table):
            assert torch.equal(hidden(model, inputs), both)


def test_all_kinds_of_patches_nest():
    model, inputs = build("gpt2")
    before = hidden(model, inputs)
    expected = {}
    for kinds in itertools.permutations(("gap", "scaled scores")):
        makers = {"gap": nn.remove_gap, "scaled scores": lambda each: nn.scale_scores(each, np.full((3, 4), 2.0))}
        made = [makers[kind](model) for kind in kinds]
        expected[kinds] = hidden(model, inputs)
        for each in made:
            nn.restore(each)
        assert torch.equal(hidden(model, inputs), before)
    one, other = expected.values()
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_saved_and_loaded(name, tmp_path):
    model, inputs = build(name)
    before = hidden(model, inputs)
    factors = forms_of_factors(model, inputs)["layers"][0]
    nn.scale_scores(model, factors)
    tempered = hidden(model, inputs)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(hidden(loaded, inputs), tempered)
    nn.restore(loaded, "scaled scores")
    assert torch.equal(hidden(loaded, inputs), before)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - written here
        assert torch.equal(hidden(other, inputs), tempered)
    assert json.loads((tmp_path / "config.json").read_text())["attn_implementation"] == interface.NAME


@pytest.mark.slow
def test_a_fresh_process_loads_it_too(tmp_path):
    model, inputs = build("llama")
    nn.scale_scores(model, np.arange(1.0, 13.0).reshape(3, 4))
    model.save_pretrained(tmp_path)
    torch.save((inputs, hidden(model, inputs)), tmp_path / "expected.pt")
    program = f"""
import torch, transformers, bulkedge.nn
inputs, expected = torch.load({str(tmp_path / "expected.pt")!r})
model = transformers.LlamaModel.from_pretrained({str(tmp_path)!r}).eval()
with torch.no_grad():
    torch.testing.assert_close(model(**inputs).last_hidden_state, expected, atol=1e-5, rtol=0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_a_model_with_a_head_on_top_and_the_model_inside_it(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=50, initializer_range=0.3)
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (2, 12))
    nn.scale_scores(model, {"model.layers.1.self_attn": HEADS})
    expected = hidden(model.model, {"input_ids": ids})
    model.save_pretrained(tmp_path)
    for kind in (transformers.LlamaModel, transformers.LlamaForCausalLM):
        loaded = kind.from_pretrained(tmp_path).eval()
        assert torch.equal(hidden(getattr(loaded, "model", loaded), {"input_ids": ids}), expected)
    nn.scale_scores(model.model, {"layers.0.self_attn": 2.0})
    names = [layer.name for layer in capture(model, input_ids=ids)]
    assert names == [f"model.layers.{each}.self_attn" for each in range(3)]
    nn.restore(model)
    with nn.scale_scores(model, {"model.layers.0.self_attn": 2.0, "model.layers.1.self_attn": HEADS}):
        both = hidden(model.model, {"input_ids": ids})
    nn.scale_scores(model, {"model.layers.1.self_attn": HEADS})
    nn.scale_scores(model.model, {"layers.0.self_attn": 2.0})
    assert torch.equal(hidden(model.model, {"input_ids": ids}), both)


def test_decoding_from_a_cache_and_gradients():
    model, inputs = build("llama")
    ids = inputs["input_ids"]
    with nn.scale_scores(model, np.arange(1.0, 13.0).reshape(3, 4) / 6):
        with torch.no_grad():
            whole = model(ids).last_hidden_state
            first = model(ids[:, :12], use_cache=True)
            more = model(ids[:, 12:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(more.last_hidden_state, whole[:, 12:], atol=1e-5, rtol=0)
        model(ids).last_hidden_state.square().sum().backward()
    assert model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
def test_compiled():
    model, inputs = build("gpt2")
    with nn.scale_scores(model, np.arange(1.0, 13.0).reshape(3, 4) / 6):
        compiled = hidden(torch.compile(model, backend="aot_eager"), inputs)
        torch.testing.assert_close(compiled, hidden(model, inputs), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (0.0, "entry 0; factors are positive"),
        (-1.0, "entry -1"),
        (float("nan"), "entry nan"),
        ([1.0, float("inf"), 1.0, 1.0], "entry inf"),
        ("warm", "not an array of numbers"),
        ([], "shape"),
        (np.ones((2, 4)), "2 layers, and LlamaModel has 3"),
        (np.ones((3, 4, 1)), "shape"),
        ({"layers.7.self_attn": 1.0}, r"layers\.7\.self_attn"),
        ({"layers.0": 1.0}, "the attention modules of LlamaModel are layers.0.self_attn"),
        ({"layers.0.self_attn": np.ones((3, 4))}, "shape"),
        ({}, "no module"),
    ],
)
def test_mistakes_change_nothing(factors, message):
    model, inputs = build("llama")
    before = hidden(model, inputs)
    with pytest.raises(ValueError, match=message):
        nn.scale_scores(model, factors)
    assert nn.patches(model) == ()
    assert torch.equal(hidden(model, inputs), before)


def test_other_numbers_of_heads_are_refused_by_the_pass():
    model, inputs = build("llama")
    with (
        nn.scale_scores(model, [1.0, 2.0]),
        pytest.raises(ValueError, match="LlamaAttention has 4 heads, and there are 2"),
    ):
        hidden(model, inputs)
    with nn.scale_scores(model, {"layers.0.self_attn": HEADS}):
        for module in model.modules():
            vars(module).pop(interface.NAMES, None)
        with pytest.raises(ValueError, match="does not know its place in the model"):
            hidden(model, inputs)
    with pytest.raises(ValueError, match="Linear is not a transformers model"):
        nn.scale_scores(torch.nn.Linear(2, 2), 1.0)
