"""Queries and keys of every attention of a model, as its scores see them, from one forward pass.

Whatever goes through transformers' ``AttentionInterface`` is read there (:mod:`bulkedge.models.hooks.attention_hooks`)
and computed by the model's own kernel: after rotary positions and norms, with the mask, the positional bias, the scale
and the cap of the scores, and the sinks outside of the keys. Nothing is computed twice, and no attention matrix is
formed without need.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).eval()
>>> layers = capture(model, input_ids=torch.arange(10)[None])
>>> [layer.name for layer in layers], tuple(layers[0].query.shape), layers[0].causal
(['h.0.attn', 'h.1.attn'], (1, 4, 10, 8), True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from array_api_compat import array_namespace
from torch import Tensor, nn

from bulkedge.heads.measures.layer_visibility import LayerVisibility
from bulkedge.heads.measures.singular_values import COMPUTED
from bulkedge.models.hooks.attention_hooks import AttentionInputs, ForwardPass, is_compiled, observe, without_compiler
from bulkedge.models.hooks.attention_inputs import AttentionLayer, check_weights, layer_of
from bulkedge.nn import check_interface
from bulkedge.nn.patching.interface import transformers_models
from bulkedge.spectra.operators import AttentionOperator, Operator
from bulkedge.support.domains import FUNCTION, MODULE, takes
from bulkedge.support.errors import DomainError
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread, shared

T = TypeVar("T")
# scores at a time: what a processor's cache holds, or what keeps a GPU busy
AT_ONCE = {"cpu": 2**20, "elsewhere": 2**26}


@dataclass(frozen=True, eq=False)
class Visit:
    """An attention module that has just run: its heads, and the way to run it again.

    >>> layer, found = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval(), []
    >>> output = stream(layer, found.append, src=torch.ones(1, 5, 16))
    >>> [visit.layer.name for visit in found]
    ['self_attn']

    Attributes
    ----------
    layer : AttentionLayer
        Its heads.
    module : torch.nn.Module
        The module.
    inputs : Tensor
        What it was given to make queries from, of shape (batch, rows, width).
    """

    layer: AttentionLayer
    module: nn.Module
    inputs: Tensor
    _again: Callable[[nn.Module], AttentionLayer]

    def again(self, module: nn.Module | None = None) -> AttentionLayer:
        """Run the module once more on what it was given, as its parameters and hooks are now.

        Parameters
        ----------
        module : torch.nn.Module, optional
            Another one to run in its place.

        Returns
        -------
        AttentionLayer
            Its heads.
        """
        return self._again(self.module if module is None else module)


@takes(model=MODULE)
def capture(model: nn.Module, **inputs: Any) -> tuple[AttentionLayer, ...]:
    """Run a model once, without gradients, and return the queries and keys of all its attentions.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`stream`.
    **inputs : object
        What the model is called with: ``input_ids``, ``attention_mask``.

    Returns
    -------
    tuple of AttentionLayer
        In the order in which the model calls its attentions.

    Raises
    ------
    DomainError
        If no attention was seen.

    Examples
    --------
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval()
    >>> [tuple(each.query.shape) for each in capture(layer, src=torch.ones(1, 5, 16))]
    [(1, 2, 5, 8)]
    """
    found: list[AttentionLayer] = []
    stream(model, lambda visit: found.append(visit.layer), **inputs)
    return tuple(found)


@takes(model=MODULE, visit=FUNCTION)
def stream(model: nn.Module, visit: Callable[[Visit], object], **inputs: Any) -> Any:
    """Run a model once, without gradients, and show its attention modules as each has run; none is kept.

    The model is left as it was found, also after an exception.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the interface, or any module that calls
        ``torch.nn.MultiheadAttention``, ``scaled_dot_product_attention`` or ``flex_attention``; in evaluation mode, if
        its attention has dropout. Patches that it has are seen: what they make of queries and keys is what is shown.
    visit : callable
        Called with a :class:`Visit` after each attention module.
    **inputs : object
        What the model is called with: ``input_ids``, ``attention_mask``. Modules without such names take their only
        argument as ``input``.

    Returns
    -------
    object
        What the model returned.

    Raises
    ------
    DomainError
        If no attention was seen, or the model computes it past transformers' interface, or what it computes is not
        what was read.

    Examples
    --------
    >>> layer, shapes = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval(), []
    >>> output = stream(layer, lambda visit: shapes.append(tuple(visit.layer.query.shape)), src=torch.ones(1, 5, 16))
    >>> shapes
    [(1, 2, 5, 8)]
    """
    one = _Capture(model, visit)
    answer = observed_pass(model, one, inputs)
    if not one.seen:
        raise DomainError(
            f"{type(model).__name__} ran without an attention that could be read: neither transformers' "
            "AttentionInterface nor torch.nn.MultiheadAttention, scaled_dot_product_attention or flex_attention was "
            "called"
        )
    return answer


@contextmanager
def read_uncompiled(model: nn.Module, one: ForwardPass) -> Iterator[None]:
    """Show a pass what this thread calls, without the fused and compiled code that calls no modules."""
    with (
        shared("fast path", _without_fast_path),
        without_compiler() if is_compiled(model) else nullcontext(),
        observe(one),
    ):
        yield


def observed_pass(model: nn.Module, one: ForwardPass, inputs: dict[str, Any]) -> Any:
    """Run a model once, uncompiled and without gradients, and show the pass to an observer."""
    for each in transformers_models(model):
        check_interface(each)
    with torch.no_grad(), read_uncompiled(model, one):
        return model(inputs.pop("input"), **inputs) if "input" in inputs else model(**inputs)


@dataclass
class _Frame:
    """A module that is running, what it was called with, and the call of its attention."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    call: AttentionInputs | None = None


