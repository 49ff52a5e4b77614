"""Figures of the studies of laws."""

from __future__ import annotations

import json

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bulkedge.lab.studies.laws.bulk import exhibits
from bulkedge.plots.style import histogram, line, marks, panels

MODELS = {"wigner": "rank one plus Wigner", "covariance": "sample covariance"}


def bulk(data: xr.Dataset) -> Figure:
    """A panel for each law."""
    figure, grid = panels(4, 3, height=1.9, width=2.4)
    labels = exhibits(100)
    for name, axes in zip(data.law.values.tolist(), grid.flat, strict=True):
        law_panel(axes, data.sel(law=name))
        axes.set_title(f"{labels[name].label}\nnot {labels[name].rival}")
    for axes in grid[:, 0]:
        axes.set_ylabel("density")
    for axes in grid[-1]:
        axes.set_xlabel("value")
    figure.suptitle(f"{data.sizes['draw']} draws of each matrix, {_given(data, 'size')} rows", fontsize="medium")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _given(data: xr.Dataset, name: str) -> str:
    """A parameter of the study, from the record that its dataset carries."""
    return str(json.loads(data.attrs["parameters"])[name]) if "parameters" in data.attrs else "?"


def law_panel(axes: Axes, data: xr.Dataset) -> None:
    """Draw the densities of one law and its rival over the histogram of the draws."""
    shown = data.theory > 1e-4 * data.theory.max()
    histogram(axes, data.bin_edge, data.simulation, label="simulation")
    if data.atomic:
        line(axes, data.x[shown], data.rival[shown], label="rival", ls="none", marker="_", ms=6, color="black")
        line(axes, data.x[shown], data.theory[shown], label="law", ls="none", marker="o", ms=3)
        axes.set_xlim(-0.7, float(data.x[shown].max()) + 0.7)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        line(axes, data.x, data.rival, label="rival", color="black", ls=":", lw=1)
        line(axes, data.x, data.theory, label="law")
        axes.set_ylim(0, 1.35 * float(np.quantile(data.theory, 0.98)))


def edge(data: xr.Dataset) -> Figure:
    """The scaled largest values over the Tracy-Widom density."""
    figure, grid = panels(1, 1)
    axes = grid[0, 0]
    histogram(axes, data.bin_edge, data.simulation, label="largest values")
    line(axes, data.x, data.theory, label="Tracy-Widom, β = 1")
    axes.set_title(f"{_given(data, 'draws')} matrices of {_given(data, 'size')} rows")
    axes.set_xlabel(r"(largest value $-$ edge) / (edge scale $n^{-2/3}$)")
    axes.set_ylabel("density")
    axes.legend(loc="upper right")
    return figure


def transition(data: xr.Dataset) -> Figure:
    """Location on top, overlap below, a column for each model."""
    figure, grid = panels(2, data.sizes["model"])
    for column, model in enumerate(data.model.values.tolist()):
        one = data.sel(model=model)
        for axes, name in zip(grid[:, column], ("location", "overlap"), strict=True):
            line(axes, one.fine_strength, one[f"curve_{name}"])
            scatter = one[name].std("draw", ddof=1) / np.sqrt(one.sizes["draw"])
            marks(axes, one.strength, one[name].mean("draw"), scatter, label="simulation, mean of draws")
            axes.axvline(1.0, color="black", lw=0.8, ls=":", zorder=0)
            axes.set_ylabel(one[name].attrs["long_name"].replace(" with", "\nwith"))
        grid[0, column].set_title(f"{MODELS[model]}, n = {_given(data, 'size')}, {one.sizes['draw']} draws")
        grid[1, column].set_xlabel("strength / threshold")
        grid[1, column].set_ylim(-0.03, 1)
        grid[1, column].legend(loc="lower right")
    return figure
