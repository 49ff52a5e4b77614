"""What a Gaussian assumption gets wrong in the tails (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, equal_correlations
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim

COUNTED = 3.0
"""Standard deviations beyond which draws are counted."""


@dataclass(frozen=True)
class Tails(Study):
    """Large coordinates are more frequent than in a Gaussian of the same variance: tens of times at five deviations."""

    inputs: int = parameter(Integers(2, 5), "inputs s", 4)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 4.0)
    heads: tuple[int, ...] = parameter(Each(Integers(1, 256)), "numbers of heads", (1, 4), paper=(1, 4, 16))
    width: int = parameter(Integers(8, 4096), "width n", 32, paper=512)
    draws: int = parameter(Integers(1000, 10**7), "draws at finite width", 5000, paper=200_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Tails by quadrature, and counts at finite width, where all inputs are alike."""
        gram = equal_correlations(self.inputs)
        x = np.linspace(0, 6, 61)
        ratio, count = [], []
        for heads in track(self.heads, "heads"):
            mixture = HeadMixture(gram, heads, 0, self.score_variance)
            scale = mixture.variance() ** 0.5
            ratio.append(mixture.sf(scale * x) / mixture.gaussian_sf(scale * x))
            y = trace(Attention(heads, score_variance=self.score_variance), gram).finite(self.width, rng, self.draws)
            beyond = np.mean(np.abs(y) > COUNTED * scale, axis=1)
            count.append(
                [float(beyond.mean()), float(beyond.std() / len(beyond) ** 0.5), 2 * mixture.sf(COUNTED * scale)]
            )
        return xr.Dataset(
            {
                "ratio": (("heads", "x"), ratio, {"long_name": "tail of the limit over a Gaussian's"}),
                "beyond": (("heads", "statistic"), count, {"long_name": f"share beyond {COUNTED:g} deviations"}),
            },
            coords={
                "heads": list(self.heads),
                "x": ("x", x, {"units": "standard deviations"}),
                "statistic": ["value", "error", "theory"],
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Counted draws, and how much a Gaussian misses."""
        claims = []
        for heads in self.heads:
            value, error, theory = data.beyond.sel(heads=heads).values.tolist()
            claims.append(
                Claim(
                    statement=f"share of coordinates beyond {COUNTED:g} deviations, {heads} heads",
                    place="ours; width, Theorem 3.1",
                    predicted=theory,
                    measured=value,
                    error=error,
                    tolerance=4 * error + 6 * theory / self.width * COUNTED,
                    reason="four standard errors, and a correction of order 1/n to the kurtosis",
                )
            )
        fewest = data.ratio.sel(heads=min(self.heads)).interp(x=5.0)
        claims.append(
            Claim(
                statement="tail at five deviations over a Gaussian's, fewest heads",
                place="ours; width says that a Gaussian underestimates tails",
                predicted=2.0,
                measured=float(fewest),
                error=0.0,
                tolerance=0.0,
                reason="computed by quadrature",
                relation=">=",
            )
        )
        return claims
