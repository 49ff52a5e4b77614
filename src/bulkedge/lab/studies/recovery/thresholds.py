"""Figure 5: critical signal over the length of the prefix, and what is kept of the signal over that of the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.linalg import eigh

from bulkedge.ensembles.correlations import draw_signs, prefix_correlation
from bulkedge.ensembles.pooled import TABLE, PooledSequences, critical_strength
from bulkedge.ensembles.weights import pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, difference, follows, track
from bulkedge.plots.style import line, marks, panels, plain_ticks
from bulkedge.support.domains import Each, Integers, Interval, parameter

SIGNALS = (0.6, 0.8, 1.0, 1.2, 1.4)
"""Signals at which alignment is simulated, over the predicted threshold: the crossing may be anywhere between."""
BLOCKS = 50
"""Blocks of draws that the jackknife leaves out in turn."""


@dataclass(frozen=True)
class RecoveryThresholds(Study):
    """Causal weights need less signal than the mean while the prefix is short, and keep their lead as sequences grow.

    Left: the signal at which the sample's outlier leaves the bulk, over the length of the prefix: as predicted, and
    where the squared overlap times ``d**(1/3)`` is the same at two dimensions; below that it falls with the dimension,
    and beyond it grows. Right: alpha/kappa over the length of the sequence, of drawn signs.
    """

    length: int = parameter(Integers(3, 200), "positions of the left panel", 20, ours=20)
    prefixes: tuple[int, ...] = parameter(
        Each(Integers(2, 200)), "prefixes that are simulated", (2, 4, 6, 12, 20), ours=(2, 4, 6, 8, 12, 16, 20)
    )
    dim: int = parameter(Integers(40, 5000), "dimension of the embeddings; a quarter of it is drawn too", 120, ours=240)
    correlation: float = parameter(Interval(0.01, 1), "correlation within the prefix", 0.6, ours=0.6)
    vocab_ratio: float = parameter(Interval(0.01, 10), "dimension over vocabulary", 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3, ours=1 / 3)
    draws: int = parameter(Integers(4, 1000), "draws of each; four times as many at the quarter", 100, ours=400)
    longest: int = parameter(Integers(32, 500), "longest sequence of the right panel", 160, ours=320)
    sequences: int = parameter(Integers(100, 10**7), "drawn sequences of signs, in ten batches", 60_000, ours=10**6)
    small = {"dim": 80, "prefixes": (4, 20), "draws": 150, "sequences": 10_000}
    caption = """The critical signal over the length of the prefix (left), and the ratio of signal to
    noise over the length of the sequence (right), for three weightings. Points should follow the lines of their
    colour: causal weights need less signal than the mean while the prefix is short."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both panels."""
        return xr.merge([self._left(rng), self._right(rng)]).assign_coords(weighting=list(setting.WEIGHTINGS))

    # -- the critical signal -------------------------------------------------------------------------------------------

    def _left(self, rng: np.random.Generator) -> xr.Dataset:
        prefix = np.arange(1, self.length + 1)
        kept = np.array([self._signal_over_noise(self.length, each) for each in prefix.tolist()])
        critical = [
            setting.Predictions(kept, self.sample_ratio, table).threshold(np.array(self.vocab_ratio))
            for table in TABLE.options
        ]
        found = [self._crossings(each, rng) for each in track(self.prefixes, "prefixes")]
        dims = "simulated", "weighting"
        values, errors, freedom, left_out = (np.array(each) for each in zip(*found, strict=True))
        return dataset(
            threshold=(("table", "prefix", "weighting"), np.array(critical), "critical signal"),
            critical=(dims, values, "signal at which overlaps of two sizes cross"),
            critical_error=(dims, errors, "its standard error"),
            freedom=("simulated", freedom, "degrees of freedom of the errors"),
            left_out=(("simulated", "block", "weighting"), left_out, "crossing without one block of draws"),
            coords={"table": list(TABLE.options), "prefix": prefix, "simulated": list(self.prefixes)},
        )

    def _crossings(self, prefix: int, rng: np.random.Generator) -> tuple[Real, Real, float, Real]:
        """Critical signal of each weighting, its error and freedom, and the same without each block of draws."""
        matrix = prefix_correlation(self.length, prefix, self.correlation)
        weights = [setting.weights_of(each, matrix) for each in setting.WEIGHTINGS]
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        models = [PooledSequences(*sizes, 1.0, each, matrix, "additive") for each in weights]
        units = np.array([each.threshold().sample for each in models])
        large, small = (
            np.array([_scaled_overlaps(model, weights, units, rng) for _ in range(draws)])
            for model, draws in ((models[0], self.draws), (setting.half_size(models[0], 4), 4 * self.draws))
        )
        blocks = [np.array_split(each, BLOCKS) for each in (large, small)]
        means = [np.array([block.mean(axis=0) for block in each]) for each in blocks]
        whole = crossing(*(each.mean(axis=0) for each in means))
        without = np.array(
            [crossing(*(np.delete(each, k, axis=0).mean(axis=0) for each in means)) for k in range(BLOCKS)]
        )
        error = np.sqrt((BLOCKS - 1) * without.var(axis=0))
        return whole * units, error * units, BLOCKS - 1.0, without * units

    def _signal_over_noise(self, length: int, prefix: int) -> Real:
        """Alpha over kappa for each weighting."""
        matrix = prefix_correlation(length, prefix, self.correlation)
        weights = [setting.weights_of(each, matrix) for each in setting.WEIGHTINGS]
        return np.array([w @ matrix @ w / (w @ w) for w in weights])

    def critical(self, data: xr.Dataset, prefix: int, weighting: str) -> Estimate:
        """The critical signal from the crossing of two sizes."""
        one = data.sel(simulated=prefix, weighting=weighting)
        return Estimate(float(one.critical), float(one.critical_error), float(one.freedom))

    # -- what is kept --------------------------------------------------------------------------------------------------

    def _right(self, rng: np.random.Generator) -> xr.Dataset:
        lengths = np.unique(np.geomspace(setting.LONG_PREFIX, self.longest, 9).round().astype(int))
        drawn = np.array([self._simulated_noise(each, rng) for each in track(lengths.tolist(), "lengths")])
        snr = np.array([self._signal_over_noise(each, setting.LONG_PREFIX) for each in lengths.tolist()])
        return dataset(
            snr=(("length", "weighting"), snr, "alpha/kappa"),
            drawn=(("length", "batch", "weighting"), drawn, "alpha/kappa of drawn signs"),
            noise=(("length", "weighting"), [self._noise(each) for each in lengths.tolist()]),
            coords={"length": lengths},
        )

    def _noise(self, length: int) -> Real:
        matrix = prefix_correlation(length, setting.LONG_PREFIX, self.correlation)
        return np.array([np.sum(setting.weights_of(each, matrix) ** 2) for each in setting.WEIGHTINGS])

    def _simulated_noise(self, length: int, rng: np.random.Generator) -> Real:
        """Means of ``(w.xi)**2/kappa`` over drawn signs, of batches x weightings."""
        matrix = prefix_correlation(length, setting.LONG_PREFIX, self.correlation)
        weights = np.array([setting.weights_of(each, matrix) for each in setting.WEIGHTINGS])
        batches = []
        for _ in range(10):
            signs = draw_signs(matrix, self.sequences // 10, rng)
            batches.append(np.mean((signs @ weights.T) ** 2, axis=0) / np.sum(weights**2, axis=1))
        return np.array(batches)

    # -- claims --------------------------------------------------------------------------------------------------------

    def statements(self, data: xr.Dataset) -> Claims:
        """Critical signals and their order, what is kept, and how the lead of causal weights grows."""
        theory = data.threshold.sel(table="additive", prefix=list(self.prefixes))
        delta = self.vocab_ratio
        unlimited = float(np.sqrt((delta + delta**0.5) / critical_strength(delta, self.sample_ratio)))
        for weighting in setting.WEIGHTINGS:
            predicted = float(theory.sel(weighting=weighting).mean())
            critical = [self.critical(data, each, weighting) for each in self.prefixes]
            where = "over the prefixes, where overlaps at two dimensions cross"
            text, place = f"{weighting} weights: mean critical signal {where}", "recovery: Figure 5(a), Section 3.5"
            printed = "the population's threshold, equation 34", predicted * unlimited
            # relative shift of a crossing over ``(d d')**(-1/3)``, measured at 60 and 15 dimensions: 0.025 +- 0.008
            finite_size = predicted * 0.25 * (self.dim**2 / 4) ** (-1 / 3)
            reason = "fitted: at 60 and 15 dimensions crossings are 2.5 % high, and shift by 1/d**(2/3)"
            yield Claim(text, place, Estimate.mean(critical), predicted, printed, finite_size, reason)
        yield from self._lead(data)
        longest, short = data.isel(length=-1), data.sel(length=2 * setting.LONG_PREFIX, method="nearest")
        causal, best = data.drawn.sel(weighting="causal"), data.snr.sel(weighting="optimal")
        text = "share of mean weights' alpha/kappa in that of causal weights, over the length"
        place = "recovery: Figure 5(b), Equation 43"
        rival = "no gain over mean weights", data.snr.sel(weighting="mean")
        yield follows(text, place, causal.T, data.snr.sel(weighting="causal"), rival)
        text = f"mean weights: alpha/kappa at {self.longest} positions"
        measured = longest.drawn.sel(weighting="mean").rename(batch="draw")
        rival = f"as at {int(short.length)} positions", short.snr.sel(weighting="mean")
        yield Claim(text, "recovery: Figure 5(b), Equation 4", measured, longest.snr.sel(weighting="mean"), rival)
        text = "optimal weights: mean alpha/kappa over the length, the largest eigenvalue of R"
        measured = data.drawn.sel(weighting="optimal").rename(batch="draw")
        rival = "that of causal weights", data.snr.sel(weighting="causal").mean()
        yield Claim(text, "recovery: Theorem 5", measured, 1 + self.correlation * (setting.LONG_PREFIX - 1), rival)
        text = f"optimal weights: alpha/kappa at {self.longest} positions, minus that of causal weights"
        place = "recovery: Theorem 5, Figure 5(b)"
        measured = longest.drawn.sel(weighting="optimal") - longest.drawn.sel(weighting="causal")
        rival = "causal weights are optimal", 0.0
        yield Claim(text, place, measured, best[-1] - longest.snr.sel(weighting="causal"), rival)
        yield self._logarithm(data)

    def _gain(self, data: xr.Dataset, prefix: int) -> tuple[Estimate, float]:
        """Squared critical signal of mean over causal weights: from crossings, and from alpha/kappa."""
        one = data.sel(simulated=prefix)
        whole, without = (
            (each.sel(weighting="mean") / each.sel(weighting="causal")) ** 2 for each in (one.critical, one.left_out)
        )
        error = float(np.sqrt((BLOCKS - 1) * without.var()))
        found = Estimate(float(whole), error, float(one.freedom))
        mean, causal, _ = self._signal_over_noise(self.length, prefix)
        return found, float(causal / mean)

    def _lead(self, data: xr.Dataset) -> Claims:
        short = [each for each in self.prefixes if 2 < each <= max(self.length // 2, 3)]
        gains, last = [self._gain(data, each) for each in short], self._gain(data, max(self.prefixes))
        found = Estimate.mean(each for each, _ in gains)
        predicted = float(np.mean([each for _, each in gains]))
        text = "squared critical signal of mean over causal weights"
        statement = f"{text}: prefixes {', '.join(map(str, short))} of {self.length}"
        yield Claim(statement, "recovery: Figure 5(a)", found, predicted, ("no gain", 1.0))
        statement = f"{text}: its fall from these to a prefix of {max(self.prefixes)}"
        rival = "a constant gain", 0.0
        yield Claim(statement, "recovery: Figure 5(a)", difference(found, last[0]), predicted - last[1], rival)

    def _logarithm(self, data: xr.Dataset) -> Claim:
        """How the amplitude that causal weights keep of the prefix, over that of the mean, grows with log L."""
        chosen = data.sel(length=slice(2 * setting.LONG_PREFIX, None), weighting=["mean", "causal"])
        logs, noise = np.log(chosen.length.values), chosen.noise.values

        def slope(kept: Real) -> float:
            excess = (kept - 1) * noise  # alpha - kappa, for each length and weighting
            return float(np.polyfit(logs, np.sqrt(excess[:, 1] / excess[:, 0]), 1)[0])

        batches = chosen.drawn.transpose("batch", "length", "weighting").values
        text = "slope of the gain of causal weights in amplitude of the signal over the logarithm of the length"
        place = "recovery: Proposition 2, Figure 5(b)"
        measured = Estimate.jackknife(lambda values: slope(np.mean(values, axis=0)), batches)
        return Claim(text, place, measured, slope(chosen.snr.values), ("a constant gain", 0.0))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        for weighting, (colour, symbol) in setting.LOOK.items():
            one = data.sel(weighting=weighting)
            line(left, one.prefix, one.threshold.sel(table="additive"), label="", color=colour)
            line(left, one.prefix, one.threshold.sel(table="finite"), label="", color=colour, ls=":", lw=1)
            marks(left, one.simulated, one.critical, one.critical_error, label="", color=colour, fmt=symbol)
            line(right, one.length, one.snr, label="", color=colour)
            spread = one.drawn.std("batch", ddof=1) / np.sqrt(one.sizes["batch"])
            label = f"{weighting} weights"
            marks(right, one.length, one.drawn.mean("batch"), spread, label=label, color=colour, fmt=symbol)
        left.set(xlabel="length of the prefix", ylabel="critical " + setting.SIGNAL)
        left.set_ylim(-0.03, 1.1 * float(data.threshold.max()))
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set(xlabel="length of the sequence", ylabel=r"$\alpha/\kappa$", xscale="log")
        plain_ticks(right.xaxis, data.length[::2])
        kinds = [
            Line2D([], [], color="0.3", label="exact class means"),
            Line2D([], [], color="0.3", ls=":", label="finite table"),
        ]
        handles, labels = right.get_legend_handles_labels()
        named = [*handles, *kinds]
        figure.legend(named, [*labels, *(str(each.get_label()) for each in kinds)], loc="outside lower center", ncols=5)
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "correlation", "length", "draws")
        return figure


def _scaled_overlaps(model: PooledSequences, weights: list[Real], units: Real, rng: np.random.Generator) -> Real:
    """Squared overlap with the signal times ``d**(1/3)``, of weightings x signals, all from one draw of the noise."""
    draw = model.draw(rng)
    last, unit = model.dim - 1, draw.mean / model.signal
    found = []
    for each, threshold in zip(weights, units.tolist(), strict=True):
        kept = draw.signs @ each
        noise = pool(draw.table, draw.tokens, each) - np.outer(kept, draw.mean)
        bulk, cross = noise.T @ noise, np.outer(noise.T @ kept, unit)
        spike = kept @ kept * np.outer(unit, unit)
        for signal in threshold * np.array(SIGNALS):
            covariance = bulk + signal * (cross + cross.T) + signal**2 * spike
            found.append((eigh(covariance, subset_by_index=(last, last))[1][:, 0] @ unit) ** 2)
    # at the threshold the squared overlap falls with this power of the dimension; below it with the first, and above it
    # is a constant (the transition of Baik, Ben Arous and Peche)
    return np.reshape(found, (len(weights), -1)) * model.dim ** (1 / 3)


def crossing(large: Real, small: Real) -> Real:
    """Where overlaps at two sizes cross for each weighting, in the units of ``SIGNALS``; nan if they do not.

    Of several crossings, which only noise makes, the middle one.
    """
    found = []
    for growth in np.log(large / small):
        k = np.flatnonzero((growth[:-1] <= 0) & (growth[1:] > 0))
        left = k[len(k) // 2] if len(k) else 0
        below, above = growth[left : left + 2]
        step = SIGNALS[left + 1] - SIGNALS[left]
        found.append(SIGNALS[left] - below * step / (above - below) if len(k) else np.nan)
    return np.array(found)
