"""Heads cut out of a transformers model: smaller weights, and the same outputs as with these heads switched off.

Queries and output columns of a head go, and its keys and values where no other head is left that shares them. With a
mean output in the head's place, that times the head's columns becomes a bias. If all layers keep as many heads and the
configuration can say so, the result is a plain model of transformers. Else a patch says which heads each layer has:
it cuts a model that is built from a saved configuration before its weights are read, and tells heads of uneven groups
their keys.

>>> from transformers import LlamaConfig, LlamaModel
>>> model = LlamaModel(LlamaConfig(num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=64))
>>> print(prune_heads(model, {"layers.0.self_attn": [0], "layers.1.self_attn": [1, 3]}))
Removed 3 of 8 heads: 3072 of 1044640 parameters, and 48 of 128 cached numbers a token. To load the saved model, import
bulkedge.nn first, because layers keep different numbers of heads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import index
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import torch
from torch import Tensor, nn

from bulkedge.nn.patching.interface import Call, Record, rebuild, records_of, transform, unwrap
from bulkedge.nn.patching.patch import apply_patch, check_interface, check_patchable, configurations
from bulkedge.nn.patching.score_scales import attention_modules
from bulkedge.support.domains import MODULE, Choice, shown, takes
from bulkedge.support.errors import DomainError

PRUNED = "pruned heads"  # the kind of these patches
HEADS = "bulkedge_heads"  # of an attention module: which heads of how many it has, and their keys where groups differ
LAYOUTS = (  # queries, keys, values and output; ".." is the module around the attention
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value", "..output.dense"),
    ("q", "k", "v", "o"),
    ("q_lin", "k_lin", "v_lin", "out_lin"),
    ("q_attn", "c_attn", "c_attn", "c_proj"),
    ("c_attn", "c_attn", "c_attn", "c_proj"),
)
SIZES = ("head_dim", "attention_head_size", "key_value_proj_dim")  # what modules call the dimension of a head
COUNTS = ("num_heads", "num_attention_heads")  # what they call their numbers; T5's n_heads is that of its bias
KEY_COUNTS = ("num_key_value_heads", "num_kv_heads")
WIDTHS = ("split_size", "all_head_size")
GROUPS = "num_key_value_groups"


@dataclass(frozen=True)
class Pruning:
    """What :func:`prune_heads` did.

    Attributes
    ----------
    heads : mapping of str to tuple of int
        Heads that are gone, by the path of their attention module.
    count : int
        How many heads there were.
    parameters, cache : (int, int)
        Before and after: parameters of the model, and numbers that a token adds to the cache of keys and values.
    obstacle : str
        Why transformers alone cannot load what the model saves; empty if it can.
    """

    heads: Mapping[str, tuple[int, ...]]
    count: int
    parameters: tuple[int, int]
    cache: tuple[int, int]
    obstacle: str

    def __str__(self) -> str:
        gone = sum(map(len, self.heads.values()))
        loading = (
            f"To load the saved model, import bulkedge.nn first, because {self.obstacle}."
            if self.obstacle
            else "transformers alone can load the saved model."
        )
        return (
            f"Removed {gone} of {self.count} heads: {self.parameters[0] - self.parameters[1]} of {self.parameters[0]} "
            f"parameters, and {self.cache[0] - self.cache[1]} of {self.cache[0]} cached numbers a token. {loading}"
        )


@takes(model=MODULE)
def prune_heads(
    model: nn.Module,
    heads: Any,
    replace: Literal["zero", "mean"] = "zero",
    *,
    means: Mapping[str, Any] | None = None,
) -> Pruning:
    """Cut heads out of a transformers model, in place and for good.

    Queries and output columns of the heads go; keys and values go with the last head that uses them. A layer that loses
    all heads keeps one, with zeros for its output. Optimizers that know the old parameters have to be made again.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model with one linear map each for queries, keys, values and outputs, as Llama, Qwen, Mistral, Gemma, BERT,
        ViT, BART, Whisper and T5 have, or GPT-2's; also inside of a wrapper.
    heads : Removal, mapping or iterable of (layer, head)
        What :meth:`bulkedge.models.Scan.removable` found; heads by the path of their attention module; or pairs, with
        attention modules numbered in the order of the model.
    replace : {"zero", "mean"}
        What takes the heads' place: nothing, or their mean output as a bias.
    means : mapping of str to array of shape (heads, dimension), optional
        Mean outputs before the projection, by path; those of the scan, for a Removal.

    Returns
    -------
    Pruning
        What is gone, and whether transformers alone can load the saved model.

    Raises
    ------
    DomainError
        If a head is not there, a module is not of that kind, or mean outputs are missing; nothing is changed then.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> prune_heads(model, [(1, 0)]).heads
    {'h.1.attn': (0,)}
    """
    from transformers import PreTrainedModel

    model = unwrap(model)
    if not isinstance(model, PreTrainedModel):
        raise DomainError(
            f"{type(model).__name__} is not a transformers model, and heads of modules of your own cannot be cut: "
            "bulkedge.models.ablate_heads switches them off"
        )
    check_interface(model)
    layers = {name: _Layer.of(model, path) for path, name, _ in attention_modules(model)}
    gone = _named_heads(model, heads, layers)
    biases: dict[str, Tensor] = {}
    if Choice(("zero", "mean")).check("replace", replace) == "mean":
        given = getattr(heads, "means", None) if means is None else means
        biases = {name: _bias(layers[name], name, each, _of_model(model, given or {})) for name, each in gone.items()}
    kept = {name: tuple(k for k in range(layers[name].heads) if k not in each) or (0,) for name, each in gone.items()}
    plan: dict[str, Any] = {"heads": {name: list(each) for name, each in kept.items()}, "biased": sorted(biases)}
    plain, obstacle = _plain_configuration(model, plan)
    before = _sizes(model, layers.values())
    count = sum(each.heads for each in layers.values())
    if plain is None:
        check_patchable(model)
    with torch.no_grad():
        for name, each in gone.items():
            if len(each) == layers[name].heads:
                layers[name].output.weight.zero_()
        record = Record(PRUNED, plan, uuid4().hex) if plain is not None else apply_patch(model, PRUNED, plan).record
        _cut(model, record)
        for name, bias in biases.items():
            layers[name].output.bias.add_(bias)
    if plain is not None:
        for name in plain.pop("biases"):
            linear: Any = model.get_submodule(name)
            linear.bias = nn.Parameter(torch.zeros_like(linear.weight[:, 0]))
        for name, value in plain.items():
            setattr(model.config, name, value)
    sizes = _sizes(model, (_Layer.of(model, path) for path, _, _ in attention_modules(model)))
    return Pruning(gone, count, (before[0], sizes[0]), (before[1], sizes[1]), obstacle)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _of_model(model: nn.Module, named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names that attention modules have without the model's prefix."""
    found = {}
    for path, name, _ in attention_modules(model):
        for each in (path, name):
            if each in named:
                found[name] = named[each]
    return found


