"""Figure 3, its first panel: what the linear model is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Coefficients(Study):
    """Variance ``theta_1 = E f**2`` and signal ``theta_2 = (E f')**2`` of an entry, as beta grows.

    Here ``f(s) = exp(beta s - beta**2/2) - 1``. The part of the variance that is noise overtakes the part that is
    linear in the scores where ``exp(beta**2) = 1 + 2 beta**2``, at beta = 1.121.
    """

    first: float = parameter(Interval(0.01, 5), "smallest beta", 0.1)
    last: float = parameter(Interval(0.1, 5), "largest beta", 3.0, paper=5.0)
    steps: int = parameter(Integers(5, 500), "values of beta", 30, paper=100)
    samples: int = parameter(Integers(1000, 10**7), "Gaussian scores", 100_000, paper=10**6)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both by formula, and by averages over Gaussian scores."""
        beta = np.linspace(self.first, self.last, self.steps)
        scores = rng.standard_normal((10, self.samples // 10))
        weights = [np.exp(each * scores - each**2 / 2) for each in beta.tolist()]
        return xr.Dataset(
            {
                "variance": ("beta", np.expm1(beta**2), {"long_name": "theta_1"}),
                "signal": ("beta", beta**2, {"long_name": "theta_2"}),
                "sampled_variance": (("beta", "batch"), [((each - 1) ** 2).mean(axis=1) for each in weights]),
                # the mean slope, E f' = E[s f] by partial integration
                "sampled_slope": (("beta", "batch"), [(scores * each).mean(axis=1) for each in weights]),
            },
            coords={"beta": beta},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Both coefficients, where samples can tell: the variance of f**2 grows like exp(6 beta**2)."""
        near = data.sel(beta=slice(None, 1.0))
        scaled = near.sampled_variance / near.variance
        slope = near.sampled_slope / near.beta
        return [
            Claim(
                statement=f"{name} up to beta = 1, sampled over predicted",
                place="equivalence, section 3 and Figure 3",
                predicted=1.0,
                measured=float(ratio.mean()),
                error=standard_error(ratio.mean("beta")),
                tolerance=5 * standard_error(ratio.mean("beta")),
                reason="five standard errors over ten batches, whose spread is itself uncertain by a fourth",
            )
            for name, ratio in (("theta_1 = exp(beta^2) - 1", scaled), ("theta_2 = beta^2, its root", slope))
        ]
