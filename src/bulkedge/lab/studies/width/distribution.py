"""Figure 1(a): a coordinate of an attention layer at finite width over its limit, and what a Gaussian gets wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import ndtr

from bulkedge.lab.studies import width as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, share, track
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.programs import FiniteMixture, HeadMixture, equal_correlations
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.support.domains import Each, Integers, parameter

POINTS = np.linspace(0.1, 4.0, 40)
"""Where distribution functions are compared, in standard deviations; they are symmetric."""
LEVELS = (3.0, 4.0, 5.0)
"""Standard deviations beyond which probabilities are measured."""


@dataclass(frozen=True)
class WidthDistribution(Study):
    """The law of a coordinate of an attention layer is the paper's mixture and not a Gaussian of its variance.

    Distribution functions are projected on the line from the limit (0) to that Gaussian (1). At finite width the law is
    known exactly, and lies a little on the other side of the limit. Large coordinates are more frequent than in a
    Gaussian of the same variance: tens of times at five deviations. Their probabilities are means over the last weight.
    """

    inputs: int = parameter(*setting.INPUTS, 4, ours=4)
    correlation: float = parameter(*setting.CORRELATION, 0.0, ours=0.0)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    heads: tuple[int, ...] = parameter(Each(Integers(1, 256)), "numbers of heads", (1, 4), ours=(1, 2, 8))
    width: int = parameter(*setting.WIDTH, 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws of the layer", 20_000, ours=100_000)
    small = {"draws": 4000, "heads": (1, 2), "width": 16, "inputs": 3}
    caption = """Density of a coordinate, its distribution function minus a Gaussian's, and its tails over
    a Gaussian's, for each number of heads. Points should follow the dashed curve exactly and approach the solid
    limit with width; neither is the dotted Gaussian."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw each layer, and integrate its limit and its law at this width."""
        parts = [self._layer(heads, rng) for heads in track(self.heads, "heads")]
        return xr.concat(parts, dim=xr.Variable("heads", list(self.heads)))

    def _layer(self, heads: int, rng: np.random.Generator) -> xr.Dataset:
        """What is drawn and computed for a number of heads; all in units of the limit's standard deviation."""
        gram = equal_correlations(self.inputs, self.correlation)
        limit = HeadMixture(gram, heads, 0, self.score_variance)
        exact, scale = FiniteMixture(limit, self.width), limit.variance() ** 0.5
        layer = trace(Attention(heads, score_variance=self.score_variance), gram)
        y = layer.finite(self.width, rng, self.draws) / scale
        drawn = setting.before_projection(gram, heads, self.score_variance).finite(self.width, rng, self.draws)
        given = setting.over_heads(drawn)[:, 0, 0] / scale**2
        edges, x = np.linspace(-5, 5, 51), np.linspace(-5, 5, 201)
        # tails in deviations of the layer's own, over those of a Gaussian that has its variance
        own, far, levels = exact.variance() ** 0.5 / scale, np.linspace(0, 6, 61), np.array(LEVELS)
        tail = setting.distribution_function(given, -own * levels) / ndtr(-levels)
        return dataset(
            simulation=("bin", np.histogram(y, edges)[0] / (y.size * (edges[1] - edges[0]))),
            theory=("x", scale * limit.pdf(scale * x), "density of the limit"),
            counted=(("batch", "point"), _counted(y), "share of draws below"),
            averaged=(("batch", "point"), setting.distribution_function(given, POINTS)),
            limit=("point", 1 - limit.sf(scale * POINTS), "distribution function of the limit"),
            exact=("point", 1 - exact.sf(scale * POINTS), "the same at this width"),
            excess=("statistic", setting.pairs([setting.kurtosis(given)])[0], "excess kurtosis"),
            predicted=((), exact.excess_kurtosis(), "excess kurtosis, exact at this width"),
            beyond=(("batch", "level"), tail, "probability beyond, over a Gaussian's"),
            limit_tail=("far", limit.sf(scale * far) / ndtr(-far), "the same in the limit"),
            exact_tail=("far", exact.sf(own * scale * far) / ndtr(-far), "at this width"),
            coords={"x": x, "point": POINTS, "bin_edge": edges, "statistic": list(setting.STATISTIC)}
            | {"far": far, "level": levels},
            attrs={"units": "standard deviations"},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of a Gaussian there is in the distribution functions, and the fourth cumulant."""
        gaussian = ndtr(POINTS)
        for heads in self.heads:
            one = data.sel(heads=heads)
            limit = one.limit.values
            expected = float(share([one.exact.values] * 2, limit, gaussian).value)
            what = f"share of a Gaussian in the law of a coordinate, {setting.plural(heads)}"
            for name, how in (("counted", "counted"), ("averaged", "averaged over the last weight")):
                if name == "counted" and heads > 1:
                    continue  # counts need the square of the number of heads times as many draws
                place = "width: Theorem 3.1, Figure 1(a)"
                rival = "a Gaussian of the same variance", 1.0
                yield Claim(f"{what}, {how}", place, share(one[name].values, limit, gaussian), expected, rival)
            text = f"excess kurtosis of a coordinate, {setting.plural(heads)}"
            place = "width: Theorem 3.1, Figure 1(a)"
            rival = "a Gaussian's", 0.0
            yield Claim(text, place, setting.from_pair(one.excess, self.draws - 1), one.predicted, rival)
            for level in LEVELS:
                text = f"probability beyond {level:g} deviations over a Gaussian's, {setting.plural(heads)}"
                predicted = one.exact_tail.sel(far=level, method="nearest")
                rival = "a Gaussian of the same variance", 1.0
                yield Claim(text, "width: Tail risk", one.beyond.sel(level=level), predicted, rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(3, data.sizes["heads"], width=2.9, height=2.1)
        gaussian, base = np.exp(-(data.x**2) / 2) / np.sqrt(2 * np.pi), ndtr(data.point.values)
        for (top, low, tail), heads_ in zip(grid.T, data.heads.values.tolist(), strict=True):
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
            found = Estimate.of(one.beyond.values)
            marks(tail, data.level, found.value, found.error)
            line(tail, data.far, one.limit_tail)
            line(tail, data.far, one.exact_tail, **setting.GREEN)
            tail.axhline(1, **setting.RIVAL)
            tail.set(yscale="log", xlabel="coordinate / deviation")
        grid[0, 0].set_ylabel("density")
        grid[1, 0].set_ylabel("distribution function\nminus a Gaussian's")
        grid[2, 0].set_ylabel("tail over a Gaussian's")
        grid[0, 0].legend(loc="upper center", handlelength=1.2, ncols=3)
        figure.legend(*grid[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, handlelength=1.2)
        setting.sizes_title(figure, self, "width", "inputs", "score_variance")
        return figure


def _counted(y: Real) -> Real:
    """Share of coordinates below each point, of all positions together, batch by batch, made symmetric."""
    found = [np.mean(np.abs(group)[..., None] <= POINTS, axis=(0, 1)) for group in np.array_split(y, setting.BATCHES)]
    return (1 + np.array(found)) / 2
