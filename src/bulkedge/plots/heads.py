"""Pictures of heads: a spectrum in the band of random ones, the map of all heads, and a run that was watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, NullFormatter

from bulkedge.plots.style import BARS, COLOURS, PLACE, SIMULATION, panels, styled
from bulkedge.support.domains import Instance, takes
from bulkedge.support.errors import DomainError

ENDS = slice(1, -1)  # the smallest and the largest of all values are no quantiles
MARKERS = {
    "sharp": ".", "growing": ".", "frozen": "s", "runaway": "^", "collapse": "v", "gap": ".", "alike": "h", "dead": "x",
    "drift": "D", "sink": "p", "copies": "*", "not finite": "P",
}  # fmt: skip


@takes(head=Instance(xr.Dataset), ax=PLACE)
def plot_head(head: xr.Dataset, ax: Axes | None = None) -> Axes:
    """Draw the spectrum of a head, largest singular value first, in the band of random heads."""
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


@takes(data=Instance(xr.Dataset), titles=Instance(dict), ax=PLACE)
def plot_kinds(data: xr.Dataset, titles: dict[str, str], ax: Axes | None = None) -> Axes:
    """Draw the map of all heads, layers down and heads across, by their kinds."""
    unknown = sorted({*data["kind"].to_numpy().tolist()} - titles.keys())
    if unknown:
        raise DomainError(f"titles has none for {', '.join(unknown)}: bulkedge.heads.KINDS has the titles of all kinds")
    layers = {each: place for place, each in enumerate(np.unique(data["layer"].to_numpy()))}
    with styled():
        axes: Any = panels(1, 1, width=5.2, height=0.3 * len(layers) + 0.9)[1][0, 0] if ax is None else ax
        colours = dict(zip(titles, ("#882255", "#332288", "#999933", *COLOURS, "#999999", "#DDDDDD"), strict=False))
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


@takes(data=Instance(xr.Dataset))
def plot_watch(data: xr.Dataset, alarms: Sequence[Any] = ()) -> Figure:
    """Draw the readings of a run."""
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
        found = []
        for each in places:
            spreads = data.beta.sel(step=each.step, layer=each.layer)
            found.append((each.step, float(spreads.max() if each.head is None else spreads.sel(head=each.head))))
        known = [(step, value) for step, value in found if np.isfinite(value)]
        axes.plot(
            *zip(*known or [(np.nan, np.nan)], strict=True), MARKERS[kind], color="0.2", ms=4, mfc="none", label=kind
        )
