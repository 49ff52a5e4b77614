"""Activations on top of attention: the paper's clip, and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, track
from bulkedge.plots.style import COLOURS, histogram, marks, panels
from bulkedge.programs import ACTIVATIONS, equal_correlations
from bulkedge.programs.activations import second_moment
from bulkedge.support.domains import Choice, Each, Integers, parameter

WHERE = ("narrow", "wide", "limit")


@dataclass(frozen=True)
class WidthActivations(Study):
    """Whatever function is applied to the coordinates, its moments are those of the mixture, not of a Gaussian process.

    What a random kernel adds to ``E f(y_0)**2`` beyond its mean kernel, which is all that infinitely many heads have:
    drawn at widths n and 2n, extrapolated in 1/n, against the limit.
    """

    inputs: int = parameter(Integers(2, 16), "inputs s", 3, ours=3)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    activations: tuple[str, ...] = parameter(
        Each(Choice(tuple(ACTIVATIONS))),
        "activations",
        ("clip", "relu", "gelu", "softplus"),
        ours=("clip", "relu", "gelu", "softplus", "tanh"),
    )
    heads: int = parameter(Integers(1, 256), "heads", 2, ours=2)
    width: int = parameter(*setting.WIDTH, 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws", 10_000, ours=50_000)
    small = {"draws": 4000, "activations": ("clip", "gelu"), "width": 16}
    caption = """Densities of a coordinate after four activations at finite width with the limit, and what
    random scores add to its moments. Bars should fill the outlines of the limit, and the points on the right should
    lie at one and not at zero."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """What each activation makes of kernels at both widths and in the limit, and densities there."""
        program = setting.before_projection(equal_correlations(self.inputs), self.heads, self.score_variance)
        drawn = {
            "narrow": program.finite(self.width, rng, self.draws),
            "wide": program.finite(2 * self.width, rng, self.draws),
            "limit": program.limit(rng, 4 * self.draws),
        }
        kernels = {name: setting.over_heads(each) for name, each in drawn.items()}
        edges = np.linspace(-1.5, 2.5, 41)
        gaps, densities, mean = [], [], []
        for name in track(self.activations, "activations"):
            f = ACTIVATIONS[name]
            gaps.append(setting.pairs([gap(f, kernels[where]) for where in WHERE]))
            mean.append(setting.pairs([Estimate.of(moments(f, kernels[where])) for where in WHERE]))
            densities.append([_density(f, kernels[where], edges, rng) for where in ("narrow", "limit")])
        dims = ("activation", "where", "statistic")
        return dataset(
            gap=(dims, gaps, "E f(y_0) f(y_1) minus that of the mean kernel"),
            moment=(dims, mean, "E f(y_0) f(y_1)"),
            density=(("activation", "drawn", "bin"), densities, "density of f(y_0)"),
            coords={
                "activation": list(self.activations),
                "where": list(WHERE),
                "drawn": ["finite", "limit"],
                "statistic": list(setting.STATISTIC),
                "bin_edge": edges,
            },
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """What the randomness of the kernel adds, for each activation."""
        for name in self.activations:
            narrow, wide, limit = (
                setting.from_pair(data.gap.sel(activation=name, where=each), setting.BATCHES - 1) for each in WHERE
            )
            text = f"{name}: what a random kernel adds to E f(y_0) f(y_1)"
            rival = "a Gaussian process of the same mean kernel", 0.0
            yield Claim(text, "width: Theorem 3.1, Other activations", setting.extrapolate(narrow, wide), limit, rival)

    def figure(self, data: xr.Dataset) -> Figure:
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
        last.axhline(0, label="Gaussian process", **setting.RIVAL)
        last.set(xticks=range(len(names)), xlim=(-0.5, len(names) - 0.5), ylim=(-0.3, 1.6))
        last.set(title="added by randomness", ylabel="over the limit")
        last.set_xticklabels(names, rotation=45)
        last.legend(loc="lower right", bbox_to_anchor=(1, 0.15))
        setting.sizes_title(figure, self, "width", "inputs", "heads")
        return figure


def moments(f: Callable[..., Any], kernels: Real) -> Real:
    """``E f(y_0) f(y_1)`` given the kernel, of two positions."""
    return np.asarray(second_moment(f, f, kernels[:, 0, 0], kernels[:, 1, 1], kernels[:, 0, 1]))


def gap(f: Callable[..., Any], kernels: Real) -> Estimate:
    """Mean of ``E f(y_0) f(y_1)`` over kernels, minus its value at their mean: zero if the kernel is not random."""
    found = moments(f, kernels)
    entries = np.stack([found, kernels[:, 0, 0], kernels[:, 1, 1], kernels[:, 0, 1]], axis=1)
    batches = [group.mean(axis=0) for group in np.array_split(entries, setting.BATCHES)]

    def statistic(rows: Real) -> float:
        value, *kernel = rows.mean(axis=0)
        return float(value - second_moment(f, f, *(np.array([each]) for each in kernel))[0])

    return Estimate.jackknife(statistic, batches)


def _density(f: Callable[..., Any], kernels: Real, edges: Real, rng: np.random.Generator) -> Real:
    """Histogram of ``f(y_0)``, a coordinate for each kernel."""
    values = f(np.sqrt(kernels[:, 0, 0]) * rng.standard_normal(len(kernels)))
    return np.asarray(np.histogram(values, edges)[0] / (len(values) * (edges[1] - edges[0])))
