"""A run that was watched: the sharpest head, the entropy and the residual of every layer along the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, NullFormatter

from bulkedge.plots.style import COLOURS, panels, styled

MARKERS = {
    "sharp": ".",
    "growing": ".",
    "frozen": "s",
    "runaway": "^",
    "collapse": "v",
    "gap": ".",
    "alike": "h",
    "dead": "x",
    "drift": "D",
    "sink": "p",
    "copies": "*",
    "not finite": "P",
}


def plot_watch(data: xr.Dataset, alarms: Sequence[Any] = ()) -> Figure:
    """Draw the readings of a run.

    Parameters
    ----------
    data : Dataset
        Readings by step, layer and head: ``beta``, ``keys``, ``entropy``, ``uniform_entropy`` and ``residual``.
    alarms : sequence
        What has ``step``, ``layer``, ``head``, ``kind`` and ``grade``; those above notes are marked at the spread of
        their head.

    Returns
    -------
    matplotlib Figure
        Three panels: the largest spread of each layer with the line at which rows freeze, the mean entropy over the
        uniform one, and the residual that is largest in size.
    """
    with styled():
        figure, (axes,) = panels(1, 3, width=3.2, height=2.9)
        heat, entropy, residual = axes
        colours = {layer: COLOURS[n % len(COLOURS)] for n, layer in enumerate(data.layer.values.tolist())}
        share = (data.entropy / data.uniform_entropy).mean("head")
        sized = np.abs(data.residual).fillna(-1).argmax("head")
        for layer, colour in colours.items():
            look = {"color": colour, "lw": 1.1, "marker": ".", "ms": 3, "label": f"layer {layer}"}
            heat.plot(data.step, np.maximum(data.beta.sel(layer=layer).max("head"), 1e-3), **look)
            entropy.plot(data.step, share.sel(layer=layer), **look)
            residual.plot(data.step, data.residual.isel(head=sized).sel(layer=layer), **look)
        heat.plot(
            data.step, np.sqrt(2 * np.log(data["keys"].max(("layer", "head")))), color="0.3", ls="--", label="freezing"
        )
        _mark(heat, data, alarms)
        heat.set(yscale="log", xlabel="step", ylabel=r"largest $\beta$ of a layer's heads")
        heat.yaxis.set_major_formatter(LogFormatterSciNotation())
        heat.yaxis.set_minor_formatter(NullFormatter())
        entropy.set(xlabel="step", ylabel="entropy over the uniform one", ylim=(0, 1.05))
        residual.axhline(0, color="0.6", lw=0.8)
        residual.set(xlabel="step", ylabel="largest residual entropy (nats)")
        for each in axes:
            each.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        # below the panels: curves, the line and the marks of alarms may be anywhere in them
        figure.legend(*heat.get_legend_handles_labels(), loc="outside lower center", ncols=8)
    return figure


def _mark(axes: Any, data: xr.Dataset, alarms: Sequence[Any]) -> None:
    """The alarms at the spread of their head, each kind once in the legend."""
    for kind in dict.fromkeys(each.kind for each in alarms if each.grade != "note"):
        places = [each for each in alarms if each.kind == kind]
        spreads = data.beta.max("head") if places[0].head is None else data.beta
        found = [(each.step, float(spreads.sel(step=each.step, layer=each.layer, **_head(each)))) for each in places]
        known = [(step, value) for step, value in found if np.isfinite(value)]
        axes.plot(
            *zip(*known or [(np.nan, np.nan)], strict=True), MARKERS[kind], color="0.2", ms=4, mfc="none", label=kind
        )


def _head(alarm: Any) -> dict[str, int]:
    return {} if alarm.head is None else {"head": alarm.head}
