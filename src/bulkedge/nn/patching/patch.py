"""Patches of transformers models: changes of their attention that copy, save, nest and come off again.

Everything a patch needs is on the model's configuration (:mod:`bulkedge.nn.patching.interface`), so it goes where that
goes: into deep copies, pickles and ``save_pretrained``. A saved configuration also asks for the attention
``bulkedge.nn`` by name. Where :mod:`bulkedge.nn` was imported, ``from_pretrained`` gives a patched model; elsewhere
transformers refuses to build it, and names what is missing.

>>> from transformers import BertConfig, BertModel
>>> import torch
>>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64))
>>> with remove_gap(model):
...     repaired = model(torch.arange(12)[None]).last_hidden_state
>>> model.config._attn_implementation
'sdpa'
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

import torch
from torch import nn

from bulkedge.nn.patching.interface import (
    ATTRIBUTE,
    CALLS,
    CHOSEN,
    NAME,
    REQUESTED,
    THREAD_CALLS,
    Call,
    PatchState,
    Record,
    install,
    is_permanent,
    records_of,
    register,
    transform,
    transform_of,
    unwrap,
)
from bulkedge.support.domains import MODULE, Instance, Text, takes
from bulkedge.support.errors import DomainError

GAP_FREE = "gap_free"  # the kind of these patches
# what a model on flex attention wants beside its mask: in its configuration what bounds the scores, and of its modules
CAP, SINKS = "attn_logit_softcapping", "sinks"


@dataclass(frozen=True, eq=False)
class Patch:
    """A patch of a model, to be taken off by :func:`restore`; as a context manager it comes off at the end."""

    model: nn.Module
    record: Record

    @property
    def active(self) -> bool:
        """Whether it is on the model still."""
        return any(self.record.key == each.key for each in patches(self.model))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.active:
            restore(self)


@takes(model=MODULE, kind=Text(), parameters=Instance(Mapping))
def apply_patch(model: nn.Module, kind: str, parameters: Mapping[str, Any] | None = None) -> Patch:
    """Put a patch on a model, after those it has.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model whose attention goes through transformers' ``AttentionInterface`` and may run on ``sdpa``, or would
        but for capped scores. Models that were built on one configuration object share its patches, as they share all
        else that it says. A model on flash or flex attention runs on ``sdpa`` while it is patched, and a warning says
        so.
    kind : str
        The name of a declared :func:`transform`.
    parameters : mapping, optional
        What the transform gets, of JSON types: they are saved with the model.

    Returns
    -------
    Patch
        To take it off again.

    Raises
    ------
    DomainError
        If the model, or a model inside it, is not of that kind: nothing is changed then.
    RuntimeError
        By the first forward pass, if that never came to the attention: all patches are off then.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> apply_patch(model, "gap_free").record.kind
    'gap_free'
    """
    record = Record(kind, _through_json(parameters or {}), uuid4().hex)
    transform_of(kind)
    model = unwrap(model)
    check_patchable(model)
    install()
    register()
    inside = list(configurations(model))
    plain = [each for each in inside if not records_of(each)]
    others = sorted({each._attn_implementation for each in plain} - {None, "eager", "sdpa", NAME})
    if others:
        warnings.warn(
            f"{type(model).__name__} attends by {', '.join(others)}; while it is patched, by torch's fused attention "
            "(sdpa), where windows and packed sequences are masks of tokens by tokens",
            stacklevel=5,  # the caller of remove_gap; checks of arguments are calls too
        )
    for each in inside:
        _set(each, (*records_of(each), record))
    if plain:
        _FirstPass.watch(model)
    return Patch(model, record)


@takes(model=MODULE)
def patches(model: nn.Module) -> tuple[Record, ...]:
    """The patches of a model and of models inside it, in the order in which they were made on each.

    Parameters
    ----------
    model : torch.nn.Module
        A transformers model.

    Returns
    -------
    tuple of Record
        Kind and parameters of each; empty for a model that is not patched.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> patches(model)
    ()
    """
    found: dict[str, Record] = {}
    for configuration in configurations(model):
        for record in records_of(configuration):
            found.setdefault(record.key, record)
    return tuple(found.values())


@takes(patched=Instance((Patch, nn.Module)), kind=Text())
def restore(patched: Patch | nn.Module, kind: str | None = None) -> None:
    """Take patches off: a single one, in whatever order they were made, or those of a model.

    Without patches outputs are bit for bit what they were.

    Parameters
    ----------
    patched : Patch or transformers.PreTrainedModel
        A patch; or a model, also a copy or a loaded one, which loses all patches of the kind.
    kind : str, optional
        Of the patches that a model loses; all of them unless given.

    Raises
    ------
    DomainError
        If there is no such patch.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> restore(apply_patch(model, "gap_free"))
    >>> patches(model)
    ()
    """
    model = unwrap(patched.model if isinstance(patched, Patch) else patched)
    present = {each.key: each.kind for each in patches(model)}
    kept = {each.key for each in patches(model) if is_permanent(each)}
    if isinstance(patched, Patch):
        keys = present.keys() & {patched.record.key}
    else:
        keys = {key for key, of_kind in present.items() if kind in (None, of_kind)}
    if keys & kept and (isinstance(patched, Patch) or kind is not None):
        raise DomainError(
            f"what {present[min(keys & kept)]!r} took from the weights does not come back: load them again"
        )
    keys -= kept
    if not keys:
        wanted = "it was taken off before" if isinstance(patched, Patch) else f"it has {sorted(present.values())}"
        raise DomainError(f"{type(model).__name__} does not have that patch: {wanted}")
    for configuration in configurations(model):
        _set(configuration, tuple(each for each in records_of(configuration) if each.key not in keys))
    if len(keys) == len(present):
        _FirstPass.leave(model)


def _through_json(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the parameters, as a saved model would have them; refused if that were something else."""
    given = dict(parameters)
    try:
        copy = json.loads(json.dumps(given))
    except TypeError:
        copy = None
    if copy != given:
        raise DomainError(f"parameters = {given!r} would be saved as JSON, and come back as {copy!r}; give JSON types")
    return copy


