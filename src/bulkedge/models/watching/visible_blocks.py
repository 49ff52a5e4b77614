"""How many keys of each block the rows of an attention see: the same for all layers that share a mask."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from bulkedge.visibility import Visibility
from bulkedge.visibility.layers import ENTRIES

BLOCKS, SHORTEST = 16, 4  # blocks of neighbouring keys that have a mean of their own, and the fewest keys of one
NEAR = 16  # rows are taken in chunks of so many; keys of the chunk of a row, and of those beside it, are near
HIDDEN = -1e30  # logarithm of a weight that is none; finite, so that a product with zero is zero


class VisibleBlocks(NamedTuple):
    """What rows see of each block of keys. Axes ``b`` and ``h`` are batch and heads, or one for all of them."""

    member: Tensor  # (blocks, keys): one where a key is in a block, zero elsewhere
    real: Tensor | None  # (b, h, keys): one for keys that any row sees, zero for others; None if there are no others
    # (b, h, rows, blocks), or one row: logarithm of the part of a block's real keys, none of them near, that a row sees
    part: Tensor
    # (b, h, rows, width): zero for seen keys from the chunk before the row's on, else HIDDEN; None if rows are not keys
    near: Tensor | None
    counts: Tensor  # (b, h, rows), or one in place of the rows: keys that a row sees
    rows: Tensor | None  # (b, h, rows): zero for padding and rows of one key; None if there are none


def visible_blocks(visible: Visibility, device: torch.device) -> VisibleBlocks:
    """What the rows of an attention see."""
    return (_rule_blocks if visible.mask is None else _mask_blocks)(visible, device)


def near_width(visible: Visibility) -> int:
    """How many keys are near a row: its chunk and the one before, and the one after unless that is the future."""
    return 0 if visible.rows != visible.keys else (2 if visible.causal else 3) * NEAR


def _member(keys: int, device: torch.device) -> Tensor:
    blocks = max(1, min(BLOCKS, keys // SHORTEST))
    place = torch.arange(keys, device=device) * blocks // keys
    return (torch.arange(blocks, device=device)[:, None] == place).float()


@lru_cache(maxsize=32)
def _rule_blocks(visible: Visibility, device: torch.device) -> VisibleBlocks:
    """Without a mask rows see a stretch of keys, of which arithmetic knows the parts in each block."""
    member, width = _member(visible.keys, device), near_width(visible)
    size = member.sum(-1)
    start = size.cumsum(0) - size
    rows = torch.arange(visible.rows, device=device)[:, None]
    place = rows + (visible.keys - visible.rows)
    last = place + 1 if visible.causal else torch.full_like(place, visible.keys)
    first = torch.zeros_like(place) if visible.window is None else (place + 1 - visible.window).clamp(min=0)

    def inside(low: Tensor, high: Tensor) -> Tensor:
        return (torch.minimum(high, start + size) - torch.maximum(low, start)).clamp(min=0)

    parts, near = inside(first, last), None
    if width:
        begin = rows // NEAR * NEAR - NEAR
        parts = parts - inside(torch.maximum(first, begin), torch.minimum(last, begin + width))
        keys = begin + torch.arange(width, device=device)
        near = torch.where((keys >= first) & (keys < last), 0.0, HIDDEN)[None, None]
    counts = (last - first)[None, None, :, 0].float()
    real = (counts >= 2).float()
    return VisibleBlocks(member, None, _log(parts / size)[None, None], near, counts, None if visible.alike else real)


def _mask_blocks(visible: Visibility, device: torch.device) -> VisibleBlocks:
    member, width = _member(visible.keys, device), near_width(visible)
    batch, heads = (1, 1) if visible.mask is None else visible.mask.shape[:2]
    step = max(1, ENTRIES // (batch * heads * visible.keys))
    found, real = [], torch.zeros((batch, heads, visible.keys), dtype=torch.bool, device=device)
    keys = torch.arange(visible.keys, device=device)
    for start in range(0, visible.rows, step):
        rows = torch.arange(start, min(start + step, visible.rows), device=device)[:, None]
        seen = visible.bias(rows[:, 0])[1].expand(batch, heads, len(rows), -1)
        begin = rows // NEAR * NEAR - NEAR
        far = seen & ((keys < begin) | (keys >= begin + width))
        place = begin + torch.arange(width, device=device)
        inside = place.clamp(0, visible.keys - 1).expand(batch, heads, -1, -1)
        near = seen.gather(-1, inside) & (place >= 0) & (place < visible.keys)
        found.append((far.float() @ member.T, near, seen.sum(-1)))
        real = real | seen.any(-2)
    (inside, near, counts), known = (torch.cat(each, dim=2) for each in zip(*found, strict=True)), real.float()
    good = counts >= 2
    if visible.rows == visible.keys:  # the row of a token that nobody sees is padding
        good = good & real
    part = _log(inside / (known @ member.T)[:, :, None].clamp(min=1))
    hidden = torch.where(near, 0.0, HIDDEN) if width else None
    return VisibleBlocks(member, known, part, hidden, counts.float(), good.float())


def _log(parts: Tensor) -> Tensor:
    return torch.where(parts > 0, parts.log(), HIDDEN)
