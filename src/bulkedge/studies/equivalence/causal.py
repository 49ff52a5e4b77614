"""Causal attention: its mean is not constant, and has a family of outliers (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy.optimize import curve_fit

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention, cesaro_values
from bulkedge.progress import track
from bulkedge.spectra import spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

SHOWN = 8


@dataclass(frozen=True)
class Causal(Study):
    """Largest singular values of causal attention and of its mean, the Cesaro matrix, whose norm tends to two.

    The bulk of causal attention has no law here yet; what is shown of it is simulation.
    """

    tokens: int = parameter(Integers(64, 10_000), "tokens", 500, paper=1500)
    head_dim: int = parameter(Integers(8, 10_000), "head dimension", 500, paper=1500)
    beta: float = parameter(Interval(0.05, 1), "inverse temperature", 0.3)
    draws: int = parameter(Integers(2, 100), "draws", 4, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Largest values of both."""
        model = SoftmaxAttention(self.tokens, self.head_dim, self.beta, causal=True)
        values = [spectrum(model.sample(rng)).values[: -SHOWN - 1 : -1] for _ in track(range(self.draws), "draws")]
        sizes = 2 ** np.arange(4, 21)
        return xr.Dataset(
            {
                "value": (("draw", "rank"), np.array(values), {"long_name": "singular value of A"}),
                "mean": (
                    "rank",
                    cesaro_values(self.tokens, SHOWN),
                    {"long_name": "singular value of the Cesaro matrix"},
                ),
                "norm": ("tokens", [cesaro_values(int(size), 1)[0] for size in sizes], {"long_name": "its norm"}),
            },
            coords={"rank": np.arange(1, SHOWN + 1), "tokens": sizes},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The first values, and the limit of the norm."""
        claims = []
        for rank in (1, 2):
            found = data.value.sel(rank=rank)
            error = standard_error(found)
            noise = float(np.expm1(self.beta**2))
            claims.append(
                Claim(
                    statement=f"singular value {rank} of causal attention: that of the Cesaro matrix",
                    place="ours; THEORY section 1c",
                    predicted=float(data["mean"].sel(rank=rank)),
                    measured=float(found.mean()),
                    error=error,
                    tolerance=4 * error + noise / 2,
                    reason="four standard errors, and the fluctuations of the first rows, of variance theta_1",
                )
            )
        logs, norms = np.log(data.tokens.values[4:].astype(float)), data["norm"].values[4:]
        limit = curve_fit(lambda x, top, a, b: top - a / (x + b) ** 2, logs, norms, p0=(2.0, 40.0, 6.0))[0][0]
        claims.append(
            Claim(
                statement="norm of the Cesaro matrix, extrapolated to infinitely many tokens",
                place="Hardy's inequality",
                predicted=2.0,
                measured=float(limit),
                error=0.0,
                tolerance=0.005,
                reason="fitted to 2 - a/(log l + b)^2; leaving out small sizes moves the fit by 0.001",
            )
        )
        return claims
