"""Products with attention by torch's fused kernels: the forward pass, and its gradient with respect to the values.

Blocks of vectors take the place of values. The kernels want values as wide as queries, so blocks are cut and padded to
that width. The gradient is asked for the values alone; the kernels compute those of queries and keys beside it, which
are thrown away.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from bulkedge.spectra.operators.products import Products
from bulkedge.visibility import FullMask, Mask, WindowMask


class Fused(Products):
    """Products of ``softmax(q k')`` behind a mask, and of its transpose, by ``scaled_dot_product_attention``."""

    name = "sdpa"

    def __init__(self, query: Tensor, key: Tensor, mask: Mask) -> None:
        self._batch, self._width = query.shape[:-2], query.shape[-1]
        self.query, self.key = (each.reshape(1, -1, *each.shape[-2:]) for each in (query, key))
        causal = isinstance(mask, WindowMask) and mask.unlimited
        written = None if causal or isinstance(mask, FullMask) else mask.visible(query)
        self._options: dict[str, Any] = {"is_causal": causal, "attn_mask": written, "scale": 1.0}
        # the kernels keep the normaliser to themselves
        self.log_normaliser = None

    def forward(self, block: Tensor) -> Tensor:
        """``A V``."""
        with torch.no_grad():
            return torch.cat([self._attend(part)[..., :width] for part, width in self._parts(block)], -1)

    def backward(self, block: Tensor) -> Tensor:
        """``A' U``."""
        with torch.enable_grad():
            values = block.new_zeros((1, self.key.shape[1], self.key.shape[-2], self._width)).requires_grad_()
            output = scaled_dot_product_attention(self.query, self.key, values, **self._options)
            found = []
            for part, width in self._parts(block):
                (gradient,) = torch.autograd.grad(output, values, part, retain_graph=True)
                found.append(gradient.reshape(*self._batch, *gradient.shape[-2:])[..., :width])
        return torch.cat(found, -1)

    def _attend(self, values: Tensor) -> Tensor:
        output = scaled_dot_product_attention(self.query, self.key, values, **self._options)
        return output.reshape(*self._batch, *output.shape[-2:])

    def _parts(self, block: Tensor) -> list[tuple[Tensor, int]]:
        """The block as values: one head for each of the batch, cut and padded to the width of the queries."""
        whole = block.expand(*self._batch, *block.shape[-2:]).reshape(1, -1, *block.shape[-2:])
        cut = [whole[..., start : start + self._width] for start in range(0, whole.shape[-1], self._width)]
        return [(pad(each, (0, self._width - each.shape[-1])).contiguous(), each.shape[-1]) for each in cut]
