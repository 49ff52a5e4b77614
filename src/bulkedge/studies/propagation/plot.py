"""Figures of the studies of *propagation*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.studies.propagation.networks import best

SYMBOLS = "os^Dvp"


def spectrum(data: xr.Dataset) -> Figure:
    """Singular values on top, eigenvalues in the plane below, a column for each kind of entries."""
    names = data.entries.values.tolist()
    figure, grid = panels(2, len(names), width=2.2, height=2.0)
    circle = np.exp(2j * np.pi * np.linspace(0, 1, 200))
    for column, name in enumerate(names):
        top, below = grid[:, column]
        one = data.sel(entries=name)
        histogram(top, data.bin_edge, one.simulation)
        line(top, data.x, data.theory, label="quarter circle")
        top.set(title=name, xlabel=r"$\sqrt{T} s_k/\sigma$, $k \geq 2$", ylim=(0, 0.95))
        below.plot(one.eigen_real, one.eigen_imag, ".", ms=1.5, color=COLOURS[0])
        line(below, circle.real, circle.imag, label="", lw=1)
        below.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), xlabel=r"$\sqrt{T}\lambda_k/\sigma$, $k \geq 2$")
    grid[0, 0].set_ylabel("density")
    grid[1, 0].set_ylabel("imaginary part")
    grid[0, 0].legend(loc="upper right", fontsize=6)
    return figure


def rank_collapse(data: xr.Dataset) -> Figure:
    """Collapse in width with the gap, the rank without it, and both over depth."""
    figure, grid = panels(1, 4, width=2.3)
    left, middle = grid[0, :2]
    for layer, colour, symbol in zip(data.layer.values.tolist(), COLOURS, SYMBOLS, strict=False):
        one = data.sel(layer=layer)
        slope = f"{float(one.slope):.2f} ± {float(one.slope_error):.2f}"
        line(left, data["size"], one.predicted, label="", color=colour)
        value = np.exp(one.log_excess)
        marks(left, data["size"], value, value * one.log_error, label=f"ℓ = {layer}: {slope}", color=colour, fmt=symbol)
        line(middle, data["size"], one.predicted_free, label="", color=colour)
        marks(middle, data["size"], one.free, label=f"ℓ = {layer}", color=colour, fmt=symbol)
    left.set(title="gap kept", ylabel=r"stable rank of $\Sigma_\ell$, less one")
    middle.set(title="gap removed", ylabel=r"stable rank of $\Sigma_\ell$")
    left.legend(loc="lower left", title="fitted slope", title_fontsize=7)
    middle.legend(loc="upper left")
    left.set(yscale="log", ylim=(float(data.predicted.min()) / 1e9, 1))
    middle.set_yscale("log", base=2)
    for axes in (left, middle):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens T")
    for axes, gap in zip(grid[0, 2:], ("kept", "removed"), strict=True):
        for variant, colour, symbol in zip(data.variant.values.tolist(), COLOURS, SYMBOLS, strict=False):
            look = {"color": colour, "fmt": symbol + "-", "lw": 0.8, "label": variant}
            marks(axes, data.step, data["rank"].sel(variant=variant, gap=gap), **look)
        limits = 0.9, 1.4 * float(data["rank"].max())
        axes.set(title=f"gap {gap}", xlabel="layer ℓ", yscale="log", ylim=limits)
    figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower right", ncols=6)
    return figure


def gradients(data: xr.Dataset) -> Figure:
    """Over tokens and over depth, with the gap and without."""
    figure, grid = panels(1, 4, width=2.3)
    for axes, gap in zip(grid[0, :2], ("kept", "removed"), strict=True):
        for depth, colour, symbol in zip(data.depth.values.tolist(), COLOURS, SYMBOLS, strict=False):
            one = data.sel(gap=gap, depth=depth)
            line(axes, data["size"], one.predicted, label="", color=colour)
            marks(axes, data["size"], one.norm.mean("draw"), label=f"L = {depth}", color=colour, fmt=symbol)
        axes.set_xscale("log", base=2)
        limits = float(data.norm.sel(gap=gap).min()) / 2, 30 * float(data.norm.sel(gap=gap).max())
        axes.set(yscale="log", ylim=limits, xlabel="tokens T", title=f"Markov, gap {gap}")
        axes.legend(loc="upper left", ncols=3, columnspacing=0.6, handletextpad=0.1)
    for axes, gap in zip(grid[0, 2:], ("kept", "removed"), strict=True):
        line(axes, data.step, data.predicted_over_depth.sel(gap=gap), label="theory, Markov", color=COLOURS[-1])
        for variant, colour, symbol in zip(data.variant.values.tolist(), COLOURS, SYMBOLS, strict=False):
            look = {"color": colour, "fmt": symbol + "--", "lw": 0.6, "label": variant}
            marks(axes, data.step, data.over_depth.sel(gap=gap, variant=variant), **look)
        axes.set(yscale="log", xlabel="depth L", title=f"gap {gap}")
    grid[0, 0].set_ylabel(r"$\|\partial X_L/\partial W_1\|_F^2$")
    figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower right", ncols=5)
    return figure


def outliers(data: xr.Dataset) -> Figure:
    """Largest values of every layer beside the two edges, with the gap and without."""
    layers = data.layer.values.tolist()
    figure, grid = panels(2, len(layers), width=2.2, height=2.0)
    for row, gap in zip(grid, data.gap.values.tolist(), strict=True):
        for axes, layer in zip(row, layers, strict=True):
            one = data.sel(gap=gap, layer=layer)
            marks(axes, data["rank"], one.value.mean("draw"), label=r"$\sqrt{T} s_k(A - uu')$", ms=2.5)
            axes.axhline(float(data.first_edge), color=COLOURS[2], ls=":", label="edge, orthonormal tokens")
            axes.axhline(float(one.edge.mean()), color=COLOURS[1], label="edge, these tokens")
            if gap == "kept" and layer == 2:
                axes.plot(1, float(one.tilt.mean()), "x", ms=7, color=COLOURS[-1], label="predicted outlier")
            axes.set(title=f"layer {layer}, gap {gap}", xlabel="rank")
            axes.set_ylim(0, 1.15 * max(axes.get_ylim()))
        row[0].set_ylabel("singular value")
    handles = {
        label: handle for axes in grid.ravel() for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    return figure


def all_outliers(data: xr.Dataset) -> Figure:
    """Stable rank over layers, and how many values are beyond the edge."""
    figure, grid = panels(1, 2)
    for axes, name, label in (
        (grid[0, 0], "rank", "stable rank of the kernel"),
        (grid[0, 1], "beyond", "singular values beyond the edge"),
    ):
        for kind, colour, symbol in zip(data.removed.values.tolist(), COLOURS, SYMBOLS, strict=False):
            one = data[name].sel(removed=kind)
            error = one.std("draw", ddof=1) / data.sizes["draw"] ** 0.5
            look = {"color": colour, "fmt": symbol + "-", "lw": 0.8, "label": kind}
            marks(axes, data.layer, one.mean("draw"), error, **look)
        axes.set(xlabel="layer", ylabel=label, xticks=data.layer.values)
    grid[0, 0].set_yscale("log", base=2)
    grid[0, 0].legend(title="removed", loc="upper right")
    return figure


def kernel(data: xr.Dataset) -> Figure:
    """Densities, a row for each ratio, a column for each layer."""
    figure, grid = panels(data.sizes["ratio"], data.sizes["layer"], width=2.3, height=1.7)
    _densities(grid, data, "eigenvalue of the kernel")
    return figure


def jacobian(data: xr.Dataset) -> Figure:
    """Densities, and below them what isometry costs: moments, distortion over the mean, least distortion over depth."""
    columns = max(data.sizes["layer"], 3)
    figure, grid = panels(data.sizes["ratio"] + 1, columns, width=2.3, height=1.8)
    _densities(grid[:-1], data, "squared singular value")
    for unused in (*grid[:-1, data.sizes["layer"] :].ravel(), *grid[-1, 3:]):
        unused.set_visible(False)
    moments, curve, least = grid[-1, :3]
    line(moments, data.layer, (1.0 + data.layer) ** 2, label=r"$(1 + \ell)^2$")
    for k, ratio in enumerate(data.ratio.values.tolist()):
        look = {"color": COLOURS[k % 7], "fmt": SYMBOLS[k % 6], "label": f"T/d = {ratio:g}"}
        marks(moments, data.layer + 0.1 * (k - 1), data.second.sel(ratio=ratio).mean("draw"), **look)
    for k, layer in enumerate(data.layer.values.tolist()):
        line(curve, data.target, data.distortion.sel(layer=layer), label=f"ℓ = {layer}", color=COLOURS[k])
    for k, kind in enumerate(data.kind.values.tolist()):
        line(least, data.step, data.least.sel(kind=kind), label=kind, color=COLOURS[k], ls=("-", "--", "-", ":")[k])
    moments.set(xlabel="layer", ylabel="second moment")
    curve.set(xlabel="mean", ylabel=r"$E\,(x - 1)^2$", ylim=(0, 3))
    least.set(xlabel="layer", ylabel="its least value", ylim=(0, 1.02))
    for axes, place in ((moments, "upper left"), (curve, "lower right"), (least, "lower right")):
        axes.legend(loc=place, fontsize=6)
    return figure


def _densities(grid: Any, data: xr.Dataset, label: str) -> None:
    """Histograms and laws with a logarithmic axis: densities span decades between a hard edge and a soft one."""
    for row, ratio in zip(grid, data.ratio.values.tolist(), strict=True):
        for axes, layer in zip(row, data.layer.values.tolist(), strict=False):
            one = data.sel(ratio=ratio, layer=layer)
            low = 0.5 * float(one.simulation.values[one.simulation.values > 0].min())
            histogram(axes, one.bin_edge, np.maximum(one.simulation, low), baseline=low)
            shown = one.theory.values > low
            line(axes, one.x.values[shown], one.theory.values[shown], label="law")
            axes.set(yscale="log", title=f"T/d = {ratio:g}, ℓ = {layer}", ylim=(low, None))
        row[0].set_ylabel("density")
    for axes in grid[-1]:
        axes.set_xlabel(label)
    grid[0, 0].legend(loc="upper right")


def scaling(data: xr.Dataset) -> Figure:
    """Weight of the branch, size of the kernel, and Xavier's attention."""
    figure, grid = panels(1, 3, width=2.7)
    left, middle, right = grid[0]
    for k, scaling in enumerate(data.skip_scaling.values.tolist()):
        for gap, symbol in (("kept", "o"), ("removed", "s")):
            one = data.sel(skip_scaling=scaling, gap=gap)
            line(left, data["size"], one.predicted_branch, label="", color=COLOURS[k])
            look = {"color": COLOURS[k], "fmt": symbol, "label": f"{scaling}, gap {gap}"}
            marks(left, data["size"], one.branch.mean("draw"), **look)
    left.set(yscale="log", xlabel="tokens T", ylabel="attention over skip", ylim=(None, 300))
    left.legend(loc="upper left")
    names = {"1/d": "$1/d$", "gamma/sigma^2": r"$\gamma/\sigma_A^2$", "1": "1"}
    for kind, colour, symbol in zip(data["values"].values.tolist(), COLOURS, SYMBOLS, strict=False):
        one = data.sel(values=kind)
        line(middle, data.layer, one.predicted_mean, label="", color=colour)
        marks(middle, data.layer, one["mean"], color=colour, fmt=symbol, label=names[kind])
    middle.set(yscale="log", xlabel="layer", ylabel="mean eigenvalue of the kernel")
    middle.legend(title=r"$\sigma_V^2$", loc="lower left")
    line(right, data["size"], data.predicted_xavier, label=r"$\beta^2/d^2$")
    marks(right, data["size"], data.xavier.mean("draw"), label="Xavier's queries and keys")
    right.set(yscale="log", xlabel="tokens T", ylabel="variance of attention")
    right.set_ylim(None, 30 * float(data.predicted_xavier.max()))
    right.legend(loc="upper right")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
    return figure


