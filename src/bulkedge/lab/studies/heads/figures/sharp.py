"""Figure of the study of sharp heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

from bulkedge.lab.studies.heads.sharp import rivals
from bulkedge.plots.style import COLOURS, line, marks, panels

LOOKS: dict[str, dict[str, Any]] = {
    "sharp": {"label": "law of sharp heads"},
    "quarter": {"label": "quarter circle, same mean", "color": COLOURS[2], "ls": "--", "lw": 1.0},
    "poisson": {"label": "T × Poisson(1)", "color": COLOURS[3], "ls": ":", "lw": 1.2},
}
SYMBOLS = {"sharp": "o", "quarter": "s", "poisson": "^"}
SHOWN = 5
"""Panels of distribution functions at most; the last panel has the distances."""


def sharp(data: xr.Dataset) -> Figure:
    """Distribution functions for some beta with the three laws, and the distances to all three over beta."""
    betas = data.beta.values[np.unique(np.linspace(0, data.sizes["beta"] - 1, SHOWN).round().astype(int))].tolist()
    columns = min(3, len(betas) + 1)
    figure, grid = panels(-(-(len(betas) + 1) // columns), columns, width=2.5, height=2.3)
    places = grid.ravel()
    for axes, beta in zip(places, betas, strict=False):
        _functions(axes, data.sel(beta=beta), float(beta), int(data.attrs["tokens"]))
    for axes in grid[:, 0]:
        axes.set_ylabel("share of values up to x")
    _distances(places[len(betas)], data)
    for axes in places[len(betas) + 1 :]:
        axes.set_visible(False)
    figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(f"independent scores, {data.attrs['tokens']} tokens, {data.sizes['draw']} draws for each β")
    return figure


def _functions(axes: Axes, one: xr.Dataset, beta: float, tokens: int) -> None:
    low, high = float(one.x[0]), max(float(one.x[-1]), 4.0 * float(one.expected))
    x = np.geomspace(low, 1.5 * high, 400)
    for name, law in rivals(beta, tokens).items():
        line(axes, x, law.cdf(x), **LOOKS[name])
    every = slice(None, None, 3)
    marks(axes, one.x[every], one.mass.mean("draw")[every], one.mass.std("draw", ddof=1)[every], ms=2.5)
    axes.set(xscale="log", ylim=(0, 1.03), title=f"β = {beta:g}", xlabel="squared singular value x")
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _distances(axes: Axes, data: xr.Dataset) -> None:
    for name, symbol in SYMBOLS.items():
        distance = data.distance.sel(law=name)
        colour = LOOKS[name].get("color", "#D55E00")
        marks(
            axes,
            data.beta,
            distance.mean("draw"),
            distance.std("draw", ddof=1),
            label="_" + name,
            fmt=symbol + "-",
            lw=0.8,
            color=colour,
        )
    line(axes, data.beta, data.pooled.sel(law="sharp"), label="all draws together", ls=":", lw=0.9, marker=".", ms=3)
    axes.legend(loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="β", ylabel="Kolmogorov distance", title="distance to each law")
    axes.xaxis.set_major_locator(FixedLocator(data.beta.values.tolist()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
