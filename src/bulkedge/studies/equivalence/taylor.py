"""How high a polynomial has to be to stand for the exponential."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention, taylor, taylor_degree
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim


@dataclass(frozen=True)
class Taylor(Study):
    """Relative error of replacing the exponential by its Taylor polynomial, in operator norm, over degree and beta."""

    tokens: int = parameter(Integers(64, 5000), "tokens, and head dimension", 300, paper=1000)
    last: float = parameter(Interval(0.5, 3), "largest beta", 1.5)
    degrees: int = parameter(Integers(4, 30), "largest degree", 12, paper=16)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Norm of the difference, over that of the matrix."""
        betas, degrees = np.linspace(0.5, self.last, 3), np.arange(1, self.degrees + 1)
        scores = SoftmaxAttention(self.tokens, self.tokens, 1.0).scores(rng)
        error = np.empty((len(betas), len(degrees)))
        for k in track(list(range(len(betas))), "beta"):
            exact = np.expm1(betas[k] * scores - betas[k] ** 2 / 2)
            norm = np.linalg.norm(exact, 2)
            error[k] = [np.linalg.norm(exact - taylor(float(betas[k]), int(n))(scores), 2) / norm for n in degrees]
        return xr.Dataset(
            {
                "error": (("beta", "degree"), error, {"long_name": "relative error in operator norm"}),
                "chosen": ((), taylor_degree(self.tokens), {"long_name": "degree taken in the proof"}),
            },
            coords={"beta": betas, "degree": degrees},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The error falls faster than exponentially, and is small at the degree of the proof."""
        at = data.error.sel(degree=min(int(data.chosen), self.degrees))
        return [
            Claim(
                statement=f"relative error at the degree of the proof, {int(data.chosen)}, beta = {beta:g}",
                place="equivalence, section 4: degree ceil(2 log d/log log d)",
                predicted=bound,
                measured=float(at.sel(beta=beta)),
                error=0.0,
                tolerance=0.0,
                reason="of order beta^n/n! times the largest score to that power",
                relation="<=",
            )
            for beta, bound in ((0.5, 1e-2), (float(data.beta[1]), 0.3))
        ]
