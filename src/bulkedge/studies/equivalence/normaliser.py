"""Lemma 4.1: the row normalisers concentrate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Normaliser(Study):
    """Fluctuations of the row normalisers about their limit, which fall like the root of the number of tokens."""

    first: int = parameter(Integers(32, 1000), "smallest number of tokens, and head dimension", 64)
    sizes: int = parameter(Integers(3, 12), "how often it is doubled", 5, paper=7)
    beta: float = parameter(Interval(0.05, 2), "inverse temperature", 0.5)
    draws: int = parameter(Integers(2, 1000), "draws of each size", 8, paper=20)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Root mean square deviation of ``Z_i/l`` from ``exp(beta**2/2)``, relative."""
        tokens = self.first * 2 ** np.arange(self.sizes)
        deviation = np.empty((self.sizes, self.draws))
        for k in track(list(range(self.sizes)), "sizes"):
            model = SoftmaxAttention(int(tokens[k]), int(tokens[k]), self.beta)
            for draw in range(self.draws):
                ratio = model.normalisers(model.scores(rng)) / np.exp(self.beta**2 / 2) - 1
                deviation[k, draw] = np.sqrt(np.mean(ratio**2))
        # entries given the query are log-normal, and the query's norm moves the limit itself
        predicted = np.sqrt((np.expm1(self.beta**2) + self.beta**4 / 2) / tokens)
        return xr.Dataset(
            {
                "deviation": (("tokens", "draw"), deviation, {"long_name": "relative fluctuation of the normaliser"}),
                "predicted": ("tokens", predicted),
            },
            coords={"tokens": tokens},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The exponent, fitted, and the constant."""
        x = np.log(data.tokens.values)
        slopes = [np.polyfit(x, np.log(column), 1)[0] for column in data.deviation.values.T]
        slope, error = float(np.mean(slopes)), standard_error(slopes)
        ratio = data.deviation.isel(tokens=-1) / data.predicted.isel(tokens=-1)
        spread = standard_error(ratio)
        return [
            Claim(
                statement="exponent of the fluctuations in the number of tokens",
                place="equivalence, Lemma 4.1",
                predicted=-0.5,
                measured=slope,
                error=error,
                tolerance=4 * error + 0.02,
                reason="four standard errors of the fit over draws, and the smallest sizes",
            ),
            Claim(
                statement="fluctuations at the largest size over sqrt((theta_1 + beta^4/2)/l)",
                place="ours: second moment of the normaliser with d = l",
                predicted=1.0,
                measured=float(ratio.mean()),
                error=spread,
                tolerance=4 * spread + 0.02,
                reason="four standard errors, and corrections of order 1/l",
            ),
        ]
