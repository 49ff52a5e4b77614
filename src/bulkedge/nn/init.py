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
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bulkedge.nn.modules import GapFreeAttention
from bulkedge.nn.patching.score_scales import attention_modules
from bulkedge.nn.power import attended_power
from bulkedge.nn.scales import Scales, _StackRows
from bulkedge.propagation.skips import SkipIsometry
from bulkedge.support.domains import FLAG, MODULE, Instance, Integers, Interval, shown, takes
from bulkedge.support.errors import DomainError
from bulkedge.visibility import Mask

POSITIVE = Interval(0, math.inf, "()")
SIZE = Integers(1, 10**9)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")  # of attention in most decoders of transformers
GATED = ("gate_proj", "up_proj", "down_proj")  # of their feed-forward layers


@takes(beta=POSITIVE, width=SIZE, token_norm=POSITIVE)
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

    Examples
    --------
    >>> query_key_std(beta=1.0, width=400)
    0.05
    """
    norm = math.sqrt(width) if token_norm is None else token_norm
    if tokens is not None:
        limit = math.sqrt(2 * math.log(Integers(2, 10**9).check("tokens", tokens)))
        if beta > limit:
            raise DomainError(
                f"beta = {beta:g} is beyond sqrt(2 log(tokens)) = {limit:.3g} at {tokens} tokens: "
                "each row would attend to a single one; choose a smaller beta"
            )
    return math.sqrt(beta) / norm


@takes(beta=POSITIVE, head_dim=SIZE)
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
    if head_dim is None:
        return math.expm1(beta**2)
    if 2 * beta**2 >= head_dim:
        raise DomainError(
            f"beta = {beta:g} has no finite variance with head_dim = {head_dim}; give more than 2 beta**2"
        )
    return math.expm1(-head_dim / 2 * math.log1p(-2 * beta**2 / head_dim))


@takes(layer=SIZE, tokens=SIZE, width=SIZE, variance=POSITIVE, gap=FLAG)
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

    Examples
    --------
    >>> value_std(1, tokens=256, width=1024, variance=1.0, gap=False)
    0.5
    """
    if not gap:
        return math.sqrt(tokens / (width * variance))
    share = 1 / tokens
    for _ in range(layer - 1):
        share = (tokens * share + variance / tokens) / (tokens * share + variance)
    return math.sqrt(tokens / (width * (tokens * share + variance)))


@takes(skip=Interval(0, 1))
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

    Examples
    --------
    >>> skip_weights(0.6)
    (0.6, 0.8)
    """
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

    Examples
    --------
    >>> module = nn.MultiheadAttention(64, 4)
    >>> initialise(module, beta=1.0, tokens=128, rng=torch.Generator().manual_seed(0))
    >>> round(module.in_proj_weight[:128].std().item(), 3)
    0.125
    """
    if not isinstance(rng, torch.Generator):
        raise DomainError(f"rng = {shown(rng)} is no torch.Generator; use torch.Generator().manual_seed(0)")
    if isinstance(beta, Scales):
        initialise_stack(module, beta, rng)
        return
    if not isinstance(module, nn.MultiheadAttention):
        raise DomainError(f"module is {type(module).__name__}, no attention; a whole model needs Scales, not beta")
    if tokens is None:
        raise DomainError("tokens are needed: how long a context the module is drawn for")
    if module.in_proj_weight is None:
        raise DomainError("module has keys or values of another width than its queries, for which there is no theory")
    width = module.embed_dim
    power = attended_power(beta, tokens, width, module.head_dim, gap=has_gap(module), mask=mask, similarity=similarity)
    scores, size = query_key_std(beta, width, tokens), 1 / math.sqrt(width * power)
    with torch.no_grad():
        _draw_joint(module, scores, size, 1.0, rng)


