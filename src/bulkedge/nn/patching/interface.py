"""The attention that transformers calls: it reads the patches of its model off the configuration.

A patch is a :class:`Record` on the model's configuration: its kind, its parameters, and a key that no other has.
While a configuration has records, transformers finds the attention registered here under :data:`NAME`; that
reads the records, lets each change the :class:`Call` in turn (its :data:`Transform`), and computes what is left with
torch's fused kernels. Weights, modules and the implementation that the configuration names stay as they are, so a model
without records is the model before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from bulkedge.nn.attention import REACH, Coefficient, shaped_attention, shaped_matrix
from bulkedge.support.domains import Like, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility.calls import call_mask

NAME = "bulkedge.nn"  # under which transformers knows the attention; its error messages say to import this
ATTRIBUTE = "bulkedge_patches"  # of a configuration: its PatchState
REQUESTED = "attn_implementation"  # by which transformers chooses the attention of a saved model
CHOSEN = "_attn_implementation"  # the property of configurations by which models choose their attention
NAMES = "bulkedge_names"  # of a module of a patched model: its paths in the models that it is in
UNSUPPORTED = ("cache",)  # what patched attention does not have: paged caches


class Record(NamedTuple):
    """One patch; a tuple of JSON types, because configurations are written as JSON."""

    kind: str  # which transform
    parameters: Mapping[str, Any]  # its parameters, of JSON types
    key: str  # its own, wherever the model is copied to


class PatchState(NamedTuple):
    """What a configuration remembers while it is patched."""

    before: str | None  # the implementation under the patches, for models built from a saved configuration
    requested: str | None  # the configuration's attribute REQUESTED before
    records: tuple[Record, ...]  # in the order in which they were made


class Call(NamedTuple):
    """What a model asks of its attention: ``(A - gamma C) V``, plain as it comes."""

    module: nn.Module  # the attention module that asks
    query: Tensor  # (batch, heads, tokens, dim)
    key: Tensor  # as the queries, or with fewer heads that they share
    value: Tensor  # as the keys
    mask: Tensor | None = None  # of booleans, who may look at whom, or of numbers that are added to the scores
    causal: bool = False  # whether a row sees what comes before it and itself; the mask is None then
    scale: float = 1.0  # factor of the scores
    gamma: Coefficient = 0.0  # how much of the mean is taken away, for all heads or for each
    softcap: float | None = None  # what bounds the scores, by softcap tanh(score / softcap); the matrix is formed then
    sinks: Tensor | None = None  # scores, one for each head, of a sink outside of the keys; the matrix is formed then


class _Calls:
    """The last call of patched attention in compiled code, as an object that no other call is."""

    # Not a count: a compiled pass that reads what it wrote is compiled anew when that has changed. And an attribute of
    # an object: for those of a class compilers leave the graph.

    def __init__(self) -> None:
        self.last: list[Any] = []


class _ThreadCalls(_Calls, threading.local):
    """The same of code that is not compiled, by thread: models may be shared."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, tuple[list[Any], list[Any]]] = {}


CALLS, THREAD_CALLS = _Calls(), _ThreadCalls()
Transform: TypeAlias = Callable[[Call, Mapping[str, Any]], Call]  # what a patch with its parameters makes of a call
_transforms: dict[str, Transform] = {}
Rebuild: TypeAlias = Callable[[nn.Module, Record], None]
_rebuilds: dict[str, Rebuild] = {}


def transform(kind: str) -> Callable[[Transform], Transform]:
    """Declare a function to be what patches of a kind do; at import, so that saved models find it.

    Parameters
    ----------
    kind : str
        Name of the kind, which saved configurations have.

    Returns
    -------
    callable
        A decorator, which returns the function as it is.

    Examples
    --------
    >>> @transform("halved")
    ... def halved(call, parameters):
    ...     return call._replace(query=call.query / 2)
    >>> _transforms.pop("halved") is halved
    True
    """

    def declare(function: Transform) -> Transform:
        _transforms[kind] = function
        return function

    return declare


def rebuild(kind: str) -> Callable[[Rebuild], Rebuild]:
    """Declare what patches of a kind do to the weights of a model that is built from a saved configuration."""

    def declare(function: Rebuild) -> Rebuild:
        _rebuilds[kind] = function
        return function

    return declare


def is_permanent(record: Record) -> bool:
    """Whether a patch changed the weights of the model, so that it cannot be taken off."""
    return record.kind in _rebuilds


