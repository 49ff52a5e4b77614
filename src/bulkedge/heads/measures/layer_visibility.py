"""Who sees whom in a layer, worked out once for all of its heads, and the sums that three passes over their rows make.

A pass holds one block of rows at a time: memory is that of a block, whatever the number of tokens. Where one block has
all rows it is computed once, and the passes share it. What a pass needs decides their number: who is a sink is known
after the first, and what all rows prefer among the other keys after the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace, device

from bulkedge.support.errors import DomainError
from bulkedge.visibility import additive

NEAR = 8
"""Keys so far from their row are near."""
FEWEST = 16  # rows that see fewer keys are left out of means over rows, because they have no choice


@dataclass(frozen=True, eq=False)
class RowBlock:
    """What a block of rows sees. Arrays have a leading axis of heads, or of one for all."""

    visibility: LayerVisibility
    rows: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of the block, and tokens."""
        return self.rows.stop - self.rows.start, self.visibility.shape[1]

    @cached_property
    def added(self) -> Any:
        """What is added to the scores, minus infinity for hidden keys, (heads, rows of the block, tokens), or None."""
        if self.visibility.bias is None:
            return None
        bias = (
            self.visibility.bias(self.rows)
            if callable(self.visibility.bias)
            else additive(self._cut(self.visibility.bias))
        )
        return self.visibility.xp.reshape(bias, (-1, *bias.shape[-2:]))

    def _cut(self, bias: Any) -> Any:
        """The rows of the block; a bias with one row for all stays as it is."""
        return bias if bias.shape[-2] == 1 else bias[..., self.rows, :]

    @cached_property
    def positional(self) -> Any:
        """The same where it is finite, or None where it only hides."""
        xp = self.visibility.xp
        if self.added is None:
            return None
        finite = xp.where(self.added > -xp.inf, self.added, xp.zeros_like(self.added))
        return finite if bool(xp.any(finite != 0)) else None

    @cached_property
    def seen(self) -> Any:
        """Ones for what is seen, (heads, rows of the block, tokens); None where all is."""
        xp = self.visibility.xp
        if self.added is None:
            return None
        numbers = xp.astype(self.added > -xp.inf, self.added.dtype)
        return xp.broadcast_to(numbers, (numbers.shape[0], *self.shape))

    @cached_property
    def near(self) -> Any:
        """Ones where a key is near its row and seen, (heads, rows of the block, tokens)."""
        xp, first = self.visibility.xp, self.rows.start
        band = xp.tril(xp.triu(self.visibility.new(xp.ones, self.shape), k=first - NEAR), k=first + NEAR)
        return band[None] if self.seen is None else band * self.seen

    @cached_property
    def same(self) -> Any:
        """Ones where another key has the row's own token and is seen, (heads, rows of the block, tokens)."""
        xp, ids, first = self.visibility.xp, self.visibility.ids, self.rows.start
        ones = self.visibility.new(xp.ones, self.shape)
        other = ones - xp.tril(xp.triu(ones, k=first), k=first)
        equal = xp.astype(ids[self.rows, None] == ids[None, :], ones.dtype) * other
        return equal[None] if self.seen is None else equal * self.seen

    def total(self, values: Any) -> Any:
        """Sums over the keys that each row of the block sees."""
        xp = self.visibility.xp
        if self.seen is None:
            sums = xp.sum(values, axis=-1, keepdims=True)
            return xp.broadcast_to(sums, (values.shape[0], self.shape[0]))
        return xp.matmul(self.seen, values[..., None])[..., 0]

    def spread(self, values: Any) -> Any:
        """The transpose: sums over the rows of the block that see each key."""
        xp = self.visibility.xp
        if self.seen is None:
            sums = xp.sum(values, axis=-1, keepdims=True)
            return xp.broadcast_to(sums, (values.shape[0], self.shape[1]))
        return xp.matmul(values[:, None, :], self.seen)[:, 0]