class _Capture(ForwardPass):
    """Follows a forward pass through the modules of a model, and shows each attention when it has run."""

    def __init__(self, model: nn.Module, visit: Callable[[Visit], object]) -> None:
        super().__init__(model)
        self.visit, self.seen, self.frames = visit, 0, list[_Frame]()
        self.visiting = False
        self.repeated: list[AttentionLayer] | None = None

    def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], named: Any) -> Any:
        """Run a module; those that are called by who is visiting are none of this pass."""
        if self.visiting and self.repeated is None:
            return run()
        frame = _Frame(module, arguments, named)
        self.frames.append(frame)
        try:
            answer = super().around(run, module, arguments, named)
        finally:
            self.frames.pop()
        if frame.call is not None:
            self._show(frame, layer_of(frame.call, named))
        return answer

    def attend(self, found: AttentionInputs) -> None:
        """Keep the call until its module has run."""
        running = [frame for frame in self.frames if frame.module is found.module]
        if running and running[-1].call is not None:
            raise DomainError(f"{found.name} ({type(found.module).__name__}) attends several times in one call")
        if running:
            running[-1].call = found

    def _show(self, frame: _Frame, layer: AttentionLayer) -> None:
        if self.repeated is not None:
            self.repeated.append(layer)
            return
        if frame.call is not None:
            check_weights(layer, frame.call)
        frame.call = None  # the model's own weights are not to be held while the layer is read
        self.seen += 1
        given = next(each for each in (*frame.arguments, *frame.named.values()) if hasattr(each, "shape"))
        self.visiting = True
        try:
            self.visit(Visit(layer, frame.module, given, partial(self._again, frame)))
        finally:
            self.visiting = False

    def _again(self, frame: _Frame, module: nn.Module) -> AttentionLayer:
        # a cache of earlier keys would grow: the module is to see its own keys once
        caches = ("past_key_values", "past_key_value", "layer_past")
        named = {name: None if name in caches else each for name, each in frame.named.items()}
        self.repeated, names = [], self.names
        self.names = names | {id(module): names[id(frame.module)]}
        try:
            module(*frame.arguments, **named)
            return self.repeated[-1]
        finally:
            self.repeated, self.names = None, names


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Let torch's encoders call their attention, which their fast path does not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


