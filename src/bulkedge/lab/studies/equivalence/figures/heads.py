"""Figures of the studies of heads, one-hot rows, inputs and outliers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MultipleLocator, NullFormatter, NullLocator

from bulkedge.plots.style import BARS, COLOURS, histogram, line, marks, panels


def poisson(data: xr.Dataset) -> Figure:
    """Histogram with bins of 0.1 around the atoms, sorted values over quantiles, and what is left between integers."""
    figure, grid = panels(1, 3, width=2.7, height=2.5)
    left, middle, right = grid[0]
    histogram(left, data.end, np.diff(data.mass.mean("draw")))
    # every tenth bin has an integer in its middle: an atom and its bar have the same height where all values are there
    atoms = np.diff(data.poisson)[::10]
    line(left, np.arange(len(atoms)), atoms, label="Poisson(1), β = ∞", ls="", marker="o", ms=4, mfc="none")
    histogram(
        left, data.end, np.diff(data.predicted), label="to first order in 1/β", fill=False, color=COLOURS[1], lw=0.7
    )
    stairs = {"fill": False, "color": COLOURS[2], "lw": 0.9, "zorder": 2}
    histogram(left, data.end, np.diff(data.dense), label="Marchenko–Pastur", **stairs)
    left.set(xlabel="squared singular value", ylabel="share of a bin of 0.1", xlim=(-0.3, 6.3))
    left.xaxis.set_major_locator(MultipleLocator(1))
    rank = np.arange(1, data.sizes["rank"] + 1)
    every = slice(None, None, max(1, len(rank) // 60))
    marks(middle, rank[every], data.sorted.mean("draw")[every], data.sorted.std("draw", ddof=1)[every], ms=2)
    line(middle, rank, data["quantile"], label="Poisson(1) quantiles", lw=1.0)
    line(middle, rank, data.dense_quantile, label="Marchenko–Pastur", color=COLOURS[2], lw=0.9, zorder=2)
    middle.set(xlabel="rank", ylabel="squared singular value")
    made_by = json.loads(data.attrs["parameters"])
    fine = np.geomspace(float(data.beta.min()), float(data.beta.max()), 50)
    line(right, fine, float(data.split * data.largest) / fine, label=r"first order, $\propto 1/\beta$")
    _with_errors(right, data.beta, data.apart)
    right.set(xscale="log", yscale="log", xlabel="β", ylabel="share of values between integers")
    right.xaxis.set_major_locator(FixedLocator(data.beta.values.tolist()))
    right.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.xaxis.set_minor_formatter(NullFormatter())
    _plain_logarithms(right.yaxis)
    for axes in grid[0]:
        axes.legend(loc="upper right")
    figure.suptitle(
        f"{made_by['tokens']} tokens, {made_by['head_dim']} dimensions, {made_by['draws']} draws; "
        f"left and middle: β = {made_by['beta']:g}"
    )
    return figure


def finite_head(data: xr.Dataset) -> Figure:
    """A panel for each beta: distance over tokens for both laws and the floor."""
    figure, grid = panels(1, data.sizes["beta"], width=2.5, height=2.6)
    symbols = ("o", "s", "^", "D", "v")
    everything = xr.merge([data.finite_head, data.proportional, data.floor]).to_array()
    limits = 0.7 * float(everything.min()), 1.5 * float(everything.max())
    for axes, beta in zip(grid[0], data.beta.values.tolist(), strict=True):
        one = data.sel(beta=beta)
        for k, dim in enumerate(data.head_dim.values.tolist()):
            for name, colour in (("proportional", COLOURS[1]), ("finite_head", COLOURS[0])):
                look = {"fmt": symbols[k % 5], "color": colour, "label": f"{name.replace('_', '-')} law, d = {dim}"}
                _with_errors(axes, data.tokens, one[name].sel(head_dim=dim), **look)
        _with_errors(axes, data.tokens, one.floor, fmt=".--", lw=0.8, color=COLOURS[-1], label="floor")
        _powers_of_two(axes, data.tokens)
        axes.set(yscale="log", ylim=limits, title=f"β = {beta:g}", xlabel="tokens")
        _plain_logarithms(axes.yaxis)
    grid[0, 0].set_ylabel("Kolmogorov distance")
    norms = "QK-norm" if json.loads(data.attrs["parameters"])["qk_norm"] else "Gaussian queries and keys"
    figure.suptitle(f"{norms}, {data.sizes['draw']} draws")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def context(data: xr.Dataset) -> Figure:
    """Second singular value over tokens: law, limit, quarter circle and simulation."""
    figure, grid = panels(1, 1, height=2.8, width=4.0)
    axes = grid[0, 0]
    line(axes, data.tokens, data.edge, label="edge of the finite-head law")
    line(axes, data.tokens, data.independent, label="independent scores", color=COLOURS[2], ls="--")
    axes.axhline(float(data.limit), color=COLOURS[-1], ls=":", lw=0.9, label=r"$\lambda_1/\lambda_0$")
    _with_errors(axes, data.tokens, data.second)
    _powers_of_two(axes, data.tokens[::3])
    axes.set(yscale="log", xlabel="tokens", ylabel="second singular value of A")
    _plain_logarithms(axes.yaxis)
    axes.legend(loc="lower left")
    made_by = json.loads(data.attrs["parameters"])
    axes.set_title(f"QK-norm, {made_by['head_dim']} dimensions, β = {made_by['beta']:g}, {made_by['draws']} draws")
    return figure


def causal(data: xr.Dataset) -> Figure:
    """The bulk, its distance over the head dimension, largest values over rank, and the norm of the mean."""
    figure, grid = panels(2, 2, height=2.4)
    (bulk, distance), (top, norm) = grid
    histogram(bulk, 10**data.bin_edge, data.simulation.mean("draw"))
    line(bulk, 10**data.point, data.theory, label="causal law")
    line(bulk, 10**data.point, data.unmasked, label="without a mask", color=COLOURS[2], lw=0.9, ls="--")
    bulk.set(xscale="log", xlabel="squared singular value", ylabel="density, per decade", ylim=(0, None))
    bulk.set_title(f"head dimension {int(data.head_dim[-1])}")
    independent = np.abs(data.mass - data.level).max("level")
    heads = np.abs(data.mass - data["heads"]).max("level")
    _with_errors(distance, data.head_dim, independent, label="to the law of independent scores")
    _with_errors(distance, data.head_dim, heads, label="to that of causal heads", fmt="s", color=COLOURS[2])
    distance.set(xscale="log", yscale="log", xlabel="head dimension", ylim=(None, 4 * float(independent.max())))
    distance.set_ylabel("largest difference, five levels")
    distance.xaxis.set_major_locator(FixedLocator(data.head_dim.values.tolist()))
    distance.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    distance.xaxis.set_minor_formatter(NullFormatter())
    _plain_logarithms(distance.yaxis)
    line(top, data["rank"], data["mean"] + data["shift"], label="with fluctuations", marker=".")
    line(top, data["rank"], data["mean"], label="Cesàro matrix", color=COLOURS[2], lw=0.9, ls="--")
    _with_errors(top, data["rank"], data.value.rename(sample="draw"), label="causal attention")
    top.set(xlabel="rank", ylabel="singular value", xticks=data["rank"].values)
    line(norm, data.tokens, data["norm"], label="norm of the Cesàro matrix")
    norm.axhline(2.0, color=COLOURS[-1], ls=":", lw=0.9, label="limit")
    _powers_of_two(norm, data.tokens[::4])
    norm.set(xlabel="tokens", ylabel="largest singular value")
    for axes, place in ((bulk, "upper left"), (distance, "upper right"), (top, "upper right"), (norm, "lower right")):
        axes.legend(loc=place)
    made_by = json.loads(data.attrs["parameters"])
    figure.suptitle(f"{made_by['tokens']} tokens, β = {made_by['beta']:g}, {made_by['draws']} draws")
    return figure


def inputs(data: xr.Dataset) -> Figure:
    """Distances over beta, a panel for each ratio."""
    figure, grid = panels(1, data.sizes["ratio"], width=2.4, height=2.6)
    everything = data[["with_gram", "without"]].to_array()
    limits = 0.7 * float(everything.min()), 1.5 * float(everything.max())
    for axes, ratio in zip(grid[0], data.ratio.values.tolist(), strict=True):
        one = data.sel(ratio=ratio)
        _with_errors(
            axes, data.beta, one.without, fmt="s-", lw=0.8, color=COLOURS[1], label="law of orthonormal tokens"
        )
        _with_errors(axes, data.beta, one.with_gram, fmt="o-", lw=0.8, label="law that knows the tokens")
        axes.set(yscale="log", ylim=limits, title=f"dimensions / tokens = {ratio:g}", xlabel="β")
        axes.set_xticks(data.beta.values)
        _plain_logarithms(axes.yaxis)
    grid[0, 0].set_ylabel("Kolmogorov distance")
    made_by = json.loads(data.attrs["parameters"])
    figure.suptitle(f"{made_by['tokens']} tokens, head dimension {made_by['head_dim']}, {made_by['draws']} draws")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def outliers(data: xr.Dataset) -> Figure:
    """Number of outliers, with and without what might make them, and participation ratios."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    line(left, data.beta, data.expected, label="expected", marker=".")
    _with_errors(left, data.beta, data.found, label="found")
    shift = 0.01
    look = {"fmt": "s", "color": COLOURS[2], "label": "without the mean of each column"}
    _with_errors(left, data.beta + shift, data.without_columns, **look)
    look = {"fmt": "^", "color": COLOURS[3], "label": "without large entries"}
    _with_errors(left, data.beta - shift, data.without_entries, **look)
    left.set_ylabel("values beyond the edge, a draw")
    outside = data.outside.count("draw")
    error = data.outside.std("draw", ddof=1) / outside**0.5
    marks(right, data.beta, data.outside.mean("draw"), error.fillna(0.0), label="outliers")
    _with_errors(right, data.beta, data.inside, label="bulk", fmt="s", color=COLOURS[2])
    made_by = json.loads(data.attrs["parameters"])
    right.axhline(3 / made_by["tokens"], color=COLOURS[-1], ls=":", lw=0.9, label="3/T, spread evenly")
    right.set(yscale="log", ylabel="inverse participation ratio", ylim=(1 / made_by["tokens"], 2))
    for axes in grid[0]:
        axes.set_xlabel("β")
        axes.legend(loc="upper left", ncols=1 if axes is left else 3, columnspacing=0.8, handletextpad=0.4)
    figure.suptitle(f"{made_by['tokens']} tokens and dimensions, {made_by['draws']} draws")
    return figure