def trainability(data: xr.Dataset) -> Figure:
    """The map, a panel for each depth: predicted share as colour, simulation as points, and the two boundaries."""
    depths = data.depth.values.tolist()
    figure, grid = panels(1, len(depths) + 1, width=2.3, height=2.6)
    image: Any = None
    beta, skip = np.meshgrid(data.beta, data.skip)
    look: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis"}
    for axes, depth in zip(grid[0], depths, strict=False):
        one = data.sel(depth=depth)
        image = axes.pcolormesh(data.beta, data.skip, one.predicted, shading="gouraud", rasterized=True, **look)
        found = one.apart.mean("draw") / one.power.mean("draw")
        axes.scatter(beta, skip, c=found, s=18, edgecolors="white", lw=0.6, clip_on=False, zorder=4, **look)
        if float(one.predicted.min()) < 0.5 < float(one.predicted.max()):
            axes.contour(data.beta, data.skip, one.predicted, levels=[0.5], colors="white")
        axes.axvline(float(data.freezing), color=COLOURS[1])
        axes.set(title=f"depth {depth}", xlabel=r"score scale $\beta$")
    grid[0, 0].set_ylabel("weight of the skip connection")
    figure.colorbar(image, ax=grid[0, : len(depths)].tolist(), label="distinct share", shrink=0.9)
    last = grid[0, -1]
    row = data.entropy.mean("skip")
    line(last, data.beta, data.predicted_entropy, label="theory", color=COLOURS[0])
    marks(last, data.beta, row.mean("draw"), row.std("draw", ddof=1) / data.sizes["draw"] ** 0.5)
    limit = np.maximum(np.log(data.attrs["tokens"]) - data.beta**2 / 2, 0.0)
    line(last, data.beta, limit, label=r"$\log T - \beta^2/2$", color=COLOURS[-1], ls="--")
    last.axvline(float(data.freezing), color=COLOURS[1])
    last.set(xlabel=r"score scale $\beta$", ylabel="entropy of a row", ylim=(0, None), title="entropy")
    last.legend(loc="lower left")
    edge: Any = {"markersize": 4, "color": "none", "marker": "o", "markerfacecolor": "#21918c"}
    handles = [
        Line2D(
            [],
            [],
            label="predicted share 1/2",
            color="white",
            path_effects=[Stroke(linewidth=2.3, foreground="0.5"), Normal()],
        ),
        Line2D([], [], label=r"freezing, $\beta = \sqrt{2\log T}$", color=COLOURS[1]),
        Line2D([], [], label="simulation (colour of the disc)", markeredgecolor="0.5", **edge),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(f"{data.attrs['tokens']} tokens, {data.sizes['draw']} draws at each point", fontsize=8)
    return figure


def training(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate: a row for each attention, a column for each architecture."""
    curves = best(data)
    figure, grid = panels(data.sizes["attention"], data.sizes["parts"], width=1.75, height=1.5)
    for row, attention in zip(grid, data.attention.values.tolist(), strict=True):
        for axes, parts in zip(row, data.parts.values.tolist(), strict=True):
            here = curves.sel(attention=attention, parts=parts)
            for gap, colour, look in zip(data.gap.values.tolist(), COLOURS[1::-1], ("--", "-"), strict=True):
                _curve(axes, here.sel(gap=gap), f"gap {gap}", color=colour, ls=look)
            axes.set_title(f"{attention}, {parts}")
    _finish(figure, grid, data, [curves] * len(grid))
    return figure


def plateau(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate, both scales of queries and keys in a panel."""
    curves = best(data)
    figure, grid = panels(1, data.sizes["parts"], height=2.9)
    names = {"key-query": "scores of deviation one", "xavier": "Xavier"}
    titles = {"plain": "attention alone", "LN": "with layer normalisation (ours)"}
    for axes, parts in zip(grid[0], data.parts.values.tolist(), strict=True):
        for colour, attention in zip(COLOURS, data.attention.values.tolist(), strict=False):
            for gap, look in zip(data.gap.values.tolist(), ("--", "-"), strict=True):
                here = curves.sel(attention=attention, parts=parts, gap=gap)
                _curve(axes, here, f"{names[attention]}, gap {gap}", color=colour, ls=look)
        axes.axhline(float(data.zero.mean()), color=COLOURS[2], ls="-.", lw=0.9, label="loss of an output of zero")
        axes.set_title(titles[parts])
    _finish(figure, grid, data, [curves])
    return figure


def upscaled_skip(data: xr.Dataset) -> Figure:
    """Loss over steps at the best learning rate, both scales of the values: rows depths, columns attention and gap."""
    curves = best(data)
    figure, grid = panels(data.sizes["depth"], data.sizes["attention"] * data.sizes["gap"], width=1.75, height=1.9)
    names = {"fair": r"values of variance 1", "upscaled": r"values of variance $1/d$: upscaled skip"}
    for row, depth in zip(grid, data.depth.values.tolist(), strict=True):
        columns = [(kind, gap) for kind in data.attention.values.tolist() for gap in data.gap.values.tolist()]
        for axes, (kind, gap) in zip(row, columns, strict=True):
            for skip, colour, look in zip(data.skip.values.tolist(), COLOURS, ("-", "--"), strict=False):
                here = curves.sel(depth=depth, attention=kind, gap=gap, skip=skip)
                _curve(axes, here, names[skip], color=colour, ls=look)
            axes.set_title(f"{kind}, gap {gap}\n{depth} layer{'s' if depth > 1 else ''}")
    _finish(figure, grid, data, [curves.sel(depth=depth) for depth in data.depth])
    return figure


def _curve(axes: Any, one: xr.DataArray, label: str, **look: Any) -> None:
    """Mean over the networks, and the band from the least to the largest of them."""
    axes.fill_between(one.step, one.min("draw"), one.max("draw"), color=look["color"], alpha=0.2, lw=0)
    line(axes, one.step, one.mean("draw"), label=label, **look)


def _finish(figure: Figure, grid: Any, data: xr.Dataset, rows: Sequence[xr.DataArray]) -> None:
    """The same logarithmic scale along each row, labels at the edge of the grid, one legend, and the sizes."""
    equal: Any = {"color": COLOURS[-1], "ls": ":", "lw": 0.9, "label": "least loss of equal tokens"}
    for row, curves in zip(grid, rows, strict=True):
        low, high = float(curves.min()), float(curves.max())
        for axes in row:
            axes.axhline(float(data.collapsed.mean()), **equal)
            axes.set(yscale="log", ylim=(0.8 * low, 1.2 * high))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 20 * low else (1.0,)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.tick_params(labelleft=axes is row[0], labelbottom=False)
        row[0].set_ylabel("loss")
    for axes in grid[-1]:
        axes.set_xlabel("step")
        axes.tick_params(labelbottom=True)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    sizes = f"{data.attrs['tokens']} tokens and dimensions, {data.attrs['samples']} inputs"
    figure.suptitle(f"{sizes}; mean and range of {data.sizes['draw']} networks at the best learning rate", fontsize=8)


def real_task(data: xr.Dataset) -> Figure:
    """Held-out loss over steps, and the stable rank of the last tokens."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    place, count = np.arange(data.sizes["when"]), data.sizes["seed"] ** 0.5
    for k, (kind, symbol) in enumerate(zip(data.kind.values.tolist(), "os^", strict=True)):
        one = data.sel(kind=kind)
        look = {"color": COLOURS[k], "fmt": symbol + "-", "lw": 0.8, "label": kind}
        apart = 0.008 * (k - 1) * float(data.step[-1])
        marks(left, data.step + apart, one.loss.mean("seed"), one.loss.std("seed", ddof=1) / count, **look)
        rank = one["rank"]
        shift = 0.12 * (k - 1)
        marks(right, place + shift, rank.mean("seed"), rank.std("seed", ddof=1) / count, **(look | {"fmt": symbol}))
    left.axhline(float(data.entropy), color=COLOURS[-1], ls=":", lw=0.9, label="entropy of letters")
    left.set(xlabel="step", ylabel="held-out loss, nats a letter")
    left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    right.set(xlim=(-0.5, 1.5), ylabel="stable rank of the last tokens", ylim=(1, None))
    right.set_xticks(place, [f"{when} training" for when in data.when.values.tolist()])
    left.legend(loc="upper right")
    sizes = f"{data.attrs['layers']} layers of width {data.attrs['width']}, {data.attrs['context']} letters at once"
    figure.suptitle(f"{sizes}; mean and standard error of {data.sizes['seed']} networks", fontsize=8)
    return figure