@takes(
    model=MODULE,
    scales=Instance(Scales),
    rng=Instance(torch.Generator),
    power=POSITIVE,
    isometry=Instance(SkipIsometry),
)
def initialise_stack(
    model: nn.Module,
    scales: Scales,
    rng: torch.Generator,
    power: float | None = None,
    isometry: SkipIsometry | None = None,
) -> None:
    """Draw queries, keys, values and output projections of all attention modules of a model.

    Queries and keys are drawn for scores of standard deviation ``scales.beta``, values for branches of the power of
    their inputs, and output projections carry the weight of the branches beside skip connections of weight one: that is
    ``norm(x + attention(x))`` in place of ``norm(a x + sqrt(1 - a**2) attention(x))``, which is the same. Biases
    vanish. All else in the model stays as it is; norms are taken to have weights of one.

    With an `isometry` a new decoder starts close to one at any depth: each layer has its share of the power, half of it
    by attention and half by the feed-forward layer, which is drawn too. Weights beside the skip connections grow with
    the stream, so that the share is the same in all layers.

    Parameters
    ----------
    model : torch.nn.Module
        With as many :class:`torch.nn.MultiheadAttention` (or :class:`bulkedge.nn.GapFreeAttention`) modules as scales
        have layers, or a decoder of transformers whose attention has ``q_proj``, ``k_proj``, ``v_proj`` and ``o_proj``.
    scales : Scales
        Of :func:`bulkedge.nn.initial_scales`.
    rng : torch.Generator
        What to draw with, on its device and in single precision: one seed, one model.
    power : float, optional
        Mean square of the entries of the tokens that enter the stack, for ``norm="pre"``: that of the model's input
        embeddings by default, or one where it has none.
    isometry : SkipIsometry, optional
        Of :func:`bulkedge.propagation.skip_isometry`: share of the layers, in place of the branches of `scales`. For
        decoders of transformers with ``gate_proj``, ``up_proj`` and ``down_proj``.

    Raises
    ------
    DomainError
        If the model has not these layers, or its attention has other sizes or norms of its queries and keys; nothing is
        changed then.

    Examples
    --------
    >>> from bulkedge.nn import initial_scales
    >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4), 2, enable_nested_tensor=False)
    >>> initialise_stack(model, initial_scales(2, 128, 64, 16), torch.Generator().manual_seed(0))
    """
    own: list[Any] = [each for each in model.modules() if isinstance(each, nn.MultiheadAttention)]
    found = own or [module for _, _, module in attention_modules(model)]
    if len(found) != scales.depth:
        raise DomainError(f"{type(model).__name__} has {len(found)} attention modules, scales are of {scales.depth}")
    for each in found:
        _check(each, scales)
    feeds = [] if isometry is None else _feed_forward(model, scales, isometry)
    if isometry is not None:
        scales = _isometric(scales, isometry)
    if power is None:
        power = _embedding_power(model) if scales.norm == "pre" else 1.0
    with torch.no_grad():
        for module, weight in zip(feeds, scales.weights, strict=False):
            _draw_gated(module, weight * math.sqrt(power), rng)
        for module, gain, weight in zip(found, scales.value_gains, scales.weights, strict=True):
            values, branch = gain / math.sqrt(scales.width), weight * math.sqrt(power)
            if own:
                _draw_joint(module, math.sqrt(scales.beta / scales.width), values, branch, rng)
            else:
                _draw_projections(module, scales, values, branch, rng)


def has_gap(module: nn.MultiheadAttention) -> bool:
    """Whether a module attends by ``A`` or by ``A - C``."""
    if not isinstance(module, GapFreeAttention):
        return True
    names = ("alpha", "beta", "gamma")
    found = tuple(set(torch.as_tensor(getattr(module, name)).detach().flatten().tolist()) for name in names)
    if found in (({0.0}, {1.0}, {0.0}), ({0.0}, {1.0}, {1.0})):
        return found[2] == {0.0}
    raise DomainError(
        f"module has coefficients {dict(zip(names, map(sorted, found), strict=True))}; scales are known for "
        "alpha = 0, beta = 1 and gamma = 0 or 1"
    )


