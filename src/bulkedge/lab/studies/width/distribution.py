"""Figure 1(a): a coordinate of an attention layer at finite width, over its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import ndtr

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival, share
from bulkedge.lab.studies.width import setting
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.programs import FiniteMixture, HeadMixture, equal_correlations
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

POINTS = np.linspace(0.1, 4.0, 40)
"""Where distribution functions are compared, in standard deviations; they are symmetric."""


@dataclass(frozen=True)
class WidthDistribution(Study):
    """The law of a coordinate of an attention layer is the paper's mixture and not a Gaussian of its variance.

    Distribution functions are projected on the line from the limit (0) to that Gaussian (1). At finite width the law is
    known exactly, and lies a little on the other side of the limit.
    """

    inputs: int = parameter(*setting.INPUTS, 4, ours=4)
    correlation: float = parameter(*setting.CORRELATION, 0.0, ours=0.0)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    heads: tuple[int, ...] = parameter(Each(Integers(1, 256)), "numbers of heads", (1, 4), ours=(1, 2, 8))
    width: int = parameter(*setting.WIDTH, 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws of the layer", 20_000, ours=100_000)
    small: ClassVar = {"draws": 4000, "heads": (1, 2), "width": 16, "inputs": 3}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw each layer, and integrate its limit and its law at this width."""
        rows = [self._layer(heads, rng) for heads in track(self.heads, "heads")]
        edges, x = np.linspace(-5, 5, 51), np.linspace(-5, 5, 201)
        gathered = {name: [row[name] for row in rows] for name in rows[0]}
        curves = ("heads", "batch", "point")
        return xr.Dataset(
            {
                "simulation": (("heads", "bin"), gathered["simulation"], {"long_name": "density at finite width"}),
                "theory": (("heads", "x"), gathered["theory"], {"long_name": "density of the limit"}),
                "counted": (curves, gathered["counted"], {"long_name": "share of draws below"}),
                "averaged": (curves, gathered["averaged"], {"long_name": "the same, mean over the last weight"}),
                "limit": (("heads", "point"), gathered["limit"], {"long_name": "distribution function of the limit"}),
                "exact": (("heads", "point"), gathered["exact"], {"long_name": "the same at this width"}),
                "excess": (("heads", "statistic"), gathered["excess"], {"long_name": "excess kurtosis"}),
                "predicted": ("heads", gathered["predicted"], {"long_name": "excess kurtosis, exact at this width"}),
            },
            coords={
                "heads": list(self.heads),
                "x": ("x", x, {"units": "standard deviations"}),
                "point": ("point", POINTS, {"units": "standard deviations"}),
                "bin_edge": edges,
                "statistic": list(setting.STATISTIC),
            },
        )

    def _layer(self, heads: int, rng: np.random.Generator) -> dict[str, object]:
        """What is drawn and computed for a number of heads; all in units of the limit's standard deviation."""
        gram = equal_correlations(self.inputs, self.correlation)
        limit = HeadMixture(gram, heads, 0, self.score_variance)
        exact, scale = FiniteMixture(limit, self.width), limit.variance() ** 0.5
        layer = trace(Attention(heads, score_variance=self.score_variance), gram)
        y = layer.finite(self.width, rng, self.draws) / scale
        drawn = setting.before_projection(gram, heads, self.score_variance).finite(self.width, rng, self.draws)
        given = setting.over_heads(drawn)[:, 0, 0] / scale**2
        edges, x = np.linspace(-5, 5, 51), np.linspace(-5, 5, 201)
        return {
            "simulation": np.histogram(y, edges)[0] / (y.size * (edges[1] - edges[0])),
            "theory": scale * limit.pdf(scale * x),
            "counted": _counted(y),
            "averaged": setting.distribution_function(given, POINTS),
            "limit": 1 - limit.sf(scale * POINTS),
            "exact": 1 - exact.sf(scale * POINTS),
            "excess": setting.pairs([setting.kurtosis(given)])[0],
            "predicted": exact.excess_kurtosis(),
        }

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """How much of a Gaussian there is in the distribution functions, and the fourth cumulant."""
        claims, gaussian = [], ndtr(POINTS)
        for heads in self.heads:
            one = data.sel(heads=heads)
            limit = one.limit.values
            expected = float(share([one.exact.values] * 2, limit, gaussian).value)
            what = f"share of a Gaussian in the law of a coordinate, {heads} head{'s' if heads > 1 else ''}"
            for name, how in (("counted", "counted"), ("averaged", "averaged over the last weight")):
                if name == "counted" and heads > 1:
                    continue  # counts need the square of the number of heads times as many draws
                claims.append(
                    Claim(
                        statement=f"{what}, {how}",
                        place="width: Theorem 3.1, Figure 1(a)",
                        measured=share(one[name].values, limit, gaussian),
                        predicted=expected,
                        rival=Rival("a Gaussian of the same variance", 1.0),
                    )
                )
            claims.append(
                Claim(
                    statement=f"excess kurtosis of a coordinate, {heads} head{'s' if heads > 1 else ''}",
                    place="width: Theorem 3.1, Figure 1(a)",
                    measured=setting.from_pair(one.excess, self.draws - 1),
                    predicted=float(one.predicted),
                    rival=Rival("a Gaussian's", 0.0),
                )
            )
        return claims

    def figure(self, data: xr.Dataset) -> Figure:
        """For each number of heads the density, and how far the distribution function is from a Gaussian's."""
        figure, grid = panels(2, data.sizes["heads"], width=2.9, height=2.1)
        gaussian, base = np.exp(-(data.x**2) / 2) / np.sqrt(2 * np.pi), ndtr(data.point.values)
        for (top, low), heads_ in zip(grid.T, data.heads.values.tolist(), strict=True):
            one = data.sel(heads=heads_)
            histogram(top, data.bin_edge, one.simulation, label="drawn")
            line(top, data.x, one.theory, label="limit")
            line(top, data.x, gaussian, label="Gaussian", **setting.RIVAL)
            top.set(title=setting.plural(heads_), yscale="log", ylim=(1e-5, 30), xlabel="coordinate / deviation")
            names = [("averaged", COLOURS[0], "drawn, last weight averaged")]
            if heads_ == 1:
                names.insert(0, ("counted", COLOURS[5], "drawn, counted"))
            for name, colour, label in names:
                found = Estimate.of(one[name].values - base)
                marks(low, data.point, found.value, found.error, label=label, color=colour, ms=2)
            line(low, data.point, one.limit - base, label="limit")
            line(low, data.point, one.exact - base, label=f"exact at n = {self.width}", **setting.GREEN)
            low.axhline(0, label="Gaussian", **setting.RIVAL)
            low.set(xlabel="coordinate / deviation", ylim=(-0.006, 0.014))
        grid[0, 0].set_ylabel("density")
        grid[1, 0].set_ylabel("distribution function\nless a Gaussian's")
        grid[0, 0].legend(loc="upper center", handlelength=1.2, ncols=3)
        figure.legend(*grid[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, handlelength=1.2)
        setting.sizes_title(figure, self, "width", "inputs", "score_variance")
        return figure


def _counted(y: Real) -> Real:
    """Share of coordinates below each point, of all positions together, batch by batch, made symmetric."""
    found = [np.mean(np.abs(group)[..., None] <= POINTS, axis=(0, 1)) for group in np.array_split(y, setting.BATCHES)]
    return (1 + np.array(found)) / 2
