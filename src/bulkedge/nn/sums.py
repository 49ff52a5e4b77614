"""Running sums along tokens, as torch computes them: where no kernel of ours does.

>>> running_sums(torch.ones(3, 1)).T
tensor([[1., 2., 3.]])
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64
"""Tokens whose running sums are one small matrix product."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are accumulated in."""
    return torch.promote_types(dtype, torch.float32)


def running_sums(value: Tensor) -> Tensor:
    """Sums of the first tokens, along the second dimension from the end, accumulated in single precision.

    On a GPU in chunks: there a ``cumsum`` walks through the tokens one by one with a thread for each column.

    Examples
    --------
    >>> running_sums(torch.ones(3, 1)).T
    tensor([[1., 2., 3.]])
    """
    if value.dtype is torch.float16:  # whose sums may overflow
        value = value.float()
    if value.device.type == "cpu" or value.shape[-2] <= CHUNK:
        return value.cumsum(-2, dtype=wide(value.dtype)).to(value.dtype)
    return _chunked_sums(value)


def _chunked_sums(value: Tensor) -> Tensor:
    """A sum over the chunks before, and a product with a triangular matrix inside."""
    tokens, dim = value.shape[-2:]
    if tokens % CHUNK:
        value = pad(value, (0, 0, 0, -tokens % CHUNK))
    chunks = value.unflatten(-2, (-1, CHUNK))
    totals = chunks.sum(-2, dtype=wide(value.dtype))
    before = (totals.cumsum(-2) - totals).to(value.dtype)
    triangle = torch.ones(CHUNK, CHUNK, dtype=value.dtype, device=value.device).tril()
    flat = chunks.reshape(-1, CHUNK, dim)
    sums = torch.baddbmm(before.reshape(-1, 1, dim), triangle.expand(len(flat), -1, -1), flat)
    return sums.view(chunks.shape).flatten(-3, -2)[..., :tokens, :]