def _check(module: Any, scales: Scales) -> None:
    """Refuse modules that these scales are not for."""
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None:
            raise DomainError(f"{name} has keys or values of another width than queries, for which there is no theory")
        width, head_dim = module.embed_dim, module.head_dim
        if has_gap(module) != scales.gap:
            raise DomainError(f"{name} has gap = {not scales.gap}, and scales are for gap = {scales.gap}")
    else:
        missing = [each for each in PROJECTIONS if not isinstance(getattr(module, each, None), nn.Linear)]
        if missing or hasattr(module, "q_norm"):
            reason = "norms of its queries, which set the scores" if not missing else f"no {' and no '.join(missing)}"
            raise DomainError(f"{name} has {reason}: its scales cannot be set by weights of these names")
        width, head_dim = module.q_proj.in_features, module.head_dim
    if (width, head_dim) != (scales.width, scales.head_dim):
        raise DomainError(f"{name} has width {width}, head_dim {head_dim}, scales {scales.width} and {scales.head_dim}")


def _feed_forward(model: nn.Module, scales: Scales, isometry: SkipIsometry) -> list[Any]:
    """The gated feed-forward layers of a decoder; refused if it has not one for each layer."""
    found = [
        each for each in model.modules() if all(isinstance(getattr(each, name, None), nn.Linear) for name in GATED)
    ]
    if scales.norm != "pre" or len(found) != scales.depth or isometry.depth != scales.depth:
        raise DomainError(
            f"isometry is for {isometry.depth} layers; {type(model).__name__} has {len(found)} feed-forward layers "
            f"with {', '.join(GATED)}, and scales are of {scales.depth} layers, norm {scales.norm!r} (it needs 'pre')"
        )
    return found


def _isometric(scales: Scales, isometry: SkipIsometry) -> Scales:
    """Scales whose attention has half of the layer's share of the power."""
    share = isometry.share
    rows = _StackRows(scales.tokens, scales.width, scales.head_dim, scales.mask, scales.gap)
    powers = rows.course(scales.beta, share / 2, scales.depth, 0.0).powers
    stream = [share / 2 * (1 - share) ** -(layer + 1) for layer in range(scales.depth)]
    return replace(
        scales, value_gains=tuple(1 / math.sqrt(each) for each in powers), weights=tuple(map(math.sqrt, stream))
    )


def _draw_gated(module: Any, weight: float, rng: torch.Generator) -> None:
    """Draw a gated feed-forward layer whose Jacobian has this root of a mean square, for tokens of power one."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    gate = torch.tensor(nodes, requires_grad=True)
    with torch.enable_grad():
        open_ = module.act_fn(gate)
        (slope,) = torch.autograd.grad(open_.sum(), gate)
    # gates and what they let through are standard Gaussian: both move with the token
    moved = float((open_.detach() ** 2 + slope**2) @ torch.tensor(weights / weights.sum()))
    width, hidden = module.gate_proj.in_features, module.gate_proj.out_features
    stds = (width**-0.5, width**-0.5, weight / math.sqrt(hidden * moved))
    for name, std in zip(GATED, stds, strict=True):
        part = getattr(module, name)
        _fill(part.weight, std, rng)
        if part.bias is not None:
            part.bias.zero_()


def _embedding_power(model: Any) -> float:
    """Mean square of the entries of the input embeddings; one if there are none."""
    try:
        table = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        return 1.0
    return float(table.detach().float().square().mean())


def _draw_joint(module: Any, scores: float, values: float, weight: float, rng: torch.Generator) -> None:
    """Draw a module whose queries, keys and values are one weight, for these standard deviations."""
    for part, std in zip(module.in_proj_weight.chunk(3), (scores, scores, values), strict=True):
        _fill(part, std, rng)
    nn.init.eye_(module.out_proj.weight)
    module.out_proj.weight.mul_(weight)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        if bias is not None:
            bias.zero_()


def _draw_projections(module: Any, scales: Scales, values: float, weight: float, rng: torch.Generator) -> None:
    scaling = getattr(module, "scaling", scales.head_dim**-0.5)
    scores = math.sqrt(scales.beta / (scales.width * scaling * math.sqrt(scales.head_dim)))
    stds = (scores, scores, values, weight / math.sqrt(module.o_proj.in_features))
    for name, std in zip(PROJECTIONS, stds, strict=True):
        part = getattr(module, name)
        _fill(part.weight, std, rng)
        if part.bias is not None:
            part.bias.zero_()


def _fill(weight: Tensor, std: float, rng: torch.Generator) -> None:
    weight.copy_(std * torch.randn(weight.shape, generator=rng, device=rng.device, dtype=torch.float32))
