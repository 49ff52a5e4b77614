"""Attention without its spectral gap, on top of the fused kernels, and its matrix for those who want to see it.

Rows of softmax attention ``A`` sum to one, so the matrix has an outlier that the rest of its spectrum does not follow:
its mean ``C``, uniform over the keys that a row may see. Without it ``(A - C) V = A V - C V`` (*propagation*,
equation 9), and ``C V`` is a mean of the values: over all keys, over those a padding mask admits, or the running mean
of causal attention. The kernel that computes ``A V`` stays as it is, and no matrix of scores is formed. On a GPU the
means of most values go through one operator (:mod:`bulkedge.nn.fused`).

>>> import torch
>>> q, k, v = torch.randn(3, 2, 4, 16, 8, generator=torch.Generator().manual_seed(0)).unbind()
>>> plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
>>> bool(torch.allclose(gap_free_attention(q, k, v), plain - v.mean(-2, keepdim=True), atol=1e-6))
True
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from bulkedge.nn import fused
from bulkedge.support.domains import REAL_NUMBER, Interval, shown
from bulkedge.support.errors import DomainError
from bulkedge.visibility import FullMask, Mask, WindowMask, check_mask, seen_keys

Coefficient: TypeAlias = float | Tensor  # a number, or a tensor with one number for each head
CHUNK = 64  # tokens whose running sums are one small matrix product
REACH = "bulkedge_reach"  # of a mask that is written out: how many keys a row sees, if these are the last up to it


def gap_free_attention(  # noqa: PLR0913, PLR0917 - the signature of scaled_dot_product_attention
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Tensor:
    """``(A - C) V``: a drop-in for :func:`torch.nn.functional.scaled_dot_product_attention`.

    Every row of ``C`` is uniform over the keys that its row of ``A`` may see.

    Parameters
    ----------
    query, key, value : Tensor
        ``(..., heads, tokens, dim)``; with `enable_gqa` keys and values may have fewer heads.
    attn_mask : Tensor or Mask, optional
        Boolean (true: may be seen) or additive, or a :class:`bulkedge.visibility.Mask`: a full or causal one is not
        written out, any other at each call, so where time matters give ``mask.visible(query)``; the mean over a
        :class:`bulkedge.visibility.WindowMask` is a difference of running sums. An additive mask hides
        a key where it is at least 9000 below the largest entry of its row; other numbers shape ``A`` and leave ``C``
        alone. A row that sees no key, as one whose largest entry is at most -9000, has no mean: nothing is subtracted
        from it.
    dropout_p : float
        Dropout of ``A``. The mean is not dropped: the expectation is that of attention without dropout.
    is_causal : bool
        As torch defines it: row ``i`` sees keys ``0`` to ``i``, also where there are fewer queries than keys. The first
        token sees only itself and becomes zero; :func:`shaped_attention` keeps it.
    scale : float, optional
        Factor of the scores; ``1/sqrt(dim)`` unless given.
    enable_gqa : bool
        Whether heads of queries share heads of keys and values.

    Returns
    -------
    Tensor
        In the type of the plain attention, and within its rounding: means are accumulated in single precision.

    Examples
    --------
    >>> x = torch.eye(4)[None]                                         # one head, four tokens
    >>> bool(gap_free_attention(x, 0 * x, x).abs().max() < 1e-6)            # even attention is all gap
    True
    """
    return shaped_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def shaped_attention(  # noqa: PLR0913, PLR0917 - the signature of scaled_dot_product_attention
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
    *,
    alpha: Coefficient = 0.0,
    beta: Coefficient = 1.0,
    gamma: Coefficient = 1.0,
) -> Tensor:
    """``(alpha I + beta A - gamma C) V``, of which ``alpha = 0, beta = gamma = 1`` is attention without its gap.

    ``alpha = beta = gamma = 1`` is the shaped attention of Noci et al. (2023): where the scores vanish it is the
    identity, and the first token of a causal model keeps its value.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        As for :func:`gap_free_attention`.
    alpha, beta, gamma : float or Tensor
        Coefficients, one for all heads or a tensor with one for each head of the queries.

    Returns
    -------
    Tensor
        ``(..., heads, tokens, dim)``, in the type of the plain attention.

    Examples
    --------
    >>> x = torch.eye(3)[None]                                                    # one head, three tokens
    >>> shaped_attention(x, 0 * x, x, alpha=1.0)[0].round(decimals=6) + 0.0   # scores vanish: the identity
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    dropout_p, scale = _check_numbers(dropout_p, scale, is_causal, enable_gqa)
    _check_call(query, key, value, enable_gqa=enable_gqa)
    reach = fused.CAUSAL if is_causal else fused.ALL
    if attn_mask is not None:
        attn_mask, reach = _write_out(attn_mask, query, key, reach)
    is_causal = reach == fused.CAUSAL
    groups = query.shape[-3] // value.shape[-3] if enable_gqa else 1
    names = ("alpha", "beta", "gamma")
    alpha, beta, gamma = (
        _by_group(name, each, query.shape[-3], groups) for name, each in zip(names, (alpha, beta, gamma), strict=True)
    )

    def plain(value: Tensor) -> Tensor:
        shared, keys = enable_gqa, key
        if groups > 1 and attn_mask is not None:  # no fused kernel takes both
            keys, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
            shared = False
        return scaled_dot_product_attention(
            query, keys, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=shared
        )

    def attend(value: Tensor) -> Tensor:
        output = plain(value).unflatten(-3, (-1, groups))
        return output if _equals(beta, 1) else output * (beta.to(output.dtype) if isinstance(beta, Tensor) else beta)

    numbers = [each for each in (alpha, beta, gamma) if not isinstance(each, Tensor)]
    # the kernel is for as many queries as keys
    square = query.shape[:-1] == (*value.shape[:-3], groups * value.shape[-3], value.shape[-2])
    if reach and len(numbers) == 3 and numbers[2] and square and fused.takes(value):
        own, keep, taken = numbers
        return fused.less_mean(plain(value), value, reach=reach, keep=keep, own=own, scale=taken)
    values, rows = value.unsqueeze(-3), query.shape[-2]
    seen = None if reach else _visible_keys(attn_mask, groups, key.shape[-2])
    one_mean = not reach and (seen is None or all(size == 1 for size in seen.shape[-3:-1]))
    if _equals(gamma, 0):
        output = attend(value)
    elif one_mean and not dropout_p and rows >= value.shape[-2]:
        # all rows have the mean m, and A(V - m) = A V - m: values are centred before the kernel, because the difference
        # of two numbers that were rounded near m has lost what they differ by
        output = attend(_remove_mean(values, None if seen is None else _uniform(seen, value.dtype).mT))
        if not _equals(beta - gamma, 0):
            sums, counts = _mean(values, rows, seen, reach)
            output = _plus(output, (beta - gamma) / counts, sums)
    else:
        sums, counts = _mean(values, rows, seen, reach)
        # divided in the pass that subtracts: the weights are few
        output = _plus(attend(value), -gamma / counts, sums)
    return _plus_own(output, alpha, values).flatten(-4, -3)


