"""Training of attention-only networks with and without the gap (Figure 6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Relation, Rival
from bulkedge.lab.studies.propagation import setting
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.domains import parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread

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

    The paper calls its examples inconclusive. Here one key-query layer gains from the removal if it is normalised, and
    loses if it is not; two layers of Markov attention gain in every architecture (ours). Curves are those of the
    learning rate with the least loss in the end. The sizes are ours: the text leaves them out.
    """

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 60, ours=60)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1, 0.3), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 14, ours=24)
    small: ClassVar = {"tokens": 12, "steps": 40, "repeats": 8, "rates": (0.03, 0.1)}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train every architecture."""
        inputs = setting.isometric(self.repeats, self.samples, self.tokens, rng)
        kinds = list(ATTENTIONS.values())
        losses = np.empty((len(kinds), len(PARTS), len(setting.GAPS), len(self.rates), self.repeats, self.steps + 1))
        with one_thread(self.requires):
            for a, p in track(list(product(range(len(kinds)), range(len(PARTS)))), "architectures"):
                attention, depth = kinds[a]
                network = setting.Architecture(attention, PARTS[p], depth)
                losses[a, p] = setting.trained(inputs, network, self.rates, self.steps, rng)
        return xr.Dataset(
            {"loss": (("attention", "parts", "gap", "rate", "draw", "step"), losses), **setting.levels(inputs)},
            coords={
                "attention": list(ATTENTIONS),
                "parts": list(PARTS),
                "gap": list(setting.GAPS),
                "rate": list(self.rates),
                "step": np.arange(self.steps + 1),
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """What removing the gap does to one layer and to two."""
        last: xr.DataArray = np.log(setting.best(data).isel(step=-1))  # type: ignore[assignment]  # xarray keeps its type
        place = "propagation: Figure 6"
        gain = last.sel(gap="removed") - last.sel(gap="kept")
        return [
            self._claim(gain.sel(attention="key-query", parts=["LN"]), place, "<="),
            self._claim(gain.sel(attention="key-query", parts=["plain", "skip"]), place, ">="),
            self._claim(gain.sel(attention="Markov", parts=["skip + LN"]), place, "<="),
            *(self._claim(gain.sel(attention="Markov twice", parts=[parts]), "ours", "<=") for parts in PARTS),
        ]

    def _claim(self, gain: xr.DataArray, place: str, relation: Relation) -> Claim:
        """The mean over architectures of each draw, since they share their inputs."""
        name = f"{gain.attention.item()}, {' and '.join(gain.parts.values.tolist())}"
        return Claim(
            statement=f"{name}: log of the loss after {self.steps} steps, without the gap over with it",
            place=place,
            measured=Estimate.of(gain.mean("parts")),
            predicted=0.0,
            rival=Rival("the gap makes no difference", 0.0),
            relation=relation,
        )

    def figure(self, data: xr.Dataset) -> Figure:
        """Loss over steps at the best learning rate: a row for each attention, a column for each architecture."""
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
