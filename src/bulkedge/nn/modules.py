"""Gap-free attention as a module, in the place of :class:`torch.nn.MultiheadAttention`.

>>> import torch
>>> plain = torch.nn.MultiheadAttention(32, 4, batch_first=True)
>>> module = GapFreeAttention(32, 4, batch_first=True)
>>> module.load_state_dict(plain.state_dict())
<All keys matched successfully>
>>> output, weights = module(*3 * [torch.randn(2, 10, 32)])
>>> bool(weights.sum(-1).abs().max() < 1e-6)        # rows of A sum to one, those of A - C to zero
True
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from bulkedge.errors import DomainError
from bulkedge.nn.attention import shaped_attention


class GapFreeAttention(nn.MultiheadAttention):
    """Multi-head attention ``alpha I + beta A - gamma C``, without its spectral gap unless told otherwise.

    Constructor, :meth:`forward` and the names of the weights are those of :class:`torch.nn.MultiheadAttention`; its
    weights can be loaded, and ``gamma = 0`` is that module.

    Parameters
    ----------
    *args, **options
        Of :class:`torch.nn.MultiheadAttention`; ``add_bias_kv`` and ``add_zero_attn`` are refused.
    alpha, beta, gamma : float
        Coefficients of the identity, of attention and of its mean (:func:`bulkedge.nn.shaped_attention`).
    learnable : bool
        Whether each head learns coefficients of its own, from there on.
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        learnable: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.bias_k is not None or self.add_zero_attn:
            raise DomainError("add_bias_kv and add_zero_attn add keys that are no tokens; GapFreeAttention has neither")
        # the fused nn.TransformerEncoderLayer reads the weights past this class, unless they are said to be unequal
        self._qkv_same_embed_dim = False
        self.learnable = learnable
        for name, number in {"alpha": alpha, "beta": beta, "gamma": gamma}.items():
            like = self.out_proj.weight
            setattr(self, name, nn.Parameter(like.new_full((self.num_heads,), number)) if learnable else float(number))

    def forward(  # noqa: PLR0913, PLR0917 - the signature of MultiheadAttention
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,  # noqa: FBT001, FBT002
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,  # noqa: FBT001, FBT002
        is_causal: bool = False,  # noqa: FBT001, FBT002
    ) -> tuple[Tensor, Tensor | None]:
        """Output and, if wanted, the matrix ``alpha I + beta A - gamma C``, as :class:`torch.nn.MultiheadAttention`.

        ``need_weights=False`` lets the fused kernels work. ``is_causal`` may stand alone, without a mask.

        Parameters
        ----------
        query, key, value : Tensor
            ``(tokens, batch, embed_dim)``, with ``batch_first`` ``(batch, tokens, embed_dim)``, or ``(tokens,
            embed_dim)``.
        key_padding_mask : Tensor, optional
            ``(batch, keys)``: true, or minus infinity, for keys that are padding.
        need_weights : bool
            Whether to return the matrix too, which has to be formed for it.
        attn_mask : Tensor, optional
            ``(queries, keys)`` or ``(batch * heads, queries, keys)``: true, or minus infinity, where a key must not be
            seen.
        average_attn_weights : bool
            Whether the matrix is averaged over heads.
        is_causal : bool
            Whether row i sees keys 0 to i.

        Returns
        -------
        output : Tensor
            Of the shape of the queries.
        weights : Tensor or None
            ``(batch, queries, keys)``, or ``(batch, heads, queries, keys)`` if not averaged; no batch if there was
            none.
        """
        batched = query.dim() == 3
        tokens_first = not (batched and self.batch_first)
        if not batched:
            query, key, value = (each.unsqueeze(1) for each in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if tokens_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        q, k, v = self._projected(query, key, value)
        if is_causal and key_padding_mask is None:
            attn_mask = None  # which says the same
        options: dict[str, Any] = {
            "attn_mask": self._merged(attn_mask, key_padding_mask, len(q), q),
            "dropout_p": self.dropout if self.training else 0.0,
            "alpha": self.alpha,
            "beta": self.beta,
            "gamma": self.gamma,
        }
        options["is_causal"] = is_causal and options["attn_mask"] is None
        weights = None
        if need_weights:
            # the matrix itself is what it makes of the unit vectors
            unit = torch.eye(k.shape[-2], dtype=v.dtype, device=v.device).expand(*v.shape[:2], -1, -1)
            weights = shaped_attention(q, k, unit, **options)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            heads = shaped_attention(q, k, v, **options)
        output = self.out_proj(heads.transpose(1, 2).flatten(-2))
        output = output.transpose(0, 1) if tokens_first else output
        return (output if batched else output.squeeze(1)), weights

    def _projected(self, *inputs: Tensor) -> list[Tensor]:
        """Queries, keys and values, with their heads apart."""
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
        projected = (linear(*each) for each in zip(inputs, weights, biases, strict=True))
        return [each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in projected]

    def _merged(self, mask: Tensor | None, padding: Tensor | None, batch: int, like: Tensor) -> Tensor | None:
        """Both masks as the kernels want them: true where a key may be seen, or additive."""
        if mask is not None and mask.dim() == 3:
            mask = mask.view(batch, self.num_heads, *mask.shape[1:])
        given = [each for each in (mask, None if padding is None else padding[:, None, None, :]) if each is not None]
        if not given:
            return None
        if all(each.dtype is torch.bool for each in given):
            return ~(given[0] | given[-1])
        zero = like.new_zeros(())
        biases = [zero.masked_fill(each, -torch.inf) if each.dtype is torch.bool else each.to(like) for each in given]
        return biases[0] + biases[1] if len(biases) == 2 else biases[0]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights of a plain module say nothing of the coefficients, which then stay as they are."""
        if self.learnable:
            for name in ("alpha", "beta", "gamma"):
                state_dict.setdefault(prefix + name, getattr(self, name).detach())
        super()._load_from_state_dict(state_dict, prefix, *rest)
