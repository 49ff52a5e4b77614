"""Figures of the studies of *width*."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from scipy.special import ndtr

from bulkedge.lab.studies.width.kl_decay import divergence, exact_divergences
from bulkedge.lab.studies.width.sequence import joint_limit, scaled_kernel
from bulkedge.lab.studies.width.setting import kurtosis
from bulkedge.plots.style import BARS, COLOURS, histogram, line, marks, panels
from bulkedge.support.estimates import Estimate

RIVAL: Any = {"color": COLOURS[-1], "ls": ":", "lw": 1}
GREEN: Any = {"color": COLOURS[2], "ls": "--"}


def _sizes(figure: Figure, data: xr.Dataset, **more: object) -> None:
    """The parameters, over the panels."""
    names = {"width": "n", "inputs": "s", "heads": "H", "score_variance": "score variance", "rate": "rate"}
    known = {names[key]: data.attrs[key] for key in names if key in data.attrs} | more
    parts = [f"{name} = {value}" for name, value in known.items()] + [f"{data.attrs['draws']:,} draws"]
    figure.suptitle(", ".join(parts), fontsize=7)


def _powers(axes: Any, x: Any, *, y: bool = True) -> None:
    """Logarithmic axes: a tick at each x, and no labels between powers of ten."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(np.asarray(x), [str(each) for each in np.asarray(x)])
    axes.xaxis.set_minor_locator(NullLocator())
    if y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())


def _plural(heads_: int) -> str:
    return f"{heads_} head{'s' if heads_ > 1 else ''}"


