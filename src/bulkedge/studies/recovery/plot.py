"""Figures of the studies of *recovery*."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure

from bulkedge.studies.figures import COLOURS, histogram, line, marks, panels


def classification(data: xr.Dataset) -> Figure:
    """Accuracy over signal strength, a colour for each pooling."""
    figure, grid = panels(1, 1, width=4.2, height=2.8)
    axes = grid[0, 0]
    draws = data.sizes["draw"]
    for pooling, colour, symbol in zip(data.pooling.values.tolist(), COLOURS, "osD^", strict=False):
        one = data.sel(pooling=pooling)
        line(axes, data.fine_signal, one.curve, label="", color=colour, ls="--" if pooling == "learned" else "-")
        error = one.accuracy.std("draw", ddof=1) / draws**0.5
        marks(axes, data.signal, one.accuracy.mean("draw"), error, label=pooling, color=colour, fmt=symbol)
    axes.set_xlabel(r"signal $\rho$")
    axes.set_ylabel("test accuracy")
    figure.legend(loc="outside upper center", ncols=4, title="pooling (lines: closed form)", title_fontsize=7)
    return figure


def embeddings(data: xr.Dataset) -> Figure:
    """Held-out eigenvalues and the three laws on top, their distances below, a column for each table."""
    names = data.table.values.tolist()
    figure, grid = panels(2, len(names), width=2.3, height=1.9)
    for (top, below), name in zip(grid.T, names, strict=True):
        one = data.sel(table=name)
        histogram(top, one.edge, one.density, label="held-out rows")
        for law, colour in zip(data.law.values.tolist(), COLOURS[1:], strict=False):
            line(top, one.x, one.theory.sel(law=law), label=law, color=colour)
            below.bar(law, float(one.ks.sel(law=law)), color=colour)
        chance = below.axhline(float(one.control.mean()), color="black", ls=":", lw=1)
        top.set_ylim(0, 1.3 * float(max(one.density.max(), one.theory.sel(law="profiled").median())))
        top.set_title(f"{name}, {int(one.rows)} rows of length {int(one.dim)}")
        top.set_xlabel("eigenvalue over mean")
        below.tick_params(axis="x", labelrotation=20)
    grid[0, 0].set_ylabel("density")
    grid[1, 0].set_ylabel("Kolmogorov distance")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend([*handles, chance], [*labels, "by chance"], loc="outside upper center", ncols=3)
    return figure
