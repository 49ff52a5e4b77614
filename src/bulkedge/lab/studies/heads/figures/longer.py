"""Figure of a decoder that reads on beyond the tokens of its training."""

from __future__ import annotations

import json

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from bulkedge.plots.style import COLOURS, marks, panels

TITLES = {"told": "names that were told: one key to find", "stranger": "strangers: all keys to weigh"}


def longer(data: xr.Dataset) -> Figure:
    """Loss by position and question with each reading, and the factors of heads by their spread."""
    figure, (axes,) = panels(1, 3, width=3.3, height=3.0)
    made_by = json.loads(data.attrs["parameters"])
    for panel, question in zip(axes, data.question.values, strict=False):
        _losses(panel, data.loss.sel(question=question), made_by["context"])
        panel.set_title(TITLES[str(question)], fontsize=8)
    axes[0].legend(loc="upper left", fontsize=6, frameon=True, framealpha=1, edgecolor="none")
    axes[0].set_ylim(0, 1.35 * float(data.loss.sel(question="told").mean(["decoder", "sequence"]).max()))
    heads = axes[2]
    for number, reading in enumerate(data.reading.values):
        x, y = (each.values.ravel() for each in xr.broadcast(data.spread, data.factor.sel(reading=reading)))
        heads.plot(x, y, "o", ms=2.5, alpha=0.6, color=COLOURS[number])
    heads.set(xlabel="β of a head at its own context", ylabel="factor on its scores", ylim=(0.9, None))
    heads.set_title("factors of all heads", fontsize=8)
    figure.suptitle(
        f"{made_by['decoders']} decoders without positions, trained on {made_by['context']} tokens ({made_by['steps']} "
        f"steps), reading {made_by['context'] * made_by['longer']}; {made_by['sequences']} sequences each"
    )
    return figure


def _losses(axes: Axes, loss: xr.DataArray, context: int) -> None:
    """Means over decoders, whose scatter is the error; a line where the training ended."""
    for number, (reading, colour) in enumerate(zip(loss.reading.values, COLOURS, strict=False)):
        values = loss.sel(reading=reading).mean("sequence")
        error = values.std("decoder", ddof=1) / values.sizes["decoder"] ** 0.5
        shifted = loss.position.values * 1.05 ** (number - 1.5)
        marks(axes, shifted, values.mean("decoder"), error, label=str(reading), color=colour, fmt="o-", lw=0.8)
    axes.axvline(context, color="0.6", lw=0.8, ls="--", zorder=1)
    axes.set(xlabel="position of the question, up to", ylabel="loss, nats", xscale="log")
    axes.xaxis.set_major_locator(FixedLocator(list(loss.position.values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter())
