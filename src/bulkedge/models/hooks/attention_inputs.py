"""The heads of one attention module: queries, keys, and what is between their scores and the attention.

A head attends by ``softmax(cap(scale q . k) + bias)``, where the cap and the bias may be missing, and a sink that is
none of the keys may take its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bulkedge.models.hooks.attention_hooks import AttentionCall
from bulkedge.models.hooks.visible import SOME, Visible
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Mask

OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states")
"""Arguments by which attention modules are given the sequence that they look at, where it is not their own."""
COMPARED_ROWS = 4
"""Rows of a head that are held against the attention that the model returned."""
ROUNDINGS = 16
"""Units in the last place of the largest possible score by which a model's weights may differ from those heard."""


@dataclass(frozen=True, eq=False)
class AttentionLayer:
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
        Whether a row sees what comes before it and itself; there is no mask then, and nothing beside it.
    scale : float
        Factor of the scores.
    cross : bool
        Whether keys are of another sequence than queries.
    softcap : float or None
        Scores s become ``softcap tanh(s / softcap)`` before the mask is added; None for no cap.
    sinks : Tensor of shape (heads,) or None
        Scores of a key without a value that all rows of a head see; None where there is none.
    beside : Visible or None
        What hides keys beside the mask, where it is not plainly causal: the future, or what is outside of a window.
    """

    name: str
    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    cross: bool = False
    softcap: float | None = None
    sinks: Tensor | None = None
    beside: Visible | None = None

    @property
    def structure(self) -> Mask | None:
        """Who sees whom, if a rule says so: all, the past, or a window of it; None behind any other mask."""
        rows, tokens = self.query.shape[-2], self.key.shape[-2]
        if self.causal:
            return Mask.causal(tokens)
        if self.mask is not None:
            return None
        if self.beside is None:
            return Mask.cross(rows, tokens)
        plain = self.beside.causal and rows == tokens
        return Mask.window(tokens, self.beside.window or tokens) if plain else None

    def capped(self, scores: Tensor) -> Tensor:
        """Scores of queries and keys as the softmax gets them, before the mask is added.

        Parameters
        ----------
        scores : Tensor
            Scale times products of queries and keys.

        Returns
        -------
        Tensor
            The same, if there is no cap.
        """
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def bias(self, rows: slice | None = None) -> Tensor | None:
        """What is added to the scores: positional terms, and minus infinity for keys that a row does not see.

        Parameters
        ----------
        rows : slice, optional
            Some rows, from the first to before the last; all unless given.

        Returns
        -------
        Tensor or None
            In double precision; it broadcasts to (batch, heads, rows, tokens). None where nothing is added.
        """
        count, tokens = self.query.shape[-2], self.key.shape[-2]
        rows = slice(0, count) if rows is None else rows
        found = None if self.mask is None else self._mask(rows)
        rule = Visible(None, causal=True, window=None, rows=count, keys=tokens) if self.causal else self.beside
        if rule is None:
            return found
        numbers = torch.arange(rows.start, rows.stop, device=self.query.device)
        unseen = rule.bias(numbers)[1][0, 0].logical_not()
        found = self.query.new_zeros(()).double() if found is None else found
        return found.masked_fill(unseen, -float("inf"))

    def _mask(self, rows: slice) -> Tensor:
        """The mask as numbers that are added, of some rows."""
        mask = _cut(self.mask, rows)
        if not mask.is_floating_point():
            return self.query.new_zeros(()).double().masked_fill(mask.bool().logical_not(), -float("inf"))
        return mask.double().masked_fill(~_shown(mask), -float("inf"))

    def attention(self) -> Tensor:
        """The attention matrices, in double precision.

        Returns
        -------
        Tensor of shape (batch, heads, rows, tokens)
            Rows sum to one, or to what sinks outside of the keys leave. Weights of keys that a row does not see are
            zero.
        """
        scores = self.capped(self.scale * (self.query.double() @ self.key.double().mT))
        bias = self.bias()
        return with_sinks(scores if bias is None else scores + bias, self.sinks)


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over keys and a sink that is none of them."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def layer_of(asked: AttentionCall, named: Mapping[str, Any]) -> AttentionLayer:
    """The heads of a module, from what it asked of its attention."""
    call = asked.call
    groups = call.query.shape[1] // call.key.shape[1]
    cross = any(named.get(each) is not None for each in OTHER_SEQUENCE)
    cross = cross or call.query.shape[2] != call.key.shape[2]
    key = call.key.repeat_interleave(groups, dim=1)
    mask, causal, beside = _mask(asked)
    return AttentionLayer(
        asked.name, call.query, key, mask, causal, call.scale, cross, asked.softcap, asked.sinks, beside
    )


def _mask(asked: AttentionCall) -> tuple[Tensor | None, bool, Visible | None]:
    """The mask, whether all is plainly causal, without a mask, and what hides keys beside the mask otherwise.

    Some implementations write a mask out that hides nothing, just the future, or what is outside of a window, and
    others do not.
    """
    call = asked.call
    mask, rows, keys = call.mask, call.query.shape[2], call.key.shape[2]
    window = None if asked.window is None or asked.window >= keys else asked.window
    rule = Visible(None, call.causal, window, rows, keys)
    if mask is not None and not _adds(mask):
        if all(bool(_shown(each).all()) for each, _ in _blocks(mask)):
            mask = None
        elif rule.alike and rows == keys and mask.shape[-2] == rows:
            width = int(_shown(mask[..., -1, :]).reshape(-1, keys)[0].sum())
            written = Visible(None, causal=True, window=None if width == keys else width, rows=rows, keys=keys)
            if all(bool((_shown(each) == written.bias(numbers)[1]).all()) for each, numbers in _blocks(mask)):
                mask, rule = None, written
    if mask is None and rows == keys and rule.causal and rule.window is None:
        return None, True, None
    return mask, False, None if rule.alike else rule


def _blocks(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a mask, some at a time, and their numbers."""
    rows = mask.shape[-2]
    height = max(1, SOME * rows // mask.numel())
    for start in range(0, rows, height):
        numbers = torch.arange(start, min(start + height, rows), device=mask.device)
        yield _cut(mask, slice(start, start + height)), numbers


def _cut(mask: Any, rows: slice) -> Any:
    """Some rows of a mask, which may have one for all."""
    return mask if mask.shape[-2] == 1 else mask[..., rows, :]


def _shown(mask: Tensor) -> Tensor:
    """Booleans: transformers writes the least number where nothing is seen."""
    return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool()


def _adds(mask: Tensor) -> bool:
    """Whether a mask adds something to scores that it shows."""
    if not mask.is_floating_point():
        return False
    return any(bool((each.masked_fill(~_shown(each), 0.0) != 0).any()) for each, _ in _blocks(mask))


def check_weights(layer: AttentionLayer, asked: AttentionCall) -> None:
    """Hold some rows of the attention against what the model itself says it is, where it does and has no dropout."""
    module = asked.call.module
    weights = None if module.training else asked.weights
    shape = (*layer.query.shape[:3], layer.key.shape[2])
    if not isinstance(weights, torch.Tensor) or tuple(weights.shape) != shape:
        return
    rows = torch.linspace(0, shape[2] - 1, min(COMPARED_ROWS, shape[2]), device=weights.device).long()
    scores = layer.capped(layer.scale * (layer.query[:1, :, rows].double() @ layer.key[:1].double().mT))
    for place, row in enumerate(rows.tolist()):
        bias = layer.bias(slice(row, row + 1))
        if bias is not None:
            scores[:, :, place] += (bias[:1] if bias.ndim == 4 else bias)[..., 0, :]
    found, own = with_sinks(scores, layer.sinks), weights[:1, :, rows].double()
    largest = 1 + abs(layer.scale) * layer.query[:1].norm(dim=-1).max() * layer.key[:1].norm(dim=-1).max()
    allowed = ROUNDINGS * max(_unit(each) for each in (weights, layer.query)) * float(largest)
    seen = found.isfinite().all(-1)
    if bool(((found - own)[seen].abs() > allowed).any()):
        raise DomainError(
            f"{layer.name}: {type(module).__name__} computes something else than the softmax of the scores of its "
            "queries and keys, which is not read yet"
        )


def _unit(values: Tensor) -> float:
    """The unit in the last place of products; those of single precision may be made with fewer digits on a GPU."""
    coarse = values.is_cuda and values.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest"
    return 2.0**-10 if coarse else torch.finfo(values.dtype).eps
