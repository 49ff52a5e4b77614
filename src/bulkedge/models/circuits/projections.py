"""The weights of each attention in a checkpoint, found by the names of its tensors, and split into heads.

In every layout a head has queries ``x Q``, keys ``y K``, values ``y V`` and the output ``(values) O'``, with Q, K, V
and O of shape (width, dim): the circuits are ``Q K'`` and ``V O'``.

:data:`LAYOUTS` is the one table of how architectures name these weights and order the heads in them. A module is read
by the first layout whose tensors are all there. What is not in the table is refused, because a fused matrix that is
split in the wrong order gives numbers that look right.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bulkedge.models.circuits.checkpoints import ModelCheckpoint
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, shown
from bulkedge.support.errors import DomainError

HEADS = Integers(1, 2**16)
# entries of configurations with the number of heads
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
# architectures whose older configurations do not mention their rotary positions
ROTARY = {"llama", "mistral", "gptj", "gpt_neox", "falcon", "phi", "phi3", "qwen2"}
ProjectionName = Literal["query", "key", "value", "output"]
PARTS: tuple[ProjectionName, ...] = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Layout:
    """Ends of the names of an attention's tensors, after the stem that they share, and how heads lie in them."""

    query: str
    key: str
    value: str  # one name for all three: they are fused in one tensor
    outputs: tuple[str, ...]  # names that the output may have
    # of fused rows: all queries, all keys, all values; or key head by key head its queries, its key, its value
    order: Literal["stacked", "grouped"] = "stacked"
    transposed: bool = False  # rows are inputs and columns outputs, as in GPT-2's Conv1D and not in torch's Linear
    models: tuple[str, ...] = ()  # ``model_type`` that this is known for; empty where the names leave no doubt
    stem: str = r"(?:.+\.)?"  # regular expression for what stands before the ends

    @property
    def fused(self) -> bool:
        """Whether queries, keys and values share a tensor."""
        return self.query == self.key

    def tensors(self, name: str, there: Container[str], types: set[str]) -> dict[str, str] | None:
        """The tensors of an attention, by part."""
        match = re.fullmatch(f"({self.stem}){re.escape(self.query)}", name)
        if not match or (self.models and not types & set(self.models)):
            return None
        outputs = [match[1] + each for each in self.outputs if match[1] + each in there]
        names = (name, match[1] + self.key, match[1] + self.value, *outputs[:1])
        return dict(zip(PARTS, names, strict=True)) if outputs and all(each in there for each in names) else None


def _separate(query: str, key: str, value: str, *outputs: str, stem: str = Layout.stem) -> Layout:
    query, key, value, *rest = (f"{each}.weight" for each in (query, key, value, *outputs))
    return Layout(query, key, value, tuple(rest), stem=stem)


def _fused(
    name: str, *outputs: str, of: tuple[str, ...], order: Literal["stacked", "grouped"], transposed: bool = False
) -> Layout:
    return Layout(name, name, name, outputs, order, transposed, of)


NEOX = ("gpt_neox", "gpt_neox_japanese", "bloom", "falcon", "persimmon")
# from the names of tensors to the way they are split, first match first
LAYOUTS = (
    # Llama, Mistral, Qwen, Gemma; OPT, BART, Whisper, CLIP, GPT-J, GPT-Neo; Phi-2
    _separate("q_proj", "k_proj", "v_proj", "o_proj", "out_proj", "dense"),
    # BERT, RoBERTa, ELECTRA; ViT, DeiT, AST; DeBERTa; ALBERT
    _separate("self.query", "self.key", "self.value", "output.dense"),
    _separate("attention.query", "attention.key", "attention.value", "output.dense", stem=r"(?:.+\.)?attention\."),
    _separate("self.query_proj", "self.key_proj", "self.value_proj", "output.dense"),
    _separate("query", "key", "value", "dense"),
    # DistilBERT, XLM; T5, mT5, UMT5
    _separate("q_lin", "k_lin", "v_lin", "out_lin"),
    _separate("q", "k", "v", "o", stem=r"(?:.+\.)?\w*Attention\."),
    # fused projections: their names do not say in which order the rows are, so that the architecture has to
    _fused("c_attn.weight", "c_proj.weight", of=("gpt2", "imagegpt"), order="stacked", transposed=True),
    _fused("c_attn.weight", "c_proj.weight", of=("gpt_bigcode",), order="grouped"),
    _fused("query_key_value.weight", "dense.weight", of=NEOX, order="grouped"),
    _fused("qkv_proj.weight", "o_proj.weight", of=("phi3",), order="stacked"),
    _fused("Wqkv.weight", "Wo.weight", "out_proj.weight", of=("mpt", "modernbert"), order="stacked"),
    # torch.nn.MultiheadAttention, which has one order only
    _fused("in_proj_weight", "out_proj.weight", of=(), order="stacked"),
)


def model_types(config: Mapping[str, Any]) -> set[str]:
    """The ``model_type`` of a configuration and of its parts."""
    parts = (each for each in config.values() if isinstance(each, dict))
    return {str(each.get("model_type")) for each in (config, *parts)}


