"""Weights of a whole stack of attention, drawn with the scales that were chosen for it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from bulkedge.nn.modules import GapFreeAttention
from bulkedge.nn.patching.score_scales import attention_modules
from bulkedge.nn.scales import Scales
from bulkedge.support.errors import DomainError

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Linear maps of an attention module of transformers, in most of its decoders."""


def initialise_stack(model: nn.Module, scales: Scales, rng: torch.Generator, power: float | None = None) -> None:
    """Draw queries, keys, values and output projections of all attention modules of a model.

    Queries and keys are drawn for scores of standard deviation ``scales.beta``, values for branches of the power of
    their inputs, and output projections carry the weight of the branches beside skip connections of weight one: that is
    ``norm(x + attention(x))`` in place of ``norm(a x + sqrt(1 - a**2) attention(x))``, which is the same. Biases
    vanish. All else in the model stays as it is; norms are taken to have weights of one.

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

    Raises
    ------
    DomainError
        If the model has not these layers, or its attention has other sizes or norms of its queries and keys; nothing is
        changed then.
    """
    own: list[Any] = [each for each in model.modules() if isinstance(each, nn.MultiheadAttention)]
    found = own or [module for _, _, module in attention_modules(model)]
    if len(found) != scales.depth:
        raise DomainError(
            f"{type(model).__name__} has {len(found)} attention modules, and scales are of {scales.depth}"
        )
    for each in found:
        _check(each, scales)
    if power is None:
        power = _embedded(model) if scales.norm == "pre" else 1.0
    with torch.no_grad():
        for module, gain, weight in zip(found, scales.value_gains, scales.weights, strict=True):
            (_draw_own if own else _draw)(module, scales, gain, weight * math.sqrt(power), rng)


def has_gap(module: nn.MultiheadAttention) -> bool:
    """Whether a module attends by ``A`` or by ``A - C``."""
    if not isinstance(module, GapFreeAttention):
        return True
    names = ("alpha", "beta", "gamma")
    found = tuple(set(torch.as_tensor(getattr(module, name)).detach().flatten().tolist()) for name in names)
    for gap in (True, False):
        if found == ({0.0}, {1.0}, {0.0 if gap else 1.0}):
            return gap
    raise DomainError(
        f"module has coefficients {dict(zip(names, map(sorted, found), strict=True))}; scales are known for "
        "alpha = 0, beta = 1 and gamma = 0 or 1"
    )


def _check(module: Any, scales: Scales) -> None:
    """Refuse modules that these scales are not for."""
    name = type(module).__name__
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None:
            raise DomainError(
                f"{name} has keys or values of another width than its queries, for which there is no theory"
            )
        sizes = module.embed_dim, module.head_dim
        if has_gap(module) != scales.gap:
            raise DomainError(f"{name} has gap = {not scales.gap}, and scales are for gap = {scales.gap}")
    else:
        missing = [each for each in PROJECTIONS if not isinstance(getattr(module, each, None), nn.Linear)]
        if missing or hasattr(module, "q_norm"):
            reason = "norms of its queries, which set the scores" if not missing else f"no {' and no '.join(missing)}"
            raise DomainError(f"{name} has {reason}: its scales cannot be set by weights of these names")
        sizes = module.q_proj.in_features, module.head_dim
    if sizes != (scales.width, scales.head_dim):
        raise DomainError(
            f"{name} has width {sizes[0]} and head_dim {sizes[1]}, scales {scales.width} and {scales.head_dim}"
        )


def _embedded(model: Any) -> float:
    """Mean square of the entries of the input embeddings; one if there are none."""
    try:
        table = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        return 1.0
    return float(table.detach().float().square().mean())


def _draw_own(module: nn.MultiheadAttention, scales: Scales, gain: float, weight: float, rng: torch.Generator) -> None:
    scores, width = math.sqrt(scales.beta / scales.width), scales.width
    for part, std in zip(module.in_proj_weight.chunk(3), (scores, scores, gain / math.sqrt(width)), strict=True):
        _fill(part, std, rng)
    nn.init.eye_(module.out_proj.weight)
    module.out_proj.weight.mul_(weight)
    biases: tuple[Any, ...] = (module.in_proj_bias, module.out_proj.bias)
    for bias in biases:
        if bias is not None:
            bias.zero_()


def _draw(module: Any, scales: Scales, gain: float, weight: float, rng: torch.Generator) -> None:
    scaling = getattr(module, "scaling", scales.head_dim**-0.5)
    scores = math.sqrt(scales.beta / (scales.width * scaling * math.sqrt(scales.head_dim)))
    stds = (scores, scores, gain / math.sqrt(scales.width), weight / math.sqrt(module.o_proj.in_features))
    for name, std in zip(PROJECTIONS, stds, strict=True):
        part = getattr(module, name)
        _fill(part.weight, std, rng)
        if part.bias is not None:
            part.bias.zero_()


def _fill(weight: Tensor, std: float, rng: torch.Generator) -> None:
    weight.copy_(std * torch.randn(weight.shape, generator=rng, device=rng.device, dtype=torch.float32))
