"""Scans of many tokens: blocks of rows and products in the place of matrices, beside the matrices themselves."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small_models import build  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import bulkedge as be  # noqa: E402
from bulkedge.heads.measures import singular_values as singular  # noqa: E402
from bulkedge.heads.measures.attention_measures import MEASURES  # noqa: E402
from bulkedge.models import capture, stream  # noqa: E402
from bulkedge.models.hooks import capture as captures  # noqa: E402
from bulkedge.models.scanning.random_heads import TESTED, draw_random_heads  # noqa: E402
from bulkedge.spectra import krylov  # noqa: E402
from bulkedge.spectra.operators import products  # noqa: E402
from bulkedge.support.errors import RegimeWarning  # noqa: E402
from bulkedge.support.progress import listen  # noqa: E402
from bulkedge.visibility import FullMask, WindowMask  # noqa: E402

ESTIMATED = {"stable_rank", "effective_rank", "entropy_error", "spectrum_error", "spectrum_floor", "s1", "gap"}
"""What products tell; all else is a sum over rows."""


@pytest.fixture
def long(monkeypatch):
    """Few tokens are already many, and a block is a few rows."""

    def shorten(computed=16, entries=256):
        for module in (singular, captures):
            monkeypatch.setattr(module, "COMPUTED", computed)
        monkeypatch.setattr(captures, "AT_ONCE", {"cpu": entries, "elsewhere": entries})

    return shorten


@pytest.mark.parametrize("name", ["llama", "bert", "gemma2", "gpt_oss"])
def test_a_long_scan_is_the_scan(name, long):
    """Grouped keys, windows, caps and sinks, with the null; twenty tokens have no more than twenty values to find."""
    model, inputs = build(name)
    options = {"draws": 5, "probe": False, "rng": 0}
    expected = be.scan(model, inputs["input_ids"][:1], **options).data
    long()
    found = be.scan(model, inputs["input_ids"][:1], **options).data
    for each in MEASURES.keys() - ESTIMATED - {"content_rank"}:
        np.testing.assert_allclose(found[each], expected[each], rtol=1e-9, atol=1e-12, err_msg=each)
    for each in ("stable_rank", "effective_rank", "s1", "gap", "spectrum"):
        np.testing.assert_allclose(found[each], expected[each], rtol=1e-5, atol=1e-6, err_msg=each)
    # capped scores are no products of queries and keys, and random vectors tell their rank: here as many as tokens
    np.testing.assert_allclose(found.content_rank, expected.content_rank, rtol=1e-6)
    np.testing.assert_array_equal(found.picture, expected.picture)
    # within a window of eight all keys are near: there rounding is all that near_mass has to rank
    ranked = [f"p_{each}" for each in TESTED if np.all(np.abs(expected[each]) > 1e-12)]
    assert len(ranked) >= len(TESTED) - 1
    for each in (*ranked, "p", "q"):
        np.testing.assert_allclose(found[each], expected[each], atol=1e-9, err_msg=each)


class Sizes(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that anything computes."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        answer = function(*arguments, **(named or {}))
        sizes = [
            each.untyped_storage().nbytes() // each.itemsize
            for each in tree_leaves(answer)
            if isinstance(each, torch.Tensor)
        ]
        self.largest = max([self.largest, *sizes])
        return answer


@pytest.mark.parametrize("layer_types", ["full_attention", "sliding_attention"])
def test_nothing_has_as_many_numbers_as_there_are_pairs_of_tokens(layer_types, long, monkeypatch):
    """Neither of the head nor of its null, of any type."""
    tokens = 200
    config = transformers.Qwen2Config(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        vocab_size=50, max_position_embeddings=1024, layer_types=[layer_types], sliding_window=60,
        use_sliding_window=True, attn_implementation="sdpa",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.Qwen2Model(config).eval()
    if layer_types == "sliding_attention":  # a window is a rule of flash attention; others write it out
        monkeypatch.setattr(transformers.models.qwen2.modeling_qwen2, "create_sliding_window_causal_mask", _no_mask)
    long(entries=2**13)
    monkeypatch.setattr(products, "ENTRIES", {"cpu": 2**13, "gpu": 2**13})
    monkeypatch.setattr(krylov, "JOINED", 1)  # eight blocks of vectors are more than two hundred
    monkeypatch.setattr(singular, "STEPS", 4)
    told, ids = [], torch.arange(tokens) % 50

    def draw(each):
        found = draw_random_heads(each, ids, np.ones(1), 1, torch.Generator().manual_seed(0))
        assert np.all(np.isfinite(found.spectra))

    with Sizes() as sizes, listen(told.append):
        be.scan(model, ids, tokens=tokens, draws=0, probe=False)
        stream(model, draw, input_ids=ids[None])
    assert 2**12 < sizes.largest < tokens**2
    labels = {f"{each} of layers.0.self_attn" for each in ("heads", "random heads")}
    assert {each.label for each in told} >= labels | {"passes over a head"}
    assert all(each.done <= each.total for each in told)


def _no_mask(**_):
    return None


def test_estimated_spectra_are_within_their_stated_errors(long, monkeypatch):
    """At a size at which not all values are found: 32 probes and eight steps do not exhaust five hundred tokens."""
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=90, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.LlamaModel(config).eval()
    with torch.no_grad():
        model.layers[0].self_attn.q_proj.weight.mul_(60)
    ids, options = torch.randint(90, (500,)), {"draws": 0, "probe": False}
    expected = be.scan(model, ids, **options).data
    long(entries=2**14)
    monkeypatch.setattr(singular, "STEPS", 8)
    found = be.scan(model, ids, **options).data
    assert np.all(found.spectrum_error > 0)
    for head in range(2):
        own, true = (each.spectrum.to_numpy()[0, head] for each in (found, expected))
        levels = found.level.to_numpy()
        # levels of the estimated spectrum at the true values, where more than their number is known; the scan keeps 33
        # levels, between which both are straight lines: half a value's step is added
        known = true > found.spectrum_floor.to_numpy()[0, head]
        apart = np.abs(np.interp(true, own, levels) - levels)[known]
        assert apart.max() <= found.spectrum_error.to_numpy()[0, head] + 0.5 / 500
    tolerance = {"s1": singular.RESIDUAL, "gap": 2 * singular.RESIDUAL, "stable_rank": 2 * singular.RESIDUAL}
    for name, most in tolerance.items():
        np.testing.assert_allclose(found[name], expected[name], rtol=0 if name == "gap" else most, atol=most)
    apart = np.abs(np.log(found.effective_rank / expected.effective_rank))
    assert np.all(apart < 4 * found.entropy_error)
    assert np.all(found.entropy_error < 0.05)


def test_masks_that_are_written_out_are_read_as_rules():
    """Windows of Gemma 2, which its eager attention writes out; a mask that is no rule stays one."""
    model, inputs = build("gemma2")
    layers = capture(model, input_ids=inputs["input_ids"][:1])
    assert [layer.structure for layer in layers] == [WindowMask(20, 8), WindowMask(20, 20), WindowMask(20, 8)]
    assert all(layer.mask is None for layer in layers)
    kept = torch.ones(1, 20).long()
    kept[0, :5] = 0
    layers = capture(model, input_ids=inputs["input_ids"][:1], attention_mask=kept)
    assert all(layer.mask is not None and layer.structure is None for layer in layers)
    model, inputs = build("bert")
    assert capture(model, input_ids=inputs["input_ids"][:1])[0].structure == FullMask(20, 20)


def test_texts_that_are_shorter_than_was_asked_for_are_told():
    model, inputs = build("gpt2")
    with pytest.warns(RegimeWarning, match="tokens = 8192, but the longest text has 20"):
        be.scan(model, inputs["input_ids"][:1], tokens=8192, draws=0, probe=False)
