"""Figures of the studies of *propagation*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bulkedge.lab.studies.propagation.figures.signals import gradients, rank_collapse, scaling
from bulkedge.lab.studies.propagation.figures.spectra import (
    all_outliers,
    jacobian,
    kernel,
    key_query,
    outliers,
    spectrum,
)
from bulkedge.lab.studies.propagation.networks import best
from bulkedge.plots.style import COLOURS, line, marks, panels

__all__ = [
    "all_outliers",
    "gradients",
    "jacobian",
    "kernel",
    "key_query",
    "outliers",
    "plateau",
    "rank_collapse",
    "real_task",
    "scaling",
    "spectrum",
    "trainability",
    "training",
    "upscaled_skip",
]
SHOWN = 3
"""Skip connections of which key-query attention is drawn, the strongest."""


def trainability(data: xr.Dataset) -> Figure:
    """Above the map and the entropy, theory on its own fine grid; below key-query attention, a panel for each depth."""
    depths = data.depth.values.tolist()
    figure, grid = panels(2, len(depths) + 1, width=2.3, height=2.5)
    image: Any = None
    beta, skip = np.meshgrid(data.beta, data.skip)
    look: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis"}
    for axes, depth in zip(grid[0], depths, strict=False):
        one = data.sel(depth=depth)
        image = axes.pcolormesh(data.fine_beta, data.fine_skip, one.fine, shading="gouraud", rasterized=True, **look)
        found = one.apart.mean("draw") / one.power.mean("draw")
        axes.scatter(beta, skip, c=found, s=18, edgecolors="white", lw=0.6, clip_on=False, zorder=4, **look)
        if float(one.fine.min()) < 0.5 < float(one.fine.max()):
            axes.contour(data.fine_beta, data.fine_skip, one.fine, levels=[0.5], colors="white")
        axes.axvline(float(data.freezing), color=COLOURS[1])
        axes.set(title=f"depth {depth}", xlabel=r"score scale $\beta$")
    grid[0, 0].set_ylabel("weight of the skip connection")
    figure.colorbar(image, ax=grid[0, : len(depths)].tolist(), label="distinct share", shrink=0.9)
    _entropy(grid[0, -1], data)
    for axes, depth in zip(grid[1], depths, strict=False):
        _paired(axes, data.sel(depth=depth), depth)
    grid[1, 0].set_ylabel("distinct share")
    _legend(figure, grid[1, -1], data)
    figure.suptitle(f"{data.attrs['tokens']} tokens, {data.sizes['draw']} draws at each point", fontsize=8)
    return figure


def _entropy(axes: Any, data: xr.Dataset) -> None:
    """Mean entropy of a row over score scales."""
    row = data.entropy.mean("skip")
    line(axes, data.fine_beta, data.fine_entropy, label="theory", color=COLOURS[0])
    marks(axes, data.beta, row.mean("draw"), row.std("draw", ddof=1) / data.sizes["draw"] ** 0.5)
    limit = np.maximum(np.log(data.attrs["tokens"]) - data.fine_beta**2 / 2, 0.0)
    line(axes, data.fine_beta, limit, label=r"$\log T - \beta^2/2$", color=COLOURS[-1], ls="--")
    axes.axvline(float(data.freezing), color=COLOURS[1])
    axes.set(xlabel=r"score scale $\beta$", ylabel="entropy of a row", ylim=(0, None), title="entropy")
    axes.legend(loc="lower left", frameon=False)


def _paired(axes: Any, one: xr.Dataset, depth: int) -> None:
    """Distinct share of key-query attention over score scales, at one depth: strongest skip connections only."""
    for k, skip in enumerate(one.skip.values[-SHOWN:].tolist()):
        here = one.sel(skip=skip)
        for name, style in (("paired", "-"), ("many", "--"), ("alone", ":")):
            line(axes, one.curve_beta, here[f"{name}_curve"], color=COLOURS[k], ls=style)
        error = here.key_query.std("draw", ddof=1) / one.sizes["draw"] ** 0.5
        marks(axes, one.beta, here.key_query.mean("draw"), error, color=COLOURS[k])
    axes.set(title=f"key-query, depth {depth}", xlabel=r"score scale $\beta$", ylim=(-0.03, 1.03))


def _legend(figure: Figure, axes: Any, data: xr.Dataset) -> None:
    """Names of what the maps show below the figure; those of key-query attention in the empty panel."""
    edge: Any = {"markersize": 4, "color": "none", "marker": "o", "markerfacecolor": "#21918c"}
    stroke = [Stroke(linewidth=2.3, foreground="0.5"), Normal()]
    handles = [
        Line2D([], [], label="predicted share 1/2", color="white", path_effects=stroke),
        Line2D([], [], label=r"freezing, $\beta = \sqrt{2\log T}$", color=COLOURS[1]),
        Line2D([], [], label="simulation (colour of the disc)", markeredgecolor="0.5", **edge),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    skips = data.skip.values[-SHOWN:].tolist()
    names = [Line2D([], [], label=f"skip {skip:g}", color=COLOURS[k]) for k, skip in enumerate(skips)]
    styles = {"-": "theory, T tokens", "--": "many tokens", ":": "rows without overlap"}
    names += [Line2D([], [], label=name, color="0.3", ls=style) for style, name in styles.items()]
    axes.axis("off")
    axes.legend(handles=names, loc="center left", frameon=False, title="key-query attention")


def training(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate: a row for each attention, a column for each architecture."""
    curves = best(data)
    figure, grid = panels(data.sizes["attention"], data.sizes["parts"], width=1.75, height=1.5)
    for row, attention in zip(grid, data.attention.values.tolist(), strict=True):
        for axes, parts in zip(row, data.parts.values.tolist(), strict=True):
            here = curves.sel(attention=attention, parts=parts)
            for gap, colour, look in zip(data.gap.values.tolist(), COLOURS[1::-1], ("--", "-"), strict=True):
                _curve(axes, here.sel(gap=gap), f"gap {gap}", color=colour, ls=look)
            axes.set_title(f"{attention}, {parts}")
    _finish(figure, grid, data, [curves] * len(grid))
    return figure


