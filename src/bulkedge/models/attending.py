"""The heads of one attention module: queries, keys, and what is between their scores and the attention.

A head attends by ``softmax(cap(scale q . k) + bias)``, where the cap and the bias may be missing, and a sink that is
none of the keys may take its part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bulkedge.errors import DomainError
from bulkedge.models.listening import Asked

OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states")
"""Arguments by which attention modules are given the sequence that they look at, where it is not their own."""
COMPARED_ROWS = 4
"""Rows of a head that are held against the attention that the model returned."""
ROUNDINGS = 16
"""Units in the last place of the largest possible score by which a model's weights may differ from those heard."""


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
    softcap : float or None
        Scores s become ``softcap tanh(s / softcap)`` before the mask is added; None for no cap.
    sinks : Tensor of shape (heads,) or None
        Scores of a key without a value that all rows of a head see; None where there is none.
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
        lowest = torch.finfo(self.mask.dtype).min / 2  # what transformers writes where nothing may be seen
        return self.mask.double().masked_fill(self.mask <= lowest, -float("inf"))

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
    """The softmax over keys and a sink that is none of them.

    Parameters
    ----------
    scores : Tensor of shape (..., heads, rows, tokens)
        Scores of the keys.
    sinks : Tensor of shape (heads,) or None
        That of the sink, for all rows of a head.

    Returns
    -------
    Tensor of shape (..., heads, rows, tokens)
        Weights of the keys.
    """
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def layer_of(asked: Asked, named: Mapping[str, Any]) -> Layer:
    """The heads of a module, from what it asked of its attention.

    Parameters
    ----------
    asked : Asked
        What was heard.
    named : mapping of str to object
        What the module was called with, by name: some are given another sequence to look at.

    Returns
    -------
    Layer
        Keys that several heads share are repeated, and all that hides keys is in one mask.
    """
    call = asked.call
    groups = call.query.shape[1] // call.key.shape[1]
    cross = any(named.get(each) is not None for each in OTHER_SEQUENCE)
    cross = cross or call.query.shape[2] != call.key.shape[2]
    key = call.key.repeat_interleave(groups, dim=1)
    mask, causal = _mask(asked)
    return Layer(asked.name, call.query, key, mask, causal, call.scale, cross, asked.softcap, asked.sinks)


def _mask(asked: Asked) -> tuple[Tensor | None, bool]:
    """All that hides keys or is added to their scores as one mask, and whether that is plainly causal, without a mask.

    Some implementations write a mask out that hides nothing, or just the future, and others do not.
    """
    call = asked.call
    mask, rows, keys = call.mask, call.query.shape[2], call.key.shape[2]
    past = call.query.new_ones(rows, keys).bool().tril(keys - rows)
    windowed = asked.window is not None and asked.window < keys
    seen = past if call.causal else torch.ones_like(past)
    if windowed:
        seen = seen.triu(keys - rows - (asked.window or 0) + 1)
    if mask is not None and mask.is_floating_point():
        shown = mask > torch.finfo(mask.dtype).min / 2  # transformers writes the least number where nothing is seen
        if bool(mask.masked_fill(~shown, 0.0).any()):
            return mask.masked_fill(~seen, -float("inf")), False
        mask = shown
    if mask is not None:
        seen = mask.bool() & seen if call.causal or windowed else mask.bool()
    if bool(seen.all()):
        return None, False
    if rows == keys and bool((seen == past).all()):
        return None, True
    return seen, False


def check_weights(layer: Layer, asked: Asked) -> None:
    """Hold some rows of the attention against what the model itself says it is, where it does and has no dropout.

    Parameters
    ----------
    layer : Layer
        The heads.
    asked : Asked
        What they are made of; its weights are compared.

    Raises
    ------
    DomainError
        If they differ by more than rounding.
    """
    module = asked.call.module
    weights = None if module.training else asked.weights
    shape = (*layer.query.shape[:3], layer.key.shape[2])
    if not isinstance(weights, torch.Tensor) or tuple(weights.shape) != shape:
        return
    rows = torch.linspace(0, shape[2] - 1, min(COMPARED_ROWS, shape[2]), device=weights.device).long()
    scores = layer.capped(layer.scale * (layer.query[:1, :, rows].double() @ layer.key[:1].double().mT))
    bias = layer.bias()
    if bias is not None:
        bias = bias[:1] if bias.ndim == 4 else bias
        scores = scores + (bias[..., rows, :] if bias.shape[-2] > 1 else bias)
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
