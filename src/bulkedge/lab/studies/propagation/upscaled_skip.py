"""Training beside a skip connection with values of variance one and 1/d (Figure 8(b))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import Claim, Claims, Relation, Study, sign
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.domains import Each, Integers, parameter

ATTENTIONS = ("markov", "key-query")
SKIPS = ("fair", "upscaled")
PLACE, AGAINST = "propagation: Figure 8(b)", "propagation: not Figure 8(b)"


@dataclass(frozen=True)
class PropagationUpscaledSkip(Study):
    """Networks with a skip connection learn the Heaviside function, with values of variance one and of variance 1/d.

    With variance 1/d attention is of order ``1/sqrt(d)`` beside the skip connection, which the paper calls upscaled.
    One layer then learns more slowly, as the paper says, if only by a few percent, and so do three Markov layers
    without the gap, from about 24 tokens on. Three layers with the gap, or of key-query attention, are the other way
    round, against the paper: values of variance one let the signal grow with every layer. Curves are those of the
    learning rate with the least loss in the end. The sizes are ours: the text leaves them out.
    """

    requires = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    depths: tuple[int, ...] = parameter(Each(Integers(1, 16)), "layers", (1, 3), ours=(1, 3))
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 50, ours=50)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 36, ours=36)
    small = {"tokens": 12, "steps": 40, "repeats": 12}
    caption = """Training loss with a skip connection at the best learning rate, for values of variance
    one and of variance 1/d. Compare the two colours at three layers, where large values cost most."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train both scales of the values, from the same draws."""
        axes: dict[str, Any] = {"depth": self.depths, "attention": ATTENTIONS, "skip": SKIPS}
        return setting.train_all(self, axes, self._network, rng, same=True)

    def _network(self, depth: int, attention: str, skip: str) -> setting.Architecture:
        return setting.Architecture(attention, "skip", depth, 1.0 if skip == "fair" else self.tokens**-0.5)

    def statements(self, data: xr.Dataset) -> Claims:
        """One layer, as the paper has it, and more of them, where the scale of the values does something else."""
        last: xr.DataArray = np.log(setting.best(data).isel(step=-1))  # type: ignore[assignment]  # xarray keeps its type
        loss = last.sel(skip="upscaled") - last.sel(skip="fair")
        one, more = (loss.sel(depth=depth) for depth in (self.depths[0], self.depths[-1]))
        for attention in ATTENTIONS:
            yield self._claim(one.sel(attention=[attention]), PLACE, ">=")
        if len(self.depths) == 1:
            return
        yield self._claim(more.sel(attention=["markov"], gap=["removed"]), PLACE, ">=")
        yield self._claim(more.sel(attention=["markov"], gap=["kept"]), AGAINST, "<=")
        yield self._claim(more.sel(attention=["key-query"]), AGAINST, "<=")

    def _claim(self, loss: xr.DataArray, place: str, relation: Relation) -> Claim:
        """The mean over gaps of each draw, since they share inputs and weights."""
        gaps = " and ".join(loss.gap.values.tolist())
        where = f"{loss.attention.item()} attention, gap {gaps}, depth {int(loss.depth)}"
        text = f"{where}: log of the loss after {self.steps} steps, upscaled skip over fair one"
        rival = "the scale of the values makes no difference"
        return sign(text, place, loss.mean(("attention", "gap")), rival, relation)

    def figure(self, data: xr.Dataset) -> Figure:
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
