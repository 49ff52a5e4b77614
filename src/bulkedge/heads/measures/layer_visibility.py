"""What follows for measures of heads from who sees whom in their layer: worked out once for all of its heads.

A layer is looked at in blocks of rows, of which one is held at a time. Where there is one block it has all rows, and is
kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
