"""What the studies of *recovery* share: the two correlation models, the three weightings, and draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.linalg import eigh

from bulkedge.ensembles.correlations import prefix_correlation, spiked_correlation
from bulkedge.ensembles.pooled import TABLE, PooledDraw, PooledSequences, Table, critical_strength, spectral_alignment
from bulkedge.ensembles.weights import causal_weights, mean_weights, optimal_weights, pool, self_attention_weights
from bulkedge.lab.studies.base import Real, Study, mean_marks, track
from bulkedge.plots.style import COLOURS
from bulkedge.support.domains import Integers, Interval

LENGTH, PREFIX, CORRELATION = 10, 4, 0.6
"""Positions, those with a signal, and their correlation, in the prefix model."""
LONG, LONG_PREFIX = 40, 8
"""The same where causal weights need to spread over many positions, so that tokens do not repeat."""
DIRECTION, STRENGTH = (0, 0, 1, 0, -1, 0, 0, 1, 0, 0), 6.0
"""Direction and strength of the spiked model; the paper has a sign pattern on a few positions."""
BLOCK = 200
"""Sequences that are embedded at a time."""
WEIGHTINGS = ("mean", "causal", "optimal")
LOOK = {"mean": (COLOURS[2], "s"), "causal": (COLOURS[0], "o"), "optimal": (COLOURS[1], "^")}
"""Colour and mark of each pooling."""
RIVAL: Any = {"color": "0.45", "ls": ":", "lw": 1.2}
"""How a rival is drawn."""
SIGNAL = r"signal $|\mu|$"
SYMBOLS = {
    "dim": "D",
    "vocab": "V",
    "samples": "N",
    "vocab_ratio": r"\delta",
    "sample_ratio": r"\gamma",
    "signal": r"|\mu|",
    "score_scale": r"\tau",
    "length": "T",
    "prefix": "p",
    "correlation": "r",
    "tests": r"N_{\mathrm{test}}",
    "ridge": r"\lambda",
}
NAMES = {"location": "largest eigenvalue", "overlap": "squared overlap"}
# domain and words of parameters that several studies declare
DIM = Integers(40, 2000), "dimension of the embeddings; half of it is drawn too"
DRAWS = Integers(2, 1000), "draws of each"
SAMPLE_RATIO = Interval(0.05, 2), "dimension over samples"
SIGNAL_LENGTH = Interval(0.1, 10), "length of the signal"
TABLE_MEANS = TABLE, "class means of the table"
VOCAB_RATIO = Interval(0.05, 2), "dimension over vocabulary"


def correlations() -> dict[str, Real]:
    """The two models of Figure 4."""
    return {
        "prefix": prefix_correlation(LENGTH, PREFIX, CORRELATION),
        "spiked": spiked_correlation(LENGTH, DIRECTION, STRENGTH),
    }


def weights_of(weighting: str, correlation: Real) -> Real:
    """The pooling weights of that name for a correlation matrix."""
    if weighting == "optimal":
        return optimal_weights(correlation)
    return (mean_weights if weighting == "mean" else causal_weights)(len(correlation))


@dataclass(frozen=True)
class Predictions:
    """Alignment and threshold of the sample for arrays of signals and vocabulary ratios, in closed form."""

    snr: Any
    """Alpha over kappa."""
    sample_ratio: float
    table: Table

    def _spread(self, vocab_ratio: Real) -> Real:
        return vocab_ratio if self.table == "finite" else 0.0 * vocab_ratio

    def alignment(self, signal: Real, vocab_ratio: Real) -> Real:
        """Squared overlap of equation 8, with the factor for the noise of the table's class means."""
        square, spread = signal**2, self._spread(vocab_ratio)
        spectral = spectral_alignment(self.snr * (square + spread), vocab_ratio, self.sample_ratio)
        return np.asarray(spectral * square / (square + spread))

    def threshold(self, vocab_ratio: Real) -> Real:
        """Equation 36; zero where the noise of the class means leaves the bulk alone."""
        square = critical_strength(vocab_ratio, self.sample_ratio) / self.snr - self._spread(vocab_ratio)
        return np.sqrt(np.maximum(square, 0.0))


def outlier_roots(population: Any, vocab_ratio: float, sample_ratio: float) -> tuple[Any, Any]:
    """The two roots of equation 7, in the units of kappa: what the text takes for the outlier, and what it is.

    With ``theta`` the population's outlier over kappa and ``y = lambda/theta - 1`` the quadratic is ``y**2 - (gamma/
    delta)(theta - 1 - delta) y + gamma**2/delta = 0``: its roots are ``gamma/x`` and ``gamma x/delta``, with ``x =
    omega - delta`` that of the spike and ``delta/x`` that of the other strength with the same theta. A spike that is
    seen has ``x > sqrt(delta)``, so that the first is the smaller one.
    """
    theta = np.asarray(population, dtype=float)
    half = sample_ratio / vocab_ratio * (theta - 1 - vocab_ratio) / 2
    root = np.sqrt(half**2 - sample_ratio**2 / vocab_ratio)
    larger = half + root
    return theta * (1 + sample_ratio**2 / vocab_ratio / larger), theta * (1 + larger)


