"""Narrow heads: what a small head dimension does to the limit (the paper's Appendix B.2)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, dot, equal_correlations, linear
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class HeadDim(Study):
    """Kurtosis of scores and outputs for heads of d dimensions: exact at any width, with a correction of order 1/d.

    A score is Gaussian given its query, whose length fluctuates: excess kurtosis ``6/d``. The output sees the values
    through d dimensions as well.
    """

    inputs: int = parameter(Integers(2, 4), "inputs s", 3)
    score_variance: float = parameter(Interval(0.01, 8), "variance of a score", 2.0)
    heads: int = parameter(Integers(2, 64), "heads", 2, paper=8)
    head_dims: tuple[int, ...] = parameter(
        Each(Integers(2, 1024)), "head dimensions d", (2, 4, 16), paper=(2, 4, 8, 16, 32, 64)
    )
    draws: int = parameter(Integers(1000, 10**7), "draws for each dimension", 20_000, paper=400_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Fourth moments of a score and of an output."""
        gram = equal_correlations(self.inputs)
        mixture = HeadMixture(gram, self.heads, 0, self.score_variance)
        layer = trace(Attention(self.heads, head_width="split", score_variance=self.score_variance), gram)
        share = Fraction(1, self.heads)
        score = trace(lambda x: dot(linear(x, share), linear(x, share)), gram)
        rows = []
        for dim in track(self.head_dims, "dimensions"):
            y = layer.finite(self.heads * dim, rng, self.draws)[:, 0]
            p = score.finite(self.heads * dim, rng, self.draws)[:, 0, 0]
            rows.append([*_fourth(y), mixture.excess_kurtosis(dim), *_fourth(p), 6 / dim])
        names = ["output", "output_error", "output_theory", "score", "score_error", "score_theory"]
        data = xr.Dataset(
            {name: ("head_dim", column) for name, column in zip(names, np.array(rows).T, strict=True)},
            coords={"head_dim": list(self.head_dims)},
        )
        return data.assign(limit=((), mixture.excess_kurtosis(), {"long_name": "excess kurtosis of wide heads"}))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Each dimension."""
        return [
            Claim(
                statement=f"excess kurtosis of {what}, head dimension {dim}",
                place="ours; width, Appendix B.2",
                predicted=float(one[f"{name}_theory"]),
                measured=float(one[name]),
                error=float(one[f"{name}_error"]),
                tolerance=4 * float(one[f"{name}_error"]),
                reason="four standard errors; the prediction is exact",
            )
            for dim in self.head_dims
            for one in (data.sel(head_dim=dim),)
            for name, what in (("score", "a score"), ("output", "an output"))
        ]


def _fourth(draws: np.ndarray) -> tuple[float, float]:
    """Excess kurtosis and its standard error, linearised in both moments."""
    square = np.mean(draws**2)
    ratio = float(np.mean(draws**4) / square**2)
    return ratio - 3, standard_error(draws**4 / square**2 - 2 * ratio * draws**2 / square)
