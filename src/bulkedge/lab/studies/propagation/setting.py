"""What the studies of Propositions 7 and 8 share: the stack without its gap, and claims on its moments and law."""

from __future__ import annotations

from math import log, pi, sqrt
from typing import NamedTuple

import xarray as xr

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies.claims import Claim, Rival, average
from bulkedge.propagation.moments import finite_moments
from bulkedge.support.estimates import Estimate

RIGID = (
    "an exact zero, a step of the distribution function, and three deviations of the number of values below a point, "
    "sqrt(log T)/pi, over T"
)
"""Reason of :func:`rigidity`."""


class Places(NamedTuple):
    """Where the paper states the mean, the second moment and the law."""

    mean: str
    second: str
    law: str


class Rivals(NamedTuple):
    """Who else could be right: what they are called, for the second moment (up to T = d and beyond) and for the law."""

    second: str
    second_beyond: str
    law: str


def rigidity(tokens: int) -> float:
    """How far from its limit the distribution function of T rigid values is: Kolmogorov distance of one draw.

    The number of singular values of a real matrix below a point has a standard deviation of ``sqrt(log T)/pi`` to
    leading order; its largest deviation along the axis is about three of them. Rows of ``A - uu'`` sum to zero, so that
    one value is zero exactly.
    """
    return (1.5 + 3 * sqrt(log(tokens)) / pi) / tokens


def gap_free_stack(depth: int, tokens: int, ratio: float) -> AttentionStack:
    """A stack without the gap, with values of the variance ``gamma/sigma_A**2`` that keeps squared norms."""
    width = round(tokens / ratio)
    return AttentionStack(depth, tokens, width, gap=False, value_variance=tokens / width, entries="exponential")


def mean_with_gap(stack: AttentionStack) -> float:
    """Expected mean eigenvalue of the kernel if the gap were not removed, over that without the gap."""
    share = (stack.tokens - 1) / (stack.tokens + 1) / stack.tokens
    return 1 + sum(share**k for k in range(stack.depth)) / (stack.tokens * share**stack.depth)


def gap_free_claims(data: xr.Dataset, places: Places, rivals: Rivals, reason: str) -> list[Claim]:
    """Mean of every layer; second moment and law for every ratio and layer."""
    means = [_mean(data.sel(layer=layer), places.mean) for layer in data.layer.values.tolist()]
    cells = [
        claim
        for ratio in data.ratio.values.tolist()
        for layer in data.layer.values.tolist()
        for claim in _claims(data.sel(ratio=ratio, layer=layer), places, rivals, reason)
    ]
    return [*means, *cells]


def _mean(one: xr.Dataset, place: str) -> Claim:
    return Claim(
        statement=f"layer {int(one.layer)}: {one['mean'].attrs['long_name']} over its expectation, all ratios",
        place=place,
        measured=average(one["mean"] / one.expected_mean),
        predicted=1.0,
        rival=Rival("the gap kept", float(one.with_gap.mean())),
    )


def _claims(one: xr.Dataset, places: Places, rivals: Rivals, reason: str) -> list[Claim]:
    where = f"T/d = {float(one.ratio):g}, layer {int(one.layer)}: "
    expected, other = float(one.expected_second), rivals.second if one.ratio <= 1 else rivals.second_beyond
    return [
        Claim(
            statement=f"{where}second moment, whose limit is {float(one.limit_second):.4g}",
            place=places.second,
            measured=Estimate.of(one.second),
            predicted=expected,
            rival=Rival(other, expected * (1 + float(one.rival_spread)) / (1 + float(one.spread))),
        ),
        Claim(
            statement=where + "Kolmogorov distance to the law",
            place=places.law,
            measured=Estimate.of(one.distance),
            predicted=0.0,
            rival=Rival(rivals.law, float(one.separation)),
            finite_size=float(one.floor),
            reason=reason,
            relation="<=",
        ),
    ]


def expectations(stack: AttentionStack, of: str, spread: float) -> dict[str, float]:
    """What theory says of the moments of a gap-free stack, at its size and in the limit."""
    found = finite_moments(stack, of)  # type: ignore[arg-type]
    mean = stack.mean_eigenvalue if of == "kernel" else stack.passed
    return {
        "expected_mean": found.mean,
        "expected_second": found.second,
        "limit_second": mean**2 * (1 + spread),
        "with_gap": mean_with_gap(stack),
    }
