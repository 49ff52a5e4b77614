"""Masks of attention by name and size, and their uniform mean.

Attention with scores that say nothing attends evenly to what its mask leaves: the **mean matrix** C of the mask, row i
uniform on the keys that query i sees. It is what the theory subtracts before it speaks of a bulk, and its singular
values are the outliers that any head has, whatever it learned: one for a full mask, a whole family for a causal one.

>>> Mask.causal(4).mean()[2].round(3).tolist()
[0.333, 0.333, 0.333, 0.0]
>>> Mask.full(50).singular_values().tolist(), Mask.causal(400).singular_values(3).round(3).tolist()
([1.0], [1.709, 1.211, 0.855])
>>> (Mask.causal(4) & Mask.padding([True, True, False, True])).counts().tolist()
[1, 2, 2, 3]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import ArrayLike
from scipy.linalg import eigh_tridiagonal

from bulkedge.support import arrays
from bulkedge.support.arrays import Real
from bulkedge.support.domains import POSITIVE, Integers, refused, shown, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility.hidden import seen_keys

TOKENS = Integers(1, 2**31)
DENSE = 20_000  # rows or columns up to which a mask is written out as a matrix


class Mask(ABC):
    """Which keys each query attends to; every query sees at least one key.

    >>> Mask.window(5, width=2).counts(), Mask.of([[True, False], [True, True]]).mean().tolist()
    (array([1, 2, 2, 2, 2]), [[1.0, 0.0], [0.5, 0.5]])

    Attributes
    ----------
    queries, keys : int
        Rows and columns.
    """

    queries: int
    keys: int

    # -- what a mask supplies ------------------------------------------------------------------------------------------

    @abstractmethod
    def _visible(self) -> arrays.BoolArray:
        """The mask as a boolean matrix, queries x keys."""

    @abstractmethod
    def counts(self) -> Any:
        """How many keys each query sees, a whole number for each row."""

    @property
    def uniform(self) -> bool:
        """Whether all queries see the same keys, so that the mean matrix has equal rows."""
        return False

    def singular_values(self, most: int | None = None) -> Real:
        """The largest singular values of the mean matrix, in decreasing order.

        Parameters
        ----------
        most : int, optional
            How many; all that are not zero by default.

        Returns
        -------
        array
            Singular values of :meth:`mean`.
        """
        values = np.linalg.svd(self.mean(), compute_uv=False)
        return values[values > 1e-12 * values[0]][:most]

    # -- what follows --------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.queries, self.keys

    def visible(self, like: Any = None) -> Any:
        """The mask as a boolean matrix: True where query i (row) sees key j (column).

        Parameters
        ----------
        like : array, optional
            An array on whose backend and device to put it; NumPy by default.

        Returns
        -------
        array of shape (queries, keys)
            Booleans.
        """
        if max(self.shape) > DENSE:
            raise DomainError(f"a mask of shape {self.shape} is not written out: at most {DENSE} rows and columns")
        return _on_backend_of(self._visible(), like)

    def mean(self, like: Any = None) -> Any:
        """The uniform mean matrix C: row i is constant on the keys that query i sees, and sums to one.

        Parameters
        ----------
        like : array, optional
            A tensor whose device and floating type to use; a NumPy array of float64 by default.

        Returns
        -------
        array of shape (queries, keys)
            ``1/counts[i]`` where query i sees key j, and zero elsewhere.

        Raises
        ------
        DomainError
            If the mask has more than :data:`DENSE` rows or columns.
        """
        return _on_backend_of(self.visible() / self.counts()[:, None], like)

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask) or other.shape != self.shape:
            raise DomainError(f"other = {shown(other)} is no mask of shape {self.shape}: masks of one shape combine")
        return BooleanMask(self.visible() & other.visible())

    # -- the masks -----------------------------------------------------------------------------------------------------

    @staticmethod
    def full(tokens: int) -> Mask:
        """Every token sees every token.

        Parameters
        ----------
        tokens : int
            Number of queries and of keys.

        Returns
        -------
        Mask
            Square; its mean matrix is ``1 1'/tokens``, of rank one.
        """
        tokens = TOKENS.check("tokens", tokens)
        return FullMask(tokens, tokens)

    @staticmethod
    def cross(queries: int, keys: int) -> Mask:
        """Every query sees every key of another sequence.

        Parameters
        ----------
        queries : int
            Number of rows: tokens that look.
        keys : int
            Number of columns: tokens of the other sequence, which are looked at.

        Returns
        -------
        Mask
            Of shape (queries, keys).
        """
        return FullMask(queries, keys)

    @staticmethod
    def causal(tokens: int) -> Mask:
        """A token sees itself and those before it.

        Parameters
        ----------
        tokens : int
            Number of queries and of keys.

        Returns
        -------
        Mask
            Query i sees the keys j <= i; its mean is the Cesaro matrix.
        """
        return WindowMask(tokens, tokens)

    @staticmethod
    def window(tokens: int, width: int, after: int = 0) -> Mask:
        """A token sees ``width`` tokens: itself, ``after`` tokens after it, and the others before it.

        Parameters
        ----------
        tokens : int
            Number of queries and of keys.
        width : int
            How many keys a token sees, itself included; the first tokens see fewer. One is the identity, ``tokens`` and
            more the causal mask.
        after : int, optional
            How many of them follow the token, below ``width``; ``(width - 1)/2`` for as many as come before it.

        Returns
        -------
        Mask
            Query i sees the keys j with ``i - width < j - after <= i``.
        """
        if Integers(0, TOKENS.high).check("after", after) == 0:
            return WindowMask(tokens, width)
        if after >= TOKENS.check("width", width):
            raise DomainError(f"after = {after} is outside its domain: below width = {width}")
        return BooleanMask(_band(TOKENS.check("tokens", tokens), width, after))

    @staticmethod
    def chunks(tokens: int, width: int, *, causal: bool = False) -> Mask:
        """Tokens see their own chunk of the sequence, and nothing of the others.

        Parameters
        ----------
        tokens : int
            Number of queries and of keys.
        width : int
            Tokens in a chunk; the last one may have fewer.
        causal : bool, optional
            Whether tokens see those of their chunk that come before them, and not those that follow.

        Returns
        -------
        Mask
            Blocks along the diagonal.

        Examples
        --------
        >>> Mask.chunks(5, width=2).counts().tolist(), Mask.chunks(5, width=3, causal=True).counts().tolist()
        ([2, 2, 2, 2, 1], [1, 2, 3, 1, 2])
        """
        chunk = np.arange(TOKENS.check("tokens", tokens)) // TOKENS.check("width", width)
        alike = np.equal.outer(chunk, chunk)
        return BooleanMask(np.tril(alike) if causal else alike)

    @staticmethod
    def padding(visible: ArrayLike, queries: int | None = None) -> Mask:
        """Keys that are padding are seen by none; as many queries as keys by default.

        Parameters
        ----------
        visible : array_like of bool, shape (keys,)
            True for tokens of the sequence, False for padding; numbers are refused, since some libraries write 0 for
            visible.
        queries : int, optional
            Number of rows; as many as there are keys by default. Queries at padding are rows like any other.

        Returns
        -------
        Mask
            Every query sees the same keys. With ``&`` it joins another mask.
        """
        keys = _booleans("visible", visible)
        if keys.ndim != 1:
            raise DomainError(f"visible must be a vector, one boolean for each key; got shape {keys.shape}")
        rows = len(keys) if queries is None else TOKENS.check("queries", queries)
        return BooleanMask(np.broadcast_to(keys, (rows, len(keys))))

    @staticmethod
    def of(visible: Any) -> Mask:
        """Any boolean matrix: True where query i (row) sees key j (column).

        Parameters
        ----------
        visible : array_like of bool, shape (queries, keys)
            True where the query of the row sees the key of the column; every row needs one True at least.

        Returns
        -------
        Mask
            A mask that keeps the whole matrix; the named masks do not, and are quicker.
        """
        return BooleanMask(visible)

    @staticmethod
    def additive(mask: Any) -> Mask:
        """A matrix that is added to scores: 0 for keys that are seen, and very negative for those that are not.

        Parameters
        ----------
        mask : array_like of float, shape (queries, keys)
            A key is hidden where the mask is at least 9000 below the largest entry of its row: ``-1e4``, ``-1e9``, the
            least number of a type and minus infinity all hide. A row whose largest entry is at most -9000 sees no key,
            and is refused; so is a bias for keys that are seen.

        Returns
        -------
        Mask
            Who sees whom.

        Examples
        --------
        >>> Mask.additive(np.array([[0.0, -1e9], [0.0, 0.0]])).counts().tolist()
        [1, 2]
        """
        given = _array("mask", mask, "numbers")
        if given.ndim != 2 or given.dtype.kind != "f":
            raise DomainError(
                f"mask has shape {given.shape} and holds {given.dtype}; give a matrix, queries x keys, of floating "
                "numbers that are added to scores"
            )
        seen = seen_keys(given)
        if np.any(given[seen] != 0):
            raise DomainError(f"mask = {shown(given)} adds a bias to seen keys; a Mask only hides: give 0 there")
        return BooleanMask(seen)


def _array(name: str, given: Any, kind: str) -> Any:
    try:
        return arrays.as_numpy(given)
    except ValueError as error:
        raise DomainError(f"{name} = {shown(given)} is not an array of {kind}: {error}") from None


def _booleans(name: str, given: Any) -> Any:
    """The argument as an array of booleans; numbers are not taken for them, since 0 may mean visible elsewhere."""
    array = _array(name, given, "booleans")
    if array.dtype != bool:
        raise DomainError(f"{name} = {shown(given)} must be booleans, True where a key is seen; it holds {array.dtype}")
    return array


def _on_backend_of(matrix: Any, like: Any) -> Any:
    """A matrix on the backend and device of another array, and of its type unless it is boolean."""
    if like is None or isinstance(like, np.ndarray):
        return matrix
    dtype = None if matrix.dtype == bool else like.dtype
    # torch warns of arrays that may not be written to, as masks keep theirs
    own = matrix if matrix.flags.writeable else matrix.copy()
    return array_namespace(like).asarray(own, dtype=dtype, device=like.device)


@dataclass(frozen=True)
class FullMask(Mask):
    """Every query sees every key."""

    queries: int
    keys: int

    def __post_init__(self) -> None:
        for name in ("queries", "keys"):
            object.__setattr__(self, name, TOKENS.check(name, getattr(self, name)))

    def _visible(self) -> arrays.BoolArray:
        return np.ones(self.shape, dtype=bool)

    def counts(self) -> Any:
        """All of them."""
        return np.full(self.queries, self.keys)

    @property
    def uniform(self) -> bool:
        """All rows are alike."""
        return True

    def singular_values(self, most: int | None = None) -> Real:
        """One: ``sqrt(queries/keys)``, since C is ``1 1'/keys``."""
        return np.array([np.sqrt(self.queries / self.keys)])[:most]