@dataclass(frozen=True, eq=False)
class LayerVisibility:
    """The mask and the positional scores of a layer. Arrays have a leading axis of heads, or of one for all."""

    xp: Any
    shape: tuple[int, int]  # rows and tokens
    # what is added to the scores, (rows, tokens) or (heads, rows, tokens) in any spelling; or a function that returns
    # that of a slice of rows, with minus infinity for hidden keys, so that no array has to have all of them
    bias: Any = None
    ids: Any = None  # token of every position, where rows and keys are of one sequence
    like: Any = None  # whose type and device new arrays have; the bias by default
    height: int | None = None  # rows of a block; all of them by default

    @classmethod
    def of(cls, content: Any, bias: Any = None, ids: Any = None) -> LayerVisibility:
        """The visibility behind scores."""
        return cls(array_namespace(content), tuple(content.shape[1:]), bias, ids, content)

    def new(self, make: Any, *arguments: Any) -> Any:
        """An array of the layer's type, on its device."""
        like = self.bias if self.like is None else self.like
        return make(*arguments, dtype=like.dtype, device=device(like))

    @cached_property
    def ordered(self) -> bool:
        """Whether rows and keys are of one sequence of tokens, so that offsets have a meaning."""
        return self.ids is not None and self.shape[0] == self.shape[1]

    @cached_property
    def blocks(self) -> tuple[slice, ...]:
        """Slices of rows that are looked at one after the other."""
        rows, height = self.shape[0], self.height or self.shape[0]
        return tuple(slice(start, min(start + height, rows)) for start in range(0, rows, height))

    def part(self, rows: slice) -> RowBlock:
        """What a block of rows sees."""
        return self._whole if len(self.blocks) == 1 else RowBlock(self, rows)

    @cached_property
    def _whole(self) -> RowBlock:
        return RowBlock(self, self.blocks[0])

    @cached_property
    def _counts(self) -> tuple[Any, Any]:
        """Number of keys that each row sees, and of rows that see each key."""
        if self.bias is None:
            of_all = [self.new(self.xp.full, (1, own), float(other)) for own, other in (self.shape, self.shape[::-1])]
            return of_all[0], of_all[1]
        of_rows: list[Any] = []
        of_columns: Any = 0.0
        for rows in self.blocks:
            seen = self.part(rows).seen
            of_rows.append(self.xp.sum(seen, axis=2))
            of_columns = of_columns + self.xp.sum(seen, axis=1)
        if not bool(self.xp.all(self.xp.any(of_columns > 0, axis=-1))):
            raise DomainError("no row of a head sees any key: there is no attention to measure, so look at the mask")
        return self.xp.concat(of_rows, axis=-1), of_columns

    @property
    def row_counts(self) -> Any:
        """Number of keys that each row sees, (heads, rows)."""
        return self._counts[0]

    @property
    def column_counts(self) -> Any:
        """Number of rows that see each key, (heads, tokens)."""
        return self._counts[1]

    @cached_property
    def even(self) -> Any:
        """What each key gets from the rows that see it if these spread their attention evenly, (heads, tokens)."""
        shares = 1 / positive(self.row_counts)
        sums = sum(self.part(rows).spread(shares[:, rows]) for rows in self.blocks)
        return sums / positive(self.column_counts)

    @cached_property
    def busy(self) -> Any:
        """Weights of rows in means over rows, (heads, rows): those with a choice, or all that see a key if none has."""
        enough = self.row_counts >= min(FEWEST, self.shape[1])
        some = self.xp.any(enough, axis=-1, keepdims=True)
        weights = self.xp.astype(enough | (~some & (self.row_counts > 0)), self.row_counts.dtype)
        return weights / self.xp.sum(weights, axis=-1, keepdims=True)

    @cached_property
    def stripes(self) -> Any:
        """Share of the busy rows that have a key at each offset up to half of the tokens, (heads, offsets)."""
        reach = self.shape[1] // 2
        up = self.xp.cumulative_sum(self.busy, axis=-1)  # rows up to i
        down = 1 - up + self.busy  # rows from i on
        later = self.xp.flip(up[:, self.shape[0] - 1 - reach :], axis=-1)  # offset k >= 0: rows up to T - 1 - k
        earlier = self.xp.flip(down[:, 1 : reach + 1], axis=-1)  # offset -k: rows from k on
        return self.xp.clip(self.xp.concat([earlier, later], axis=-1), 1e-9, None)


def positive(values: Any) -> Any:
    """Denominators: ones in the place of zeros."""
    xp = array_namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))


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
