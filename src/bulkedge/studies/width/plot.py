"""Figures of the studies of *width*."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, histogram, line, marks, panels


def distribution(data: xr.Dataset) -> Figure:
    """A panel for each number of heads: histogram, limit, and a Gaussian of the same variance."""
    figure, grid = panels(1, data.sizes["heads"], width=2.8)
    gaussian = np.exp(-(data.x**2) / 2) / np.sqrt(2 * np.pi)
    for axes, heads in zip(grid[0], data.heads.values.tolist(), strict=True):
        one = data.sel(heads=heads)
        histogram(axes, data.bin_edge, one.simulation, label="finite width")
        line(axes, data.x, one.theory, label="limit")
        line(axes, data.x, gaussian, label="Gaussian", color=COLOURS[-1], ls=":", lw=1)
        axes.set(title=f"{heads} head{'s' if heads > 1 else ''}", xlabel="coordinate / deviation")
        axes.set(yscale="log", ylim=(1e-5, 3))
    grid[0, 0].set_ylabel("density")
    grid[0, 0].legend(loc="upper center", handlelength=1.2, ncols=3, columnspacing=0.8)
    return figure


def kl_decay(data: xr.Dataset) -> Figure:
    """Both distances over the width, on logarithmic axes, with the slope of minus two."""
    figure, grid = panels(1, 2)
    titles = {"kl": "Kullback–Leibler, less its floor", "energy": "energy distance"}
    for axes, kind in zip(grid[0], data.kind.values.tolist(), strict=True):
        one = data.sel(kind=kind)
        value = one.distance.sel(statistic="value") - one.floor
        error = one.distance.sel(statistic="error")
        shown = value > error
        marks(axes, data.width[shown], value[shown], error[shown])
        start = float(value[0])
        line(axes, data.width, start * (data.width / data.width[0]) ** -2.0, label=r"$n^{-2}$")
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="width n", title=titles[kind])
        axes.legend(loc="lower left")
    grid[0, 0].set_ylabel("distance to the limit")
    return figure


def scaling(data: xr.Dataset) -> Figure:
    """Quantiles of the variance given the scores, over the width, for both scalings."""
    figure, grid = panels(1, 2)
    titles = {"sqrt": r"scores $q\cdot k/\sqrt{n}$", "linear": r"scores $q\cdot k/n$"}
    for axes, name in zip(grid[0], data.scaling.values.tolist(), strict=True):
        one = data.variance.sel(scaling=name)
        for low, high, alpha in ((0.05, 0.95, 0.25), (0.25, 0.75, 0.45)):
            bounds = one.quantile([low, high], dim="draw")
            label = f"{low:.0%} to {high:.0%}"
            axes.fill_between(data.width, bounds[0], bounds[1], color=COLOURS[0], alpha=alpha, lw=0, label=label)
        marks(axes, data.width, one.mean("draw"), label="mean")
        level = data["mean"] if name == "sqrt" else data.uniform
        axes.axhline(float(level), color=COLOURS[1], label="limit of the mean")
        axes.set_xscale("log", base=2)
        axes.set(xlabel="width n", title=titles[name], ylim=(0.0, 1.05))
    grid[0, 0].set_ylabel("variance given the scores")
    grid[0, 1].legend(loc="upper right")
    return figure


def heads(data: xr.Dataset) -> Figure:
    """Excess kurtosis over the number of heads."""
    figure, grid = panels(1, 1)
    axes = grid[0, 0]
    line(axes, data.heads, data.theory, label="limit, quadrature")
    line(axes, data.heads, data.exact, label="finite, quadrature", color=COLOURS[2], ls="--")
    for name, look in (("limit", {"fmt": "s", "color": COLOURS[3]}), ("finite", {})):
        value, error = (data[name].sel(statistic=each) for each in ("value", "error"))
        marks(axes, data.heads, value, error, label=f"{name}, drawn", **look)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="heads", ylabel="excess kurtosis")
    axes.legend(loc="lower left")
    return figure


def activations(data: xr.Dataset) -> Figure:
    """A panel for each activation: densities at finite width and in the limit."""
    figure, grid = panels(1, data.sizes["activation"], width=2.0)
    for axes, name in zip(grid[0], data.activation.values.tolist(), strict=True):
        one = data.sel(activation=name)
        histogram(axes, data.bin_edge, one.finite, label="finite width")
        histogram(axes, data.bin_edge, one.limit, label="limit", fill=False, color=COLOURS[1])
        axes.set(title=name, xlabel="coordinate", ylim=(0, 2.0))
    grid[0, 0].set_ylabel("density")
    grid[0, 0].legend(loc="upper right", handlelength=1.2)
    return figure


def head_dim(data: xr.Dataset) -> Figure:
    """Excess kurtosis of scores and outputs over the head dimension."""
    figure, grid = panels(1, 2)
    for axes, name, title in ((grid[0, 0], "score", "scores"), (grid[0, 1], "output", "outputs")):
        line(axes, data.head_dim, data[f"{name}_theory"], label="exact")
        marks(axes, data.head_dim, data[name], data[f"{name}_error"])
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="head dimension", title=title)
    grid[0, 1].axhline(float(data.limit), color=COLOURS[-1], ls=":", lw=0.9, label="wide heads")
    grid[0, 0].set_ylabel("excess kurtosis")
    for axes in grid[0]:
        axes.legend(loc="upper right")
    return figure


def tails(data: xr.Dataset) -> Figure:
    """How much more often than a Gaussian's, over the size of a coordinate."""
    figure, grid = panels(1, 1)
    axes = grid[0, 0]
    for heads_, colour in zip(data.heads.values.tolist(), COLOURS, strict=False):
        label = f"{heads_} head{'s' if heads_ > 1 else ''}"
        line(axes, data.x, data.ratio.sel(heads=heads_), label=label, color=colour)
        value, error, theory = data.beyond.sel(heads=heads_).values.tolist()
        at_three = float(data.ratio.sel(heads=heads_).interp(x=3.0))
        marks(axes, [3.0], [value / theory * at_three], [error / theory * at_three], label="", color=colour)
    axes.set(yscale="log", xlabel="coordinate / deviation", ylabel="tail over a Gaussian's")
    axes.legend(loc="upper left")
    return figure


def depth(data: xr.Dataset) -> Figure:
    """Mean correlations over depth, and their spread."""
    figure, grid = panels(1, 2, height=2.8)
    left, right = grid[0]
    for name, colour in zip(data.block.values.tolist(), COLOURS, strict=False):
        one = data.sel(block=name)
        line(left, data.layer, one.chain.sel(statistic="value"), label=name, color=colour)
        value, error = (one.finite.sel(statistic=each) for each in ("value", "error"))
        marks(left, data.layer, value, error, label="", color=colour)
        line(right, data.layer, one.spread.sel(where="chain"), label="", color=colour)
        found = one.spread.sel(where="finite")
        marks(right, data.layer, found.where(found > 0), label="", color=colour)
    left.set(xlabel="blocks", ylabel="mean correlation", xticks=data.layer)
    right.set(xlabel="blocks", ylabel="spread of the correlation", yscale="log", ylim=(1e-4, 0.5), xticks=data.layer)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