def distribution(data: xr.Dataset) -> Figure:
    """For each number of heads the density, and how far the distribution function is from a Gaussian's."""
    figure, grid = panels(2, data.sizes["heads"], width=2.9, height=2.1)
    gaussian, base = np.exp(-(data.x**2) / 2) / np.sqrt(2 * np.pi), ndtr(data.point.values)
    for (top, low), heads_ in zip(grid.T, data.heads.values.tolist(), strict=True):
        one = data.sel(heads=heads_)
        histogram(top, data.bin_edge, one.simulation, label="drawn")
        line(top, data.x, one.theory, label="limit")
        line(top, data.x, gaussian, label="Gaussian", **RIVAL)
        top.set(title=_plural(heads_), yscale="log", ylim=(1e-5, 30), xlabel="coordinate / deviation")
        names = [("averaged", COLOURS[0], "drawn, last weight averaged")]
        if heads_ == 1:
            names.insert(0, ("counted", COLOURS[5], "drawn, counted"))
        for name, colour, label in names:
            found = Estimate.of(one[name].values - base)
            marks(low, data.point, found.value, found.error, label=label, color=colour, ms=2)
        line(low, data.point, one.limit - base, label="limit")
        line(low, data.point, one.exact - base, label=f"exact at n = {data.attrs['width']}", **GREEN)
        low.axhline(0, label="Gaussian", **RIVAL)
        low.set(xlabel="coordinate / deviation", ylim=(-0.006, 0.014))
    grid[0, 0].set_ylabel("density")
    grid[1, 0].set_ylabel("distribution function\nless a Gaussian's")
    grid[0, 0].legend(loc="upper center", handlelength=1.2, ncols=3)
    figure.legend(*grid[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, handlelength=1.2)
    _sizes(figure, data)
    return figure


def kl_decay(data: xr.Dataset) -> Figure:
    """Both distances over the width: drawn, exact, and the rival's power."""
    figure, grid = panels(1, 2, height=2.6)
    titles = {"kl": "Kullback–Leibler divergence", "energy": "energy distance"}
    widths = data.width.values
    for axes, kind, exact in zip(grid[0], titles, exact_divergences(data), strict=True):
        found = [divergence(data, width, kind) for width in widths.tolist()]
        value, error = np.array([each.value for each in found]), np.array([each.error for each in found])
        seen = value > 2 * error
        marks(axes, widths[seen], value[seen], error[seen], label="drawn, last weight averaged")
        bound = np.maximum(value, 0) + 2 * error
        if not seen.all():
            axes.plot(
                widths[~seen], bound[~seen], "v", ms=4, mfc="none", color=COLOURS[0], label="drawn, two errors above"
            )
        line(axes, widths, exact, label="exact")
        line(axes, widths, exact[0] * (widths[0] / widths) ** 1.5, label=r"$n^{-3/2}$", **RIVAL)
        if kind == "kl":
            at = data.kernel.values
            marks(
                axes,
                widths,
                at[:, 0],
                at[:, 1],
                label=f"kernel estimate, {data.attrs['kernel_draws']:,} draws",
                fmt="s",
                color=COLOURS[3],
            )
            axes.axhline(float(data.floor[0]), color=COLOURS[3], ls="--", lw=0.9, label="its floor")
        _powers(axes, widths)
        axes.set(xlabel="width n", title=titles[kind], ylim=(exact.min() / 300, None))  # room for the legend
        axes.legend(loc="lower left", handlelength=1.4)
    grid[0, 0].set_ylabel("distance to the limit")
    _sizes(figure, data)
    return figure


def scores(data: xr.Dataset) -> Figure:
    """Covariances of scores over what is predicted, and the kurtosis of an output with and without them."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    found = Estimate.of(data.covariance.values.reshape(data.sizes["batch"], -1))
    theory = data.predicted.values
    marks(left, theory.ravel(), found.value, found.error, label="drawn")
    ends = np.array([theory.min(), theory.max()])
    line(left, ends, ends, label="Kronecker product")
    apart = theory[~np.eye(len(theory), dtype=bool)]
    left.plot(np.unique(apart), 0 * np.unique(apart), "x", ms=4, color=COLOURS[-1], label="independent scores")
    left.set(xlabel="predicted covariance of two scores", ylabel="drawn", ylim=(-0.4, None))
    value, error = (data.excess.sel(statistic=name) for name in ("value", "error"))
    marks(right, [0, 1], value, error, label="drawn")
    right.plot([0, 1], data.expected, "_", ms=16, color=COLOURS[1], label="exact")
    right.axhline(0, label="Gaussian", **RIVAL)
    right.set(xticks=[0, 1], xticklabels=["alone", "over its deviation\ngiven the scores"], xlim=(-0.5, 1.5))
    right.set(ylabel="excess kurtosis", ylim=(-0.01, None))
    for axes in grid[0]:
        axes.legend(loc="upper left" if axes is left else "center left")
    _sizes(figure, data)
    return figure


def scaling(data: xr.Dataset) -> Figure:
    """Quantiles of the variance given the scores, over the width, for both scalings, and the kurtosis they make."""
    figure, grid = panels(1, 3, width=2.5)
    titles = {"sqrt": r"scores $q\cdot k/\sqrt{n}$", "linear": r"scores $q\cdot k/n$"}
    last = grid[0, 2]
    for axes, name, colour in zip(grid[0], titles, (COLOURS[0], COLOURS[2]), strict=False):
        one = data.variance.sel(scaling=name)
        for low, high, alpha in ((0.05, 0.95, 0.25), (0.25, 0.75, 0.45)):
            bounds = one.quantile([low, high], dim="draw")
            label = f"{low:.0%} to {high:.0%}"
            axes.fill_between(data.width, bounds[0], bounds[1], color=COLOURS[0], alpha=alpha, lw=0, label=label)
        mean = Estimate.of(one.values, axis=1)
        marks(axes, data.width, mean.value, mean.error, label="mean")
        level = data["mean"] if name == "sqrt" else data.uniform
        axes.axhline(float(level), color=COLOURS[1], label="limit of the mean")
        _powers(axes, data.width.values, y=False)
        axes.set(xlabel="width n", title=titles[name], ylim=(0.0, 1.05))
        found = [kurtosis(row) for row in one.values]
        marks(last, data.width, [e.value for e in found], [e.error for e in found], label=titles[name], color=colour)
        first, second = (data.moments.sel(scaling=name, order=order) for order in (1, 2))
        line(last, data.width, 3 * (second / first**2 - 1), label="exact" if name == "linear" else "")
    start = float(kurtosis(data.variance.sel(scaling="linear").values[0]).value)
    line(last, data.width, start * float(data.width[0]) / data.width, label=r"$n^{-1}$", **RIVAL)
    _powers(last, data.width.values)
    last.set(
        xlabel="width n",
        title="excess kurtosis",
        ylim=(min(2e-6, float(kurtosis(data.variance.values[1, -1]).value) / 100), 5),
    )
    grid[0, 0].set_ylabel("variance given the scores")
    grid[0, 1].legend(loc="upper right")
    last.legend(loc="lower left", handlelength=1.4)
    _sizes(figure, data)
    return figure


def heads(data: xr.Dataset) -> Figure:
    """Excess kurtosis over the number of heads."""
    figure, grid = panels(1, 1, height=2.6)
    axes = grid[0, 0]
    line(axes, data.heads, data.theory, label="limit, quadrature")
    line(axes, data.heads, data.exact, label="finite width, quadrature", **GREEN)
    for name, look in (("limit", {"fmt": "s", "color": COLOURS[3]}), ("finite", {})):
        value, error = (data[name].sel(statistic=each) for each in ("value", "error"))
        marks(axes, data.heads, value, error, label=f"{name}{' width' if name == 'finite' else ''}, drawn", **look)
    line(axes, data.heads, data.exact[0] * (data.heads[0] / data.heads) ** 0.5, label=r"$H^{-1/2}$", **RIVAL)
    _powers(axes, data.heads.values)
    axes.set(xlabel="heads H", ylabel="excess kurtosis of a coordinate", ylim=(float(data.theory[-1]) / 12, None))
    axes.legend(loc="lower left")
    _sizes(figure, data)
    return figure


def activations(data: xr.Dataset) -> Figure:
    """A panel for each activation with densities, and what the random kernel adds to moments, over its limit."""
    figure, grid = panels(1, data.sizes["activation"] + 1, width=1.8)
    names, top = data.activation.values.tolist(), 1.05 * float(data.density.max())
    for axes, name in zip(grid[0], names, strict=False):
        one = data.density.sel(activation=name)
        histogram(axes, data.bin_edge, one.sel(drawn="finite"), label="finite width")
        histogram(axes, data.bin_edge, one.sel(drawn="limit"), label="limit", fill=False, color=COLOURS[1])
        axes.set(title=name, xlabel="$f(y)$", ylim=(0, top), ylabel="density" if name == names[0] else "")
    grid[0, 0].legend(loc="upper center", handlelength=1.2)
    last, limit = grid[0, -1], data.gap.sel(where="limit", statistic="value")
    gap = (data.gap / limit).transpose("where", "statistic", "activation")
    narrow, wide = gap.sel(where="narrow").values, gap.sel(where="wide").values
    marks(last, np.arange(len(names)), 2 * wide[0] - narrow[0], np.hypot(2 * wide[1], narrow[1]), label="drawn")
    last.axhline(1, color=COLOURS[1], label="limit")
    last.axhline(0, label="Gaussian process", **RIVAL)
    last.set(xticks=range(len(names)), xlim=(-0.5, len(names) - 0.5), ylim=(-0.3, 1.6))
    last.set(title="added by randomness", ylabel="over the limit")
    last.set_xticklabels(names, rotation=45)
    last.legend(loc="lower right", bbox_to_anchor=(1, 0.15))
    _sizes(figure, data)
    return figure


def head_dim(data: xr.Dataset) -> Figure:
    """Excess kurtosis of scores and outputs over the head dimension."""
    figure, grid = panels(1, 2)
    for axes, name, title in ((grid[0, 0], "score", "scores"), (grid[0, 1], "output", "outputs")):
        line(axes, data.head_dim, data[f"{name}_theory"], label="exact")
        marks(axes, data.head_dim, data[name].sel(statistic="value"), data[name].sel(statistic="error"), label="drawn")
        _powers(axes, data.head_dim.values)
        axes.set(xlabel="head dimension d", title=title, ylim=(0.6 * float(data.limit), 6))
    grid[0, 1].axhline(float(data.limit), label="wide heads", **RIVAL)
    grid[0, 0].set_ylabel("excess kurtosis")
    for axes in grid[0]:
        axes.legend(loc="upper right")
    _sizes(figure, data)
    return figure


def tails(data: xr.Dataset) -> Figure:
    """How much more often than a Gaussian's, over the size of a coordinate."""
    figure, grid = panels(1, 1, height=2.6)
    axes = grid[0, 0]
    for heads_, colour in zip(data.heads.values.tolist(), COLOURS, strict=False):
        one = data.sel(heads=heads_)
        line(axes, data.x, one.exact, label=f"{_plural(heads_)}, exact", color=colour)
        first = heads_ == data.heads.values[0]
        line(axes, data.x, one.limit, label="infinite width" if first else "", color=colour, ls="--", lw=0.9)
        value, error = (one.drawn.sel(statistic=each) for each in ("value", "error"))
        marks(axes, data.level, value, error, label="drawn" if first else "", color=colour)
    axes.axhline(1, label="Gaussian", **RIVAL)
    axes.set(yscale="log", xlabel="coordinate / deviation", ylabel="tail over a Gaussian's")
    axes.legend(loc="upper left")
    _sizes(figure, data)
    return figure


def depth(data: xr.Dataset) -> Figure:
    """Mean correlations over depth, and their variance, near zero on a linear axis so that no estimate is left out."""
    figure, grid = panels(1, 2, height=3.0)
    for name, colour in zip(data.block.values.tolist(), COLOURS, strict=False):
        one = data.sel(block=name)
        for axes, what in zip(grid[0], ("mean", "variance"), strict=True):
            chain, finite = (Estimate.of(one[what].sel(where=where).values) for where in ("chain", "finite"))
            line(axes, data.layer, chain.value, label=name if what == "mean" else "", color=colour)
            marks(axes, data.layer, finite.value, finite.error, label="", color=colour)
        line(grid[0, 0], data.layer, one.uniform, label="", **(RIVAL | {"color": colour}))
    for axes, title in zip(grid[0], ("mean correlation", "variance of the correlation"), strict=True):
        axes.set(xlabel="blocks", title=title, xticks=data.layer)
    grid[0, 1].set_yscale("symlog", linthresh=1e-3)
    grid[0, 1].axhline(0, **RIVAL)
    grid[0, 1].set_ylim(min(-3e-4, float(data.variance.mean("batch").min()) * 1.5), None)
    grid[0, 1].yaxis.set_minor_formatter(NullFormatter())
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        title="lines: chain; points: finite width, extrapolated; dotted: uniform attention, or a fixed kernel",
        title_fontsize=7,
    )
    _sizes(figure, data, n=f"{data.attrs['width']} and {2 * data.attrs['width']}")
    return figure


