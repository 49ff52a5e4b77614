"""Who sees whom in a layer, and what follows from it alone: worked out once for all of its heads.

>>> bias = np.where(np.tri(4) > 0, 0.0, -np.inf)
>>> sight = Sight(np, (4, 4), bias)
>>> sight.row_counts.tolist(), sight.even.round(2).tolist()
([[1.0, 2.0, 3.0, 4.0]], [[0.52, 0.36, 0.29, 0.25]])
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace, device

NEAR = 8
"""Keys so far from their row are near."""
FEWEST = 16
"""Rows that see fewer keys are left out of means over rows, because they have no choice."""


@dataclass(frozen=True, eq=False)
class Sight:
    """The mask and the positional scores of a layer. Arrays have a leading axis of heads, or of one for all.

    Attributes
    ----------
    xp : module
        Namespace of the array library.
    shape : tuple of int
        Rows and tokens.
    bias : array or None
        What is added to the scores, minus infinity for keys that a row does not see: (rows, tokens) or (heads, rows,
        tokens).
    ids : array of shape (tokens,) or None
        Token of every position, where rows and keys are of one sequence.
    like : array, optional
        Whose type and device new arrays have; the bias by default.
    """

    xp: Any
    shape: tuple[int, int]
    bias: Any = None
    ids: Any = None
    like: Any = None

    @classmethod
    def of(cls, content: Any, bias: Any = None, ids: Any = None) -> Sight:
        """The sight behind scores.

        Parameters
        ----------
        content : array of shape (heads, rows, tokens)
            Scores.
        bias, ids : array, optional
            As the attributes.

        Returns
        -------
        Sight
            In the library and on the device of the scores.
        """
        return cls(array_namespace(content), tuple(content.shape[1:]), bias, ids, content)

    def new(self, make: Any, *arguments: Any) -> Any:
        """An array of the layer's type, on its device.

        Parameters
        ----------
        make : callable
            A constructor of the namespace.
        *arguments : object
            What it is called with.

        Returns
        -------
        array
            What it makes.
        """
        like = self.bias if self.like is None else self.like
        return make(*arguments, dtype=like.dtype, device=device(like))

    @cached_property
    def ordered(self) -> bool:
        """Whether rows and keys are of one sequence of tokens, so that offsets have a meaning."""
        return self.ids is not None and self.shape[0] == self.shape[1]

    @cached_property
    def added(self) -> Any:
        """The bias with an axis of heads, or None."""
        return None if self.bias is None else self.xp.reshape(self.bias, (-1, *self.bias.shape[-2:]))

    @cached_property
    def positional(self) -> Any:
        """The bias where it is finite, or None where it only hides."""
        if self.added is None:
            return None
        finite = self.xp.where(self.added > -self.xp.inf, self.added, self.xp.zeros_like(self.added))
        return finite if bool(self.xp.any(finite != 0)) else None

    @cached_property
    def seen(self) -> Any:
        """Ones for what is seen, (heads, rows, tokens); None where all is."""
        if self.added is None:
            return None
        numbers = self.xp.astype(self.added > -self.xp.inf, self.added.dtype)
        return self.xp.broadcast_to(numbers, (numbers.shape[0], *self.shape))

    @cached_property
    def row_counts(self) -> Any:
        """Number of keys that each row sees, (heads, rows)."""
        if self.seen is None:
            return self.new(self.xp.full, (1, self.shape[0]), float(self.shape[1]))
        return self.xp.sum(self.seen, axis=2)

    @cached_property
    def column_counts(self) -> Any:
        """Number of rows that see each key, (heads, tokens)."""
        if self.seen is None:
            return self.new(self.xp.full, (1, self.shape[1]), float(self.shape[0]))
        return self.xp.sum(self.seen, axis=1)

    @cached_property
    def even(self) -> Any:
        """What each key gets from the rows that see it if these spread their attention evenly, (heads, tokens)."""
        shares = 1 / positive(self.row_counts)
        if self.seen is None:
            return self.xp.broadcast_to(shares[:, :1], (1, self.shape[1]))
        return self.xp.matmul(shares[:, None, :], self.seen)[:, 0] / positive(self.column_counts)

    @cached_property
    def busy(self) -> Any:
        """Weights of rows in means over rows, (heads, rows): those with a choice, and all if none has."""
        enough = self.row_counts >= min(FEWEST, self.shape[1])
        some = self.xp.any(enough, axis=-1, keepdims=True)
        weights = self.xp.astype(enough | ~some, self.row_counts.dtype)
        return weights / self.xp.sum(weights, axis=-1, keepdims=True)

    @cached_property
    def near(self) -> Any:
        """Ones where a key is near its row and seen, (heads, rows, tokens)."""
        band = self.xp.tril(self.xp.triu(self.new(self.xp.ones, self.shape), k=-NEAR), k=NEAR)
        return band[None] if self.seen is None else band * self.seen

    @cached_property
    def same(self) -> Any:
        """Ones where another key has the row's own token and is seen, (heads, rows, tokens)."""
        equal = self.xp.astype(self.ids[:, None] == self.ids[None, :], self.row_counts.dtype)
        equal = equal - self.new(self.xp.eye, self.shape[0])
        return equal[None] if self.seen is None else equal * self.seen

    @cached_property
    def stripes(self) -> Any:
        """Share of the busy rows that have a key at each offset up to half of the tokens, (heads, offsets)."""
        reach = self.shape[1] // 2
        up = self.xp.cumulative_sum(self.busy, axis=-1)  # rows up to i
        down = 1 - up + self.busy  # rows from i on
        later = self.xp.flip(up[:, self.shape[0] - 1 - reach :], axis=-1)  # offset k >= 0: rows up to T - 1 - k
        earlier = self.xp.flip(down[:, 1 : reach + 1], axis=-1)  # offset -k: rows from k on
        return self.xp.clip(self.xp.concat([earlier, later], axis=-1), 1e-9, None)

    def total(self, values: Any) -> Any:
        """Sums over the keys that each row sees.

        Parameters
        ----------
        values : array of shape (heads, tokens)
            A number for each key.

        Returns
        -------
        array of shape (heads, rows)
            The sums.
        """
        if self.seen is None:
            sums = self.xp.sum(values, axis=-1, keepdims=True)
            return self.xp.broadcast_to(sums, (values.shape[0], self.shape[0]))
        return self.xp.matmul(self.seen, values[..., None])[..., 0]


def positive(values: Any) -> Any:
    """Denominators: ones in the place of zeros.

    Parameters
    ----------
    values : array
        Numbers that are not negative.

    Returns
    -------
    array
        The same without zeros.
    """
    xp = array_namespace(values)
    return xp.where(values > 0, values, xp.ones_like(values))
