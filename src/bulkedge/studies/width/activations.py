"""Activations on top of attention: the paper's clip, and others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.programs import ACTIVATIONS, equal_correlations, estimate, nonlin, sliced_wasserstein, two_sample_test
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import dot, trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Activations(Study):
    """The limit holds whatever function is applied to the coordinates: clip, ReLU, GELU and softplus."""

    inputs: int = parameter(Integers(2, 16), "inputs s", 3)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 4.0)
    activations: tuple[str, ...] = parameter(
        Each(Choice(tuple(ACTIVATIONS))), "activations", ("clip", "relu", "gelu", "softplus")
    )
    heads: int = parameter(Integers(1, 256), "heads", 2)
    width: int = parameter(Integers(8, 4096), "width n", 64, paper=256)
    draws: int = parameter(Integers(100, 10**6), "draws", 600, paper=20_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw the layer with each activation at finite width and in the limit."""
        gram = equal_correlations(self.inputs)
        edges = np.linspace(-1.5, 2.5, 41)
        names = ("finite", "limit", "second", "expected", "test")
        found: dict[str, list[object]] = {name: [] for name in names}
        for name in track(self.activations, "activations"):
            f = ACTIVATIONS[name]

            def write(x, f=f):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
                y = nonlin(f, Attention(self.heads, score_variance=self.score_variance)(x))
                return y, dot(y, y, "linear")

            program = trace(write, gram)
            (y, kernel), (z, expected) = program.finite(self.width, rng, self.draws), program.limit(rng, self.draws)
            found["finite"].append(np.histogram(y, edges)[0] / (y.size * 0.1))
            found["limit"].append(np.histogram(z, edges)[0] / (z.size * 0.1))
            found["second"].append([float(kernel[:, 0, 1].mean()), standard_error(kernel[:, 0, 1])])
            found["expected"].append([float(expected[:, 0, 1].mean()), standard_error(expected[:, 0, 1])])
            apart = estimate(sliced_wasserstein, y, z, rng, resamples=4)
            found["test"].append([two_sample_test(y, z, rng, 199), apart.value, apart.error])
        pair = ("activation", "statistic")
        return xr.Dataset(
            {
                "finite": (("activation", "bin"), found["finite"], {"long_name": "density at finite width"}),
                "limit": (("activation", "bin"), found["limit"], {"long_name": "density of the limit"}),
                "second": (pair, found["second"], {"long_name": "E f(y_0) f(y_1) at finite width"}),
                "expected": (pair, found["expected"], {"long_name": "E f(y_0) f(y_1) in the limit"}),
                "test": (("activation", "result"), found["test"]),
            },
            coords={
                "activation": list(self.activations),
                "statistic": ["value", "error"],
                "bin_edge": edges,
                "result": ["p_value", "wasserstein", "wasserstein_error"],
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Second moments between two positions, and the two-sample test at all positions together."""
        claims = []
        for name in self.activations:
            one = data.sel(activation=name)
            error = float(np.hypot(one.second.sel(statistic="error"), one.expected.sel(statistic="error")))
            expected = float(one.expected.sel(statistic="value"))
            claims.append(
                Claim(
                    statement=f"{name}: E f(y_0) f(y_1)",
                    place="width, Theorem 3.1; Cho and Saul 2009 for ReLU",
                    predicted=expected,
                    measured=float(one.second.sel(statistic="value")),
                    error=error,
                    tolerance=4 * error + 4 * expected / self.width,
                    reason="four standard errors of both, and a correction of order 1/n",
                )
            )
            claims.append(
                Claim(
                    statement=f"{name}: energy test at all positions against the limit",
                    place="width, Theorem 3.1",
                    predicted=0.01,
                    measured=float(one.test.sel(result="p_value")),
                    error=0.0,
                    tolerance=0.0,
                    reason="one draw in a hundred is below",
                    relation=">=",
                )
            )
        return claims
