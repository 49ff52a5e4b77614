"""What a Gaussian assumption gets wrong in the tails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.width import setting
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import FiniteMixture, HeadMixture, equal_correlations
from bulkedge.support.domains import Each, Integers, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

LEVELS = (3.0, 4.0, 5.0)
"""Standard deviations beyond which probabilities are measured."""


@dataclass(frozen=True)
class WidthTails(Study):
    """Large coordinates are more frequent than in a Gaussian of the same variance: tens of times at five deviations.

    Probabilities are means over the last weight, which is Gaussian at any width; counts would need millions of draws.
    """

    inputs: int = parameter(*setting.INPUTS, 4, ours=4)
    score_variance: float = parameter(*setting.SCORE_VARIANCE, 4.0, ours=4.0)
    heads: tuple[int, ...] = parameter(Each(Integers(1, 256)), "numbers of heads", (1, 4), ours=(1, 4, 16))
    width: int = parameter(*setting.WIDTH, 32, paper=256)
    draws: int = parameter(Integers(1000, 10**7), "draws at finite width", 20_000, ours=40_000)
    small: ClassVar = {"draws": 2000, "inputs": 3}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Tails of the limit and at this width by quadrature, and drawn, over those of a Gaussian."""
        gram = equal_correlations(self.inputs)
        x = np.linspace(0, 6, 61)
        rows: dict[str, list[object]] = {"limit": [], "exact": [], "drawn": []}
        for heads in track(self.heads, "heads"):
            limit = HeadMixture(gram, heads, 0, self.score_variance)
            exact = FiniteMixture(limit, self.width)
            drawn = setting.before_projection(gram, heads, self.score_variance).finite(self.width, rng, self.draws)
            given = setting.over_heads(drawn)[:, 0, 0]
            scale = exact.variance() ** 0.5  # of a Gaussian that has the layer's own variance
            gaussian = HeadMixture(np.eye(1)).gaussian_sf
            rows["limit"].append(limit.sf(limit.variance() ** 0.5 * x) / gaussian(x))
            rows["exact"].append(exact.sf(scale * x) / gaussian(x))
            levels = np.array(LEVELS)
            found = Estimate.of(setting.distribution_function(given, -scale * levels) / gaussian(levels))
            rows["drawn"].append(np.stack([found.value, found.error], axis=-1))
        return xr.Dataset(
            {
                "limit": (("heads", "x"), rows["limit"], {"long_name": "tail of the limit over a Gaussian's"}),
                "exact": (("heads", "x"), rows["exact"], {"long_name": "tail at this width over a Gaussian's"}),
                "drawn": (("heads", "level", "statistic"), rows["drawn"], {"long_name": "the same, drawn"}),
            },
            coords={
                "heads": list(self.heads),
                "x": ("x", x, {"units": "standard deviations"}),
                "level": ("level", list(LEVELS), {"units": "standard deviations"}),
                "statistic": list(setting.STATISTIC),
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Every level and number of heads."""
        return [
            Claim(
                statement=f"probability beyond {level:g} deviations over a Gaussian's, "
                f"{heads} head{'s' if heads > 1 else ''}, width {self.width}",
                place="width: Tail risk",
                measured=setting.from_pair(data.drawn.sel(heads=heads, level=level), setting.BATCHES - 1),
                predicted=float(data.exact.sel(heads=heads).sel(x=level, method="nearest")),
                rival=Rival("a Gaussian of the same variance", 1.0),
            )
            for heads in self.heads
            for level in LEVELS
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """How much more often than a Gaussian's, over the size of a coordinate."""
        figure, grid = panels(1, 1, height=2.6)
        axes = grid[0, 0]
        for heads_, colour in zip(data.heads.values.tolist(), COLOURS, strict=False):
            one = data.sel(heads=heads_)
            line(axes, data.x, one.exact, label=f"{setting.plural(heads_)}, exact", color=colour)
            first = heads_ == data.heads.values[0]
            line(axes, data.x, one.limit, label="infinite width" if first else "", color=colour, ls="--", lw=0.9)
            value, error = (one.drawn.sel(statistic=each) for each in ("value", "error"))
            marks(axes, data.level, value, error, label="drawn" if first else "", color=colour)
        axes.axhline(1, label="Gaussian", **setting.RIVAL)
        axes.set(yscale="log", xlabel="coordinate / deviation", ylabel="tail over a Gaussian's")
        axes.legend(loc="upper left")
        setting.sizes_title(figure, self, "width", "inputs")
        return figure
