"""Figure 6: test accuracy of a ridge classifier on pooled sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.correlations import prefix_correlation
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.recovery.classifier import LabelledSigns, RidgeClassifier, prefix_majority
from bulkedge.recovery.learned import learned_weights
from bulkedge.support.domains import Integers, Interval, parameter

RESTARTS = 2


@dataclass(frozen=True)
class RecoveryClassification(Study):
    """Accuracy over signal strength for mean, causal, optimal and learned pooling, with the closed form as lines.

    Labels are the majority of the prefix. The paper has no formula for these curves; the lines are ours, those of
    learned pooling for the weights that minimise the limit of the training loss.
    """

    dim: int = parameter(Integers(20, 5000), "dimension of the embeddings; half of it is drawn too", 80, ours=200)
    vocab_ratio: float = parameter(*setting.VOCAB_RATIO, 0.5, ours=0.5)
    sample_ratio: float = parameter(Interval(0.05, 2), "dimension over training sequences", 0.25, ours=1 / 6)
    tests: int = parameter(Integers(100, 100_000), "test sequences", 2000, ours=4000)
    length: int = parameter(Integers(2, 14), "positions", 10, ours=10)
    prefix: int = parameter(Integers(1, 13), "positions that carry the label, an odd number", 3, ours=3)
    correlation: float = parameter(Interval(0, 1), "correlation of their signs", 0.6, ours=0.6)
    ridge: float = parameter(Interval(1e-6, 1e6), "ridge penalty", 0.1, ours=0.1)
    strongest: float = parameter(Interval(1, 10), "largest signal strength", 2.4, ours=2.5)
    signals: int = parameter(Integers(3, 100), "signal strengths, from none on", 4, ours=9)
    draws: int = parameter(Integers(4, 1000), "draws for each strength", 24, ours=12)
    small = {"dim": 40, "signals": 3, "draws": 8}
    caption = """Test accuracy over signal strength for four poolings, with the closed form as lines.
    Points should follow the solid lines; the dotted ones show what training data without limit would reach."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Train on draws of each strength, and evaluate the closed form on a finer grid."""
        population = prefix_majority(self.length, self.prefix, self.correlation)
        # strengths at which the lines of the figure are computed
        signal, fine = np.linspace(0, self.strongest, self.signals), np.linspace(0, self.strongest, 60)
        pairs = [(self._model(each, population), self._model(each, population, 0.5)) for each in signal.tolist()]
        found = setting.draw_pairs(self._measure, pairs, self.draws, rng, "signals")
        # training sequences that leave no noise of training
        (theory, rival), (curve, rival_curve) = (
            [
                np.array([self._predict(replace(model, samples=samples or model.samples), rng) for model in models])
                for samples in (None, (10**7))
            ]
            for models in ([self._model(each, population) for each in grid.tolist()] for grid in (signal, fine))
        )
        dims = "signal", "draw", "weighting"
        return dataset(
            accuracy=(dims, found.plain, "test accuracy"),
            limit=(dims, found.limit, "the same without its term of order 1/d"),
            predicted=(("signal", "weighting"), theory, "its limit"),
            rival=(("signal", "weighting"), rival, "the limit for unlimited training data"),
            curve=(("fine_signal", "weighting"), curve, "its limit"),
            rival_curve=(("fine_signal", "weighting"), rival_curve, "its limit, unlimited data"),
            coords={"signal": signal, "fine_signal": fine, "weighting": [*setting.WEIGHTINGS, "learned"]},
        )

    def _model(self, signal: float, population: LabelledSigns, part: float = 1.0) -> RidgeClassifier:
        dim = round(part * self.dim)
        vocab, samples = 2 * round(dim / self.vocab_ratio / 2), round(dim / self.sample_ratio)
        return RidgeClassifier(dim, vocab, samples, signal, self.ridge, population)

    def _fixed(self) -> list[Real]:
        correlation = prefix_correlation(self.length, self.prefix, self.correlation)
        return [setting.weights_of(weighting, correlation) for weighting in setting.WEIGHTINGS]

    def _measure(self, model: RidgeClassifier, rng: np.random.Generator) -> list[float]:
        data = model.sample(rng, self.tests)
        tokens, labels = data.tokens[: model.samples], data.labels[: model.samples]
        learned = learned_weights(data.table, tokens, labels, self.ridge, rng, restarts=RESTARTS).weights
        return [model.tested(data, weights) for weights in (*self._fixed(), learned)]

    def _predict(self, model: RidgeClassifier, rng: np.random.Generator) -> list[float]:
        learned = model.learned(rng, restarts=RESTARTS).weights
        return [model.accuracy(weights) for weights in (*self._fixed(), learned)]

    def statements(self, data: xr.Dataset) -> Claims:
        """The closed form for each pooling, and their order at each strength."""
        for weighting in (*setting.WEIGHTINGS, "learned"):
            text = f"{weighting}: mean test accuracy over the signal strengths"
            place = "recovery: Figure 6, Open problem (vi)"
            predicted = data.predicted.sel(weighting=weighting)
            rival = "unlimited training data", data.rival.sel(weighting=weighting)
            yield Claim(text, place, data.limit.sel(weighting=weighting), predicted, rival)
        silent = data.sel(signal=0.0)
        text = "no signal: test accuracy of the three fixed poolings"
        measured = silent.limit.sel(weighting=list(setting.WEIGHTINGS)).mean("weighting")
        predicted = silent.predicted.sel(weighting=list(setting.WEIGHTINGS))
        yield Claim(text, "recovery: Figure 6; ours", measured, predicted, ("exact class means: chance", 0.5))
        for pair in (("causal", "mean"), ("optimal", "causal"), ("learned", "mean")):
            for at in data.signal.values:
                yield self._ahead(data.sel(signal=at), *pair)

    def _ahead(self, data: xr.Dataset, better: str, worse: str) -> Claim:
        gain, predicted = (
            data[name].sel(weighting=better) - data[name].sel(weighting=worse) for name in ("limit", "predicted")
        )
        text = f"signal {float(data.signal):.3g}: accuracy of {better} minus that of {worse} pooling"
        return Claim(text, "recovery: Figure 6", gain, predicted, ("no difference", 0.0))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 1, width=4.6, height=3.0)
        axes = grid[0, 0]
        for weighting, (colour, symbol) in (setting.LOOK | {"learned": (COLOURS[3], "D")}).items():
            one = data.sel(weighting=weighting)
            line(axes, one.fine_signal, one.curve, label="", color=colour, ls="--" if weighting == "learned" else "-")
            line(axes, one.fine_signal, one.rival_curve, label="", color=colour, ls=":", lw=0.9)
            setting.over_signal(axes, one, "accuracy", colour, weighting, fmt=symbol)
        axes.set(xlabel=setting.SIGNAL, ylabel="test accuracy", ylim=(0.48, 1.01))
        axes.axhline(0.5, color="0.6", lw=0.8)
        title = "weights (lines: closed form; dotted: unlimited training data)"
        figure.legend(loc="outside lower center", ncols=4, title=title, title_fontsize=7)
        setting.caption(
            figure, self, "dim", "vocab_ratio", "sample_ratio", "length", "prefix", "correlation", "ridge", "draws"
        )
        return figure
