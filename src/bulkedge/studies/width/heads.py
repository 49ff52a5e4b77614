"""From one head to the Gaussian limit of infinitely many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, dot, equal_correlations, infinite_head_kernel, linear, scalar, softmax
from bulkedge.programs.graph import Traced, trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error
from bulkedge.studies.width.scaling import group_error, kurtosis


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
    draws: int = parameter(Integers(100, 10**6), "draws at finite width", 4000, paper=200_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Variances given what the output projection sees, at finite width and in the limit."""
        gram = equal_correlations(self.inputs, self.correlation)
        finite, limit, kernel, theory, exact = [], [], [], [], []
        for heads in track(self.heads, "heads"):
            program = trace(partial(self._before_projection, heads=heads), gram)
            found = (program.finite(self.width, rng, self.draws), program.limit(rng, 5 * self.draws))
            given, wide = (each.reshape(len(each), heads, self.inputs, -1)[:, :, 0, 0].mean(axis=1) for each in found)
            finite.append([kurtosis(given), group_error(given)])
            limit.append([kurtosis(wide), group_error(wide)])
            kernel.append([wide.mean(), standard_error(wide)])
            mixture = HeadMixture(gram, heads, 0, self.score_variance)
            theory.append(mixture.excess_kurtosis())
            exact.append(mixture.excess_kurtosis(self.width))
        pair = ("heads", "statistic")
        return xr.Dataset(
            {
                "finite": (pair, finite, {"long_name": "excess kurtosis at finite width"}),
                "limit": (pair, limit, {"long_name": "excess kurtosis from draws of the limit"}),
                "kernel": (pair, kernel, {"long_name": "mean kernel of the limit"}),
                "theory": ("heads", theory, {"long_name": "excess kurtosis of the limit, by quadrature"}),
                "exact": ("heads", exact, {"long_name": "excess kurtosis at this width, by quadrature"}),
                "infinite": ((), infinite_head_kernel(gram, self.score_variance).value[0, 0]),
            },
            coords={"heads": list(self.heads), "statistic": ["value", "error"]},
        )

    def _before_projection(self, x: Traced, heads: int) -> Traced:
        """Gram matrices of the heads' outputs: given them the projected output is Gaussian, at any width."""
        deviation = self.score_variance**0.5
        query, key = (linear(x, variance=deviation, copies=heads) for _ in range(2))
        attended = scalar(softmax, dot(query, key)) @ linear(x, copies=heads)
        return dot(attended, attended, "linear")

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
        most = data.limit.isel(heads=-1)
        value, error = (float(data.heads[-1] * most.sel(statistic=name)) for name in ("value", "error"))
        claims.append(
            Claim(
                statement="kurtosis of the limit with the most heads, times their number: that of one head",
                place="width, section 1: infinitely many heads are Gaussian",
                predicted=float(data.theory[0] * data.heads[0]),
                measured=value,
                error=error,
                tolerance=4 * error,
                reason="four standard errors",
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
