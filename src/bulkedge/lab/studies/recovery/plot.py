"""Figures of the studies of *recovery*; those of its open points are in ``figures/open_points.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from bulkedge.lab.studies.recovery.figures.common import LOOK, RIVAL, SIGNAL, below, caption, over_signal, scatter
from bulkedge.lab.studies.recovery.figures.open_points import (
    classes,
    data_dependent,
    heads,
    layers,
    sample_correlations,
)
from bulkedge.plots.style import COLOURS, THEORY, histogram, line, marks, panels

__all__ = [
    "alignment",
    "bulk",
    "classes",
    "classification",
    "data_dependent",
    "embeddings",
    "finite_table",
    "harmonic",
    "heads",
    "layers",
    "mean_spike",
    "outlier",
    "phase_diagram",
    "population",
    "repetition",
    "sample_correlations",
    "self_attention",
    "thresholds",
]

TICKS = (0.002, 0.005, 0.01, 0.02, 0.05)


def bulk(data: xr.Dataset) -> Figure:
    """Histogram, law, its rival and outliers, a panel for each pooling."""
    figure, grid = panels(1, data.sizes["weighting"])
    for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
        one = data.sel(weighting=weighting)
        histogram(axes, one.bin_edge, one.simulation, label="simulation")
        line(axes, one.x, one.theory, label="Theorem 1")
        line(axes, one.x, one.rival_theory, label="Marchenko-Pastur", **RIVAL)
        height = 1.25 * float(np.quantile(one.theory, 0.97))
        axes.axvline(float(one.outlier), color=THEORY, ls="--", lw=1, label="outlier, theory")
        axes.axvline(float(one.rival_outlier), **RIVAL, dashes=(4, 2), label="outlier, other table")
        marks(axes, one.largest, np.full(one.sizes["draw"], 0.06 * height), label="largest eigenvalues", ms=2)
        last = 1.05 * float(max(one.largest.max(), one.outlier))
        title = rf"{weighting} weights, $\kappa$ = {float(one.kappa):.3f}"
        axes.set(xlim=(0, last), ylim=(0, height), xlabel=r"eigenvalue of $Y^{\top}Y/N$", title=title)
    grid[0, 0].set_ylabel("density")
    below(figure, grid[0, 0], 3)
    caption(figure, data, "dim", "vocab", "samples", "signal", "length", "prefix", "draws")
    return figure


def repetition(data: xr.Dataset) -> Figure:
    """Histogram of rows of one token each, the law of counts and the free product."""
    figure, grid = panels(1, 1, width=4.4, height=2.6)
    axes = grid[0, 0]
    histogram(axes, data.bin_edge, data.simulation, label="simulation")
    line(axes, data.x, data.theory, label="counted tokens")
    line(axes, data.x, data.rival_theory, label="Theorem 1", **RIVAL)
    axes.set(xlabel=r"eigenvalue of $Y^{\top}Y/N$", ylabel="density", ylim=(0, 1.1 * float(data.simulation.max())))
    axes.legend()
    caption(figure, data, "dim", "vocab", "samples", "draws")
    return figure


def self_attention(data: xr.Dataset) -> Figure:
    """Histogram of sequences pooled by self-attention, the laws of harmonic and of mean weights, and outliers."""
    figure, grid = panels(1, 1, width=4.6, height=2.8)
    axes = grid[0, 0]
    height = 1.6 * float(np.quantile(data.theory, 0.97))
    histogram(axes, data.bin_edge, data.simulation, label="simulation")
    line(axes, data.x, data.theory, label="harmonic weights")
    line(axes, data.x, data.flat_theory, label="mean pooling", **RIVAL)
    for weighting, look in (("causal", {"color": THEORY, "ls": "--"}), ("mean", RIVAL)):
        axes.axvline(float(data.outlier.sel(weighting=weighting)), **({"lw": 1} | look))
    marks(axes, data.largest, np.full(data.sizes["draw"], 0.05 * height), label="largest eigenvalues", ms=2)
    axes.set(ylim=(0, height), xlabel=r"eigenvalue of $Y^{\top}Y/N$", ylabel="density")
    axes.legend(title="vertical: outliers", title_fontsize=7)
    caption(figure, data, "dim", "vocab", "samples", "signal", "score_scale", "draws")
    return figure


def population(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and overlap of the population over strength, and the overlap of a sample."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    line(left, data.fine_strength, data.curve_location, label="Theorem 2")
    marks(left, data.strength, data.location.mean("draw"), scatter(data.location), label="population")
    mixed = data.kappa * (data.omega + 1)
    line(left, data.strength, mixed, label=r"$\kappa(\omega + 1)$", **RIVAL)
    left.set_ylabel("largest eigenvalue")
    line(right, data.fine_strength, data.curve_overlap, label="Theorem 2")
    marks(right, data.strength, data.overlap.mean("draw"), scatter(data.overlap), label="population")
    line(right, data.fine_strength, data.curve_sample_overlap, label="equation 8", color=COLOURS[2])
    found = data.sample_overlap
    marks(right, data.strength, found.mean("draw"), scatter(found), label="sample", color=COLOURS[2], fmt="s")
    right.axvline(float(data.attrs["sample_threshold"]), color=COLOURS[2], lw=0.8, ls=":", label="sample's threshold")
    right.set(ylabel="squared overlap", ylim=(-0.03, 1.03))
    for axes in grid[0]:
        axes.axvline(1.0, color="black", lw=0.8, ls=":")
        axes.set_xlabel(r"strength $\omega$ over $\delta + \sqrt{\delta}$")
    entries: dict[str, Any] = {}
    for axes in grid[0]:
        handles, labels = axes.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "draws")
    return figure


def outlier(data: xr.Dataset) -> Figure:
    """Largest eigenvalue between the roots of equation 7, and the overlap with and without the factor of Theorem 4."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    line(left, data.fine_strength, data.curve_location, label="smaller root")
    line(left, data.fine_strength, data.curve_larger, label="larger root (text)", **RIVAL)
    line(right, data.fine_strength, data.curve_overlap, label="Theorem 4")
    line(right, data.fine_strength, data.curve_bare, label=r"without $\theta/\lambda$", **RIVAL)
    for axes, name in ((left, "location"), (right, "overlap")):
        marks(axes, data.strength, data[name].mean("draw"), scatter(data[name]))
        axes.set_xlabel(r"strength $\omega$ over its threshold")
    left.set_ylabel("largest eigenvalue")
    right.set(ylabel="squared overlap", ylim=(0, 1.03))
    left.legend(loc="upper left")
    right.legend(loc="lower right")
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "draws")
    return figure


