"""What ``torch.nn.MultiheadAttention`` asks of its attention, from what it is called with."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from bulkedge.nn import Call
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from torch import Tensor, nn


@cache
def _signature() -> inspect.Signature:
    from torch.nn import MultiheadAttention

    return inspect.signature(MultiheadAttention.forward)


def multihead_call(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call | None:
    """Queries, keys and mask of a ``torch.nn.MultiheadAttention``; None for any other module."""
    from torch.nn import MultiheadAttention
    from torch.nn import functional as torch_functional

    if not isinstance(module, MultiheadAttention):
        return None
    if module.bias_k is not None or module.add_zero_attn:
        raise DomainError("MultiheadAttention with add_bias_kv or add_zero_attn has keys that are not read yet")
    given = _signature().bind(module, *arguments, **named).arguments
    batched = given["query"].ndim == 3
    query, key = (
        given[each] if batched else given[each].unsqueeze(int(not module.batch_first)) for each in ("query", "key")
    )
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    width = module.embed_dim
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight[:width], module.in_proj_weight[width : 2 * width]
    else:
        weights = module.q_proj_weight, module.k_proj_weight
    biases = (None, None) if module.in_proj_bias is None else module.in_proj_bias[: 2 * width].chunk(2)
    query, key = (
        _split(torch_functional.linear(each, weight, bias), module.num_heads)
        for each, weight, bias in zip((query, key), weights, biases, strict=True)
    )
    mask = _mask(given, query, key)
    return Call(module, query, key, key, mask, causal=False, scale=query.shape[-1] ** -0.5)


def _split(projected: Tensor, heads: int) -> Tensor:
    """``(batch, tokens, width)`` to ``(batch, heads, tokens, dim)``."""
    return projected.reshape(*projected.shape[:-1], heads, -1).transpose(1, 2)


def _mask(given: dict[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks of the module, where ``True`` means not seen, as one of numbers that are added.

    Gap-free attention may be causal without a mask; beside one, that is only a hint of what the mask says.
    """
    batch, heads, rows, _ = query.shape
    found = None
    if given.get("is_causal") and given.get("attn_mask") is None:
        found = query.new_full((rows, key.shape[2]), -float("inf")).triu(1)
    for name in ("attn_mask", "key_padding_mask"):
        mask = given.get(name)
        if mask is None:
            continue
        if not mask.is_floating_point():
            mask = query.new_zeros(mask.shape).masked_fill(mask, -float("inf"))
        if name == "key_padding_mask":
            mask = mask.reshape(batch, 1, 1, key.shape[2])
        elif mask.ndim == 3:
            mask = mask.reshape(batch, heads, rows, key.shape[2])
        found = mask if found is None else found + mask
    return found
