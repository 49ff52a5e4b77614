"""What of attention matrices comes from preferences that all rows share, for all heads of a layer at once.

Rows that agree on the keys but do not see the same ones differ only by what they see: row i gives
``x_j / (sum of x over the keys that it sees)`` to key j. The likeliest x for given matrices is that of the model of
Plackett and Luce, and is found by its minorisation: ``x_j = (column sum)_j / (sum over rows that see j of 1/sum x)``.

>>> rng = np.random.default_rng(0)
>>> x = rng.uniform(size=20)
>>> seen = np.tri(20)[None]
>>> attention = seen * x / (seen * x).sum(axis=-1, keepdims=True)
>>> columns = Columns.of(attention, seen > 0)
>>> bool(abs(columns.on(np.ones((1, 20, 20))) - 1).max() < 1e-12)
True
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace

ROUNDS = 12
"""Rounds of the fit behind a mask; without one the first is exact."""


class Columns(NamedTuple):
    """The matrices whose rows share their preferences that are likeliest to give those of some heads."""

    x: Any
    """Preferences, (heads, tokens)."""
    totals: Any
    """Sums of the preferences that each row sees, (heads, rows)."""
    seen: Any
    """Ones for what is seen, (heads or 1, rows, tokens), or None for all."""

    @classmethod
    def of(cls, attention: Any, seen: Any = None) -> Columns:
        """Fit common preferences.

        Parameters
        ----------
        attention : array of shape (heads, rows, tokens)
            Attention matrices; rows sum to one, or are zero.
        seen : array of booleans, optional
            Who sees whom, (heads or 1, rows, tokens); all see all unless given.

        Returns
        -------
        Columns
            The fit.
        """
        xp = array_namespace(attention)
        sums = xp.sum(attention, axis=1)
        taken = xp.clip(xp.sum(attention, axis=2), None, 1.0)  # zero for rows that see nothing
        if seen is None:
            return cls(sums / xp.sum(sums, axis=-1, keepdims=True), xp.ones_like(taken), None)
        seen = xp.astype(seen, attention.dtype)
        x = sums
        for _ in range(ROUNDS):
            totals = positive(xp.matmul(seen, x[..., None])[..., 0])
            x = sums / positive(xp.matmul(xp.matrix_transpose(seen), (taken / totals)[..., None])[..., 0])
        return cls(x, positive(xp.matmul(seen, x[..., None])[..., 0]), seen)

    def on(self, weights: Any) -> Any:
        """What rows of the fitted matrices put on some keys.

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
        """Sums of the squares of the rows of the fitted matrices.

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
