"""Figure 6: test accuracy of a ridge classifier on pooled sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.progress import track
from bulkedge.recovery.classifier import LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.recovery.correlations import prefix_correlation
from bulkedge.recovery.learned import learned_weights
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, average
from bulkedge.studies.recovery.setting import WEIGHTINGS, weights_of

RESTARTS = 2


@dataclass(frozen=True)
class Classification(Study):
    """Accuracy over signal strength for mean, causal, optimal and learned pooling, with the closed form as lines.

    Labels are the majority of the prefix. The paper has no formula for these curves; the lines are ours, those of
    learned pooling for the weights that minimise the limit of the training loss.
    """

    dim: int = parameter(Integers(20, 5000), "dimension of the embeddings", 80, paper=200)
    vocab: int = parameter(Integers(20, 50_000), "rows of the table, even", 160, paper=400)
    samples: int = parameter(Integers(50, 50_000), "training sequences", 320, paper=1200)
    tests: int = parameter(Integers(100, 100_000), "test sequences", 600, paper=2000)
    length: int = parameter(Integers(2, 14), "positions", 10)
    prefix: int = parameter(Integers(1, 13), "positions that carry the label, an odd number", 3)
    correlation: float = parameter(Interval(0, 1), "correlation of their signs", 0.6)
    ridge: float = parameter(Interval(1e-6, 1e6), "ridge penalty", 0.1)
    strongest: float = parameter(Interval(0.1, 10), "largest signal strength", 2.5)
    signals: int = parameter(Integers(2, 100), "signal strengths", 5, paper=11)
    draws: int = parameter(Integers(2, 1000), "draws for each strength", 5, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train on draws of each strength, and evaluate the closed form on a finer grid."""
        population = prefix_majority(self.length, self.prefix, self.correlation)
        signal, fine = np.linspace(0, self.strongest, self.signals), np.linspace(0, self.strongest, 16)
        measured = [
            [self._measure(self._model(strength, population), rng) for _ in range(self.draws)]
            for strength in track(signal.tolist(), "signals")
        ]
        theory, curve = (
            [self._predict(self._model(strength, population), rng) for strength in grid.tolist()]
            for grid in (signal, fine)
        )
        return xr.Dataset(
            {
                "accuracy": (("signal", "draw", "weighting"), np.array(measured), {"long_name": "test accuracy"}),
                "predicted": (("signal", "weighting"), np.array(theory), {"long_name": "its limit"}),
                "curve": (("fine_signal", "weighting"), np.array(curve), {"long_name": "its limit"}),
            },
            coords={"signal": signal, "fine_signal": fine, "weighting": [*WEIGHTINGS, "learned"]},
        )

    def _model(self, signal: float, population: LabelledSigns) -> RidgeClassifier:
        return RidgeClassifier(self.dim, self.vocab, self.samples, signal, self.ridge, population)

    def _fixed(self) -> list[Real]:
        correlation = prefix_correlation(self.length, self.prefix, self.correlation)
        return [weights_of(weighting, correlation) for weighting in WEIGHTINGS]

    def _measure(self, model: RidgeClassifier, rng: np.random.Generator) -> list[float]:
        data = model.sample(rng, self.tests)
        tokens, labels = data.tokens[: self.samples], data.labels[: self.samples]
        learned = learned_weights(data.table, tokens, labels, self.ridge, rng, restarts=RESTARTS).weights
        return [model.tested(data, weights) for weights in (*self._fixed(), learned)]

    def _predict(self, model: RidgeClassifier, rng: np.random.Generator) -> list[float]:
        learned = model.learned(rng, restarts=RESTARTS).weights
        return [model.accuracy(weights) for weights in (*self._fixed(), learned)]

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The closed form for each pooling, and their order."""
        return [self._close(data, weighting) for weighting in (*WEIGHTINGS, "learned")] + [
            self._ahead(data, *pair) for pair in (("causal", "mean"), ("optimal", "causal"))
        ]

    def _close(self, data: xr.Dataset, weighting: str) -> Claim:
        one = data.sel(weighting=weighting)
        measured, error = average(one.accuracy)
        # learned weights also fit noise: one more parameter for each position
        fitted = self.length / (2 * self.samples) if weighting == "learned" else 0.0
        return Claim(
            statement=f"{weighting}: mean test accuracy over the signal strengths",
            place="ours, for recovery, Figure 6",
            predicted=float(one.predicted.mean()),
            measured=measured,
            error=error,
            tolerance=4 * error + 0.25 / self.dim + fitted,
            reason="four standard errors, a shift of order 1/d, and L/(2 N) for the noise that learned weights fit",
        )

    def _ahead(self, data: xr.Dataset, better: str, worse: str) -> Claim:
        gain = data.accuracy.sel(weighting=better) - data.accuracy.sel(weighting=worse)
        measured, error = average(gain)
        return Claim(
            statement=f"{better} pooling is more accurate than {worse} pooling",
            place="recovery, Figure 6",
            predicted=0.0,
            measured=measured,
            error=error,
            tolerance=-2 * error,
            reason="by more than two standard errors",
            relation=">=",
        )
