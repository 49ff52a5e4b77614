"""Bugs of an attention that a loss shows late or never: leaks, positions and masks without effect, twin heads.

A few passes on inputs that are changed where nothing may depend on them, or must. Rows of the queries of every layer
are compared as well as outputs, which says in which layer it begins.

>>> from transformers import GPT2Config, GPT2LMHeadModel
>>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=4, n_embd=32, vocab_size=50))
>>> print(check_attention(model, torch.arange(24)[None] * 7 % 50))
no bugs found: future, positions, twins
not tested: padding (the batch has no attention_mask), still (it needs a second state: before=)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bulkedge.models.hooks.attention_hooks import AttentionInputs, ForwardPass
from bulkedge.models.hooks.capture import observed_pass, stream
from bulkedge.models.scanning.passages import CalledModel, model_inputs, on_device
from bulkedge.nn.patching.interface import unwrap
from bulkedge.support.domains import MODULE, shown, takes
from bulkedge.support.errors import DomainError

ROUNDINGS = 100  # units in the last place by which numbers may differ that ought to be equal
ROWS = 16  # rows of a layer of which the attention on hidden keys is measured
SHARE = 1e-6  # of a row's attention that counts as none
HIDING = {"src_key_padding_mask", "key_padding_mask"}  # masks of torch's own modules: true where a key is hidden
BESIDE = {"attention_mask", "token_type_ids", "position_ids", "labels", "targets", *HIDING}
"""Inputs that are not the tokens themselves."""
KINDS = {
    "future": "compare the mask with torch.ones(T, T).tril(), pass is_causal=True, and look for what else mixes tokens",
    "positions": "check that position ids count up, and that rotary or learned positions reach the queries and keys",
    "padding": "hand attention_mask to every attention; a mask of booleans is true where a key may be seen, one of "
    "numbers is 0 there and -inf elsewhere",
    "still": "check requires_grad, the parameters of the optimiser, and that no projection is replaced or detached",
    "twins": "give each head and layer its own slice of the projections; copies of a module need new weights",
}
"""What is looked for, and what helps."""


class Bug(NamedTuple):
    """A bug: what was found, where, and what helps.

    >>> print(Bug("twins", ("h.0.attn",), 0.0, "heads 0 and 1 have the same keys", "give each its own weights"))
    twins, h.0.attn: heads 0 and 1 have the same keys. Remedy: give each its own weights.
    """

    kind: str
    modules: tuple[str, ...]
    number: float  # what was measured: a share of attention, or a relative change
    words: str
    remedy: str

    def __str__(self) -> str:
        where = ", ".join((*self.modules[:3], *(["..."] if len(self.modules) > 3 else [])))
        return f"{self.kind}{where and f', {where}'}: {self.words}. Remedy: {self.remedy}."


@dataclass(frozen=True)
class AttentionCheck:
    """What :func:`check_attention` found.

    Attributes
    ----------
    findings : tuple of Bug
        The bugs; none in a healthy model.
    causal : bool
        Whether the model was taken for one whose tokens see no later ones.
    tested : tuple of str
        Kinds of bugs that were looked for.
    untested : dict of str to str
        The others, with the reason.
    """

    findings: tuple[Bug, ...]
    causal: bool
    tested: tuple[str, ...]
    untested: Mapping[str, str]

    def __str__(self) -> str:
        lines = [str(each) for each in self.findings] or [f"no bugs found: {', '.join(self.tested)}"]
        left = ", ".join(f"{kind} ({why})" for kind, why in self.untested.items())
        return "\n".join([*lines, *([f"not tested: {left}"] if left else [])])


@takes(model=MODULE)
def check_attention(
    model: nn.Module,
    batch: Any,
    *,
    causal: bool | None = None,
    before: nn.Module | Mapping[str, Any] | None = None,
    forward: Callable[[Any, dict[str, Any]], Any] | None = None,
) -> AttentionCheck:
    """Look for bugs of a model's attention, by a few passes in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module
        As for :func:`bulkedge.scan`. It is left as it was.
    batch : Tensor or mapping of str to Tensor
        What the model is called with, by name; one tensor is its first argument. A few sequences of a few dozen tokens
        are enough. With an ``attention_mask`` padding is tested too.
    causal : bool, optional
        Whether tokens may not see later ones. Unless given, this is what the model says of itself (``is_causal`` of its
        attentions, ``is_decoder`` of its configuration), or else what most of its layers do.
    before : torch.nn.Module or mapping of str to Tensor, optional
        The model, or its ``state_dict``, before some steps of training. It takes two states to see heads that do not
        move.
    forward : callable, optional
        How the model is called, as ``forward(model, inputs)``, if not with the names of the batch.

    Returns
    -------
    AttentionCheck
        Its findings: ``future`` (earlier tokens depend on later ones), ``positions`` (the place of a token makes no
        difference), ``padding`` (tokens that the mask hides matter), ``still`` (queries and keys that did not move),
        and ``twins`` (heads or layers with the same keys).

    Raises
    ------
    DomainError
        If no attention can be read, or the batch has no tokens to change.

    Examples
    --------
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, batch_first=True)
    >>> found = check_attention(layer, torch.randn(2, 12, 16))
    >>> [each.kind for each in found.findings]                     # it adds no positions by itself
    ['positions']
    """
    _check_options(causal, before, forward)
    inputs = model_inputs(model, dict(batch) if isinstance(batch, Mapping) else {_first_name(batch): batch})
    called: nn.Module = model if forward is None else CalledModel(model, forward)
    with on_device(model, None):
        trial = _BatchTrial.of(called, inputs, causal)
        untested = {
            "future": "" if trial.causal else "tokens of this model may see later ones",
            "positions": "",
            "padding": trial.no_padding,
            "still": "" if before is not None else "it needs a second state: before=",
            "twins": "",
        }
        tests = {"future": trial.future, "positions": trial.positions, "padding": trial.padding, "twins": trial.twins}
        findings = [each for kind, test in tests.items() if not untested[kind] for each in test()]
        if before is not None:
            findings.extend(_still(model, called, before, inputs))
    return AttentionCheck(
        tuple(findings),
        trial.causal,
        tuple(kind for kind, why in untested.items() if not why),
        {kind: why for kind, why in untested.items() if why},
    )


def _check_options(causal: object, before: object, forward: object) -> None:
    """Refuse what cannot be used, before the model is called."""
    if not isinstance(causal, bool | None):
        raise DomainError(f"causal = {shown(causal)} must be True, False or None")
    tensors = isinstance(before, Mapping) and all(isinstance(each, Tensor) for each in before.values())
    if not (before is None or tensors or isinstance(before, nn.Module)):
        raise DomainError(f"before = {shown(before)} must be a model, or its state_dict")
    if not (forward is None or callable(forward)):
        raise DomainError(f"forward = {shown(forward)} must be a function of the model and its inputs")


def _first_name(batch: Any) -> str:
    """The name of a batch that is a single tensor."""
    if not isinstance(batch, Tensor):
        raise DomainError(f"batch = {shown(batch)} is neither a tensor nor tensors by name")
    return "input" if batch.is_floating_point() else "input_ids"


class _Recorder(ForwardPass):
    """Keeps queries and keys of all attentions of a pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.layers: list[AttentionInputs] = []
        self.output: Any = None

    def attend(self, found: AttentionInputs) -> None:
        """Keep one."""
        name = found.name.replace("_orig_mod.", "")
        self.layers.append(found._replace(name=name, value=None, weights=None))


