"""Hooks that read what the attentions of a model are called with, and change nothing of what they compute.

A module of transformers asks its ``AttentionInterface`` for the function that computes its attention. While hooks are
on, that function comes wrapped: it is called as usual, and its arguments are reported. So kernel, masks and gradients
are those of the model, whichever implementation it has (a patch of :mod:`bulkedge.nn` would move the model to
``sdpa``). ``torch.nn.MultiheadAttention`` is read by a forward hook. All hooks come off in the end.

:func:`attention_calls` is the mechanism; a scan uses it for one pass (:mod:`bulkedge.models.hooks.capture`).
:class:`TrainingHooks` reads the wanted passes of a training run, and neither evaluation nor the second forward pass of
gradient checkpointing. Compiled code does not ask the interface, so a pass of a compiled model runs uncompiled when it
is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import MultiheadAttention
from torch.nn import functional as torch_functional

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

UNSUPPORTED = {
    "block_table": "has paged keys",
    "cache": "has paged keys",
}
"""Arguments by which scores are something else than what queries, keys and mask say, and what they do."""
EAGER_ONLY = {"softcap": "caps its scores", "s_aux": "has a sink outside of its keys"}
"""Arguments that change the softmax, and what they do; implementations other than eager, flash and flex attention may
ignore them in silence."""
UNPACKED = ("eager", "sdpa", "flex_attention")
"""Implementations for which packed sequences are in the mask, and nowhere else."""


class AttentionCall(NamedTuple):
    """One call of an attention: ``softmax(cap(scale q . k) + mask)``, with a sink among the keys."""

    name: str
    """Path of the module in the model."""
    call: Call
    """Queries, keys, mask and scale, after the patches of the model."""
    window: int | None = None
    """Number of keys that a row sees, its own and those before it, in addition to the mask; None for all."""
    softcap: float | None = None
    """Scores s become ``softcap tanh(s / softcap)`` before the mask is added; None for no cap."""
    sinks: Tensor | None = None
    """Scores of a key without a value that every row sees, one a head."""
    weights: Tensor | None = None
    """The attention matrices, where the function that computed it returned them: (batch, heads, rows, keys)."""
    packing: dict[str, Tensor] | None = None
    """Arguments by which sequences are packed into one, where flash attention goes by them; None for a mask."""


@contextmanager
def attention_calls(
    model: nn.Module, report: Callable[[AttentionCall], object], reading: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Report every attention of a model, while ``reading`` says so, until the end of the ``with`` block."""
    reader = _CallReader({id(module): name for name, module in model.named_modules()}, report, reading)
    with ExitStack() as stack:
        stack.enter_context(_interface(reader))
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                stack.callback(module.register_forward_pre_hook(reader.multihead, with_kwargs=True).remove)
        yield


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or a module in it, is what torch.compile returned, or was compiled in place."""
    return any(
        hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) is not None for each in model.modules()
    )


class AttentionInputs(NamedTuple):
    """What an attention is computed from in training."""

    query: Tensor
    """(batch, heads, rows, dim), without the scale; of any floating type."""
    key: Tensor
    """(batch, key heads, keys, dim); several heads may share one."""
    value: Tensor | None
    """(batch, key heads, keys, any dimension); None where ``torch.nn.MultiheadAttention`` makes them inside."""
    scale: float
    """Factor of the scores."""
    visible: Visibility
    """Who may look at whom."""
    softcap: float | None = None
    """As in :class:`AttentionCall`."""
    sinks: Tensor | None = None
    """Likewise, (heads,)."""
    name: str = ""
    """Path of the module in the model."""

    def fits(self, other: AttentionInputs) -> bool:
        """Whether another attention may be read together with this one: its shapes and its mask are the same."""
        mine, theirs = ([_kind(x) for x in (each.query, each.key, each.value)] for each in (self, other))
        masks = [
            None if mask is None else (*_kind(mask), mask.data_ptr(), mask.stride())
            for mask in (self.visible.mask, other.visible.mask)
        ]
        same = masks[0] == masks[1] and self.visible[1:] == other.visible[1:]
        same = same and self.softcap == other.softcap and _kind(self.sinks) == _kind(other.sinks)
        return same and mine == theirs and self.scale == other.scale

    @property
    def entries(self) -> int:
        """Numbers in its queries and keys."""
        return self.query.numel() + self.key.numel()

    @property
    def versions(self) -> list[int]:
        """How often queries, keys and values were changed in place; in inference mode torch does not count."""
        arrays = [each for each in self[:3] if each is not None]
        return [0 if each.is_inference() else each._version for each in arrays]


def _kind(array: Tensor | None) -> tuple[object, ...]:
    return () if array is None else (array.shape, array.dtype, array.device)


@dataclass(eq=False)
class TrainingHooks:
    """Counts the passes of a model in training, and reports the attentions of those that are wanted."""

    wanted: Callable[[], bool]
    """Called at the beginning of each pass in training mode; whether this one is to be read."""
    report: Callable[[AttentionInputs], object]
    """Called with each attention of a pass that is read."""
    ended: Callable[[], object] = lambda: None
    """Called at the end of such a pass, whatever became of it."""
    reading: bool = False
    compiled: bool = False
    eager: ExitStack = field(default_factory=ExitStack)

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Hooks on a model until the end of the ``with`` block."""
        self.compiled = is_compiled(model)
        with ExitStack() as stack:
            stack.enter_context(attention_calls(model, self._report, lambda: self.reading))
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

    def _report(self, found: AttentionCall) -> None:
        call = found.call
        rows, keys = call.query.shape[2], call.key.shape[2]
        window = None if found.window is None or found.window >= keys else found.window
        mask = call.mask
        if mask is not None and mask.ndim < 4:
            mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        visible = Visibility(mask, call.causal, window, rows, keys)
        value = None if isinstance(call.module, MultiheadAttention) else call.value.detach()
        query, key, name = call.query.detach(), call.key.detach(), found.name.replace("_orig_mod.", "")
        self.report(AttentionInputs(query, key, value, call.scale, visible, found.softcap, found.sinks, name))