def _named_heads(model: nn.Module, heads: Any, layers: Mapping[str, _Layer]) -> dict[str, tuple[int, ...]]:
    """Heads by the name of their module, checked."""
    wanted: dict[str, list[int]] = {}
    numbered = getattr(heads, "modules", None) or dict(enumerate(layers))
    try:
        if isinstance(heads, Mapping):
            pairs = [(str(name), index(head)) for name, each in heads.items() for head in each]
        else:
            pairs = [(numbered.get(index(layer)) or layer, index(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise DomainError(
            f"heads = {shown(heads)}: give pairs (layer, head) of whole numbers, or heads by the path of their "
            "attention module"
        ) from None
    if not pairs:
        raise DomainError(f"heads = {shown(heads)}: there is no head to remove")
    for name, head in pairs:
        if not isinstance(name, str):
            raise DomainError(f"heads: there is no layer {name}: attention modules are numbered 0 to {len(layers) - 1}")
        wanted.setdefault(name, []).append(head)
    found = _of_model(model, wanted)
    if len(found) != len(wanted):
        raise DomainError(
            f"heads are of {sorted(wanted)}; attention modules of {type(model).__name__} are "
            f"{', '.join(layers) or 'off transformers interface'}"
        )
    scanned = {name: len(each) for name, each in _of_model(model, getattr(heads, "means", {})).items()}
    for name, each in found.items():
        if scanned.get(name, layers[name].heads) != layers[name].heads:
            raise DomainError(
                f"heads were chosen when {name} had {scanned[name]} heads; it has {layers[name].heads}: scan this model"
            )
        if not set(each) <= set(range(layers[name].heads)):
            raise DomainError(f"heads = {list(each)} of {name}, which has {layers[name].heads}, numbered from 0")
    return {name: tuple(sorted(set(each))) for name, each in found.items()}


def _bias(layer: _Layer, name: str, heads: Sequence[int], means: Mapping[str, Any]) -> Tensor:
    """What heads add to the output of the projection in the mean."""
    if name not in means:
        raise DomainError(f"there are no mean outputs of {name}: take them from a scan, or replace='zero'")
    mean = torch.as_tensor(means[name], dtype=torch.float64)
    if mean.shape != (layer.heads, layer.dim) or not mean.isfinite().all():
        raise DomainError(f"means of {name} have shape {tuple(mean.shape)}; give {layer.heads, layer.dim}, finite")
    columns = _columns(layer.output).detach().double().cpu().unflatten(1, (layer.heads, layer.dim))
    found = torch.einsum("ohd,hd->o", columns[:, list(heads)], mean.cpu()[list(heads)])
    return found.to(layer.output.weight)


def _sizes(model: nn.Module, layers: Iterable[_Layer]) -> tuple[int, int]:
    """Parameters of a model, and what a token adds to its cache."""
    cached = sum(2 * layer.key_heads * layer.dim for layer in layers)
    return sum(each.numel() for each in model.parameters()), cached


# -- an attention module -----------------------------------------------------------------------------------------------


class _Layer(NamedTuple):
    """The linear maps of an attention module, and where in their outputs queries, keys and values begin."""

    module: nn.Module
    parts: tuple[tuple[Any, int], ...]  # linear map and first row, of queries, keys and values
    output: Any
    dim: int
    heads: int
    key_heads: int

    @classmethod
    def of(cls, model: nn.Module, path: str) -> _Layer:
        """Read a module, or refuse it in words."""
        module = model.get_submodule(path)
        around = model.get_submodule(path.rpartition(".")[0])
        for names in LAYOUTS:
            try:
                found = [
                    around.get_submodule(name[2:]) if name.startswith("..") else module.get_submodule(name)
                    for name in names
                ]
            except AttributeError:
                continue
            return cls._read(path, module, names, found)
        raise DomainError(f"{path} ({type(module).__name__}) has no maps {' or '.join(each[0] for each in LAYOUTS)}")

    @classmethod
    def _read(cls, path: str, module: nn.Module, names: Sequence[str], maps: list[Any]) -> _Layer:
        wrong = [each for each in maps if type(each) is not nn.Linear and type(each).__name__ != "Conv1D"]
        others = {
            name: child
            for name, child in module.named_modules()
            if child not in maps and next(child.parameters(recurse=False), None) is not None
        }
        dim = next((getattr(module, name) for name in SIZES if isinstance(getattr(module, name, None), int)), 0)
        if wrong or not dim:
            what = [type(each).__name__ for each in wrong] or f"no {' or '.join(SIZES)}"
            raise DomainError(
                f"{path} ({type(module).__name__}) has {what}: merge adapters, and do not quantise before"
            )
        shared = [names[:3].count(name) for name in names[:3]]
        rows = [_columns(each).shape[0] // times for each, times in zip(maps, shared, strict=False)]
        starts = [names[:k].count(name) * size for k, (name, size) in enumerate(zip(names[:3], rows, strict=True))]
        layer = cls(module, tuple(zip(maps, starts, strict=False)), maps[3], dim, rows[0] // dim, rows[1] // dim)
        strange = [name for name, child in others.items() if name and not _same_for_all_heads(name, child, dim)]
        strange += [n for n, x in module.named_parameters(recurse=False) if x.numel() != layer.heads or n != "sinks"]
        if strange or rows[1] != rows[2] or _columns(layer.output).shape[1] != rows[0] or rows[0] % dim:
            raise DomainError(f"{path} ({type(module).__name__}) is more than queries, keys, values: {strange or rows}")
        return layer


def _same_for_all_heads(name: str, module: nn.Module, dim: int) -> bool:
    """Whether a module does the same for all heads: norms of one head, and the bias of positions, which is selected."""
    return name == "relative_attention_bias" or all(each.numel() == dim for each in module.parameters())


def _columns(linear: Any) -> Tensor:
    """The weight as (outputs, inputs)."""
    weight: Tensor = linear.weight
    return weight.T if type(linear).__name__ == "Conv1D" else weight


def _set_weight(linear: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Give a linear map other weights, (outputs, inputs)."""
    trained = linear.weight.requires_grad
    conv = type(linear).__name__ == "Conv1D"
    linear.weight = nn.Parameter((weight.T if conv else weight).contiguous().clone(), requires_grad=trained)
    linear.bias = None if bias is None else nn.Parameter(bias.clone(), requires_grad=trained)
    if conv:
        linear.nx, linear.nf = linear.weight.shape
    else:
        linear.out_features, linear.in_features = linear.weight.shape


# -- the cut -----------------------------------------------------------------------------------------------------------


@rebuild(PRUNED)
def _cut(model: nn.Module, record: Record) -> None:
    """Cut what a record says out of the modules of a model, unless that was done."""
    plan = record.parameters
    for path, name, module in attention_modules(model):
        if name in plan["heads"] and record.key not in vars(module).get("_bulkedge_cut", ()):
            _cut_layer(_Layer.of(model, path), plan["heads"][name], biased=name in plan["biased"])
            vars(module)["_bulkedge_cut"] = (*vars(module).get("_bulkedge_cut", ()), record.key)


def _cut_layer(layer: _Layer, kept: Sequence[int], *, biased: bool) -> None:
    """Keep some heads of a module."""
    module, size = layer.module, layer.heads // layer.key_heads
    total, own, groups = vars(module).get(HEADS, (layer.heads, range(layer.heads), None))
    groups = groups or [head // size for head in range(layer.heads)]
    keys = sorted({groups[head] for head in kept})
    key_of = [keys.index(groups[head]) for head in kept]
    counts = {key_of.count(each) for each in key_of}
    rows: dict[Any, list[int]] = {}
    for (linear, start), those in zip(layer.parts, (kept, keys, keys), strict=True):
        rows.setdefault(linear, []).extend(start + each for each in _entries(those, layer.dim))
    for linear, those in rows.items():
        bias = linear.bias
        _set_weight(linear, _columns(linear).detach()[those], None if bias is None else bias.detach()[those])
    bias = layer.output.bias
    if bias is None and biased:
        bias = torch.zeros_like(_columns(layer.output)[:, 0])
    columns = _columns(layer.output).detach()[:, _entries(kept, layer.dim)]
    _set_weight(layer.output, columns, None if bias is None else bias.detach())
    sinks = getattr(module, "sinks", None)  # outside of the keys, one a head
    if isinstance(sinks, nn.Parameter):
        module.sinks = nn.Parameter(sinks.detach()[list(kept)].clone())
    vars(module)[HEADS] = (total, tuple(own[each] for each in kept), None if len(counts) == 1 else tuple(key_of))
    group = len(kept) // len(keys) if len(counts) == 1 else 1
    numbers = {name: (layer.heads, len(kept)) for name in COUNTS} | {GROUPS: (size, group)}
    numbers |= {name: (layer.key_heads, len(keys)) for name in KEY_COUNTS}
    numbers |= {name: (layer.heads * layer.dim, len(kept) * layer.dim) for name in WIDTHS}
    for name, (before, after) in numbers.items():
        if vars(module).get(name) == before or name == GROUPS in vars(module):
            setattr(module, name, after)


def _entries(heads: Iterable[int], dim: int) -> list[int]:
    """Places of heads among the entries of all."""
    return list(chain.from_iterable(range(each * dim, (each + 1) * dim) for each in heads))


@transform(PRUNED)
def _pruned(call: Call, parameters: Mapping[str, Any]) -> Call:  # noqa: ARG001 - the module says it
    """Give every head its keys, and its part of a mask that has one for each head."""
    total, own, key_of = vars(call.module).get(HEADS, (0, (), None))
    if key_of is not None and call.key.shape[1] < len(key_of):  # not chosen by an earlier patch
        keys = torch.tensor(key_of, device=call.key.device)
        call = call._replace(key=call.key[:, keys], value=call.value[:, keys])
    if call.mask is not None and call.mask.ndim == 4 and call.mask.shape[1] == total > len(own):
        call = call._replace(mask=call.mask[:, list(own)])
    return call


# -- plain models ------------------------------------------------------------------------------------------------------


def _plain_configuration(model: Any, plan: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """What the configuration of the cut model has to say for transformers alone to build it; or why nothing does."""
    if any(each.kind == PRUNED for each in records_of(model.config)):
        return None, "heads were cut before"
    if len(list(configurations(model))) > 1:
        return None, "the model has several configurations"
    cut = _on_meta(model, copy.deepcopy(model.config))
    _cut(cut, Record(PRUNED, plan, ""))
    layers = [_Layer.of(cut, path) for path, _, _ in attention_modules(cut)]
    if len({(each.heads, each.key_heads) for each in layers}) > 1:
        return None, "layers keep different numbers of heads"
    if any(vars(each.module).get(HEADS, (0, (), None))[2] is not None for each in layers):
        return None, "heads share keys in groups of different sizes"
    one, wanted = layers[0], {each: tuple(x.shape) for each, x in cut.state_dict().items()}
    numbers = {"num_attention_heads": one.heads, "num_key_value_heads": one.key_heads, "head_dim": one.dim}
    linear = {module: name for name, module in cut.named_modules()}
    inner = {f"{linear[each]}.bias" for layer in layers for each, _ in layer.parts}
    for more in ({}, {"attention_bias": True}):
        fields = {
            name: value for name, value in (numbers | more).items() if name == "head_dim" or hasattr(cut.config, name)
        }
        try:
            other = _on_meta(model, type(model.config).from_dict(cut.config.to_dict() | _spelled(cut.config, fields)))
        except Exception:  # noqa: BLE001, S112 - configurations refuse numbers in their own ways
            continue
        found = {each: tuple(x.shape) for each, x in other.state_dict().items()}
        missing = found.keys() - wanted.keys()
        if {**found, **wanted} == found and missing <= inner and _scales(other) == _scales(cut):
            return fields | {"biases": sorted(name.removesuffix(".bias") for name in missing)}, ""
    return None, f"{type(model.config).__name__} cannot say {one.heads} heads of {one.dim} and {one.key_heads} keys"


def _spelled(config: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the names that a configuration writes."""
    return {config.attribute_map.get(name, name): value for name, value in fields.items()}


def _on_meta(model: Any, config: Any) -> Any:
    """A model without memory."""
    with torch.device("meta"):
        return type(model)(config)


def _scales(model: nn.Module) -> list[Any]:
    """What attention modules make of the dimension of a head."""
    return [(getattr(each, "scaling", None), getattr(each, GROUPS, 1)) for _, _, each in attention_modules(model)]
