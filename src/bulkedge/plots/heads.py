"""Pictures of scanned heads: a spectrum in the band of random ones, and the map of all heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from bulkedge.plots.style import BARS, COLOURS, SIMULATION, panels, styled

ENDS = slice(1, -1)
"""The smallest and the largest of all values are no quantiles."""


def plot_head(head: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the spectrum of a head, largest singular value first, in the band of random heads.

    Parameters
    ----------
    head : Dataset
        One head of a scan's data.
    ax : matplotlib Axes, optional
        Where; a new figure by default.

    Returns
    -------
    matplotlib Axes
        What was drawn on.
    """
    with styled():
        axes: Any = panels(1, 1)[1][0, 0] if ax is None else ax
        share = 1 - head["level"].to_numpy()[ENDS]
        first = head.isel(text=0)
        if np.isfinite(first["null_low"]).all():
            low, high = (first[name].to_numpy()[ENDS] for name in ("null_low", "null_high"))
            axes.fill_between(share, low, high, color=BARS, label="random weights, 5 % to 95 %", lw=0)
        for place in range(head.sizes["text"]):
            values = head["spectrum"].isel(text=place).to_numpy()[ENDS]
            axes.plot(share, values, color=SIMULATION, lw=1, label="head" if place == 0 else None)
        axes.set(yscale="log", xlabel="share of the values", ylabel="singular value")
        axes.set_title(f"layer {int(head['layer'])}, head {int(head['head'])}: {head['kinds'].item()}")
        axes.legend()
    return axes


def plot_kinds(data: xr.Dataset, titles: dict[str, str], ax: Axes | None = None) -> Axes:
    """Draw the map of all heads, layers down and heads across, by their kinds.

    Parameters
    ----------
    data : Dataset
        A scan's data.
    titles : dict of str to str
        Kinds as people read them, in the order of the legend.
    ax : matplotlib Axes, optional
        Where; a new figure by default.

    Returns
    -------
    matplotlib Axes
        What was drawn on.
    """
    layers = {each: place for place, each in enumerate(np.unique(data["layer"].to_numpy()))}
    with styled():
        axes: Any = panels(1, 1, width=5.2, height=0.3 * len(layers) + 0.9)[1][0, 0] if ax is None else ax
        colours = dict(zip(titles, (*COLOURS, "#999999", "#DDDDDD"), strict=False))
        for layer, head, kind in zip(*(data[each].to_numpy() for each in ("layer", "head", "kind")), strict=True):
            axes.add_patch(_square(int(head), layers[layer], colours[str(kind)]))
        present = [each for each in titles if each in set(data["kind"].to_numpy().tolist())]
        handles = [_square(0, 0, colours[each]) for each in present]
        names = [titles[each] for each in present]
        axes.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        heads = int(data["head"].max()) + 1
        axes.set(
            xlim=(-0.6, heads - 0.4), ylim=(len(layers) - 0.4, -0.6), xlabel="head", ylabel="layer", aspect="equal"
        )
        axes.set_yticks(range(len(layers)), [str(each) for each in layers])
        axes.set_xticks(range(0, heads, max(1, heads // 12)))
    return axes


def _square(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, facecolor=colour, edgecolor="none")