def _set(configuration: Any, records: tuple[Record, ...]) -> None:
    """Replace the records of a configuration; the last one takes every trace along."""
    state = configuration.__dict__
    found: PatchState | None = state.get(ATTRIBUTE)
    if found is None:
        if records:
            before = configuration._attn_implementation
            state[ATTRIBUTE] = PatchState(before, state.get(REQUESTED), records)
            state[REQUESTED] = NAME
    elif records:
        state[ATTRIBUTE] = found._replace(records=records)
    else:
        del state[ATTRIBUTE], state[REQUESTED]
        if found.requested is not None:
            state[REQUESTED] = found.requested
        if configuration._attn_implementation == NAME:  # a model built from a saved configuration
            configuration._attn_implementation_internal = found.before


def _models(model: nn.Module) -> Iterator[Any]:
    from transformers import PreTrainedModel

    model = unwrap(model)
    if not isinstance(model, PreTrainedModel):
        raise DomainError(
            f"{type(model).__name__} is not a transformers model, nor is there exactly one inside; modules of your "
            "own can call bulkedge.nn.gap_free_attention"
        )
    return (inside for inside in model.modules() if isinstance(inside, PreTrainedModel))


@takes(model=MODULE)
def check_interface(model: nn.Module) -> None:
    """Refuse models that do not come to transformers' ``AttentionInterface``, as far as their classes show it.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A model.

    Raises
    ------
    DomainError
        If the model, or a model inside it, computes its attention by itself.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> check_interface(model)
    """
    for inside in _models(model):
        if not inside._can_set_attn_implementation() or CHOSEN in vars(type(inside.config)):
            raise DomainError(
                f"{type(inside).__name__} computes its attention by itself, not by transformers' interface"
            )


def check_patchable(model: nn.Module) -> None:
    """Refuse models that cannot be patched."""
    check_interface(model)
    for inside in _models(model):
        more = hasattr(inside.config, CAP) or any(hasattr(each, SINKS) for each in inside.modules())
        if not inside._supports_sdpa and not (inside._supports_flex_attn and more):
            raise DomainError(
                f"{type(inside).__name__} does not run on torch's fused attention (sdpa), which patched models go "
                "through"
            )