@dataclass(eq=False)
class _CallReader:
    """Reports the attentions of one model."""

    names: dict[int, str]
    """Of its modules, by their identity."""
    report: Callable[[AttentionCall], object]
    reading: Callable[[], bool]
    written: tuple[Any, int, Any] = (None, 0, None)
    """The last padding, or ends of packed sequences, how often it was changed in place, and the mask made of it."""

    def multihead(self, module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Report an attention of torch, before it runs."""
        if not self.reading():
            return
        with torch.no_grad():
            self.report(AttentionCall(self.names[id(module)], _multihead_call(module, arguments, named)))

    def interface(self, implementation: str, found: AttentionCall) -> None:
        """Report an attention of transformers; ``causal`` of the call says whether the module wants a causal mask."""
        call, window, mask = found.call, found.window, found.call.mask
        if id(call.module) not in self.names:
            return
        if mask is not None and mask.ndim == 2:  # padding, as flash attention takes it
            mask = self._once(mask, mask.bool)[:, None, None, -call.key.shape[2] :]
        elif found.packing is not None:
            mask = self._once(
                next(iter(found.packing.values())), partial(packed_mask, call.query, call.key, found.packing)
            )
        elif implementation == "eager" or mask is not None:  # that mask is all there is
            call, window = call._replace(causal=False), None
        call = call._replace(mask=mask, causal=call.causal and call.query.shape[2] > 1)
        with torch.no_grad():
            if hasattr(call.module, "config") and records_of(call.module.config):  # patches of bulkedge.nn
                call = transformed(call)
            self.report(found._replace(name=self.names[id(call.module)], call=call, window=window))

    def _once(self, source: Tensor, make: Callable[[], Any]) -> Any:
        """What is made of a tensor that all layers of a pass share."""
        version = 0 if source.is_inference() else source._version  # nobody counts changes in inference mode
        if self.written[0] is not source or self.written[1] != version:
            self.written = (source, version, make())
        return self.written[2]


_readers: list[_CallReader] = []
"""Those whose hooks are on."""


@contextmanager
def _interface(reader: _CallReader) -> Iterator[None]:
    """Let transformers' interface report to a reader; the interface is as before when the last reader has gone."""
    try:
        import transformers
    except ImportError:
        yield
        return
    interface_type: Any = transformers.AttentionInterface
    if not _readers:
        plain = interface_type.get_interface

        def get_interface(interface: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
            function = plain(interface, implementation, default)
            readers = [each for each in _readers if each.reading()]
            return partial(_call_and_report, function, implementation or "eager", readers) if readers else function

        get_interface.plain = plain  # type: ignore[attr-defined]
        interface_type.get_interface = get_interface
    _readers.append(reader)
    try:
        yield
    finally:
        _readers.remove(reader)
        if not _readers:
            interface_type.get_interface = interface_type.get_interface.plain


def _call_and_report(  # noqa: PLR0913, PLR0917 - what comes before the arguments of the interface
    function: Callable[..., Any],
    implementation: str,
    readers: list[_CallReader],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *rest: Any,
    **wanted: Any,
) -> Any:
    """Compute an attention, and report it to the readers."""
    answer = function(module, query, key, value, attention_mask, *rest, **wanted)
    if not any(id(module) in reader.names for reader in readers):
        return answer
    _check(module, implementation, wanted)
    scaling = wanted.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    causal = wanted.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    packing = None
    if hasattr(module, "config") and records_of(module.config):
        mask, causal = call_mask(module, query, key, attention_mask, is_causal=causal, arguments=wanted)
    else:
        mask = mask_tensor(attention_mask, query, key)
        packing = _packing(module, implementation, mask, query, key, wanted)
        if wanted.get("position_bias") is not None:
            mask = with_position_bias(wanted["position_bias"], mask, query, key, causal=causal)
    call = Call(module, query, key, value, mask, causal, scale)
    sinks = _sinks(module, wanted.get("s_aux"), query)
    weights = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
    found = AttentionCall("", call, wanted.get("sliding_window"), wanted.get("softcap"), sinks, weights, packing)
    for reader in readers:
        reader.interface(implementation, found)
    return answer


def _check(module: nn.Module, implementation: str, wanted: dict[str, Any]) -> None:
    """Refuse what is not read, and what the function that was called may not have computed."""
    name = type(module).__name__
    for argument, words in UNSUPPORTED.items():
        if wanted.get(argument) is not None:
            raise DomainError(f"{name} {words} ({argument}), which is not read yet")
    computed = any(each in implementation for each in ("eager", "flash", "flex"))
    for argument, words in EAGER_ONLY.items():
        if wanted.get(argument) is not None and not computed:
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


# -- torch.nn.MultiheadAttention ---------------------------------------------------------------------------------------


@cache
def _multihead_signature() -> inspect.Signature:
    return inspect.signature(MultiheadAttention.forward)


def _multihead_call(module: MultiheadAttention, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Queries, keys and mask, from what the module is called with."""
    if module.bias_k is not None or module.add_zero_attn:
        raise DomainError("MultiheadAttention with add_bias_kv or add_zero_attn has keys that are not read yet")
    given = _multihead_signature().bind(module, *arguments, **named).arguments
    batched = given["query"].ndim == 3
    query, key = (
        given[each] if batched else given[each].unsqueeze(int(not module.batch_first)) for each in ("query", "key")
    )
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    width = module.embed_dim
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight[:width], module.in_proj_weight[width : 2 * width]
    else:
        weights = module.q_proj_weight, module.k_proj_weight
    biases = (None, None) if module.in_proj_bias is None else module.in_proj_bias[: 2 * width].chunk(2)
    query, key = (
        _split(torch_functional.linear(each, weight, bias), module.num_heads)
        for each, weight, bias in zip((query, key), weights, biases, strict=True)
    )
    mask = _multihead_mask(given, query, key)
    return Call(module, query, key, key, mask, causal=False, scale=query.shape[-1] ** -0.5)


def _split(projected: Tensor, heads: int) -> Tensor:
    """``(batch, tokens, width)`` to ``(batch, heads, tokens, dim)``."""
    return projected.reshape(*projected.shape[:-1], heads, -1).transpose(1, 2)


def _multihead_mask(given: dict[str, Any], query: Tensor, key: Tensor) -> Tensor | None:
    """Both masks of the module, where ``True`` means not seen, as one of numbers that are added.

    Gap-free attention may be causal without a mask; beside one, that is only a hint of what the mask says.
    """
    batch, heads, rows, _ = query.shape
    found = None
    if given.get("is_causal") and given.get("attn_mask") is None:
        found = query.new_full((rows, key.shape[2]), -float("inf")).triu(1)
    for name in ("attn_mask", "key_padding_mask"):
        mask = given.get(name)
        if mask is None:
            continue
        if not mask.is_floating_point():
            mask = query.new_zeros(mask.shape).masked_fill(mask, -float("inf"))
        if name == "key_padding_mask":
            mask = mask.reshape(batch, 1, 1, key.shape[2])
        elif mask.ndim == 3:
            mask = mask.reshape(batch, heads, rows, key.shape[2])
        found = mask if found is None else found + mask
    return found
