"""Figures of the studies of *propagation*."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.studies.propagation.figures.signals import gradients, rank_collapse, scaling
from bulkedge.studies.propagation.figures.spectra import (
    all_outliers,
    jacobian,
    kernel,
    key_query,
    outliers,
    spectrum,
)
from bulkedge.studies.propagation.training import best

__all__ = [
    "all_outliers",
    "gradients",
    "jacobian",
    "kernel",
    "key_query",
    "outliers",
    "rank_collapse",
    "real_task",
    "scaling",
    "spectrum",
    "trainability",
    "training",
]


def trainability(data: xr.Dataset) -> Figure:
    """The map, a panel for each depth: predicted share as colour, simulation as points, and the two boundaries."""
    depths = data.depth.values.tolist()
    figure, grid = panels(1, len(depths) + 1, width=2.3)
    image: Any = None
    for axes, depth in zip(grid[0], depths, strict=False):
        one = data.sel(depth=depth)
        image = axes.pcolormesh(
            data.beta, data.skip, one.predicted, vmin=0, vmax=1, cmap="viridis", shading="gouraud", rasterized=True
        )
        beta, skip = np.meshgrid(data.beta, data.skip)
        axes.scatter(
            beta, skip, c=one.share.mean("draw"), vmin=0, vmax=1, cmap="viridis", s=18, edgecolors="white", lw=0.6,
            clip_on=False, zorder=4,
        )  # fmt: skip
        if float(one.predicted.min()) < 0.5 < float(one.predicted.max()):
            axes.contour(data.beta, data.skip, one.predicted, levels=[0.5], colors="white")
        axes.axvline(float(data.freezing), color=COLOURS[1])
        axes.set(title=f"depth {depth}", xlabel=r"score scale $\beta$")
    grid[0, 0].set_ylabel("weight of the skip connection")
    figure.colorbar(image, ax=grid[0, : len(depths)].tolist(), label="distinct share", shrink=0.9)
    last = grid[0, -1]
    line(last, data.beta, data.predicted_entropy, label="theory")
    marks(last, data.beta, data.entropy.mean(("draw", "skip")))
    last.axvline(float(data.freezing), color=COLOURS[-1], ls=":", label=r"$\sqrt{2\log T}$")
    last.set(xlabel=r"score scale $\beta$", ylabel="entropy of a row", ylim=(0, None))
    last.legend(loc="lower left")
    return figure


def training(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate: a row for each attention, a column for each architecture."""
    curves = best(data)
    figure, grid = panels(data.sizes["attention"], data.sizes["parts"], width=1.75, height=1.5)
    for k, (row, attention) in enumerate(zip(grid, data.attention.values.tolist(), strict=True)):
        for axes, parts in zip(row, data.parts.values.tolist(), strict=True):
            for gap, colour, look in zip(data.gap.values.tolist(), COLOURS[1::-1], ("--", "-"), strict=True):
                one = curves.sel(attention=attention, parts=parts, gap=gap)
                axes.fill_between(data.step, one.min("repeat"), one.max("repeat"), color=colour, alpha=0.2, lw=0)
                line(axes, data.step, one.mean("repeat"), label=f"gap {gap}", color=colour, ls=look)
            axes.axhline(float(data.collapsed), color=COLOURS[-1], ls=":", lw=0.9, label="least loss of equal tokens")
            axes.set(yscale="log", ylim=(0.7 * float(curves.min()), 4 * float(data.zero)))
            axes.tick_params(labelleft=axes is row[0], labelbottom=k == len(grid) - 1)
            axes.set_title(f"{attention}, {parts}")
        row[0].set_ylabel("loss")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def real_task(data: xr.Dataset) -> Figure:
    """Held-out loss over steps, and the stable rank of the last tokens."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    place = np.arange(data.sizes["when"])
    for k, (kind, symbol) in enumerate(zip(data.kind.values.tolist(), "os^", strict=True)):
        one = data.sel(kind=kind)
        look = {"color": COLOURS[k], "fmt": symbol + "-", "lw": 0.8, "label": kind}
        marks(left, data.step, one.loss.mean("seed"), one.loss.std("seed", ddof=1), **look)
        shift = 0.12 * (k - 1)
        rank = one["rank"]
        marks(right, place + shift, rank.mean("seed"), rank.std("seed", ddof=1), **(look | {"fmt": symbol}))
    left.axhline(float(data.entropy), color=COLOURS[-1], ls=":", lw=0.9, label="entropy of letters")
    left.set(xlabel="step", ylabel="held-out loss, nats a letter")
    right.set(xlim=(-0.5, 1.5), ylabel="stable rank of the last tokens")
    right.set_xticks(place, [f"{when} training" for when in data.when.values.tolist()])
    left.legend(loc="upper right")
    return figure
