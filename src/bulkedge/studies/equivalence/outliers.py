"""Localised outliers: single large entries that leave the bulk (ours; *equivalence* leaves them open)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim


@dataclass(frozen=True)
class Outliers(Study):
    """Number and localisation of the values beyond the bulk, against what single large entries should give."""

    tokens: int = parameter(Integers(100, 4000), "tokens, and head dimension", 400, paper=1000)
    betas: tuple[float, ...] = parameter(Each(Interval(0.3, 1.5)), "values of beta", (0.8, 1.0, 1.2))
    draws: int = parameter(Integers(2, 100), "draws for each beta", 4, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Count values beyond the finite edge, and measure how localised their vectors are."""
        shape = len(self.betas), self.draws
        found, outside, inside = np.empty(shape), np.full(shape, np.nan), np.empty(shape)
        expected = []
        for k in track(list(range(len(self.betas))), "beta"):
            model = SoftmaxAttention(self.tokens, self.tokens, self.betas[k])
            edge = model.law("finite head").finite_edge(self.tokens)
            expected.append(model.expected_entry_outliers())
            for draw in range(self.draws):
                matrix = np.sqrt(self.tokens) * (model.sample(rng) - 1 / self.tokens)
                left, values, _ = np.linalg.svd(matrix)
                participation = (left**4).sum(axis=0)
                beyond = values**2 > edge
                found[k, draw], inside[k, draw] = beyond.sum(), np.median(participation)
                outside[k, draw] = participation[beyond].mean() if beyond.any() else np.nan
        return xr.Dataset(
            {
                "found": (("beta", "draw"), found, {"long_name": "values beyond the finite edge"}),
                "expected": ("beta", expected, {"long_name": "expected entries beyond the threshold"}),
                "outside": (("beta", "draw"), outside, {"long_name": "inverse participation ratio, outliers"}),
                "inside": (("beta", "draw"), inside, {"long_name": "inverse participation ratio, bulk"}),
            },
            coords={"beta": list(self.betas)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Their number, and that they are localised."""
        total, expected = float(data.found.sum()), self.draws * float(data.expected.sum())
        return [
            Claim(
                statement="outliers found, over all draws",
                place="ours; theory/attention",
                predicted=expected,
                measured=total,
                error=expected**0.5,
                tolerance=4 * expected**0.5,
                reason="four standard errors of a Poisson number",
            ),
            Claim(
                statement="inverse participation ratio of outliers over that of the bulk",
                place="ours; theory/attention",
                predicted=10.0,
                measured=float(data.outside.mean() / data.inside.mean()),
                error=0.0,
                tolerance=0.0,
                reason="an entry's vector keeps a finite share on one token; in the bulk it is 3/n",
                relation=">=",
            ),
        ]
