"""Passes of a model, observed: what its attentions are called with, and nothing changed of what they compute.

Nothing is put on a model. A :class:`ForwardPass` belongs to the thread that runs it, and only while it runs
(:func:`observe`) calls of modules and of transformers' ``AttentionInterface`` are shown to it: as many threads as like
may share a model, a copy of a model carries no observer, and a pass that nobody reads is as it was. An attention that
goes through the interface is called as usual, with the model's own kernel, mask and gradients. So is that of a module
which calls torch's ``scaled_dot_product_attention`` or ``flex_attention`` itself. ``torch.nn.MultiheadAttention`` is
read from what it is called with.

A scan observes one pass (:mod:`bulkedge.models.hooks.capture`). A watch observes some of a training run, which
:func:`during_calls` begins. Compiled code asks no interface, so a pass that is read runs uncompiled.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn import MultiheadAttention
from torch.nn import functional as torch_functional

from bulkedge.models.hooks.torch_functions import listening
from bulkedge.nn import Call, records_of, transform_call
from bulkedge.nn.modules import hidden_future, merge_masks
from bulkedge.support.errors import DomainError
from bulkedge.support.threads import shared, shared_lock
from bulkedge.visibility import Visibility
from bulkedge.visibility.calls import KEYS, POSITIONS, QUERIES, call_mask, mask_tensor, packed_mask, with_position_bias

if TYPE_CHECKING:
    from torch import nn

UNSUPPORTED = {"block_table": "has paged keys", "cache": "has paged keys"}  # arguments that change scores
# arguments that change the softmax; other implementations than eager, flash and flex may ignore them
EAGER_ONLY = {"softcap": "caps its scores", "s_aux": "has a sink outside of its keys"}
UNPACKED = ("eager", "sdpa", "flex_attention")  # implementations that have packed sequences in the mask alone


def is_compiled(model: nn.Module) -> bool:
    """Whether a model, or a module in it, is what torch.compile returned, or was compiled in place."""
    return any(hasattr(each, "_orig_mod") or getattr(each, "_compiled_call_impl", None) for each in model.modules())


class AttentionInputs(NamedTuple):
    """One call of an attention: ``softmax(cap(scale q . k) + mask)``, with a sink among the keys."""

    query: Tensor  # (batch, heads, rows, dim), without the scale; of any floating type, after the patches of the model
    key: Tensor  # (batch, key heads, keys, dim); several heads may share one
    value: Tensor | None  # (batch, key heads, keys, any dimension); None for torch.nn.MultiheadAttention
    scale: float  # factor of the scores
    visible: Visibility  # who may look at whom
    softcap: float | None = None  # scores s become softcap tanh(s / softcap) before the mask is added; None for no cap
    sinks: Tensor | None = None  # scores of a key without a value that every row sees, one a head
    name: str = ""  # path of the module in the model
    module: Any = None
    weights: Tensor | None = None  # (batch, heads, rows, keys), where the function returned the matrices

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


# -- passes ------------------------------------------------------------------------------------------------------------


class ForwardPass:
    """A forward pass that is observed, in the thread that runs it."""

    def __init__(self, model: nn.Module | None = None) -> None:
        """``names`` are those of the modules whose attentions are read, by their identity."""
        self.names = {} if model is None else {id(module): name for name, module in model.named_modules()}
        # the last padding, or ends of packed sequences, how often it was changed in place, and the mask made of it
        self._written: tuple[Any, int, Any] = (None, 0, None)

    def attend(self, found: AttentionInputs) -> None:
        """An attention of the model was called."""

    def read(self, make: Callable[[], AttentionInputs]) -> None:
        """Make out what an attention was called with."""
        with torch.no_grad():
            self.attend(make())

    def around(self, run: Callable[[], Any], module: nn.Module, arguments: tuple[Any, ...], named: Any) -> Any:
        """Run a module, any one that this thread calls."""
        if isinstance(module, MultiheadAttention) and id(module) in self.names:
            self.read(lambda: self._inputs(_multihead_call(module, arguments, named)))
        return run()

    def inputs_of(
        self, implementation: str, arguments: tuple[Any, ...], wanted: dict[str, Any], weights: Tensor | None
    ) -> AttentionInputs:
        """A call of transformers' interface."""
        module, query, key, value, given = arguments[:5]
        _check(module, implementation, wanted)
        scaling, causal = wanted.get("scaling"), wanted.get("is_causal")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
        window, packing = wanted.get("sliding_window"), None
        patched = hasattr(module, "config") and records_of(module.config)  # by bulkedge.nn
        if patched:
            mask, causal = call_mask(module, query, key, given, is_causal=causal, arguments=wanted)
        else:
            mask = mask_tensor(given, query, key)
            packing = _packing(module, implementation, mask, query, key, wanted)
            if wanted.get("position_bias") is not None:
                mask = with_position_bias(wanted["position_bias"], mask, query, key, causal=causal)
        if mask is not None and mask.ndim == 2:  # padding, as flash attention takes it
            mask = self._once(mask, mask.bool)[:, None, None, -key.shape[2] :]
        elif packing is not None:
            mask = self._once(next(iter(packing.values())), partial(packed_mask, query, key, packing))
        elif implementation == "eager" or mask is not None:  # that mask is all there is
            causal, window = False, None
        call = Call(module, query, key, value, mask, causal and query.shape[2] > 1, scale)
        sinks = _sinks(module, wanted.get("s_aux"), query)
        call = transform_call(call) if patched else call
        return self._inputs(call, window, wanted.get("softcap"), sinks)._replace(weights=weights)

    def functional_inputs(self, module: nn.Module, given: dict[str, Any]) -> AttentionInputs:
        """A call of torch's own attention, by a module."""
        query, key, value = (given[name] for name in ("query", "key", "value"))
        name = f"{self.names[id(module)]} ({type(module).__name__})"
        if query.ndim != 4 or key.ndim != 4:
            raise DomainError(f"{name} calls attention on {query.ndim} axes; batch, heads, tokens and entries are read")
        if given.get("score_mod") is not None:
            raise DomainError(f"{name} changes its scores by a function (score_mod), which is not read")
        mask = given.get("attn_mask", given.get("block_mask"))
        mask, causal = mask_tensor(mask, query, key), bool(given.get("is_causal"))
        if causal and query.shape[2] != key.shape[2]:  # row by row from the first key on
            mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
            causal = False
        scale = query.shape[-1] ** -0.5 if given.get("scale") is None else float(given["scale"])
        return self._inputs(Call(module, query, key, value, mask, causal, scale))

    def _inputs(
        self, call: Call, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None
    ) -> AttentionInputs:
        module, query, key, value, mask = call[:5]
        rows, keys, name = query.shape[2], key.shape[2], self.names[id(module)]
        if mask is not None and mask.ndim < 4:
            mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
        visible = Visibility(mask, call.causal, None if window is None or window >= keys else window, rows, keys)
        own = None if isinstance(module, MultiheadAttention) else value
        return AttentionInputs(query, key, own, call.scale, visible, softcap, sinks, name, module)

    def _once(self, source: Tensor, make: Callable[[], Any]) -> Any:
        """What is made of a tensor that all layers of a pass share."""
        version = 0 if source.is_inference() else source._version  # nobody counts changes in inference mode
        if self._written[0] is not source or self._written[1] != version:
            self._written = (source, version, make())
        return self._written[2]


