"""Scores of the heads of a layer, as many at a time as are quick to work on, with who sees whom worked out once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from array_api_compat import array_namespace

from bulkedge.heads.measures.layer_visibility import LayerVisibility
from bulkedge.heads.measures.singular_values import COMPUTED
from bulkedge.spectra.operators import AttentionOperator, Operator
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread

if TYPE_CHECKING:
    from torch import Tensor

    from bulkedge.models.hooks.attention_inputs import Layer

T = TypeVar("T")
AT_ONCE = {"cpu": 2**20, "elsewhere": 2**26}
"""Scores at a time: what a processor's cache holds, or what keeps a GPU busy. A head that has more is read in blocks of
rows."""


class Scores(NamedTuple):
    """Some heads of the first sequence of a layer."""

    layer: Layer
    sight: LayerVisibility
    """Who sees whom, and what is added to the scores; its blocks are the rows that are held at a time."""
    factors: tuple[Tensor, Tensor]
    """Queries with the scale, (heads, rows, dim), and keys, in double precision."""
    sinks: Tensor | None
    """Scores of sinks outside of the keys, one a head, or None."""

    def products(self, rows: slice = slice(None)) -> Tensor:
        """``scale q . k`` of some rows."""
        return self.factors[0][:, rows] @ self.factors[1].mT

    def content(self, rows: slice = slice(None)) -> Tensor:
        """The products, under the cap of the layer if it has one."""
        return self.layer.capped(self.products(rows))

    def operator(self, times: Tensor | None = None) -> Callable[[int], Operator] | None:
        """Operators of the attention matrices, where the library has one for such scores."""
        mask = self.layer.structure
        if mask is None or self.layer.softcap is not None:
            return None
        query, key = self.factors
        query = query if times is None else times[:, None, None] * query
        kind = query.dtype if query.device.type == "cpu" else query.new_empty(0).float().dtype
        return lambda head: AttentionOperator(query[head].to(kind), key[head].to(kind), 1.0, mask)


def for_heads(
    work: Callable[..., T], layer: Layer, ids: Any = None, along: Any = None, label: str = "heads"
) -> list[T]:
    """Work on the scores of the heads of a layer; on a CPU, as many at once as torch has threads."""
    import torch

    portions = _Portions.of(layer, ids, None if along is None else len(along))

    def portion(heads: slice) -> T:
        scores = portions.scores(heads)
        return work(scores) if along is None else work(scores, along[heads])

    if portions.long:
        return [portion(each) for each in track(portions.slices, f"{label} of {layer.name}")]
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
    height: int
    """Rows that are held at a time."""
    shared: LayerVisibility | None
    """None where heads do not see the same."""
    slices: tuple[slice, ...]

    @classmethod
    def of(cls, layer: Layer, ids: Any, limit: int | None) -> _Portions:
        heads, rows, tokens = layer.query.shape[1], layer.query.shape[2], layer.key.shape[2]
        count = heads if limit is None else min(limit, heads)
        most = AT_ONCE["cpu" if layer.query.device.type == "cpu" else "elsewhere"]
        step = 1 if max(rows, tokens) > COMPUTED else max(1, most // (rows * tokens))
        height = max(1, min(rows, most // tokens))
        first = _bias(layer, slice(0, 1))
        apart = first is not None and first.ndim == 3 and first.shape[0] > 1
        shared = None if apart else _sight(layer, ids, height, None)
        slices = tuple(slice(start, min(start + step, count)) for start in range(0, count, step))
        return cls(layer, ids, height, shared, slices)

    @property
    def long(self) -> bool:
        """Whether heads are done one after the other, each with all threads."""
        return max(self.layer.query.shape[2], self.layer.key.shape[2]) > COMPUTED

    def scores(self, heads: slice) -> Scores:
        query, key = self.layer.scale * self.layer.query[0, heads].double(), self.layer.key[0, heads].double()
        sight = self.shared or _sight(self.layer, self.ids, self.height, heads)
        sinks = None if self.layer.sinks is None else self.layer.sinks[heads].double()
        return Scores(self.layer, sight, (query, key), sinks)


def _bias(layer: Layer, rows: slice) -> Any:
    """What is added to the scores of some rows of the first sequence."""
    bias = layer.bias(rows)
    return bias[0] if bias is not None and bias.ndim == 4 else bias


def _sight(layer: Layer, ids: Any, height: int, heads: slice | None) -> LayerVisibility:
    """Who sees whom, for all heads or some."""
    like = layer.query[0, :1, :1, :1].double()
    shape = (layer.query.shape[2], layer.key.shape[2])

    def bias(rows: slice) -> Any:
        found = _bias(layer, rows)
        return found if heads is None else found[heads]

    hidden = _bias(layer, slice(0, 1)) is not None
    return LayerVisibility(array_namespace(like), shape, bias if hidden else None, ids, like, height)
