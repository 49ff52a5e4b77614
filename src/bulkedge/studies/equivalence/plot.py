"""Figures of the studies of *equivalence*."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, MultipleLocator, NullFormatter, NullLocator
from numpy.typing import ArrayLike

from bulkedge.plots.style import BARS, COLOURS, histogram, line, marks, panels

STAGES = {
    "attention": r"$\sqrt{\ell}\,A^\perp$",
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
        histogram(top, data.bin_edge, whole.simulation, label=r"$\sqrt{\ell}\,A$", fill=False, color="black", lw=0.7)
        line(top, data.x, data.theory, label="law")
        line(top, data.x, data.rival, label="Marchenko–Pastur", color=COLOURS[2], ls="--")
        top.set(ylim=(0, 0.45), title=STAGES[name], xlabel="squared singular value")
        marks(below, rank[shown], one.sorted[shown], ms=2, label="stage of the proof")
        line(below, rank[3:], whole.sorted[3:], label=r"$\sqrt{\ell}\,A$", color="black", lw=0.7)
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


def _sizes(data: xr.Dataset) -> str:
    """Tokens, head dimension and beta of a study, for a title."""
    known = {"tokens": r"$\ell$", "head_dim": "d", "beta": "β"}
    return ", ".join(f"{sign} = {data.attrs[name]:g}" for name, sign in known.items() if name in data.attrs)


def _legends(*panels: Any) -> list[tuple[list[Any], list[str]]]:
    return [axes.get_legend_handles_labels() for axes in panels]


def _ticks(axis: Any, values: ArrayLike) -> None:
    """Ticks at the values that were simulated, as plain numbers, and none between them."""
    axis.set_ticks(np.asarray(values), labels=[f"{value:g}" for value in np.asarray(values).tolist()])
    axis.set_minor_locator(NullLocator())


def top(data: xr.Dataset) -> Figure:
    """The Perron value on one panel, the next two on the other; both of A itself on the scales at the right."""
    figure, grid = panels(1, 2, height=2.6, width=3.7)
    left, right = grid[0]
    draw = np.arange(1, data.sizes["draw"] + 1)
    attention, linear = data.value.sel(model="attention"), data.value.sel(model="linear")
    marks(left, draw, attention.sel(rank=1), label="largest value")
    left.axhline(float(data.perron), color=COLOURS[1], label="predicted")
    variance = np.expm1(data.attrs["beta"] ** 2)
    left.axhline(data.attrs["tokens"] + variance, color=COLOURS[2], ls="--", label=r"rival: $\ell+\theta_1$")
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
        axes.set(xlabel="draw", ylabel=r"$s_k^2$ of $\sqrt{\ell}\,A$")
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
        axes.axvline(threshold, color="0.5", ls="-.", lw=0.8, label=r"$\beta=\sqrt{\log\ell}$" if axes is right else "")
        axes.set(xscale="log", xlabel="β")
        _ticks(axes.xaxis, [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= 1.01 * data.attrs["last"]])
    handles, labels = (first + second for first, second in zip(*_legends(left, right), strict=True))
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(f"{_sizes(data)}, {data.attrs['draws']} draws", fontsize=8)
    return figure


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
    line(axes, data.tokens, root, label=r"exact, about $\sqrt{(\theta_1+\beta^4/2)/\ell}$")
    tokens = data.tokens.values
    rival = root[0] * (tokens / tokens[0]) ** -0.25
    line(axes, tokens, rival, label=r"rival: $\ell^{-1/4}$", color=COLOURS[2], ls="--")
    axes.set(
        xscale="log", yscale="log", xlabel=r"tokens $\ell$ (= head dimension)", ylabel="relative deviation of $Z_i$"
    )
    axes.set(title=f"β = {data.attrs['beta']:g}, {data.sizes['draw']} draws", ylim=(0.6 * root[-1], 4 * root[0]))
    _ticks(axes.xaxis, tokens)
    _ticks(axes.yaxis, [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if 0.6 * root[-1] < tick < 4 * root[0]])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
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
    right.set(xscale="log", xlabel=r"d (= $\ell$)", ylabel=r"degree with error $d^{-1/2}$")
    right.set(ylim=(0, 1.6 * float(data.needed.mean("draw").max())), title=f"{data.sizes['draw']} draws")
    _ticks(right.xaxis, data.dim.values)
    right.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    right.legend(loc="upper left", ncols=2, columnspacing=0.8)
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
        _with_errors(axes, data.beta, one.with_gram, fmt="o-", lw=0.8, label="law with the Gram matrix")
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
    right.axhline(3 / made_by["tokens"], color=COLOURS[-1], ls=":", lw=0.9, label="3/ℓ, spread evenly")
    right.set(yscale="log", ylabel="inverse participation ratio", ylim=(1 / made_by["tokens"], 2))
    for axes in grid[0]:
        axes.set_xlabel("β")
        axes.legend(loc="upper left", ncols=1 if axes is left else 3, columnspacing=0.8, handletextpad=0.4)
    figure.suptitle(f"{made_by['tokens']} tokens and dimensions, {made_by['draws']} draws")
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
        marks(left, betas, one.mean("draw"), one.std("draw", ddof=1) / draws, label=rf"$\ell$ = {tokens}", **look)
    left.axhline(0.5, color="0.5", ls=":", lw=0.9)
    left.set(xlabel="β", ylabel="mean over the linear model's", ylim=(0, 1.25))
    left.legend(loc="upper right", ncols=2, columnspacing=0.8, handlelength=1.2)
    logs = np.log(data.tokens.values)
    marks(right, data.tokens, data.threshold_mean, data.threshold_mean_error, label="of the mean")
    line(right, data.tokens, data.predicted, label="exact mean of a row")
    marks(right, data.short, data.threshold_second, data.threshold_second_error, label="of the second value",
          fmt="s", color=COLOURS[3])  # fmt: skip
    line(right, data.short, data.carried, label=r"edge of the law = $2\ell$", color=COLOURS[4])
    start = float(data.predicted[0])
    line(right, data.tokens, start * logs / logs[0], label=r"rival: $\beta\propto\log\ell$", color=COLOURS[2], ls="--")
    line(right, data.tokens, np.full(len(logs), start), label="rival: constant β", color=COLOURS[-1], ls=":")
    right.set(xscale="log", xlabel=r"tokens $\ell$ (= head dimension)", ylabel="threshold in β", ylim=(1, 4.9))
    _ticks(right.xaxis, data.tokens.values[:: max(1, len(logs) // 4)])
    right.legend(loc="upper left", ncols=2, columnspacing=0.8)
    figure.suptitle(f"{data.sizes['draw']} draws, of {data.attrs['rows']} rows or of whole matrices", fontsize=8)
    return figure


def rank_one(data: xr.Dataset) -> Figure:
    """Size of the term over beta, and the value beside the linear degree between the ends of the bulk."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    fine = np.linspace(float(data.beta.min()), float(data.beta.max()), 50)
    strength = float((data.strength / data.beta**2)[0]) * fine**2
    line(left, fine, strength, label=r"$\sqrt{\theta_3/\varphi} = \beta^2\sqrt{\ell/2d}$")
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
