"""Scores of the heads of a layer, as many at a time as are quick to work on, with who sees whom worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bulkedge.heads.sight import Sight

if TYPE_CHECKING:
    from torch import Tensor

    from bulkedge.models.layers import Layer

AT_ONCE = {"cpu": 2**20, "elsewhere": 2**26}
"""Scores at a time: what a processor's cache holds, or what keeps a GPU busy."""


class Scores(NamedTuple):
    """Heads of the first sequence of a layer."""

    content: Tensor
    """``scale q . k`` in double precision, (heads, rows, tokens)."""
    sight: Sight
    """Who sees whom, and what is added to the scores."""
    factors: tuple[Tensor, Tensor]
    """Queries with the scale, and keys: the content is their products."""


def scores_of(layer: Layer, ids: Any = None, limit: int | None = None) -> Iterator[Scores]:
    """Scores of the heads of a layer, portion by portion.

    Parameters
    ----------
    layer : Layer
        A layer.
    ids : Tensor of shape (tokens,), optional
        Token of every position, where rows and keys are of one sequence.
    limit : int, optional
        How many heads at most; all by default.

    Yields
    ------
    Scores
        Of the next heads.
    """
    heads, rows, tokens = layer.query.shape[1], layer.query.shape[2], layer.key.shape[2]
    count = heads if limit is None else min(limit, heads)
    step = max(1, AT_ONCE["cpu" if layer.query.device.type == "cpu" else "elsewhere"] // (rows * tokens))
    bias = layer.bias()
    bias = bias[0] if bias is not None and bias.ndim == 4 else bias
    apart = bias is not None and bias.ndim == 3 and bias.shape[0] > 1
    shared: Sight | None = None
    for start in range(0, count, step):
        chosen = slice(start, min(start + step, count))
        query, key = layer.scale * layer.query[0, chosen].double(), layer.key[0, chosen].double()
        content = query @ key.mT
        if apart and bias is not None:
            sight = Sight.of(content, bias[chosen], ids)
        else:
            sight = shared = shared or Sight.of(content, bias, ids)
        yield Scores(content, sight, (query, key))
