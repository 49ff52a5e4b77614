"""Narrow heads: what a small head dimension does to the limit (the paper's Appendix B.2)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, track
from bulkedge.plots.style import line, marks, panels
from bulkedge.programs import HeadMixture, dot, equal_correlations, linear
from bulkedge.programs.graph import trace
from bulkedge.support.domains import Each, Integers, Interval, parameter


@dataclass(frozen=True)
class WidthHeadDim(Study):
    """Kurtosis of scores and outputs for heads of d dimensions: exact at any width, with a correction of order 1/d.

    A score is Gaussian given its query, whose length fluctuates: excess kurtosis ``6/d``. The output sees the values
    through d dimensions as well.
    """

    inputs: int = parameter(Integers(2, 4), "inputs s", 3, ours=3)
    score_variance: float = parameter(Interval(0.01, 8), "variance of a score", 2.0, ours=2.0)
    heads: int = parameter(Integers(2, 64), "heads", 2, ours=8)
    head_dims: tuple[int, ...] = parameter(
        Each(Integers(2, 1024)), "head dimensions d", (2, 4, 8, 16), ours=(2, 4, 8, 16, 32, 64)
    )
    draws: int = parameter(Integers(1000, 10**7), "draws for each dimension", 40_000, ours=100_000)
    small = {"draws": 5000, "head_dims": (4, 8)}
    caption = """Excess kurtosis of scores and of outputs over the head dimension. Points should follow
    the exact line, and outputs should approach the dotted value of wide heads."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Fourth cumulants of a score and of an output."""
        gram = equal_correlations(self.inputs)
        mixture = HeadMixture(gram, self.heads, 0, self.score_variance)
        part = Fraction(1, self.heads)
        layer = setting.before_projection(gram, self.heads, self.score_variance, part)
        score = trace(lambda x: dot(linear(x, part), linear(x, part)), gram)
        found: dict[str, list[list[float]]] = {"output": [], "score": []}
        for dim in track(self.head_dims, "dimensions"):
            given = setting.over_heads(layer.finite(self.heads * dim, rng, self.draws))[:, 0, 0]
            p = score.finite(self.heads * dim, rng, 2 * self.draws)[:, 0, 0]
            found["output"] += setting.pairs([setting.kurtosis(given)])
            found["score"] += setting.pairs([setting.excess(p)])
        pair = ("head_dim", "statistic")
        return dataset(
            output=(pair, found["output"], "excess kurtosis of an output"),
            score=(pair, found["score"], "excess kurtosis of a score"),
            output_theory=("head_dim", [mixture.excess_kurtosis(dim) for dim in self.head_dims]),
            score_theory=("head_dim", [6 / dim for dim in self.head_dims]),
            limit=((), mixture.excess_kurtosis(), "excess kurtosis of wide heads"),
            coords={"head_dim": list(self.head_dims), "statistic": list(setting.STATISTIC)},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Each dimension."""
        rivals = {"score": ("a Gaussian score", 0.0), "output": ("wide heads", float(data.limit))}
        for dim in self.head_dims:
            for name, what in (("score", "a score"), ("output", "an output")):
                text = f"excess kurtosis of {what}, head dimension {dim}"
                measured = setting.from_pair(data[name].sel(head_dim=dim), self.draws - 1)
                predicted = data[f"{name}_theory"].sel(head_dim=dim)
                yield Claim(text, "width: Appendix B.2", measured, predicted, rivals[name])

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        for axes, name, title in ((grid[0, 0], "score", "scores"), (grid[0, 1], "output", "outputs")):
            line(axes, data.head_dim, data[f"{name}_theory"], label="exact")
            marks(
                axes, data.head_dim, data[name].sel(statistic="value"), data[name].sel(statistic="error"), label="drawn"
            )
            setting.log_axes(axes, data.head_dim.values)
            axes.set(xlabel="head dimension d", title=title, ylim=(0.6 * float(data.limit), 6))
        grid[0, 1].axhline(float(data.limit), label="wide heads", **setting.RIVAL)
        grid[0, 0].set_ylabel("excess kurtosis")
        for axes in grid[0]:
            axes.legend(loc="upper right")
        setting.sizes_title(figure, self, "inputs", "heads")
        return figure
