"""Figure of the score scale that a longer context needs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from bulkedge.plots.style import COLOURS, line, marks, panels

RULES = {"YaRN": "--", "LongRoPE": "-.", "Llama 4": ":"}
KEPT = {"entropy": "entropy", "participation": "Σ A²", "mean participation": "1/Σ A²"}
NAMED = {"LongRoPE": "LongRoPE, log length, SSMax"}


def score_scales(data: xr.Dataset) -> Figure:
    """Factors by rule and by spread, what rows keep with them, and the loss of decoders by the tokens they read."""
    figure, (axes,) = panels(1, 3, width=3.1, height=2.9)
    made_by = json.loads(data.attrs["parameters"])
    rules, kept, loss = axes
    lengths = data["keys"].values
    for beta, colour in zip(data.beta.values, COLOURS, strict=False):
        for keep, style in (("participation", "-"), ("entropy", (0, (1, 1)))):
            ends = [float(data.factor.sel(keep=each, beta=beta)[-1]) for each in ("participation", "entropy")]
            label = f"β = {beta:g}: {ends[0]:.2f}, {ends[1]:.2f}" if keep == "participation" else ""
            line(rules, lengths, data.factor.sel(keep=keep, beta=beta), label=label, color=colour, ls=style, lw=1.1)
    for name, style in RULES.items():
        values = data.rule.sel(published=name)
        label = f"{NAMED.get(name, name)}: {float(values[-1]):.2f}"
        line(rules, lengths, values, label=label, color="0.45", ls=style, lw=1)
    rules.set(ylabel="factor on the scores", yscale="log", title="lines: keeps participation; dotted: entropy")
    _plain_ticks(rules, lengths[::2], [1, 1.5, 2, 3, 4])
    rules.set_xlabel(data["keys"].attrs["long_name"])
    rules.set_ylim(0.95, 2.4 * float(data.factor.max()))
    rules.legend(loc="upper left", fontsize=6, title="factor at the last length", title_fontsize=6)
    _kept(kept, data, made_by)
    for number, (reading, colour) in enumerate(zip(data.reading.values, COLOURS, strict=False)):
        values = data.loss.sel(reading=reading).mean("sequence")
        error = values.std("decoder", ddof=1) / values.sizes["decoder"] ** 0.5
        shifted = data.context.values * 1.04 ** (number - 1.5)
        marks(loss, shifted, values.mean("decoder"), error, label=str(reading), color=colour, fmt="o-", lw=0.8)
    loss.set(xlabel=f"tokens read, by decoders of {made_by['context']}", ylabel="loss of the last letters, nats")
    loss.set_title(f"{made_by['seeds']} decoders, {made_by['steps']} steps")
    loss.set_xscale("log")
    loss.xaxis.set_major_locator(FixedLocator(list(data.context.values)))
    loss.xaxis.set_minor_locator(NullLocator())
    loss.xaxis.set_major_formatter(ScalarFormatter())
    loss.legend(loc="upper left", fontsize=6)
    return figure


def _kept(axes: Axes, data: xr.Dataset, made_by: dict[str, int]) -> None:
    """What rows have at the new length over what they had at the old one: one, if it was kept."""
    exact = data.exact / data.exact.sel(length="old")
    for number, keep in enumerate(data.keep.values):
        where = data.beta.values + 0.12 * (number - 1)
        ratio = data.drawn.sel(keep=keep) / data.exact.sel(keep=keep, length="old")
        error = ratio.std("draw", ddof=1) / np.sqrt(data.sizes["draw"])
        marks(axes, where, ratio.mean("draw"), error, label=KEPT[str(keep)], color=COLOURS[number])
        axes.plot(where, exact.sel(keep=keep, length="new"), "x", ms=4, color=COLOURS[number], zorder=2)
    axes.axhline(1, color="0.6", lw=0.8, zorder=1)
    axes.set(xlabel="β", ylabel="at the new length, over the old", yscale="log", ylim=(0.02, 30), xlim=(0.6, 3.4))
    _plain_ticks(axes, None, [0.1, 1, 10])
    axes.xaxis.set_major_locator(FixedLocator(list(data.beta.values)))
    times = made_by["longer"]
    axes.set_title(f"{made_by['tokens']} to {times * made_by['tokens']} keys, {made_by['rows']} rows; ×: no factor")
    axes.legend(loc="upper right", fontsize=6)


def _plain_ticks(axes: Axes, x: np.ndarray | None, y: list[float]) -> None:
    """Ticks at round numbers, written as such."""
    chosen: list[tuple[Any, list[float]]] = [(axes.yaxis, y)]
    if x is not None:
        axes.set_xscale("log")
        chosen.append((axes.xaxis, list(x)))
    for axis, ticks in chosen:
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(ScalarFormatter())
