"""Figure 4: at large beta attention is one-hot, and its squared singular values are Poisson."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.comparison import compare
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.laws import PoissonLaw
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

BIN = 0.1


@dataclass(frozen=True)
class Poisson(Study):
    """Squared singular values of attention at very large beta, and the Poisson law of rate one."""

    tokens: int = parameter(Integers(100, 10_000), "tokens", 500, paper=1000)
    head_dim: int = parameter(Integers(16, 10_000), "head dimension", 500, paper=1000)
    beta: float = parameter(Interval(10, 1000), "inverse temperature", 50.0)
    draws: int = parameter(Integers(1, 100), "draws", 3, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Squared singular values of A itself."""
        model, law = SoftmaxAttention(self.tokens, self.head_dim, self.beta), PoissonLaw(1.0)
        found = [spectrum(model.sample(rng)).squared() for _ in track(range(self.draws), "draws")]
        values = np.array([each.values for each in found])
        ends = np.arange(0, 8 + BIN / 2, BIN) - BIN / 2
        levels = 1 - (np.arange(self.tokens) + 0.5) / self.tokens
        counts = np.arange(8.0)
        return xr.Dataset(
            {
                "sorted": ("rank", values.mean(axis=0)[::-1], {"long_name": "squared singular value"}),
                "quantile": ("rank", law.ppf(levels), {"long_name": "Poisson quantile"}),
                "simulation": (
                    "bin",
                    np.histogram(values, ends)[0] / values.size,
                    {"long_name": "share of the values"},
                ),
                "bin_edge": ("end", ends),
                "theory": ("count", [dict(law.atoms)[k] for k in counts]),
                "near": ("count", [np.mean(np.abs(values - k) < 0.5) for k in counts]),
                "mean": ("draw", values.mean(axis=1), {"long_name": "mean squared singular value"}),
                "kolmogorov": ("draw", [compare(each, law).ks for each in found]),
            },
            coords={"count": counts},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Shares of values near 0, 1 and 2."""
        size = self.tokens * self.draws
        # the two largest scores of a row differ by an exponential of rate sqrt(2 log l), and by 1/beta for a shared row
        shared = np.sqrt(2 * np.log(self.tokens)) / self.beta
        claims = [
            Claim(
                statement="mean squared singular value: 1 - sqrt(2 log l)/beta, as some rows share their weight",
                place="ours, first correction to equivalence, Figure 4",
                predicted=1 - shared,
                measured=float(data.sorted.mean()),
                error=standard_error(data["mean"]),
                tolerance=0.3 * shared,
                reason="the spacing of the two largest of l scores is exponential to about 1/log l",
            )
        ]
        for count in (0, 1, 2):
            share = float(data.theory.sel(count=count))
            error = (share * (1 - share) / size) ** 0.5
            claims.append(
                Claim(
                    statement=f"share of squared singular values near {count}",
                    place="equivalence, Figure 4",
                    predicted=share,
                    measured=float(data.near.sel(count=count)),
                    error=error,
                    tolerance=4 * error + shared,
                    reason="four standard errors, and the share sqrt(2 log l)/beta of rows that are not one-hot",
                )
            )
        return claims
