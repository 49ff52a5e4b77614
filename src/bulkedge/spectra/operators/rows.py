"""Products with attention by blocks of rows: any backend, device and precision, and memory for one block of rows.

The normaliser of each row is computed once. After that an entry is ``exp(score - log normaliser)``, whatever the block
it is in, and it needs no second pass over its row: the product with the transpose uses the very same entries, so that
both are adjoint to rounding.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, is_torch_array

from bulkedge.masks import Mask
from bulkedge.spectra.operators.means import seen
from bulkedge.spectra.operators.products import Products

ENTRIES = {"cpu": 2**21, "gpu": 2**27}
"""Entries of attention that are held at a time: enough for efficient products, few enough for caches and memory."""


class RowBlocks(Products):
    """Products of ``softmax(q k')`` behind a mask, and of its transpose.

    Parameters
    ----------
    query : array of shape (..., queries, d)
        Queries times the scale of the scores.
    key : array of shape (..., keys, d)
        Keys, on the same backend and of the same type.
    mask : Mask
        Who sees whom.
    """

    name = "rows"

    def __init__(self, query: Any, key: Any, mask: Mask) -> None:
        self.query, self.key, self.mask = query, key, mask
        heads = 1
        for axis in query.shape[:-2]:
            heads *= axis
        entries = ENTRIES["gpu" if is_torch_array(query) and query.device.type != "cpu" else "cpu"]
        self._height = max(1, min(entries // (heads * mask.keys), mask.queries))
        self.log_normaliser = self._normalised()

    def forward(self, block: Any) -> Any:
        """``A V``."""
        parts = []
        for rows in self._blocks():
            columns, weights = self._weights(rows)
            parts.append(weights @ block[..., columns, :])
        return array_namespace(block).concat(parts, axis=-2)

    def backward(self, block: Any) -> Any:
        """``A' U``."""
        xp, width = array_namespace(block), block.shape[-1]
        total = None
        for rows in self._blocks():
            columns, weights = self._weights(rows)
            part = xp.matrix_transpose(weights) @ block[..., rows, :]
            if total is None:
                total = self._zeros((*part.shape[:-2], self.mask.keys, width))
            total[..., columns, :] += part
        return total

    def _blocks(self) -> list[slice]:
        last = self.mask.queries
        return [slice(start, min(start + self._height, last)) for start in range(0, last, self._height)]

    def _scores(self, rows: slice) -> tuple[slice, Any]:
        """Scores of some rows with the keys that they may see; minus infinity where a row does not."""
        xp = array_namespace(self.query)
        columns, visible = seen(self.mask, rows.start, rows.stop, self.query)
        scores = self.query[..., rows, :] @ xp.matrix_transpose(self.key[..., columns, :])
        return columns, scores if visible is None else xp.where(visible, scores, -xp.inf)

    def _weights(self, rows: slice) -> tuple[slice, Any]:
        columns, scores = self._scores(rows)
        scores -= self.log_normaliser[..., rows, None]
        if is_torch_array(scores):
            return columns, scores.exp_()
        return columns, array_namespace(scores).exp(scores, out=scores)

    def _normalised(self) -> Any:
        """``log sum exp`` of each row."""
        xp, parts = array_namespace(self.query), []
        for rows in self._blocks():
            _, scores = self._scores(rows)
            largest = xp.max(scores, axis=-1, keepdims=True)
            parts.append(largest[..., 0] + xp.log(xp.sum(xp.exp(scores - largest), axis=-1)))
        return xp.concat(parts, axis=-1)

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        xp = array_namespace(self.query)
        return xp.zeros(shape, dtype=self.query.dtype, device=self.query.device)