def configurations(model: nn.Module) -> Iterator[Any]:
    """Configurations of the models inside a model, and those inside them, each once."""
    waiting = [inside.config for inside in _models(model)]
    known: set[int] = set()
    while waiting:
        configuration = waiting.pop(0)
        if id(configuration) not in known:
            known.add(id(configuration))
            yield configuration
            parts = (getattr(configuration, name, None) for name in configuration.sub_configs)
            waiting.extend(each for each in parts if each is not None)


@dataclass(eq=False)
class _FirstPass:
    """Two hooks that make the first forward pass fail if it went past the attention."""

    # The check of the class looks at source text, and may be mistaken. Hooks are on the model, know no other, and are
    # copied and pickled with it. A compiled pass is checked while it is compiled, and keeps them: no graph can take
    # them off, and in it they cost nothing. They go with the first pass that is not compiled.

    handles: list[Any] = field(default_factory=list)
    before: Any = None
    attribute = "_bulkedge_first_pass"

    @classmethod
    def watch(cls, model: nn.Module) -> None:
        cls.leave(model)
        check = cls()
        check.handles = [model.register_forward_pre_hook(check.begin), model.register_forward_hook(check.end)]
        setattr(model, cls.attribute, check)

    @classmethod
    def leave(cls, model: nn.Module) -> None:
        check = vars(model).pop(cls.attribute, None)
        for handle in () if check is None else check.handles:
            handle.remove()

    def begin(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            self.before = CALLS.last
        else:
            THREAD_CALLS.before[id(self)] = CALLS.last, THREAD_CALLS.last

    def end(self, model: nn.Module, *_: Any) -> None:
        if torch.compiler.is_compiling():
            if CALLS.last is self.before:
                _take_off(model)
            return
        compiled, own = THREAD_CALLS.before.pop(id(self))
        if CALLS.last is compiled and THREAD_CALLS.last is own:
            _take_off(model)
        else:
            self.leave(model)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _take_off(model: nn.Module) -> None:
    """Take all patches off, and say why; a compiled pass leaves its graph for it."""
    if not all(map(is_permanent, patches(model))):
        restore(model)
    raise RuntimeError(f"{type(model).__name__} never called transformers' AttentionInterface; patches are off again")


# -- the patch that removes the gap ------------------------------------------------------------------------------------


@takes(model=MODULE)
def remove_gap(model: nn.Module) -> Patch:
    """Replace ``A`` by ``A - C`` in every attention of a transformers model, on torch's fused kernels.

    Weights are left alone; :func:`restore_gap`, :func:`bulkedge.nn.restore` or the end of a ``with`` block undoes it.
    Where a decoder is causal, its first token gets nothing from attention. With windows, packed sequences, padding and
    caches, every row's mean is over the keys that it sees. A model whose gap was removed twice has no gap until both
    are undone.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As for :func:`bulkedge.nn.apply_patch`.

    Returns
    -------
    Patch
        A context manager, for those who want the gap back.

    Raises
    ------
    DomainError
        If the model, or a model inside it, is not of that kind: nothing is changed then.
    RuntimeError
        By the first forward pass, if that never came to the attention: the gap is put back then.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> remove_gap(model).active
    True
    """
    return apply_patch(model, GAP_FREE)


@takes(model=MODULE)
def restore_gap(model: nn.Module) -> None:
    """Undo every :func:`remove_gap` of a model, also of a copied or loaded one; other patches stay.

    Without patches outputs are bit for bit what they were.

    Parameters
    ----------
    model : torch.nn.Module
        A patched transformers model.

    Raises
    ------
    DomainError
        If its gap was not removed.

    Examples
    --------
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=32))
    >>> patch = remove_gap(model)
    >>> restore_gap(model)
    >>> patch.active
    False
    """
    if all(each.kind != GAP_FREE for each in patches(model)):
        raise DomainError(f"the gap of {type(model).__name__} was not removed")
    restore(model, GAP_FREE)


@transform(GAP_FREE)
def _gap_free(call: Call, parameters: Mapping[str, Any]) -> Call:  # noqa: ARG001 - it has none
    """All of the mean is taken, also of a second such patch: rows that sum to zero have no mean left."""
    return call._replace(gamma=1.0)