@takes(configuration=Like("a configuration of transformers", ("__dict__", "to_dict")))
def records_of(configuration: Any) -> tuple[Record, ...]:
    """The patches of a configuration, in order.

    Parameters
    ----------
    configuration : transformers.PretrainedConfig
        Of a model, or of a model inside it.

    Returns
    -------
    tuple of Record
        Empty if there are none.

    Examples
    --------
    >>> from transformers import GPT2Config
    >>> records_of(GPT2Config())
    ()
    """
    found: PatchState | None = configuration.__dict__.get(ATTRIBUTE)
    return () if found is None else found.records


def transform_of(kind: str) -> Transform:
    """The declared transform of a kind."""
    if kind not in _transforms:
        raise DomainError(
            f"kind = {kind!r} is no patch of this version of bulkedge, which has {sorted(_transforms)}; "
            "a later one may have made it"
        )
    return _transforms[kind]


def install() -> None:
    """Make transformers read records, where it is installed."""
    # ATTRIBUTE becomes a property of configurations, so that one read from a file has its records checked; and the
    # property CHOSEN answers NAME where there are records. So nothing that is done to the implementation of a patched
    # model makes it a plain one: neither set_attn_implementation, nor the argument of from_pretrained, nor the
    # configuration of a larger model, which sets those inside.
    try:
        from transformers import PreTrainedConfig
    except ImportError:
        return
    if hasattr(PreTrainedConfig, ATTRIBUTE):
        return
    plain: Any = vars(PreTrainedConfig)[CHOSEN]

    def chosen(configuration: Any) -> Any:
        if not hasattr(configuration, ATTRIBUTE):  # which compilers guard, and not what a __dict__ lacks
            return plain.fget(configuration)
        register()
        return NAME

    setattr(PreTrainedConfig, CHOSEN, property(chosen, plain.fset, plain.fdel, plain.__doc__))
    setattr(PreTrainedConfig, ATTRIBUTE, property(_get, _read))


class _Registration:
    """Whether transformers knows the attention; with the first patched model, because its import is slow."""

    yet = False


def register() -> None:
    """Make the attention and its masks known; without the mask, decoders would see the future."""
    # From then on a model that is built on a configuration with records names its modules. A second call does nothing.
    # Not left to the first pass, which may be compiled: no graph can do it.
    if _Registration.yet:
        return
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    plain = PreTrainedModel.post_init

    @wraps(plain)
    def post_init(model: Any) -> None:
        plain(model)
        if records_of(model.config):
            name_modules(model)
        for record in records_of(model.config):
            if is_permanent(record):
                _rebuilds[record.kind](model, record)

    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]
    _Registration.yet = True


def name_modules(model: nn.Module) -> None:
    """Give all modules of a model their paths in it, after those that they have in a model inside or around it."""
    # The part of the path that a head on top of a model adds is left out (base_model_prefix), so that names are the
    # same with and without it.
    prefix = f"{model.base_model_prefix}."
    for path, module in model.named_modules():
        known = vars(module).get(NAMES, ())
        name = path.removeprefix(prefix)
        if name not in known:
            setattr(module, NAMES, (name, *known))


def _get(configuration: Any) -> PatchState:
    """The property's value: missing, as any attribute, where there are no records."""
    try:
        found: PatchState = configuration.__dict__[ATTRIBUTE]
    except KeyError:
        raise AttributeError(f"{type(configuration).__name__} has no {ATTRIBUTE}: it is not patched") from None
    return found


def _read(configuration: Any, value: Any) -> None:
    """Records as they come from a file, into a configuration that is being built."""
    try:
        before, requested, records = value
        records = tuple(Record(*each) for each in records)
    except (TypeError, ValueError):
        raise DomainError(f"{ATTRIBUTE} = {value!r} is not what bulkedge.nn writes into configurations") from None
    for each in records:
        transform_of(each.kind)
    configuration.__dict__[ATTRIBUTE] = PatchState(before, requested, records)
    configuration.__dict__[REQUESTED] = NAME


def _attention(  # noqa: PLR0913 - the signature of the interface
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **wanted: Any,
) -> tuple[Tensor, Tensor | None]:
    """What transformers calls, after its ``sdpa_attention_forward``; weights are formed where they are asked for."""
    for name in UNSUPPORTED:
        if wanted.get(name) is not None:
            raise DomainError(f"{type(module).__name__} asks for {name!r}, which patched attention has not")
    if torch.compiler.is_compiling():
        CALLS.last = []
    else:
        THREAD_CALLS.last = []
    mask, causal = call_mask(module, query, key, attention_mask, is_causal=is_causal, arguments=wanted)
    if causal and key.shape[2] > query.shape[2]:  # an empty static cache: no row sees what it keeps free
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    more: dict[str, Any] = {"softcap": wanted.get("softcap"), "sinks": wanted.get("s_aux")}
    call = transform_call(Call(module, query, key, value, mask, causal, scale, **more))
    weights_wanted = wanted.get("output_attentions") or getattr(module.config, "output_attentions", False)
    if weights_wanted or call.softcap is not None or call.sinks is not None:
        output, weights = _with_weights(call, dropout)
        return output, weights if weights_wanted else None
    query, key, value, mask = call.query, call.key, call.value, call.mask
    shared = query.shape[1] > key.shape[1]
    output = shaped_attention(query, key, value, mask, dropout, call.causal, call.scale, shared, gamma=call.gamma)
    return output.transpose(1, 2).contiguous(), None