def plateau(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate, both scales of queries and keys in a panel."""
    curves = best(data)
    figure, grid = panels(1, data.sizes["parts"], height=2.9)
    names = {"key-query": "scores of deviation one", "xavier": "Xavier"}
    titles = {"plain": "attention alone", "LN": "with layer normalisation (ours)"}
    for axes, parts in zip(grid[0], data.parts.values.tolist(), strict=True):
        for colour, attention in zip(COLOURS, data.attention.values.tolist(), strict=False):
            for gap, look in zip(data.gap.values.tolist(), ("--", "-"), strict=True):
                here = curves.sel(attention=attention, parts=parts, gap=gap)
                _curve(axes, here, f"{names[attention]}, gap {gap}", color=colour, ls=look)
        axes.axhline(float(data.zero.mean()), color=COLOURS[2], ls="-.", lw=0.9, label="loss of an output of zero")
        axes.set_title(titles[parts])
    _finish(figure, grid, data, [curves])
    return figure


def upscaled_skip(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate, both scales of the values: rows depths, columns attention and gap."""
    curves = best(data)
    figure, grid = panels(data.sizes["depth"], data.sizes["attention"] * data.sizes["gap"], width=1.75, height=1.9)
    names = {"fair": r"values of variance 1", "upscaled": r"values of variance $1/d$: upscaled skip"}
    for row, depth in zip(grid, data.depth.values.tolist(), strict=True):
        columns = [(kind, gap) for kind in data.attention.values.tolist() for gap in data.gap.values.tolist()]
        for axes, (kind, gap) in zip(row, columns, strict=True):
            for skip, colour, look in zip(data.skip.values.tolist(), COLOURS, ("-", "--"), strict=False):
                here = curves.sel(depth=depth, attention=kind, gap=gap, skip=skip)
                _curve(axes, here, names[skip], color=colour, ls=look)
            axes.set_title(f"{kind}, gap {gap}\n{depth} layer{'s' if depth > 1 else ''}")
    _finish(figure, grid, data, [curves.sel(depth=depth) for depth in data.depth])
    return figure


def _curve(axes: Any, one: xr.DataArray, label: str, **look: Any) -> None:
    """Mean over the networks, and the band from the least to the largest of them."""
    axes.fill_between(one.step, one.min("draw"), one.max("draw"), color=look["color"], alpha=0.2, lw=0)
    line(axes, one.step, one.mean("draw"), label=label, **look)


def _finish(figure: Figure, grid: Any, data: xr.Dataset, rows: Sequence[xr.DataArray]) -> None:
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


def real_task(data: xr.Dataset) -> Figure:
    """Held-out loss over steps, and the stable rank of the last tokens."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    place, count = np.arange(data.sizes["when"]), data.sizes["seed"] ** 0.5
    for k, (kind, symbol) in enumerate(zip(data.kind.values.tolist(), "os^", strict=True)):
        one = data.sel(kind=kind)
        look = {"color": COLOURS[k], "fmt": symbol + "-", "lw": 0.8, "label": kind}
        apart = 0.008 * (k - 1) * float(data.step[-1])
        marks(left, data.step + apart, one.loss.mean("seed"), one.loss.std("seed", ddof=1) / count, **look)
        rank = one["rank"]
        shift = 0.12 * (k - 1)
        marks(right, place + shift, rank.mean("seed"), rank.std("seed", ddof=1) / count, **(look | {"fmt": symbol}))
    left.axhline(float(data.entropy), color=COLOURS[-1], ls=":", lw=0.9, label="entropy of letters")
    left.set(xlabel="step", ylabel="held-out loss, nats a letter")
    left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    right.set(xlim=(-0.5, 1.5), ylabel="stable rank of the last tokens", ylim=(1, None))
    right.set_xticks(place, [f"{when} training" for when in data.when.values.tolist()])
    left.legend(loc="upper right")
    sizes = f"{data.attrs['layers']} layers of width {data.attrs['width']}, {data.attrs['context']} letters at once"
    figure.suptitle(f"{sizes}; mean and standard error of {data.sizes['seed']} networks", fontsize=8)
    return figure
