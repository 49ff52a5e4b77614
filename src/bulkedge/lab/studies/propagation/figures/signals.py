"""Figures of signals: rank, gradients, and scales."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.lab.studies.propagation.figures.axes import SYMBOLS, decades, errors, integers, made_with, sizes_axis
from bulkedge.lab.studies.propagation.rank_collapse import fitted_slope
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.support.estimates import Estimate

MANY = (*COLOURS, "0.5")


def rank_collapse(data: xr.Dataset) -> Figure:
    """Collapse in width with the gap, the rank without it, and both over depth."""
    figure, grid = panels(1, 4, width=2.5, height=2.6)
    left, middle = grid[0, :2]
    sizes = data["size"].values
    for layer, colour, symbol in zip(data.layer.values.tolist(), COLOURS, SYMBOLS, strict=False):
        one = data.sel(layer=layer)
        slope = fitted_slope(sizes, one.log_excess.values, one.log_error.values, one["count"].values)
        look = {"color": colour, "fmt": symbol}
        line(left, sizes, one.predicted, label="", color=colour)
        value, text = np.exp(one.log_excess), f"ℓ = {layer}: {slope.value:.2f} ± {slope.error:.2f}"
        marks(left, sizes, value, value * one.log_error, label=text, **look)
        line(middle, sizes, one.predicted_free, label="", color=colour)
        marks(middle, sizes, one.free.mean("draw"), errors(one.free), label=f"ℓ = {layer}", **look)
    left.set(title="Markov, gap kept", ylabel=r"stable rank of $\Sigma_\ell$, less one")
    middle.set(title="Markov, gap removed", ylabel=r"stable rank of $\Sigma_\ell$")
    decades(left)
    left.set_ylim(float(data.predicted.min()) / 1e7, 3)
    left.legend(loc="lower left", title="fitted slope", title_fontsize=7)
    middle.set_yscale("log", base=2)
    middle.yaxis.set_major_formatter("{x:g}")
    middle.legend(loc="upper left")
    for axes in (left, middle):
        sizes_axis(axes, sizes)
    for axes, gap in zip(grid[0, 2:], ("kept", "removed"), strict=True):
        _ranks(axes, data, gap)
    figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    made = made_with(data)
    title = f"lines: theory. Left: {made.get('entries', '')} entries, T = d. Right: T = d = {made.get('tokens', '')}"
    figure.suptitle(f"{title}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def _ranks(axes: Axes, data: xr.Dataset, gap: str) -> None:
    """Stable rank over depth, a colour for each architecture."""
    for variant, colour, symbol in zip(data.variant.values.tolist(), MANY, SYMBOLS, strict=False):
        one = data["rank"].sel(variant=variant, gap=gap)
        marks(axes, data.step, one.mean("draw"), errors(one), color=colour, fmt=symbol, label=variant)
        if gap == "removed" and variant in data.known.values:
            shown = data.shallow.values <= data.step.values[-1]
            curve = data.expected_rank.sel(known=variant).values
            line(axes, data.shallow.values[shown], curve[shown], label="", color=colour, lw=0.9)
    axes.set(title=f"gap {gap}", ylabel=r"stable rank of $\Sigma_\ell$", yscale="log")
    axes.set_ylim(0.9, 1.4 * float(data["rank"].mean("draw").max()))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    integers(axes, "layer ℓ")


def gradients(data: xr.Dataset) -> Figure:
    """One layer over tokens, a few layers of Markov attention, and every architecture over depth."""
    figure, grid = panels(2, 3, width=2.8, height=2.3)
    sizes, variants = data["size"].values, data.variant.values.tolist()
    for row, gap in zip(grid, ("kept", "removed"), strict=True):
        one_layer, few, deep = row
        for variant, colour, symbol in zip(variants, COLOURS, SYMBOLS, strict=False):
            look = {"color": colour, "fmt": symbol, "label": variant}
            one = data.one_layer.sel(gap=gap, variant=variant) / data["size"]
            marks(one_layer, sizes, one.mean("draw"), errors(one), **look)
            one = data.over_depth.sel(gap=gap, variant=variant)
            logs = Estimate.of(np.log(one.transpose("draw", "step").values))
            middle = np.exp(logs.value)
            marks(deep, data.step, middle, middle * logs.error, **(look | {"fmt": symbol + "--", "lw": 0.6}))
        for depth, colour, symbol in zip(data.depth.values.tolist(), COLOURS, SYMBOLS, strict=False):
            one = data.sel(gap=gap, depth=depth)
            line(few, sizes, one.predicted, label="", color=colour)
            marks(few, sizes, one.norm.mean("draw"), errors(one.norm), label=f"L = {depth}", color=colour, fmt=symbol)
        one_layer.set(title=f"one layer, gap {gap}", ylabel=r"$\|\partial X_1/\partial W_1\|_F^2/T$", ylim=(0, 2.5))
        few.set(title=f"Markov, gap {gap}", ylabel=r"$\|\partial X_L/\partial W_1\|_F^2$")
        decades(few)
        few.set_ylim(float(data.norm.min()) / 3, 30 * float(data.norm.max()))
        few.legend(loc="upper left", ncols=3, columnspacing=0.6, handletextpad=0.1)
        line(deep, data.step, data.expected.sel(gap=gap), label="theory, Markov", color=COLOURS[-1], lw=0.9)
        decades(deep)
        deep.set(title=f"over depth, gap {gap}", ylabel=r"$\|\partial X_L/\partial W_1\|_F^2$")
        deep.set_ylim(float(data.over_depth.min()) / 3, 3 * float(data.over_depth.max()))
        integers(deep, "depth L")
        for axes in (one_layer, few):
            sizes_axis(axes, sizes)
    figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    tokens = made_with(data).get("tokens", "")
    figure.suptitle(f"T = d; over depth T = {tokens}; {data.sizes['draw']} draws; lines: theory", fontsize=8)
    return figure


def scaling(data: xr.Dataset) -> Figure:
    """Weight of the branch, size of the kernel, and Xavier's attention."""
    figure, grid = panels(1, 3, width=2.7)
    left, middle, right = grid[0]
    sizes = data["size"].values
    for k, kind in enumerate(data.skip_scaling.values.tolist()):
        for gap, symbol in (("kept", "o"), ("removed", "s")):
            one = data.sel(skip_scaling=kind, gap=gap)
            line(left, sizes, one.predicted_branch, label="", color=COLOURS[k])
            look = {"color": COLOURS[k], "fmt": symbol, "label": f"{kind}, gap {gap}"}
            marks(left, sizes, one.branch.mean("draw"), errors(one.branch), **look)
    decades(left)
    left.set(ylabel="weight of attention over skip", ylim=(None, 300))
    left.legend(loc="upper left")
    names = {"1/d": "$1/d$", "gamma/sigma^2": r"$\gamma/\sigma_A^2$", "1": "1"}
    for kind, colour, symbol in zip(data["values"].values.tolist(), COLOURS, SYMBOLS, strict=False):
        one = data.sel(values=kind)
        line(middle, data.layer, one.predicted_mean, label="", color=colour)
        marks(
            middle,
            data.layer,
            one["mean"].mean("draw"),
            errors(one["mean"]),
            color=colour,
            fmt=symbol,
            label=names[kind],
        )
    decades(middle)
    middle.set_ylabel("mean eigenvalue of the kernel")
    integers(middle, "layer")
    middle.legend(title=r"$\sigma_V^2$", loc="lower left")
    line(right, sizes, data.predicted_xavier, label=r"$\beta^2/d^2$")
    line(right, sizes, data.predicted_xavier * sizes, label=r"$\beta^2/d$", color=COLOURS[-1], ls=":", lw=1.0)
    marks(right, sizes, data.xavier.mean("draw"), errors(data.xavier), label="Xavier's queries and keys")
    decades(right)
    right.set_ylabel("variance of attention")
    right.set_ylim(None, 30 * float((data.predicted_xavier * sizes).max()))
    right.legend(loc="upper right")
    for axes in (left, right):
        sizes_axis(axes, sizes)
    tokens, draws = made_with(data).get("tokens", ""), data.sizes["draw"]
    figure.suptitle(f"T = d, {draws} draws; middle: T = {tokens}, d = 2 T, gap removed; lines: theory", fontsize=8)
    return figure
