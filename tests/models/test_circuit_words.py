"""Circuits of checkpoints: what is refused, in which words, and what results say."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from checkpoint_files import STEM, dense, llama_layer, write_config, write_llama, write_tensors
from hypothesis import given
from hypothesis import strategies as st

import bulkedge as be
from bulkedge.models import scan_weights
from bulkedge.models.circuits.circuits import LEVEL
from bulkedge.support.errors import BulkedgeError, DomainError, MissingPackageError


def test_an_unknown_layout_is_refused_with_its_names(tmp_path):
    write_config(tmp_path, model_type="novel", num_attention_heads=2)
    tensors = {f"blocks.{k}.mix.query_key_value.weight": np.ones((12, 4)) for k in range(9)}
    write_tensors(tmp_path / "model.safetensors", tensors | {"blocks.0.mix.dense.weight": np.ones((4, 4))})
    with pytest.raises(DomainError, match=r"'novel'.*blocks\.\*\.mix\.query_key_value\.weight.*dense"):
        scan_weights(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_attention_heads": 3}, "not those of 3 heads"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "4 key heads"),
        ({"num_attention_heads": 4, "head_dim": 16}, "head_dim 16"),
        ({"num_attention_heads": 64}, "not those of 64 heads"),
        ({"num_attention_heads": [4, 8]}, "num_attention_heads"),
        ({"num_attention_heads": -4}, "num_attention_heads"),
        ({}, "does not say how many heads"),
    ],
)
def test_contradicting_configurations_are_refused(tmp_path, config, says):
    write_llama(tmp_path, np.random.default_rng(0))
    write_config(tmp_path, model_type="llama", **config)
    with pytest.raises(DomainError, match=says):
        scan_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "says"),
    [
        ("v_proj.weight", np.ones((24, 32)), "not those of"),
        ("o_proj.weight", np.ones((32, 31)), "not those of"),
        ("k_proj.weight", np.ones((16,)), "not matrices"),
        ("k_proj.weight", np.ones((0, 32)), "shape"),
        ("q_proj.bias", np.ones(31), "bias"),
        ("q_proj.bias", np.full(32, np.inf), "not finite"),
    ],
)
def test_contradicting_tensors_are_refused(tmp_path, name, array, says):
    tensors = write_llama(tmp_path, np.random.default_rng(0), layers=1)
    write_tensors(tmp_path / "model.safetensors", tensors | {STEM + name: array})
    with pytest.raises(DomainError, match=says):
        scan_weights(tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    write_llama(folder, np.random.default_rng(0), layers=1)
    return folder


KEYS = (
    "num_attention_heads", "n_head", "num_key_value_heads", "num_kv_heads", "multi_query", "new_decoder_architecture",
    "head_dim", "d_kv", "model_type", "alibi", "rope_theta", "position_embedding_type", "text_config", "decoder",
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.just(10**400) | st.floats() | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inside, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(KEYS), ANYTHING | st.just(4)))
def test_any_configuration_gives_an_error_of_ours_or_the_numbers(small, config):
    write_config(small, **{"num_attention_heads": 4} | config)
    try:
        found = scan_weights(small)
    except BulkedgeError:
        return
    assert len(found.records()) == 2 * len(found.members[0].singular) > 0
    assert found.summary()


def test_nested_configurations_do_not_exhaust_the_stack(small):
    deep = "{" + '"text_config": {' * 900 + "}" * 901
    (small / "config.json").write_text(deep)
    with pytest.raises(DomainError, match="how many heads"):
        scan_weights(small)


def test_torch_attention_is_stacked(tmp_path):
    """``nn.MultiheadAttention`` has one tensor whose name has no dot before ``weight``."""
    rng = np.random.default_rng(0)
    apart = llama_layer(0, rng, key_heads=4)
    query, key, value, output = apart.values()
    tensors = {"in_proj_weight": np.concatenate([query, key, value]), "out_proj.weight": output}
    tensors = {f"layers.0.self_attn.{name}": each for name, each in tensors.items()}
    tensors["layers.0.self_attn.in_proj_bias"] = np.arange(96.0)
    write_config(tmp_path, num_heads=4)
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = scan_weights(tmp_path)
    assert [each.module for each in found.members] == ["layers.0.self_attn"] * 2
    for each in found.records():
        matrix = dense(apart, each["head"], group=1)[each["circuit"]]
        assert each["largest"] == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-5)
        own = slice(each["head"] * 8, each["head"] * 8 + 8)
        right, bias = (
            (key[own].T, np.arange(32.0)) if each["circuit"] == "QK" else (output[:, own], np.arange(64.0, 96))
        )
        assert each["bias_norm"] == pytest.approx(np.linalg.norm(right @ bias[own]), rel=1e-5)


def test_notes_say_what_the_numbers_leave_out(tmp_path):
    tensors = write_llama(tmp_path, np.random.default_rng(0), layers=1)
    assert [note[:20] for note in scan_weights(tmp_path).notes] == ["Positions are rotary"]
    assert "offset zero" in scan_weights(tmp_path).summary()
    extra = {f"{STEM}q_norm.weight": np.ones(8), f"{STEM}q_proj.bias": np.ones(32)}
    extra["model.layers.1.linear_attn.in_proj_qkvz.weight"] = np.ones((4, 4))
    write_tensors(tmp_path / "model.safetensors", tensors | extra)
    write_config(tmp_path, model_type="other", num_attention_heads=4, rope_theta=1e4)
    notes = scan_weights(tmp_path).notes
    assert ["rotary" in notes[0], "normalised" in notes[1], "biases" in notes[2]] == [True] * 3
    assert "1 matrices" in notes[3]
    assert "in_proj_qkvz" in notes[3]
    write_config(tmp_path, model_type="other", num_attention_heads=4, rope_theta=None, alibi=True)
    assert not any("rotary" in note for note in scan_weights(tmp_path).notes)


def test_results_are_read_by_other_programs(tmp_path, monkeypatch):
    write_llama(tmp_path, np.random.default_rng(0))
    found = scan_weights(str(tmp_path))
    said = json.loads(found.to_json())
    assert (said["architecture"], said["level"], said["version"]) == ("llama", LEVEL, be.__version__)
    assert said["records"] == found.records()
    if find_spec("pandas"):
        assert found.table.to_dict("records") == found.records()
    monkeypatch.setattr("bulkedge.support.errors.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install pandas"):
        _ = found.table
