"""Figure of the spectrum at the length of real contexts."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import BARS, COLOURS, histogram, line, panels

COLOUR = {"finite-head law": COLOURS[1], "proportional law": COLOURS[2]}


def long_context(data: xr.Dataset) -> Figure:
    """Density of the logarithm beside both laws, and by how much the distribution functions differ."""
    figure, (axes,) = panels(1, 2, width=3.6, height=2.7)
    density, difference = axes
    x, logs = data.x.values, np.log10(data.x.values)
    every = slice(None, None, 8)
    bins = logs[every]
    histogram(density, x[every], np.diff(data.mass.mean("draw")[every]) / np.diff(bins), label="simulation")
    middle = (x[1:] * x[:-1]) ** 0.5
    for name, colour in COLOUR.items():
        line(density, middle, np.diff(data.predicted.sel(law=name)) / np.diff(logs), label=name, color=colour, lw=1.1)
        gap = data.mass - data.predicted.sel(law=name)
        ks = float(data.ks.sel(law=name).mean())
        line(difference, x, gap.mean("draw"), label=f"{name}, distance {ks:.3f}", color=colour, lw=1.1)
        difference.fill_between(x, gap.min("draw"), gap.max("draw"), color=colour, alpha=0.25, lw=0)
    difference.axhline(0, color=BARS, lw=0.8, zorder=1)
    label = data.x.attrs["long_name"]
    density.set(xscale="log", xlabel=label, ylabel=r"density of $\log_{10}$ of the value", ylim=(0, None))
    difference.set(xscale="log", xlabel=label, ylabel="simulated − predicted mass up to x")
    density.legend(loc="upper left")
    difference.legend(loc="best")
    made_by = json.loads(data.attrs["parameters"])
    norms = "QK-norm" if made_by["qk_norm"] else "Gaussian queries and keys"
    figure.suptitle(
        f"{made_by['tokens']} tokens, head dimension {made_by['head_dim']}, β = {made_by['beta']:g}, {norms}, "
        f"{made_by['draws']} draws"
    )
    return figure
