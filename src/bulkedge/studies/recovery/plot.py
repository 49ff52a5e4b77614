"""Figures of the studies of *recovery*."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.plots.style import COLOURS, THEORY, histogram, line, marks, panels

LOOK = {"mean": (COLOURS[2], "s"), "causal": (COLOURS[0], "o"), "optimal": (COLOURS[1], "^")}
"""Colour and mark of each pooling."""


def scatter(values: xr.DataArray) -> xr.DataArray:
    """Standard error of the mean over draws, for error bars.

    Parameters
    ----------
    values : xarray.DataArray
        Has a dimension ``draw``, of two or more.

    Returns
    -------
    xarray.DataArray
        Of the mean over draws; without that dimension.
    """
    return values.std("draw", ddof=1) / np.sqrt(values.sizes["draw"])


def bulk(data: xr.Dataset) -> Figure:
    """Histogram, law and outliers, a panel for each pooling."""
    figure, grid = panels(1, data.sizes["weighting"])
    for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
        one = data.sel(weighting=weighting)
        histogram(axes, one.bin_edge, one.simulation, label="simulation")
        line(axes, one.x, one.theory, label="law")
        height = 1.25 * float(np.quantile(one.theory, 0.97))
        axes.axvline(float(one.outlier), color=THEORY, ls="--", lw=1, label="predicted outlier")
        marks(axes, one.largest, np.full(one.sizes["draw"], 0.06 * height), label="largest eigenvalues")
        axes.set(ylim=(0, height), xlabel=r"eigenvalue of $Y^{\top}Y/N$", title=f"{weighting} weights")
    grid[0, 0].set_ylabel("density")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def phase_diagram(data: xr.Dataset) -> Figure:
    """A map for each pooling, with its boundary; points are simulations, in the colours of the map."""
    figure, grid = panels(1, data.sizes["weighting"], height=2.6)
    scale = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis"}
    for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
        one = data.sel(weighting=weighting)
        image = axes.pcolormesh(one.signal, one.vocab_ratio, one.alignment, shading="auto", rasterized=True, **scale)
        axes.plot(one.boundary, one.vocab_ratio, color="white", ls="--", lw=1.2)
        found = one.measured.mean("draw")
        axes.scatter(one.probe_signal, one.probe_ratio, c=found, s=36, edgecolors="white", linewidths=0.9, **scale)
        axes.set(xlabel=r"signal $|\mu|$", title=f"{weighting} weights, $\\alpha/\\kappa$ = {float(one.snr):.2f}")
        axes.set_xlim(float(one.signal[0]), float(one.signal[-1]))
    grid[0, 0].set_ylabel(r"vocabulary ratio $d/V$")
    figure.colorbar(image, ax=grid[0].tolist(), label="squared overlap", pad=0.02)
    return figure


def alignment(data: xr.Dataset) -> Figure:
    """A panel for each correlation model, a curve for each pooling."""
    figure, grid = panels(1, data.sizes["model"])
    for axes, name in zip(grid[0], data.model.values.tolist(), strict=True):
        for weighting, (colour, symbol) in LOOK.items():
            one = data.sel(model=name, weighting=weighting)
            line(axes, one.fine_signal, one.curve, label=f"{weighting}, theory", color=colour)
            found = one.measured.mean("draw")
            marks(axes, one.signal, found, scatter(one.measured), label=weighting, color=colour, fmt=symbol)
        axes.set(xlabel=r"signal $|\mu|$", title=f"{name} correlation", ylim=(-0.03, 1.03))
    grid[0, 0].set_ylabel("squared overlap")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, columnspacing=1)
    return figure


def thresholds(data: xr.Dataset) -> Figure:
    """Critical signal over prefix on the left, alpha/kappa over length on the right."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    for weighting, (colour, symbol) in LOOK.items():
        one = data.sel(weighting=weighting)
        line(left, one.prefix, one.threshold.sel(table="finite"), label=f"{weighting}, finite table", color=colour)
        line(left, one.prefix, one.threshold.sel(table="additive"), label="additive (paper)", color=colour, ls="--")
        line(right, one.length, one.snr, label=f"{weighting} weights", color=colour)
        marks(right, one.length, one.drawn, one.drawn_error, label="drawn signs", color=colour, fmt=symbol)
    left.set(xlabel="length of the prefix", ylabel=r"critical signal $|\mu|$")
    left.set_ylim(-0.03, 1.5 * float(data.threshold.max()))
    left.legend(loc="upper right", ncols=2, columnspacing=0.8)
    right.set(xlabel="length of the sequence", ylabel=r"$\alpha/\kappa$", ylim=(0.9, 1.5 * float(data.snr.max())))
    right.legend(loc="upper right", ncols=2, columnspacing=0.8)
    return figure


