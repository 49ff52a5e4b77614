"""Axes that the figures share: tokens, layers, and logarithms without crowded labels."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

SYMBOLS = "os^Dvp<>"


def made_with(data: xr.Dataset) -> dict[str, Any]:
    """The parameters that made a dataset; empty for one that was not simulated by its study."""
    found: dict[str, Any] = json.loads(data.attrs.get("parameters", "{}"))
    return found


def errors(values: xr.DataArray) -> xr.DataArray:
    """Standard errors of the means over draws."""
    return values.std("draw", ddof=1) / values.sizes["draw"] ** 0.5


def decades(axes: Axes) -> None:
    """A logarithmic vertical axis, labelled at decades only."""
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())


def sizes_axis(axes: Axes, sizes: Any, label: str = "tokens T") -> None:
    """A logarithmic horizontal axis with a tick at each size that was simulated."""
    values = np.asarray(sizes).tolist()
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(values, [str(each) for each in values])
    axes.set_xlabel(label)


def integers(axes: Axes, label: str) -> None:
    """A horizontal axis of integers, as layers are."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)
