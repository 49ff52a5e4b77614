"""Who sees whom in a call of transformers' attention, as one mask for the fused kernels of torch.

Models say it by a mask, by being causal, by a bias of positions that hides keys too, by a block mask of flex attention,
and by sequences that are packed into one: by where each begins, or by position ids that begin anew.

>>> import torch
>>> query = torch.ones(1, 1, 4, 2)
>>> packed_mask(query, query, {"position_ids": torch.tensor([[0, 1, 0, 1]])}).int().tolist()
[[[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bulkedge.support.errors import DomainError

QUERIES, KEYS = "cu_seq_lens_q", "cu_seq_lens_k"  # where packed sequences begin, and the last one ends
POSITIONS = "position_ids"  # by which they are packed too: the first token of each sequence has the least


def call_mask(  # noqa: PLR0913
    module: nn.Module, query: Tensor, key: Tensor, mask: Any, *, is_causal: bool | None, arguments: Mapping[str, Any]
) -> tuple[Tensor | None, bool]:
    """The mask of a call, and whether it is causal instead."""
    mask = mask_tensor(mask, query, key)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(query.shape[2] > 1 and mask is None and causal)
    if arguments.get(QUERIES) is not None or arguments.get(KEYS) is not None:
        _check_ends(query, key, arguments, causal=causal)
        mask = within_sequences(query, key, mask, arguments)
        mask, causal = mask.tril() if causal else mask, False
    if arguments.get("position_bias") is not None:
        return with_position_bias(arguments["position_bias"], mask, query, key, causal=causal), False
    return mask, causal


def mask_tensor(mask: Any, query: Tensor, key: Tensor) -> Tensor | None:
    """A mask as a tensor; flex attention has a function of rows and keys in its place."""
    if mask is None or isinstance(mask, Tensor):
        return mask
    if not hasattr(mask, "mask_mod"):
        raise DomainError(f"a mask of type {type(mask).__name__} is not read; use eager, sdpa, flash or flex attention")
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = mask.shape[:2]
    return create_mask(mask.mask_mod, batch, heads, query.shape[2], key.shape[2], device=query.device)


def with_position_bias(bias: Tensor, mask: Tensor | None, query: Tensor, key: Tensor, *, causal: bool) -> Tensor:
    """A bias of positions and a mask as one mask, as transformers adds them."""
    from transformers.integrations.sdpa_attention import create_position_bias_mask

    found: Tensor = create_position_bias_mask(bias, mask, causal, query, key)
    return found


def within_sequences(query: Tensor, key: Tensor, mask: Tensor | None, arguments: Mapping[str, Any]) -> Tensor:
    """The mask, with all keys hidden that are of other sequences than the row."""
    if query.shape[0] != 1:
        raise DomainError(f"{QUERIES} is given for a batch of {query.shape[0]}; packed sequences are a batch of one")
    rows, columns = (
        torch.searchsorted(ends.contiguous(), torch.arange(tokens, device=ends.device, dtype=ends.dtype), right=True)
        for ends, tokens in ((arguments[QUERIES], query.shape[2]), (arguments[KEYS], key.shape[2]))
    )
    same = (rows[:, None] == columns)[None, None]
    if mask is None:
        return same
    return mask & same if mask.dtype is torch.bool else mask.masked_fill(~same, -torch.inf)


def _check_ends(query: Tensor, key: Tensor, arguments: Mapping[str, Any], *, causal: bool) -> None:
    """Refuse ends of packed sequences that are not those of the tokens."""
    for name, tokens in ((QUERIES, query.shape[2]), (KEYS, key.shape[2])):
        ends = arguments.get(name)
        if ends is None or ends[:: max(len(ends) - 1, 1)].tolist() != [0, tokens]:  # the first and the last
            given = None if ends is None else ends.tolist()
            raise DomainError(f"{name} = {given}; give where sequences begin, from 0 to the number of tokens, {tokens}")
    if causal and not torch.equal(arguments[QUERIES], arguments[KEYS]):
        raise DomainError(f"{QUERIES} and {KEYS} differ in causal attention; pack queries and keys alike")


def packed_mask(query: Tensor, key: Tensor, packing: Mapping[str, Tensor]) -> Tensor | None:
    """Who is of one sequence with whom, by ends or by positions; None if positions tell one sequence."""
    # Of positions this waits for the device, as the kernels that go by them do in every layer.
    if POSITIONS not in packing:
        return within_sequences(query, key, None, packing)
    row = packing[POSITIONS].reshape(-1)
    starts = (row == row.min()).nonzero()[:, 0]
    if len(starts) == 1:
        return None
    ends = torch.cat([starts, starts.new_full((1,), len(row))])
    return within_sequences(query, key, None, {QUERIES: ends, KEYS: ends})
