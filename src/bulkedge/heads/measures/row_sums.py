"""Attention matrices of heads as blocks of rows, and the sums that three passes over them make.

A pass holds one block at a time: memory is that of a block, whatever the number of tokens. Where one block has all rows
it is computed once, and the passes share it. What a pass needs decides their number: who is a sink is known after the
first, and what all rows prefer among the other keys after the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace, device

from bulkedge.heads.measures.layer_visibility import LayerVisibility, RowBlock, positive


class AttentionRows:
    """Attention matrices of some heads of a layer, a block of rows at a time."""

    def __init__(self, content: Any, visibility: LayerVisibility) -> None:
        self.visibility = visibility
        if callable(content) and len(visibility.blocks) == 1:
            content = content(visibility.blocks[0])
        self.content: Callable[[slice], Any] = content if callable(content) else lambda rows: content[:, rows]
        self._kept: dict[bool, tuple[Any, Any]] = {}

    def weights(self, rows: slice, sinks: Any = None) -> tuple[Any, Any]:
        """The softmax over the keys that are no sinks; rows that see none of those are zero."""
        if len(self.visibility.blocks) > 1:
            return self._softmax(rows, sinks)
        if (sinks is None) not in self._kept:
            self._kept[sinks is None] = self._softmax(rows, sinks)
        return self._kept[sinks is None]

    def _softmax(self, rows: slice, sinks: Any) -> tuple[Any, Any]:
        xp, added = self.visibility.xp, self.visibility.part(rows).added
        content = self.content(rows)
        scores = content if added is None else content + added
        if sinks is not None:
            scores = xp.where(sinks[:, None, :] > 0, -xp.inf, scores)
        top = xp.max(scores, axis=-1, keepdims=True)
        top = xp.where(top > -xp.inf, top, xp.zeros_like(top))
        weights = xp.exp(scores - top)
        total = positive(xp.sum(weights, axis=-1, keepdims=True))
        return weights / total, (top + xp.log(total))[..., 0]

    def parts(self, sinks: Any = None) -> Iterator[tuple[slice, RowBlock, Any, Any]]:
        """All blocks, one after the other."""
        for rows in self.visibility.blocks:
            yield rows, self.visibility.part(rows), *self.weights(rows, sinks)


class AllKeys(NamedTuple):
    """Sums of the whole matrices: of columns, (heads, tokens), and of rows, (heads, rows)."""

    columns: Any
    column_squares: Any
    normaliser: Any  # logarithms of the sums of exponentials of the scores
    entropy: Any
    largest: Any
    variance: Any  # of the content scores over the keys that a row sees


def of_all_keys(attention: AttentionRows) -> AllKeys:
    """The first pass: the softmax over all keys."""
    xp = attention.visibility.xp
    columns, squares, of_rows = 0.0, 0.0, []
    for rows, part, weights, normaliser in attention.parts():
        content = attention.content(rows)
        scores = xp.sum(weights * content, axis=-1)
        if part.positional is not None:
            scores = scores + xp.sum(weights * part.positional, axis=-1)
        columns = columns + xp.sum(weights, axis=1)
        squares = squares + xp.sum(weights**2, axis=1)
        entropy = xp.clip(normaliser - scores, 0.0, None)
        of_rows.append((normaliser, entropy, xp.max(weights, axis=-1), variances(content, part)))
    return AllKeys(columns, squares, *_join(xp, of_rows))


class OtherKeys(NamedTuple):
    """Sums of the matrices without sinks: of columns, (heads, tokens), of rows, (heads, rows), and of diagonals."""

    columns: Any
    even: Any  # what columns would sum to if each row spread its attention evenly over the keys that it sees
    stripes: Any
    """Weighted sums along diagonals, keys minus rows from ``1 - rows`` to ``tokens - 1``; None without an order."""
    normaliser: Any
    taken: Any  # sums of rows: one, or zero
    squares: Any
    keys: Any  # number of keys that a row sees
    variance: Any

    @property
    def preferences(self) -> Any:
        """What all rows prefer: what keys get over what they would get from rows without a choice, (heads, tokens)."""
        return self.columns / positive(self.even)


def of_other_keys(attention: AttentionRows, sinks: Any) -> OtherKeys:
    """The second pass: the softmax over keys that are no sinks."""
    visibility, xp = attention.visibility, attention.visibility.xp
    columns, even, stripes, of_rows = 0.0, 0.0, None, []
    for rows, part, weights, normaliser in attention.parts(sinks):
        kept = visibility.new(xp.ones, (weights.shape[0], visibility.shape[1])) if sinks is None else 1 - sinks
        taken, keys = xp.clip(xp.sum(weights, axis=2), None, 1.0), part.total(kept)
        columns = columns + xp.sum(weights, axis=1)
        even = even + part.spread(taken / positive(keys))
        if visibility.ordered:
            if stripes is None:
                stripes = visibility.new(xp.zeros, (weights.shape[0], sum(visibility.shape) - 1))
            _add_diagonals(stripes, weights * visibility.busy[:, rows, None], rows)
        variance = variances(attention.content(rows), part, None if sinks is None else kept)
        of_rows.append((normaliser, taken, xp.sum(weights**2, axis=2), keys, variance))
    return OtherKeys(columns, even, stripes, *_join(xp, of_rows))


class Preferred(NamedTuple):
    """What rows do beside what rows with the common preferences and no others would do; all of shape (heads, rows)."""

    product: Any  # products of both rows
    energy: Any  # squares of the latter; of rows that see nothing, zero
    near: Any  # what the latter put on near keys; None without an order of tokens
    same: Any  # what the rows put on other places of their token
    same_expected: Any
    same_there: Any  # number of such places that are no sinks


def of_preferences(attention: AttentionRows, sinks: Any, x: Any) -> Preferred:
    """The third pass: rows compared with those of preferences x, ``x_j / (sum of x over the keys that it sees)``."""
    # behind a causal mask preferences that grow along the sequence would fit better, but make heads that fade with the
    # distance, which is something else
    visibility, xp = attention.visibility, attention.visibility.xp
    of_rows = []
    for _, part, weights, _ in attention.parts(sinks):
        total = positive(part.total(x))
        found = [_times(xp, weights, x) / total, part.total(x**2) / total**2]
        if visibility.ordered:
            kept = xp.ones_like(x) if sinks is None else 1 - sinks
            found += [_times(xp, part.near, x) / total, xp.sum(weights * part.same, axis=-1)]
            found += [_times(xp, part.same, x) / total, _times(xp, part.same, kept)]
        of_rows.append(found)
    joined = _join(xp, of_rows)
    return Preferred(*joined, *(None,) * (len(Preferred._fields) - len(joined)))


def variances(content: Any, part: RowBlock, kept: Any = None) -> Any:
    """Variances of rows of scores over the keys that they see."""
    xp = part.visibility.xp
    shown = content if part.seen is None else content * part.seen
    if kept is None:
        count, some = xp.clip(part.visibility.row_counts[:, part.rows], 1.0, None), shown
    else:
        count, some = xp.clip(part.total(kept), 1.0, None), shown * kept[:, None, :]
    mean = xp.sum(some, axis=-1) / count
    return xp.clip(xp.sum(some * shown, axis=-1) / count - mean**2, 0.0, None)


def _join(xp: Any, of_rows: list[Any]) -> list[Any]:
    """Numbers of rows, block by block, as one array for each kind of number."""
    return [each[0] if len(each) == 1 else xp.concat(each, axis=-1) for each in zip(*of_rows, strict=True)]


def _times(xp: Any, matrices: Any, vectors: Any) -> Any:
    return xp.matmul(matrices, vectors[..., None])[..., 0]


def _add_diagonals(sums: Any, weighted: Any, rows: slice) -> None:
    """Add the sums along the diagonals of a block to those of all rows, (heads, rows + tokens - 1)."""
    xp = array_namespace(weighted)
    number, height, tokens = weighted.shape
    all_rows = sums.shape[1] - tokens + 1
    # row r of rows that are one too wide moves by r when they are cut: what was key minus row becomes the column
    zeros = xp.zeros((number, height, height), dtype=weighted.dtype, device=device(weighted))
    skewed = xp.concat([xp.flip(weighted, axis=1), zeros], axis=-1)
    skewed = xp.reshape(skewed, (number, -1))[:, : height * (tokens + height - 1)]
    found = xp.sum(xp.reshape(skewed, (number, height, -1)), axis=1)
    sums[:, all_rows - rows.stop : all_rows - rows.stop + tokens + height - 1] += found
