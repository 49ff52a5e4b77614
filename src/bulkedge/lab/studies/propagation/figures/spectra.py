"""Figures of spectra: Markov matrices, key-query attention, outliers, kernel and Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.lab.studies.propagation.figures.axes import SYMBOLS, decades, errors, integers, made_with, sizes_axis
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels

SHOWN = 30
"""Singular values in the figure of all outliers."""
RIVAL: dict[str, Any] = {"color": COLOURS[-1], "ls": ":", "lw": 1.0}


def spectrum(data: xr.Dataset) -> Figure:
    """Eigenvalues with their outlier, singular values with theirs, and how the gap widens; a row for each entries."""
    names = data.entries.values.tolist()
    figure, grid = panels(len(names), 4, width=2.2, height=1.9)
    tokens = data.sizes["rank"]
    for row, name in zip(grid, names, strict=True):
        one = data.sel(entries=name)
        _plane(row[0], one, tokens)
        _all_values(row[1], one, tokens)
        histogram(row[2], data.bin_edge, one.simulation)
        line(row[2], data.x, data.theory, label="quarter circle")
        row[2].set(xlabel=r"bulk: $\sqrt{T} s_k/\sigma$, $k \geq 2$", ylim=(0, 0.95), ylabel="density")
        _gap(row[3], one)
        row[0].set_ylabel(f"{name} entries\nimaginary part")
    grid[0, 2].legend(loc="upper right", fontsize=6)
    figure.suptitle(f"random Markov matrices, T = {tokens}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def _plane(axes: Axes, one: xr.Dataset, tokens: int) -> None:
    circle = np.exp(2j * np.pi * np.linspace(0, 1, 200)) * float(np.sqrt(one["shape"] / tokens))
    axes.plot(one.eigen_real, one.eigen_imag, ".", ms=1.5, color=COLOURS[0])
    line(axes, circle.real, circle.imag, label=r"$\sigma/\sqrt{T}$", lw=1)
    axes.annotate("outlier", (1, 0), (0.72, 0.1), fontsize=6, arrowprops={"arrowstyle": "->", "lw": 0.6})
    axes.set(aspect="equal", xlim=(-0.25, 1.1), ylim=(-0.35, 0.35), xlabel=r"eigenvalues $\lambda_k$")


def _all_values(axes: Axes, one: xr.Dataset, tokens: int) -> None:
    """Density of all singular values of A; its largest is a bar of its own."""
    edges = np.linspace(0, 1.1, 111)
    found = np.histogram(one.value.values, edges)[0] / one.value.size / np.diff(edges)
    histogram(axes, edges, np.maximum(found, 1e-3), baseline=1e-3)
    axes.axvline(2 * float(np.sqrt(one["shape"] / tokens)), color=COLOURS[1], lw=1, label=r"$2\sigma/\sqrt{T}$")
    axes.annotate("outlier", (1, 0.5), (0.6, 3), fontsize=6, arrowprops={"arrowstyle": "->", "lw": 0.6})
    decades(axes)
    axes.set(xlabel="all singular values $s_k$", ylim=(0.1, 30), ylabel="density")
    axes.legend(loc="upper right", fontsize=6)


def _gap(axes: Axes, one: xr.Dataset) -> None:
    """The two largest singular values over T."""
    line(axes, one["size"], np.ones(one.sizes["size"]), label="1")
    line(axes, one["size"], 2 * np.sqrt(one["shape"] / one["size"]), label=r"$2\sigma/\sqrt{T}$", ls="--")
    for place, label, symbol in ((0, "$s_1$", "o"), (1, "$s_2$", "s")):
        values = one.top_two.isel(place=place)
        marks(axes, one["size"], values.mean("draw"), errors(values), label=label, fmt=symbol)
    decades(axes)
    axes.set_ylim(0.02, 3)
    sizes_axis(axes, one["size"])
    axes.set_ylabel("largest two")
    axes.legend(loc="lower left", fontsize=6, ncols=2)


def key_query(data: xr.Dataset) -> Figure:
    """Distances over the head dimension, densities of a narrow head and of a wide one, and d = T over T."""
    figure, grid = panels(1, 4, width=2.4)
    left, narrow, wide, right = grid[0]
    tokens = int(data["size"][-1])
    line(left, data.head_dim, data.apart, label="finite-head law to quarter circle")
    looks = (("quarter circle", COLOURS[0], "o"), ("finite head", COLOURS[2], "s"), ("proportional", COLOURS[3], "^"))
    for name, colour, symbol in looks:
        values = data.distance.sel(law=name)
        marks(left, data.head_dim, values.mean("draw"), errors(values), label=f"to {name}", color=colour, fmt=symbol)
    left.axhline(float(data.markov.mean()), label="Markov to quarter circle", **RIVAL)
    left.axvline(tokens, color="0.7", lw=0.8, zorder=0, label="d = T")
    decades(left)
    left.set(ylabel="Kolmogorov distance", ylim=(0.004, 1))
    sizes_axis(left, data.head_dim, "head dimension d")
    left.tick_params(axis="x", labelrotation=45)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=6, fontsize=6)
    for axes, index in ((narrow, min(1, data.sizes["head_dim"] - 1)), (wide, -1)):
        one = data.isel(head_dim=index)
        histogram(axes, one.bin_edge, one.simulation)
        line(axes, one.x, one.finite, label="finite-head law")
        line(axes, one.x, one.circle, label="quarter circle", **RIVAL)
        top = max(1.6 * float(one.circle.max()), 1.1 * float(one.simulation.max()))
        axes.set(title=f"d = {int(one.head_dim)}", xlabel=r"$\sqrt{T} s_k(A - uu')$", ylabel="density", ylim=(0, top))
    narrow.legend(loc="upper right", fontsize=6)
    marks(right, data["size"], data.square.mean("draw"), errors(data.square), label="d = T")
    right.axhline(float(data.square_limit), color=COLOURS[1], label="limit at d = T")
    falling = float(data.square.isel(size=0).mean()) * data["size"].values[0] / data["size"].values
    line(right, data["size"], falling, label="were it Markov: 1/T", **RIVAL)
    right.set(ylabel="distance to quarter circle", ylim=(0, 0.25))
    sizes_axis(right, data["size"])
    right.legend(loc="upper right", fontsize=6)
    beta = made_with(data).get("beta", "")
    figure.suptitle(f"key-query attention, layer 1: T = {tokens}, β = {beta}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def outliers(data: xr.Dataset) -> Figure:
    """Largest values of every layer beside the two edges, with the gap and without, on one scale."""
    layers = data.layer.values.tolist()
    figure, grid = panels(2, len(layers), width=2.2, height=2.0)
    highest = 1.25 * max(float(data.value.mean("draw").max()), float(data.edge.mean("draw").max()))
    for row, gap in zip(grid, data.gap.values.tolist(), strict=True):
        for axes, layer in zip(row, layers, strict=True):
            one = data.sel(gap=gap, layer=layer)
            look: dict[str, Any] = {"label": r"$\sqrt{T} s_k(A - uu')$", "ms": 2.5}
            marks(axes, data["rank"], one.value.mean("draw"), errors(one.value), **look)
            axes.axhline(float(data.first_edge), color=COLOURS[2], ls=":", label="edge, orthonormal tokens")
            axes.axhline(float(one.edge.mean()), color=COLOURS[1], label="edge, these tokens")
            if gap == "kept" and layer == 2:
                axes.plot(1, float(one.tilt.mean()), "x", ms=7, color=COLOURS[-1], label="predicted outlier")
            axes.set(title=f"layer {layer}, gap {gap}", xlabel="rank k", ylim=(0, highest))
        row[0].set_ylabel("singular value")
    handles = {
        label: handle for axes in grid.ravel() for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    made = made_with(data)
    title = f"key-query attention: T = d = {made.get('tokens', '')}, β = {made.get('beta', '')}"
    figure.suptitle(f"{title}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def all_outliers(data: xr.Dataset) -> Figure:
    """Singular values of the first two layers with their outliers, stable rank and values beyond the edge."""
    figure, grid = panels(1, 4, width=2.3)
    kinds = data.removed.values.tolist()
    for axes, layer in zip(grid[0, :2], (1, 2), strict=True):
        for kind, colour, symbol in zip(kinds, COLOURS, SYMBOLS, strict=False):
            one = data.value.sel(removed=kind, layer=layer)[:SHOWN]
            if layer > 1 or kind == kinds[0]:
                rank = np.arange(1, len(one) + 1)
                marks(axes, rank, one, label=kind, color=colour, fmt=symbol, ms=2.5)
        axes.axhline(float(data.edge), color=COLOURS[-1], ls=":", label="edge of layer 1")
        decades(axes)
        axes.set(
            title=f"layer {layer}", xlabel="rank k", ylabel="singular value of A", xlim=(0, SHOWN), ylim=(0.004, 2)
        )
    ranks, counts = grid[0, 2:]
    for axes, name, label in ((ranks, "rank", "stable rank"), (counts, "beyond", "values beyond the edge")):
        for kind, colour, symbol in zip(kinds, COLOURS, SYMBOLS, strict=False):
            one = data[name].sel(removed=kind)
            look = {"color": colour, "fmt": symbol + "-", "lw": 0.8, "label": kind}
            marks(axes, data.layer, one.mean("draw"), errors(one), **look)
        axes.set_ylabel(label)
        integers(axes, "layer")
    ranks.hlines(float(data.predicted_rank), 0.7, 1.3, color=COLOURS[-1], lw=1.5, zorder=4)
    ranks.annotate("theory", (1.3, float(data.predicted_rank)), fontsize=6, va="bottom")
    ranks.set_yscale("log", base=2)
    ranks.yaxis.set_major_formatter("{x:g}")
    counts.axhline(1.0, color=COLOURS[-1], ls="--", lw=0.8, label="theory of layer 1")
    handles, labels = ranks.get_legend_handles_labels()
    figure.legend(handles, [f"removed: {each}" for each in labels], loc="outside lower center", ncols=4)
    made = made_with(data)
    title = f"key-query attention with LayerNorm: T = d = {made.get('tokens', '')}, β = {made.get('beta', '')}"
    figure.suptitle(f"{title}, {data.sizes['draw']} draws; dotted: edge of layer 1; dashed: one outlier", fontsize=8)
    return figure


def kernel(data: xr.Dataset) -> Figure:
    """Densities, a row for each ratio, a column for each layer."""
    figure, grid = panels(data.sizes["ratio"], data.sizes["layer"], width=2.3, height=1.7)
    _densities(grid, data, "eigenvalue of the kernel", "values alone")
    tokens = made_with(data).get("tokens", "")
    figure.suptitle(f"kernel without the gap: T = {tokens}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def jacobian(data: xr.Dataset) -> Figure:
    """Densities, and below them what isometry costs: moments, distortion over the mean, least distortion over depth."""
    columns = max(data.sizes["layer"], 3)
    figure, grid = panels(data.sizes["ratio"] + 1, columns, width=2.4, height=1.8)
    _densities(grid[:-1], data, "squared singular value", "free product")
    for unused in (*grid[:-1, data.sizes["layer"] :].ravel(), *grid[-1, 3:]):
        unused.set_visible(False)
    moments, curve, least = grid[-1, :3]
    line(moments, data.layer, (1.0 + data.layer) ** 2, label=r"$(1 + \ell)^2$")
    line(moments, data.layer, 1.0 + 2 * data.layer, label=r"$1 + 2\ell$, free product", **RIVAL)
    for k, ratio in enumerate(data.ratio.values.tolist()):
        look = {"color": COLOURS[k % 7], "fmt": SYMBOLS[k % 6], "label": f"T/d = {ratio:g}"}
        values = data.second.sel(ratio=ratio)
        marks(moments, data.layer + 0.08 * (k - 1), values.mean("draw"), errors(values), **look)
    for k, layer in enumerate(data.layer.values.tolist()):
        line(curve, data.target, data.distortion.sel(layer=layer), label=f"ℓ = {layer}", color=COLOURS[k])
    for k, kind in enumerate(data.kind.values.tolist()):
        line(least, data.step, data.least.sel(kind=kind), label=kind, color=COLOURS[k], ls=("-", "--", "-", ":")[k])
    integers(moments, "layer ℓ")
    moments.set(ylabel="second moment at mean one", ylim=(0, 1.5 * float((1 + data.layer[-1]) ** 2)))
    curve.set(xlabel="mean of the squared singular values", ylabel=r"$E\,(x - 1)^2$", ylim=(0, None))
    integers(least, "layer ℓ")
    least.set(ylabel="its least value", ylim=(0, 1.02))
    for axes, place in ((moments, "upper left"), (curve, "upper left"), (least, "lower right")):
        axes.legend(loc=place, fontsize=6)
    tokens = made_with(data).get("tokens", "")
    figure.suptitle(f"Jacobian without the gap: T = {tokens}, {data.sizes['draw']} draws", fontsize=8)
    return figure


def _densities(grid: Any, data: xr.Dataset, label: str, rival: str) -> None:
    """Histograms and laws with a logarithmic axis: densities span decades between a hard edge and a soft one."""
    for row, ratio in zip(grid, data.ratio.values.tolist(), strict=True):
        for axes, layer in zip(row, data.layer.values.tolist(), strict=False):
            one = data.sel(ratio=ratio, layer=layer)
            low = 0.5 * float(one.simulation.values[one.simulation.values > 0].min())
            histogram(axes, one.bin_edge, np.maximum(one.simulation, low), baseline=low)
            for density, look in ((one.rival, {"label": rival} | RIVAL), (one.theory, {"label": "law"})):
                shown = density.values > low
                line(axes, one.x.values[shown], density.values[shown], **look)
            decades(axes)
            axes.set(title=f"T/d = {ratio:g}, ℓ = {layer}", ylim=(low, None))
        row[0].set_ylabel("density")
    for axes in grid[-1]:
        axes.set_xlabel(label)
    grid[0, 0].legend(loc="upper right")
