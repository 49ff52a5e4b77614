"""What a mask is that was written as a matrix: a window, chunks, or neither.

>>> from bulkedge.visibility.masks import Mask
>>> structure(Mask.of(Mask.window(100, width=9, after=4).visible())), structure(Mask.chunks(100, width=30))
(Window(width=9, after=4), Chunks(width=30, causal=False))
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bulkedge.visibility.masks import FullMask, Mask, WindowMask


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
