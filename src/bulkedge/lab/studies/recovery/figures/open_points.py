"""Figures of the studies of the paper's open points."""

from __future__ import annotations

import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bulkedge.lab.studies.recovery.figures.common import RIVAL, SIGNAL, below, caption, over_signal, scatter
from bulkedge.plots.style import COLOURS, line, marks, panels

SHOWN = 15
"""First positions, on which nearly all the weight is."""
NAMES = {"location": "largest eigenvalue", "overlap": "squared overlap"}


def classes(data: xr.Dataset) -> Figure:
    """Eigenvalues and overlaps of the two outliers, measured beside predicted, for both noises."""
    figure, grid = panels(1, 2)
    for axes, (name, label) in zip(grid[0], NAMES.items(), strict=True):
        for number, noise in enumerate(data.noise.values.tolist()):
            one, colour = data.sel(noise=noise), COLOURS[number]
            shifted = one["rank"] + 0.08 * (2 * number - 1)
            marks(axes, shifted, one[name].mean("draw"), scatter(one[name]), label=f"{noise} noise", color=colour)
            theory = one[f"predicted_{name}"]
            axes.scatter(shifted, theory, marker="_", s=250, color=colour, label=f"{noise}, theory")
            if name == "location":
                axes.axhline(float(one.edge), color=colour, ls=":", lw=1, label=f"{noise}, edge")
        axes.set(xlabel="outlier", ylabel=label.replace("largest ", ""), xlim=(0.5, 2.5), ylim=(0, None))
        axes.set_xticks([1, 2])
    grid[0, 1].set_ylim(0, 1.03)
    below(figure, grid[0, 0], 3)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "draws")
    return figure


def data_dependent(data: xr.Dataset) -> Figure:
    """Noise that is kept, and the outlier less that of harmonic weights, over the score_scale of the scores."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    gaussian = data.gaussian.rename(batch="draw")
    marks(left, data.score_scale, data.limit_noise.mean("draw"), scatter(data.limit_noise), label="self-attention")
    line(left, data.score_scale, gaussian.mean("draw"), label="Gaussian scores", marker="_", ms=12)
    left.axhline(float(data.harmonic), **RIVAL, label="harmonic weights")
    left.set_ylabel(r"mean of $|w|^2$")
    found, own = data.limit_location, data.limit_own_location
    marks(right, data.score_scale, found.mean("draw"), scatter(found), label="self-attention")
    line(right, data.score_scale, own.mean("draw"), label="independent noise", marker="_", ms=12)
    right.axhline(0.0, **RIVAL, label="harmonic weights")
    right.set_ylabel("shift of the outlier")
    for axes in grid[0]:
        axes.set_xlabel(r"factor $\tau$ of the scores $\tau\,x_t\cdot x_s/\sqrt{d}$")
        axes.legend(loc="upper left")
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "signal", "draws")
    return figure


def sample_correlations(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and overlap of two kinds of sequences, beside what each kind alone would show."""
    figure, grid = panels(1, 2)
    names = {"mixed": "mean of the correlations", "short": "short prefixes alone", "long": "long prefixes alone"}
    places = range(data.sizes["weighting"])
    for axes, (name, label) in zip(grid[0], NAMES.items(), strict=True):
        marks(axes, list(places), data[name].mean("draw"), scatter(data[name]), label="half of each kind")
        for kind, colour in zip(names, (COLOURS[1], COLOURS[2], COLOURS[3]), strict=True):
            theory = data[f"predicted_{name}"].sel(kind=kind)
            axes.scatter(list(places), theory, marker="_", s=400, color=colour, label=names[kind])
        axes.set(ylabel=label, xlim=(-0.5, len(places) - 0.5), ylim=(0, None))
        axes.set_xticks(list(places), [f"{each} weights" for each in data.weighting.values.tolist()])
    grid[0, 1].set_ylim(0, 1.03)
    below(figure, grid[0, 0], 4)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "signal", "draws")
    return figure


def heads(data: xr.Dataset) -> Figure:
    """Largest eigenvalue and overlap of two concatenated heads over the signal."""
    figure, grid = panels(1, 2)
    names = {"both": "theory", "free": "no cost of dimension", "best": "the better head alone"}
    for axes, (name, label) in zip(grid[0], NAMES.items(), strict=True):
        for kind, said in names.items():
            look = {} if kind == "both" else RIVAL | {"ls": ":" if kind == "free" else "--"}
            line(axes, data.fine_signal, data[f"curve_{name}"].sel(kind=kind), label=said, **look)
        over_signal(axes, data, name, COLOURS[0], "two heads")
        axes.set(xlabel=SIGNAL, ylabel=label)
    below(figure, grid[0, 0], 4)
    caption(figure, data, "dim", "vocab_ratio", "sample_ratio", "draws")
    return figure


def layers(data: xr.Dataset) -> Figure:
    """Mean weights over position for each depth, and their ratio to those of uniform attention."""
    figure, grid = panels(1, 2)
    left, right = grid[0]
    for depth, symbol in zip(data.depth.values.tolist(), "os^", strict=True):
        one, colour = data.sel(depth=depth, position=slice(1, SHOWN)), COLOURS[depth - 1]
        found, share = one.plain_weights, one.plain_weights / one.without
        look = {"color": colour, "fmt": symbol}
        line(left, one.position, one.limit, label=f"limit, layers: {depth}", color=colour)
        marks(left, one.position, found.mean("draw"), scatter(found), label=f"self-attention, layers: {depth}", **look)
        line(right, one.position, one.limit / one.without, label="", color=colour)
        marks(right, one.position, share.mean("draw"), scatter(share), label="", **look)
    left.set(ylabel="mean weight", yscale="log")
    right.set(ylabel="ratio to uniform")
    for axes in grid[0]:
        axes.set_xlabel("position")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    below(figure, left, 3)
    caption(figure, data, "dim", "vocab_ratio", "signal", "score_scale", "draws")
    return figure
