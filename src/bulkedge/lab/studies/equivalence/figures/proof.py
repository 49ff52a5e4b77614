"""Figures of the steps of the proof: stages, largest values, coefficients, thresholds, normalisers and degrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from bulkedge.plots.style import COLOURS, histogram, line, marks, panels

STAGES = {
    "attention": r"$\sqrt{T}\,A^\perp$",
    "fixed_normaliser": "$Y$: fixed normaliser",
    "entrywise": "$Y^f$: entrywise",
    "taylor": "$Y^Q$: Taylor",
    "taylor_linear": r"$Y^Q_\mathrm{lin}$: its linear model",
    "linear": r"$Y^f_\mathrm{lin}$: linear model",
}


def bulk(data: xr.Dataset) -> Figure:
    """Histograms on top, sorted values below, a column for each stage; attention itself in all of them."""
    names = [name for name in data.stage.values.tolist() if name != "whole"]
    figure, grid = panels(2, len(names), width=1.75, height=1.9)
    rank = np.arange(1, data.sizes["rank"] + 1)
    shown = slice(3, None, max(1, len(rank) // 60))
    whole = data.sel(stage="whole")
    for column, name in enumerate(names):
        top, below = grid[:, column]
        one = data.sel(stage=name)
        histogram(top, data.bin_edge, one.simulation, label="stage of the proof")
        histogram(top, data.bin_edge, whole.simulation, label=r"$\sqrt{T}\,A$", fill=False, color="black", lw=0.7)
        line(top, data.x, data.theory, label="law")
        line(top, data.x, data.rival, label="Marchenko–Pastur", color=COLOURS[2], ls="--")
        top.set(ylim=(0, 0.45), title=STAGES[name], xlabel="squared singular value")
        marks(below, rank[shown], one.sorted[shown], ms=2, label="stage of the proof")
        line(below, rank[3:], whole.sorted[3:], label=r"$\sqrt{T}\,A$", color="black", lw=0.7)
        line(below, rank, data["quantile"], label="law", lw=0.9, zorder=4)
        line(below, rank, data.rival_quantile, label="Marchenko–Pastur", color=COLOURS[2], ls="--", lw=0.9, zorder=4)
        below.set(xlabel="rank", ylim=(0, 1.3 * float(data["quantile"][0])))
        for axes in (top, below):
            axes.tick_params(labelleft=column == 0)
    grid[0, 0].set_ylabel("density")
    grid[1, 0].set_ylabel("squared singular value")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle(f"{_sizes(data)}, {data.attrs['draws']} draws, three largest values removed", fontsize=8)
    return figure


def top(data: xr.Dataset) -> Figure:
    """The Perron value on one panel, the next two on the other; both of A itself on the scales at the right."""
    figure, grid = panels(1, 2, height=2.6, width=3.7)
    left, right = grid[0]
    draw = np.arange(1, data.sizes["draw"] + 1)
    attention, linear = data.value.sel(model="attention"), data.value.sel(model="linear")
    marks(left, draw, attention.sel(rank=1), label="largest value")
    left.axhline(float(data.perron), color=COLOURS[1], label="predicted")
    variance = np.expm1(data.attrs["beta"] ** 2)
    left.axhline(data.attrs["tokens"] + variance, color=COLOURS[2], ls="--", label=r"rival: $T+\theta_1$")
    for rank, colour, symbol, name in ((2, COLOURS[0], "o", "second"), (3, COLOURS[3], "s", "third")):
        marks(right, draw, attention.sel(rank=rank), label=f"{name} value", color=colour, fmt=symbol)
    marks(right, draw, linear.sel(rank=1), label="linear model", color="black", fmt="x")
    right.axhline(float(data.edge), color=COLOURS[1], label="edge of the law")
    right.axhline(4 * variance, color=COLOURS[2], ls="--", label="rival: MP edge")
    right.set(yscale="log", ylim=(0.8 * 4 * variance, 3 * float(attention.sel(rank=2).max())))
    low, high = right.get_ylim()
    _ticks(right.yaxis, [tick for tick in (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500) if low < tick < high])
    tokens = data.attrs["tokens"]
    for axes in grid[0]:
        axes.set(xlabel="draw", ylabel=r"$s_k^2$ of $\sqrt{T}\,A$")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        other = axes.secondary_yaxis("right", functions=(lambda y: y / tokens, lambda y: y * tokens))
        other.set_ylabel("$s_k^2$ of $A$")
        axes.legend(loc="upper left", ncols=2, columnspacing=0.8, handlelength=1.2)
        if axes is right:
            ticks = [tick for tick in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if low < tokens * tick < high]
            _ticks(other.yaxis, ticks)
    left.margins(y=0.5)
    left.ticklabel_format(useOffset=False)
    figure.suptitle(_sizes(data), fontsize=8)
    return figure


def coefficients(data: xr.Dataset) -> Figure:
    """Both coefficients and their difference, with samples where these are reliable."""
    figure, grid = panels(1, 1, height=2.6)
    axes = grid[0, 0]
    line(axes, data.beta, data.variance, label=r"$\theta_1=e^{\beta^2}-1$")
    line(axes, data.beta, data.signal, label=r"$\theta_2=\beta^2$", color=COLOURS[0])
    line(axes, data.beta, data.variance - data.signal, label=r"$\theta_1-\theta_2$", color=COLOURS[2], ls="--")
    shown = slice(None, None, max(1, data.sizes["sampled"] // 8))
    for sampled, label in ((data.sampled_variance, "sampled"), (data.sampled_slope**2, "")):
        error = sampled.std("draw", ddof=1) / data.sizes["draw"] ** 0.5
        marks(axes, data.sampled[shown], sampled.mean("draw")[shown], error[shown], label=label, color="black")
    axes.axvline(float(data.crossing), color="0.5", ls=":", lw=0.9, label=f"β = {float(data.crossing):.3f}")
    axes.set(yscale="log", xlabel="β", ylabel="coefficient", title=f"{data.attrs['samples']:,} Gaussian scores")
    axes.legend(loc="upper left")
    return figure


def breakdown(data: xr.Dataset) -> Figure:
    """The two largest values over beta, from the linear model to one-hot rows; the same over the model's edge."""
    figure, grid = panels(1, 2, height=3.0)
    left, right = grid[0]
    theory = {name: data.theory.sel(quantity=name) for name in data["quantity"].values.tolist()}
    line(left, data.beta, theory["perron"], label="linear model: largest")
    line(left, data.beta, theory["edge"], label="linear model: edge", color=COLOURS[2])
    for rank, name, colour, symbol in ((1, "first", COLOURS[0], "o"), (2, "second", COLOURS[3], "s")):
        error = data[name].std("draw", ddof=1) / data.sizes["draw"] ** 0.5
        marks(left, data.beta, data[name].mean("draw"), error, label=f"$s_{rank}(A)^2$", color=colour, fmt=symbol)
        end = float(data.one_hot.sel(rank=rank).mean())
        left.axhline(end, color=colour, ls=":", lw=0.9, label=f"one-hot rows, {rank}")
    left.set(yscale="log", ylabel="squared singular value of A", ylim=(0.5 * float(data.second.min()), 20))
    ratio = data.second / theory["edge"]
    error = ratio.std("draw", ddof=1) / data.sizes["draw"] ** 0.5
    marks(right, data.beta, ratio.mean("draw"), error, label="second value over the edge", fmt="s", color=COLOURS[3])
    line(right, data.beta, 1 - theory["heavy"], label="variance not in large entries", color=COLOURS[-1], ls="--")
    threshold = np.sqrt(np.log(data.attrs["tokens"]))
    right.set(ylabel="share of the linear model's", ylim=(0, 2.4))
    for axes in grid[0]:
        axes.axvline(threshold, color="0.5", ls="-.", lw=0.8, label=r"$\beta=\sqrt{\log T}$" if axes is right else "")
        axes.set(xscale="log", xlabel="β")
        _ticks(axes.xaxis, [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= 1.01 * data.attrs["last"]])
    handles, labels = (first + second for first, second in zip(*_legends(left, right), strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(f"{_sizes(data)}, {data.attrs['draws']} draws", fontsize=8)
    return figure


def threshold(data: xr.Dataset) -> Figure:
    """What is left of the linear model's mean over beta, and where it is half, over tokens."""
    figure, grid = panels(1, 2, height=2.7)
    left, right = grid[0]
    draws = data.sizes["draw"] ** 0.5
    for k, tokens in enumerate(data.tokens.values.tolist()):
        one = data["mean"].sel(tokens=tokens)
        look: dict[str, Any] = {"fmt": "osD^vP*Xp"[k % 9] + "-", "lw": 0.8, "color": COLOURS[k % len(COLOURS)]}
        betas = data.grid * np.sqrt(np.log(tokens))
        marks(left, betas, one.mean("draw"), one.std("draw", ddof=1) / draws, label=rf"$T$ = {tokens}", **look)
    left.axhline(0.5, color="0.5", ls=":", lw=0.9)
    left.set(xlabel="β", ylabel="mean over the linear model's", ylim=(0, 1.25))
    left.legend(loc="upper right", ncols=2, columnspacing=0.8, handlelength=1.2)
    logs = np.log(data.tokens.values)
    marks(right, data.tokens, data.threshold_mean, data.threshold_mean_error, label="of the mean")
    line(right, data.tokens, data.predicted, label="exact mean of a row")
    marks(right, data.short, data.threshold_second, data.threshold_second_error, label="of the second value",
          fmt="s", color=COLOURS[3])  # fmt: skip
    line(right, data.short, data.carried, label=r"edge of the law = $2T$", color=COLOURS[4])
    start = float(data.predicted[0])
    line(right, data.tokens, start * logs / logs[0], label=r"rival: $\beta\propto\log T$", color=COLOURS[2], ls="--")
    line(right, data.tokens, np.full(len(logs), start), label="rival: constant β", color=COLOURS[-1], ls=":")
    right.set(xscale="log", xlabel=r"tokens $T$ (= head dimension)", ylabel="threshold in β", ylim=(1, 6.2))
    _ticks(right.xaxis, data.tokens.values[:: max(1, len(logs) // 4)])
    right.legend(loc="upper left", ncols=2, columnspacing=0.8)
    figure.suptitle(f"{data.sizes['draw']} draws, of {data.attrs['rows']} rows or of whole matrices", fontsize=8)
    return figure


def normaliser(data: xr.Dataset) -> Figure:
    """Typical and largest deviations over the number of tokens."""
    figure, grid = panels(1, 1, height=3.0)
    axes = grid[0, 0]
    draws = data.sizes["draw"] ** 0.5
    typical = data.square**0.5
    marks(axes, data.tokens, data.most.mean("draw"), data.most.std("draw", ddof=1) / draws, label="largest of all rows",
          fmt="s", color=COLOURS[3])  # fmt: skip
    marks(axes, data.tokens, typical.mean("draw"), typical.std("draw", ddof=1) / draws, label="root mean square")
    root = data.predicted.values**0.5
    line(axes, data.tokens, root, label=r"exact, about $\sqrt{(\theta_1+\beta^4/2)/T}$")
    tokens = data.tokens.values
    rival = root[0] * (tokens / tokens[0]) ** -0.25
    line(axes, tokens, rival, label=r"rival: $T^{-1/4}$", color=COLOURS[2], ls="--")
    axes.set(xscale="log", yscale="log", xlabel=r"tokens $T$ (= head dimension)", ylabel="relative deviation of $Z_i$")
    axes.set(title=f"β = {data.attrs['beta']:g}, {data.sizes['draw']} draws", ylim=(0.6 * root[-1], 4 * root[0]))
    _ticks(axes.xaxis, tokens)
    _ticks(axes.yaxis, [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if 0.6 * root[-1] < tick < 4 * root[0]])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def taylor(data: xr.Dataset) -> Figure:
    """Error over degree at the largest d, and the degree needed over d, a curve for each beta."""
    figure, grid = panels(1, 2, height=2.7)
    left, right = grid[0]
    draws = data.sizes["draw"] ** 0.5
    last = data.isel(dim=-1)
    dim = int(last.dim)
    for beta, colour, symbol in zip(data.beta.values.tolist(), COLOURS, "os^", strict=False):
        look: dict[str, Any] = {"color": colour, "fmt": symbol, "label": f"β = {beta:g}"}
        error, needed = last.error.sel(beta=beta), data.needed.sel(beta=beta)
        log = np.log(error)
        bar = error.mean("draw") * log.std("draw", ddof=1) / draws
        marks(left, data.degree, np.exp(log.mean("draw")), bar, **(look | {"fmt": symbol + "-", "lw": 0.8}))
        marks(right, data.dim, needed.mean("draw"), needed.std("draw", ddof=1) / draws, **look)
        line(right, data.dim, data.predicted.sel(beta=beta), color=colour, label="")
    left.axhline(dim**-0.5, color="0.5", ls=":", lw=0.9, label=r"$d^{-1/2}$")
    left.axvline(float(last.chosen), color="black", ls="--", lw=0.9)
    left.set(yscale="log", xlabel="degree", ylabel="error in operator norm", title=f"d = {dim}")
    left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    left.legend(loc="lower left")
    line(right, data.dim, data.chosen, color="black", ls="--", label="degree of the proof, c = 2")
    right.plot([], [], color="0.5", label="predicted by the largest score")
    right.set(xscale="log", xlabel=r"d (= $T$)", ylabel=r"degree with error $d^{-1/2}$")
    right.set(ylim=(0, 1.6 * float(data.needed.mean("draw").max())), title=f"{data.sizes['draw']} draws")
    _ticks(right.xaxis, data.dim.values)
    right.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    right.legend(loc="upper left", ncols=2, columnspacing=0.8)
    return figure


def _sizes(data: xr.Dataset) -> str:
    """Tokens, head dimension and beta of a study, for a title."""
    known = {"tokens": r"$T$", "head_dim": "d", "beta": "β"}
    return ", ".join(f"{sign} = {data.attrs[name]:g}" for name, sign in known.items() if name in data.attrs)


def _legends(*panels: Any) -> list[tuple[list[Any], list[str]]]:
    return [axes.get_legend_handles_labels() for axes in panels]


def _ticks(axis: Any, values: ArrayLike) -> None:
    """Ticks at the values that were simulated, as plain numbers, and none between them."""
    axis.set_ticks(np.asarray(values), labels=[f"{value:g}" for value in np.asarray(values).tolist()])
    axis.set_minor_locator(NullLocator())
