"""Who sees whom in a call of transformers' attention, as the fused kernels of torch are told it.

Models say it in several ways: by a mask, by being causal, by a bias of positions that hides keys too, by a block mask
of flex attention, and by the ends of sequences that are packed into one, as flash attention takes them. The mean that
patches subtract is over the keys that attention sees, so nothing of this may be lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bulkedge.support.errors import DomainError

QUERIES, KEYS = "cu_seq_lens_q", "cu_seq_lens_k"
"""Where packed sequences begin and the last one ends, among queries and among keys, in transformers' words."""


def visible(  # noqa: PLR0913
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Any,
    *,
    is_causal: bool | None,
    wanted: Mapping[str, Any],
) -> tuple[Tensor | None, bool]:
    """The mask of a call, and whether it is causal instead."""
    if mask is not None and not isinstance(mask, Tensor):
        mask = _dense(mask, query, key)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(query.shape[2] > 1 and mask is None and causal)
    if wanted.get(QUERIES) is not None or wanted.get(KEYS) is not None:
        mask, causal = _within_sequences(query, key, mask, causal=causal, wanted=wanted), False
    if wanted.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import create_position_bias_mask

        return create_position_bias_mask(wanted["position_bias"], mask, causal, query, key), False
    return mask, causal


def _dense(blocks: Any, query: Tensor, key: Tensor) -> Tensor:
    """A block mask of flex attention, written out."""
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = blocks.shape[:2]
    return create_mask(blocks.mask_mod, batch, heads, query.shape[2], key.shape[2], device=query.device.type)


def _within_sequences(
    query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool, wanted: Mapping[str, Any]
) -> Tensor:
    """The mask with all keys hidden that are of other sequences than the row."""
    if query.shape[0] != 1:
        raise DomainError(
            f"{QUERIES} is given for a batch of {query.shape[0]}; sequences are packed into a batch of one"
        )
    rows, columns = (_sequences(wanted, name, each.shape[2]) for name, each in ((QUERIES, query), (KEYS, key)))
    if causal and not torch.equal(rows, columns):
        raise DomainError(f"{QUERIES} and {KEYS} differ in causal attention; pack queries and keys alike")
    same = rows[:, None] == columns
    if causal:
        return same.tril()
    if mask is None:
        return same
    return mask & same if mask.dtype is torch.bool else mask.masked_fill(~same, -torch.inf)


def _sequences(wanted: Mapping[str, Any], name: str, tokens: int) -> Tensor:
    """The number of each token's sequence."""
    ends = wanted.get(name)
    if ends is None or ends[:: max(len(ends) - 1, 1)].tolist() != [0, tokens]:  # the first and the last
        given = None if ends is None else ends.tolist()
        raise DomainError(f"{name} = {given}; give where sequences begin, from 0 to the number of tokens, {tokens}")
    return torch.searchsorted(ends.contiguous(), torch.arange(tokens, device=ends.device, dtype=ends.dtype), right=True)