def _with_weights(call: Call, dropout: float) -> tuple[Tensor, Tensor]:
    """The output by ``A - gamma C`` as a matrix, and that matrix, as eager attention returns both."""
    (key, value), mask = _repeat_shared(call), call.mask
    if call.causal:
        mask = torch.ones(call.query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).tril()
    query, key = (each.to(torch.promote_types(each.dtype, torch.float32)) for each in (call.query, key))
    more: dict[str, Any] = {"softcap": call.softcap, "sinks": call.sinks}
    matrix = shaped_matrix(query, key, mask, dropout, call.scale, gamma=call.gamma, **more)
    matrix = matrix.to(value.dtype)
    return (matrix @ value).transpose(1, 2).contiguous(), matrix


def _repeat_shared(call: Call) -> tuple[Tensor, Tensor]:
    """Keys and values for each head of the queries."""
    times = call.query.shape[1] // call.key.shape[1]
    key, value = (each if times == 1 else each.repeat_interleave(times, dim=1) for each in (call.key, call.value))
    return key, value


def transform_call(call: Call) -> Call:
    """What the patches of a model make of a call, in their order.

    Parameters
    ----------
    call : Call
        What an attention module of a patched model asks.

    Returns
    -------
    Call
        What is computed.

    Raises
    ------
    DomainError
        If the model has no patch.

    Examples
    --------
    >>> @transform("twice")
    ... def twice(call, parameters):
    ...     return transformed(call)._replace(scale=2 * call.scale)   # doctest: +SKIP
    """
    records = records_of(call.module.config)
    if not records:
        raise DomainError(
            f"the configuration of {type(call.module).__name__} asks for the attention {NAME!r} without a patch that "
            "says which; use bulkedge.nn.remove_gap(model)"
        )
    for record in records:
        call = transform_of(record.kind)(call, record.parameters)
    return call


def _mask(*, q_length: int, mask_function: Callable[..., Any], **rest: Any) -> Tensor | None:
    """The masks of ``sdpa``; those that are the same for every row have one row, so that there is one mean."""
    # A causal mask that hides nothing else is not written out: kernels know it, and a running mean is far cheaper than
    # a product with the mask. sdpa_mask leaves it out too, but before transformers 5.22 not where torch compiles. Of a
    # window the kernels want the mask; the mean is a difference of running ones, if the mask says how far it reaches.
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

    # queries and keys are the same tokens, none of them padding, and a mask may be left out
    placed = all(isinstance(rest.get(each, 0), int) and rest.get(each, 0) == 0 for each in ("q_offset", "kv_offset"))
    whole = placed and rest["kv_length"] == q_length > 1
    # which may not be if sequences are packed or anything else is hidden
    whole = whole and rest.get("allow_is_causal_skip", True) and _hides_nothing(rest.get("attention_mask"))
    if mask_function is causal_mask_function and whole:
        return None
    if mask_function is not bidirectional_mask_function:
        written = sdpa_mask(q_length=q_length, mask_function=mask_function, **rest)
        reach, config = rest.get("local_size"), rest.get("config")
        chunked = getattr(config, "attention_chunk_size", None) is not None  # whose size comes by the same name
        windowed = reach is not None and reach == getattr(config, "sliding_window", None) and not chunked
        if whole and windowed and written is not None:
            setattr(written, REACH, reach)
        return written
    row = sdpa_mask(q_length=1, mask_function=mask_function, **rest)
    return None if row is None else row.expand(-1, -1, q_length, -1)


def _hides_nothing(padding: Tensor | None) -> bool:
    """Whether no token is padding; of a compiled pass, if there is no mask."""
    return padding is None or (not torch.compiler.is_compiling() and bool(padding.all()))


def unwrap(model: Any) -> Any:
    """The transformers model in what wraps it: adapters of peft, ``torch.compile``, parallel training, a module around.

    Of anything with none inside, or with several, only what torch puts around a module is taken off.
    """
    found = list(transformers_models(model))
    if len(found) == 1:
        return found[0]
    while hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    return model


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
