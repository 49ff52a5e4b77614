"""Figure of the popularity of keys in a trained encoder."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import BARS, COLOURS, line, marks, panels

COLOUR = dict(zip(("channel", "channel, many tokens", "expected attention"), COLOURS, strict=False))


def popularity(data: xr.Dataset) -> Figure:
    """Predicted against measured shares of some heads, distances of all, and the keys that take much."""
    figure, ((shares, distances, large),) = panels(1, 3, width=2.9, height=2.8)
    made_by = json.loads(data.attrs["parameters"])
    found, expected = data.some_measured.values, data.some_predicted.values
    for measured, predicted in zip(found, expected, strict=True):
        shares.plot(measured, predicted, ".", ms=1.5, color=COLOURS[0], alpha=0.5, mew=0)
    ends = np.array([min(found.min(), expected.min()), 1.0])
    line(shares, ends, ends, label="equal", lw=0.9)
    shares.set(xscale="log", yscale="log", xlabel="measured share of a key", ylabel="predicted by the channel")
    shares.set_title(f"{len(found)} heads, from the nearest to the farthest")
    height = (np.arange(data.sizes["head"]) + 1) / data.sizes["head"]
    for name, colour in COLOUR.items():
        values = np.sort(data.variation.sel(formula=name))
        line(distances, values, height, label=f"{name}: {np.median(values):.3f}", color=colour, lw=1.1)
        marks(large, data["size"], data.factor.sel(formula=name), label=name, color=colour, ms=2.5)
    distances.set(xlabel="total variation", ylabel="share of heads below it", xlim=(0, 1), ylim=(0, 1.02))
    distances.set_title("all heads; medians in the legend")
    large.axhspan(-1, 1, color=BARS, alpha=0.4, lw=0)
    large.set(xlabel="measured share", ylabel=r"$\log_2$ (predicted / measured)")
    large.set_title(f"keys that take {made_by['large']:g} or more; band: factor two")
    shares.legend(loc="upper left")
    distances.legend(loc="lower right")
    large.legend(loc="best")
    figure.suptitle(f"all-MiniLM-L6-v2, {made_by['tokens']} tokens of two texts")
    return figure
