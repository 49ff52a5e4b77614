"""The mean matrix of a mask as an operator: no mask is written out whole.

>>> import numpy as np
>>> from bulkedge.visibility import Mask
>>> (MaskMean(Mask.causal(4), np.ones(1)) @ np.array([4.0, 0.0, 2.0, 2.0])).tolist()
[4.0, 2.0, 2.0, 2.0]
"""

from __future__ import annotations

from math import isqrt
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from bulkedge.spectra.operators.base import Operator
from bulkedge.visibility import FullMask, Mask, WindowMask, visible_rows

BLOCK = 1024
"""Rows of a mask without structure that are multiplied at a time."""


def sums_before(block: Any) -> Any:
    """Sums of the rows before each row, and of all.

    In chunks, about as many as rows in each: a GPU sums along rows one by one, with a thread for each column.

    Examples
    --------
    >>> sums_before(np.ones((3, 1))).T.tolist()
    [[0.0, 1.0, 2.0, 3.0]]
    """
    xp, (*batch, rows, columns) = array_namespace(block), block.shape
    chunk = max(1, isqrt(rows))
    chunks = -(-rows // chunk)
    empty = {"dtype": block.dtype, "device": device(block)}
    padded = xp.concat([block, xp.zeros((*batch, chunks * chunk - rows, columns), **empty)], axis=-2)
    inside = xp.cumulative_sum(xp.reshape(padded, (*batch, chunks, chunk, columns)), axis=-2)
    before = xp.cumulative_sum(inside[..., -1, :], axis=-2, include_initial=True)[..., :-1, None, :]
    sums = xp.reshape(inside + before, padded.shape)[..., :rows, :]
    return xp.concat([xp.zeros((*batch, 1, columns), **empty), sums], axis=-2)


class MaskMean(Operator):
    """The uniform mean matrix C of a mask, row i constant on what query i sees; full and window masks by sums."""

    def __init__(self, mask: Mask, like: Any) -> None:
        self.mask, self.like, self.shape = mask, like, mask.shape
        xp = array_namespace(like)
        self._share = xp.asarray(1.0 / np.asarray(mask.counts()), dtype=xp.float64, device=device(like))[:, None]

    @property
    def low_rank(self) -> bool:
        """Whether all rows are the same."""
        return isinstance(self.mask, FullMask)

    def _forward(self, block: Any) -> Any:
        if isinstance(self.mask, FullMask):
            mean = array_namespace(block).mean(block, axis=-2, keepdims=True)
            return array_namespace(block).broadcast_to(mean, (*block.shape[:-2], self.shape[0], block.shape[-1]))
        if isinstance(self.mask, WindowMask):
            return self._rounded(self._share * self._window_sums(self._double(block), self.mask.width, ahead=False))
        return self._rounded(self._share * self._by_rows(self._double(block), adjoint=False))

    def _backward(self, block: Any) -> Any:
        weighted = self._share * self._double(block)
        if isinstance(self.mask, FullMask):
            total = array_namespace(block).sum(weighted, axis=-2, keepdims=True)
            shape = (*block.shape[:-2], self.shape[1], block.shape[-1])
            return array_namespace(block).broadcast_to(self._rounded(total), shape)
        if isinstance(self.mask, WindowMask):
            return self._rounded(self._window_sums(weighted, self.mask.width, ahead=True))
        return self._rounded(self._by_rows(weighted, adjoint=True))

    @staticmethod
    def _window_sums(block: Any, width: int, *, ahead: bool) -> Any:
        """Sums of ``width`` rows up to each row, or from each row on: differences of running sums."""
        xp, rows = array_namespace(block), block.shape[-2]
        sums = sums_before(block)
        place = xp.arange(rows, device=device(block))
        first, last = (
            (place, xp.clip(place + width, max=rows)) if ahead else (xp.clip(place + 1 - width, min=0), place + 1)
        )
        return xp.take(sums, last, axis=-2) - xp.take(sums, first, axis=-2)

    def _by_rows(self, block: Any, *, adjoint: bool) -> Any:
        """Products with the boolean matrix, a few rows at a time."""
        xp, parts, total = array_namespace(block), [], 0.0
        for start in range(0, self.shape[0], BLOCK):
            stop = min(start + BLOCK, self.shape[0])
            rows = xp.astype(visible_rows(self.mask, start, stop, block), block.dtype)
            if adjoint:
                total = total + xp.matrix_transpose(rows) @ block[..., start:stop, :]
            else:
                parts.append(rows @ block)
        return total if adjoint else xp.concat(parts, axis=-2)

    def _double(self, block: Any) -> Any:
        xp = array_namespace(block)
        return xp.astype(block, xp.float64)

    def _rounded(self, block: Any) -> Any:
        return array_namespace(block).astype(block, self.like.dtype)