def phase_diagram(data: xr.Dataset) -> Figure:
    """A map for each pooling, with its boundary; points are simulations, in the colours of the map."""
    figure, grid = panels(1, data.sizes["weighting"], height=2.6)
    scale = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis"}
    for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
        one = data.sel(weighting=weighting)
        image = axes.pcolormesh(one.signal, one.vocab_ratio, one.alignment, shading="auto", rasterized=True, **scale)
        # the map ends where the signals do
        boundary = one.boundary.where((one.boundary >= one.signal[0]) & (one.boundary <= one.signal[-1]))
        axes.plot(boundary, one.vocab_ratio, color="white", ls="--", lw=1.2)
        found = one.measured.mean("draw")
        axes.scatter(one.probe_signal, one.probe_ratio, c=found, s=36, edgecolors="white", linewidths=0.9, **scale)
        axes.set(xlabel=SIGNAL, title=f"{weighting} weights, $\\alpha/\\kappa$ = {float(one.snr):.2f}")
        axes.set_xlim(float(one.signal[0]), float(one.signal[-1]))
    grid[0, 0].set_ylabel(r"vocabulary ratio $\delta = d/V$")
    figure.colorbar(image, ax=grid[0].tolist(), label="squared overlap", pad=0.02)
    caption(figure, data, "table", "sample_ratio", "dim", "draws")
    return figure