def _record(model: nn.Module, inputs: dict[str, Any]) -> _Recorder:
    one = _Recorder(model)
    one.output = observed_pass(model, one, dict(inputs))
    return one


@dataclass(frozen=True)
class _BatchTrial:
    """A model, its batch, and what a pass on it gave."""

    model: nn.Module
    inputs: dict[str, Any]
    plain: _Recorder
    causal: bool

    @classmethod
    def of(cls, model: nn.Module, inputs: dict[str, Any], causal: Any) -> _BatchTrial:
        inputs = dict(inputs)
        for name in ("attention_mask", *HIDING):  # rows of padding may see what they like: it is put in again later
            if getattr(inputs.get(name), "ndim", 0) == 2:
                inputs[name] = torch.full_like(inputs[name], name not in HIDING)
        plain = _record(model, inputs)
        if not plain.layers:
            raise DomainError(f"{type(model).__name__} ran without an attention that could be read: see be.watch")
        return cls(model, inputs, plain, _is_causal(model, plain.layers) if causal is None else bool(causal))

    @property
    def mask_name(self) -> str:
        """The input that hides tokens."""
        names = ("attention_mask", *HIDING)
        return next((each for each in names if getattr(self.inputs.get(each), "ndim", 0) == 2), "")

    @property
    def no_padding(self) -> str:
        """Why padding is not tested, if it is not."""
        if self.tokens_name.startswith("decoder"):
            return "the model has two parts: check its encoder by itself"
        return "" if self.mask_name else "the batch has no attention_mask"

    @property
    def tokens_name(self) -> str:
        """The input with the tokens: whole numbers, or else vectors or images."""
        own = {
            name: each for name, each in self.inputs.items()
            if isinstance(each, Tensor) and name not in BESIDE and "mask" not in name
        }  # fmt: skip
        ids = [name for name, each in own.items() if each.ndim == 2 and not each.is_floating_point()]
        ids.sort(key=lambda name: "decoder" not in name)  # whose rows see no later ones, in models of two parts
        vectors = [name for name, each in own.items() if each.ndim >= 3 and each.is_floating_point()]
        if not ids + vectors:
            raise DomainError(f"batch has no tokens that could be changed: it has {sorted(self.inputs)}")
        return (ids + vectors)[0]

    @property
    def axis(self) -> int:
        """Which axis of the tokens counts them: the first in torch's modules that are not ``batch_first``."""
        rows, shape = self.plain.layers[0].query.shape[2], self.inputs[self.tokens_name].shape
        return 0 if shape[1] != rows and shape[0] == rows else 1

    def changed(self, places: Tensor) -> dict[str, Any]:
        """The batch with other tokens at some places."""
        tokens = self.inputs[self.tokens_name].movedim(self.axis, 1).clone()
        if tokens.is_floating_point():
            noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens)
            tokens[:, places] += (noise * tokens.std())[:, places]
        else:
            known = tokens.unique()
            if len(known) < 2:
                raise DomainError("batch repeats a single token: give one with several")
            tokens[:, places] = known[(torch.searchsorted(known, tokens) + 1) % len(known)][:, places]
        return self.inputs | {self.tokens_name: tokens.movedim(1, self.axis).contiguous()}

    def differences(self, one: _Recorder, other: _Recorder, rows: Tensor) -> list[tuple[str, float]]:
        """Largest relative difference of some rows of the queries of each layer, and of the output at the end."""
        found = [
            (mine.name, _difference(mine.query[:, :, rows], theirs.query[:, :, rows]))
            for mine, theirs in zip(one.layers, other.layers, strict=True)
            if self._within(mine)
        ]
        mine, theirs = (_output(each.output, self.plain.layers[0]) for each in (one, other))
        if mine is not None and theirs is not None:
            found.append(("the output", _difference(mine[:, rows], theirs[:, rows])))
        return found

    def _within(self, layer: AttentionInputs) -> bool:
        """Whether a layer's rows and keys are the tokens of the batch."""
        return layer.query.shape[2] == layer.key.shape[2] == self.plain.layers[0].query.shape[2]

    @property
    def tolerance(self) -> float:
        """How much numbers may differ by rounding."""
        eps = torch.finfo(self.plain.layers[0].query.dtype).eps
        return ROUNDINGS * eps if eps < 1e-5 else 8 * eps

    def future(self) -> Iterator[Bug]:
        """Attention to later keys, and rows that depend on later tokens by any other way."""
        leaks = {}
        encoders = {each.name for each in self.plain.layers if getattr(each.module, "is_causal", None) is False}
        two_parts = 0 < len(encoders) < len(self.plain.layers)
        for layer in filter(self._within, self.plain.layers):
            if two_parts and layer.name in encoders:
                continue
            shares = _largest_share(layer)
            if float(shares.max()) > SHARE:
                leaks[layer.name] = shares
        if leaks:
            share = max(float(each.max()) for each in leaks.values())
            count = sum(int((each > SHARE).sum()) for each in leaks.values())
            places = "one layer" if len(leaks) == 1 else f"{len(leaks)} layers"
            words = f"{count} heads of {places} attend to later keys, with up to {share:.1%} of a row"
            yield Bug("future", tuple(leaks), share, words, KINDS["future"])
            return
        tokens = self.plain.layers[0].query.shape[2]
        if tokens < 4:
            return
        cut = tokens // 2
        after = torch.arange(cut, tokens)
        moved = _first(
            self.differences(self.plain, _record(self.model, self.changed(after)), torch.arange(cut)), self.tolerance
        )
        if moved:
            words = f"tokens before place {cut} change by {moved[1]:.2g} when later ones do, seen first in {moved[0]}"
            yield Bug("future", (), moved[1], f"{words}; no attention looks ahead", KINDS["future"])

    def positions(self) -> Iterator[Bug]:
        """Whether the places of one token, repeated, can be told apart; depth alone does that for different tokens."""
        name, axis = self.tokens_name, self.axis
        tokens = self.inputs[name]
        one = (
            tokens.select(axis, tokens.shape[axis] // 2).unsqueeze(axis)
            if tokens.ndim < 4
            else tokens.mean((2, 3), keepdim=True)
        )
        inputs = self.inputs | {name: one.expand(tokens.shape).contiguous()}
        layers = [each for each in _record(self.model, inputs).layers if each.query.shape[2] == each.key.shape[2] > 2]
        spread = max((_spread(each) for each in layers), default=1.0)
        if spread < self.tolerance:
            words = "queries and keys of a repeated token are the same at all places, in every layer"
            yield Bug("positions", tuple(each.name for each in layers), spread, words, KINDS["positions"])

    def padding(self) -> Iterator[Bug]:
        """Attention to tokens that the mask hides, and rows that depend on them."""
        mask = self.inputs[self.mask_name]
        tokens = mask.shape[1]
        if tokens < 4 or tokens != self.plain.layers[0].query.shape[2]:
            return
        quarter = torch.arange(tokens // 4)
        # behind tokens that see no later ones, padding at the end would never matter
        hidden = quarter if self.causal else tokens - 1 - quarter
        real = torch.tensor([each for each in range(tokens) if each not in set(hidden.tolist())])
        written = torch.full_like(mask, self.mask_name not in HIDING)
        written[:, hidden] = self.mask_name in HIDING
        one = _record(self.model, self.inputs | {self.mask_name: written})
        shares = {}
        for layer in filter(self._within, one.layers):
            shares[layer.name] = float(_largest_share(layer, hidden, real).max())
        seen = {name: each for name, each in shares.items() if each > SHARE}
        if seen:
            share = max(seen.values())
            words = f"{len(seen)} of {len(shares)} layers give up to {share:.1%} of a row to tokens that the mask hides"
            yield Bug("padding", tuple(seen), share, words, KINDS["padding"])
            return
        other = _record(self.model, self.changed(hidden) | {self.mask_name: written})
        moved = _first(self.differences(one, other, real), self.tolerance)
        if moved:
            words = f"real tokens change by {moved[1]:.2g} when hidden ones do, seen first in {moved[0]}"
            yield Bug("padding", (), moved[1], words, KINDS["padding"])

    def twins(self) -> Iterator[Bug]:
        """Heads of a layer, and layers, with the same keys."""
        layers = list({each.name: each for each in self.plain.layers}.values())
        for layer in layers:
            heads = [
                (one, two)
                for two in range(layer.key.shape[1])
                for one in range(two)
                if _same(layer.key[:, one], layer.key[:, two], self.tolerance)
            ]
            if heads:
                words = f"key heads {heads[0][0]} and {heads[0][1]} have the same keys ({len(heads)} such pairs)"
                yield Bug("twins", (layer.name,), float(len(heads)), words, KINDS["twins"])
        if getattr(getattr(unwrap(self.model), "config", None), "num_kv_shared_layers", 0):
            return
        for place, two in enumerate(layers):
            for one in layers[:place]:
                shared = {id(each) for each in one.module.parameters()} & {id(each) for each in two.module.parameters()}
                same = one.key.shape == two.key.shape and _same(one.key, two.key, self.tolerance)
                if same or (shared and one.module is not two.module):
                    words = "these layers have the same keys" if same else "these layers share parameters"
                    yield Bug("twins", (one.name, two.name), 1.0, words, KINDS["twins"])


def _is_causal(model: nn.Module, layers: list[AttentionInputs]) -> bool:
    """Whether a model says that tokens see no later ones, or else whether most of its layers do."""
    own = [each for each in layers if each.query.shape[2] == each.key.shape[2]]
    said = [getattr(each.module, "is_causal", None) for each in own]
    if any(isinstance(each, bool) for each in said):
        return any(each is True for each in said)
    config = getattr(unwrap(model), "config", None)
    if getattr(config, "is_decoder", False):
        return True
    blind = [float(_largest_share(layer).max()) < SHARE for layer in own]
    return sum(blind) > len(blind) / 2


def _largest_share(layer: AttentionInputs, keys: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """Largest share that some rows of each head give to some keys, or to all that are later."""
    rows = torch.arange(layer.visible.rows) if rows is None else rows
    chosen = rows[torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).long()].to(layer.key.device)
    key = layer.key.repeat_interleave(layer.query.shape[1] // layer.key.shape[1], dim=1).float()
    scores = layer.scale * (layer.query[:, :, chosen].float() @ key.mT)
    scores = scores if layer.softcap is None else layer.softcap * (scores / layer.softcap).tanh()
    bias, seen = layer.visible.bias(chosen)
    scores = torch.where(seen, scores if bias is None else scores + bias, -torch.inf)
    weights = scores.softmax(-1).nan_to_num()  # rows of padding see nothing
    place = torch.arange(layer.visible.keys, device=layer.key.device)
    wanted = place > chosen[:, None] if keys is None else torch.isin(place, keys.to(place))
    return (weights * wanted).sum(-1).amax((0, 2))


def _difference(one: Tensor, other: Tensor) -> float:
    """Largest difference over the root of the mean square."""
    size = one.float().square().mean().sqrt()
    return float((one.float() - other.float()).abs().max() / size) if size else 0.0


def _same(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether keys are the same, and not zero."""
    size = one.float().norm()
    return bool(size) and float((one.float() - other.float()).norm() / size) < tolerance


def _spread(layer: AttentionInputs) -> float:
    """How much queries, keys, or what is added to scores differ along a repeated token, but for the first place."""
    found = []
    for each in (layer.query, layer.key):
        values = each[:, :, 1:].float()
        size = values.square().mean().sqrt()
        found.append(float((values - values[:, :, :1]).abs().max() / size) if size else 0.0)
    last = torch.tensor([layer.visible.rows - 1], device=layer.key.device)
    bias, seen = layer.visible.bias(last)
    if bias is not None:
        known = bias.expand(*seen.shape[:1], bias.shape[1], *bias.shape[2:])[..., 1:]
        shown = seen.expand_as(bias)[..., 1:]
        high = torch.where(shown, known, -torch.inf).amax(-1)
        found.append(float((high - torch.where(shown, known, torch.inf).amin(-1)).nan_to_num(posinf=0, neginf=0).max()))
    return max(found)


def _output(output: Any, layer: AttentionInputs) -> Tensor | None:
    """The part of an output that has a row for every token."""
    parts = output if isinstance(output, tuple | list) else [output]
    parts = list(output.values()) if isinstance(output, Mapping) else parts
    shape = (layer.query.shape[0], layer.query.shape[2])
    return next((each for each in parts if isinstance(each, Tensor) and tuple(each.shape[:2]) == shape), None)


def _first(found: list[tuple[str, float]], tolerance: float) -> tuple[str, float] | None:
    """The first layer that differs."""
    return next((each for each in found if each[1] > tolerance), None)


def _still(
    model: nn.Module, called: nn.Module, before: nn.Module | Mapping[str, Any], inputs: dict[str, Any]
) -> Iterator[Bug]:
    """Heads whose queries and keys are those of another state on the same inputs."""
    if isinstance(before, nn.Module):
        other = before
    else:
        other = copy.deepcopy(model)
        other.load_state_dict(dict(before))
    other.eval()
    modules = dict(other.named_modules())
    still: dict[str, list[int]] = {}
    count = 0

    def visit(each: Any) -> None:
        nonlocal count
        past = each.again(modules[each.layer.name])
        moved = [
            (mine != theirs).transpose(0, 1).flatten(1).any(-1)
            for mine, theirs in ((each.layer.query, past.query), (each.layer.key, past.key))
        ]
        heads = (~(moved[0] | moved[1])).nonzero().flatten().tolist()
        count += len(moved[0])
        if heads:
            still[each.layer.name] = heads

    stream(called, visit, **inputs)
    if still:
        number = sum(map(len, still.values()))
        name, heads = next(iter(still.items()))
        first = f"the first: head {heads[0]} of {name}"
        words = f"queries and keys of {number} of {count} heads are what they were before ({first})"
        yield Bug("still", tuple(still), number / count, words, KINDS["still"])
