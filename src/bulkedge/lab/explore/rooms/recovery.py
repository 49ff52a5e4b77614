"""The room *recovery*: which pooling of a sequence keeps the signal, two transitions and a phase diagram to click."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace, histogram, mean_error
from bulkedge.support.domains import Choice, Integers, Interval, parameter

GIVEN, ENDLESS = "theory, N samples", "theory, infinitely many samples"


def pooled(p: Any) -> Any:
    """The model, in 200 dimensions: ratios are those of the nearest whole numbers, in theory as in simulation."""
    dim = 200
    prefix = max(1, round(p.prefix * p.length))
    correlation = be.recovery.prefix_correlation(p.length, prefix, p.correlation)
    weights = {
        "mean": be.recovery.mean_weights(p.length),
        "causal": be.recovery.causal_weights(p.length),
        "optimal": be.recovery.optimal_weights(correlation),
    }[p.weights]
    vocab, samples = 2 * round(dim / p.vocab_ratio / 2), round(dim / p.sample_ratio)
    return be.PooledSequences(dim, vocab, samples, p.signal, weights, correlation)


def alignments(model: Any, signal: Any, vocab_ratio: Any, sample_ratio: float) -> Any:
    """Squared overlap of the top eigenvector with the signal, for arrays of signals and vocabulary ratios."""
    from bulkedge.ensembles.pooled import spectral_alignment

    power = np.asarray(signal) ** 2
    strength = model.alpha / model.kappa * (power + vocab_ratio)
    return spectral_alignment(strength, vocab_ratio, sample_ratio) * power / (power + vocab_ratio)


def thresholds(model: Any, vocab_ratio: Any, sample_ratio: float) -> Any:
    """The signal from which on the top eigenvector knows of it, for arrays of vocabulary ratios."""
    from bulkedge.ensembles.pooled import critical_strength

    critical = np.array([critical_strength(each, sample_ratio) for each in vocab_ratio])
    return np.sqrt(np.maximum(critical * model.kappa / model.alpha - vocab_ratio, 0.0))


@dataclass(frozen=True)
class RecoveryRoom(Room):
    """Signal recovery from pooled sequences."""

    name = "recovery"
    title = "Recovery"
    shows = "How strong a signal must be for the top eigenvector of pooled sequences to see it, and two thresholds."
    not_claimed = "The curves are limits of many dimensions; near a threshold a finite size blurs them."
    symbols = {"vocab_ratio": "vocabulary ratio d/V", "sample_ratio": "sample ratio d/N", "signal": "signal |μ|"}  # noqa: RUF012
    exported = {  # noqa: RUF012
        "signal": tuple(round(0.2 * k, 1) for k in range(16)),
        "vocab_ratio": (0.1, 0.25, 0.5, 1.0),
        "weights": ("mean", "causal", "optimal"),
    }

    signal: float = parameter(Interval(0, 3.0), "distance of a class's mean from zero, in units of the noise", 1.2)
    vocab_ratio: float = parameter(
        Interval(0.05, 2.0), "dimensions of a word vector, divided by words in the vocabulary", 0.5
    )
    sample_ratio: float = parameter(
        Interval(0.05, 2.0), "dimensions, divided by sequences: small means many samples", 0.3
    )
    weights: Literal["mean", "causal", "optimal"] = parameter(
        Choice(("mean", "causal", "optimal")), "how the words of a sequence are averaged", "causal"
    )
    length: int = parameter(Integers(4, 40), "words in each sequence", 20)
    prefix: float = parameter(
        Interval(0.05, 1), "share of a sequence, from its start, whose words belong together", 0.3
    )
    correlation: float = parameter(Interval(0, 0.95), "how closely those words belong together", 0.3)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("Alignment with the signal", "signal |μ|", "squared overlap"),
            Panel("Eigenvalues of the pooled rows", "eigenvalue of Y′Y/N", "density"),
            Panel(
                "Bright is aligned (click it)", "vocabulary ratio d/V", "signal |μ|", click=("vocab_ratio", "signal")
            ),
        ]

    def theory(self) -> list[Trace]:
        """Alignment along the signal, the phase diagram, and the spectrum."""
        model, bulk = pooled(self), pooled(self).bulk()
        signal, ratio = np.linspace(0, 3, 121), np.linspace(0.05, 2, 40)
        delta, gamma = model.vocab_ratio, model.sample_ratio
        none = 1e-9  # samples without end
        low, high = bulk.support[-1]
        x = np.linspace(low + 1e-3 * (high - low), high, 200)
        limits, spike = model.threshold(), model.sample_spike()
        here: dict[str, Any] = {"look": "here", "shape": "points"}
        curves = [
            Trace(GIVEN, signal, alignments(model, signal, delta, gamma)),
            Trace(ENDLESS, signal, alignments(model, signal, delta, none), look="rival"),
            Trace("threshold, predicted outlier", limits.sample, look="mark", shape="mark"),
            Trace(ENDLESS, limits.population, look="rival", shape="mark"),
            Trace("these parameters", [self.signal], [model.alignment().total], **here),
            Trace(
                "alignment",
                ratio,
                signal[::4],
                panel=2,
                shape="map",
                z=alignments(model, signal[::4, None], ratio, gamma),
            ),
            Trace(GIVEN, ratio, thresholds(model, ratio, gamma), panel=2),
            Trace(ENDLESS, ratio, thresholds(model, ratio, none), panel=2, look="rival"),
            Trace("these parameters", [delta], [self.signal], panel=2, **here),
            Trace(GIVEN, x, bulk.pdf(x), panel=1),
        ]
        if spike.detectable:
            curves.append(
                Trace("threshold, predicted outlier", float(spike.location), panel=1, look="mark", shape="mark")
            )
        return curves

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """One draw: eigenvalues of the pooled rows, and the overlap of the top eigenvector with the signal."""
        model = pooled(self)
        drawn = model.draw(rng)
        values, vectors = np.linalg.eigh(drawn.rows.T @ drawn.rows / model.samples)
        return {"values": values, "overlap": float(vectors[:, -1].sum() ** 2 / model.dim)}  # μ is along (1, ..., 1)

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Mean overlap, and all eigenvalues."""
        overlap, error = mean_error([[each["overlap"]] for each in samples])
        ends = np.linspace(0, 1.05 * max(each["values"][-1] for each in samples), 71)
        label = f"simulation, {len(samples)} × 200 dimensions"
        return [
            Trace(label, [self.signal], overlap, look="simulation", shape="points", error=error),
            histogram(label, [each["values"] for each in samples], ends, panel=1),
        ]

    def script(self, seed: int = 0) -> str:
        """The pooled sequences, their thresholds, and the alignment of a draw."""
        model, prefix = pooled(self), max(1, round(self.prefix * self.length))
        argument = "correlation" if self.weights == "optimal" else self.length
        return f"""import numpy as np

import bulkedge as be

correlation = be.recovery.prefix_correlation({self.length}, {prefix}, {self.correlation})
weights = be.recovery.{self.weights}_weights({argument})
model = be.PooledSequences({model.dim}, {model.vocab}, {model.samples}, {self.signal}, weights, correlation)
print("thresholds:", model.threshold())
print("alignment, predicted:", model.alignment().total, " outlier:", model.sample_spike().location)

rows = model.draw(np.random.default_rng({seed})).rows
vectors = np.linalg.eigh(rows.T @ rows / model.samples)[1]
print("alignment of a draw:", vectors[:, -1].sum() ** 2 / model.dim)  # the signal is along (1, ..., 1)
"""

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """The thresholds, and the alignment predicted and found."""
        model = pooled(self)
        limits = model.threshold()
        found = {
            "rows V, sequences N in 200 dimensions": f"{model.vocab}, {model.samples}",
            "threshold, infinitely many samples": f"{limits.population:.2f}",
            "threshold, N samples": f"{limits.sample:.2f}",
            "alignment, predicted": f"{model.alignment().total:.3f}",
        }
        if samples:
            overlap = np.array([each["overlap"] for each in samples])
            found["alignment, simulated"] = f"{overlap.mean():.3f}"
        return found
