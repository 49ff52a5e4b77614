"""Studies of real heads; here, what those share that multiply the scores of decoders for a longer context."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from bulkedge.heads import Channel, published_rules
from bulkedge.heads import score_scales as scales_of  # a study of this folder has that name
from bulkedge.lab.studies.base import Real
from bulkedge.plots.style import COLOURS, marks, plain_ticks

READINGS = ("no factor", "log length", "each head its own: participation", "each head its own: entropy")


def factors_of(channels: list[Channel], tokens: int, new_tokens: int) -> Real:
    """Factors of all readings, in their order: (readings, layers, heads); ones for heads that no factor helps."""
    keeps: Any = ("participation", "entropy")
    own = np.array([[scales_of(each, tokens, new_tokens, keep) for each in channels] for keep in keeps])
    one = np.ones(own.shape[1:])
    return np.array([one, published_rules(tokens, new_tokens)["log length"] * one, *np.nan_to_num(own, nan=1.0)])


def losses_over(axes: Axes, lengths: Any, loss: xr.DataArray, apart: float) -> None:
    """Loss of every reading over lengths: means over decoders, whose scatter is the error."""
    for number, (reading, colour) in enumerate(zip(loss.reading.values, COLOURS, strict=False)):
        values = loss.sel(reading=reading).mean("sequence")
        error = values.std("decoder", ddof=1) / values.sizes["decoder"] ** 0.5
        shifted = lengths * apart ** (number - 1.5)
        marks(axes, shifted, values.mean("decoder"), error, label=str(reading), color=colour, fmt="o-", lw=0.8)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis, lengths)