def harmonic(data: xr.Dataset) -> Figure:
    """Mean weights over position, and their distance to the limit over d."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    line(left, data.position, data.limit, label="harmonic weights")
    for dim, colour, symbol in zip((data.dim[0], data.dim[-1]), (COLOURS[3], COLOURS[0]), "so", strict=True):
        marks(
            left,
            data.position,
            data.weights.sel(dim=dim),
            label=f"self-attention, d = {int(dim)}",
            color=colour,
            fmt=symbol,
        )
    left.set(xlabel="position", ylabel="mean weight")
    for tokens, colour, symbol in (("all", COLOURS[0], "o"), ("distinct", COLOURS[2], "s")):
        one = data.sel(tokens=tokens)
        line(right, one.dim, np.sqrt(one.predicted), label=f"{tokens} tokens, theory", color=colour)
        root = np.sqrt(one.square)
        marks(right, one.dim, root, one.error / (2 * root), label=f"{tokens} tokens", color=colour, fmt=symbol)
    right.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="distance to harmonic weights")
    right.set_xticks(data.dim.values, [str(each) for each in data.dim.values.tolist()])
    right.set_xticks([], minor=True)
    left.legend(loc="upper right")
    right.legend(loc="lower left")
    return figure


def finite_table(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and alignment over the vocabulary ratio, for both tables."""
    figure, grid = panels(1, 2)
    looks = {"finite": (COLOURS[0], "o", "finite form"), "additive": (COLOURS[1], "s", "paper's form")}
    for axes, name, label in zip(
        grid[0], ("location", "overlap"), ("largest eigenvalue", "squared overlap"), strict=True
    ):
        for table, (colour, symbol, form) in looks.items():
            one = data.sel(table=table)
            line(axes, one.fine_ratio, one[f"curve_{name}"], label=form, color=colour)
            found = one[name].mean("draw")
            marks(axes, one.ratio, found, scatter(one[name]), label=f"{table} table", color=colour, fmt=symbol)
        axes.set(xlabel=r"vocabulary ratio $d/V$", ylabel=label)
    grid[0, 1].set_ylim(-0.03, 1)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def mean_spike(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and overlap over the signal, with and without centring."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    raw = data.sel(table="as drawn")
    for table, colour, symbol in (("as drawn", COLOURS[3], "s"), ("centred", COLOURS[0], "o")):
        one = data.sel(table=table)
        for axes, name in ((left, "location"), (right, "overlap")):
            marks(axes, one.signal, one[name].mean("draw"), scatter(one[name]), label=table, color=colour, fmt=symbol)
    line(left, raw.fine_signal, raw.curve_location, label="signal, theory", color=COLOURS[0])
    left.axhline(float(raw.mean_spike), color=COLOURS[3], label="mean of the table, theory")
    line(right, raw.fine_signal, raw.curve_overlap, label="signal, theory", color=COLOURS[0])
    for axes in grid[0]:
        axes.axvline(float(data.crossing), color="black", lw=0.8, ls=":", zorder=0, label="signal outranks the mean")
        axes.set_xlabel(r"signal $|\mu|$")
    left.set_ylabel("largest eigenvalue")
    right.set(ylabel="squared overlap", ylim=(-0.03, 1))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def classification(data: xr.Dataset) -> Figure:
    """Accuracy over signal strength, a colour for each pooling."""
    figure, grid = panels(1, 1, width=4.2, height=2.8)
    axes = grid[0, 0]
    for weighting, (colour, symbol) in (LOOK | {"learned": (COLOURS[3], "D")}).items():
        one = data.sel(weighting=weighting)
        line(axes, one.fine_signal, one.curve, label="", color=colour, ls="--" if weighting == "learned" else "-")
        found = one.accuracy.mean("draw")
        marks(axes, one.signal, found, scatter(one.accuracy), label=weighting, color=colour, fmt=symbol)
    axes.set(xlabel=r"signal $|\mu|$", ylabel="test accuracy")
    figure.legend(loc="outside upper center", ncols=4, title="weights (lines: closed form)", title_fontsize=7)
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
