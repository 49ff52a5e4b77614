"""The weights of each attention in a checkpoint, found by the names of its tensors, and split into heads.

In every layout a head has queries ``x Q``, keys ``y K``, values ``y V`` and the output ``(values) O'``, with Q, K, V
and O of shape (width, dim): the circuits are ``Q K'`` and ``V O'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bulkedge.models.circuits.layouts import LAYOUTS, PARTS, Layout, Part, model_types
from bulkedge.models.loading.checkpoints import Checkpoint
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, shown
from bulkedge.support.errors import DomainError

HEADS = Integers(1, 2**16)
SHOWN = 12
"""Names of tensors that an error shows."""
ROTARY = {"llama", "mistral", "gptj", "gpt_neox", "falcon", "phi", "phi3", "qwen2"}
"""Architectures whose older configurations do not mention their rotary positions."""


@dataclass(frozen=True)
class Attention:
    """One attention module of a checkpoint.

    Attributes
    ----------
    module : str
        Path of the tensor with the queries, without its own name.
    layout : Layout
        How it is split.
    names : dict of str to str
        Tensors of the four parts.
    heads, key_heads : int
        Query heads, and heads of keys and values, each shared by as many successive query heads.
    dims : dict of str to int
        Dimension of a head in each part; that of the output is the one of the values.
    widths : dict of str to int
        Inputs of queries, keys and values, and outputs.
    config : dict
        The part of the configuration that it is described by.
    """

    module: str
    layout: Layout
    names: Mapping[str, str]
    heads: int
    key_heads: int
    dims: Mapping[str, int]
    widths: Mapping[str, int]
    config: Mapping[str, Any]

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are turned by their positions, as far as the configuration tells."""
        config = self.config
        if config.get("alibi"):
            return False
        said = any(re.match(r"(rope|rotary)(_|$)", key) and value for key, value in config.items())
        named = str(config.get("position_embedding_type")) in {"rope", "rotary"}
        return said or named or str(config.get("model_type")) in ROTARY

    def weights(self, checkpoint: Checkpoint, part: Part, groups: range) -> Real:
        """The weights of some heads."""
        dim = self.dims[part]
        if part == "output":
            columns = slice(groups.start * self.group * dim, groups.stop * self.group * dim)
            found = self._read(checkpoint, self.names[part], columns, inputs=True)
            return found.reshape(len(found), -1, dim).transpose(1, 0, 2)
        return self._rows(checkpoint, self.names[part], part, groups).transpose(0, 2, 1)

    def bias_name(self, checkpoint: Checkpoint, part: Part) -> str | None:
        """The tensor with the bias of a part."""
        name = re.sub("weight$", "bias", self.names[part])
        return name if name in checkpoint.tensors else None

    def bias(self, checkpoint: Checkpoint, part: Part, groups: range) -> Real | None:
        """The bias of queries, keys or values of some heads."""
        name, weight = self.bias_name(checkpoint, part), self.names[part]
        if name is None:
            return None
        outputs = checkpoint.shape(weight)[1 if self.layout.transposed else 0]
        if checkpoint.shape(name) != (outputs,):
            raise DomainError(f"the bias {name!r} has the shape {checkpoint.shape(name)}; {weight!r} says {(outputs,)}")
        return self._rows(checkpoint, name, part, groups)

    def _rows(self, checkpoint: Checkpoint, name: str, part: Part, groups: range) -> Real:
        """Rows of a tensor with outputs of this part, as (heads, dim, ...)."""
        dim, group = self.dims[part], self.group
        if self.layout.fused and self.layout.order == "grouped":
            block = (group + 2) * dim
            found = self._read(checkpoint, name, slice(groups.start * block, groups.stop * block))
            blocks = found.reshape(len(groups), group + 2, dim, *found.shape[1:])
            place = {"query": slice(0, group), "key": slice(group, group + 1), "value": slice(group + 1, group + 2)}
            return blocks[:, place[part]].reshape(-1, *blocks.shape[2:])
        before = {"query": 0, "key": self.heads, "value": self.heads + self.key_heads}
        first = before[part] * dim if self.layout.fused else 0
        size = (group if part == "query" else 1) * dim
        found = self._read(checkpoint, name, slice(first + groups.start * size, first + groups.stop * size))
        return found.reshape(-1, dim, *found.shape[1:])

    def _read(self, checkpoint: Checkpoint, name: str, part: slice, *, inputs: bool = False) -> Real:
        """Some outputs (or inputs) of a matrix, with outputs as rows; some entries of a vector."""
        if len(checkpoint.shape(name)) == 1:
            return checkpoint.read(name, part)
        axis = "columns" if inputs != self.layout.transposed else "rows"
        found = checkpoint.read(name, **{axis: part})
        return found.T if self.layout.transposed else found


def find_attentions(checkpoint: Checkpoint) -> tuple[Attention, ...]:
    """All attentions of a checkpoint, in the order in which a model calls them."""
    found: dict[str, Attention] = {}
    types = model_types(checkpoint.config)
    for name in checkpoint.tensors:
        for layout in LAYOUTS:
            if name not in found and (names := layout.tensors(name, checkpoint.tensors, types)):
                found[name] = _attention(checkpoint, layout, names)
    if not found:
        raise DomainError(_unknown(checkpoint))
    return tuple(sorted(found.values(), key=lambda each: _called(each.module)))


