"""Queries and keys of every attention of a model, as its scores see them, from one forward pass.

A transformers model is patched for that pass (:mod:`bulkedge.nn.patching`), so whatever goes through transformers'
``AttentionInterface`` is seen as it comes there: after rotary positions and norms, with the mask, the positional bias
and the scale of the scores. ``torch.nn.MultiheadAttention`` is read by hooks, in any model. Nothing is computed twice,
and no attention matrix is formed unless it is asked for. :func:`stream` holds one layer at a time; :func:`capture`
keeps them all.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).eval()
>>> layers = capture(model, input_ids=torch.arange(10)[None])
>>> [layer.name for layer in layers], tuple(layers[0].query.shape), layers[0].causal
(['h.0.attn', 'h.1.attn'], (1, 4, 10, 8), True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bulkedge.errors import DomainError
from bulkedge.models.multihead import multihead_call
from bulkedge.nn import Call, apply_patch, transform

if TYPE_CHECKING:
    from torch import Tensor, nn

CAPTURED = "captured"
"""The kind of the patch."""
OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states")
"""Arguments by which attention modules are given the sequence that they look at, where it is not their own."""
CACHES = ("past_key_values", "past_key_value", "layer_past")
"""Arguments by which attention modules are given keys of tokens before."""
_listeners: dict[str, _Listener] = {}
"""Those that listen now, by the name that the patch of each has."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The heads of one attention module.

    Attributes
    ----------
    name : str
        Path of the module in the model.
    query : Tensor of shape (batch, heads, rows, dim)
        Queries, without the scale.
    key : Tensor of shape (batch, heads, tokens, dim)
        Keys; those that several heads share are repeated.
    mask : Tensor or None
        Of booleans, who may look at whom, or of numbers that are added to the scores; it broadcasts to (batch, heads,
        rows, tokens).
    causal : bool
        Whether a row sees what comes before it and itself; there is no mask then.
    scale : float
        Factor of the scores.
    cross : bool
        Whether keys are of another sequence than queries.
    """

    name: str
    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    cross: bool = False

    def bias(self) -> Tensor | None:
        """What is added to the scores: positional terms, and minus infinity for keys that a row does not see.

        Returns
        -------
        Tensor or None
            In double precision; it broadcasts to (batch, heads, rows, tokens). None where nothing is added.
        """
        if self.causal:
            rows, tokens = self.query.shape[-2], self.key.shape[-2]
            unseen = self.query.new_ones(rows, tokens).bool().tril(tokens - rows).logical_not()
            return self.query.new_zeros(rows, tokens).double().masked_fill(unseen, -float("inf"))
        if self.mask is None:
            return None
        if not self.mask.is_floating_point():
            return self.query.new_zeros(()).double().masked_fill(self.mask.bool().logical_not(), -float("inf"))
        import torch

        lowest = torch.finfo(self.mask.dtype).min / 2  # what transformers writes where nothing may be seen
        return self.mask.double().masked_fill(self.mask <= lowest, -float("inf"))

    def attention(self) -> Tensor:
        """The attention matrices, in double precision.

        Returns
        -------
        Tensor of shape (batch, heads, rows, tokens)
            Rows sum to one. Weights of keys that a row does not see are zero.
        """
        scores = self.scale * (self.query.double() @ self.key.double().mT)
        bias = self.bias()
        return (scores if bias is None else scores + bias).softmax(-1)


@dataclass(frozen=True, eq=False)
class Visit:
    """An attention module that has just run: its heads, and the way to run it again.

    Attributes
    ----------
    layer : Layer
        Its heads.
    module : torch.nn.Module
        The module.
    inputs : Tensor
        What it was given to make queries from, of shape (batch, rows, width).
    """

    layer: Layer
    module: nn.Module
    inputs: Tensor
    _again: Callable[[], Layer]

    def again(self) -> Layer:
        """Run the module once more on what it was given, as its parameters and hooks are now.

        Returns
        -------
        Layer
            Its heads.
        """
        return self._again()


def capture(model: nn.Module, **inputs: Any) -> tuple[Layer, ...]:
    """Run a model once, without gradients, and return the queries and keys of all its attentions.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`stream`.
    **inputs : object
        What the model is called with: ``input_ids``, ``attention_mask``.

    Returns
    -------
    tuple of Layer
        In the order in which the model calls its attentions.

    Raises
    ------
    DomainError
        If no attention was seen.
    """
    found: list[Layer] = []
    stream(model, lambda visit: found.append(visit.layer), **inputs)
    return tuple(found)


def stream(model: nn.Module, visit: Callable[[Visit], object], **inputs: Any) -> Any:
    """Run a model once, without gradients, and show its attention modules as each has run; none is kept.

    The model is left as it was found, also after an exception.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model whose attention goes through the interface (as for :func:`bulkedge.nn.apply_patch`), or any
        module with ``torch.nn.MultiheadAttention`` inside; in evaluation mode, if its attention has dropout. Patches
        that it has are seen: what they make of queries and keys is what is shown.
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
        If no attention was seen, or the model computes it past transformers' interface.
    """
    import torch

    listener = _Listener({id(module): name for name, module in model.named_modules()}, visit)
    with torch.no_grad(), listener.on(model):
        answer = model(inputs.pop("input"), **inputs) if "input" in inputs else model(**inputs)
    if not listener.seen:
        raise DomainError(
            f"{type(model).__name__} ran without an attention that could be read: neither transformers' "
            "AttentionInterface nor torch.nn.MultiheadAttention was called"
        )
    return answer


@dataclass
class _Frame:
    """A module that is running, what it was called with, and what it asked of its attention."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    call: Call | None = None


