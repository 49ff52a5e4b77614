"""Figure 5: critical signal over the length of the prefix, and what is kept of the signal over that of the sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.pooled import TABLE
from bulkedge.progress import track
from bulkedge.recovery.correlations import draw_signs, prefix_correlation
from bulkedge.recovery.weights import causal_noise, causal_signal
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim
from bulkedge.studies.recovery.setting import PREFIX, WEIGHTINGS, Predictions, weights_of


@dataclass(frozen=True)
class Thresholds(Study):
    """Causal weights need less signal than the mean while the prefix is short, and keep their lead as sequences grow.

    Left: the signal at which the sample's outlier leaves the bulk, over the length of the prefix. Right: alpha/kappa
    over the length of the sequence with a prefix of four, from formulas and from drawn signs. In a finite table the
    noise of the class means leaves the bulk without any signal once alpha/kappa is large: there the threshold is zero.
    """

    length: int = parameter(Integers(3, 200), "positions of the left panel", 20)
    longest: int = parameter(Integers(6, 500), "longest sequence of the right panel", 40, paper=100)
    correlation: float = parameter(Interval(0.01, 1), "correlation within the prefix", 0.6)
    vocab_ratio: float = parameter(Interval(0.01, 10), "dimension over vocabulary", 0.5)
    sample_ratio: float = parameter(Interval(0.01, 10), "dimension over samples", 1 / 3)
    sequences: int = parameter(Integers(100, 10**7), "drawn sequences of signs", 20_000, paper=200_000)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both panels."""
        prefix = np.arange(1, self.length + 1)
        lengths = np.unique(np.linspace(PREFIX, self.longest, 10).round().astype(int))
        short = np.array([self._kept(self.length, each) for each in prefix.tolist()])
        critical = [
            Predictions(short, self.sample_ratio, table).threshold(np.array(self.vocab_ratio))
            for table in TABLE.options
        ]
        drawn = np.array([self._drawn(each, rng) for each in track(lengths.tolist(), "lengths")])
        return xr.Dataset(
            {
                "threshold": (
                    ("table", "prefix", "weighting"),
                    np.array(critical),
                    {"long_name": "critical signal"},
                ),
                "snr": (
                    ("length", "weighting"),
                    np.array([self._kept(each, PREFIX) for each in lengths.tolist()]),
                    {"long_name": "alpha/kappa"},
                ),
                "drawn": (("length", "weighting"), drawn[:, 0], {"long_name": "alpha/kappa of drawn signs"}),
                "drawn_error": (("length", "weighting"), drawn[:, 1]),
                "closed": ("length", [self._closed(each) for each in lengths.tolist()]),
            },
            coords={"table": list(TABLE.options), "prefix": prefix, "length": lengths, "weighting": list(WEIGHTINGS)},
        )

    def _kept(self, length: int, prefix: int) -> Real:
        """Alpha over kappa for each weighting."""
        matrix = prefix_correlation(length, prefix, self.correlation)
        weights = [weights_of(each, matrix) for each in WEIGHTINGS]
        return np.array([w @ matrix @ w / (w @ w) for w in weights])

    def _closed(self, length: int) -> float:
        return causal_signal(length, PREFIX, self.correlation) / causal_noise(length)

    def _drawn(self, length: int, rng: np.random.Generator) -> Real:
        """Mean of ``(w.xi)**2/kappa`` over drawn signs, and its standard error, for each weighting."""
        matrix = prefix_correlation(length, PREFIX, self.correlation)
        weights = np.array([weights_of(each, matrix) for each in WEIGHTINGS])
        squares = (draw_signs(matrix, self.sequences, rng) @ weights.T) ** 2 / np.sum(weights**2, axis=1)
        return np.array([squares.mean(axis=0), squares.std(axis=0) / np.sqrt(self.sequences)])

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Order of the thresholds, drawn signs, and the growing lead of causal weights."""
        return self._leads(data) + self._numbers(data)

    def _leads(self, data: xr.Dataset) -> list[Claim]:
        paper = data.threshold.sel(table="additive")
        gap = paper.sel(weighting="mean") - paper.sel(weighting="causal")
        lead = data.snr.sel(weighting="causal") / data.snr.sel(weighting="mean")
        return [
            Claim(
                statement="smallest lead of causal over mean weights, prefixes from 2 to a third of the sequence",
                place="recovery, Figure 5a",
                predicted=0.0,
                measured=float(gap.sel(prefix=slice(2, max(2, self.length // 3))).min()),
                error=0.0,
                tolerance=0.0,
                reason="early positions carry the signal, and causal weights favour them",
                relation=">=",
            ),
            Claim(
                statement="lead of causal over mean weights when all positions carry the signal",
                place="recovery, Figure 5a: the advantage goes as the prefix fills the sequence",
                predicted=0.0,
                measured=float(gap[-1]),
                error=0.0,
                tolerance=0.0,
                reason="mean weights are optimal there",
                relation="<=",
            ),
            Claim(
                statement="lead in alpha/kappa of causal over mean weights: longest sequence over twice the prefix",
                place="recovery, Figure 5b",
                predicted=1.0,
                measured=float(lead[-1] / lead.sel(length=2 * PREFIX, method="nearest")),
                error=0.0,
                tolerance=0.0,
                reason="the paper: the lead grows with the sequence",
                relation=">=",
            ),
        ]

    def _numbers(self, data: xr.Dataset) -> list[Claim]:
        deviation = np.abs((data.drawn - data.snr) / data.drawn_error)
        return [
            Claim(
                statement="largest deviation of alpha/kappa of drawn signs, in standard errors",
                place="recovery, equation 4 and Figure 5b",
                predicted=4.5,
                measured=float(deviation.max()),
                error=0.0,
                tolerance=0.0,
                reason="the largest of thirty normal numbers exceeds 4.5 once in five thousand times",
                relation="<=",
            ),
            Claim(
                statement="alpha/kappa of causal weights in closed form, largest difference",
                place="recovery, Proposition 2 and equation 43",
                predicted=0.0,
                measured=float(np.abs(data.closed - data.snr.sel(weighting="causal")).max()),
                error=0.0,
                tolerance=1e-12,
                reason="rounding",
            ),
        ]
