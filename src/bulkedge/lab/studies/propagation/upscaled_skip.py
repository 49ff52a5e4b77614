"""Training beside a skip connection with values of variance one and 1/d (Figure 8(b))."""

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
from bulkedge.support.domains import Each, Integers, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread

ATTENTIONS = ("markov", "key-query")
SKIPS = ("fair", "upscaled")
PLACE = "propagation: Figure 8(b)"


@dataclass(frozen=True)
class PropagationUpscaledSkip(Study):
    """Networks with a skip connection learn the Heaviside function, with values of variance one and of variance 1/d.

    With variance 1/d attention is of order ``1/sqrt(d)`` beside the skip connection, which the paper calls upscaled.
    One layer then learns more slowly, as the paper says, if only by a few percent. Three layers with the gap in place,
    or with key-query attention, are the other way round (ours): values of variance one let the signal grow with every
    layer. Curves are those of the learning rate with the least loss in the end. The sizes are ours: the text leaves
    them out.
    """

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    depths: tuple[int, ...] = parameter(Each(Integers(1, 16)), "layers", (1, 3), ours=(1, 3))
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 50, ours=50)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 20, ours=24)
    small: ClassVar = {"tokens": 12, "steps": 40, "repeats": 12}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train both scales of the values, from the same draws."""
        inputs = setting.isometric(self.repeats, self.samples, self.tokens, rng)
        shape = (len(self.depths), len(ATTENTIONS))
        losses = np.empty((*shape, len(SKIPS), len(setting.GAPS), len(self.rates), self.repeats, self.steps + 1))
        with one_thread(self.requires):
            for k, a in track(list(product(*map(range, shape))), "architectures"):
                seed = int(rng.integers(2**63))
                for s, deviation in enumerate((1.0, self.tokens**-0.5)):
                    network = setting.Architecture(ATTENTIONS[a], "skip", self.depths[k], deviation)
                    same = np.random.default_rng(seed)
                    losses[k, a, s] = setting.trained(inputs, network, self.rates, self.steps, same)
        return xr.Dataset(
            {"loss": (("depth", "attention", "skip", "gap", "rate", "draw", "step"), losses), **setting.levels(inputs)},
            coords={
                "depth": list(self.depths),
                "attention": list(ATTENTIONS),
                "skip": list(SKIPS),
                "gap": list(setting.GAPS),
                "rate": list(self.rates),
                "step": np.arange(self.steps + 1),
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """One layer, as the paper has it, and more of them, where the scale of the values does something else."""
        last: xr.DataArray = np.log(setting.best(data).isel(step=-1))  # type: ignore[assignment]  # xarray keeps its type
        loss = last.sel(skip="upscaled") - last.sel(skip="fair")
        one, more = (loss.sel(depth=depth) for depth in (self.depths[0], self.depths[-1]))
        claims = [self._claim(one.sel(attention=[attention]), PLACE, ">=") for attention in ATTENTIONS]
        if len(self.depths) == 1:
            return claims
        return [
            *claims,
            self._claim(more.sel(attention=["markov"], gap=["removed"]), PLACE, ">="),
            self._claim(more.sel(attention=["markov"], gap=["kept"]), "ours", "<="),
            self._claim(more.sel(attention=["key-query"]), "ours", "<="),
        ]

    def _claim(self, loss: xr.DataArray, place: str, relation: Relation) -> Claim:
        """The mean over gaps of each draw, since they share inputs and weights."""
        gaps = " and ".join(loss.gap.values.tolist())
        return Claim(
            statement=f"{loss.attention.item()} attention, gap {gaps}, depth {int(loss.depth)}: log of the loss after"
            f" {self.steps} steps, upscaled skip over fair one",
            place=place,
            measured=Estimate.of(loss.mean(("attention", "gap"))),
            predicted=0.0,
            rival=Rival("the scale of the values makes no difference", 0.0),
            relation=relation,
        )

    def figure(self, data: xr.Dataset) -> Figure:
        """Loss over steps at the best learning rate, both scales of values: rows depths, columns attention and gap."""
        curves = setting.best(data)
        figure, grid = panels(data.sizes["depth"], data.sizes["attention"] * data.sizes["gap"], width=1.75, height=1.9)
        names = {"fair": r"values of variance 1", "upscaled": r"values of variance $1/d$: upscaled skip"}
        for row, depth in zip(grid, data.depth.values.tolist(), strict=True):
            columns = [(kind, gap) for kind in data.attention.values.tolist() for gap in data.gap.values.tolist()]
            for axes, (kind, gap) in zip(row, columns, strict=True):
                for skip, colour, look in zip(data.skip.values.tolist(), COLOURS, ("-", "--"), strict=False):
                    here = curves.sel(depth=depth, attention=kind, gap=gap, skip=skip)
                    setting.loss_curve(axes, here, names[skip], color=colour, ls=look)
                axes.set_title(f"{kind}, gap {gap}\n{depth} layer{'s' if depth > 1 else ''}")
        setting.finish_losses(figure, grid, data, self, [curves.sel(depth=depth) for depth in data.depth])
        return figure
