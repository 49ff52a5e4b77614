"""What the figures of *recovery* share."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, marks

LOOK = {"mean": (COLOURS[2], "s"), "causal": (COLOURS[0], "o"), "optimal": (COLOURS[1], "^")}
"""Colour and mark of each pooling."""
RIVAL: Any = {"color": "0.45", "ls": ":", "lw": 1.2}
"""How a rival is drawn."""
SIGNAL = r"signal $|\mu|$"
COUNTED = ("draws", "sequences")
"""Parameters that are shown as a number of things."""
SYMBOLS = {
    "dim": "d",
    "vocab": "V",
    "samples": "N",
    "vocab_ratio": r"\delta",
    "sample_ratio": r"\gamma",
    "signal": r"|\mu|",
    "score_scale": r"\tau",
    "length": "L",
    "prefix": "p",
    "correlation": "r",
    "tests": r"N_{\mathrm{test}}",
    "ridge": r"\lambda",
}


def scatter(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over draws, for error bars."""
    return values.std("draw", ddof=1) / np.sqrt(values.sizes["draw"])


def caption(figure: Figure, data: xr.Dataset, *names: str) -> None:
    """Write the study's parameters of these names over the figure."""
    known = json.loads(data.attrs.get("parameters", "{}"))
    parts = []
    for name in names:
        if name in known:
            value = f"{known[name]:.3g}" if isinstance(known[name], float) else str(known[name])
            symbol = f"${SYMBOLS[name]}$ = " if name in SYMBOLS else f"{name} "
            parts.append(f"{value} {name}" if name in COUNTED else f"{symbol}{value}")
    figure.suptitle(", ".join(parts), fontsize=7)


def below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend for all panels, under them, with every entry once."""
    entries: dict[str, Any] = {}
    for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
        entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def over_signal(axes: Axes, data: xr.Dataset, name: str, colour: str, label: str, **look: Any) -> None:
    """Simulated means over the signal, with error bars."""
    marks(axes, data.signal, data[name].mean("draw"), scatter(data[name]), label=label, color=colour, **look)
