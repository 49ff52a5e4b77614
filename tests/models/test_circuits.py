"""Circuits of checkpoints: against dense products, against random weights, and with one layer in memory at most."""

import json
import tracemalloc
import weakref
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import LLAMA, STEM, dense, llama_layer, write_config, write_llama, write_shards, write_tensors

import bulkedge as be
from bulkedge.models import MODELS, scan_weights
from bulkedge.models.circuits import circuits
from bulkedge.models.circuits.checkpoints import ModelCheckpoint
from bulkedge.models.circuits.circuits import LEVEL, RandomCircuit
from bulkedge.support.errors import DomainError
from bulkedge.support.progress import listen

MEASURED = (
    "frobenius", "stable_rank", "largest", "edge", "largest_over_edge", "p_largest", "spikes", "signal_energy",
    "distance", "bias_norm",
)  # fmt: skip


def test_numbers_are_those_of_the_dense_products(tmp_path):
    """By another route: singular values of the whole product, ``be.compare`` for the edge and what is beyond it."""
    rng = np.random.default_rng(0)
    tensors = llama_layer(0, rng)
    tensors[f"{STEM}q_proj.weight"][3] += 0.1
    tensors[f"{STEM}k_proj.weight"][3] += 0.1
    write_config(tmp_path, **LLAMA)
    write_tensors(tmp_path / "model.safetensors", tensors, "F64")
    found = scan_weights(tmp_path)
    records = found.records()
    assert [(each["head"], each["circuit"]) for each in records] == [(h, c) for c in ("QK", "OV") for h in range(4)]
    for each in records:
        matrix = dense(tensors, each["head"])[each["circuit"]]
        values = np.linalg.svd(matrix, compute_uv=False)[:8]
        place = 0, each["head"], each["circuit"]
        beside = be.compare(found.spectrum(*place), found.law(*place), level=LEVEL)
        beyond = values**2 > beside.finite_edge
        assert each["key_head"] == each["head"] // 2
        assert each["spikes"] == len(beside.outliers) == beyond.sum()
        wanted = {
            "frobenius": np.linalg.norm(matrix),
            "stable_rank": np.sum(values**2) / values[0] ** 2,
            "largest": np.linalg.norm(matrix, 2),
            "edge": beside.finite_edge**0.5,
            "largest_over_edge": values[0] / beside.finite_edge**0.5,
            "p_largest": be.LawNull(found.law(*place), 8).p_value(be.Spectrum.of(values**2, "eigenvalues")).value,
            "signal_energy": np.sum(values[beyond] ** 2) / np.sum(values**2),
        }
        assert {name: each[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
        if not each["spikes"]:
            assert each["distance"] == pytest.approx(beside.ks, rel=1e-9)
    # the direction is in head 0's query and in the key that head 1 shares with it
    assert [each["spikes"] for each in records] == [1, 1, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("least", [1.0, 1e-2, 1e-5, 1e-8])
def test_small_singular_values_are_right(tmp_path, least):
    """One factor with a prescribed spectrum, the other with orthonormal columns: so the values of the product are."""
    rng = np.random.default_rng(2)
    dim, width = 8, 32
    spread = np.geomspace(1, least, dim)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    query, key, value, output = (np.linalg.qr(rng.standard_normal((width, dim)))[0] for _ in range(4))
    query, output = ((each * spread) @ turn for each in (query, output))
    tensors = {"q": query.T, "k": key.T, "v": value.T, "o": output}
    write_config(tmp_path, model_type="llama", num_attention_heads=1)
    write_tensors(tmp_path / "model.safetensors", {f"{STEM}{n}_proj.weight": a for n, a in tensors.items()}, "F64")
    for each in scan_weights(tmp_path).members:
        np.testing.assert_allclose(each.singular[0, ::-1], spread, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kind", ["orthogonal", "invertible"])
def test_only_the_product_counts(tmp_path, kind):
    """``Q G`` and ``K inv(G)'`` are the same head; so are ``V G`` and ``O inv(G)'``, and biases that go along."""
    rng = np.random.default_rng(1)
    heads, dim = 3, 6
    tensors = llama_layer(0, rng, heads=heads, key_heads=heads, dim=dim, width=20)
    tensors |= {f"{STEM}{name}_proj.bias": rng.standard_normal(heads * dim) for name in "qkv"}
    other = {name: each.copy() for name, each in tensors.items()}
    for head in range(heads):
        own = slice(head * dim, (head + 1) * dim)
        for left, right in ("qk", "vo"):
            turn = rng.standard_normal((dim, dim))
            turn = np.linalg.qr(turn)[0] if kind == "orthogonal" else turn + 3 * np.eye(dim)
            back = np.linalg.inv(turn).T
            for name in ("weight", "bias"):
                other[f"{STEM}{left}_proj.{name}"][own] = turn @ tensors[f"{STEM}{left}_proj.{name}"][own]
            if right == "o":
                other[f"{STEM}o_proj.weight"][:, own] = tensors[f"{STEM}o_proj.weight"][:, own] @ back.T
            else:
                other[f"{STEM}k_proj.weight"][own] = back @ tensors[f"{STEM}k_proj.weight"][own]
    write_config(tmp_path, **LLAMA | {"num_attention_heads": heads, "num_key_value_heads": heads})
    found = []
    for each in (tensors, other):
        write_tensors(tmp_path / "model.safetensors", each, "F64")
        found.append(scan_weights(tmp_path).records())
    for before, after in zip(*found, strict=True):
        assert {name: after[name] for name in MEASURED} == pytest.approx({n: before[n] for n in MEASURED}, rel=1e-8)
        assert before["bias_norm"] > 0


GPT2 = {"model_type": "gpt2", "n_head": 6}
BERT = {"model_type": "bert", "num_attention_heads": 6}


def gpt2_layer(layer, rng, width=192):
    """As GPT-2 is initialised: Gaussian, the output smaller."""
    return {
        f"h.{layer}.attn.c_attn.weight": 0.02 * rng.standard_normal((width, 3 * width)),
        f"h.{layer}.attn.c_attn.bias": np.zeros(3 * width),
        f"h.{layer}.attn.c_proj.weight": 0.004 * rng.standard_normal((width, width)),
    }


def bert_layer(layer, rng, width=192):
    """Uniform entries, as torch's Linear has them, in BERT's names."""
    names = ("self.query", "self.key", "self.value", "output.dense")
    return {
        f"encoder.layer.{layer}.attention.{name}.weight": rng.uniform(-1, 1, (width, width)) / width**0.5
        for name in names
    }


def wide_llama_layer(layer, rng):
    return llama_layer(layer, rng, heads=8, key_heads=2, dim=32, width=256)


RANDOM = {"gpt2": (gpt2_layer, GPT2), "bert": (bert_layer, BERT)}
RANDOM |= {"llama": (wide_llama_layer, LLAMA | {"num_attention_heads": 8})}


@pytest.mark.parametrize("name", RANDOM)
def test_random_weights_are_not_called_structured(tmp_path, name):
    """At the level of 0.01, at most 4 % of heads; and distances are those that random weights should have."""
    make, config = RANDOM[name]
    rng = np.random.default_rng([7, len(name)])
    write_config(tmp_path, **config)
    write_shards(tmp_path, [make(layer, rng) for layer in range(25)], "BF16")
    records = scan_weights(tmp_path).records()
    assert len(records) == 25 * 2 * config.get("n_head", config.get("num_attention_heads"))
    assert np.mean([each["spikes"] > 0 for each in records]) <= 0.04
    distances = np.median([(each["distance"], each["null_distance"]) for each in records], axis=0)
    assert distances[0] == pytest.approx(distances[1], rel=0.15)


def test_planted_directions_are_counted(tmp_path):
    """Three directions well beyond the edge: as many spikes, with the energy that was planted."""
    rng = np.random.default_rng(3)
    width, dim = 256, 32
    tensors = llama_layer(0, rng, heads=4, key_heads=4, dim=dim, width=width)
    for head in range(4):
        own = slice(head * dim, (head + 1) * dim)
        inside = np.linalg.qr(rng.standard_normal((dim, 3)))[0]
        for name in "qk":
            outside = np.linalg.qr(rng.standard_normal((width, 3)))[0]
            tensors[f"{STEM}{name}_proj.weight"][own] += 0.8 * inside @ outside.T
    write_config(tmp_path, **LLAMA | {"num_key_value_heads": 4})
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = scan_weights(tmp_path)
    assert [each["spikes"] for each in found.records()] == [3] * 4 + [0] * 4
    # the squared length of a planted direction and the noise on it; 29 values of the noise alone
    planted, noise = 3 * (0.8**2 + width * 0.02**2) ** 2, 29 * 0.02**4 * width**2
    assert [each["signal_energy"] for each in found.records()[:4]] == pytest.approx(
        [planted / (planted + noise)] * 4, abs=0.05
    )
    said = found.summary().splitlines()[1:3]
    assert ["4 of 4 heads" in said[0], "0 of 4 heads" in said[1]] == [True, True]


@pytest.mark.parametrize("shape", [(40, 12, 60), (9, 12, 30), (12, 12, 12), (5, 1, 7)])
def test_random_heads_are_products_of_gaussian_matrices(shape):
    """The triangular factors that are drawn have the law of the products themselves."""
    left, dim, right = shape
    null, rng = RandomCircuit.of(*shape), np.random.default_rng(5)
    drawn = np.stack([null.draw(rng) for _ in range(600)])
    whole = [rng.standard_normal((left, dim)) @ rng.standard_normal((right, dim)).T for _ in range(600)]
    whole = np.linalg.svd(np.stack(whole), compute_uv=False)[:, : null.size][:, ::-1]
    assert drawn.shape == whole.shape
    error = np.hypot(drawn.std(axis=0), whole.std(axis=0)) / 600**0.5
    assert np.all(np.abs(drawn.mean(axis=0) - whole.mean(axis=0)) < 4.5 * error)
    assert (whole**2).mean() == pytest.approx(left * dim * right / null.size, rel=0.05)
    # the scale comes from the law's mean of singular values, which finite size moves: by 14 % at rank one
    assert null.scale(whole).mean() == pytest.approx(left * dim * right / null.size, rel=0.1 if dim > 1 else 0.2)


def test_a_circuit_of_zeros_has_no_numbers(tmp_path):
    tensors = write_llama(tmp_path, np.random.default_rng(0), layers=1)
    tensors[f"{STEM}o_proj.weight"][:, :8] = 0
    write_tensors(tmp_path / "model.safetensors", tensors)
    found = scan_weights(tmp_path)
    empty = next(each for each in found.records() if (each["head"], each["circuit"]) == (0, "OV"))
    assert {name for name in MEASURED if np.isnan(empty[name])} == {
        "stable_rank", "largest_over_edge", "p_largest", "signal_energy", "distance",
    }  # fmt: skip
    assert (empty["spikes"], empty["frobenius"], empty["edge"]) == (0, 0, 0)
    assert "0 of 4 heads" in found.summary()
    assert json.loads(found.to_json())["records"][4]["distance"] is None
    with pytest.raises(DomainError, match="is zero"):
        found.law(0, 0, "OV")
    with pytest.raises(DomainError, match="was not read"):
        found.spectrum(0, 4, "OV")
    tensors[f"{STEM}o_proj.weight"][:] = 0
    write_tensors(tmp_path / "model.safetensors", tensors)
    assert "OV circuits: all zero." in scan_weights(tmp_path).summary()


# -- memory ------------------------------------------------------------------------------------------------------------

LARGE = {"heads": 64, "key_heads": 8, "dim": 4, "width": 256}
"""A Llama of 70 billion weights, 80 such layers, with 32 times fewer dimensions."""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    layers = 80
    write_config(folder, **LLAMA | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 4})
    rng = np.random.default_rng(0)
    shared = llama_layer(0, rng, **LARGE)

    def shard(first):
        """Attention and a part of the other weights of ten layers; the numbers may be the same."""
        names = {
            name.replace("layers.0", f"layers.{k}"): each
            for k in range(first, first + 10)
            for name, each in shared.items()
        }
        others = {f"model.layers.{k}.mlp.up_proj.weight": np.zeros((512, 256)) for k in range(first, first + 10)}
        return names | others

    write_shards(folder, map(shard, range(0, layers, 10)), "BF16")
    return folder


def test_a_large_checkpoint_is_read_one_layer_at_a_time(large, monkeypatch):
    """Every array that was read of a layer is gone before the next layer is; nothing else is read."""
    read, alive, most = ModelCheckpoint.read, {}, []

    def counted(self, name, *args, **options):
        array = read(self, name, *args, **options)
        layer = name.split(".")[2]
        alive[id(array)] = layer
        weakref.finalize(array, alive.pop, id(array))
        most.append((name, set(alive.values())))
        return array

    monkeypatch.setattr(ModelCheckpoint, "read", counted)
    told = []
    with listen(lambda event: told.append((event.label, event.done, event.total))):
        found = scan_weights(large)
    assert len(found.members) == 160
    assert told[-1] == ("layers", 80, 80)
    assert all(layers == {name.split(".")[2]} for name, layers in most)
    assert {name.split(".")[-2] for name, _ in most} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert not alive


def test_memory_does_not_grow_with_the_number_of_layers(large, monkeypatch):
    """Peak of all that Python and NumPy allocate, beside what is returned, against the size of one layer.

    As at full size, one group of heads is decomposed at a time.
    """
    monkeypatch.setattr(circuits, "ENTRIES", 1)
    layer = 8 * 256 * (64 + 8 + 8 + 64) * 4  # bytes of its attention in double precision
    scan_weights(large, layers=[0])
    tracemalloc.start()
    try:
        found = scan_weights(large, layers=range(20))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.records()) == 20 * 64 * 2
    assert peak - kept < layer


def test_layers_can_be_chosen(tmp_path):
    write_llama(tmp_path, np.random.default_rng(0), layers=12)
    every = scan_weights(tmp_path).records()
    some = scan_weights(tmp_path, layers=[10, 2]).records()
    assert some == [each for each in every if each["layer"] in {2, 10}]
    assert {each["module"] for each in some} == {f"model.layers.{k}.self_attn" for k in (2, 10)}
    for wrong in ([12], [-1], [0.5], []):
        with pytest.raises(DomainError, match="layers"):
            scan_weights(tmp_path, layers=wrong)


def test_a_trained_encoder_is_beyond_random_weights():
    """MiniLM: most heads have learned directions in both circuits, and the values of the last layer next to none."""
    model = MODELS["minilm"]
    package = find_spec(model.package)
    if package is None:
        pytest.skip(f"{model.distribution} is not installed")
    found = scan_weights((Path(package.submodule_search_locations[0]) / model.file).parent)
    share = {(each.circuit, each.layer): float(np.mean(each.numbers()["spikes"] > 0)) for each in found.members}
    assert len(found.records()) == 2 * 6 * 12
    assert np.mean([share["QK", layer] for layer in range(6)]) > 0.7
    assert np.mean([share["OV", layer] for layer in range(5)]) > 0.6
    assert share["OV", 5] < 0.3
    distance = np.median([(each["distance"], each["null_distance"]) for each in found.records()], axis=0)
    assert distance[0] > 2 * distance[1]
