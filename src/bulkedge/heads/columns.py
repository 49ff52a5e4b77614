"""What of attention matrices comes from preferences that all rows share, for all heads of a layer at once.

The preference x_j for key j is the attention that it gets over what it would get if every row spread its own evenly over
the keys that it sees. A row that has these preferences gives ``x_j / (sum of x over the keys that it sees)`` to key j.
Without a mask no other matrix of equal rows is closer. Behind a causal mask preferences that fit better could be found,
and are not wanted: those that grow exponentially along the sequence make heads that fade with the distance, which is
something else.

>>> rng = np.random.default_rng(0)
>>> attention = rng.dirichlet(np.ones(20), size=(1, 20))
>>> columns = Columns.of(attention)
>>> bool(abs(columns.x / 20 - attention.mean(axis=1)).max() < 1e-12)
True
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace


class Columns(NamedTuple):
    """Preferences that the rows of heads share, and the matrices whose rows have no others."""

    x: Any
    """Preferences, (heads, tokens)."""
    totals: Any
    """Sums of the preferences that each row sees, (heads, rows)."""
    keys: Any
    """Number of keys that each row sees, (heads, rows)."""
    seen: Any
    """Ones for what is seen, (heads or 1, rows, tokens), or None for all."""

    @classmethod
    def of(cls, attention: Any, seen: Any = None, kept: Any = None) -> Columns:
        """Read common preferences off attention matrices.

        Parameters
        ----------
        attention : array of shape (heads, rows, tokens)
            Attention matrices; rows sum to one, or are zero.
        seen : array of booleans, optional
            Who sees whom, (heads or 1, rows, tokens); all see all unless given.
        kept : array of shape (heads, tokens), optional
            Ones for keys that count, zeros for those that were taken away; all count unless given.

        Returns
        -------
        Columns
            The preferences.
        """
        xp = array_namespace(attention)
        sums = xp.sum(attention, axis=1)
        taken = xp.clip(xp.sum(attention, axis=2), None, 1.0)  # zero for rows that see nothing
        kept = xp.ones_like(sums) if kept is None else kept
        if seen is None:
            keys = xp.sum(kept, axis=-1, keepdims=True) + 0 * taken
            x = sums / positive(xp.sum(taken / positive(keys), axis=-1, keepdims=True))
            return cls(x, positive(xp.sum(x, axis=-1, keepdims=True) + 0 * taken), keys, None)
        seen = xp.astype(seen, attention.dtype)
        keys = xp.matmul(seen, kept[..., None])[..., 0]
        even = xp.matmul(xp.matrix_transpose(seen), (taken / positive(keys))[..., None])[..., 0]
        x = sums / positive(even)
        return cls(x, positive(xp.matmul(seen, x[..., None])[..., 0]), keys, seen)

    def on(self, weights: Any) -> Any:
        """What rows with these preferences and no others put on some keys.

        Parameters
        ----------
        weights : array
            Weights of keys, for each row; it broadcasts to (heads, rows, tokens). What is not seen does not count.

        Returns
        -------
        array of shape (heads, rows)
            Sums of attention times weight.
        """
        xp = array_namespace(self.x)
        weights = weights if self.seen is None else weights * self.seen
        return xp.matmul(weights, self.x[..., None])[..., 0] / self.totals

    def energy(self) -> Any:
        """Sums of the squares of such rows.

        Returns
        -------
        array of shape (heads, rows)
            Of rows that see nothing, zero.
        """
        xp = array_namespace(self.x)
        squares = self.x[..., None] ** 2
        seen = xp.sum(squares, axis=1) if self.seen is None else xp.matmul(self.seen, squares)[..., 0]
        return seen / self.totals**2


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
