"""*propagation*, Proposition 7: the spectrum of the kernel of gap-free attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.comparison import compare
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.progress import track
from bulkedge.propagation.isometry import tradeoff
from bulkedge.spectra import Spectrum
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim
from bulkedge.studies.propagation.setting import Places, gap_free_claims, gap_free_stack

BINS = 40
PLACES = Places(
    "propagation, Proposition 7, equation 12", "propagation, Proposition 7, equation 13", "propagation, Theorem 7"
)


@dataclass(frozen=True)
class Kernel(Study):
    """Eigenvalues of ``X_l X_l'`` without the gap: a free product, with variance ``l (1 + T/d)`` at mean one.

    Values have the variance ``gamma/sigma_A**2`` that keeps the mean at one, whatever the depth.
    """

    tokens: int = parameter(Integers(20, 2000), "number of tokens T", 120, paper=500)
    ratios: tuple[float, ...] = parameter(Each(Interval(0.1, 1)), "ratios T/d", (0.25, 0.5, 1.0))
    depth: int = parameter(Integers(1, 6), "largest number of layers", 3)
    draws: int = parameter(Integers(4, 1000), "draws of each", 10, paper=20)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every layer of every draw, for every ratio."""
        parts = [self._measure(ratio, rng) for ratio in track(list(self.ratios), "ratios")]
        return xr.concat(parts, dim=xr.Variable("ratio", list(self.ratios)))

    def _measure(self, ratio: float, rng: np.random.Generator) -> xr.Dataset:
        stack = gap_free_stack(self.depth, self.tokens, ratio)
        values = np.array([[layer.singular_values**2 for layer in stack.layers(rng)] for _ in range(self.draws)])
        laws = [stack.at_depth(depth).law() for depth in range(1, self.depth + 1)]
        share = np.linspace(0, 1, BINS + 1) ** 2
        edges = np.array([law.edge * share for law in laws])
        found = np.array(
            [np.histogram(values[:, k], bins)[0] / values[:, k].size / np.diff(bins) for k, bins in enumerate(edges)]
        )
        x = np.array([law.edge * np.linspace(0.003, 1, 300) ** 2 for law in laws])
        distances = [
            [compare(Spectrum.of(draw[k], "eigenvalues"), law).ks for draw in values] for k, law in enumerate(laws)
        ]
        return xr.Dataset(
            {
                "mean": (("layer", "draw"), values.mean(axis=2).T, {"long_name": "mean eigenvalue"}),
                "second": (("layer", "draw"), np.mean(values**2, axis=2).T, {"long_name": "second moment"}),
                "top": (("layer", "draw"), values.max(axis=2).T, {"long_name": "largest eigenvalue"}),
                "distance": (("layer", "draw"), distances, {"long_name": "Kolmogorov distance to the law"}),
                "simulation": (("layer", "bin"), found),
                "bin_edge": (("layer", "end"), edges),
                "x": (("layer", "point"), x),
                "theory": (("layer", "point"), np.array([law.pdf(at) for law, at in zip(laws, x, strict=True)])),
                "spread": ("layer", [tradeoff(stack.at_depth(k + 1)).spread for k in range(self.depth)]),
                "edge": ("layer", [law.edge for law in laws], {"long_name": "edge of the law"}),
            },
            coords={"layer": np.arange(1, self.depth + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Mean, variance and law, for every ratio and depth."""
        return gap_free_claims(data, self.tokens, PLACES, slack=4)
