"""Training of one key-query layer at two scales of queries and keys, with and without the gap (Figure 8(a))."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import roots_genlaguerre

from bulkedge.heads.softmax import softmax_of_gaussians
from bulkedge.lab.studies import propagation as setting
from bulkedge.lab.studies.base import NO_NUMBER, Claim, Claims, Estimate, Study, sign
from bulkedge.plots.style import COLOURS, panels
from bulkedge.support.domains import parameter

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

    requires = ("torch",)
    tokens: int = parameter(*setting.TOKENS, 24, ours=32)
    samples: int = parameter(*setting.SAMPLES, 8, ours=12)
    steps: int = parameter(*setting.STEPS, 60, ours=80)
    rates: tuple[float, ...] = parameter(*setting.RATES, (0.03, 0.1, 0.3), ours=(0.01, 0.03, 0.1, 0.3))
    repeats: int = parameter(*setting.REPEATS, 20, ours=20)
    small = {"tokens": 16, "repeats": 12}
    caption = """Training loss of one key–query layer at its best learning rate for two scales of queries
    and keys, with and without the gap. Compare the two orange curves on the left, of Xavier's scale: without the
    gap the loss falls later."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train both scales, without and with layer normalisation."""
        found = setting.train_all(
            self, {"attention": ATTENTIONS, "parts": PARTS}, setting.Architecture, rng, same=False
        )
        power = [[_power(attention, gap, self.tokens) for gap in setting.GAPS] for attention in ATTENTIONS]
        words = {"long_name": "predicted mean square of the plain output"}
        return found.assign(power=(("attention", "gap"), power, words))

    def statements(self, data: xr.Dataset) -> Claims:
        """What the output starts with, how long the plateau lasts, and what layer normalisation makes of it."""
        begin = data.loss.isel(step=0, rate=0).sel(parts="plain", gap="removed") - data.zero
        xavier, unit = (data.power.sel(attention=each) for each in ("xavier", "key-query"))
        text = "Xavier, gap removed: mean square of the first output, nothing but a plateau to start from"
        place = "propagation: Proposition 1, Figure 8(a)"
        rival = "attention that is not uniform: scores of deviation one", unit.sel(gap="removed")
        yield Claim(text, place, begin.sel(attention="xavier"), xavier.sel(gap="removed"), rival)
        text = "scores of deviation one, gap removed: mean square of the first output"
        rival = "no gap to remove: the mean stays", unit.sel(gap="kept")
        yield Claim(text, PLACE, begin.sel(attention="key-query"), unit.sel(gap="removed"), rival)
        plain = setting.best(data).sel(parts="plain")
        height = plain - (data.zero + data.collapsed) / 2
        half = np.log(xr.apply_ufunc(_crossing, height, input_core_dims=[["step"]], vectorize=True))
        delay = half.sel(gap="removed") - half.sel(gap="kept")
        area = plain.mean("step")
        areas = np.stack([area.sel(attention=a, gap=g) for a, g in product(ATTENTIONS, setting.GAPS)], axis=1)
        text = "Xavier: log of the steps half way from no output to equal tokens, without the gap over with it"
        yield sign(text, PLACE, delay.sel(attention="xavier"), "no plateau")
        text = "the same for Xavier minus that for scores of deviation one"
        measured = delay.sel(attention="xavier") - delay.sel(attention="key-query")
        yield sign(text, PLACE, measured, "a plateau at any scale of the scores")
        yield Claim(
            "scores of deviation one, gap removed: mean loss on the way from the original (0) to Xavier"
            " without the gap (1): at most half way",
            PLACE,
            Estimate.jackknife(_share, areas),
            0.5,
            ("the same plateau", 1.0),
            relation="<=",
            one_sided=NO_NUMBER,
        )
        yield from self._ends(data)

    def _ends(self, data: xr.Dataset) -> Claims:
        last = setting.best(data).isel(step=-1).sel(parts="LN")
        for kind, name in (("xavier", "Xavier"), ("key-query", "scores of deviation one")):
            removed, kept = (last.sel(attention=kind, gap=gap) for gap in ("removed", "kept"))
            text = (
                f"{name}, layer normalisation: log of the loss after {self.steps} steps, without the gap over with it"
            )
            yield sign(text, "ours", setting.log_ratio(removed, kept), "no gain from removing the gap", "<=")

    def figure(self, data: xr.Dataset) -> Figure:
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