def _band(tokens: int, width: int, after: int = 0) -> arrays.BoolArray:
    """Which keys tokens see in a window, ``after`` of whose keys follow the token."""
    if tokens > DENSE:
        raise DomainError(f"a mask of {tokens} tokens is not written out: at most {DENSE} rows and columns")
    distance = np.subtract.outer(np.arange(tokens), np.arange(tokens)) + after
    return np.asarray((distance >= 0) & (distance < width))


@dataclass(frozen=True)
class WindowMask(Mask):
    """A token sees itself and the ``width - 1`` tokens before it; with ``width = tokens``, all of those: causal."""

    tokens: int
    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", TOKENS.check("tokens", self.tokens))
        object.__setattr__(self, "width", min(TOKENS.check("width", self.width), self.tokens))

    @property
    def queries(self) -> int:  # type: ignore[override]
        """As many as tokens."""
        return self.tokens

    @property
    def keys(self) -> int:  # type: ignore[override]
        """As many as tokens."""
        return self.tokens

    @property
    def uniform(self) -> bool:
        """A single token sees what all tokens see."""
        return self.tokens == 1

    @property
    def unlimited(self) -> bool:
        """Whether the window always reaches back to the first token, as causal attention does."""
        return self.width == self.tokens

    def _visible(self) -> arrays.BoolArray:
        return _band(self.tokens, self.width)

    def counts(self) -> Any:
        """One more for each row, up to the width."""
        return np.minimum(np.arange(1, self.tokens + 1), self.width)

    def singular_values(self, most: int | None = None) -> Real:
        """The largest singular values of the mean; of a causal mask, those of the Cesaro matrix."""
        if not self.unlimited:
            return super().singular_values(most)
        count = self.tokens if most is None else TOKENS.check("most", most)
        return prefix_mean_values(self.tokens, min(count, self.tokens))