# -- scores of the heads of a layer ------------------------------------------------------------------------------------


class HeadScores(NamedTuple):
    """Some heads of the first sequence of a layer."""

    layer: AttentionLayer
    visibility: LayerVisibility  # who sees whom, and what is added to the scores, in blocks of rows
    factors: tuple[Tensor, Tensor]  # queries with the scale, (heads, rows, dim), and keys, in double precision
    sinks: Tensor | None  # scores of sinks outside of the keys, one a head, or None

    def products(self, rows: slice = slice(None)) -> Tensor:
        """``scale q . k`` of some rows."""
        return self.factors[0][:, rows] @ self.factors[1].mT

    def content(self, rows: slice = slice(None)) -> Tensor:
        """The products, under the cap of the layer if it has one."""
        return self.layer.cap(self.products(rows))

    def operator(self, times: Tensor | None = None) -> Callable[[int], Operator] | None:
        """Operators of the attention matrices, where the library has one for such scores."""
        mask = self.layer.structure
        if mask is None or self.layer.softcap is not None:
            return None
        query, key = self.factors
        query = query if times is None else times[:, None, None] * query
        kind = query.dtype if query.device.type == "cpu" else query.new_empty(0).float().dtype
        return lambda head: AttentionOperator(query[head].to(kind), key[head].to(kind), 1.0, mask)


def map_heads(
    work: Callable[..., T], layer: AttentionLayer, ids: Any = None, along: Any = None, label: str = "heads"
) -> list[T]:
    """Work on the scores of the heads of a layer, some at a time, each with its entry of ``along`` if that is given."""
    heads, rows, tokens = layer.query.shape[1], layer.query.shape[2], layer.key.shape[2]
    count = heads if along is None else min(len(along), heads)
    on_cpu, long = layer.query.device.type == "cpu", max(rows, tokens) > COMPUTED
    most = AT_ONCE["cpu" if on_cpu else "elsewhere"]
    step = 1 if long else max(1, most // (rows * tokens))
    height = max(1, min(rows, most // tokens))
    first = _bias(layer, slice(0, 1))  # who sees whom is worked out once, unless it differs from head to head
    apart = first is not None and first.ndim == 3 and first.shape[0] > 1
    shared = None if apart else _visibility(layer, ids, height, None)

    def portion(part: slice) -> T:
        query, key = layer.scale * layer.query[0, part].double(), layer.key[0, part].double()
        sinks = None if layer.sinks is None else layer.sinks[part].double()
        scores = HeadScores(layer, shared or _visibility(layer, ids, height, part), (query, key), sinks)
        return work(scores) if along is None else work(scores, along[part])

    portions = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    if long:
        return [portion(each) for each in track(portions, f"{label} of {layer.name}")]
    if not on_cpu:
        return [portion(each) for each in portions]
    workers = torch.get_num_threads()
    # one thread for each head goes further than all threads for one head after another
    with one_thread(("torch",)), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(portion, portions))


def _bias(layer: AttentionLayer, rows: slice) -> Any:
    """What is added to the scores of some rows of the first sequence."""
    bias = layer.bias(rows)
    return bias[0] if bias is not None and bias.ndim == 4 else bias


def _visibility(layer: AttentionLayer, ids: Any, height: int, heads: slice | None) -> LayerVisibility:
    """Who sees whom, for all heads or some."""
    like = layer.query[0, :1, :1, :1].double()
    shape = (layer.query.shape[2], layer.key.shape[2])

    def bias(rows: slice) -> Any:
        found = _bias(layer, rows)
        return found if heads is None else found[heads]

    hidden = _bias(layer, slice(0, 1)) is not None
    return LayerVisibility(array_namespace(like), shape, bias if hidden else None, ids, like, height)