def alignment(data: xr.Dataset) -> Figure:
    """A panel for each correlation model, a curve for each pooling, that of the other table dotted."""
    figure, grid = panels(1, data.sizes["model"])
    for axes, name in zip(grid[0], data.model.values.tolist(), strict=True):
        for weighting, (colour, symbol) in LOOK.items():
            one = data.sel(model=name, weighting=weighting)
            line(axes, one.fine_signal, one.curve, label=f"{weighting}, theory", color=colour)
            line(axes, one.fine_signal, one.rival_curve, label="", color=colour, ls=":", lw=0.9)
            over_signal(axes, one, "measured", colour, weighting, fmt=symbol)
        axes.set(xlabel=SIGNAL, title=f"{name} correlation", ylim=(-0.03, 1.03))
    grid[0, 0].set_ylabel("squared overlap")
    grid[0, 0].plot([], [], color="0.3", ls=":", lw=0.9, label="exact class means")
    below(figure, grid[0, 0], 4)
    caption(figure, data, "dim", "vocab", "samples", "draws")
    return figure


def thresholds(data: xr.Dataset) -> Figure:
    """Critical signal over prefix on the left, alpha/kappa over length on the right."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    for weighting, (colour, symbol) in LOOK.items():
        one = data.sel(weighting=weighting)
        line(left, one.prefix, one.threshold.sel(table="additive"), label="", color=colour)
        line(left, one.prefix, one.threshold.sel(table="finite"), label="", color=colour, ls=":", lw=1)
        marks(left, one.simulated, one.critical, one.critical_error, label="", color=colour, fmt=symbol)
        line(right, one.length, one.snr, label="", color=colour)
        spread = one.drawn.std("batch", ddof=1) / np.sqrt(one.sizes["batch"])
        marks(
            right, one.length, one.drawn.mean("batch"), spread, label=f"{weighting} weights", color=colour, fmt=symbol
        )
    left.set(xlabel="length of the prefix", ylabel="critical " + SIGNAL)
    left.set_ylim(-0.03, 1.1 * float(data.threshold.max()))
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set(xlabel="length of the sequence", ylabel=r"$\alpha/\kappa$", xscale="log")
    ticks = data.length.values[::2]
    right.set_xticks(ticks, [str(each) for each in ticks.tolist()])
    right.set_xticks([], minor=True)
    kinds = [
        Line2D([], [], color="0.3", label="exact class means"),
        Line2D([], [], color="0.3", ls=":", label="finite table"),
    ]
    handles, labels = right.get_legend_handles_labels()
    named = [*handles, *kinds]
    figure.legend(named, [*labels, *(str(each.get_label()) for each in kinds)], loc="outside lower center", ncols=5)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "correlation", "length", "draws")
    return figure


def harmonic(data: xr.Dataset) -> Figure:
    """Mean weights over position, and their distance to the limit over d."""
    figure, grid = panels(1, 2, height=2.5)
    left, right = grid[0]
    line(left, data.position, data.limit, label="harmonic weights")
    line(left, data.position, data.with_itself, label="with the diagonal", **RIVAL)
    for dim, colour, symbol in zip((data.dim[0], data.dim[-1]), (COLOURS[3], COLOURS[0]), "so", strict=True):
        found = data.weights.sel(dim=dim)
        look = {"label": f"self-attention, d = {int(dim)}", "color": colour, "fmt": symbol}
        marks(left, data.position, found.mean("draw"), scatter(found), **look)
    left.set(xlabel="position", ylabel="mean weight")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    for tokens, colour, symbol in (("all", COLOURS[0], "o"), ("distinct", COLOURS[2], "s")):
        one = data.sel(tokens=tokens)
        line(right, one.dim, np.sqrt(one.predicted), label=f"{tokens} tokens, theory", color=colour)
        root = np.sqrt(one.square.mean("draw"))
        marks(
            right, one.dim, root, scatter(one.square) / (2 * root), label=f"{tokens} tokens", color=colour, fmt=symbol
        )
    right.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="distance to harmonic weights")
    right.set_xticks(data.dim.values, [str(each) for each in data.dim.values.tolist()])
    right.set_xticks([], minor=True)
    right.set_yticks(TICKS, [f"{each:g}" for each in TICKS])
    right.yaxis.set_minor_formatter(NullFormatter())
    right.set_ylim(0.9 * float(np.sqrt(data.predicted.min())), 1.1 * float(np.sqrt(data.predicted.max())))
    left.legend(loc="upper right")
    right.legend(loc="lower left")
    caption(figure, data, "vocab_ratio", "signal", "score_scale", "sequences", "draws")
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
        axes.set(xlabel=r"vocabulary ratio $\delta = d/V$", ylabel=label)
    grid[0, 1].set_ylim(-0.03, 1.03)
    below(figure, grid[0, 0], 4)
    caption(figure, data, "dim", "sample_ratio", "signal", "weighting", "noise", "draws")
    return figure


def mean_spike(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and overlap over the signal, with and without centring."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    raw = data.sel(table="as drawn")
    for table, colour, symbol in (("as drawn", COLOURS[3], "s"), ("centred", COLOURS[0], "o")):
        for axes, name in ((left, "location"), (right, "overlap")):
            over_signal(axes, data.sel(table=table), name, colour, table, fmt=symbol)
    line(left, raw.fine_signal, raw.curve_location, label="signal, theory", color=COLOURS[0])
    left.axhline(float(raw.mean_spike), color=COLOURS[3], label="mean of the table, theory")
    line(right, raw.fine_signal, raw.curve_overlap, label="signal, theory", color=COLOURS[0])
    for axes in grid[0]:
        axes.axvline(float(data.crossing), color="black", lw=0.8, ls=":", zorder=0, label="signal outranks the mean")
        axes.set_xlabel(SIGNAL)
    left.set_ylabel("largest eigenvalue")
    right.set(ylabel="squared overlap", ylim=(-0.03, 1.03))
    below(figure, left, 3)
    caption(figure, data, "dim", "vocab", "samples", "weighting", "draws")
    return figure


def classification(data: xr.Dataset) -> Figure:
    """Accuracy over signal strength, a colour for each pooling; dotted without noise of training."""
    figure, grid = panels(1, 1, width=4.6, height=3.0)
    axes = grid[0, 0]
    for weighting, (colour, symbol) in (LOOK | {"learned": (COLOURS[3], "D")}).items():
        one = data.sel(weighting=weighting)
        line(axes, one.fine_signal, one.curve, label="", color=colour, ls="--" if weighting == "learned" else "-")
        line(axes, one.fine_signal, one.rival_curve, label="", color=colour, ls=":", lw=0.9)
        over_signal(axes, one, "accuracy", colour, weighting, fmt=symbol)
    axes.set(xlabel=SIGNAL, ylabel="test accuracy", ylim=(0.48, 1.01))
    axes.axhline(0.5, color="0.6", lw=0.8)
    title = "weights (lines: closed form; dotted: unlimited training data)"
    figure.legend(loc="outside lower center", ncols=4, title=title, title_fontsize=7)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "length", "prefix", "correlation", "ridge", "draws")
    return figure


def embeddings(data: xr.Dataset) -> Figure:
    """Held-out eigenvalues and the three laws on top, their distances below, a column for each table."""
    names = data.table.values.tolist()
    figure, grid = panels(2, len(names), width=2.3, height=1.9)
    for (top, under), name in zip(grid.T, names, strict=True):
        one = data.sel(table=name)
        histogram(top, one.edge, one.density, label="held-out rows")
        for law, colour in zip(data.law.values.tolist(), COLOURS[1:], strict=False):
            line(top, one.x, one.theory.sel(law=law), label=law, color=colour)
            distance = one.ks.sel(law=law)
            under.bar(law, float(distance.mean("draw")), yerr=float(scatter(distance)), color=colour)
        chance = under.axhline(float(one.control.mean()), color="black", ls=":", lw=1)
        top.set_ylim(0, 1.3 * float(max(one.density.max(), one.theory.sel(law="profiled").median())))
        top.set_title(f"{name}, {int(one.rows)} rows of length {int(one.dim)}")
        top.set_xlabel("eigenvalue over mean")
        under.set_ylim(0, 1.1 * float(data.ks.mean("draw").max()))
        under.tick_params(axis="x", labelrotation=20)
    grid[0, 0].set_ylabel("density")
    grid[1, 0].set_ylabel("Kolmogorov distance")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend([*handles, chance], [*labels, "by chance"], loc="outside lower center", ncols=5)
    caption(figure, data, "draws")
    return figure