@takes(tokens=TOKENS, count=TOKENS, popularity=POSITIVE)
def prefix_mean_values(tokens: int, count: int, popularity: Real | None = None) -> Real:
    """Largest singular values of the mean of causal attention whose columns have popularity ``pi_j``."""
    # Row i is pi_j/(pi_1 + ... + pi_i) on 1 to i, the Cesaro matrix for equal popularities. Its inverse is bidiagonal,
    # with (pi_1 + ... + pi_i)/pi_i on the diagonal: i and, beside it, 1 - i for equal ones. The eigenvalues of its
    # symmetric dilation, a tridiagonal matrix without diagonal, come to full relative accuracy by bisection (Demmel and
    # Kahan 1990).
    off = np.repeat(np.arange(1.0, tokens + 1), 2)[:-1]
    if popularity is not None:
        if np.shape(popularity) != (tokens,):
            raise DomainError(f"popularity has shape {np.shape(popularity)}: give a number for each of {tokens} tokens")
        upto = np.cumsum(popularity)
        off[::2], off[1::2] = upto / popularity, upto[:-1] / popularity[1:]
    middle = (tokens, tokens + count - 1)
    values = eigh_tridiagonal(np.zeros(2 * tokens), off, eigvals_only=True, select="i", select_range=middle)
    return np.asarray(1 / values)


