"""Scores of the heads of a layer, as many at a time as are quick to work on, with who sees whom worked out once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from array_api_compat import array_namespace

from bulkedge.heads.sight import Sight
from bulkedge.threads import one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from bulkedge.models.attending import Layer

T = TypeVar("T")
AT_ONCE = {"cpu": 2**20, "elsewhere": 2**26}
"""Scores at a time: what a processor's cache holds, or what keeps a GPU busy."""


class Scores(NamedTuple):
    """Heads of the first sequence of a layer."""

    products: Tensor
    """``scale q . k`` in double precision, (heads, rows, tokens)."""
    sight: Sight
    """Who sees whom, and what is added to the scores."""
    factors: tuple[Tensor, Tensor]
    """Queries with the scale, and keys: their products are those."""
    layer: Layer
    """Of which these are some heads."""
    sinks: Tensor | None
    """Scores of sinks outside of the keys, one a head, or None."""

    @property
    def content(self) -> Tensor:
        """The products, under the cap of the layer if it has one."""
        return self.layer.capped(self.products)


def for_heads(work: Callable[..., T], layer: Layer, ids: Any = None, along: Any = None) -> list[T]:
    """Do something with the scores of the heads of a layer; on a processor, with as many at once as torch has threads.

    Parameters
    ----------
    work : callable
        Takes the :class:`Scores` of some heads, and the rows of ``along`` that are theirs where it is given.
    layer : Layer
        A layer.
    ids : Tensor of shape (tokens,), optional
        Token of every position, where rows and keys are of one sequence.
    along : array, optional
        A row for every head, from the first on; heads that have none are left out.

    Returns
    -------
    list
        What the work returned, portion by portion, in the order of heads.
    """
    import torch

    portions = _Portions.of(layer, ids, None if along is None else len(along))

    def portion(heads: slice) -> T:
        scores = portions.scores(heads)
        return work(scores) if along is None else work(scores, along[heads])

    if layer.query.device.type != "cpu":
        return [portion(each) for each in portions.slices]
    workers = torch.get_num_threads()
    # one thread for each head goes further than all threads for one head after another
    with one_thread(("torch",)), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(portion, portions.slices))


class _Portions(NamedTuple):
    """The heads of a layer, cut into slices."""

    layer: Layer
    ids: Any
    bias: Any
    shared: Sight | None
    slices: tuple[slice, ...]

    @classmethod
    def of(cls, layer: Layer, ids: Any, limit: int | None) -> _Portions:
        heads, rows, tokens = layer.query.shape[1], layer.query.shape[2], layer.key.shape[2]
        count = heads if limit is None else min(limit, heads)
        step = max(1, AT_ONCE["cpu" if layer.query.device.type == "cpu" else "elsewhere"] // (rows * tokens))
        bias = layer.bias()
        bias = bias[0] if bias is not None and bias.ndim == 4 else bias
        apart = bias is not None and bias.ndim == 3 and bias.shape[0] > 1
        like = layer.query[0, :1, :1, :1].double()
        shared = None if apart else Sight(array_namespace(like), (rows, tokens), bias, ids, like)
        slices = tuple(slice(start, min(start + step, count)) for start in range(0, count, step))
        return cls(layer, ids, bias, shared, slices)

    def scores(self, heads: slice) -> Scores:
        query, key = self.layer.scale * self.layer.query[0, heads].double(), self.layer.key[0, heads].double()
        products = query @ key.mT
        sight = self.shared or Sight.of(products, self.bias[heads], self.ids)
        sinks = None if self.layer.sinks is None else self.layer.sinks[heads].double()
        return Scores(products, sight, (query, key), self.layer, sinks)
