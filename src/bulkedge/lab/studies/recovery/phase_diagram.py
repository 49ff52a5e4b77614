"""Figure 2: where the signal is recovered, over its strength and the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import spiked_correlation
from bulkedge.ensembles.pooled import PooledSequences, Table, critical_strength
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset
from bulkedge.plots.style import panels
from bulkedge.support.domains import Integers, Interval, parameter

SHOWN = ("mean", "optimal")
LENGTH, SUPPORT, STRENGTH = 20, 5, 20.0
"""Positions, those of the spike, and its strength: alpha/kappa is 1.8 for mean, 4.2 for optimal weights."""
PROBES, WITHIN = ((1.4, 0.5), (2.2, 1.0), (2.6, 1.8)), (0.15, 0.3)
"""Signals and vocabulary ratios at which the map is simulated, beyond both boundaries; and ratios at which it is
between them, where mean weights reach ``BELOW`` of their critical strength."""
BELOW = 0.65


@dataclass(frozen=True)
class RecoveryPhaseDiagram(Study):
    """Alignment with the signal over signal strength and vocabulary ratio, for mean and for optimal weights.

    Signs have a spiked correlation as in the paper, on the first five of twenty positions. Dashed: where the outlier of
    the sample leaves the bulk. At the paper's size the map is the paper's own, for a table with exact class means.
    """

    resolution: int = parameter(Integers(10, 2000), "points along each axis", 200, ours=200)
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3, ours=1 / 3)
    table: Table = parameter(*setting.TABLE_MEANS, "finite", ours="finite")
    dim: int = parameter(Integers(50, 5000), "dimension of the simulations; half of it is drawn too", 120, ours=400)
    draws: int = parameter(Integers(2, 1000), "draws of each simulated point", 40, ours=40)
    small = {"resolution": 50, "dim": 80, "draws": 20}
    caption = """Squared overlap over signal and vocabulary ratio for mean and for optimal weights, with
    simulations as discs in the same colours. Discs that vanish into the map agree with theory; the dashed boundary
    moves left with optimal weights."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """The two maps with their boundaries, and simulations at a few points."""
        signal = np.linspace(0.02, 3.5, self.resolution)
        ratio = np.linspace(0.02, 2.0, self.resolution)
        correlation = spiked_correlation(LENGTH, np.arange(LENGTH) < SUPPORT, STRENGTH)
        weights = [setting.weights_of(weighting, correlation) for weighting in SHOWN]
        places = np.array([*PROBES, *(self._between(each, correlation) for each in WITHIN)])
        pairs = setting.with_halves(self._model(weights[0], correlation, *place) for place in places)
        found = setting.draw_pairs(
            lambda model, rng: setting.leading_each(model, weights, rng)[1], pairs, self.draws, rng, "points"
        )
        parts = []
        for each in weights:
            snr = float(each @ correlation @ each / (each @ each))
            own, rival = (
                setting.Predictions(snr, self.sample_ratio, table)
                for table in (self.table, setting.other(self.table)[0])
            )
            parts.append(
                dataset(
                    alignment=(("vocab_ratio", "signal"), own.alignment(signal[None], ratio[:, None])),
                    boundary=("vocab_ratio", own.threshold(ratio), "threshold of the signal"),
                    predicted=("probe", own.alignment(*places.T)),
                    rival=("probe", rival.alignment(*places.T)),
                    snr=((), snr, "alpha/kappa"),
                    coords={"signal": signal, "vocab_ratio": ratio},
                )
            )
        data = xr.concat(parts, dim=xr.Variable("weighting", list(SHOWN)))
        data["measured"] = (("probe", "draw", "weighting"), found.plain, {"long_name": "simulated alignment"})
        data["limit"] = (("probe", "draw", "weighting"), found.limit)
        return data.assign_coords(probe_signal=("probe", places[:, 0]), probe_ratio=("probe", places[:, 1]))

    def _between(self, ratio: float, correlation: Real) -> tuple[float, float]:
        """A point at which mean weights are below their boundary and optimal ones beyond theirs."""
        strength = BELOW * float(critical_strength(ratio, self.sample_ratio))
        square = strength / float(correlation.mean() * LENGTH) - (ratio if self.table == "finite" else 0.0)
        return float(np.sqrt(square)), ratio

    def _model(self, weights: Real, correlation: Real, signal: float, ratio: float) -> PooledSequences:
        vocab, samples = 2 * round(self.dim / ratio / 2), round(self.dim / self.sample_ratio)
        return PooledSequences(self.dim, vocab, samples, signal, weights, correlation, self.table)

    def statements(self, data: xr.Dataset) -> Claims:
        """The maps where they were simulated, and which recovers more."""
        for weighting in SHOWN:
            one = data.sel(weighting=weighting).isel(probe=slice(len(PROBES)))
            text = f"{weighting} weights: mean alignment at the simulated points beyond the boundary"
            rival = setting.other(self.table)[1], one.rival
            yield Claim(text, "recovery: Equation 8, Figure 2", one.limit, one.predicted, rival)
        between = data.isel(probe=slice(len(PROBES), None))
        gain, predicted = (
            between[name].sel(weighting="optimal") - between[name].sel(weighting="mean")
            for name in ("limit", "predicted")
        )
        first = (between.limit - between.measured).mean("draw")
        text = "alignment of optimal minus mean weights at points between the two boundaries"
        rival = "the same boundary for both", 0.0
        finite_size = 2 * float((first**2).sum("weighting").mean())
        reason = "shown: twice the square of the terms of order 1/d taken off: the next order near a boundary"
        yield Claim(text, "recovery: Theorem 5, Figure 2", gain, predicted.mean(), rival, finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, data.sizes["weighting"], height=2.6)
        scale = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis"}
        for axes, weighting in zip(grid[0], data.weighting.values.tolist(), strict=True):
            one = data.sel(weighting=weighting)
            image = axes.pcolormesh(
                one.signal, one.vocab_ratio, one.alignment, shading="auto", rasterized=True, **scale
            )
            # the map ends where the signals do
            boundary = one.boundary.where((one.boundary >= one.signal[0]) & (one.boundary <= one.signal[-1]))
            axes.plot(boundary, one.vocab_ratio, color="white", ls="--", lw=1.2)
            found = one.measured.mean("draw")
            axes.scatter(one.probe_signal, one.probe_ratio, c=found, s=36, edgecolors="white", linewidths=0.9, **scale)
            axes.set(xlabel=setting.SIGNAL, title=f"{weighting} weights, $\\alpha/\\kappa$ = {float(one.snr):.2f}")
            axes.set_xlim(float(one.signal[0]), float(one.signal[-1]))
        grid[0, 0].set_ylabel(r"vocabulary ratio $\delta = D/V$")
        figure.colorbar(image, ax=grid[0].tolist(), label="squared overlap", pad=0.02)
        setting.caption(figure, self, "table", "sample_ratio", "dim", "draws")
        return figure
