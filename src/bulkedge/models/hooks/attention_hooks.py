"""Hears what the attentions of a model are asked, and changes nothing of what they compute.

A module of transformers asks its ``AttentionInterface`` for the function that computes its attention. While somebody
listens, that function is handed out wrapped: it is called as it would be, and what it was called with is shown. So the
kernel, the masks and the gradients are those of the model, whichever implementation it has (a patch of
:mod:`bulkedge.nn` would move the model to ``sdpa``). ``torch.nn.MultiheadAttention`` is read by a hook. Nothing is put
on the model but hooks, which come off in the end.

:func:`hearing` is the mechanism; a scan uses it for one pass (:mod:`bulkedge.models.hooks.capture`). :class:`Listener`
is for training: it hears the passes in training mode that are wanted. What runs outside of one is not heard:
evaluation, and the second forward pass of gradient checkpointing. Inside of compiled code nobody is asked, so that a
pass of a compiled model that is to be read runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bulkedge.models.hooks.multihead import multihead_call
from bulkedge.nn import Call, records_of, transformed
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Visibility
from bulkedge.visibility.calls import (
    KEYS,
    POSITIONS,
    QUERIES,
    call_mask,
    mask_tensor,
    packed_mask,
    with_position_bias,
)

if TYPE_CHECKING:
    from torch import nn

UNREAD = {
    "block_table": "has paged keys",
    "cache": "has paged keys",
}
"""Arguments by which scores are something else than what queries, keys and mask say, and what they do."""
BESIDE = {"softcap": "caps its scores", "s_aux": "has a sink outside of its keys"}
"""Arguments by which the softmax is of something else than scores and mask, and what they do."""
COMPUTED_BY = ("eager", "flash", "flex")
"""Implementations that compute these, by what is in their names; others may pass them over in silence."""
UNPACKED = ("eager", "sdpa", "flex_attention")
"""Implementations for which packed sequences are in the mask, and nowhere else."""


class Asked(NamedTuple):
    """What a module asked of its attention: ``softmax(cap(scale q . k) + mask)``, with a sink among the keys."""

    name: str
    """Path of the module in the model."""
    call: Call
    """Queries, keys, mask and scale, after the patches of the model."""
    window: int | None = None
    """Number of keys before and with its own that a row sees, beside the mask; None for all."""
    softcap: float | None = None
    """Scores s become ``softcap tanh(s / softcap)`` before the mask is added; None for no cap."""
    sinks: Tensor | None = None
    """Scores of a key without a value that every row sees, one a head."""
    weights: Tensor | None = None
    """The attention matrices, where the function that computed it returned them: (batch, heads, rows, keys)."""
    packing: dict[str, Tensor] | None = None
    """Arguments by which sequences are packed into one, where flash attention goes by them; None for a mask."""


@contextmanager
def hearing(
    model: nn.Module, hear: Callable[[Asked], object], reading: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Listen to the attentions of a model, until the end of the ``with`` block; nothing is left on it then."""
    ear = _Ear({id(module): name for name, module in model.named_modules()}, hear, reading)
    with ExitStack() as stack:
        stack.enter_context(_interface(ear))
        for module in model.modules():
            if isinstance(module, torch.nn.MultiheadAttention):
                stack.callback(module.register_forward_pre_hook(ear.multihead, with_kwargs=True).remove)
        yield


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or a module in it, is what torch.compile returned, or was compiled in place."""
    return any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None for each in model.modules()
    )


class Heard(NamedTuple):
    """What an attention was asked in training, and the name of its module."""

    name: str
    query: Tensor
    key: Tensor
    scale: float
    sight: Visibility
    value: Tensor | None = None
    """None where values are not known: ``torch.nn.MultiheadAttention`` makes them inside."""
    softcap: float | None = None
    """As that of :class:`Asked`."""
    sinks: Tensor | None = None
    """Likewise."""


@dataclass(eq=False)
class Listener:
    """Counts the passes of a model in training, and shows the attentions of those that are wanted.

    Attributes
    ----------
    wanted : callable
        Called at the beginning of each pass in training mode; whether this one is to be read.
    hear : callable
        Called with each attention of a pass that is read.
    ended : callable
        Called at the end of such a pass, whatever became of it.
    """

    wanted: Callable[[], bool]
    hear: Callable[[Heard], object]
    ended: Callable[[], object] = lambda: None
    reading: bool = False
    compiled: bool = False
    eager: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Listen to a model, until the end of the ``with`` block; nothing is left on it then."""
        self.compiled = is_compiled(model)
        with ExitStack() as stack:
            stack.enter_context(hearing(model, self._show, lambda: self.reading))
            if getattr(model, "_compiled_call_impl", None) is None:
                stack.callback(model.register_forward_pre_hook(self._begin).remove)
                stack.callback(model.register_forward_hook(self._end, always_call=True).remove)
            else:
                stack.enter_context(self._around(model))
            stack.callback(self._end)
            yield

    @contextmanager
    def _around(self, model: Any) -> Iterator[None]:
        """Begin and end passes of a model that ``model.compile()`` compiled: its hooks are inside of compiled code."""
        plain = model._compiled_call_impl

        def call(*arguments: Any, **named: Any) -> Any:
            self._begin(model)
            try:
                return plain(*arguments, **named)
            finally:
                self._end()

        model._compiled_call_impl = call
        try:
            yield
        finally:
            model._compiled_call_impl = plain

    def _begin(self, model: nn.Module, *_: Any) -> None:
        self.reading = model.training and not torch.compiler.is_compiling() and self.wanted()
        if self.reading and self.compiled:
            self.eager.enter_context(torch.compiler.set_stance("force_eager"))

    def _end(self, *_: Any) -> None:
        if self.reading:
            self.reading = False
            self.eager.close()
            self.ended()

    def _show(self, asked: Asked) -> None:
        call = asked.call
        rows, keys = call.query.shape[2], call.key.shape[2]
        window = None if asked.window is None or asked.window >= keys else asked.window
        mask = call.mask
        if mask is not None and mask.ndim < 4:
            mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        sight = Visibility(mask, call.causal, window, rows, keys)
        value = None if isinstance(call.module, torch.nn.MultiheadAttention) else call.value
        name = asked.name.replace("_orig_mod.", "")
        self.hear(Heard(name, call.query, call.key, call.scale, sight, value, asked.softcap, asked.sinks))


