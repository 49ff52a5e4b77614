"""Tokens that are not orthonormal: *equivalence* leaves them open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Study, mean_marks
from bulkedge.lab.studies.claims import Claim, Rival, average
from bulkedge.lab.studies.equivalence.setting import plain_logarithms
from bulkedge.laws import FiniteHeadLaw
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.progress import track


@dataclass(frozen=True)
class EquivalenceInputs(Study):
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
    small: ClassVar = {"tokens": 200, "head_dim": 100, "ratios": (0.5,), "betas": (0.25, 0.5), "draws": 6}

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
        return xr.Dataset(
            {
                "with_gram": ("draw", [compare(each, law).ks for each in found]),
                "without": ("draw", [compare(each, rival).ks for each in found]),
            }
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Which law is nearer; how near it is, is in the figure."""
        gain = data.without - data.with_gram
        return [
            Claim(
                statement="distance to the law of orthonormal tokens less that to the law of the inputs, "
                f"dimensions / tokens = {ratio:g}",
                place="equivalence: Open question 2",
                measured=average(gain.sel(ratio=ratio)),
                predicted=0.0,
                rival=Rival("no nearer", 0.0),
                relation=">=",
            )
            for ratio in self.ratios
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """Distances over beta, a panel for each ratio."""
        figure, grid = panels(1, data.sizes["ratio"], width=2.4, height=2.6)
        everything = data[["with_gram", "without"]].to_array()
        limits = 0.7 * float(everything.min()), 1.5 * float(everything.max())
        for axes, ratio in zip(grid[0], data.ratio.values.tolist(), strict=True):
            one = data.sel(ratio=ratio)
            mean_marks(
                axes, data.beta, one.without, fmt="s-", lw=0.8, color=COLOURS[1], label="law of orthonormal tokens"
            )
            mean_marks(axes, data.beta, one.with_gram, fmt="o-", lw=0.8, label="law that knows the tokens")
            axes.set(yscale="log", ylim=limits, title=f"dimensions / tokens = {ratio:g}", xlabel="β")
            axes.set_xticks(data.beta.values)
            plain_logarithms(axes.yaxis)
        grid[0, 0].set_ylabel("Kolmogorov distance")
        figure.suptitle(f"{self.tokens} tokens, head dimension {self.head_dim}, {self.draws} draws")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return figure
