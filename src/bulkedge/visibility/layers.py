"""Who sees whom in one attention of a model: behind a mask, without the future, inside of a window, or in chunks.

>>> import numpy as np
>>> layer = Visibility(np.triu(np.full((4, 4), -1e9), 1), causal=False, window=None, rows=4, keys=4)
>>> layer.additive(slice(1, 2), np.ones(1)).tolist()
[[0.0, 0.0, -inf, -inf]]
>>> layer.simplified(), layer.simplified().structure                # the mask is written out and says: causal
(Visibility(mask=None, causal=True, window=None, rows=4, keys=4), WindowMask(tokens=4, width=4))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from bulkedge.visibility.hidden import additive, seen_keys
from bulkedge.visibility.masks import FullMask, Mask, WindowMask

ENTRIES = 2**26  # entries of a mask that are taken at a time


class Visibility(NamedTuple):
    """What a mask shows that is neither in the future, if that is hidden, nor outside of the window."""

    mask: Any  # booleans or additive numbers; broadcasts to (batch, heads, rows, keys). None for no mask
    causal: bool
    window: int | None  # number of keys before and with its own that a row sees; None for all
    rows: int
    keys: int

    @property
    def alike(self) -> bool:
        """Whether all rows see the same keys."""
        return self.masks_alike and not self.causal and self.window is None

    @property
    def masks_alike(self) -> bool:
        """Whether the mask, if there is one, has the same row for all."""
        if self.mask is None or self.mask.shape[-2] == 1:
            return True
        mask = self.mask  # written once or expanded
        return bool((mask.strides[-2] if isinstance(mask, np.ndarray) else mask.stride(-2)) == 0)

    @property
    def structure(self) -> Mask | None:
        """The mask by its name, if it has one: full, causal or a window; None for any other."""
        if self.mask is not None:
            return None
        if self.alike:
            return Mask.cross(self.rows, self.keys)
        plain = self.causal and self.rows == self.keys
        return Mask.window(self.keys, self.window or self.keys) if plain else None

    def bias(self, rows: Any) -> tuple[Any, Any]:
        """What is added to the scores of some rows, in single precision, and which keys these see."""
        xp = array_namespace(rows)
        seen = self._near(rows[:, None], xp.arange(self.keys, device=device(rows)))[None, None]
        if self.mask is None:
            return None, seen
        mask = self.mask if self.mask.shape[-2] == 1 else self.mask[..., rows, :]
        shown = seen_keys(mask)
        if not xp.isdtype(mask.dtype, "real floating"):
            return None, seen & shown
        return xp.where(shown, xp.astype(mask, xp.float32), 0.0), seen & shown

    def sees(self, keys: Any, start: int, rows: int) -> Any:
        """Which of some rows see some keys."""
        xp = array_namespace(keys)
        place = xp.arange(start, start + rows, device=device(keys))[:, None]
        seen = self._near(place, keys[..., None, :])
        if self.masks_alike:
            return seen
        shown = seen_keys(self.mask[..., start : start + rows, :])
        shape = (*keys.shape[:3], rows)
        shown = xp.broadcast_to(shown, (*shape, self.keys))
        chosen = xp.broadcast_to(keys[..., None, :], (*shape, keys.shape[-1]))
        # the array standard's function looks for negative places first, which costs launches on a GPU
        return seen & (shown.gather(-1, chosen) if is_torch_array(shown) else np.take_along_axis(shown, chosen, -1))

    def additive(self, rows: slice, like: Any) -> Any:
        """What is added to the scores of some rows, minus infinity for hidden keys; None where nothing is."""
        # In double precision, on the device of an array; it broadcasts to (batch, heads, rows, keys). A row that sees
        # no key is minus infinity throughout.
        some = slice(1) if self.masks_alike else rows
        found = None if self.mask is None else additive(self.mask[..., some, :])
        if not self.causal and self.window is None:
            return found
        xp = array_namespace(like)
        numbers = xp.arange(rows.start, rows.stop, device=device(like))[:, None]
        seen = self._near(numbers, xp.arange(self.keys, device=device(like)))
        shown = xp.zeros((), dtype=xp.float64, device=device(like)) if found is None else found
        return xp.where(seen, shown, -xp.inf)

    def simplified(self) -> Visibility:
        """The same without a mask that hides nothing, or just the future, or what is outside of a window."""
        # Some implementations of attention write such a mask out, and others do not.
        mask, rule = self.mask, self._replace(mask=None)
        if mask is None or _adds(mask):
            return self
        if all(bool(seen_keys(each).all()) for each, _ in _blocks(mask)):
            return rule
        if rule.alike and self.rows == self.keys and mask.shape[-2] == self.rows:
            width = int(seen_keys(mask[..., -1, :]).reshape(-1, self.keys)[0].sum())
            written = rule._replace(causal=True, window=None if width == self.keys else width)
            if all(bool((seen_keys(each) == written.bias(numbers)[1]).all()) for each, numbers in _blocks(mask)):
                return written
        return self

    def _near(self, rows: Any, keys: Any) -> Any:
        """Whether keys are neither in the future nor outside of the window of rows; all are, where there is neither."""
        place = rows + (self.keys - self.rows)
        seen = keys <= place if self.causal else (keys >= 0) | (place < 0)
        return seen if self.window is None else seen & (keys > place - self.window)


def _blocks(mask: Any) -> Iterator[tuple[Any, Any]]:
    """Rows of a mask, some at a time, and their numbers."""
    rows, entries = mask.shape[-2], int(np.prod(mask.shape))
    height = max(1, ENTRIES * rows // max(1, entries))
    for start in range(0, rows, height):
        numbers = array_namespace(mask).arange(start, min(start + height, rows), device=device(mask))
        yield mask[..., start : start + height, :], numbers


def _adds(mask: Any) -> bool:
    """Whether a mask adds something to the scores of keys that it shows."""
    xp = array_namespace(mask)
    if not xp.isdtype(mask.dtype, "real floating"):
        return False
    return any(bool(xp.any((each != 0) & seen_keys(each))) for each, _ in _blocks(mask))


class Window(NamedTuple):
    """Tokens see so many keys about them, ``after`` of which follow the token."""

    width: int
    after: int


class Chunks(NamedTuple):
    """Tokens see their own chunk, or what comes before them in it; a mask that is all of one is one chunk."""

    width: int
    causal: bool


def structure(mask: Mask) -> Window | Chunks | None:
    """What windows or chunks a square mask is made of, if it is."""
    tokens = mask.queries
    if isinstance(mask, FullMask):
        return Chunks(tokens, causal=False)
    if isinstance(mask, WindowMask):
        return Chunks(tokens, causal=True) if mask.unlimited else Window(mask.width, 0)
    seen, counts = mask.visible(), mask.counts()
    # the first row shows what follows a token, the last one what comes before it; the first column is that of a chunk
    after, first = int(counts[0]) - 1, int(seen[:, 0].sum())
    candidates: list[Window | Chunks] = [Chunks(first, causal=False), Chunks(first, causal=True)]
    candidates.append(Window(after + int(counts[-1]), after))
    return next((each for each in candidates if np.array_equal(_made(each, tokens).visible(), seen)), None)


def _made(found: Window | Chunks, tokens: int) -> Mask:
    if isinstance(found, Chunks):
        return Mask.chunks(tokens, found.width, causal=found.causal)
    return Mask.window(tokens, *found)
