"""Figure 1(a): a coordinate of an attention layer at finite width, over its limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, equal_correlations, two_sample_test
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Distribution(Study):
    """Density of a coordinate of an attention layer: drawn at finite width, and the limit, which is not Gaussian."""

    inputs: int = parameter(Integers(2, 5), "inputs s", 4)
    correlation: float = parameter(Interval(0, 0.9), "correlation of the inputs", 0.2)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 4.0)
    heads: tuple[int, ...] = parameter(Each(Integers(1, 256)), "numbers of heads", (1, 4), paper=(1, 2, 8))
    width: int = parameter(Integers(8, 4096), "width n", 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws of the layer", 4000, paper=50_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw each layer, and integrate its limit."""
        gram = equal_correlations(self.inputs, self.correlation)
        edges, x = np.linspace(-5, 5, 51), np.linspace(-5, 5, 201)
        rows = []
        for heads in track(self.heads, "heads"):
            mixture = HeadMixture(gram, heads, 0, self.score_variance)
            layer = trace(Attention(heads, score_variance=self.score_variance), gram)
            scale = mixture.variance() ** 0.5
            y = layer.finite(self.width, rng, self.draws)[:, 0] / scale
            limit = layer.limit(rng, self.draws)[:, 0] / scale
            rows.append(
                {
                    "simulation": np.histogram(y, edges)[0] / (len(y) * (edges[1] - edges[0])),
                    "theory": scale * mixture.pdf(scale * x),
                    "fourth": [standard_error(y**4), float(np.mean(y**4))],
                    "predicted": 3 + mixture.excess_kurtosis(self.width),
                    "limit": 3 + mixture.excess_kurtosis(),
                    "p_value": two_sample_test(y, limit, rng, permutations=199),
                }
            )
        gathered = {name: [row[name] for row in rows] for name in rows[0]}
        return xr.Dataset(
            {
                "simulation": (("heads", "bin"), gathered["simulation"], {"long_name": "density at finite width"}),
                "theory": (("heads", "x"), gathered["theory"], {"long_name": "density of the limit"}),
                "fourth": (("heads", "statistic"), gathered["fourth"], {"long_name": "fourth moment"}),
                "predicted": ("heads", gathered["predicted"], {"long_name": "fourth moment, exact at this width"}),
                "limit": ("heads", gathered["limit"], {"long_name": "fourth moment of the limit"}),
                "p_value": ("heads", gathered["p_value"], {"long_name": "energy test against draws of the limit"}),
            },
            coords={
                "heads": list(self.heads),
                "x": ("x", x, {"units": "standard deviations"}),
                "bin_edge": edges,
                "statistic": ["error", "mean"],
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Fourth moments, which a Gaussian has at three, and the two-sample test."""
        claims = []
        for heads in self.heads:
            one = data.sel(heads=heads)
            error = float(one.fourth.sel(statistic="error"))
            claims.append(
                Claim(
                    statement=f"fourth moment of a coordinate, {heads} heads (a Gaussian has 3)",
                    place="width, Theorem 3.1 and Figure 1(a); ours at finite width",
                    predicted=float(one.predicted),
                    measured=float(one.fourth.sel(statistic="mean")),
                    error=error,
                    tolerance=4 * error,
                    reason="four standard errors; the prediction is exact at this width",
                )
            )
            claims.append(
                Claim(
                    statement=f"energy test of draws at finite width against the limit, {heads} heads",
                    place="width, Theorem 3.1",
                    predicted=0.01,
                    measured=float(one.p_value),
                    error=0.0,
                    tolerance=0.0,
                    reason="one draw in a hundred is below; so few draws do not see an order of 1/n",
                    relation=">=",
                )
            )
        return claims
