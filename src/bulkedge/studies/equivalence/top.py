"""Figure 2: the three largest singular values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Top(Study):
    """Largest squared singular values of the scaled attention matrix: the Perron value, then the edge of the bulk."""

    tokens: int = parameter(Integers(100, 10_000), "tokens", 500, paper=1000)
    head_dim: int = parameter(Integers(8, 10_000), "head dimension", 500, paper=1000)
    beta: float = parameter(Interval(0.05, 2), "inverse temperature", 1.0)
    draws: int = parameter(Integers(2, 1000), "draws", 5, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Largest values of ``sqrt(l) A``."""
        model = SoftmaxAttention(self.tokens, self.head_dim, self.beta)
        law = model.law("finite head")
        values = np.array(
            [
                spectrum(model.sample(rng)).squared().scaled(self.tokens).values[:-4:-1]
                for _ in track(range(self.draws), "draws")
            ]
        )
        return xr.Dataset(
            {
                "value": (("draw", "rank"), values, {"long_name": "squared singular value of sqrt(l) A"}),
                "perron": ((), model.perron(), {"long_name": "predicted Perron value"}),
                "edge": ((), law.edge, {"long_name": "edge of the bulk"}),
                "second": ((), model.median_second(), {"long_name": "predicted median of the second value"}),
            },
            coords={"rank": [1, 2, 3]},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The Perron value, and the second value at the edge."""
        first, second = data.value.sel(rank=1), data.value.sel(rank=2)
        error = standard_error(first)
        spread = 1.25 * standard_error(second)
        return [
            Claim(
                statement="largest squared singular value of sqrt(l) A: l (1 + beta^4/(2 d)) + theta_1",
                place="equivalence, Figure 2; theory/attention",
                predicted=float(data.perron),
                measured=float(first.mean()),
                error=error,
                tolerance=4 * error + 0.5 * self.tokens * self.beta**6 / self.head_dim**2 + 0.2,
                reason="four standard errors, the next order in 1/d, and what row sums take off theta_1",
            ),
            Claim(
                statement="median of the second value: the edge, or the largest single entry beyond it",
                place="equivalence, Figure 2; ours for the entry",
                predicted=float(data.second),
                measured=float(second.median()),
                error=spread,
                tolerance=4 * spread + 0.05 * float(data.second),
                reason="four standard errors of the median, and scores taken as exactly Gaussian in their tail",
            ),
        ]
