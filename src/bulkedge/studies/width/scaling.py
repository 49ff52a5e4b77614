"""Scores over n instead of the root of n: attention that does not attend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.programs import HeadMixture, dot, equal_correlations, linear, scalar, softmax
from bulkedge.programs.graph import Traced, trace
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

SCALINGS = ("sqrt", "linear")


@dataclass(frozen=True)
class Scaling(Study):
    """Variance of a coordinate given its scores: random if they are over the root of n, constant if they are over n.

    Its spread is what makes the law of a coordinate non-Gaussian.
    """

    inputs: int = parameter(Integers(2, 5), "inputs s", 4)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score", 4.0)
    widths: tuple[int, ...] = parameter(Each(Integers(8, 8192)), "widths n", (16, 64, 256), paper=(16, 64, 256, 1024))
    draws: int = parameter(Integers(100, 10**7), "draws at each width", 2000, paper=20_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw attention weights of the first input, and what variance they give."""
        gram = equal_correlations(self.inputs)
        found = np.empty((len(SCALINGS), len(self.widths), self.draws))
        for k, width in track(list(enumerate(self.widths)), "widths"):
            for j, scaling in enumerate(SCALINGS):
                weights = trace(partial(self._attention, scaling=scaling), gram).finite(width, rng, self.draws)
                found[j, k] = np.einsum("di,ij,dj->d", weights[:, 0], gram, weights[:, 0])
        mixture = HeadMixture(gram, 1, 0, self.score_variance)
        return xr.Dataset(
            {
                "variance": (("scaling", "width", "draw"), found, {"long_name": "variance given the scores"}),
                "kurtosis": ((), mixture.excess_kurtosis(), {"long_name": "excess kurtosis of the limit"}),
                "mean": ((), mixture.variance(), {"long_name": "variance of the limit"}),
                "uniform": ((), gram.mean(), {"long_name": "variance under uniform attention"}),
            },
            coords={"scaling": list(SCALINGS), "width": list(self.widths)},
        )

    def _attention(self, x: Traced, scaling: str) -> Traced:
        deviation = self.score_variance**0.5
        query, key = linear(x, variance=deviation), linear(x, variance=deviation)
        return scalar(softmax, dot(query, key, "sqrt" if scaling == "sqrt" else "linear"))

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Spread and mean at the largest width."""
        last = data.isel(width=-1)
        width = float(last.width)
        spread = kurtosis(last.variance.sel(scaling="sqrt").values)
        error = group_error(last.variance.sel(scaling="sqrt").values)
        small = last.variance.sel(scaling="linear")
        return [
            Claim(
                statement="excess kurtosis with scores over the root of n",
                place="width, Theorem 3.1",
                predicted=float(data.kurtosis),
                measured=spread,
                error=error,
                tolerance=4 * error + 8 * float(data.kurtosis) / width,
                reason="four standard errors, and a correction of order 1/n",
            ),
            Claim(
                statement="excess kurtosis with scores over n",
                place="width, section 1: scores vanish",
                predicted=0.0,
                measured=kurtosis(small.values),
                error=group_error(small.values),
                tolerance=3 * (2 * self.score_variance / width) ** 2,
                reason="the variance moves by the square of scores of variance score_variance/n",
            ),
            Claim(
                statement="variance with scores over n: that of uniform attention",
                place="width, section 1: scores vanish",
                predicted=float(data.uniform),
                measured=float(small.mean()),
                error=standard_error(small),
                tolerance=4 * standard_error(small) + 2 * self.score_variance / width * float(data.uniform),
                reason="four standard errors, and scores of variance score_variance/n",
            ),
        ]


def kurtosis(variances: np.ndarray) -> float:
    """Excess kurtosis of a scale mixture of Gaussians.

    Parameters
    ----------
    variances : array
        Draws of the variance of the Gaussian.

    Returns
    -------
    float
        ``3 Var/mean**2``.
    """
    return float(3 * variances.var() / variances.mean() ** 2)


def group_error(variances: np.ndarray, groups: int = 20) -> float:
    """Standard error of :func:`kurtosis`, from groups of draws.

    Parameters
    ----------
    variances : array
        Draws of the variance of the Gaussian.
    groups : int
        In how many groups to split them.

    Returns
    -------
    float
        Standard error over groups.
    """
    return standard_error([kurtosis(each) for each in np.array_split(variances, groups)])