def rank_one(data: xr.Dataset) -> Figure:
    """Size of the term over beta, and the value beside the linear degree between the ends of the bulk."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    fine = np.linspace(float(data.beta.min()), float(data.beta.max()), 50)
    strength = float((data.strength / data.beta**2)[0]) * fine**2
    line(left, fine, strength, label=r"$\sqrt{\theta_3/\varphi} = \beta^2\sqrt{T/2d}$")
    _with_errors(left, data.beta, data.amplitude, label="column sums along the norms of keys")
    left.axhline(0.0, color=COLOURS[-1], ls=":", lw=0.9, label="no such term")
    left.set(ylabel="amplitude", ylim=(-0.1 * float(data.amplitude.max()), 1.5 * float(data.amplitude.max())))
    unit = data.strength**2
    right.fill_between(data.beta, 0 * unit, data.edge / unit, color=BARS, label="bulk", lw=0)
    top = 1.3 * float((data.next / unit).min())
    right.fill_between(data.beta, data.next / unit, 0 * unit + top, color=BARS, alpha=0.5, label="linear degree", lw=0)
    line(right, data.beta, data.location / unit, label="predicted outlier")
    _with_errors(right, data.beta, data.beside, label="largest below the linear degree")
    _with_errors(right, data.beta, data.beside_normed / unit, label="with QK-norm", fmt="s", color=COLOURS[2])
    right.set(ylim=(0, top), ylabel=r"squared value over $\theta_3/\varphi$")
    for axes in grid[0]:
        axes.set_xlabel("β")
    left.legend(loc="upper left")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=5)
    made_by = json.loads(data.attrs["parameters"])
    figure.suptitle(f"{made_by['tokens']} tokens, {made_by['head_dim']} dimensions, {made_by['draws']} draws")
    return figure


def _with_errors(axes: Axes, x: Any, draws: xr.DataArray, **look: Any) -> None:
    """Means over the draws with their standard errors."""
    marks(axes, x, draws.mean("draw"), draws.std("draw", ddof=1) / draws.sizes["draw"] ** 0.5, **look)


def _powers_of_two(axes: Axes, values: Any) -> None:
    """A logarithmic axis whose ticks are the values themselves."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(np.asarray(values, dtype=float).tolist()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.xaxis.set_minor_locator(NullLocator())


def _plain_logarithms(axis: Axis) -> None:
    """Ticks at 1, 2 and 5 of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())
