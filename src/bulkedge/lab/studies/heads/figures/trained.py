"""Figure of the spectra of trained heads."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bulkedge.lab.studies.heads.trained import FLAT, NEAR
from bulkedge.plots.style import COLOURS, SIMULATION, THEORY, line, panels

EXAMPLES = 3


def trained(data: xr.Dataset) -> Figure:
    """Distribution functions of three flat heads beside both laws, and the distances of all heads."""
    figure, (axes,) = panels(1, 2, width=3.8, height=3.0)
    functions, distances = axes
    flat = data.isel(head=np.flatnonzero(data.coupling.values < FLAT))
    near = flat.distance.sel(law="channel law").argsort()
    for n, k in enumerate(near.values[:: max(1, len(near) // EXAMPLES)][:EXAMPLES]):
        head = flat.isel(head=int(k))
        look = {"label": "words of a head" if n == 0 else None, "color": SIMULATION}
        functions.plot(head.value, head.level, ".", ms=3, **look)
        for name, colour, style in (("channel law", THEORY, "-"), ("finite-head law", COLOURS[2], "--")):
            shown = name if n == 0 else "_nolegend_"
            line(functions, head.value, head.predicted.sel(law=name), label=shown, color=colour, ls=style, lw=1.1)
    functions.set(xscale="log", xlabel=r"squared singular value of $\sqrt{T}\,(A - 1\pi')$", ylabel="mass up to x")
    functions.legend(loc="upper left")
    order = data.neighbours.values >= NEAR
    laws = (("channel law", "o", "channel law"), ("words at mean places", "x", "the same without order"))
    for name, marker, words in laws:
        found = data.distance.sel(law=name).values
        for which, colour, who in ((~order, SIMULATION, "other heads"), (order, THEORY, "heads of neighbours")):
            coupling, label = data.coupling.values[which], f"{who}, {words}"
            distances.plot(coupling, found[which], marker, ms=4, color=colour, label=label)
    isotropic = data.distance.sel(law="finite-head law")
    distances.plot(data.coupling, isotropic, "^", ms=3.5, color=COLOURS[2], label="finite-head law, flat heads")
    distances.set(xscale="log", yscale="log", ylim=(0.008, 6), ylabel="Kolmogorov distance")
    distances.set_xlabel("largest coupling of the head")
    for axis in (distances.xaxis, distances.yaxis):
        axis.set_major_locator(FixedLocator((0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    distances.legend(loc="upper left", fontsize=6)
    made_by = json.loads(data.attrs["parameters"])
    size = f"{made_by['heads']} heads of MiniLM on {made_by['tokens']} tokens of two texts"
    figure.suptitle(f"three flat heads, and distances of {size}")
    return figure
