"""What computes the products of an attention operator: the interface of every backend, and products by blocks of rows.

The normaliser of each row is computed once. After that an entry is ``exp(score - log normaliser)``, whatever the block
it is in, and it needs no second pass over its row: the product with the transpose uses the very same entries, so that
both are adjoint to rounding. A block of rows is also all that its part of ``A' (A V)`` needs, which is the sum over
blocks of ``A_block' (A_block V)``: then scores and exponentials are computed once for both products.

Blocks of NumPy are worked on by several threads, each with a block of its own; torch has threads for each operation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from array_api_compat import array_namespace, is_torch_array

from bulkedge.support.threads import in_order
from bulkedge.visibility import Mask, hidden_patches

ENTRIES = {"cpu": 2**20, "gpu": 2**27}
"""Entries of attention that are held at a time, by each thread: enough for efficient products, and few enough for
caches and memory."""
LEAST_ROWS, MOST_ROWS = 64, 128
"""Rows of a block on a processor. With fewer, keys are copied more often than used; with more, threads go without."""


class Products(ABC):
    """Products of ``A = softmax(q k')`` behind a mask, and of its transpose; A is never formed."""

    name: ClassVar[str]  # what ``backend`` of an operator calls it
    one_pass: ClassVar[bool] = False  # whether :meth:`sweep` computes the scores once, and not twice
    # (..., queries): ``log sum exp`` of the scores of each row; None where a kernel keeps it to itself
    log_normaliser: Any

    @abstractmethod
    def forward(self, block: Any) -> Any:
        """``A V``."""

    @abstractmethod
    def backward(self, block: Any) -> Any:
        """``A' U``."""

    def sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        """``W = A V - L``, and ``A' W``: by two products, where a backend does not know better."""
        image = self.forward(block) if less is None else self.forward(block) - less
        return image, self.backward(image)


class RowBlocks(Products):
    """Products by blocks of rows: any backend, device and precision, and memory for a few blocks of rows."""

    name = "rows"
    one_pass = True

    def __init__(self, query: Any, key: Any, mask: Mask) -> None:
        self.query, self.key, self.mask = query, key, mask
        heads = 1
        for axis in query.shape[:-2]:
            heads *= axis
        gpu = is_torch_array(query) and query.device.type != "cpu"
        height = ENTRIES["gpu" if gpu else "cpu"] // (heads * mask.keys)
        if not gpu:
            height = max(LEAST_ROWS, height if is_torch_array(query) else min(height, MOST_ROWS))
        self._height = max(1, min(height, mask.queries))
        self.log_normaliser = self._log_normalisers()

    def forward(self, block: Any) -> Any:
        """``A V``."""

        def product(rows: slice) -> Any:
            columns, weights = self._weights(rows)
            return weights @ block[..., columns, :]

        return self._stack(product, -2)

    def backward(self, block: Any) -> Any:
        """``A' U``."""
        sums = _ColumnSums(self, block.shape[-1])

        def product(rows: slice) -> tuple[slice, Any]:
            columns, weights = self._weights(rows)
            return columns, array_namespace(weights).matrix_transpose(weights) @ block[..., rows, :]

        self._each(product, lambda found: sums.add(*found))
        return sums.total

    def sweep(self, block: Any, less: Any = None) -> tuple[Any, Any]:
        """``W = A V - L``, and ``A' W``, from scores that are computed once."""
        images: list[Any] = []
        sums = _ColumnSums(self, block.shape[-1])

        def product(rows: slice) -> tuple[Any, slice, Any]:
            columns, weights = self._weights(rows)
            image = weights @ block[..., columns, :]
            if less is not None:
                image -= less[..., rows, :]
            return image, columns, array_namespace(weights).matrix_transpose(weights) @ image

        def collect(found: tuple[Any, slice, Any]) -> None:
            images.append(found[0])
            sums.add(*found[1:])

        self._each(product, collect)
        return array_namespace(block).concat(images, axis=-2), sums.total

    def _each(self, work: Callable[[slice], Any], collect: Callable[[Any], None]) -> None:
        """Work on every block of rows, and collect what is found in their order."""
        last = self.mask.queries
        blocks = [slice(start, min(start + self._height, last)) for start in range(0, last, self._height)]
        if not is_torch_array(self.query):
            in_order(work, blocks, collect)
            return
        for rows in blocks:
            collect(work(rows))

    def _stack(self, work: Callable[[slice], Any], axis: int) -> Any:
        """What is found for every block of rows, as one array."""
        parts: list[Any] = []
        self._each(work, parts.append)
        return array_namespace(self.query).concat(parts, axis=axis)

    def _scores(self, rows: slice) -> tuple[slice, Any]:
        """Scores of some rows with the keys that they may see; minus infinity where a row does not."""
        columns, patches = hidden_patches(self.mask, rows.start, rows.stop, self.query)
        scores = self.query[..., rows, :] @ array_namespace(self.query).matrix_transpose(self.key[..., columns, :])
        for place, unseen in patches:
            if is_torch_array(scores):
                scores[..., place].masked_fill_(unseen, -float("inf"))
            else:
                np.copyto(scores[..., place], -np.inf, where=unseen)
        return columns, scores

    def _weights(self, rows: slice) -> tuple[slice, Any]:
        columns, scores = self._scores(rows)
        scores -= self.log_normaliser[..., rows, None]
        if is_torch_array(scores):
            return columns, scores.exp_()
        return columns, np.exp(scores, out=scores)

    def _log_normalisers(self) -> Any:
        """``log sum exp`` of each row."""
        xp = array_namespace(self.query)

        def normaliser(rows: slice) -> Any:
            _, scores = self._scores(rows)
            largest = xp.max(scores, axis=-1, keepdims=True)
            return largest[..., 0] + xp.log(xp.sum(xp.exp(scores - largest), axis=-1))

        return self._stack(normaliser, -1)


class _ColumnSums:
    """A sum over blocks of rows, of shape (..., keys, width), to which each block adds the keys that it sees."""

    def __init__(self, products: RowBlocks, width: int) -> None:
        self._products, self._width = products, width
        self.total: Any = None

    def add(self, columns: slice, part: Any) -> None:
        """Add the part of a block."""
        if self.total is None:
            query = self._products.query
            shape = (*part.shape[:-2], self._products.mask.keys, self._width)
            self.total = array_namespace(query).zeros(shape, dtype=query.dtype, device=query.device)
        self.total[..., columns, :] += part
