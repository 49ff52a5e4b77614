"""From one head to the Gaussian limit of infinitely many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, equal_correlations, infinite_head_kernel
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Heads(Study):
    """Excess kurtosis of a coordinate falls as one over the number of heads; with infinitely many it is Gaussian."""

    inputs: int = parameter(Integers(2, 3), "inputs s", 3)
    correlation: float = parameter(Interval(0, 0.9), "correlation of the inputs", 0.2)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 4.0)
    heads: tuple[int, ...] = parameter(
        Each(Integers(1, 1024)), "numbers of heads", (1, 2, 4, 8), paper=(1, 2, 4, 8, 16, 32)
    )
    width: int = parameter(Integers(8, 4096), "width n", 32, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws at finite width", 8000, paper=200_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Fourth moments at finite width, kernels in the limit."""
        gram = equal_correlations(self.inputs, self.correlation)
        finite, kernels, theory, exact = [], [], [], []
        for heads in track(self.heads, "heads"):
            layer = trace(Attention(heads, score_variance=self.score_variance), gram)
            mixture = HeadMixture(gram, heads, 0, self.score_variance)
            y = layer.finite(self.width, rng, self.draws)[:, 0] / mixture.variance() ** 0.5
            finite.append([float(np.mean(y**4)) - 3, standard_error(y**4)])
            kernels.append(layer.kernels(rng, 10 * self.draws)[:, 0, 0])
            theory.append(mixture.excess_kurtosis())
            exact.append(mixture.excess_kurtosis(self.width))
        limit = np.array([3 * each.var() / each.mean() ** 2 for each in kernels])
        return xr.Dataset(
            {
                "finite": (("heads", "statistic"), finite, {"long_name": "excess kurtosis at finite width"}),
                "limit": ("heads", limit, {"long_name": "excess kurtosis from draws of the limit"}),
                "kernel": (("heads", "statistic"), [[each.mean(), standard_error(each)] for each in kernels]),
                "theory": ("heads", theory, {"long_name": "excess kurtosis of the limit, by quadrature"}),
                "exact": ("heads", exact, {"long_name": "excess kurtosis at this width, by quadrature"}),
                "infinite": ((), infinite_head_kernel(gram, self.score_variance).value[0, 0]),
            },
            coords={"heads": list(self.heads), "statistic": ["value", "error"]},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Kurtosis for each number of heads, its product with their number, and the mean kernel."""
        claims = [
            Claim(
                statement=f"excess kurtosis at finite width, {heads} heads",
                place="width, Theorem 3.1; ours at finite width",
                predicted=float(data.exact.sel(heads=heads)),
                measured=float(data.finite.sel(heads=heads, statistic="value")),
                error=float(data.finite.sel(heads=heads, statistic="error")),
                tolerance=4 * float(data.finite.sel(heads=heads, statistic="error")),
                reason="four standard errors; the prediction is exact at this width",
            )
            for heads in self.heads
        ]
        times = data.limit * data.heads
        relative = 4 * (8 / (10 * self.draws)) ** 0.5
        claims.append(
            Claim(
                statement="kurtosis of the limit times heads, at most heads over its value at one head",
                place="width, section 1: infinitely many heads are Gaussian",
                predicted=float(data.theory[0] * data.heads[0]),
                measured=float(times[-1]),
                error=relative / 4 * float(times[-1]),
                tolerance=relative * float(times[-1]),
                reason="four standard errors of a sample variance of kurtosis up to nine",
            )
        )
        last = data.kernel.isel(heads=-1)
        error = float(last.sel(statistic="error"))
        claims.append(
            Claim(
                statement="mean kernel: that of infinitely many heads, by quadrature",
                place="Hron et al. 2020; width, section 1",
                predicted=float(data.infinite),
                measured=float(last.sel(statistic="value")),
                error=error,
                tolerance=4 * error,
                reason="four standard errors; it does not depend on the number of heads",
            )
        )
        return claims
