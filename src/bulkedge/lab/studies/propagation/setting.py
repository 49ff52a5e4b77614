"""What the studies of Propositions 7 and 8 share: the stack without its gap, and claims on its moments and law."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies.claims import Claim, Rival, average
from bulkedge.plots.style import COLOURS, histogram, line
from bulkedge.propagation.moments import finite_moments
from bulkedge.support.estimates import Estimate

RIGID = (
    "an exact zero, a step of the distribution function, and three deviations of the number of values below a point, "
    "sqrt(log T)/pi, over T"
)
"""Reason of :func:`rigidity`."""
SYMBOLS = "os^Dvp<>"
RIVAL: dict[str, Any] = {"color": COLOURS[-1], "ls": ":", "lw": 1.0}


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


def loss_curve(axes: Any, one: xr.DataArray, label: str, **look: Any) -> None:
    """Mean over the networks, and the band from the least to the largest of them."""
    axes.fill_between(one.step, one.min("draw"), one.max("draw"), color=look["color"], alpha=0.2, lw=0)
    line(axes, one.step, one.mean("draw"), label=label, **look)


def finish_losses(figure: Figure, grid: Any, data: xr.Dataset, rows: Sequence[xr.DataArray]) -> None:
    """The same logarithmic scale along each row, labels at the edge of the grid, one legend, and the sizes."""
    equal: Any = {"color": COLOURS[-1], "ls": ":", "lw": 0.9, "label": "least loss of equal tokens"}
    for row, curves in zip(grid, rows, strict=True):
        low, high = float(curves.min()), float(curves.max())
        for axes in row:
            axes.axhline(float(data.collapsed.mean()), **equal)
            axes.set(yscale="log", ylim=(0.8 * low, 1.2 * high))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0,), numticks=12))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.tick_params(labelleft=axes is row[0], labelbottom=False)
        row[0].set_ylabel("loss")
    for axes in grid[-1]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    sizes = f"{data.attrs['tokens']} tokens and dimensions, {data.attrs['samples']} inputs"
    figure.suptitle(f"{sizes}; mean and range of {data.sizes['draw']} networks at the best learning rate", fontsize=8)


def errors(values: xr.DataArray) -> xr.DataArray:
    """Standard errors of the means over draws."""
    return values.std("draw", ddof=1) / values.sizes["draw"] ** 0.5


def decades(axes: Axes) -> None:
    """A logarithmic vertical axis, labelled at decades only."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())


def sizes_axis(axes: Axes, sizes: Any, label: str = "tokens T") -> None:
    """A logarithmic horizontal axis with a tick at each size that was simulated."""
    values = np.asarray(sizes).tolist()
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, [str(each) for each in values])
    axes.set_xlabel(label)


def integers(axes: Axes, label: str) -> None:
    """A horizontal axis of integers, as layers are."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)


def densities(grid: Any, data: xr.Dataset, label: str, rival: str) -> None:
    """Histograms and laws with a logarithmic axis: densities span decades between a hard edge and a soft one."""
    for row, ratio in zip(grid, data.ratio.values.tolist(), strict=True):
        for axes, layer in zip(row, data.layer.values.tolist(), strict=False):
            one = data.sel(ratio=ratio, layer=layer)
            low = 0.5 * float(one.simulation.values[one.simulation.values > 0].min())
            histogram(axes, one.bin_edge, np.maximum(one.simulation, low), baseline=low)
            for density, look in ((one.rival, {"label": rival} | RIVAL), (one.theory, {"label": "law"})):
                shown = density.values > low
                line(axes, one.x.values[shown], density.values[shown], **look)
            decades(axes)
            axes.set(title=f"T/d = {ratio:g}, ℓ = {layer}", ylim=(low, None))
        row[0].set_ylabel("density")
    for axes in grid[-1]:
        axes.set_xlabel(label)
    grid[0, 0].legend(loc="upper right")
