"""Tokens that are not orthonormal (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.comparison import compare
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.laws import AttentionLaw
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim


@dataclass(frozen=True)
class Inputs(Study):
    """Gaussian tokens of unit norm in fewer or more dimensions than tokens: the law that knows their Gram matrix."""

    tokens: int = parameter(Integers(100, 5000), "tokens", 400, paper=2000)
    head_dim: int = parameter(Integers(32, 5000), "head dimension", 200, paper=1000)
    ratios: tuple[float, ...] = parameter(
        Each(Interval(0.2, 10)), "dimensions of the model over tokens", (0.5, 1.0, 4.0)
    )
    betas: tuple[float, ...] = parameter(Each(Interval(0.05, 1.5)), "values of beta", (0.25, 0.5, 1.0))

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """One draw for each ratio and beta."""
        shape = len(self.ratios), len(self.betas)
        with_gram, without = np.empty(shape), np.empty(shape)
        for index in track(list(np.ndindex(shape)), "cells"):
            inputs = rng.standard_normal((self.tokens, round(self.ratios[index[0]] * self.tokens)))
            inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
            model = SoftmaxAttention(self.tokens, self.head_dim, self.betas[index[1]], inputs=inputs)
            found = model.spectrum(rng)
            with_gram[index] = compare(found, model.law()).ks
            without[index] = compare(found, AttentionLaw(model.beta, self.head_dim / self.tokens)).ks
        dims = ("ratio", "beta")
        return xr.Dataset(
            {
                "with_gram": (dims, with_gram, {"long_name": "distance to the law with the Gram matrix"}),
                "without": (dims, without, {"long_name": "distance to the law of orthonormal tokens"}),
            },
            coords={"ratio": list(self.ratios), "beta": list(self.betas)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Small beta, where the noise is white."""
        weak = data.with_gram.sel(beta=slice(None, 0.5))
        return [
            Claim(
                statement="largest distance to the law with the Gram matrix, beta <= 0.5",
                place="ours; equivalence leaves inputs open",
                predicted=24 / self.tokens,
                measured=float(weak.max()),
                error=0.0,
                tolerance=0.0,
                reason="three times the 8/n of a rigid spectrum: the second degree sees the correlations, squared",
                relation="<=",
            ),
            Claim(
                statement="smallest improvement over the law of orthonormal tokens, dimensions <= tokens, beta <= 0.5",
                place="ours",
                predicted=2.0,
                measured=float(
                    (data.without / data.with_gram).sel(ratio=slice(None, 1.0), beta=slice(None, 0.5)).min()
                ),
                error=0.0,
                tolerance=0.0,
                reason="the linear degree, which the Gram matrix shapes, is nine tenths of the variance there",
                relation=">=",
            ),
        ]
