"""Training of one key-query layer at two scales of queries and keys, with and without the gap (Figure 8(a))."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import roots_genlaguerre

from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.propagation import setting
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.domains import parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track
from bulkedge.support.threads import one_thread

ATTENTIONS = ("key-query", "xavier")
PARTS = ("plain", "LN")
PLACE = "propagation: Figure 8(a)"


@dataclass(frozen=True)
class PropagationPlateau(Study):
    """One key-query layer learns the Heaviside function: with Xavier's scale, removing the gap begins with a plateau.

    Queries and keys start with entries of variance one, which gives scores of deviation one, or with Xavier's
    variance, which makes attention uniform: without its mean nothing is left of it, the output is zero, and training
    waits until queries and keys have grown. Layer normalisation (ours) brings the little that is left back to size.
    Curves are those of the learning rate with the least loss in the end. The sizes are ours: the text leaves them out.
    """

    requires: ClassVar[tuple[str, ...]] = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 60, ours=80)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1, 0.3), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 20, ours=20)
    small: ClassVar = {"tokens": 16, "repeats": 12}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train both scales, without and with layer normalisation."""
        inputs = setting.isometric(self.repeats, self.samples, self.tokens, rng)
        losses = np.empty(
            (len(ATTENTIONS), len(PARTS), len(setting.GAPS), len(self.rates), self.repeats, self.steps + 1)
        )
        with one_thread(self.requires):
            for a, p in track(list(product(range(len(ATTENTIONS)), range(len(PARTS)))), "architectures"):
                losses[a, p] = setting.trained(
                    inputs, setting.Architecture(ATTENTIONS[a], PARTS[p]), self.rates, self.steps, rng
                )
        power = [[_power(attention, gap, self.tokens) for gap in setting.GAPS] for attention in ATTENTIONS]
        return xr.Dataset(
            {
                "loss": (("attention", "parts", "gap", "rate", "draw", "step"), losses),
                "power": (("attention", "gap"), power, {"long_name": "predicted mean square of the plain output"}),
                **setting.levels(inputs),
            },
            coords={
                "attention": list(ATTENTIONS),
                "parts": list(PARTS),
                "gap": list(setting.GAPS),
                "rate": list(self.rates),
                "step": np.arange(self.steps + 1),
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """What the output starts with, how long the plateau lasts, and what layer normalisation makes of it."""
        return [*self._start(data), *self._delays(data), *self._ends(data)]

    def _start(self, data: xr.Dataset) -> list[Claim]:
        begin = data.loss.isel(step=0, rate=0).sel(parts="plain", gap="removed") - data.zero
        xavier, unit = (data.power.sel(attention=each) for each in ("xavier", "key-query"))
        return [
            Claim(
                statement="Xavier, gap removed: mean square of the first output, nothing but a plateau to start from",
                place="propagation: Proposition 1, Figure 8(a)",
                measured=Estimate.of(begin.sel(attention="xavier")),
                predicted=float(xavier.sel(gap="removed")),
                rival=Rival("attention that is not uniform: scores of deviation one", float(unit.sel(gap="removed"))),
            ),
            Claim(
                statement="scores of deviation one, gap removed: mean square of the first output",
                place=PLACE,
                measured=Estimate.of(begin.sel(attention="key-query")),
                predicted=float(unit.sel(gap="removed")),
                rival=Rival("no gap to remove: the mean stays", float(unit.sel(gap="kept"))),
            ),
        ]

    def _delays(self, data: xr.Dataset) -> list[Claim]:
        plain = setting.best(data).sel(parts="plain")
        height = plain - (data.zero + data.collapsed) / 2
        half = np.log(xr.apply_ufunc(_crossing, height, input_core_dims=[["step"]], vectorize=True))
        delay = half.sel(gap="removed") - half.sel(gap="kept")
        area = plain.mean("step")
        areas = np.stack([area.sel(attention=a, gap=g) for a, g in product(ATTENTIONS, setting.GAPS)], axis=1)
        return [
            Claim(
                statement="Xavier: log of the steps half way from no output to equal tokens, without the gap over"
                " with it",
                place=PLACE,
                measured=Estimate.of(delay.sel(attention="xavier")),
                predicted=0.0,
                rival=Rival("no plateau", 0.0),
                relation=">=",
            ),
            Claim(
                statement="the same for Xavier less that for scores of deviation one",
                place=PLACE,
                measured=Estimate.of(delay.sel(attention="xavier") - delay.sel(attention="key-query")),
                predicted=0.0,
                rival=Rival("a plateau at any scale of the scores", 0.0),
                relation=">=",
            ),
            Claim(
                statement="scores of deviation one, gap removed: mean loss on the way from the original (0) to Xavier"
                " without the gap (1): nearer to the original",
                place=PLACE,
                measured=Estimate.jackknife(_share, areas),
                predicted=0.5,
                rival=Rival("the same plateau", 1.0),
                relation="<=",
            ),
        ]

    def _ends(self, data: xr.Dataset) -> list[Claim]:
        last = setting.best(data).isel(step=-1).sel(parts="LN")
        return [
            Claim(
                statement=f"{name}, layer normalisation: log of the loss after {self.steps} steps, without the gap over"
                " with it",
                place="ours",
                measured=setting.log_ratio(
                    last.sel(attention=kind, gap="removed"), last.sel(attention=kind, gap="kept")
                ),
                predicted=0.0,
                rival=Rival("no gain from removing the gap", 0.0),
                relation="<=",
            )
            for kind, name in (("xavier", "Xavier"), ("key-query", "scores of deviation one"))
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """Loss over steps at the best learning rate, both scales of queries and keys in a panel."""
        curves = setting.best(data)
        figure, grid = panels(1, data.sizes["parts"], height=2.9)
        names = {"key-query": "scores of deviation one", "xavier": "Xavier"}
        titles = {"plain": "attention alone", "LN": "with layer normalisation (ours)"}
        for axes, parts in zip(grid[0], data.parts.values.tolist(), strict=True):
            for colour, attention in zip(COLOURS, data.attention.values.tolist(), strict=False):
                for gap, look in zip(data.gap.values.tolist(), ("--", "-"), strict=True):
                    here = curves.sel(attention=attention, parts=parts, gap=gap)
                    setting.loss_curve(axes, here, f"{names[attention]}, gap {gap}", color=colour, ls=look)
            axes.axhline(float(data.zero.mean()), color=COLOURS[2], ls="-.", lw=0.9, label="loss of an output of zero")
            axes.set_title(titles[parts])
        setting.finish_losses(figure, grid, data, self, [curves])
        return figure


def _power(attention: str, gap: str, tokens: int) -> float:
    """Expected square of an entry of the first output, ``E sum_j A_ij**2`` for values of variance one.

    Given its query, a row's scores are independent Gaussians of deviation ``s**2 |q|/sqrt(d)``, with ``|q|**2`` of a
    chi-squared distribution and ``s`` the deviation of the entries of queries and keys.
    """
    scale = 1 / tokens if attention == "xavier" else 1.0
    nodes, weights = roots_genlaguerre(12, tokens / 2 - 1)
    betas = scale * np.sqrt(2 * nodes / tokens)
    rows = [softmax_of_gaussians(float(beta), tokens).participation for beta in betas]
    return float(weights @ rows / weights.sum()) - (1 / tokens if gap == "removed" else 0.0)


def _crossing(height: Any) -> float:
    """Steps until a curve first falls below zero, between steps by interpolation; all of them if it never does."""
    below = np.flatnonzero(height < 0)
    if not len(below):
        return float(len(height) - 1)
    last = max(below[0] - 1, 0)
    return float(max(last + height[last] / max(height[last] - height[below[0]], 1e-300), 1.0))


def _share(areas: Any) -> float:
    """Where key-query attention without the gap lies between the same with it and Xavier's without it."""
    kept, removed, _, xavier = np.mean(areas, axis=0)
    return float((removed - kept) / (xavier - kept))
