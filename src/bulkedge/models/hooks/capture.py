"""Queries and keys of every attention of a model, as its scores see them, from one forward pass.

Whatever goes through transformers' ``AttentionInterface`` is heard as it comes there, and computed by the model's own
kernel (:mod:`bulkedge.models.hooks.attention_hooks`): after rotary positions and norms, with the mask, the positional
bias, the scale and the cap of the scores, and the sinks outside of the keys. ``torch.nn.MultiheadAttention`` is read by
hooks, in any model. Nothing is computed twice, and no attention matrix is formed unless it is asked for. :func:`stream`
holds one layer at a time; :func:`capture` keeps them all.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).eval()
>>> layers = capture(model, input_ids=torch.arange(10)[None])
>>> [layer.name for layer in layers], tuple(layers[0].query.shape), layers[0].causal
(['h.0.attn', 'h.1.attn'], (1, 4, 10, 8), True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bulkedge.models.hooks.attention_hooks import Asked, hearing, is_compiled
from bulkedge.models.hooks.attention_inputs import Layer, check_weights, layer_of
from bulkedge.nn import check_interface
from bulkedge.support.errors import DomainError

if TYPE_CHECKING:
    from torch import Tensor, nn

CACHES = ("past_key_values", "past_key_value", "layer_past")
"""Arguments by which attention modules are given keys of tokens before."""


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
        A transformers model whose attention goes through the interface, or any module with
        ``torch.nn.MultiheadAttention`` inside; in evaluation mode, if its attention has dropout. Patches that it has
        are seen: what they make of queries and keys is what is shown.
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
        what was heard.
    """
    import torch

    listener = _Listener(visit)
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
    asked: Asked | None = None


@dataclass
class _Listener:
    """Follows a forward pass through the modules of a model."""

    visit: Callable[[Visit], object]
    frames: list[_Frame] = field(default_factory=list)
    repeating: list[Layer] | None = None
    seen: int = 0

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Hooks on every module, and an ear at the interface; all come off in the end."""
        import torch

        for each in transformers_models(model):
            check_interface(each)
        with ExitStack() as stack:
            # what is inside compiled code is not heard
            if is_compiled(model) and hasattr(torch.compiler, "set_stance"):
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(self._leave, with_kwargs=True).remove)
            stack.enter_context(hearing(model, self._hear))
            fast = torch.backends.mha.get_fastpath_enabled()  # which goes past the modules
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            torch.backends.mha.set_fastpath_enabled(False)
            yield

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.frames.append(_Frame(module, arguments, named))

    def _hear(self, asked: Asked) -> None:
        """Remember what the running module asks of its attention."""
        running = [frame for frame in self.frames if frame.module is asked.call.module]
        if running:
            running[-1].asked = asked

    def _leave(self, *_: Any) -> None:
        frame = self.frames.pop()
        if frame.asked is None:
            return
        layer = layer_of(frame.asked, frame.named)
        if self.repeating is not None:
            self.repeating.append(layer)
            return
        check_weights(layer, frame.asked)
        frame.asked = None  # the model's own weights are not to be held while the layer is read
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
    """The outermost transformers models in a model."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        return
    if isinstance(model, PreTrainedModel):
        yield model
    else:
        for child in model.children():
            yield from transformers_models(child)