@dataclass(frozen=True, eq=False)
class BooleanMask(Mask):
    """Any boolean matrix, True where query i (row) sees key j (column)."""

    matrix: Any

    def __post_init__(self) -> None:
        matrix = _booleans("visible", self.matrix)
        if matrix.ndim != 2 or not matrix.size:
            raise DomainError(f"visible must be a matrix, queries x keys; got shape {matrix.shape}")
        blind = np.flatnonzero(~matrix.any(axis=1))
        if blind.size:
            raise DomainError(f"queries {blind[:5].tolist()} see no key, so their attention is not defined")
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)

    @property
    def queries(self) -> int:  # type: ignore[override]
        """Rows."""
        return len(self.matrix)

    @property
    def keys(self) -> int:  # type: ignore[override]
        """Columns."""
        return self.matrix.shape[1]

    def _visible(self) -> arrays.BoolArray:
        return np.asarray(self.matrix)

    def counts(self) -> Any:
        """Row sums."""
        return self.matrix.sum(axis=1)

    @property
    def uniform(self) -> bool:
        """Whether all rows are alike."""
        return bool(np.all(self.matrix == self.matrix[0]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BooleanMask) and np.array_equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash((self.shape, self.matrix.tobytes()))

    def __repr__(self) -> str:
        return f"BooleanMask({self.queries} x {self.keys}, {self.matrix.mean():.1%} visible)"


MASKS: dict[str, Callable[[int], Mask]] = {"full": Mask.full, "causal": Mask.causal}  # masks that a name makes


class MaskOrName:
    """Domain of masks: the name of one, or a :class:`Mask`."""

    def check(self, name: str, value: Any) -> Any:
        """Return the name or the mask, or raise."""
        if isinstance(value, Mask) or (isinstance(value, str) and value in MASKS):
            return value
        raise refused(name, value, self)

    def parse(self, name: str, text: str) -> Any:
        """Read the name of a mask."""
        return self.check(name, text)

    def __str__(self) -> str:
        return "{" + ", ".join(map(repr, MASKS)) + "} or a Mask"


@takes(tokens=TOKENS)
def mask_for(mask: str | Mask, tokens: int) -> Mask:
    """The mask of that name for so many tokens, or the mask itself if it is for so many."""
    MaskOrName().check("mask", mask)
    made = MASKS[mask](tokens) if isinstance(mask, str) else mask
    if made.shape != (tokens, tokens):
        raise DomainError(f"mask = {mask!r} is for {made.shape} queries and keys; there are {tokens} tokens")
    return made


def hidden_patches(mask: Mask, start: int, stop: int, like: Any) -> tuple[slice, list[tuple[slice, Any]]]:
    """What the rows from ``start`` to before ``stop`` do not see."""
    if isinstance(mask, FullMask):
        return slice(0, mask.keys), []
    xp = array_namespace(like)
    if not isinstance(mask, WindowMask):
        return slice(0, mask.keys), [(slice(0, mask.keys), ~visible_rows(mask, start, stop, like))]
    first, rows = max(0, start - mask.width + 1), stop - start
    row, column = (xp.arange(rows, device=device(like))[shape] for shape in ((slice(None), None), (None, slice(None))))
    # a row does not see the keys after it; nor, from the left end on, those that the row before it was the last to see
    patches = [(slice(start - first, stop - first), column > row)]
    gone = stop - mask.width - first
    if gone > 0:
        shift = start - mask.width + 1 - first
        patches.append((slice(0, gone), column[:, :gone] < row + shift))
    return slice(first, stop), patches


def visible_rows(mask: Mask, start: int, stop: int, like: Any) -> Any:
    """Some rows of the boolean matrix of a mask."""
    return array_namespace(like).asarray(mask.visible()[start:stop].copy(), device=device(like))
