"""Checkpoints made by hand: the safetensors format, written without the package of that name."""

import json

import numpy as np

TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U8": "u1"}


def stored(array, dtype):
    """The bytes of an array; bfloat16 is the upper half of a float32, cut."""
    if dtype == "BF16":
        return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(array, TYPES[dtype]).tobytes()


def write_tensors(path, tensors, dtype="F32"):
    """A safetensors file."""
    header, blocks, start = {"__metadata__": {"format": "pt"}}, [], 0
    for name, array in tensors.items():
        block = stored(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, start + len(block)]}
        blocks.append(block)
        start += len(block)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))


def write_shards(folder, shards, dtype="F32"):
    """Several files and their index; ``shards`` is an iterable, so that they need not be in memory together."""
    places, names = {}, []
    for k, tensors in enumerate(shards):
        names.append(f"model-{k:05d}.safetensors")
        write_tensors(folder / names[-1], tensors, dtype)
        places |= dict.fromkeys(tensors, names[-1])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def write_config(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))


LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


STEM = "model.layers.0.self_attn."
SIZES = {"heads": 4, "key_heads": 2, "dim": 8, "width": 32}


def llama_layer(layer, rng, **sizes):
    """The attention of one layer as Llama names it, at its initialisation; sizes are those of SIZES or others."""
    heads, key_heads, dim, width = (SIZES | sizes).values()
    shapes = {
        "q_proj": (heads * dim, width), "k_proj": (key_heads * dim, width),
        "v_proj": (key_heads * dim, width), "o_proj": (width, heads * dim),
    }  # fmt: skip
    return {
        f"model.layers.{layer}.self_attn.{name}.weight": 0.02 * rng.standard_normal(shape)
        for name, shape in shapes.items()
    }


def write_llama(folder, rng, layers=2, dtype="F32", **sizes):
    """A checkpoint of one file."""
    tensors = {name: each for layer in range(layers) for name, each in llama_layer(layer, rng, **sizes).items()}
    write_config(folder, **LLAMA)
    write_tensors(folder / "model.safetensors", tensors, dtype)
    return tensors


def dense(tensors, head, group=2, dim=8):
    """The two products of a head of Llama's layer 0, in full."""
    own, shared = (slice(k * dim, (k + 1) * dim) for k in (head, head // group))
    query, key, value, output = (tensors[f"{STEM}{name}_proj.weight"] for name in "qkvo")
    return {"QK": query[own].T @ key[shared], "OV": value[shared].T @ output[:, own].T}