@dataclass(frozen=True)
class AttentionWeights:
    """One attention module of a checkpoint."""

    module: str  # path of the tensor with the queries, without its own name
    layout: Layout
    names: Mapping[str, str]  # tensors of the four parts
    heads: int
    key_heads: int  # heads of keys and values, each shared by as many successive query heads
    dims: Mapping[str, int]  # dimension of a head in each part; that of the output is the one of the values
    widths: Mapping[str, int]  # inputs of queries, keys and values, and outputs
    config: Mapping[str, Any]  # the part of the configuration that describes it

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.key_heads

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are turned by their positions, as far as the configuration says."""
        config = self.config
        if config.get("alibi"):
            return False
        said = any(re.match(r"(rope|rotary)(_|$)", key) and value for key, value in config.items())
        named = str(config.get("position_embedding_type")) in {"rope", "rotary"}
        return said or named or str(config.get("model_type")) in ROTARY

    def weights(self, checkpoint: ModelCheckpoint, part: ProjectionName, groups: range) -> Real:
        """The weights of some heads."""
        dim = self.dims[part]
        if part == "output":
            columns = slice(groups.start * self.group * dim, groups.stop * self.group * dim)
            found = self._read(checkpoint, self.names[part], columns, inputs=True)
            return found.reshape(len(found), -1, dim).transpose(1, 0, 2)
        return self._rows(checkpoint, self.names[part], part, groups).transpose(0, 2, 1)

    def bias_name(self, checkpoint: ModelCheckpoint, part: ProjectionName) -> str | None:
        """The tensor with the bias of a part."""
        name = re.sub("weight$", "bias", self.names[part])
        return name if name in checkpoint.tensors else None

    def bias(self, checkpoint: ModelCheckpoint, part: ProjectionName, groups: range) -> Real | None:
        """The bias of queries, keys or values of some heads."""
        name, weight = self.bias_name(checkpoint, part), self.names[part]
        if name is None:
            return None
        outputs = checkpoint.shape(weight)[1 if self.layout.transposed else 0]
        if checkpoint.shape(name) != (outputs,):
            raise DomainError(f"the bias {name!r} has the shape {checkpoint.shape(name)}; {weight!r} says {(outputs,)}")
        return self._rows(checkpoint, name, part, groups)

    def _rows(self, checkpoint: ModelCheckpoint, name: str, part: ProjectionName, groups: range) -> Real:
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

    def _read(self, checkpoint: ModelCheckpoint, name: str, part: slice, *, inputs: bool = False) -> Real:
        """Some outputs (or inputs) of a matrix, with outputs as rows; some entries of a vector."""
        if len(checkpoint.shape(name)) == 1:
            return checkpoint.read(name, part)
        axis = "columns" if inputs != self.layout.transposed else "rows"
        found = checkpoint.read(name, **{axis: part})
        return found.T if self.layout.transposed else found


def find_attentions(checkpoint: ModelCheckpoint) -> tuple[AttentionWeights, ...]:
    """All attentions of a checkpoint, in the order in which a model calls them."""
    found: dict[str, AttentionWeights] = {}
    types = model_types(checkpoint.config)
    for name in checkpoint.tensors:
        for layout in LAYOUTS:
            if name not in found and (names := layout.tensors(name, checkpoint.tensors, types)):
                found[name] = _attention_weights(checkpoint, layout, names)
    if not found:
        raise DomainError(_no_attention(checkpoint))
    return tuple(sorted(found.values(), key=lambda each: _call_order(each.module)))


def unread_matrices(checkpoint: ModelCheckpoint, attentions: Iterable[AttentionWeights]) -> list[str]:
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


def _attention_weights(checkpoint: ModelCheckpoint, layout: Layout, names: Mapping[str, str]) -> AttentionWeights:
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
    return AttentionWeights(
        module, layout, names, heads, key_heads,
        {"query": dim, "key": dim, "value": value_dim, "output": value_dim},
        {"query": wide, "key": key_wide, "value": value_wide, "output": outputs}, config,
    )  # fmt: skip


def config_of(config: Mapping[str, Any], module: str) -> Mapping[str, Any]:
    """The part of a configuration that a module belongs to: models of several towers have one for each."""
    parts = {name.removesuffix("_config"): each for name, each in config.items() if isinstance(each, dict)}
    described = {name: each for name, each in parts.items() if _has_head_count(each)}
    for word in module.replace("language_model", "text").replace("visual", "vision").split("."):
        for name, each in described.items():
            if name in word:
                return each
    if described and not _has_head_count(config):
        return described.get("text", next(iter(described.values())))
    return config


def _has_head_count(config: Mapping[str, Any]) -> bool:
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


def _call_order(module: str) -> tuple[Any, ...]:
    """Key of the order in which a model calls its attentions."""
    words = module.lower()
    crossed = bool(re.search(r"cross|encdec|encoder_attn", words))
    decoding = bool(re.search(r"(^|\.)(decoder|language_model|text_model)\.", words))
    numbers = [int(number) for number in re.findall(r"\.(\d+)(?=\.)", f".{words}.")]
    return decoding, re.split(r"\d", words)[0], numbers, crossed, module


def _no_attention(checkpoint: ModelCheckpoint) -> str:
    names = [re.sub(r"\.\d+\.", ".*.", name) for name in checkpoint.tensors]
    seen = list(dict.fromkeys(names))
    kind = checkpoint.config.get("model_type")
    more = f" and {len(seen) - 12} more" if len(seen) > 12 else ""
    return (
        f"no attention in a layout that is known for the model type {shown(kind)} is in {checkpoint.path}; it has the "
        f"tensors {', '.join(shown(name) for name in seen[:12])}{more} (* is a number)"
    )