def unread(checkpoint: Checkpoint, attentions: Iterable[Attention]) -> list[str]:
    """Matrices whose names speak of attention and that no layout has claimed."""
    claimed = {name for each in attentions for name in each.names.values()}
    spoken = re.compile(r"attn|attention", re.IGNORECASE)
    beside = re.compile(r"norm|ln|bias|rotary|inv_freq|embed|position|gate|\bg\b", re.IGNORECASE)
    return [
        name
        for name, tensor in checkpoint.tensors.items()
        if len(tensor.shape) > 1 and name not in claimed and spoken.search(name) and not beside.search(name)
    ]


# -- what shapes and the configuration say ----------------------------------------------------------------------------


def _attention(checkpoint: Checkpoint, layout: Layout, names: Mapping[str, str]) -> Attention:
    """Heads and dimensions, checked against every shape and what the configuration says of them."""
    module = re.sub(r"\.?(\w+\.weight|in_proj_weight)$", "", names["query"])
    config = config_of(checkpoint.config, module)
    heads, said = _heads(config, module), _key_heads(config)
    shapes = {part: checkpoint.shape(name) for part, name in names.items()}
    if any(len(shape) != 2 for shape in shapes.values()):
        raise DomainError(f"the weights of {module!r} are not matrices: their shapes are {shapes}")
    if layout.transposed:
        shapes = {part: shape[::-1] for part, shape in shapes.items()}
    (queries, wide), (keys, key_wide), (values, value_wide), (outputs, inner) = (shapes[part] for part in PARTS)
    if layout.fused:
        key_heads, dim = said or heads, inner // heads
        value_dim, fits = dim, queries == (heads + 2 * key_heads) * dim
    else:
        dim, value_dim = queries // heads, inner // heads
        key_heads = keys // max(dim, 1)
        fits = (queries, keys, values) == (heads * dim, key_heads * dim, key_heads * value_dim)
    fits &= inner == heads * value_dim > 0 and dim > 0 and key_heads > 0 and heads % max(key_heads, 1) == 0
    head_dim = config.get("head_dim", config.get("d_kv"))
    if not fits or said not in {None, key_heads} or not (head_dim is None or head_dim == dim):
        raise DomainError(
            f"the shapes of {module!r} (outputs first), {shapes}, are not those of {heads} heads, {said or 'as many'} "
            f"key heads and head_dim {shown(head_dim)} that its configuration says"
        )
    return Attention(
        module, layout, names, heads, key_heads,
        {"query": dim, "key": dim, "value": value_dim, "output": value_dim},
        {"query": wide, "key": key_wide, "value": value_wide, "output": outputs}, config,
    )  # fmt: skip


def config_of(config: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The part of a configuration that a module belongs to: models of several towers have one for each."""
    parts = {name.removesuffix("_config"): each for name, each in config.items() if isinstance(each, dict)}
    described = {name: each for name, each in parts.items() if _counted(each)}
    for word in module.replace("language_model", "text").replace("visual", "vision").split("."):
        for name, each in described.items():
            if name in word:
                return each
    if described and not _counted(config):
        return described.get("text", next(iter(described.values())))
    return config


HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")


def _counted(config: Mapping[str, Any]) -> bool:
    keys = (*HEAD_KEYS, "encoder_attention_heads", "decoder_attention_heads")
    return any(config.get(key) is not None for key in keys)


def _heads(config: Mapping[str, Any], module: str) -> int:
    tower = "decoder" if re.search(r"(^|\.)decoder\.", module) else "encoder"
    keys = (f"{tower}_attention_heads", *HEAD_KEYS)
    found = [(key, config[key]) for key in keys if config.get(key) is not None]
    if not found:
        raise DomainError(f"the configuration does not say how many heads {module!r} has: none of {', '.join(keys)}")
    return HEADS.check(*found[0])


def _key_heads(config: Mapping[str, Any]) -> int | None:
    """Key heads as the configuration has them; None where it does not say."""
    # Falcon's first models and BigCode's have one or all; the number that Falcon writes beside does not count
    if "multi_query" in config and not config.get("new_decoder_architecture"):
        return 1 if config["multi_query"] else None
    keys = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    found = [(key, config[key]) for key in keys if config.get(key) is not None]
    return HEADS.check(*found[0]) if found else None


def _called(module: str) -> tuple[Any, ...]:
    """Key of the order in which a model calls its attentions."""
    words = module.lower()
    crossed = bool(re.search(r"cross|encdec|encoder_attn", words))
    decoding = bool(re.search(r"(^|\.)(decoder|language_model|text_model)\.", words))
    numbers = [int(number) for number in re.findall(r"\.(\d+)(?=\.)", f".{words}.")]
    return decoding, re.split(r"\d", words)[0], numbers, crossed, module


def _unknown(checkpoint: Checkpoint) -> str:
    names = [re.sub(r"\.\d+\.", ".*.", name) for name in checkpoint.tensors]
    seen = list(dict.fromkeys(names))
    kind = checkpoint.config.get("model_type")
    more = f" and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    return (
        f"no attention in a layout that is known for the model type {shown(kind)} is in {checkpoint.path}; it has the "
        f"tensors {', '.join(shown(name) for name in seen[:SHOWN])}{more} (* is a number)"
    )
