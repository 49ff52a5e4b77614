"""Figure of optimal shrinkage against its oracle."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, line, marks, panels

LOOK = {
    "truncation": (COLOURS[3], "s"),
    "white noise's shrinkage": (COLOURS[2], "D"),
    "the law's shrinkage": (COLOURS[0], "o"),
}


def shrinkage(data: xr.Dataset) -> Figure:
    """Loss over that of the oracle by strength: a row for each noise, a column for each loss."""
    figure, grid = panels(data.sizes["noise"], data.sizes["loss"], width=2.5, height=1.9)
    for row, noise in zip(grid, data.noise.values.tolist(), strict=True):
        for axes, loss in zip(row, data.loss.values.tolist(), strict=True):
            for rule, (colour, symbol) in LOOK.items():
                one = data.sel(noise=noise, loss=loss, rule=rule)
                if noise == "white noise" and rule == "white noise's shrinkage":
                    continue  # the same as the law's
                line(axes, one.fine_strength, one.curve, label="", color=colour)
                error = one.limit.std("draw", ddof=1) / np.sqrt(one.sizes["draw"])
                marks(axes, one.strength, one.limit.mean("draw"), error, label=rule, color=colour, fmt=symbol)
            axes.set_title(f"{noise}, {loss} loss")
        row[0].set_ylabel("loss / loss of the oracle")
        lowest, highest = (pick(axes.get_ylim()[end] for axes in row) for end, pick in ((0, min), (1, max)))
        for axes in row:
            axes.set_ylim(lowest, highest)
    for axes in grid[-1]:
        axes.set_xlabel("strength / threshold")
    figure.legend(*grid[-1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    made_by, attention = json.loads(data.attrs["parameters"]), data.sel(noise="attention")
    figure.suptitle(
        f"n = {made_by['size']}, extrapolated with n/2; {made_by['draws']} draws; β = {made_by['beta']:g}, head "
        f"dimension n × {made_by['head_ratio']:g}\nunless told the rank, white noise's shrinkage takes "
        f"{100 * float(attention.taken.mean()):.1f} % of attention's values for signal "
        f"(predicted {100 * float(attention.predicted_taken):.1f} %)",
        fontsize=7,
    )
    return figure