@dataclass(eq=False)
class _Ear:
    """One who listens to the modules of a model, whose names are known by their identity."""

    names: dict[int, str]
    hear: Callable[[Asked], object]
    reading: Callable[[], bool]
    written: tuple[Any, int, Any] = (None, 0, None)
    """The last padding, or ends of packed sequences, how often it was changed in place, and the mask made of it."""

    def multihead(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """An attention of torch is called."""
        if not self.reading():
            return
        with torch.no_grad():
            call = multihead_call(module, arguments, named)
            if call is not None:
                self.hear(Asked(self.names[id(module)], call))

    def asked(self, implementation: str, asked: Asked) -> None:
        """An attention of transformers was computed; of the causal mask the call says whether the module wants one."""
        call, window, mask = asked.call, asked.window, asked.call.mask
        if id(call.module) not in self.names:
            return
        if mask is not None and mask.ndim == 2:  # padding, as flash attention takes it
            mask = self._once(mask, mask.bool)[:, None, None, -call.key.shape[2] :]
        elif asked.packing is not None:
            mask = self._once(
                next(iter(asked.packing.values())), partial(packed_mask, call.query, call.key, asked.packing)
            )
        elif implementation == "eager" or mask is not None:  # that mask is all there is
            call, window = call._replace(causal=False), None
        call = call._replace(mask=mask, causal=call.causal and call.query.shape[2] > 1)
        with torch.no_grad():
            if _patched(call.module):
                call = transformed(call)
            self.hear(asked._replace(name=self.names[id(call.module)], call=call, window=window))

    def _once(self, source: Tensor, make: Callable[[], Any]) -> Any:
        """What is made of a tensor that all layers of a pass share."""
        version = 0 if source.is_inference() else source._version  # nobody counts changes in inference mode
        if self.written[0] is not source or self.written[1] != version:
            self.written = (source, version, make())
        return self.written[2]


def _patched(module: nn.Module) -> bool:
    """Whether the model of an attention module has patches of :mod:`bulkedge.nn`."""
    return hasattr(module, "config") and bool(records_of(module.config))


_listeners: list[_Ear] = []
"""Those that are on."""


@contextmanager
def _interface(ear: _Ear) -> Iterator[None]:
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
            readers = [each for each in _listeners if each.reading()]
            return partial(_shown, function, implementation or "eager", readers) if readers else function

        get_interface.plain = plain  # type: ignore[attr-defined]
        interface_type.get_interface = get_interface
    _listeners.append(ear)
    try:
        yield
    finally:
        _listeners.remove(ear)
        if not _listeners:
            interface_type.get_interface = interface_type.get_interface.plain


def _shown(  # noqa: PLR0913, PLR0917 - what comes before the arguments of the interface
    function: Callable[..., Any],
    implementation: str,
    readers: list[_Ear],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *rest: Any,
    **wanted: Any,
) -> Any:
    """Compute an attention, and show it to those who read."""
    answer = function(module, query, key, value, attention_mask, *rest, **wanted)
    if not any(id(module) in reader.names for reader in readers):
        return answer
    _check(module, implementation, wanted)
    scaling = wanted.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = wanted.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    packing = None
    if _patched(module):
        mask, causal = call_mask(module, query, key, attention_mask, is_causal=causal, arguments=wanted)
    else:
        mask = mask_tensor(attention_mask, query, key)
        packing = _packing(module, implementation, mask, query, key, wanted)
        if wanted.get("position_bias") is not None:
            mask = with_position_bias(wanted["position_bias"], mask, query, key, causal=causal)
    call = Call(module, query, key, value, mask, causal, scale)
    sinks = _sinks(module, wanted.get("s_aux"), query)
    weights = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
    asked = Asked("", call, wanted.get("sliding_window"), wanted.get("softcap"), sinks, weights, packing)
    for reader in readers:
        reader.asked(implementation, asked)
    return answer


def _check(module: nn.Module, implementation: str, wanted: dict[str, Any]) -> None:
    """Refuse what is not read, and what the function that was called may not have computed."""
    name = type(module).__name__
    for argument, words in UNREAD.items():
        if wanted.get(argument) is not None:
            raise DomainError(f"{name} {words} ({argument}), which is not read yet")
    for argument, words in BESIDE.items():
        if wanted.get(argument) is not None and not any(each in implementation for each in COMPUTED_BY):
            raise DomainError(
                f"{name} {words} ({argument}), which {implementation!r} does not compute; "
                "use model.set_attn_implementation('eager')"
            )


def _packing(  # noqa: PLR0913, PLR0917
    module: nn.Module, implementation: str, mask: Any, query: Tensor, key: Tensor, wanted: dict[str, Any]
) -> dict[str, Tensor] | None:
    """The arguments that say where packed sequences begin, if the function that was called goes by them.

    Flash attention does, where it has no mask: by their ends, or by positions that begin anew.
    """
    if implementation in UNPACKED or mask is not None:
        return None
    ends = {name: wanted[name] for name in (QUERIES, KEYS) if wanted.get(name) is not None}
    if "flash" not in implementation:
        if ends:
            raise DomainError(
                f"{type(module).__name__} packs sequences without a mask ({QUERIES}), which is not read yet"
            )
        return None
    if len(ends) == 2:
        return ends
    positions = wanted.get(POSITIONS)
    if positions is None or positions.shape != (len(query), query.shape[2]) or len(query) != 1:
        return None
    return {POSITIONS: positions} if query.shape[2] == key.shape[2] > 1 else None


def _sinks(module: nn.Module, found: Any, query: Tensor) -> Tensor | None:
    """Scores of the sinks outside of the keys, one a head."""
    if found is None:
        return None
    if found.numel() != query.shape[1]:
        raise DomainError(
            f"{type(module).__name__} has {found.numel()} sinks outside of its keys for {query.shape[1]} heads: "
            "only one a head is read"
        )
    return found.detach().reshape(-1)
