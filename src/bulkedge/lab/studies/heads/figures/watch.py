"""Figure of runs that were watched."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from bulkedge.models.watching.alarms import BEYOND
from bulkedge.plots.style import COLOURS, panels


def watch(data: xr.Dataset) -> Figure:
    """Losses and largest spreads of all runs along the steps; the mean over runs is drawn thick."""
    figure, (axes,) = panels(1, 2, width=3.8, height=3.0)
    loss, heat = axes
    smooth = max(1, data.sizes["step"] // 20)
    running = data.loss.rolling(step=smooth, min_periods=1).mean()
    for n, way in enumerate(data.way.values):
        rate = f"rate {float(data.rate.sel(way=way)):g}" + (", QK-norm" if "QK" in str(way) else "")
        for axis, curves, x in ((loss, running, "step"), (heat, data.beta.clip(min=1e-2), "reading")):
            mine = curves.sel(way=way)
            axis.plot(data[x], mine.transpose(x, "seed"), color=COLOURS[n], lw=0.5, alpha=0.5)
            mean = mine.mean("seed") if axis is loss else np.exp(np.log(mine).mean("seed"))
            axis.plot(data[x], mean, color=COLOURS[n], lw=1.6, label=rate)
        alarms = data.alarm.sel(way=way).values
        alarmed = [
            (step, float(data.beta.sel(way=way).isel(seed=k).sel(reading=step)))
            for k, step in enumerate(alarms)
            if np.isfinite(step)
        ]
        if alarmed:
            heat.plot(*zip(*alarmed, strict=True), "^", color=COLOURS[n], mec="black", mew=0.5, ms=5, zorder=4)
    heat.plot([], [], "^", color="white", mec="black", mew=0.5, ms=5, label="runaway alarm")
    freezing = data.attrs["freezing"]
    heat.axhline(freezing, color="0.2", ls="--", lw=0.9, label="rows freeze")
    heat.axhline(BEYOND * freezing, color="0.2", ls=":", lw=0.9, label=f"{BEYOND:g} times that")
    loss.set(xlabel="step", ylabel="loss in training (nats)")
    heat.set(yscale="log", xlabel="step", ylabel=r"largest $\beta$ of 12 heads")
    heat.yaxis.set_major_locator(LogLocator(10))
    heat.yaxis.set_minor_formatter(NullFormatter())
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    loss.legend(loc="upper right")
    heat.legend(loc="lower right", handles=heat.get_legend_handles_labels()[0][-3:])
    made = json.loads(data.attrs["parameters"]) if "parameters" in data.attrs else {}
    shown = ", ".join(
        f"{made[each]} {words}" for each, words in (("seeds", "runs a rate"), ("tokens", "letters")) if made
    )
    figure.suptitle(f"A decoder of three layers, width 96, Adam: {shown}".rstrip(": "), fontsize=8)
    return figure
