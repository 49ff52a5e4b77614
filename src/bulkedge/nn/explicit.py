"""The matrix ``alpha I + beta A - gamma C`` itself, for those who want to see the weights.

:func:`bulkedge.nn.shaped_attention` computes what the matrix makes of values without forming it.

>>> import torch
>>> x = torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(0))
>>> matrix = shaped_matrix(x, x, None)
>>> bool(matrix.sum(-1).abs().max() < 1e-6)
True
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout

from bulkedge.nn.attention import Coefficient
from bulkedge.support.errors import DomainError
from bulkedge.visibility import seen_keys


def shaped_matrix(  # noqa: PLR0913
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    *,
    alpha: Coefficient = 0.0,
    beta: Coefficient = 1.0,
    gamma: Coefficient = 1.0,
    added: int = 0,
    softcap: float | None = None,
) -> Tensor:
    """``alpha I + beta A - gamma C``, in the type of ``A``."""
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    attention = dropout(scores.softmax(-1) if mask is None else _masked_softmax(scores, mask), dropout_p)
    alpha, beta, gamma = (_by_head(each) for each in (alpha, beta, gamma))
    matrix = attention if _is(beta, 1) else beta * attention
    if not _is(gamma, 0):
        matrix = matrix - gamma * (1 / max(key.shape[-2], 1) if mask is None else _uniform(mask, attention.dtype))
    if not _is(alpha, 0):
        own = torch.eye(own_tokens(query, key, added), key.shape[-2], dtype=attention.dtype, device=query.device)
        matrix = matrix + alpha * own
    return matrix.to(attention.dtype)


def own_tokens(query: Tensor, key: Tensor, added: int) -> int:
    """The number of tokens, if keys are the tokens of the queries, and such as are no tokens after them."""
    rows, keys = query.shape[-2], key.shape[-2] - added
    if rows != keys:
        raise DomainError(
            f"alpha weighs the value of each query's own token, but there are {rows} queries and {keys} keys; leave "
            "alpha = 0 and add those values yourself"
        )
    return rows


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Rows that see nothing become zero, as in the fused kernels; softmax would make nan of them, and of gradients."""
    boolean = mask.dtype is torch.bool
    nothing = ~(mask if boolean else mask > -torch.inf).any(-1, keepdim=True)
    scores = scores.masked_fill(~mask, -torch.inf) if boolean else scores + mask
    return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)


def _uniform(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows that are uniform over the keys they may see."""
    visible = seen_keys(mask).to(torch.promote_types(dtype, torch.float32))  # in which counts are exact
    return (visible / visible.sum(-1, keepdim=True).clamp(min=1)).to(dtype)


def _by_head(coefficient: Coefficient) -> Coefficient:
    return coefficient.view(-1, 1, 1) if isinstance(coefficient, Tensor) else coefficient


def _is(coefficient: Coefficient, number: float) -> bool:
    return not isinstance(coefficient, Tensor) and coefficient == number