class _ThreadPasses(threading.local):
    """Passes that are observed in a thread, the outer ones first, and the modules that it runs."""

    passes: tuple[ForwardPass, ...] = ()

    def __init__(self) -> None:
        self.running: list[nn.Module] = []
        self.told = False  # whether an attention is running that its passes are shown anyway
        self.begun: tuple[Begin, ...] = ()  # of the calls of models that are running


_thread = _ThreadPasses()


@contextmanager
def observe(one: ForwardPass) -> Iterator[None]:
    """Show a pass what this thread calls, until the end of the ``with`` block."""
    with (
        shared("modules", _module_calls),
        shared("interface", _interface_calls),
        shared("functional", _functional_calls),
    ):
        before = _thread.passes
        _thread.passes = (*before, one)
        try:
            yield
        finally:
            _thread.passes = before


def without_compiler() -> AbstractContextManager[None]:
    """Let compiled code run as it was before, in all threads."""
    return shared("without compiler", lambda: torch.compiler.set_stance("force_eager"))


@contextmanager
def _replaced(kind: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Give a class a method for a while."""
    before = vars(kind).get(name)
    setattr(kind, name, function)
    try:
        yield
    finally:
        if vars(kind).get(name) is function:  # else somebody who came later has it, and passes through it
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _module_calls() -> AbstractContextManager[None]:
    """Calls of modules, shown to the passes of the thread that makes them."""
    plain = torch.nn.Module.__call__

    def call(module: nn.Module, /, *arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(module, *arguments, **named)
        run = partial(plain, module, *arguments, **named)
        for each in _thread.passes:
            run = partial(each.around, run, module, arguments, named)
        if not _thread.passes:
            return run()
        _thread.running.append(module)
        try:
            return run()
        finally:
            _thread.running.pop()

    return _replaced(torch.nn.Module, "__call__", call)


def _interface_calls() -> AbstractContextManager[None]:
    """Calls of transformers' interface, likewise."""
    try:
        from transformers import AttentionInterface
    except ImportError:
        return nullcontext()
    plain: Any = AttentionInterface.get_interface

    def get_interface(interface: Any, implementation: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = plain(interface, implementation, default)
        return partial(_attention, function, implementation or "eager") if _thread.passes else function

    return _replaced(AttentionInterface, "get_interface", get_interface)


def _attention(function: Callable[..., Any], implementation: str, *arguments: Any, **wanted: Any) -> Any:
    """Compute an attention, and show it to the passes of this thread."""
    before, _thread.told = _thread.told, True
    try:
        answer = function(*arguments, **wanted)
    finally:
        _thread.told = before
    weights = answer[1] if isinstance(answer, tuple) and len(answer) > 1 else None
    for each in _thread.passes:
        if id(arguments[0]) in each.names:
            each.read(partial(each.inputs_of, implementation, arguments, wanted, weights))
    return answer


def _functional_calls() -> AbstractContextManager[None]:
    """Calls of torch's own attention by modules that ask no interface, likewise."""
    return listening(_functional)


def _functional(given: dict[str, Any]) -> None:
    """Show a call to the passes of this thread, as one of the innermost module that has weights."""
    if _thread.told or not _thread.passes:
        return
    running = [each for each in _thread.running if next(each.parameters(), None) is not None]
    if running and not any(isinstance(each, MultiheadAttention) for each in running):
        for each in _thread.passes:
            if id(running[-1]) in each.names:
                each.read(partial(each.functional_inputs, running[-1], given))


Begin: TypeAlias = Callable[["nn.Module"], AbstractContextManager[object]]
_begun: dict[tuple[int, type], tuple[Begin, ...]] = {}
"""What calls of single models run inside of, by the model's identity and its class."""


@contextmanager
def during_calls(model: nn.Module, begin: Begin) -> Iterator[None]:
    """Let calls of a model that are not compiled run inside of what ``begin`` makes for each.

    It is given what was called: the model, or what ``torch.compile`` made of it, even after this has begun.
    """
    key = id(model), type(model)
    with ExitStack() as stack:
        for kind in {key[1], OptimizedModule}:
            stack.enter_context(shared(("calls", kind), partial(_class_calls, kind)))
        with shared_lock:
            _begun[key] = (*_begun.get(key, ()), begin)
        try:
            yield
        finally:
            with shared_lock:
                _begun[key] = tuple(each for each in _begun[key] if each is not begin)
                if not _begun[key]:
                    del _begun[key]


def _class_calls(kind: Any) -> AbstractContextManager[None]:
    """Calls of a class of modules, outside of all that ``model.compile()`` compiles."""
    own = vars(kind).get("__call__")

    def call(module: nn.Module, /, *arguments: Any, **named: Any) -> Any:
        def run() -> Any:  # found when it is called: what begins may show the calls of all modules to somebody
            plain = super(kind, module).__call__ if own is None else partial(own, module)
            return plain(*arguments, **named)

        if torch.compiler.is_compiling():
            return run()
        begins = [each for each in _begins(module) if each not in _thread.begun]
        before, _thread.begun = _thread.begun, (*_thread.begun, *begins)
        try:
            with ExitStack() as stack:
                for begin in begins:
                    stack.enter_context(begin(module))
                return run()
        finally:
            _thread.begun = before

    return _replaced(kind, "__call__", call)


def _begins(module: Any) -> tuple[Begin, ...]:
    """What a call of a module runs inside of; a compiled one is called for what it was made of, too."""
    found = _begun.get((id(module), type(module)), ())
    while isinstance(module, OptimizedModule):
        module = module._orig_mod
        found += _begun.get((id(module), type(module)), ())
    return found


# -- arguments of the interface ----------------------------------------------------------------------------------------


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
    """The arguments that say where packed sequences begin, if the function that was called goes by them."""
    # Flash attention does, where it has no mask: by their ends, or by positions that begin anew.
    if implementation in UNPACKED or mask is not None:
        return None
    ends = {name: wanted[name] for name in (QUERIES, KEYS) if wanted.get(name) is not None}
    if "flash" not in implementation:
        if ends:
            raise DomainError(f"{type(module).__name__} packs sequences without a mask ({QUERIES}): not read yet")
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
        name, heads = type(module).__name__, query.shape[1]
        raise DomainError(f"{name} has {found.numel()} sinks outside of its keys for {heads} heads: give one a head")
    return found.detach().reshape(-1)


# -- torch.nn.MultiheadAttention ---------------------------------------------------------------------------------------


_SIGNATURE = inspect.signature(MultiheadAttention.forward)


def _multihead_call(module: MultiheadAttention, arguments: tuple[Any, ...], named: dict[str, Any]) -> Call:
    """Queries, keys and mask, from what the module is called with."""
    if module.bias_k is not None or module.add_zero_attn:
        raise DomainError("MultiheadAttention with add_bias_kv or add_zero_attn has keys that are not read yet")
    given = _SIGNATURE.bind(module, *arguments, **named).arguments
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
        torch_functional.linear(each, weight, bias).reshape(*each.shape[:2], module.num_heads, -1).transpose(1, 2)
        for each, weight, bias in zip((query, key), weights, biases, strict=True)
    )
    mask = given.get("attn_mask")
    if given.get("is_causal") and mask is None:  # beside a mask it is a hint of what that says
        mask = hidden_future(query, key.shape[2])
    mask = merge_masks(mask, given.get("key_padding_mask"), query)
    return Call(module, query, key, key, mask, causal=False, scale=query.shape[-1] ** -0.5)
