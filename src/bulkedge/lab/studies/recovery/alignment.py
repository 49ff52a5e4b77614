"""Figure 4: alignment over signal strength, for three poolings and two correlation models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.pooled import PooledSequences, Table
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset
from bulkedge.plots.style import line, panels, shared_legend
from bulkedge.support.domains import Integers, parameter

CLEAR, LEAST = 1.5, 0.6
"""Signals from so many thresholds on, and no weaker than that, are clear: only order 1/d is left at finite size."""
PANELS = {"prefix": "Figure 4(a)", "spiked": "Figure 4(b)"}
GAINS = {"prefix": (("optimal", "causal"), ("causal", "mean")), "spiked": (("optimal", "causal"), ("optimal", "mean"))}
"""Which weights are said to beat which, in each correlation model."""


@dataclass(frozen=True)
class RecoveryAlignment(Study):
    """Squared overlap of the top eigenvector with the signal: optimal weights find it first, wherever the signal is."""

    dim: int = parameter(Integers(40, 5000), "dimension of the embeddings; half of it is drawn too", 120, ours=600)
    vocab: int = parameter(Integers(40, 100_000), "rows of the table, even", 240, ours=1200)
    samples: int = parameter(Integers(40, 100_000), "sequences", 360, ours=1800)
    signals: int = parameter(Integers(4, 100), "signal strengths", 8, ours=15)
    table: Table = parameter(*setting.TABLE_MEANS, "finite", ours="finite")
    draws: int = parameter(*setting.DRAWS, 120, ours=20)
    small = {"dim": 60, "vocab": 120, "samples": 180, "signals": 5, "draws": 24}
    caption = """Squared overlap of the top eigenvector with the signal over its strength, for three
    poolings and two correlation models. Points should follow the solid line of their colour and not the dotted one,
    and optimal weights should leave zero first."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Simulate each model with each weighting."""
        signal, fine = np.linspace(0.2, 3.0, self.signals), np.linspace(0.02, 3.0, 200)
        parts = [self._measure(name, matrix, signal, rng) for name, matrix in setting.correlations().items()]
        data = xr.concat(parts, dim=xr.Variable("model", list(setting.correlations())))
        theories = {"": self.table, "rival_": setting.other(self.table)[0]}
        for prefix, table in theories.items():
            for name, at, dim in (("predicted", signal, "signal"), ("curve", fine, "fine_signal")):
                data[prefix + name] = (("model", "weighting", dim), self._curves(data.snr, at, table))
        return data.assign_coords(weighting=list(setting.WEIGHTINGS), signal=signal, fine_signal=fine)

    def _measure(self, name: str, matrix: Real, signal: Real, rng: np.random.Generator) -> xr.Dataset:
        """All weightings pool the same sequences, so that their differences scatter less than they do."""
        weights = [setting.weights_of(each, matrix) for each in setting.WEIGHTINGS]
        models = [
            PooledSequences(self.dim, self.vocab, self.samples, 1.0, each, matrix, self.table) for each in weights
        ]
        sizes = setting.with_halves(replace(models[0], signal=strength) for strength in signal)
        found = setting.draw_pairs(
            lambda model, rng: setting.leading_each(model, weights, rng)[1], sizes, self.draws, rng, name
        )
        dims = "signal", "draw", "weighting"
        return dataset(
            measured=(dims, found.plain, "squared overlap with the signal"),
            limit=(dims, found.limit, "the same without its term of order 1/d"),
            threshold=("weighting", [each.threshold().sample for each in models]),
            snr=("weighting", [each.alpha / each.kappa for each in models]),
        )

    def _curves(self, snr: xr.DataArray, signal: Real, table: Table) -> Real:
        predictions = setting.Predictions(snr.values[..., None], self.dim / self.samples, table)
        return predictions.alignment(signal, np.array(self.dim / self.vocab))

    def statements(self, data: xr.Dataset) -> Claims:
        """Alignment well above the thresholds, and the order of the weightings."""
        for name in data.model.values.tolist():
            for weighting in setting.WEIGHTINGS:
                one = data.sel(model=name, weighting=weighting)
                clear = one.sel(signal=one.signal > max(CLEAR * float(one.threshold), LEAST))
                if clear.sizes["signal"]:
                    text = f"{name}, {weighting} weights: mean alignment beyond {CLEAR} thresholds"
                    place = f"recovery: Theorem 4, Equation 8, {PANELS[name]}"
                    rival = setting.other(self.table)[1], clear.rival_predicted
                    yield Claim(text, place, clear.limit, clear.predicted, rival)
            yield from self._order(data.sel(model=name), name)

    def _order(self, data: xr.Dataset, name: str) -> Claims:
        """What better weights gain in alignment, where both are clear of their thresholds."""
        for better, worse in GAINS[name]:
            least = max(CLEAR * float(data.threshold.sel(weighting=[better, worse]).max()), LEAST)
            clear = data.sel(signal=slice(least, 2 * least))
            if not clear.sizes["signal"]:
                continue
            gain, predicted = (
                clear[each].sel(weighting=better) - clear[each].sel(weighting=worse) for each in ("limit", "predicted")
            )
            text = f"{name}: alignment of {better} weights minus that of {worse} weights"
            yield Claim(text, f"recovery: Theorem 5, {PANELS[name]}", gain, predicted, ("no gain", 0.0))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, data.sizes["model"], height=2.5)
        rival = "exact class means" if self.table == "finite" else "noisy class means"
        for axes, name in zip(grid[0], data.model.values.tolist(), strict=True):
            for weighting, (colour, symbol) in setting.LOOK.items():
                one = data.sel(model=name, weighting=weighting)
                line(axes, one.fine_signal, one.curve, label=f"{weighting}, theory", color=colour)
                look: Any = {"label": f"{weighting}, {rival}", "color": colour, "ls": ":", "lw": 0.9}
                line(axes, one.fine_signal, one.rival_curve, **look)
                setting.over_signal(axes, one, "measured", colour, weighting, fmt=symbol)
            axes.set(xlabel=setting.SIGNAL, title=f"{name} correlation", ylim=(-0.03, 1.03))
        grid[0, 0].set_ylabel("squared overlap")
        shared_legend(figure, [grid[0, 0]], 3)
        setting.caption(figure, self, "dim", "vocab", "samples", "draws")
        return figure
