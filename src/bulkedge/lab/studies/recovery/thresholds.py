"""Figure 5: critical signal over the length of the prefix, and what is kept of the signal over that of the sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bulkedge.ensembles.correlations import draw_signs, prefix_correlation
from bulkedge.ensembles.pooled import TABLE, PooledSequences, critical_strength
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival, average, share
from bulkedge.lab.studies.recovery import setting
from bulkedge.plots.style import line, marks, panels
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

STRENGTHS = (1.5, 2.0)
"""Signals at which the outlier is measured, in thresholds of mean weights."""


@dataclass(frozen=True)
class RecoveryThresholds(Study):
    """Causal weights need less signal than the mean while the prefix is short, and keep their lead as sequences grow.

    Left: the signal at which the sample's outlier leaves the bulk, over the length of the prefix: as predicted, and
    from simulated outliers at one and a half and two thresholds, which tell the strength of the spike for a unit of
    signal. Right: alpha/kappa over the length of the sequence, of drawn signs.
    """

    length: int = parameter(Integers(3, 200), "positions of the left panel", 20, ours=20)
    prefixes: tuple[int, ...] = parameter(
        Each(Integers(2, 200)), "prefixes that are simulated", (2, 4, 6, 12, 20), ours=(2, 4, 6, 8, 12, 16, 20)
    )
    dim: int = parameter(Integers(40, 5000), "dimension of the embeddings; half of it is drawn too", 120, ours=400)
    correlation: float = parameter(Interval(0.01, 1), "correlation within the prefix", 0.6, ours=0.6)
    vocab_ratio: float = parameter(Interval(0.01, 10), "dimension over vocabulary", 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3, ours=1 / 3)
    draws: int = parameter(Integers(4, 1000), "draws of each", 30, ours=60)
    longest: int = parameter(Integers(32, 500), "longest sequence of the right panel", 160, ours=320)
    sequences: int = parameter(Integers(100, 10**7), "drawn sequences of signs, in ten batches", 60_000, ours=10**6)
    small: ClassVar = {"dim": 60, "prefixes": (4, 20), "sequences": 10_000}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both panels."""
        data = xr.merge([self._left(rng), self._right(rng)]).assign_coords(weighting=list(setting.WEIGHTINGS))
        found = np.array(
            [[self.critical(data, each, name)[:2] for name in setting.WEIGHTINGS] for each in self.prefixes]
        )
        dims = "simulated", "weighting"
        return data.assign(critical=(dims, found[..., 0]), critical_error=(dims, found[..., 1]))

    # -- the critical signal -------------------------------------------------------------------------------------------

    def _left(self, rng: np.random.Generator) -> xr.Dataset:
        prefix = np.arange(1, self.length + 1)
        kept = np.array([self._kept(self.length, each) for each in prefix.tolist()])
        critical = [
            setting.Predictions(kept, self.sample_ratio, table).threshold(np.array(self.vocab_ratio))
            for table in TABLE.options
        ]
        found = [self._strengths(each, rng) for each in track(self.prefixes, "prefixes")]
        return xr.Dataset(
            {
                "threshold": (("table", "prefix", "weighting"), np.array(critical), {"long_name": "critical signal"}),
                "strength": (
                    ("simulated", "draw", "weighting"),
                    np.array(found),
                    {"long_name": "omega over signal**2"},
                ),
            },
            coords={"table": list(TABLE.options), "prefix": prefix, "simulated": list(self.prefixes)},
        )

    def _strengths(self, prefix: int, rng: np.random.Generator) -> Real:
        """Strength of the spike over squared signal, from where the outliers are; an array of draws x weightings."""
        matrix = prefix_correlation(self.length, prefix, self.correlation)
        weights = [setting.weights_of(each, matrix) for each in setting.WEIGHTINGS]
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        unit = PooledSequences(*sizes, 1.0, weights[0], matrix, "additive").threshold().sample
        models = [PooledSequences(*sizes, each * unit, weights[0], matrix, "additive") for each in STRENGTHS]
        pairs = [(each, setting.halved(each)) for each in models]
        found = setting.measured(
            lambda model, rng: setting.leading_each(model, weights, rng)[0], pairs, self.draws, rng, "signals"
        )
        ratios = found.limit / np.sum(np.square(weights), axis=1)
        mean = ratios.mean(axis=1, keepdims=True)
        # the strength at the mean outlier, and each draw's deviation through the derivative there: no bias of curvature
        step = 1e-4 * mean
        slope = (self._strength_at(mean + step) - self._strength_at(mean - step)) / (2 * step)
        omega = self._strength_at(mean) + slope * (ratios - mean)
        signals = np.array([each.signal for each in models])[:, None, None]
        return np.asarray((omega / signals**2).mean(axis=0))

    def _strength_at(self, outlier: Real) -> Real:
        """``omega`` of an outlier over kappa: the largest root of ``(1 + x)(x + delta)(x + gamma) = outlier x**2``."""
        delta, gamma = self.vocab_ratio, self.sample_ratio
        rest = (delta + gamma + delta * gamma, delta * gamma)
        roots = [np.roots([1, 1 + delta + gamma - each, *rest]).real.max() for each in np.ravel(outlier).tolist()]
        return np.reshape(roots, np.shape(outlier)) + delta

    def _kept(self, length: int, prefix: int) -> Real:
        """Alpha over kappa for each weighting."""
        matrix = prefix_correlation(length, prefix, self.correlation)
        weights = [setting.weights_of(each, matrix) for each in setting.WEIGHTINGS]
        return np.array([w @ matrix @ w / (w @ w) for w in weights])

    def critical(self, data: xr.Dataset, prefix: int, weighting: str) -> Estimate:
        """The critical signal from simulated outliers."""
        threshold = float(critical_strength(self.vocab_ratio, self.sample_ratio))
        draws = data.strength.sel(simulated=prefix, weighting=weighting)
        return Estimate.jackknife(lambda values: float(np.sqrt(threshold / np.mean(values))), draws.values)

    # -- what is kept --------------------------------------------------------------------------------------------------

    def _right(self, rng: np.random.Generator) -> xr.Dataset:
        lengths = np.unique(np.geomspace(setting.LONG_PREFIX, self.longest, 9).round().astype(int))
        drawn = np.array([self._drawn(each, rng) for each in track(lengths.tolist(), "lengths")])
        snr = np.array([self._kept(each, setting.LONG_PREFIX) for each in lengths.tolist()])
        return xr.Dataset(
            {
                "snr": (("length", "weighting"), snr, {"long_name": "alpha/kappa"}),
                "drawn": (("length", "batch", "weighting"), drawn, {"long_name": "alpha/kappa of drawn signs"}),
                "noise": (("length", "weighting"), [self._noise(each) for each in lengths.tolist()]),
            },
            coords={"length": lengths},
        )

    def _noise(self, length: int) -> Real:
        matrix = prefix_correlation(length, setting.LONG_PREFIX, self.correlation)
        return np.array([np.sum(setting.weights_of(each, matrix) ** 2) for each in setting.WEIGHTINGS])

    def _drawn(self, length: int, rng: np.random.Generator) -> Real:
        """Means of ``(w.xi)**2/kappa`` over drawn signs, of batches x weightings."""
        matrix = prefix_correlation(length, setting.LONG_PREFIX, self.correlation)
        weights = np.array([setting.weights_of(each, matrix) for each in setting.WEIGHTINGS])
        batches = []
        for _ in range(10):
            signs = draw_signs(matrix, self.sequences // 10, rng)
            batches.append(np.mean((signs @ weights.T) ** 2, axis=0) / np.sum(weights**2, axis=1))
        return np.array(batches)

    # -- claims --------------------------------------------------------------------------------------------------------

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Critical signals and their order, what is kept, and how the lead of causal weights grows."""
        return [*self._critical(data), *self._lead(data), *self._numbers(data), self._logarithm(data)]

    def _critical(self, data: xr.Dataset) -> list[Claim]:
        claims, names = [], {"mean": "causal", "causal": "mean", "optimal": "causal"}
        theory = data.threshold.sel(table="additive", prefix=list(self.prefixes))
        for weighting, rival in names.items():
            claims.append(
                Claim(
                    statement=f"{weighting} weights: mean critical signal over the prefixes, from simulated outliers",
                    place="recovery: Figure 5(a), Section 3.5",
                    measured=Estimate.mean(self.critical(data, each, weighting) for each in self.prefixes),
                    predicted=float(theory.sel(weighting=weighting).mean()),
                    rival=Rival(f"that of {rival} weights", float(theory.sel(weighting=rival).mean())),
                )
            )
        return claims

    def _gain(self, data: xr.Dataset, prefix: int) -> tuple[Estimate, float]:
        """Squared critical signal of mean over causal weights: from draws, and from alpha/kappa."""
        draws = data.strength.sel(simulated=prefix, weighting=["mean", "causal"]).transpose("draw", "weighting")
        found = Estimate.jackknife(lambda values: float(np.divide(*np.mean(values, axis=0)[::-1])), draws.values)
        mean, causal, _ = self._kept(self.length, prefix)
        return found, float(causal / mean)

    def _lead(self, data: xr.Dataset) -> list[Claim]:
        short = [each for each in self.prefixes if 2 < each <= max(self.length // 2, 3)]
        gains, last = [self._gain(data, each) for each in short], self._gain(data, max(self.prefixes))
        found = Estimate.mean(each for each, _ in gains)
        predicted = float(np.mean([each for _, each in gains]))
        text = "squared critical signal of mean over causal weights"
        return [
            Claim(
                statement=f"{text}: prefixes {', '.join(map(str, short))} of {self.length}",
                place="recovery: Figure 5(a)",
                measured=found,
                predicted=predicted,
                rival=Rival("no gain", 1.0),
            ),
            Claim(
                statement=f"{text}: its fall from these to a prefix of {max(self.prefixes)}",
                place="recovery: Figure 5(a)",
                measured=setting.less(found, last[0]),
                predicted=predicted - last[1],
                rival=Rival("a constant gain", 0.0),
            ),
        ]

    def _numbers(self, data: xr.Dataset) -> list[Claim]:
        longest, short = data.isel(length=-1), data.sel(length=2 * setting.LONG_PREFIX, method="nearest")
        causal, best = data.drawn.sel(weighting="causal"), data.snr.sel(weighting="optimal")
        return [
            Claim(
                statement="share of mean weights' alpha/kappa in that of causal weights, over the length",
                place="recovery: Figure 5(b), Equation 43",
                measured=share(causal.T, data.snr.sel(weighting="causal"), data.snr.sel(weighting="mean")),
                predicted=0.0,
                rival=Rival("no gain over mean weights", 1.0),
            ),
            Claim(
                statement=f"mean weights: alpha/kappa at {self.longest} positions",
                place="recovery: Figure 5(b), Equation 4",
                measured=average(longest.drawn.sel(weighting="mean").rename(batch="draw")),
                predicted=float(longest.snr.sel(weighting="mean")),
                rival=Rival(f"as at {int(short.length)} positions", float(short.snr.sel(weighting="mean"))),
            ),
            Claim(
                statement="optimal weights: mean alpha/kappa over the length, the largest eigenvalue of R",
                place="recovery: Theorem 5",
                measured=average(data.drawn.sel(weighting="optimal").rename(batch="draw")),
                predicted=1 + self.correlation * (setting.LONG_PREFIX - 1),
                rival=Rival("that of causal weights", float(data.snr.sel(weighting="causal").mean())),
            ),
            Claim(
                statement=f"optimal weights: alpha/kappa at {self.longest} positions, less that of causal weights",
                place="recovery: Theorem 5, Figure 5(b)",
                measured=Estimate.of(longest.drawn.sel(weighting="optimal") - longest.drawn.sel(weighting="causal")),
                predicted=float(best[-1] - longest.snr.sel(weighting="causal")),
                rival=Rival("causal weights are optimal", 0.0),
            ),
        ]

    def _logarithm(self, data: xr.Dataset) -> Claim:
        """How the amplitude that causal weights keep of the prefix, over that of the mean, grows with log L."""
        chosen = data.sel(length=slice(2 * setting.LONG_PREFIX, None), weighting=["mean", "causal"])
        logs, noise = np.log(chosen.length.values), chosen.noise.values

        def slope(kept: Real) -> float:
            excess = (kept - 1) * noise  # alpha - kappa, for each length and weighting
            return float(np.polyfit(logs, np.sqrt(excess[:, 1] / excess[:, 0]), 1)[0])

        batches = chosen.drawn.transpose("batch", "length", "weighting").values
        return Claim(
            statement="slope of the gain of causal weights in amplitude of the signal over the logarithm of the length",
            place="recovery: Proposition 2, Figure 5(b)",
            measured=Estimate.jackknife(lambda values: slope(np.mean(values, axis=0)), batches),
            predicted=slope(chosen.snr.values),
            rival=Rival("a constant gain", 0.0),
        )

    def figure(self, data: xr.Dataset) -> Figure:
        """Critical signal over prefix on the left, alpha/kappa over length on the right."""
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        for weighting, (colour, symbol) in setting.LOOK.items():
            one = data.sel(weighting=weighting)
            line(left, one.prefix, one.threshold.sel(table="additive"), label="", color=colour)
            line(left, one.prefix, one.threshold.sel(table="finite"), label="", color=colour, ls=":", lw=1)
            marks(left, one.simulated, one.critical, one.critical_error, label="", color=colour, fmt=symbol)
            line(right, one.length, one.snr, label="", color=colour)
            spread = one.drawn.std("batch", ddof=1) / np.sqrt(one.sizes["batch"])
            marks(
                right,
                one.length,
                one.drawn.mean("batch"),
                spread,
                label=f"{weighting} weights",
                color=colour,
                fmt=symbol,
            )
        left.set(xlabel="length of the prefix", ylabel="critical " + setting.SIGNAL)
        left.set_ylim(-0.03, 1.1 * float(data.threshold.max()))
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="length of the sequence", ylabel=r"$\alpha/\kappa$", xscale="log")
        ticks = data.length.values[::2]
        right.set_xticks(ticks, [str(each) for each in ticks.tolist()])
        right.set_xticks([], minor=True)
        kinds = [
            Line2D([], [], color="0.3", label="exact class means"),
            Line2D([], [], color="0.3", ls=":", label="finite table"),
        ]
        handles, labels = right.get_legend_handles_labels()
        named = [*handles, *kinds]
        figure.legend(named, [*labels, *(str(each.get_label()) for each in kinds)], loc="outside lower center", ncols=5)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "correlation", "length", "draws")
        return figure
