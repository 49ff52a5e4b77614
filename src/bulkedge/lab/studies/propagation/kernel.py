"""*propagation*, Proposition 7: the spectrum of the kernel of gap-free attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.inference.comparison import compare, separation
from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import Claims, Real, Study, track
from bulkedge.laws import ProductLaw
from bulkedge.plots.style import panels
from bulkedge.propagation.moments import tradeoff
from bulkedge.spectra import Spectrum
from bulkedge.support.domains import Each, Integers, Interval, parameter

PLACES = setting.Places(
    "propagation: Proposition 7", "propagation: Proposition 7, Theorem 7", "propagation: Proposition 7, Theorem 7"
)
RIVALS = setting.Rivals("classically independent factors", "the formula for T <= d", "values alone")


@dataclass(frozen=True)
class PropagationKernel(Study):
    """Eigenvalues of ``X_l X_l'`` without the gap: a free product, with variance ``l (1 + T/d)`` at mean one.

    With more tokens than dimensions there is an atom at zero, and one factor of ratio one becomes one of ratio T/d.
    Values have the variance ``gamma/sigma_A**2`` that keeps squared norms, whatever the depth.
    """

    tokens: int = parameter(Integers(20, 2000), "number of tokens T", 200, ours=400)
    ratios: tuple[float, ...] = parameter(
        Each(Interval(0.1, 10)), "ratios T/d", (0.25, 0.5, 1.0, 2.0), ours=(0.25, 0.5, 1.0, 2.0)
    )
    depth: int = parameter(Integers(1, 6), "largest number of layers", 3, ours=3)
    draws: int = parameter(Integers(4, 1000), "draws of each", 64, ours=64)
    small = {"tokens": 80, "depth": 2, "draws": 12}
    caption = """Eigenvalues of the token kernel without the gap, a row for each ratio of tokens to
    dimensions and a column for each layer. The bars should follow the law; the dotted line is what values alone
    would give."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every layer of every draw, for every ratio."""
        parts = [self._measure(ratio, rng) for ratio in track(list(self.ratios), "ratios")]
        return xr.concat(parts, dim=xr.Variable("ratio", list(self.ratios)))

    def _measure(self, ratio: float, rng: np.random.Generator) -> xr.Dataset:
        stack = setting.gap_free_stack(self.depth, self.tokens, ratio)
        drawn = np.array([[layer.singular_values**2 for layer in stack.layers(rng)] for _ in range(self.draws)])
        # with more tokens than dimensions all others are zero
        values = np.concatenate([np.zeros((*drawn.shape[:2], self.tokens - drawn.shape[2])), drawn], axis=2)
        parts = [
            _layer(stack.at_depth(k + 1), values[:, k]).assign_coords(layer=k + 1)
            for k in track(range(self.depth), f"T/d = {ratio:g}")
        ]
        return xr.concat(parts, dim="layer")

    def statements(self, data: xr.Dataset) -> Claims:
        """Mean, variance and law, for every ratio and depth."""
        yield from setting.gap_free_claims(data, PLACES, RIVALS, setting.RIGID)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(data.sizes["ratio"], data.sizes["layer"], width=2.3, height=1.7)
        setting.densities(grid, data, "eigenvalue of the kernel", "values alone")
        figure.suptitle(f"kernel without the gap: T = {self.tokens}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def _layer(stack: AttentionStack, values: Real) -> xr.Dataset:
    """Moments, distances and densities of the eigenvalues (draw, rank) of a stack of this depth."""
    spread, ratio, depth = tradeoff(stack).spread, stack.ratio, stack.depth
    known = setting.expectations(stack, "kernel", spread)
    law = stack.law().scaled(known["expected_mean"] / stack.mean_eigenvalue)
    edges = law.edge * np.linspace(0, 1, 41) ** 2
    x = law.edge * np.linspace(0.003, 1, 300) ** 2
    other = depth * (1 + ratio) if ratio > 1 else 2**depth * (1 + ratio) ** depth - 1
    rival = ProductLaw((ratio,) * depth, law.mean())
    known |= {"spread": spread, "rival_spread": other, "edge": law.edge}
    known |= {"separation": separation(law, rival), "floor": setting.rigidity(stack.tokens)}
    distances = [compare(Spectrum.of(draw, "eigenvalues"), law).ks for draw in values]
    return setting.of_layer("eigenvalue", list(values), distances, (law, rival), edges, x, known)
