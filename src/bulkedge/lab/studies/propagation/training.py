"""Training of attention-only networks with and without the gap (Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import Claim, Claims, Relation, Study, sign
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.domains import parameter

ATTENTIONS = {
    "Markov": ("markov", 1),
    "identity": ("identity", 1),
    "key-query": ("key-query", 1),
    "Markov twice": ("markov", 2),
}
"""Kinds of attention with the number of layers."""
PARTS = ("plain", "LN", "skip", "skip + LN")


@dataclass(frozen=True)
class PropagationTraining(Study):
    """Attention-only networks learn the Heaviside function of orthonormal tokens: removing the gap helps some, not all.

    The paper calls its examples inconclusive. Here one key-query layer gains from the removal if it is normalised. If
    it is not, the sign of the difference changes with the number of tokens, and nothing is claimed. Two layers of
    Markov attention gain in every architecture (ours). Curves are those of the learning rate with the least loss in
    the end. The sizes are ours: the text leaves them out.
    """

    requires = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 60, ours=60)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1, 0.3), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 20, ours=24)
    small = {"tokens": 12, "steps": 40, "repeats": 8, "rates": (0.03, 0.1)}
    caption = """Training loss of attention-only networks at their best learning rate, with the gap kept
    or removed, for each attention and architecture. Compare the two colours in a panel: where their bands overlap,
    removing the gap made no difference."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train every architecture."""
        axes = {"attention": list(ATTENTIONS), "parts": PARTS}
        return setting.train_all(self, axes, self._network, rng, same=False)

    def _network(self, kind: str, parts: str) -> setting.Architecture:
        attention, depth = ATTENTIONS[kind]
        return setting.Architecture(attention, parts, depth)

    def statements(self, data: xr.Dataset) -> Claims:
        """What removing the gap does to one layer and to two."""
        last: xr.DataArray = np.log(setting.best(data).isel(step=-1))  # type: ignore[assignment]  # xarray keeps its type
        place = "propagation: Figure 6"
        gain = last.sel(gap="removed") - last.sel(gap="kept")
        yield self._claim(gain.sel(attention="key-query", parts=["LN"]), place, "<=")
        yield self._claim(gain.sel(attention="Markov", parts=["skip + LN"]), place, "<=")
        for parts in PARTS:
            yield self._claim(gain.sel(attention="Markov twice", parts=[parts]), "ours", "<=")

    def _claim(self, gain: xr.DataArray, place: str, relation: Relation) -> Claim:
        """The mean over architectures of each draw, since they share their inputs."""
        name = f"{gain.attention.item()}, {' and '.join(gain.parts.values.tolist())}"
        text = f"{name}: log of the loss after {self.steps} steps, without the gap over with it"
        return sign(text, place, gain.mean("parts"), "the gap makes no difference", relation)

    def figure(self, data: xr.Dataset) -> Figure:
        curves = setting.best(data)
        figure, grid = panels(data.sizes["attention"], data.sizes["parts"], width=1.75, height=1.5)
        for row, attention in zip(grid, data.attention.values.tolist(), strict=True):
            for axes, parts in zip(row, data.parts.values.tolist(), strict=True):
                here = curves.sel(attention=attention, parts=parts)
                for gap, colour, look in zip(data.gap.values.tolist(), COLOURS[1::-1], ("--", "-"), strict=True):
                    setting.loss_curve(axes, here.sel(gap=gap), f"gap {gap}", color=colour, ls=look)
                axes.set_title(f"{attention}, {parts}")
        setting.finish_losses(figure, grid, data, self, [curves] * len(grid))
        return figure
