"""Figure 1(b): how fast an attention layer converges in its width."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import energy_distance, equal_correlations, estimate, kl_divergence
from bulkedge.programs.attention import Attention
from bulkedge.programs.graph import trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim

DISTANCES = {"kl": kl_divergence, "energy": energy_distance}


@dataclass(frozen=True)
class KlDecay(Study):
    """Kullback-Leibler divergence and energy distance of a coordinate to its limit: both fall as one over n squared.

    The law has an expansion in 1/n, and both distances are quadratic in what differs. The floor that the kernel
    density estimates leave is measured between two sets of draws of the limit, and taken off.
    """

    inputs: int = parameter(Integers(2, 16), "inputs s", 2)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 1.0)
    widths: tuple[int, ...] = parameter(
        Each(Integers(2, 8192)), "widths n", (4, 6, 8, 12), paper=(4, 6, 8, 12, 16, 24, 32, 64, 256)
    )
    draws: int = parameter(Integers(1000, 10**8), "draws at each width", 60_000, paper=2_000_000)
    resamples: int = parameter(Integers(2, 1000), "bootstrap resamples", 8, paper=20)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distances to draws of the limit."""
        layer = trace(Attention(1, score_variance=self.score_variance), equal_correlations(self.inputs))
        limit, other = (layer.limit(rng, self.draws)[:, 0] for _ in range(2))
        found = []
        for width in track(self.widths, "widths"):
            y = layer.finite(width, rng, self.draws)[:, 0]
            found.append([estimate(each, y, limit, rng, self.resamples) for each in DISTANCES.values()])
        floor = [each(other, limit) for each in DISTANCES.values()]
        return xr.Dataset(
            {
                "distance": (("width", "kind", "statistic"), found),
                "floor": ("kind", floor, {"long_name": "distance of two sets of draws of the limit"}),
            },
            coords={"width": list(self.widths), "kind": list(DISTANCES), "statistic": ["value", "error"]},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Fitted rates."""
        claims = []
        for kind in DISTANCES:
            slope, error = rate(data.sel(kind=kind))
            claims.append(
                Claim(
                    statement=f"exponent of the {kind} distance in the width",
                    place="width, Figure 1(b); the exponent is ours",
                    predicted=-2.0,
                    measured=slope,
                    error=error,
                    tolerance=4 * error + 1 / min(self.widths),
                    reason="four standard errors, and the next order, of relative size 1/n at the smallest width",
                )
            )
        return claims


def rate(data: xr.Dataset) -> tuple[float, float]:
    """Weighted least squares of log distance on log width where it stands above its error; slope and standard error.

    Parameters
    ----------
    data : xarray.Dataset
        ``distance`` over ``width`` and ``statistic`` (``"value"`` and ``"error"``), and its ``floor``.

    Returns
    -------
    slope : float
        The exponent of the decay; nan if fewer than two widths stand above their error.
    error : float
        Its standard error.
    """
    value = data.distance.sel(statistic="value").values - float(data.floor)
    error = data.distance.sel(statistic="error").values
    clear = value > 4 * error
    if clear.sum() < 2:
        return float("nan"), float("nan")
    weights = (value[clear] / error[clear]) ** 2
    x = np.log(data.width.values[clear])
    centred = x - np.average(x, weights=weights)
    spread = float(weights @ centred**2)
    return float(weights * np.log(value[clear]) @ centred) / spread, spread**-0.5
