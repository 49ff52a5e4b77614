"""Queries and keys as the scores see them: attention made of them is the model's own."""

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from small_models import MODELS, build, hidden, padded  # noqa: E402

from bulkedge.errors import DomainError  # noqa: E402
from bulkedge.models import capture  # noqa: E402
from bulkedge.nn import apply_patch, patches, remove_gap, restore, transform  # noqa: E402


def eager(model, inputs):
    """What the model itself calls its attention weights."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return found


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_attention_is_the_models_own(name, padding):
    model, inputs = build(name)
    if padding is not None:
        if name == "vit":
            pytest.skip("images have no padding")
        inputs = padded(inputs, padding)
    layers = capture(model, **inputs)
    weights = eager(model, inputs)
    assert len(layers) == len(weights)
    for layer, expected in zip(layers, weights, strict=True):
        found = layer.attention()
        seen = found.isfinite().all(-1)  # rows of padding that see nothing are nan here and arbitrary there
        # single precision: scores of a few units, weights below one
        assert (found[seen] - expected[seen]).abs().max() < 1e-5
        assert seen.all() or padding == "left"


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
    with pytest.raises(ValueError, match="input_ids"):
        capture(model)
    assert patches(model) == ()


def test_a_copy_made_while_reading_says_so():
    model, inputs = build("bert")
    copies = []
    handle = model.encoder.layer[0].register_forward_pre_hook(lambda *_: copies.append(copy.deepcopy(model.config)))
    capture(model, **inputs)
    handle.remove()
    other = type(model)(copies[0])
    with pytest.raises(DomainError, match="copied"):
        other(**inputs)
    restore(other)
    hidden(other, inputs)
