"""Queries and keys of every attention of a transformers model, as its scores see them, from one forward pass.

The model is patched for that pass (:mod:`bulkedge.nn.patching`), so whatever goes through transformers'
``AttentionInterface`` is seen as it comes there: after rotary positions and norms, with the mask, the positional bias
and the scale of the scores. Nothing is computed twice, and no attention matrix is formed unless it is asked for.

>>> from transformers import GPT2Config, GPT2Model
>>> import torch
>>> model = GPT2Model(GPT2Config(n_layer=2, n_head=4, n_embd=32)).eval()
>>> layers = capture(model, input_ids=torch.arange(10)[None])
>>> [layer.name for layer in layers], tuple(layers[0].query.shape), layers[0].causal
(['h.0.attn', 'h.1.attn'], (1, 4, 10, 8), True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from bulkedge.errors import DomainError
from bulkedge.nn import Call, apply_patch, transform

if TYPE_CHECKING:
    from torch import Tensor, nn

CAPTURED = "captured"
"""The kind of the patch."""
_heard: dict[str, list[Call]] = {}
"""Calls of the passes that run now, by the name that the patch of each has."""


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
    """

    name: str
    query: Tensor
    key: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    def attention(self) -> Tensor:
        """The attention matrices, in double precision.

        Returns
        -------
        Tensor of shape (batch, heads, rows, tokens)
            Rows sum to one. Weights of keys that a row does not see are zero.
        """
        scores = self.scale * (self.query.double() @ self.key.double().mT)
        if self.causal:
            rows, tokens = scores.shape[-2:]
            scores = scores.masked_fill(~scores.new_ones(rows, tokens).bool().tril(tokens - rows), -float("inf"))
        elif self.mask is not None and not self.mask.is_floating_point():
            scores = scores.masked_fill(~self.mask.bool(), -float("inf"))
        elif self.mask is not None:
            scores = scores + self.mask
        return scores.softmax(-1)


def capture(model: nn.Module, **inputs: Any) -> tuple[Layer, ...]:
    """Run a model once, without gradients, and return the queries and keys of all its attentions.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        As for :func:`bulkedge.nn.apply_patch`; in evaluation mode, if its attention has dropout. Patches that it has
        are seen: what they make of queries and keys is what is returned.
    **inputs : object
        What the model is called with: ``input_ids``, ``attention_mask``.

    Returns
    -------
    tuple of Layer
        In the order in which the model calls its attentions.

    Raises
    ------
    DomainError
        If the model's attention does not go through transformers' interface.
    """
    import torch

    names = {id(module): name for name, module in model.named_modules()}
    listener = uuid4().hex
    calls = _heard[listener] = []
    try:
        with torch.no_grad(), apply_patch(model, CAPTURED, {"listener": listener}):
            model(**inputs)
    finally:
        del _heard[listener]
    return tuple(_layer(names[id(call.module)], call) for call in calls)


def _layer(name: str, call: Call) -> Layer:
    groups = call.query.shape[1] // call.key.shape[1]
    return Layer(name, call.query, call.key.repeat_interleave(groups, dim=1), call.mask, call.causal, call.scale)


@transform(CAPTURED)
def _captured(call: Call, parameters: Mapping[str, Any]) -> Call:
    """Remember the call, and leave it as it is."""
    listener = parameters["listener"]
    if listener not in _heard:
        raise DomainError("this model was copied while its queries and keys were read; restore it: bulkedge.nn.restore")
    _heard[listener].append(call)
    return call
