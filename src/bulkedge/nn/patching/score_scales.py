"""Scores of a transformers model times factors, one for all heads or one for each, and back.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32))
>>> with scale_scores(model, {"h.1.attn": [1.0, 1.2, 1.0, 2.0]}):
...     sharper = model(torch.arange(12)[None]).last_hidden_state
>>> model.config._attn_implementation
'sdpa'
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from torch import nn

from bulkedge.nn.patching.interface import NAMES, Call, name_modules, transform, unwrap
from bulkedge.nn.patching.patch import Patch, apply_patch
from bulkedge.support.domains import MODULE, REAL, takes
from bulkedge.support.errors import DomainError

SCALED = "scaled scores"  # the kind of these patches
INTERFACE = "ALL_ATTENTION_FUNCTIONS.get_interface("  # in the source of modules that come to it
Factors: TypeAlias = Any  # a number, an array (heads,) or (layers, heads), or a mapping from paths of modules


@takes(model=MODULE)
def scale_scores(model: nn.Module, factors: Factors) -> Patch:
    """Multiply the scores of a transformers model by factors, such as :func:`bulkedge.score_scales` finds.

    Queries are multiplied (or the scale, by a factor that all heads of a layer share), so that every kernel works and
    weights stay as they are. What is added to scores, masks and positional biases, is not multiplied. Factors of
    several such patches multiply. They are saved and loaded with the model; the end of a ``with`` block, or
    :func:`bulkedge.nn.restore`, takes them off, and outputs are then bit for bit what they were.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As for :func:`bulkedge.nn.apply_patch`.
    factors : float, array or mapping
        Positive numbers: one for the model, an array with one for each head of every layer, an array (layers, heads) in
        the order of the attention modules of the model, or a mapping from paths of attention modules
        (:attr:`bulkedge.models.AttentionLayer.name`) to one number or one for each head. Modules that are not named
        stay as they are. Heads are those of the queries, where several share their keys.

    Returns
    -------
    Patch
        A context manager, for those who want the model back.

    Raises
    ------
    DomainError
        If the model is not of that kind, a factor is not a positive finite number, a path is not that of an attention
        module, or there are not as many layers; nothing is changed then. By the forward pass, if a layer does not have
        as many heads as factors.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> scale_scores(model, 1.2).record.parameters
    {'factors': 1.2}
    """
    model = unwrap(model)
    written = _as_json(model, factors)
    made = apply_patch(model, SCALED, {"factors": written})
    if isinstance(written, dict):
        name_modules(model)
    return made


def _as_json(model: nn.Module, factors: Factors) -> float | list[float] | dict[str, float | list[float]]:
    """Factors as JSON types."""
    if isinstance(factors, Mapping):
        paths = {path: name for path, name, _ in attention_modules(model)}
        unknown = [path for path in factors if path not in paths]
        if unknown or not factors:
            raise DomainError(
                f"factors are for {unknown or 'no module'}; the attention modules of {type(model).__name__} are "
                f"{', '.join(paths)}"
            )
        return {paths[path]: _numbers(path, each, most=1) for path, each in factors.items()}
    numbers = _numbers("factors", factors, most=2)
    if not isinstance(numbers, list) or not isinstance(numbers[0], list):
        return numbers
    names = [name for _, name, _ in attention_modules(model)]
    if len(names) != len(numbers):
        raise DomainError(
            f"factors are of {len(numbers)} layers, and {type(model).__name__} has {len(names)} attention modules: "
            f"{', '.join(names)}"
        )
    return dict(zip(names, numbers, strict=True))


def _numbers(name: str, factors: Any, most: int) -> Any:
    """One factor or nested lists of them, checked."""
    array = REAL.check(name, factors)
    if array.ndim > most or not array.size:
        raise DomainError(f"{name} has shape {array.shape}; factors have {most} axes at most, and one entry or more")
    wrong = array[~((array > 0) & np.isfinite(array))]
    if wrong.size:
        raise DomainError(f"{name} has the entry {wrong[0]:g}; factors are positive and finite")
    return array.tolist()


def attention_modules(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Attention modules of a transformers model, in its order."""
    prefix = getattr(model, "base_model_prefix", "") + "."
    for path, module in model.named_modules():
        kind: Any = type(module)
        if _attends(kind):
            yield path, path.removeprefix(prefix), module


@cache
def _attends(kind: Any) -> bool:
    """Whether modules of a class come to transformers' interface; transformers looks at sources for that, too."""
    try:
        return INTERFACE in inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return False


@transform(SCALED)
def _scale(call: Call, parameters: Mapping[str, Any]) -> Call:
    factors = parameters["factors"]
    if isinstance(factors, Mapping):
        names = vars(call.module).get(NAMES)
        if names is None:
            raise DomainError(
                f"{type(call.module).__name__} does not know its place in the model, which factors of single layers "
                "need; restore the model, and scale_scores it again"
            )
        factors = next((factors[name] for name in names if name in factors), 1.0)
    if not isinstance(factors, list):
        return call._replace(scale=call.scale * factors)
    heads = call.query.shape[1]
    if len(factors) != heads:
        raise DomainError(f"{type(call.module).__name__} has {heads} heads, and there are {len(factors)} factors")
    return call._replace(query=call.query * call.query.new_tensor(factors)[:, None, None])
