"""Tokens that are not orthonormal: *equivalence* leaves them open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.comparison import compare, separation
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.laws import AttentionLaw, FiniteHeadLaw
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, Rival, average
from bulkedge.studies.equivalence.setting import UNKNOWN, large_entries, shares


@dataclass(frozen=True)
class Inputs(Study):
    """Gaussian tokens of unit norm, not orthonormal: the bulk follows the law that knows their covariance.

    There are fewer or more dimensions of the model than tokens, so that the Gram matrix is more or less far from the
    identity: queries and keys are stretched, and the directions of the head have couplings that differ.
    """

    tokens: int = parameter(Integers(100, 5000), "tokens", 300, ours=1000)
    head_dim: int = parameter(Integers(32, 5000), "head dimension", 150, ours=500)
    ratios: tuple[float, ...] = parameter(
        Each(Interval(0.2, 10)), "dimensions of the model over tokens", (0.5, 1.0, 2.0), ours=(0.5, 1.0, 2.0)
    )
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.05, 1.5)), "values of beta", (0.25, 0.5, 0.75), ours=(0.25, 0.5, 1.0)
    )
    draws: int = parameter(Integers(2, 100), "draws for each ratio and beta", 8, ours=8)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw heads for the tokens of each ratio."""
        parts = []
        for ratio in track(self.ratios, "ratios"):
            inputs = rng.standard_normal((self.tokens, round(ratio * self.tokens)))
            inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
            cells = [self._cell(inputs, beta, rng) for beta in self.betas]
            parts.append(xr.concat(cells, dim=xr.Variable("beta", list(self.betas))))
        return xr.concat(parts, dim=xr.Variable("ratio", list(self.ratios)))

    def _cell(self, inputs: Real, beta: float, rng: np.random.Generator) -> xr.Dataset:
        model = SoftmaxAttention(self.tokens, self.head_dim, beta, inputs=inputs)
        law, rival = model.law(), FiniteHeadLaw(beta, self.head_dim, self.tokens)
        found = [model.spectrum(rng) for _ in range(self.draws)]
        rest = shares(found, law, rival)
        # stretched queries and keys have lengths that vary 1 + head_dim/width times as much as the law has it
        lengths = separation(rival, AttentionLaw(beta, self.head_dim / self.tokens)) * self.head_dim / inputs.shape[1]
        moved = (UNKNOWN + large_entries(beta, self.tokens)) / self.tokens + lengths
        return xr.Dataset(
            {
                "with_gram": ("draw", [compare(each, law).ks for each in found]),
                "without": ("draw", [compare(each, rival).ks for each in found]),
                "share": ("draw", rest.draws),
                "allowed": ((), moved * rest.response),
            }
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """How much of the law for orthonormal tokens is in the distribution functions."""
        return [
            Claim(
                statement=f"share of the law of orthonormal tokens, dimensions / tokens = {ratio:g}",
                place="equivalence: Open question 2",
                measured=average(data.share.sel(ratio=ratio)),
                predicted=0.0,
                rival=Rival("the finite-head law of orthonormal tokens", 1.0),
                finite_size=float(data.allowed.sel(ratio=ratio).mean()),
                reason="rank of what the law leaves out, over l: the zero of the constant vector, the term of norms "
                "of keys, and entries whose square exceeds the variance of a row; and lengths of queries and keys, "
                "which vary by head_dim/width more than the law knows",
            )
            for ratio in self.ratios
        ]
