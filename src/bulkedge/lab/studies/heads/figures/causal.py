"""Figure of the study of causal heads."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, histogram, line, marks, panels

NAMES = {"law": "causal head", "independent": "independent scores", "full": "without a mask"}


def causal(data: xr.Dataset) -> Figure:
    """Density and distribution function over the logarithm of the value, and the largest values beside the mean's."""
    figure, grid = panels(1, 3, width=3.1, height=3.0)
    density, function, top = grid[0]
    histogram(density, 10**data.bin_edge, data.simulation.mean("draw"))
    for (name, label), colour in zip(NAMES.items(), COLOURS[1:], strict=False):
        look = {} if name == "law" else {"lw": 0.9, "ls": "--"}
        line(density, 10**data.point, data[f"density_{name}"], label=label, color=colour, **look)
        line(function, 10**data.point, data[f"cdf_{name}"], label="", color=colour, **look)
    below = data.mass.mean("draw")
    places = 10 ** np.interp(data.level, data.cdf_law, data.point)
    marks(function, places, below, data.mass.std("draw", ddof=1), label="simulation", ms=3)
    highest = 2.4 * float(max(data.simulation.mean("draw").max(), data.density_law.max()))
    density.set(ylabel="density, per decade", ylim=(0, highest))
    function.set(ylabel="distribution function", ylim=(0, 1.02))
    for axes in (density, function):
        axes.set(xscale="log", xlabel="squared singular value")
    marks(top, data["rank"], data.value.mean("draw"), data.value.std("draw", ddof=1), label="causal attention", ms=3)
    moved = data["mean"] + data["shift"]
    line(top, data["rank"], moved, label="Cesàro, with fluctuations", marker=".", color=COLOURS[1])
    line(top, data["rank"], data["mean"], label="Cesàro matrix", color=COLOURS[2], lw=0.9, ls="--")
    top.set(xlabel="rank", ylabel="singular value", xticks=data["rank"].values, ylim=(0, 1.5 * float(moved.max())))
    for axes, place in ((density, "upper left"), (function, "lower right"), (top, "upper right")):
        axes.legend(loc=place)
    made_by = json.loads(data.attrs["parameters"])
    sizes = f"{made_by['tokens']} tokens, {made_by['head_dim']} dimensions"
    figure.suptitle(f"{sizes}, β = {made_by['beta']:g}, {made_by['draws']} draws")
    return figure
