"""Products with attention by kernels: those of :mod:`bulkedge.spectra.operators.kernels`, and torch's fused ones."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from math import log, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from bulkedge.spectra.operators.products import Products
from bulkedge.visibility import FullMask, Mask, WindowMask

TRITON = find_spec("triton") is not None  # whether kernels can be compiled
OWN, OTHER, WARPS = 128, 64, 8
"""Tokens of a program, tokens that it meets at a time, and its warps: the fastest of fifteen choices on an H200."""
COLUMNS = 64  # vectors that are multiplied at a time
FEW = 32  # up to so many vectors leave room for one more load that is under way


def takes(query: Tensor, key: Tensor, mask: Mask) -> bool:
    """Whether the kernels are for such tensors."""
    return (
        TRITON
        and query.is_cuda
        and key.device == query.device
        and query.dtype == torch.float32
        and query.shape[-1] <= 256
        and isinstance(mask, FullMask | WindowMask)
        and torch.cuda.get_device_properties(query.device).major >= 8
    )


def split(tensor: Tensor, parts: int) -> Tensor:
    """A tensor as a sum of bfloat16 ones, the leading digits first."""
    found = torch.empty((parts, *tensor.shape), dtype=torch.bfloat16, device=tensor.device)
    for part in found:
        part.copy_(tensor)
        tensor = tensor - part
    return found


class Tiles(Products):
    """Products of ``softmax(q k')`` behind a mask, and of its transpose, by Triton's kernels."""

    name = "triton"

    def __init__(self, query: Tensor, key: Tensor, mask: Mask, parts: int | None = None) -> None:
        self._batch, self.mask = query.shape[:-2], mask
        query, key = (each.reshape(prod(self._batch), *each.shape[-2:]) for each in (query, key))
        longest = float(query.norm(dim=-1).max()) * float(key.norm(dim=-1).max())
        # largest product of the lengths of a query and a key up to which scores in two parts are accurate to 1e-4
        self._parts = parts or (2 if longest <= 64.0 else 3)
        self._vector_parts = parts or 2
        # the kernels know logarithms to the base two
        self._query, self._key = split(query / log(2), self._parts), split(key, self._parts)
        self._normaliser = query.new_empty(query.shape[:-1])
        self._normalise()
        self.log_normaliser = log(2) * self._normaliser

    def forward(self, block: Tensor) -> Tensor:
        """``A V``."""
        return self._multiply(self._query, self._key, block, transposed=False)

    def backward(self, block: Tensor) -> Tensor:
        """``A' U``."""
        return self._multiply(self._key, self._query, block, transposed=True)

    @property
    def _window(self) -> tuple[int, bool]:
        """The width of the window, and whether there is one."""
        return (self.mask.width, True) if isinstance(self.mask, WindowMask) else (0, False)

    def _normalise(self) -> None:
        from bulkedge.spectra.operators import kernels

        _, heads, queries, dim = self._query.shape
        width, window = self._window
        with self._device():
            kernels.normalise[-(-queries // OWN), heads](
                *(self._query, self._key, self._normaliser, heads, queries, self._key.shape[2], width),
                *(window, self._parts, not self._query.is_cuda, dim, _power(dim), OWN, OTHER),
                num_warps=WARPS,
                num_stages=3,
            )

    def _multiply(self, own: Tensor, other: Tensor, block: Tensor, *, transposed: bool) -> Tensor:
        from bulkedge.spectra.operators import kernels

        (_, heads, owns, dim), others, (width, window) = own.shape, other.shape[2], self._window
        whole = block.expand(*self._batch, *block.shape[-2:]).reshape(heads, *block.shape[-2:])
        found = []
        for cut in whole.split(COLUMNS, -1):
            vectors, columns = split(cut, self._vector_parts), cut.shape[-1]
            result = block.new_empty((heads, owns, columns))
            with self._device():
                kernels.multiply[-(-owns // OWN), heads](
                    *(own, other, self._normaliser, vectors, result, heads, owns, others, width),
                    *(transposed, window, self._parts, self._vector_parts, not own.is_cuda),
                    *(dim, _power(dim), columns, _power(columns), OWN, OTHER),
                    num_warps=WARPS,
                    num_stages=3 if columns <= FEW else 2,
                    # so that two programs share a multiprocessor: the compiler alone takes 148, which leaves room for
                    # one. Three parts leave no room for a second program anyway
                    maxnreg=128 if self._parts < 3 else None,
                )
            found.append(result)
        return torch.cat(found, -1).reshape(*self._batch, owns, -1)

    def _device(self) -> Any:
        """Triton launches on the current device; the interpreter has none."""
        return torch.cuda.device(self._query.device) if self._query.is_cuda else nullcontext()


def _power(size: int) -> int:
    """The next power of two, of which products of matrices need sixteen."""
    return max(16, 1 << (size - 1).bit_length())


class Fused(Products):
    """Products of masked ``softmax(q k')``, and of its transpose, by ``scaled_dot_product_attention``."""

    # blocks of vectors stand for values, padded to the width the kernels want; the transpose is the values' gradient

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
