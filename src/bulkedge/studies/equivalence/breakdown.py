"""Figure 3: coefficients of the linear model, and where it breaks down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.entries import heavy_share
from bulkedge.ensembles.perron import perron
from bulkedge.laws import AttentionLaw, TracyWidom
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Breakdown(Study):
    """The two largest singular values as beta grows until the linear model breaks."""

    tokens: int = parameter(Integers(100, 10_000), "tokens", 400, paper=1000)
    head_dim: int = parameter(Integers(16, 10_000), "head dimension", 400, paper=1000)
    last: float = parameter(Interval(1, 6), "largest beta", 3.0)
    steps: int = parameter(Integers(3, 100), "values of beta from 0.5 on", 11, paper=26)
    draws: int = parameter(Integers(1, 100), "draws for each beta", 2, paper=5)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Largest values over beta."""
        betas = np.linspace(0.5, self.last, self.steps)
        values = np.empty((self.steps, self.draws, 2))
        for k in track(list(range(self.steps)), "beta"):
            model = SoftmaxAttention(self.tokens, self.head_dim, float(betas[k]))
            for draw in range(self.draws):
                values[k, draw] = self.tokens * spectrum(model.sample(rng)).squared().values[:-3:-1]
        found = [perron(beta, self.head_dim, self.tokens) for beta in betas.tolist()]
        tops = [self.tokens * each.square if each.trusted else np.nan for each in found]
        laws = [AttentionLaw(float(beta), self.head_dim / self.tokens) for beta in betas]
        unit = self.tokens ** (-2 / 3) * TracyWidom(1).mean()
        return xr.Dataset(
            {
                "first": (("beta", "draw"), values[..., 0], {"long_name": "l s_1(A)^2"}),
                "second": (("beta", "draw"), values[..., 1], {"long_name": "l s_2(A)^2"}),
                "perron": ("beta", tops, {"long_name": "predicted Perron value; nan where a single entry is larger"}),
                "edge": ("beta", [law.edge for law in laws]),
                "reach": (
                    "beta",
                    [law.edge + law.edge_scale * unit for law in laws],
                    {"long_name": "mean largest value"},
                ),
                "heavy": ("beta", [heavy_share(float(beta), self.tokens) for beta in betas]),
            },
            coords={"beta": betas},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The second value sits at the edge where the linear model holds, and far from it where it does not."""
        ratio = data.second.mean("draw") / data.edge
        safe = data.heavy < 0.01
        held, expected = ratio.where(safe, drop=True), (data.reach / data.edge).where(safe, drop=True)
        error = standard_error(held - expected)
        return [
            Claim(
                statement="second value over the edge, where less than 1 % of the variance is in large entries",
                place="equivalence, Figure 3",
                predicted=float(expected.mean()),
                measured=float(held.mean()),
                error=error,
                tolerance=4 * error + 0.02,
                reason="four standard errors, and 1 % of the variance in entries that the linear model does not know",
            ),
            Claim(
                statement=f"second value over the edge at beta = {self.last:g}",
                place="equivalence, Figure 3: the linear model breaks down at beta ~ sqrt(log l)",
                predicted=0.5,
                measured=float(ratio[-1]),
                error=0.0,
                tolerance=0.0,
                reason="the edge grows like exp(beta^2), squared singular values of a Markov matrix stay of order l",
                relation="<=",
            ),
        ]
