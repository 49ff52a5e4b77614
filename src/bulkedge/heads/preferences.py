"""What of attention matrices comes from preferences that all rows share, for all heads of a layer at once.

The preference x_j for key j is the attention that it gets over what it would get if every row spread its own evenly
over the keys that it sees. A row that has these preferences gives ``x_j / (sum of x over the keys that it sees)`` to
key j. Without a mask no other matrix of equal rows is closer. Behind a causal mask preferences that fit better could be
found, and are not wanted: those that grow exponentially along the sequence make heads that fade with the distance,
which is something else.

>>> rng = np.random.default_rng(0)
>>> attention = rng.dirichlet(np.ones(20), size=(1, 20))
>>> preferences = Preferences.of(attention, Sight.of(attention))
>>> bool(abs(preferences.x / 20 - attention.mean(axis=1)).max() < 1e-12)
True
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np  # noqa: F401 - for the example
from array_api_compat import array_namespace

from bulkedge.heads.sight import Sight, positive


class Preferences(NamedTuple):
    """Preferences that the rows of heads share, and the matrices whose rows have no others."""

    x: Any
    """Preferences, (heads, tokens)."""
    totals: Any
    """Sums of the preferences that each row sees, (heads, rows)."""
    keys: Any
    """Number of keys that each row sees, (heads, rows)."""
    sight: Sight

    @classmethod
    def of(cls, attention: Any, sight: Sight, kept: Any = None) -> Preferences:
        """Read common preferences off attention matrices.

        Parameters
        ----------
        attention : array of shape (heads, rows, tokens)
            Attention matrices; rows sum to one, or are zero.
        sight : Sight
            Who sees whom.
        kept : array of shape (heads, tokens), optional
            Ones for keys that count, zeros for those that were taken away; all count unless given.

        Returns
        -------
        Preferences
            The preferences.
        """
        xp = array_namespace(attention)
        sums = xp.sum(attention, axis=1)
        taken = xp.clip(xp.sum(attention, axis=2), None, 1.0)  # zero for rows that see nothing
        keys = sight.total(xp.ones_like(sums) if kept is None else kept)
        shares = taken / positive(keys)
        if sight.seen is None:
            even = xp.sum(shares, axis=-1, keepdims=True)
        else:
            even = xp.matmul(shares[:, None, :], sight.seen)[:, 0]
        x = sums / positive(even)
        return cls(x, positive(sight.total(x)), keys, sight)

    def on(self, weights: Any) -> Any:
        """What rows with these preferences and no others put on some keys.

        Parameters
        ----------
        weights : array
            Weights of keys, for each row, zero for what it does not see; it broadcasts to (heads, rows, tokens).

        Returns
        -------
        array of shape (heads, rows)
            Sums of attention times weight.
        """
        xp = array_namespace(self.x)
        return xp.matmul(weights, self.x[..., None])[..., 0] / self.totals

    def energy(self) -> Any:
        """Sums of the squares of such rows.

        Returns
        -------
        array of shape (heads, rows)
            Of rows that see nothing, zero.
        """
        return self.sight.total(self.x**2) / self.totals**2
