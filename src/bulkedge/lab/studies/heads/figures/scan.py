"""Figure of a scan: the map of heads by kind, and the spectrum of one head among random ones, before and after."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bulkedge.heads.measures.kinds import KINDS
from bulkedge.plots.heads import plot_kinds
from bulkedge.plots.style import BARS, SIMULATION, panels

ENDS = slice(1, -1)
"""The smallest and the largest of all values are no quantiles."""


def scan(data: xr.Dataset) -> Figure:
    """Kinds on the left, the spectrum of the head that is farthest from random weights on the right."""
    made_by = json.loads(data.attrs["parameters"])
    states = [each for each in data.state.values if np.isfinite(data.kind.sel(state=each)).all()]
    layers = len(np.unique(data.layer))
    figure, axes = panels(len(states), 2, width=3.8, height=max(2.3, 0.3 * layers + 1.0))
    final = data.sel(state=data.state[-1])
    item = int(np.nanargmax(np.log(final.distance / final.null_distance)))
    for (left, right), state in zip(axes, states, strict=True):
        shown = data.sel(state=state)
        words = state if made_by["model"] else {"as it is": f"after {made_by['steps']} steps"}.get(state, state)
        _kinds(shown, left, words)
        _spectrum(shown.isel(item=item), right, words)
    spectra: Any = [right for _, right in axes]
    low = min(each.get_ylim()[0] for each in spectra)
    high = max(each.get_ylim()[1] for each in spectra)
    for each in spectra:
        each.set_ylim(low, high)  # one scale for what is compared
    read = f"{made_by['tokens']} tokens of {made_by['text']!r}, {made_by['draws']} random heads a layer"
    figure.suptitle(f"{made_by['model'] or 'the default decoder'}: {read}")
    return figure


def _kinds(shown: xr.Dataset, axes: Any, words: str) -> None:
    names = np.array([kind.name for kind in KINDS])[shown.kind.to_numpy().astype(int)]
    plot_kinds(shown.assign(kind=("item", names)), {kind.name: kind.title for kind in KINDS}, axes)
    axes.set_title(f"kinds of heads, {words}")


def _spectrum(head: xr.Dataset, axes: Any, words: str) -> None:
    share = 1 - head.level.to_numpy()[ENDS]
    low, own, high = (head[name].to_numpy()[ENDS] for name in ("null_low", "spectrum", "null_high"))
    axes.fill_between(share, low, high, color=BARS, lw=0, label="random weights, 5 % to 95 %")
    axes.plot(share, own, color=SIMULATION, lw=1, label="head")
    axes.set(yscale="log", xlabel="share of the values, largest first", ylabel="singular value")
    axes.yaxis.set_major_locator(LogLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_title(f"layer {int(head['layer'])}, head {int(head['head'])}, {words}")
    axes.legend(loc="lower left")
