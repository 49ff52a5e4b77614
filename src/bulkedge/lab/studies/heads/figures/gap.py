"""Figure of the gap and of what grows past the threshold."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from bulkedge.heads import Channel
from bulkedge.plots.style import BARS, COLOURS, line, marks, panels


def gap(data: xr.Dataset) -> Figure:
    """The ratio of the two largest singular values against the coupling, and the largest against the tokens."""
    figure, ((ratio, growth),) = panels(1, 2, height=2.8)
    made_by = json.loads(data.attrs["parameters"])
    line(ratio, data.a, data.predicted, label=r"$r(a)$")
    line(ratio, data.a, data.a, label=r"the coupling itself", color=COLOURS[2], ls="--", lw=1)
    marks(ratio, data.coupling, data.curve.mean("eighth"), data.curve.std("eighth", ddof=1) / 8**0.5)
    ratio.axvline(0.5**0.5, color=BARS, lw=1)
    ratio.set(xlabel="coupling a", ylabel="$s_2/s_1$", xlim=(0, 0.75), ylim=(0, 1.02))
    ratio.set_title(f"one direction, {made_by['tokens']} tokens; threshold at $a^2 = 1/2$")
    sizes = data.tokens.values
    logs = np.log(data.first)
    spread = logs.std("draw", ddof=1) / len(data.draw) ** 0.5
    middle = np.exp(logs.mean("draw"))
    marks(growth, sizes, middle, middle * spread)
    exponent = Channel([made_by["past"] ** 0.5]).growth
    reach = sizes / np.exp(np.log(sizes).mean())
    centre = float(np.exp(logs.mean()))
    rivals = (
        (exponent, f"tokens$^{{{exponent:.2g}}}$", "-"),
        (0.0, "bounded", "--"),
        (0.5, "one key for all rows", ":"),
    )
    for k, (power, label, dash) in enumerate(rivals):
        colour = COLOURS[1] if k == 0 else COLOURS[2]
        line(growth, sizes, centre * reach**power, label=label, color=colour, ls=dash, lw=1.1)
    growth.set(xscale="log", yscale="log", xlabel="tokens", ylabel="$s_1$, geometric mean")
    growth.set_title(f"past the threshold: $a^2 = {made_by['past']:g}$, {made_by['draws']} draws")
    growth.set_xticks(sizes)
    for axis in (growth.xaxis, growth.yaxis):
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_formatter(NullFormatter())
    low, high = growth.get_ylim()
    growth.set_yticks([each for each in (0.5, 1, 2, 4, 8, 16) if low <= each <= high])
    for axes in (ratio, growth):
        axes.legend(loc="upper left")
    return figure