@dataclass
class _Listener:
    """Follows a forward pass through the modules of a model."""

    names: dict[int, str]
    visit: Callable[[Visit], object]
    frames: list[_Frame] = field(default_factory=list)
    repeating: list[Layer] | None = None
    seen: int = 0

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Hooks on every module, and a patch on the transformers models; all come off in the end."""
        import torch

        key = uuid4().hex
        with ExitStack() as stack:
            _listeners[key] = self
            stack.callback(_listeners.pop, key)
            for each in transformers_models(model):
                stack.enter_context(apply_patch(each, CAPTURED, {"listener": key}))
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leave, with_kwargs=True).remove)
            fast = torch.backends.mha.get_fastpath_enabled()  # which goes past the modules
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            torch.backends.mha.set_fastpath_enabled(False)
            yield

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.frames.append(_Frame(module, arguments, named, multihead_call(module, arguments, named)))

    def hear(self, call: Call) -> None:
        """Remember what the running module asks of its attention."""
        running = [frame for frame in self.frames if frame.module is call.module]
        if running:
            running[-1].call = call

    def _leave(self, *_: Any) -> None:
        frame = self.frames.pop()
        if frame.call is None:
            return
        layer = _layer(self.names[id(frame.module)], frame)
        if self.repeating is not None:
            self.repeating.append(layer)
            return
        self.seen += 1
        given = next(each for each in (*frame.arguments, *frame.named.values()) if hasattr(each, "shape"))
        self.visit(Visit(layer, frame.module, given, lambda: self._again(frame)))

    def _again(self, frame: _Frame) -> Layer:
        # a cache would grow: the module is to see its own keys once
        named = {name: None if name in CACHES else each for name, each in frame.named.items()}
        self.repeating = []
        try:
            frame.module(*frame.arguments, **named)
            return self.repeating[-1]
        finally:
            self.repeating = None


def transformers_models(model: nn.Module) -> Iterator[nn.Module]:
    """The outermost transformers models in a model.

    Parameters
    ----------
    model : torch.nn.Module
        Any module.

    Yields
    ------
    transformers.PreTrainedModel
        The model itself if it is one, else those inside it that are not inside another.
    """
    try:
        from transformers import PreTrainedModel
    except ImportError:
        return
    if isinstance(model, PreTrainedModel):
        yield model
    else:
        for child in model.children():
            yield from transformers_models(child)


def _layer(name: str, frame: _Frame) -> Layer:
    call = frame.call
    assert call is not None  # noqa: S101 - for the type checker: frames without a call make no layer
    groups = call.query.shape[1] // call.key.shape[1]
    cross = any(frame.named.get(each) is not None for each in OTHER_SEQUENCE)
    cross = cross or call.query.shape[2] != call.key.shape[2]
    key = call.key.repeat_interleave(groups, dim=1)
    return Layer(name, call.query, key, call.mask, call.causal, call.scale, cross)


@transform(CAPTURED)
def _captured(call: Call, parameters: Mapping[str, Any]) -> Call:
    """Show the call, and leave it as it is."""
    listener = _listeners.get(parameters["listener"])
    if listener is None:
        raise DomainError("this model was copied while its queries and keys were read; restore it: bulkedge.nn.restore")
    listener.hear(call)
    return call
