"""Remove the spectral gap from the attention of transformers models, and put it back.

>>> from transformers import BertConfig, BertModel
>>> import torch
>>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64))
>>> with remove_gap(model):
...     repaired = model(torch.arange(12)[None]).last_hidden_state
>>> model.config._attn_implementation
'sdpa'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from bulkedge.errors import DomainError
from bulkedge.nn.attention import gap_free_attention

NAME = "bulkedge_gap_free"
"""Under which transformers knows the attention."""
UNSUPPORTED = ("softcap", "s_aux", "cache")
"""What some models ask of their attention and torch's fused kernels have not: capped scores, sinks, paged caches."""


@dataclass(eq=False)
class GapRemoved:
    """A model without its gap; as a context manager it puts the gap back at the end."""

    model: nn.Module
    before: list[tuple[Any, str | None]]
    hooks: list[Any]

    def __enter__(self) -> Self:
        """The gap is gone already."""
        return self

    def __exit__(self, *error: object) -> None:
        """Put it back, unless that was done inside."""
        if _removed.get(self.model) is self:
            restore_gap(self.model)


_removed: WeakKeyDictionary[nn.Module, GapRemoved] = WeakKeyDictionary()


class _Calls:
    """How often attention without the gap was computed, by whatever model."""

    number = 0


def remove_gap(model: nn.Module) -> GapRemoved:
    """Replace ``A`` by ``A - C`` in every attention of a transformers model, on torch's fused kernels.

    Weights are left alone; :func:`restore_gap`, or the end of a ``with`` block, undoes it. Where a decoder is causal,
    its first token gets nothing from attention.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model whose attention goes through transformers' ``AttentionInterface`` and may run on ``sdpa``.

    Returns
    -------
    GapRemoved
        A context manager, for those who want the gap back.

    Raises
    ------
    ValueError
        If the model, or a model inside it, is not of that kind: nothing is changed then.
    RuntimeError
        By the first forward pass, if that never came to the attention: the gap is put back then.
    """
    if model in _removed:
        raise DomainError(f"{type(model).__name__} has no gap already; restore_gap(model) puts it back")
    configurations = list(_configurations(model))
    _register()
    state = GapRemoved(model, [(each, each._attn_implementation) for each in configurations], [])
    for each in configurations:
        each._attn_implementation = NAME
    state.hooks.extend(_first_pass_hooks(model))
    _removed[model] = state
    return state


def restore_gap(model: nn.Module) -> None:
    """Undo :func:`remove_gap`: outputs are bit for bit what they were."""
    if model not in _removed:
        raise DomainError(f"the gap of {type(model).__name__} was not removed")
    state = _removed.pop(model)
    for hook in state.hooks:
        hook.remove()
    for configuration, name in state.before:  # outer ones first: they also set those inside
        configuration._attn_implementation = name


def _configurations(model: nn.Module) -> Iterator[Any]:
    """Configurations of the models inside a model, outer ones first; refuses models off the interface."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise DomainError(
            f"{type(model).__name__} is not a transformers model; use bulkedge.nn.gap_free_attention in it"
        )
    waiting: list[Any] = []
    for inside in model.modules():
        if isinstance(inside, PreTrainedModel):
            name = type(inside).__name__
            if not inside._can_set_attn_implementation():
                raise DomainError(f"{name} computes its attention by itself, past transformers' AttentionInterface")
            if not inside._supports_sdpa:
                raise DomainError(f"{name} does not run on torch's fused attention (sdpa), which the repair needs")
            waiting.append(inside.config)
    known: set[int] = set()
    while waiting:
        configuration = waiting.pop(0)
        if id(configuration) not in known:
            known.add(id(configuration))
            yield configuration
            parts = (getattr(configuration, name, None) for name in configuration.sub_configs)
            waiting.extend(each for each in parts if each is not None)


def _first_pass_hooks(model: nn.Module) -> Iterator[Any]:
    """Make the first forward pass fail if it went past the attention; the check of the class looks at source text."""
    before = 0

    def begin(*_: Any) -> None:
        nonlocal before
        before = _Calls.number

    def end(*_: Any) -> None:
        if _Calls.number == before:
            restore_gap(model)
            raise RuntimeError(
                f"{type(model).__name__} never called transformers' AttentionInterface; its gap is as it was"
            )
        for hook in _removed[model].hooks:
            hook.remove()

    yield model.register_forward_pre_hook(begin)
    yield model.register_forward_hook(end)


def _register() -> None:
    """Make the attention and its masks known; without the mask, decoders would see the future."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def _attention(  # noqa: PLR0913 - the signature of the interface
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **wanted: Any,
) -> tuple[Tensor, None]:
    """What transformers calls, after its ``sdpa_attention_forward``."""
    for name in UNSUPPORTED:
        if wanted.get(name) is not None:
            raise DomainError(f"{type(module).__name__} asks for {name!r}, which torch's fused attention has not")
    _Calls.number += 1
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(query.shape[2] > 1 and attention_mask is None and causal)
    if wanted.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import create_position_bias_mask

        attention_mask = create_position_bias_mask(wanted["position_bias"], attention_mask, causal, query, key)
        causal = False
    shared = query.shape[1] > key.shape[1]
    if shared and attention_mask is not None:  # no fused kernel takes both
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        shared = False
    output = gap_free_attention(query, key, value, attention_mask, dropout, causal, scaling, shared)
    return output.transpose(1, 2).contiguous(), None


def _mask(*, q_length: int, mask_function: Callable[..., Any], **rest: Any) -> Tensor | None:
    """The masks of ``sdpa``; those that are the same for every row have one row, so that there is one mean."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if mask_function is not bidirectional_mask_function:
        return sdpa_mask(q_length=q_length, mask_function=mask_function, **rest)
    row = sdpa_mask(q_length=1, mask_function=mask_function, **rest)
    return None if row is None else row.expand(-1, -1, q_length, -1)