def sequence(data: xr.Dataset) -> Figure:
    """Excess kurtosis and scaled variance of a coordinate, with as many inputs as the width."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    variance = data.attrs["score_variance"]
    for axes, name in ((left, "kurtosis"), (right, "kernel")):
        value, error = (data[name].sel(statistic=each) for each in ("value", "error"))
        marks(axes, data.width, value, error, label="drawn")
    line(left, data.width, data.exact.sel(statistic="value"), label="scores given the query")
    line(left, data.width, joint_limit(variance) / data.width, label="joint limit", **GREEN)
    line(left, data.width, data.fixed.sel(statistic="value"), label="infinite width, s inputs", **RIVAL)
    line(right, data.width, [scaled_kernel(variance, width) for width in data.width.values], label="to order 1/s")
    right.axhline(np.exp(variance), label="joint limit", **GREEN)
    right.axhline(1, label="uniform attention", **RIVAL)
    _powers(left, data.width.values)
    _powers(right, data.width.values, y=False)
    left.set(
        xlabel="width n = inputs s",
        ylabel="excess kurtosis",
        ylim=(float(data.fixed.sel(statistic="value").min()) / 20, None),
    )
    right.set(xlabel="width n = inputs s", ylabel="s × variance of a coordinate", ylim=(0.95, 1.4))
    left.legend(loc="lower left", handlelength=1.4)
    right.legend(loc="center right")
    _sizes(figure, data)
    return figure


def positions(data: xr.Dataset) -> Figure:
    """Variance and excess kurtosis of a coordinate for each kind of relative positions."""
    figure, grid = panels(1, 2)
    titles = {"kernel": "variance of a coordinate", "kurtosis": "excess kurtosis"}
    at = np.arange(data.sizes["kind"])
    for axes, quantity in zip(grid[0], titles, strict=True):
        one = data.sel(quantity=quantity)
        for shift, where, colour in ((-0.2, "n", COLOURS[5]), (0, "2n", COLOURS[2]), (0.2, "extrapolated", COLOURS[0])):
            value, error = (one.drawn.sel(where=where, statistic=each) for each in ("value", "error"))
            marks(axes, at + shift, value, error, label=where, color=colour)
        axes.hlines(one.theory, at - 0.35, at + 0.35, color=COLOURS[1], label="limit")
        axes.axhline(float(one.without), label="no positions", **RIVAL)
        axes.set(xticks=at, xticklabels=data.kind.values.tolist(), title=titles[quantity], xlim=(-0.5, len(at) - 0.5))
    grid[0, 1].set_ylim(0, None)
    low, high = grid[0, 0].get_ylim()
    grid[0, 0].set_ylim(low, high + 0.5 * (high - low))
    grid[0, 0].legend(loc="upper center", ncols=2)
    _sizes(figure, data, n=f"{data.attrs['width']} and {2 * data.attrs['width']}")
    return figure


def training(data: xr.Dataset) -> Figure:
    """What was measured over its limit, and the tangent kernel of infinitely wide layers."""
    figure, grid = panels(1, 2, height=2.6)
    left, right = grid[0]
    ratio = data.found / data.found.sel(where="limit", statistic="value")
    at = np.arange(data.sizes["quantity"])
    for shift, where, colour in ((-0.2, "n", COLOURS[5]), (0, "2n", COLOURS[2]), (0.2, "extrapolated", COLOURS[0])):
        value, error = (ratio.sel(where=where, statistic=each) for each in ("value", "error"))
        marks(left, at + shift, value, error, label=where, color=colour)
    left.axhline(1, color=COLOURS[1], label="limit")
    still = float(data.still / data.found.sel(quantity="tangent", where="limit", statistic="value"))
    left.hlines([0, 0, still, 0], at - 0.4, at + 0.4, colors=COLOURS[-1], ls=":", lw=1, label="lazy training")
    names = ["scores\nmove", "step is\nbent", "mean\nkernel", "spread of\nkernel"]
    left.set(xticks=at, xticklabels=names, ylabel="over the limit", ylim=(-0.1, 1.75), xlim=(-0.6, 3.6))
    left.legend(loc="upper center", ncols=3, handlelength=1.4)
    histogram(right, *np.histogram(data.tangent, 60, density=True)[::-1], label="limit", color=BARS)
    right.axvline(float(data.tangent.mean()), label="its mean: not random", **RIVAL)
    right.set(xlabel="tangent kernel of the output", ylabel="density")
    right.legend(loc="upper right")
    _sizes(figure, data, n=f"{data.attrs['width']} and {2 * data.attrs['width']}")
    return figure
