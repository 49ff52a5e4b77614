"""Hears what the attentions of a model are asked while it trains, and changes nothing of what they compute.

A module of transformers asks its ``AttentionInterface`` for the function that computes its attention. While a pass is
read, that function is handed out wrapped: what it is called with is shown, and it is called. So the kernel, the masks
and the gradients are those of the model, whichever implementation it has (a patch of :mod:`bulkedge.nn` would move the
model to ``sdpa``). In all other passes the interface hands out what it has. ``torch.nn.MultiheadAttention`` is read by
a hook.

A pass is a call of the model in training mode. What runs outside of one is not heard: evaluation, and the second
forward pass of gradient checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bulkedge.errors import DomainError
from bulkedge.models.multihead import multihead_call
from bulkedge.models.readings import Visible
from bulkedge.nn import Call, records_of, transformed

if TYPE_CHECKING:
    from torch import nn

UNREAD = {
    "softcap": "caps its scores",
    "s_aux": "has a sink outside of its keys",
    "cu_seq_lens_q": "packs sequences without a mask",
    "block_table": "has paged keys",
}
"""Arguments by which scores are something else than what queries, keys and mask say, and what they do."""


class Heard(NamedTuple):
    """What an attention was asked, and the name of its module."""

    name: str
    query: Tensor
    key: Tensor
    scale: float
    sight: Visible


@dataclass(eq=False)
class Listener:
    """Counts the passes of a model, and shows the attentions of those that are wanted.

    Attributes
    ----------
    wanted : callable
        Called at the beginning of each pass in training mode; whether this one is to be read.
    hear : callable
        Called with each attention of a pass that is read.
    """

    wanted: Callable[[], bool]
    hear: Callable[[Heard], object]
    names: dict[int, str] = field(default_factory=dict)
    reading: bool = False

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Listen to a model, until the end of the ``with`` block; nothing is left on it then.

        Parameters
        ----------
        model : torch.nn.Module
            Any module.

        Yields
        ------
        None
            Nothing.
        """
        if any(_compiled(module) for module in model.modules()):
            raise DomainError(
                f"{type(model).__name__} is compiled: what its attentions are asked is inside compiled code. Watch the "
                "model before torch.compile, or for the steps that are to be read"
            )
        self.names = {id(module): name for name, module in model.named_modules()}
        with ExitStack() as stack:
            stack.enter_context(_interface(self))
            stack.callback(model.register_forward_pre_hook(self._begin).remove)
            stack.callback(model.register_forward_hook(self._end, always_call=True).remove)
            for module in model.modules():
                if isinstance(module, torch.nn.MultiheadAttention):
                    stack.callback(module.register_forward_pre_hook(self._multihead, with_kwargs=True).remove)
            stack.callback(self._end)
            yield

    def _begin(self, model: nn.Module, *_: Any) -> None:
        self.reading = model.training and not torch.compiler.is_compiling() and self.wanted()

    def _end(self, *_: Any) -> None:
        self.reading = False

    def _multihead(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not self.reading:
            return
        with torch.no_grad():
            call = multihead_call(module, arguments, named)
        if call is not None:
            self._show(call, None)

    def asked(self, implementation: str, call: Call, window: int | None) -> None:
        """An attention of transformers is called.

        Parameters
        ----------
        implementation : str
            Name of the function that computes it.
        call : Call
            What the module asks; of the causal mask whether the module wants one.
        window : int or None
            How far back a row sees, where only the function knows.
        """
        if id(call.module) not in self.names:
            return
        mask = call.mask
        if mask is not None and not isinstance(mask, Tensor):
            raise DomainError(
                f"{type(call.module).__name__} has a mask of type {type(mask).__name__}; use sdpa or flash"
            )
        if mask is not None and mask.ndim == 2:  # padding, as flash attention takes it
            mask = mask[:, None, None, -call.key.shape[2] :].bool()
        elif implementation == "eager" or mask is not None:  # that mask is all there is
            call, window = call._replace(causal=False), None
        call = call._replace(mask=mask, causal=call.causal and call.query.shape[2] > 1)
        with torch.no_grad():
            if _patched(call.module):
                call = transformed(call)
            self._show(call, window)

    def _show(self, call: Call, window: int | None) -> None:
        rows, keys = call.query.shape[2], call.key.shape[2]
        window = None if window is None or window >= keys else window
        mask = call.mask
        if mask is not None and mask.ndim < 4:
            mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        sight = Visible(mask, call.causal, window, rows, keys)
        self.hear(Heard(self.names[id(call.module)], call.query, call.key, call.scale, sight))


def _compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile returned, or was compiled in place; asked without the compiler."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _patched(module: nn.Module) -> bool:
    """Whether the model of an attention module has patches of :mod:`bulkedge.nn`."""
    return bool(records_of(module.config))


_listeners: list[Listener] = []
"""Those that are on."""


@contextmanager
def _interface(listener: Listener) -> Iterator[None]:
    """As long as somebody listens, transformers' interface asks who is reading; without transformers there is none."""
    try:
        import transformers
    except ImportError:
        yield
        return
    interface_type: Any = transformers.AttentionInterface
    if not _listeners:
        plain = interface_type.get_interface

        def get_interface(interface: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
            function = plain(interface, implementation, default)
            readers = [each for each in _listeners if each.reading]
            return partial(_shown, function, implementation, readers) if readers else function

        get_interface.plain = plain  # type: ignore[attr-defined]
        interface_type.get_interface = get_interface
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            interface_type.get_interface = interface_type.get_interface.plain


def _shown(  # noqa: PLR0913, PLR0917 - what comes before the arguments of the interface
    function: Callable[..., Any],
    implementation: str,
    readers: list[Listener],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *rest: Any,
    **wanted: Any,
) -> Any:
    """Show an attention to those who read, and compute it."""
    for name, words in UNREAD.items():
        if wanted.get(name) is not None:
            raise DomainError(f"{type(module).__name__} {words} ({name}), which is not read yet")
    scaling = wanted.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = wanted.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    mask = attention_mask
    if wanted.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import create_position_bias_mask

        mask = create_position_bias_mask(wanted["position_bias"], mask, causal, query, key)
    for reader in readers:
        reader.asked(implementation, Call(module, query, key, value, mask, causal, scale), wanted.get("sliding_window"))
    return function(module, query, key, value, attention_mask, *rest, **wanted)
