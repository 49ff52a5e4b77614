"""Figure of the heads of a decoder before training."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import BARS, COLOURS, histogram, line, panels

NAMES = {"law": "causal head law", "independent": "independent scores", "full": "head without a mask"}


def initialised(data: xr.Dataset) -> Figure:
    """Density of the logarithm of the values of all heads, and by how much distribution functions differ from laws."""
    figure, (axes,) = panels(1, 2, width=3.6, height=2.7)
    density, difference = axes
    x, every = data.x.values, slice(None, None, 8)
    logs = np.log10(x)
    histogram(density, x[every], np.diff(data.shown.mean("draw")[every]) / np.diff(logs[every]), label="heads of GPT-2")
    middle = (x[1:] * x[:-1]) ** 0.5
    for (name, label), colour in zip(NAMES.items(), COLOURS[1:], strict=False):
        predicted = data.predicted.sel(law=name)
        line(density, middle, np.diff(predicted) / np.diff(logs), label=label, color=colour, lw=1.1)
        gap = data.shown - predicted
        line(difference, x, gap.mean("draw"), label=label, color=colour, lw=1.1)
        difference.fill_between(x, gap.min("draw"), gap.max("draw"), color=colour, alpha=0.25, lw=0)
    difference.axhline(0, color=BARS, lw=0.8, zorder=1)
    for each in axes:
        each.set(xscale="log", xlabel=data.x.attrs["long_name"])
    highest = 1.4 * float(np.max(np.diff(data.predicted, axis=1) / np.diff(logs)))
    density.set(ylabel=r"density of $\log_{10}$ of the value", ylim=(0, highest))
    difference.set(ylabel="measured − predicted mass up to x")
    density.legend(loc="upper right")
    made_by = json.loads(data.attrs["parameters"])
    figure.suptitle(
        f"GPT-2 at initialisation: {data.sizes['draw']} heads of 64 dimensions, {made_by['tokens']} different tokens"
    )
    return figure
