"""Scales at which attention layers start where the theory wants them.

Three choices after *propagation*: the inverse temperature of the scores, by the scale of queries and keys; the power of
the signal from layer to layer, by the scale of the values; and the share of a skip connection. :func:`value_std` is the
paper's limit, for orthonormal tokens and attention that does not know them; :func:`initialise` is for what a layer gets
and does, and knows finite sizes (:mod:`bulkedge.nn.power`).

>>> query_key_std(beta=1.0, width=400)              # scores of deviation one, from tokens of norm sqrt(400)
0.05
>>> value_std(1, tokens=256, width=1024, variance=1.0, gap=False)
0.5
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bulkedge.nn.power import attended_power
from bulkedge.nn.scales import Scales
from bulkedge.nn.stacks import has_gap, initialise_stack
from bulkedge.support.domains import Integers, Interval
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Mask

POSITIVE = Interval(0, math.inf, "()")
SIZE = Integers(1, 10**9)


def query_key_std(beta: float, width: int, tokens: int | None = None, token_norm: float | None = None) -> float:
    """Standard deviation of query and key weights for which scores have standard deviation `beta`.

    With independent entries of variance ``s**2``, ``x' W_Q W_K' y / sqrt(d)`` has standard deviation
    ``s**2 |x| |y|``, whatever the head dimension ``d``.

    Parameters
    ----------
    beta : float
        Standard deviation of the scores, as they enter the softmax.
    width : int
        Dimension of the tokens.
    tokens : int, optional
        Length of the context. If given, a `beta` beyond ``sqrt(2 log(tokens))`` is refused: there the largest weight
        takes all of a row (the transition of the random-energy model), and gradients with it.
    token_norm : float, optional
        Norm of the tokens: ``sqrt(width)`` unless given, as layer normalisation makes it; 1 for orthonormal tokens.

    Returns
    -------
    float
        ``sqrt(beta)`` over the norm of the tokens.
    """
    beta, width = POSITIVE.check("beta", beta), SIZE.check("width", width)
    norm = math.sqrt(width) if token_norm is None else POSITIVE.check("token_norm", token_norm)
    if tokens is not None:
        limit = math.sqrt(2 * math.log(Integers(2, 10**9).check("tokens", tokens)))
        if beta > limit:
            raise DomainError(
                f"beta = {beta:g} is beyond sqrt(2 log(tokens)) = {limit:.3g} at {tokens} tokens: "
                "each row would attend to a single one; choose a smaller beta"
            )
    return math.sqrt(beta) / norm


def attention_variance(beta: float, head_dim: int | None = None) -> float:
    """Variance of the entries of ``tokens * A`` for scores of standard deviation `beta`.

    Given a query of norm ``r sqrt(d)``, scores are Gaussian with variance ``beta**2 r**2``, and a row's entries have
    variance ``exp(beta**2 r**2) - 1``. Its mean over Gaussian queries is ``(1 - 2 beta**2/d)**(-d/2) - 1``, which is
    ``exp(beta**2) - 1`` for large `head_dim` (None).

    Parameters
    ----------
    beta : float
        Standard deviation of the scores.
    head_dim : int, optional
        Dimension d of a head, above ``2 beta**2``; infinitely large by default.

    Returns
    -------
    float
        The variance; it is ``sigma_A**2`` of *propagation*.

    Examples
    --------
    >>> round(attention_variance(1.0), 6), round(attention_variance(1.0, head_dim=64), 6)
    (1.718282, 1.762009)
    """
    beta = POSITIVE.check("beta", beta)
    if head_dim is None:
        return math.expm1(beta**2)
    head_dim = SIZE.check("head_dim", head_dim)
    if 2 * beta**2 >= head_dim:
        raise DomainError(
            f"beta = {beta:g} has no finite variance with head_dim = {head_dim}; it needs more than 2 beta**2"
        )
    return math.expm1(-head_dim / 2 * math.log1p(-2 * beta**2 / head_dim))


def value_std(layer: int, tokens: int, width: int, variance: float, *, gap: bool) -> float:
    """Standard deviation of the value weights of a layer that keeps the mean of the spectrum of ``Sigma`` at one.

    In ``X_l = A_l X_{l-1} W_l`` from orthonormal tokens, the layers before being scaled the same way, with independent
    weights of variance ``s**2``: ``mean_l = s**2 (width/tokens) tr(A Sigma_{l-1} A')``. Without the gap the trace is
    ``variance * mean_{l-1}`` (*propagation*, Proposition 7), and ``s**2 = tokens/(width variance)`` at every layer.
    With it, the share ``p`` of ``Sigma`` along the constant vector counts in full: ``tr = tokens p + variance``. It
    starts at ``1/tokens`` and soon is one, where ``s**2 = 1/width``.

    Parameters
    ----------
    layer : int
        Which, counted from one.
    tokens, width : int
        Of the signal.
    variance : float
        Of the entries of ``tokens * A`` (:func:`attention_variance`).
    gap : bool
        Whether attention has its gap.

    Returns
    -------
    float
        s.
    """
    layer, tokens, width = (SIZE.check(*each) for each in (("layer", layer), ("tokens", tokens), ("width", width)))
    variance = POSITIVE.check("variance", variance)
    if not gap:
        return math.sqrt(tokens / (width * variance))
    share = 1 / tokens
    for _ in range(layer - 1):
        share = (tokens * share + variance / tokens) / (tokens * share + variance)
    return math.sqrt(tokens / (width * (tokens * share + variance)))


def skip_weights(skip: float) -> tuple[float, float]:
    """Weights of the skip connection and of the branch, ``(a, sqrt(1 - a**2))``, that keep the mean of ``Sigma``.

    For a branch with mean one (:func:`value_std`) and values that are independent of the tokens, the means add. After
    ``L`` layers a share ``a**(2 L)`` of the input is left: ``a = sqrt(1 - 1/L)`` keeps it at ``1/e`` in any depth.

    Parameters
    ----------
    skip : float
        Weight a of the skip connection, in [0, 1].

    Returns
    -------
    tuple of float
        The weight of the skip connection and that of the branch.
    """
    skip = Interval(0, 1).check("skip", skip)
    return skip, math.sqrt(1 - skip**2)


def initialise(  # noqa: PLR0913 - a setting of attention, and what to draw with
    module: nn.Module,
    beta: float | Scales,
    tokens: int | None = None,
    rng: torch.Generator | None = None,
    *,
    mask: str | Mask = "full",
    similarity: float = 0.0,
) -> None:
    """Draw the weights of attention: of one module for a score scale, or of a whole stack for its scales.

    With a number, outputs of the module have the power of its inputs in the mean over tokens and draws, with or without
    the gap, as the module has it. That holds exactly (:func:`attended_power`) for a context of `tokens` whose norm is
    ``sqrt(width)`` and whose directions are uniform and independent; layer normalisation, which takes one dimension
    away, changes it by ``1/width``. Tokens of a trained or a deep model are not independent: give their mean cosine as
    `similarity`, which is right if that comes from one direction common to all. For other correlations nothing is
    promised; of orthogonal tokens less is left, because attention then cannot lean towards its query
    (:func:`value_std` is for those). The output projection becomes the identity and biases vanish.

    With :class:`Scales`, which :func:`bulkedge.nn.initial_scales` chooses and which say what they predict, all
    attention of a model is drawn (:func:`bulkedge.nn.initialise_stack`).

    Parameters
    ----------
    module : torch.nn.Module
        A :class:`torch.nn.MultiheadAttention` or :class:`bulkedge.nn.GapFreeAttention`, with its gap or without, keys
        and values as wide as queries; with scales, any model of such layers, or a decoder of transformers.
    beta : float or Scales
        As for :func:`query_key_std`, or the scales of a stack.
    tokens : int, optional
        Length of the context, for a number; scales have their own.
    rng : torch.Generator
        What to draw with. Weights are drawn on its device and in single precision: one seed, one module.
    mask : str or Mask
        ``"full"``, ``"causal"`` or any other, for a number.
    similarity : float
        Cosine between different tokens, for a number.
    """
    if not isinstance(rng, torch.Generator):
        raise DomainError(f"rng = {rng!r} is no torch.Generator; use torch.Generator().manual_seed(0)")
    if isinstance(beta, Scales):
        initialise_stack(module, beta, rng)
        return
    if not isinstance(module, nn.MultiheadAttention):
        raise DomainError(
            f"module is {type(module).__name__}, no attention; a whole model needs Scales in place of beta"
        )
    if tokens is None:
        raise DomainError("tokens are needed: how long a context the module is drawn for")
    if module.in_proj_weight is None:
        raise DomainError("module has keys or values of another width than its queries, for which there is no theory")
    width = module.embed_dim
    power = attended_power(beta, tokens, width, module.head_dim, gap=has_gap(module), mask=mask, similarity=similarity)
    scores, size = query_key_std(beta, width, tokens), 1 / math.sqrt(width * power)
    with torch.no_grad():
        for weight, std in zip(module.in_proj_weight.chunk(3), (scores, scores, size), strict=True):
            weight.copy_(std * torch.randn(weight.shape, generator=rng, device=rng.device, dtype=torch.float32))
        nn.init.eye_(module.out_proj.weight)
        biases: tuple[Any, ...] = (module.in_proj_bias, module.out_proj.bias)
        for bias in biases:
            if bias is not None:
                bias.zero_()
