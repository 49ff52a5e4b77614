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

from bulkedge.models.hooks.attention_hooks import AttentionInputs
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Mask, Visibility

OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states")  # arguments with another sequence's keys
COMPARED_ROWS = 4  # rows of a head that are held against the attention that the model returned
ROUNDINGS = 16  # units in the last place of the largest score by which weights may differ from what was read


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
    visibility : Visibility
        Who may look at whom: a mask, the future, and a window; `mask` and `causal` say what of it a layer has.
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
    visibility: Visibility
    scale: float
    cross: bool = False
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def mask(self) -> Tensor | None:
        """Of booleans, or of numbers that are added to the scores; None where no mask has to be written out."""
        found: Tensor | None = self.visibility.mask
        return found

    @property
    def causal(self) -> bool:
        """Whether a row sees what comes before it and itself, and nothing else is hidden."""
        seen = self.visibility
        return seen.mask is None and seen.rows == seen.keys and seen.causal and seen.window is None

    @property
    def structure(self) -> Mask | None:
        """Who sees whom, if a rule says so: all, the past, or a window of it; None behind any other mask."""
        return self.visibility.structure

    def cap(self, scores: Tensor) -> Tensor:
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
        rows = slice(0, self.visibility.rows) if rows is None else rows
        found: Tensor | None = self.visibility.additive(rows, self.query)
        return found

    def attention(self) -> Tensor:
        """The attention matrices, in double precision.

        Returns
        -------
        Tensor of shape (batch, heads, rows, tokens)
            Rows sum to one, or to what sinks outside of the keys leave. Weights of keys that a row does not see are
            zero. A row that sees no key is nan, unless there is such a sink.
        """
        scores = self.cap(self.scale * (self.query.double() @ self.key.double().mT))
        bias = self.bias()
        return with_sinks(scores if bias is None else scores + bias, self.sinks)


def with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over keys and a sink that is none of them."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


def layer_of(asked: AttentionInputs, named: Mapping[str, Any]) -> AttentionLayer:
    """The heads of a module, from what its attention was called with."""
    groups = asked.query.shape[1] // asked.key.shape[1]
    cross = any(named.get(each) is not None for each in OTHER_SEQUENCE)
    cross = cross or asked.query.shape[2] != asked.key.shape[2]
    key, visibility = asked.key.repeat_interleave(groups, dim=1), asked.visible.simplified()
    return AttentionLayer(asked.name, asked.query, key, visibility, asked.scale, cross, asked.softcap, asked.sinks)


def check_weights(layer: AttentionLayer, asked: AttentionInputs) -> None:
    """Hold some rows of the attention against what the model itself says it is, where it does and has no dropout."""
    module = asked.module
    weights = None if module.training else asked.weights
    shape = (*layer.query.shape[:3], layer.key.shape[2])
    if not isinstance(weights, torch.Tensor) or tuple(weights.shape) != shape:
        return
    rows = torch.linspace(0, shape[2] - 1, min(COMPARED_ROWS, shape[2]), device=weights.device).long()
    scores = layer.cap(layer.scale * (layer.query[:1, :, rows].double() @ layer.key[:1].double().mT))
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
