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
from torch.nn.functional import linear, pad

from bulkedge.nn.attention import Coefficient, own_tokens, shaped_attention, shaped_matrix
from bulkedge.support.domains import FLAG, REAL_NUMBER, shown
from bulkedge.support.errors import DomainError


class GapFreeAttention(nn.MultiheadAttention):
    """Multi-head attention ``alpha I + beta A - gamma C``, without its spectral gap by default.

    Constructor, :meth:`forward` and the names of the weights are those of :class:`torch.nn.MultiheadAttention`; its
    weights can be loaded, and ``gamma = 0`` is that module.

    The keys that ``add_bias_kv`` and ``add_zero_attn`` add are seen by every row. So ``C`` is uniform over them too:
    rows of ``A`` sum to one only with these columns, and those of ``A - C`` to zero.

    >>> module = GapFreeAttention(32, 4, batch_first=True)
    >>> module(*3 * [torch.ones(2, 10, 32)])[0].shape
    torch.Size([2, 10, 32])

    Parameters
    ----------
    *args, **options
        Of :class:`torch.nn.MultiheadAttention`.
    alpha, beta, gamma : float
        Coefficients of the identity, of attention and of its mean (:func:`bulkedge.nn.shaped_attention`).
    learnable : bool
        Whether each head learns coefficients of its own, from there on.
    """

    alpha: Coefficient
    beta: Coefficient
    gamma: Coefficient

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        learnable: bool = False,
        **options: Any,
    ) -> None:
        try:
            super().__init__(*args, **options)
        except (TypeError, ValueError, AssertionError, RuntimeError, OverflowError) as error:
            given = ", ".join([*map(shown, args), *(f"{name} = {shown(each)}" for name, each in options.items())])
            raise DomainError(
                f"torch.nn.MultiheadAttention does not take the args and options {given}: {error}"
            ) from error
        # the fused nn.TransformerEncoderLayer reads the weights past this class, unless they are said to be unequal
        self._qkv_same_embed_dim = False
        self.learnable = FLAG.check("learnable", learnable)
        for name, number in {"alpha": alpha, "beta": beta, "gamma": gamma}.items():
            like = self.out_proj.weight
            number = REAL_NUMBER.check(name, number)  # noqa: PLW2901
            setattr(self, name, nn.Parameter(like.new_full((self.num_heads,), number)) if learnable else number)

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

        ``need_weights=False`` lets the fused kernels work. Beyond what torch's module does, ``is_causal`` may stand
        alone, without a mask; keys that the module adds are seen with it too; and a row that may see no key gets zeros
        with and without `need_weights`.

        Parameters
        ----------
        query, key, value : Tensor
            As torch takes them. One tensor given as all three, or as keys and values, is projected once.
        key_padding_mask : Tensor, optional
            ``(batch, keys)``: true, or minus infinity, for keys that are padding.
        need_weights : bool
            Whether to return the matrix too, which has to be formed for it.
        attn_mask : Tensor, optional
            ``(queries, keys)`` or ``(batch * heads, queries, keys)``: true, or minus infinity, for hidden keys.
        average_attn_weights : bool
            Whether the matrix is averaged over heads.
        is_causal : bool
            Whether row i sees keys 0 to i. Beside a mask it is a hint that the mask says just that.

        Returns
        -------
        output : Tensor
            Of the shape of the queries.
        weights : Tensor or None
            ``(batch, queries, keys)``, or ``(batch, heads, queries, keys)`` if not averaged; no batch if there was
            none. Added keys come last. In training they are what was computed with: ``A`` after dropout, ``C`` whole.
        """
        tokens_first = query.dim() == 3 and not self.batch_first
        self._check_inputs(query, key, value)
        q, k, v = (self._split_heads(each, tokens_first=tokens_first) for each in self._project(query, key, value))
        self._check_masks(q, k, attn_mask, key_padding_mask, batched=query.dim() == 3)
        k, v, added = self._with_added_keys(k, v)
        if is_causal and not need_weights and key_padding_mask is None and not added:
            attn_mask = None  # it says the same, and the kernels know it without
        elif is_causal:
            is_causal = False
            attn_mask = hidden_future(q, k.shape[-2] - added) if attn_mask is None else attn_mask
        mask = merge_masks(attn_mask, key_padding_mask, q, added)
        if need_weights:
            dropout_p = self.dropout if self.training else 0.0
            weights = shaped_matrix(
                q, k, mask, dropout_p, alpha=self.alpha, beta=self.beta, gamma=self.gamma, added=added
            )
            heads = weights.to(v.dtype) @ v
        else:
            heads = self._attend(q, k, v, mask, added, is_causal=is_causal)
        joined = (heads.permute(2, 0, 1, 3) if tokens_first else heads.transpose(1, 2)).flatten(-2)
        output = self.out_proj(joined if query.dim() == 3 else joined.squeeze(0))
        if not need_weights:
            return output, None
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if query.dim() == 3 else weights.squeeze(0)

    def extra_repr(self) -> str:
        """The coefficients, in the module's ``repr``."""
        if self.learnable:
            return "alpha, beta and gamma learnable by head"
        return f"alpha={self.alpha}, beta={self.beta}, gamma={self.gamma}"

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values, heads side by side; as views of one product where inputs and weights allow it."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key and key is value:
            return linear(query, weight, bias).chunk(3, -1)
        if weight is not None and key is value:
            sizes = [self.embed_dim, 2 * self.embed_dim]
            (first, both), biases = weight.split(sizes), (None, None) if bias is None else bias.split(sizes)
            return linear(query, first, biases[0]), *linear(key, both, biases[1]).chunk(2, -1)
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = separate if weight is None else weight.chunk(3)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        return tuple(linear(*each) for each in zip((query, key, value), weights, biases, strict=True))

    def _split_heads(self, projected: Tensor, *, tokens_first: bool) -> Tensor:
        """``(batch, heads, tokens, dim)``, with a batch of one if there was none."""
        heads = projected.unflatten(-1, (self.num_heads, self.head_dim))
        if tokens_first:
            return heads.permute(1, 2, 0, 3)
        return (heads if heads.dim() == 4 else heads.unsqueeze(0)).transpose(1, 2)

    def _with_added_keys(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, int]:
        """Keys and values with those that the module adds at their end, and the number of these."""
        batch, tokens = key.shape[0], key.shape[-2]
        if self.bias_k is not None and self.bias_v is not None:
            more = (self._split_heads(each, tokens_first=True) for each in (self.bias_k, self.bias_v))
            both = zip((key, value), more, strict=True)
            key, value = (torch.cat([old, new.to(old.dtype).expand(batch, -1, -1, -1)], -2) for old, new in both)
        if self.add_zero_attn:
            key, value = pad(key, (0, 0, 0, 1)), pad(value, (0, 0, 0, 1))
        return key, value, key.shape[-2] - tokens

    def _attend(  # noqa: PLR0913
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, added: int, *, is_causal: bool
    ) -> Tensor:
        """``(alpha I + beta A - gamma C) V`` on the fused kernels."""
        dropout_p, alpha = self.dropout if self.training else 0.0, self.alpha
        apart = bool(added) and (isinstance(alpha, Tensor) or alpha != 0)  # the kernels know only keys that are tokens
        heads = shaped_attention(
            *(query, key, value, mask, dropout_p, is_causal),
            alpha=0.0 if apart else alpha,
            beta=self.beta,
            gamma=self.gamma,
        )
        if not apart:
            return heads
        own = value[..., : own_tokens(query.shape[-2], key.shape[-2] - added), :]
        return heads + (own * (alpha.view(-1, 1, 1) if isinstance(alpha, Tensor) else alpha)).to(heads.dtype)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuse what broadcasting would make something else of."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise DomainError(
                "GapFreeAttention takes no NestedTensor; pad it and give key_padding_mask. nn.TransformerEncoder makes "
                "nested tensors of padded ones in evaluation: build it with enable_nested_tensor=False, or set its "
                "use_nested_tensor = False"
            )
        axis = 0 if self.batch_first else 1
        alike = query.dim() == key.dim() and key.shape[:-1] == value.shape[:-1]
        if query.dim() not in {2, 3} or not alike or (query.dim() == 3 and query.shape[axis] != key.shape[axis]):
            shapes = ", ".join(str(tuple(each.shape)) for each in (query, key, value))
            order = "(batch, tokens, dim)" if self.batch_first else "(tokens, batch, dim)"
            raise DomainError(
                f"query, key, value have shapes {shapes}; give {order} or (tokens, dim), with as many values as keys"
            )

    def _check_masks(
        self, query: Tensor, key: Tensor, mask: Tensor | None, padding: Tensor | None, *, batched: bool
    ) -> None:
        """Refuse masks of other shapes, also those that would broadcast, and of types that say neither."""
        (batch, heads, rows, _), keys = query.shape, key.shape[-2]
        of_keys = (batch, keys) if batched else (keys,)
        known = (
            ("attn_mask", mask, ((rows, keys), (batch * heads, rows, keys))),
            ("key_padding_mask", padding, (of_keys,)),
        )
        for name, each, shapes in known:
            if each is None:
                continue
            if tuple(each.shape) not in shapes:
                expected = " or ".join(str(shape) for shape in shapes)
                raise DomainError(f"{name} has shape {tuple(each.shape)}; give {expected}")
            if each.device != query.device:
                raise DomainError(f"{name} is on {each.device} and queries are on {query.device}; move it there")
            if each.dtype is not torch.bool and not each.is_floating_point():
                raise DomainError(f"{name} is of {each.dtype}; give booleans, true for hidden keys, or numbers")

    def _reset_parameters(self) -> None:
        """As torch's, which goes by what was said to the fused layer."""
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Weights of a plain module say nothing of the coefficients, which then stay as they are."""
        if self.learnable:
            for name in ("alpha", "beta", "gamma"):
                state_dict.setdefault(prefix + name, getattr(self, name).detach())
        super()._load_from_state_dict(state_dict, prefix, *rest)


def hidden_future(query: Tensor, keys: int) -> Tensor:
    """True for keys after a row's own, as masks of :class:`torch.nn.MultiheadAttention` say it."""
    return torch.ones(query.shape[-2], keys, dtype=torch.bool, device=query.device).triu(1)


def merge_masks(mask: Tensor | None, padding: Tensor | None, query: Tensor, added: int = 0) -> Tensor | None:
    """Both masks of the module as the kernels want them: true where a key may be seen, or additive."""
    # Added keys, at the end, are seen.
    if mask is not None and mask.dim() == 3:
        mask = mask.unflatten(0, (-1, query.shape[1]))
    row = None if padding is None else padding.view(query.shape[0], 1, 1, -1)
    given = [each for each in (mask, row) if each is not None]
    if not given:
        return None
    if all(each.dtype is torch.bool for each in given):
        return pad(~(given[0] | given[-1]), (0, added), value=True)
    zero = query.new_zeros(())
    biases = [zero.masked_fill(each, -torch.inf) if each.dtype is torch.bool else each.to(query) for each in given]
    return pad(biases[0] + biases[1] if len(biases) == 2 else biases[0], (0, added))
