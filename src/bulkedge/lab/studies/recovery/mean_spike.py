"""The mean of the table is a spike of its own, and can be mistaken for the signal (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.pooled import PooledSequences
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset
from bulkedge.plots.style import COLOURS, line, panels, shared_legend
from bulkedge.support.domains import Choice, Integers, Interval, parameter

WEAK, STRONG = 0.75, 1.35
"""Signals, in units of that at which the two spikes are the same, that are clear of it."""
CENTRED = {"as drawn": False, "centred": True}


@dataclass(frozen=True)
class RecoveryMeanSpike(Study):
    """Largest eigenvalue and alignment with and without centring the table.

    Not centred, the table has a mean of squared length D/V, which every pooled row carries whole while of the signal
    only alpha is kept: until the signal is strong the top eigenvector is that mean, and tells nothing.
    """

    dim: int = parameter(Integers(50, 5000), "dimension of the embeddings; half of it is drawn too", 120, ours=400)
    vocab: int = parameter(Integers(50, 100_000), "rows of the table, even", 240, ours=800)
    samples: int = parameter(Integers(50, 100_000), "sequences", 360, ours=1200)
    weighting: str = parameter(Choice(setting.WEIGHTINGS), "pooling", "mean", ours="mean")
    strongest: float = parameter(Interval(0.5, 10), "strongest signal", 3.2, ours=3.2)
    signals: int = parameter(Integers(4, 100), "signal strengths", 9, ours=16)
    draws: int = parameter(*setting.DRAWS, 32, ours=20)
    small = {"dim": 80, "vocab": 160, "samples": 240, "signals": 6}
    caption = """Largest eigenvalue and squared overlap over the signal, with and without centring the
    table. Without centring the overlap stays low up to the dotted line, because the mean of the table is the larger
    outlier until then."""

    def model(self) -> PooledSequences:
        """The ensemble, not centred, at unit signal."""
        correlation = setting.correlations()["prefix"]
        weights = setting.weights_of(self.weighting, correlation)
        return PooledSequences(self.dim, self.vocab, self.samples, 1.0, weights, correlation, centered=False)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both tables over the signal; the signal's own spike is the same in both."""
        signal = np.linspace(self.strongest / self.signals, self.strongest, self.signals)
        raw = self.model()
        # strengths at which the lines of the figure are computed
        models, curve = (
            [replace(raw, signal=each) for each in at] for at in (signal, np.linspace(0.02, self.strongest, 120))
        )
        found = [
            setting.leading([replace(each, centered=centered) for each in models], self.draws, rng, label)
            for label, centered in CENTRED.items()
        ]
        plain, limit = (np.array(each) for each in zip(*found, strict=True))
        dims = "table", "signal", "draw"
        return dataset(
            location=(dims, plain[..., 0], "largest eigenvalue"),
            overlap=(dims, plain[..., 1], "squared overlap with the signal"),
            limit_location=(dims, limit[..., 0]),
            limit_overlap=(dims, limit[..., 1]),
            signal_spike=("signal", [each.sample_spike().location for each in models]),
            alignment=("signal", [each.alignment().total for each in models]),
            curve_location=("fine_signal", [each.sample_spike().location for each in curve]),
            curve_overlap=("fine_signal", [each.alignment().total for each in curve]),
            mean_spike=((), raw.mean_spike().location),
            crossing=((), np.sqrt(raw.vocab_ratio * (1 / raw.alpha - 1))),
            coords={"table": list(CENTRED), "signal": signal, "fine_signal": [each.signal for each in curve]},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """The spike of the mean, and that centring takes it away."""
        weak = data.sel(signal=data.signal < WEAK * data.crossing)
        strong = data.sel(signal=data.signal > STRONG * data.crossing)
        middle = data.sel(signal=(data.signal > 0.5 * data.crossing) & (data.signal < WEAK * data.crossing))
        raw, centred = "as drawn", "centred"
        text = "as drawn, weak signal: largest eigenvalue, that of the mean"
        rival = "that of the signal", weak.signal_spike
        yield Claim(text, "ours", weak.limit_location.sel(table=raw), data.mean_spike, rival)
        yield Claim(
            "as drawn, weak signal: squared overlap of the top eigenvector with the signal, at most by mixing",
            "recovery: Equation 8; ours",
            middle.overlap.sel(table=raw),
            0.0,
            ("equation 8, as if the table were centred", middle.alignment.mean()),
            finite_size=self._mixing(middle),
            reason="derived: second order perturbation: spikes mix by their overlap, of variance 1/d, over their gap",
            relation="<=",
            one_sided="the vectors mix by an amount that is known in the mean square alone",
        )
        text = "as drawn, strong signal: squared overlap"
        rival = "the mean's eigenvector, which knows nothing", 0.0
        yield Claim(text, "ours", strong.limit_overlap.sel(table=raw), strong.alignment, rival)
        text = "centred, signals at which the mean had outranked them: squared overlap"
        measured = middle.limit_overlap.sel(table=centred)
        rival = "the mean's eigenvector, which knows nothing", 0.0
        yield Claim(text, "recovery: Equation 8; ours", measured, middle.alignment, rival)

    def _mixing(self, data: xr.Dataset) -> float:
        """Mean squared mixing of two spikes of sizes a and b whose directions have an overlap of variance 1/d.

        The matrix in their plane has the off-diagonal entry ``sqrt(a b) g/sqrt(D)`` with g standard normal, so that
        the top vector turns by a squared angle of ``a b/(d (a - b)**2)``.
        """
        first, second = float(data.mean_spike), data.signal_spike
        return float(np.mean(first * second / (first - second) ** 2)) / self.dim + 1 / self.dim

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        raw = data.sel(table="as drawn")
        for table, colour, symbol in (("as drawn", COLOURS[3], "s"), ("centred", COLOURS[0], "o")):
            for axes, name in ((left, "location"), (right, "overlap")):
                setting.over_signal(axes, data.sel(table=table), name, colour, table, fmt=symbol)
        line(left, raw.fine_signal, raw.curve_location, label="signal, theory", color=COLOURS[0])
        left.axhline(float(raw.mean_spike), color=COLOURS[3], label="mean of the table, theory")
        line(right, raw.fine_signal, raw.curve_overlap, label="signal, theory", color=COLOURS[0])
        for axes in grid[0]:
            axes.axvline(
                float(data.crossing), color="black", lw=0.8, ls=":", zorder=0, label="signal outranks the mean"
            )
            axes.set_xlabel(setting.SIGNAL)
        left.set_ylabel("largest eigenvalue")
        right.set(ylabel="squared overlap", ylim=(-0.03, 1.03))
        shared_legend(figure, [left], 3)
        setting.caption(figure, self, "dim", "vocab", "samples", "weighting", "draws")
        return figure