def _check_call(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> None:
    """Refuse tensors that are not those of one attention; nothing is looked at but shapes and types."""
    for name, each in (("query", query), ("key", key), ("value", value)):
        if not isinstance(each, Tensor) or not each.is_floating_point():
            raise DomainError(f"{name} = {shown(each)} is no tensor of floating numbers")
        if each.dim() < 3:
            raise DomainError(f"{name} has shape {tuple(each.shape)}; attention needs (..., heads, tokens, dim)")
        # autocast makes one type of several: rotations leave queries and keys in single precision
        one_type = each.dtype == query.dtype or torch.is_autocast_enabled(query.device.type)
        if not one_type or each.device != query.device:
            raise DomainError(
                f"{name} is {each.dtype} on {each.device}, query {query.dtype} on {query.device}; convert one of them"
            )
    heads = (each.shape[-3] for each in (query, key, value))
    fit = key.shape[-1] == query.shape[-1] and key.shape[-2] == value.shape[-2]
    if not fit or (not enable_gqa and len(set(heads)) > 1):
        shapes = ", ".join(str(tuple(each.shape)) for each in (query, key, value))
        raise DomainError(f"query, key and value have shapes {shapes}: they are not of one attention")


def _check_numbers(dropout_p: Any, scale: Any, is_causal: Any, enable_gqa: Any) -> tuple[float, float | None]:
    """The numbers, and flags that are flags."""
    for name, each in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(each, bool):
            raise DomainError(f"{name} = {shown(each)} must be True or False")
    if type(dropout_p) is not float or not 0 <= dropout_p < 1:
        dropout_p = Interval(0, 1, "[)").check("dropout_p", dropout_p)
    return dropout_p, scale if scale is None or type(scale) is float else REAL_NUMBER.check("scale", scale)


def _remove_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Values minus their mean, with uniform weights unless a column of them is given; heads of queries not apart."""
    value = values.squeeze(-3)
    if not fused.takes(value):
        return _MeanRemoval.apply(values, weights).squeeze(-3)
    given = None if weights is None else weights.expand(*values.shape[:-1], 1)[..., 0, :, 0]
    return fused.less_mean(None, value, given, reach=fused.ALL, own=1.0)


class _MeanRemoval(torch.autograd.Function):
    """``(I - 1 w') V``, with uniform weights w unless some are given: one pass, means in single precision."""

    @staticmethod
    def forward(values: Tensor, weights: Tensor | None) -> Tensor:
        dtype = wide(values.dtype)
        if weights is None:
            mean = values.mean(-2, keepdim=True, dtype=dtype)
        else:
            mean = (values * weights).sum(-2, keepdim=True, dtype=dtype)
        centred = values - mean
        # not .to for nothing: a function that ends in it has zero gradients where torch 2.11 compiles it
        return centred if dtype == values.dtype else centred.to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (weights,) = gradients, ctx.saved_tensors
        if weights is None:
            return _MeanRemoval.apply(gradient, None), None
        total = gradient.sum(-2, keepdim=True, dtype=weights.dtype)
        return (gradient - weights * total).to(gradient.dtype), None


def _write_out(mask: Tensor | Mask, query: Tensor, key: Tensor, reach: int) -> tuple[Tensor | None, int]:
    """A mask as the kernels want it, which know full and causal attention, and how far back a row sees."""
    if not isinstance(mask, Mask):
        if not isinstance(mask, Tensor):
            raise DomainError(f"attn_mask = {shown(mask)} is neither a tensor nor a bulkedge.Mask")
        check_mask("attn_mask", mask, (*query.shape[:-1], key.shape[-2]), query)
        return mask, getattr(mask, REACH, reach)
    if reach:
        raise DomainError(f"attn_mask = {mask!r} and is_causal = True both say who sees whom; give one of them")
    if mask.shape != (query.shape[-2], key.shape[-2]):
        tokens = f"{query.shape[-2]} and {key.shape[-2]}"
        raise DomainError(f"attn_mask = {mask!r} is for {mask.shape} queries and keys; there are {tokens}")
    if isinstance(mask, FullMask):
        return None, fused.ALL
    if isinstance(mask, WindowMask) and mask.unlimited:
        return None, fused.CAUSAL
    if isinstance(mask, WindowMask):
        band = torch.ones(mask.shape, dtype=torch.bool, device=query.device).tril().triu(1 - mask.width)
        return band, mask.width
    visible = mask.visible()[:1] if mask.uniform else mask.visible()  # one row, expanded: there is one mean
    return torch.tensor(visible, device=query.device).expand(mask.shape), fused.ALL


def _visible_keys(mask: Tensor | None, groups: int, keys: int) -> Tensor | None:
    """The keys that each row may see, with a single row if all see the same; heads apart by those of the values."""
    if mask is None:
        return None
    if mask.stride(-2) == 0:
        mask = mask[..., :1, :]
    seen: Tensor = seen_keys(mask).expand(*mask.shape[:-1], keys)
    if seen.dim() < 3:
        return seen
    return seen.unsqueeze(-3) if seen.shape[-3] == 1 else seen.unflatten(-3, (-1, groups))


def _uniform(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows that are uniform over the keys they may see, in the precision in which sums are accumulated."""
    return seen.to(wide(dtype)) / seen.sum(-1, keepdim=True).clamp(min=1)


def _mean(values: Tensor, rows: int, seen: Tensor | None, reach: int) -> tuple[Tensor, Tensor]:
    """The mean of the values that each row may see, as sums over counts; one row if all rows have the same."""
    tokens, dtype = values.shape[-2], wide(values.dtype)
    if reach:
        # two clamps: min() of both would bind an exported program to so many tokens
        counts = torch.arange(1, rows + 1, device=values.device).clamp(max=tokens).clamp(max=reach)
        sums = running_sums(values[..., :rows, :], reach)
        if rows > tokens:
            sums = torch.cat([sums, sums[..., -1:, :].expand(*sums.shape[:-2], rows - tokens, -1)], dim=-2)
        return sums, counts[:, None].to(dtype)
    if seen is None:
        return values.sum(-2, keepdim=True, dtype=dtype), torch.full((1, 1), tokens, dtype=dtype, device=values.device)
    counts = seen.sum(-1, keepdim=True).clamp(min=1).to(dtype)
    if values.dtype is torch.float16 or seen.shape[-2] == 1:  # sums may overflow, or one row costs little
        values = values.to(dtype)
    return torch.einsum("...ts,...sd->...td", seen.to(values.dtype), values), counts


def _plus_own(output: Tensor, alpha: Coefficient, values: Tensor) -> Tensor:
    """Plus the value of each query's own token."""
    if not _equals(alpha, 0):
        own_tokens(output.shape[-2], values.shape[-2])
    return _plus(output, alpha, values)


def _by_group(name: str, coefficient: Coefficient, heads: int, groups: int) -> Coefficient:
    if not isinstance(coefficient, Tensor):
        return coefficient if type(coefficient) is float else REAL_NUMBER.check(name, coefficient)
    if coefficient.numel() not in {1, heads} or not coefficient.is_floating_point():
        raise DomainError(
            f"{name} has shape {tuple(coefficient.shape)}: give a number, or one for each of {heads} heads"
        )
    return coefficient.view(-1, groups, 1, 1) if coefficient.numel() > 1 else coefficient.view(1, 1, 1, 1)


def _equals(coefficient: Coefficient, number: float) -> bool:
    return not isinstance(coefficient, Tensor) and coefficient == number


def _plus(tensor: Tensor, coefficient: Coefficient, term: Tensor) -> Tensor:
    """``tensor + coefficient * term`` in one pass, in the type of the tensor."""
    if isinstance(coefficient, Tensor):
        return torch.addcmul(tensor, term, coefficient.to(term.dtype)).to(tensor.dtype)
    return tensor if coefficient == 0 else torch.add(tensor, term, alpha=coefficient).to(tensor.dtype)


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
    sinks: Tensor | None = None,
) -> Tensor:
    """``alpha I + beta A - gamma C``, in the type of ``A``."""
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    given: Coefficient = 1.0  # what a row gives to its keys; a sink, with the score of its head, gets the rest
    if sinks is None:
        attention = scores.softmax(-1) if mask is None else _masked_softmax(scores, mask)
    else:
        scores = torch.cat([scores, sinks.view(-1, 1, 1).to(scores.dtype).expand(*scores.shape[:-1], 1)], -1)
        beside = None if mask is None else pad(mask, (0, 1), value=mask.dtype is torch.bool)
        attention = (scores.softmax(-1) if beside is None else _masked_softmax(scores, beside))[..., :-1]
        given = attention.sum(-1, keepdim=True)
    attention = dropout(attention, dropout_p)
    alpha, beta, gamma = (each.view(-1, 1, 1) if isinstance(each, Tensor) else each for each in (alpha, beta, gamma))
    matrix = attention if _equals(beta, 1) else beta * attention
    if not _equals(gamma, 0):
        even = _uniform(seen_keys(mask), attention.dtype).to(attention.dtype) if mask is not None else None
        matrix = matrix - gamma * given * (1 / max(key.shape[-2], 1) if even is None else even)
    if not _equals(alpha, 0):
        own = own_tokens(query.shape[-2], key.shape[-2] - added)
        matrix = matrix + alpha * torch.eye(own, key.shape[-2], dtype=attention.dtype, device=query.device)
    return matrix.to(attention.dtype)


def own_tokens(rows: int, keys: int) -> int:
    """The number of tokens, if keys are the tokens of the queries."""
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


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are accumulated in."""
    return torch.promote_types(dtype, torch.float32)


def running_sums(value: Tensor, reach: int = fused.CAUSAL) -> Tensor:
    """Sums of the tokens up to each, or of the last of these, along the second dimension from the end."""
    if (
        reach != fused.CAUSAL and reach < value.shape[-2]
    ):  # the difference of two long sums, of which a short one is left
        sums = value.cumsum(-2, dtype=wide(value.dtype) if value.device.type == "mps" else torch.float64)
        sums = sums - pad(sums, (0, 0, reach, 0))[..., : sums.shape[-2], :]
        return sums.to(torch.float32 if value.dtype is torch.float16 else value.dtype)
    if value.dtype is torch.float16:  # whose sums may overflow
        value = value.float()
    # on a GPU a cumsum walks through the tokens one by one with a thread for each column
    if value.device.type == "cpu" or value.shape[-2] <= CHUNK:
        return value.cumsum(-2, dtype=wide(value.dtype)).to(value.dtype)
    return _chunked_sums(value)


def _chunked_sums(value: Tensor) -> Tensor:
    """A sum over the chunks before, and a product with a triangular matrix inside."""
    tokens, dim = value.shape[-2:]
    if tokens % CHUNK:
        value = pad(value, (0, 0, 0, -tokens % CHUNK))
    chunks = value.unflatten(-2, (-1, CHUNK))
    totals = chunks.sum(-2, dtype=wide(value.dtype))
    before = (totals.cumsum(-2) - totals).to(value.dtype)
    triangle = torch.ones(CHUNK, CHUNK, dtype=value.dtype, device=value.device).tril()
    flat = chunks.reshape(-1, CHUNK, dim)
    sums = torch.baddbmm(before.reshape(-1, 1, dim), triangle.expand(len(flat), -1, -1), flat)
    return sums.view(chunks.shape).flatten(-3, -2)[..., :tokens, :]