class Extrapolation(NamedTuple):
    """Draws of some quantities of some models, each an array of shape (models, draws, quantities)."""

    plain: Real
    """At the size asked for."""
    limit: Real
    """``2 m(d) - m(d/2)``, which is free of terms of order 1/d; see :func:`extrapolated`."""


def extrapolate(large: Real, small: Real) -> Real:
    """Draws of ``2 m(large) - m(small)``: the limit, where a quantity is off by a term twice as big at the small size.

    Outliers and overlaps are off by order 1/d, so that half the dimension is the small size; quantities that are off
    by order ``d**(-1/2)`` need a quarter of it.
    """
    pairs = np.reshape(small, (len(large), 2, *np.shape(large)[1:]))
    return np.asarray(2 * large - pairs.mean(axis=1))


def draw_pairs(
    measure: Callable[[Any, np.random.Generator], Any],
    sizes: Sequence[tuple[Any, Any]],
    draws: int,
    rng: np.random.Generator,
    label: str,
) -> Extrapolation:
    """Draw some quantities of models, each at its size and at a smaller one."""
    plain, limit = [], []
    for large, small in track(sizes, label):
        found = np.array([measure(large, rng) for _ in range(draws)], dtype=float)
        plain.append(found)
        limit.append(extrapolate(found, np.array([measure(small, rng) for _ in range(2 * draws)], dtype=float)))
    return Extrapolation(np.array(plain), np.array(limit))


def half_size(model: PooledSequences, times: int = 2) -> PooledSequences:
    """The same ratios at half the size."""
    vocab = 2 * round(model.vocab / times / 2)
    return replace(model, dim=round(model.dim / times), vocab=vocab, samples=round(model.samples / times))


def with_halves(models: Iterable[PooledSequences]) -> list[tuple[PooledSequences, PooledSequences]]:
    """Each model, and the same at half the size."""
    return [(each, half_size(each)) for each in models]


def leading(models: Sequence[PooledSequences], draws: int, rng: np.random.Generator, label: str) -> Extrapolation:
    """Top eigenvalue and overlap of so many draws of each model."""
    return draw_pairs(lambda model, rng: model.leading(rng), with_halves(models), draws, rng, label)


def top(rows: Real) -> tuple[float, Real]:
    """Largest eigenvalue of ``Y'Y/N``, and its eigenvector."""
    samples, dim = rows.shape
    values, vectors = eigh(rows.T @ rows / samples, subset_by_index=(dim - 1, dim - 1), overwrite_a=True)
    return float(values[0]), np.asarray(vectors[:, 0])


def leading_each(model: PooledSequences, weights: Sequence[Real], rng: np.random.Generator) -> Real:
    """Top eigenvalue and overlap of one draw of table and sequences, pooled in several ways."""
    draw = model.draw(rng)
    found = [top(pool(draw.table, draw.tokens, each)) for each in weights]
    along = [float(vector @ draw.mean) ** 2 / model.signal**2 for _, vector in found]
    return np.array([[value for value, _ in found], along])


def attention_weights(draw: PooledDraw, score_scale: float) -> Real:
    """Weights of causal self-attention on each sequence of a draw, a block of sequences at a time."""
    blocks = np.array_split(draw.tokens, max(1, len(draw.tokens) // BLOCK))
    return np.concatenate([self_attention_weights(draw.table[block], score_scale) for block in blocks])


def other(table: Table) -> tuple[Table, str]:
    """The other kind of table, and what its form is called as a rival."""
    if table == "finite":
        return "additive", "as printed, without the noise of the class means"
    return "finite", "with the noise of the class means, which this table has not"


def caption(figure: Figure, study: Study, *names: str) -> None:
    """Write the study's parameters of these names over the figure."""
    parts = []
    for name in names:
        value = getattr(study, name)
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        symbol = f"${SYMBOLS[name]}$ = " if name in SYMBOLS else f"{name} "
        parts.append(f"{text} {name}" if name in ("draws", "sequences") else f"{symbol}{text}")
    figure.suptitle(", ".join(parts), fontsize=7)


def over_signal(axes: Axes, data: xr.Dataset, name: str, colour: str, label: str, **look: Any) -> None:
    """Simulated means over the signal, with error bars."""
    mean_marks(axes, data.signal, data[name], label=label, color=colour, **look)
