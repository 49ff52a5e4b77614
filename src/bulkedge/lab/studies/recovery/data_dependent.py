"""Open point (iii): self-attention whose scores do not vanish, so that weights depend on the sequence (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.optimize import brentq

from bulkedge.ensembles.correlations import draw_signs, prefix_correlation
from bulkedge.ensembles.pooled import PooledDraw, PooledSequences
from bulkedge.ensembles.weights import earlier_positions, mean_weights, pool
from bulkedge.lab.studies import recovery as setting
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, mean_marks
from bulkedge.plots.style import line, panels
from bulkedge.support.domains import Each, Integers, Interval, parameter
from bulkedge.support.errors import UnresolvedError
from bulkedge.visibility import softmax

PLACE = "recovery: Open problem (iii); ours"
LENGTH, PREFIX = 20, 8
QUANTITIES = ("location", "overlap", "whole", "noise")
"""Shifts of outlier and overlap against harmonic weights, the overlap itself, and the mean of ``|w|**2``."""
THEORY = ("theory_location", "theory_overlap", "theory_noise")
BATCHES, SEQUENCES = 10, 5000
"""Batches of sequences from which the theory of the weights is taken."""
STEP = 1e-5
"""Relative step of the derivative in x, whose error is of its square."""
HIDDEN = "the signal is below the threshold: no outlier leaves the bulk. Take a stronger one"


@dataclass(frozen=True)
class RecoveryDataDependent(Study):
    """Outlier and alignment of self-attention with scores ``tau x_t.x_s/sqrt(D)``, minus those of harmonic weights.

    Weights then differ from sequence to sequence. The theory knows none of those that were drawn: its scores are
    independent Gaussians and the product of two tokens along the signal, which is of order 1/sqrt(D) and half of the
    outlier's shift at these dimensions. The noise is taken as independent of the weights, as a cavity argument would.
    Averaged over the rows of attention the weights move little, so that the difference to harmonic weights on the same
    sequences is shown.
    Quantities are off by order ``d**(-1/2)``: a quarter of the dimension is drawn too. The vocabulary is large, because
    a token that occurs twice has a score of order ``sqrt(D)`` with itself.
    """

    dim: int = parameter(Integers(40, 2000), "dimension of the embeddings; a quarter of it is drawn too", 240, ours=480)
    vocab_ratio: float = parameter(Interval(0.01, 2), "dimension over vocabulary", 0.04, ours=0.04)
    sample_ratio: float = parameter(*setting.SAMPLE_RATIO, 1 / 3, ours=1 / 3)
    signal: float = parameter(*setting.SIGNAL_LENGTH, 1.3, ours=1.3)
    score_scales: tuple[float, ...] = parameter(
        Each(Interval(0.0, 3)), "factors tau of the scores", (1.0, 2.0), ours=(0.5, 1.0, 1.5, 2.0)
    )
    draws: int = parameter(Integers(4, 1000), "draws of each", 28, ours=40)
    small = {"dim": 120, "score_scales": (2.0,), "draws": 10}
    caption = """By how much self-attention raises the mean squared weight and shifts the outlier,
    compared with harmonic weights, over the scale of its scores. Points should follow the line, which leaves the
    dotted zero as weights begin to differ between sequences."""

    def model(self) -> PooledSequences:
        """The ensemble with the harmonic weights."""
        correlation = prefix_correlation(LENGTH, PREFIX, setting.CORRELATION)
        sizes = self.dim, 2 * round(self.dim / self.vocab_ratio / 2), round(self.dim / self.sample_ratio)
        return PooledSequences(*sizes, self.signal, setting.weights_of("causal", correlation), correlation)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draws at each score_scale."""
        model = self.model()
        pair = (model, setting.half_size(model, 4))
        found = [
            setting.draw_pairs(partial(_quantities, score_scale=tau), [pair], self.draws, rng, f"tau = {tau:g}")
            for tau in self.score_scales
        ]
        data: dict[str, Any] = {}
        for number, name in enumerate(QUANTITIES):
            data[name] = (("score_scale", "draw"), np.array([each.plain[0, :, number] for each in found]))
            data[f"limit_{name}"] = (("score_scale", "draw"), np.array([each.limit[0, :, number] for each in found]))
        # extrapolated as the draws are
        theory = np.array([2 * _theory(pair[0], tau, rng) - _theory(pair[1], tau, rng) for tau in self.score_scales])
        for number, name in enumerate(THEORY):
            data[name] = (("score_scale", "batch"), theory[..., number], {"long_name": "the same in theory"})
        alignment = [replace(model, weights=each).alignment().total for each in (model.weights, mean_weights(LENGTH))]
        data |= {"harmonic": ((), model.kappa), "alignment": ("weighting", alignment)}
        return xr.Dataset(data, coords={"score_scale": list(self.score_scales)})

    def statements(self, data: xr.Dataset) -> Claims:
        """The noise that is kept, and outlier and overlap beside those of harmonic weights."""
        for tau in self.score_scales:
            one = data.sel(score_scale=tau)
            text = f"tau = {tau:g}: mean of |w|**2, compared with that of Gaussian scores"
            rival = "the harmonic weights", data.harmonic
            yield Claim(text, PLACE, one.limit_noise, Estimate.of(one.theory_noise), rival)
        last, where = data.isel(score_scale=-1), f"tau = {self.score_scales[-1]:g}"
        text = f"{where}: outlier minus that of harmonic weights, compared with Gaussian scores with the signal"
        rival = "the harmonic weights", 0.0
        yield Claim(text, PLACE, last.limit_location, Estimate.of(last.theory_location), rival)
        text = f"{where}: squared overlap with the signal, compared with Gaussian scores with the signal"
        harmonic, mean = data.alignment.values.tolist()
        shift = Estimate.of(last.theory_overlap)
        predicted = shift._replace(value=harmonic + shift.value)
        yield Claim(text, PLACE, last.limit_whole, predicted, ("mean pooling", mean))

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2)
        left, right = grid[0]
        # scores of factor zero give harmonic weights: every line starts there
        factors, gaussian = np.append(0, data.score_scale), data.theory_noise.mean("batch") / data.harmonic - 1
        mean_marks(left, data.score_scale, data.limit_noise / data.harmonic - 1, label="self-attention")
        line(left, factors, np.append(0, gaussian), label="theory", marker="_", ms=12)
        left.axhline(0.0, **setting.RIVAL, label="harmonic weights")
        left.set_ylabel(r"relative increase of $|w|^2$")
        mean_marks(right, data.score_scale, data.limit_location, label="self-attention")
        own = data.theory_location.mean("batch")
        line(right, factors, np.append(0, own), label="theory", marker="_", ms=12)
        right.axhline(0.0, **setting.RIVAL, label="harmonic weights")
        right.set_ylabel("shift of the outlier")
        for axes in grid[0]:
            axes.set_xlabel(r"factor $\tau$ of the scores $\tau\,x_t\cdot x_s/\sqrt{d}$")
            axes.legend(loc="upper left")
        setting.caption(figure, self, "dim", "vocab_ratio", "sample_ratio", "signal", "draws")
        return figure


def _theory(model: PooledSequences, score_scale: float, rng: np.random.Generator) -> Real:
    """What ``THEORY`` names, in batches: of scores that are independent Gaussians but for the signal in them.

    A token is ``z`` along the half difference m of the class means, its sign times |m| and noise, and its score with
    another is their product over the root of d, besides noise. Tokens of one sign attract each other, which adds
    ``|m|**2/sqrt(D)`` to their scores. Shifts are measured from those of harmonic weights on the same tokens.
    """
    square, seen = model.signal**2 + model.vocab_ratio, earlier_positions(LENGTH)
    found = []
    for _ in range(BATCHES):
        tokens = square**0.5 * draw_signs(model.correlation, SEQUENCES, rng)
        tokens += rng.standard_normal(tokens.shape)
        scores = (1 - 1 / model.dim) ** 0.5 * rng.standard_normal((SEQUENCES, LENGTH, LENGTH))
        scores += tokens[:, :, None] * tokens[:, None, :] / model.dim**0.5
        own = softmax(np.tril(score_scale * scores, -1), seen).mean(axis=-2)
        spikes = []
        for each in (own, np.broadcast_to(model.weights, own.shape)):
            noise = np.sum(each**2, axis=1)
            kept = (np.sum(each * tokens, axis=1) ** 2 - noise) / square  # of the signal, minus the noise along it
            spikes.append(UnevenRows(kept, noise, square, model.vocab_ratio, model.sample_ratio).spike())
        shift = (np.array(spikes[0]) - spikes[1]) * [1, model.signal**2 / square]
        found.append([*shift, np.mean(np.sum(own**2, axis=1))])
    return np.array(found)


def _quantities(model: PooledSequences, rng: np.random.Generator, *, score_scale: float) -> Real:
    """Those named in ``QUANTITIES``, of one draw."""
    draw = model.draw(rng)
    weights = setting.attention_weights(draw, score_scale * np.sqrt(model.dim))
    found, fixed = (_pooled(model, draw, each) for each in (weights, np.broadcast_to(model.weights, weights.shape)))
    return np.array([*(found - fixed), found[1], np.mean(np.sum(weights**2, axis=1))])


def _pooled(model: PooledSequences, draw: PooledDraw, weights: Real) -> Real:
    """Largest eigenvalue and overlap of a draw pooled with these weights."""
    value, vector = setting.top(pool(draw.table, draw.tokens, weights))
    return np.array([value, (vector @ draw.mean) ** 2 / model.signal**2])


@dataclass(frozen=True, eq=False)
class UnevenRows:
    """The outlier of rows that keep different parts of signal and noise, because each has weights of its own.

    Row i is ``a_i m + sqrt(kappa_i) eta_i``: its weights keep ``a_i = w_i.xi_i`` of the half difference m of the class
    means, and ``kappa_i = |w_i|**2`` of the noise, which has the law MP(delta) given the table. If the weights do not
    know the directions of the noise, its sample covariance has the resolvent ``(z - t S)**-1`` in deterministic
    equivalents, and in the space of samples ``1/(z (1 - e kappa_i))``, with ``t = mean kappa/(1 - e kappa)`` and
    ``e = tr S (z - t S)**-1/N``. The outlier is where ``|m|**2 g(z) h(z) = 1``, ``g = tr (z - t S)**-1/d`` and
    ``h = mean a**2/(1 - e kappa)``. With ``z/t = (1 + x)(x + delta)/x`` these are explicit in x but for t:

    ``g = 1/(t (x + delta))``, ``e = gamma/(t x)``, and ``mean kappa/(t - gamma kappa/x) = 1``.

    For weights that are the same everywhere ``t = kappa (1 + gamma/x)``, which gives the outlier of Theorem 3.

    >>> import numpy as np
    >>> from bulkedge.ensembles.pooled import PooledSequences
    >>> from bulkedge.recovery import causal_weights, prefix_correlation
    >>> model = PooledSequences(1000, 2000, 3000, 1.3, causal_weights(10), prefix_correlation(10, 4, 0.6))
    >>> same = UnevenRows(np.full(5, model.alpha), np.full(5, model.kappa), 1.3**2 + 0.5, 0.5, 1 / 3)
    >>> [round(each, 4) for each in same.spike()]
    [1.3866, 0.873]
    >>> found = model.alignment()
    >>> round(float(model.sample_spike().location), 4), round(found.sample * found.population, 4)
    (1.3866, 0.873)
    """

    squares: Real
    """``a_i**2`` of each row, or of a sample of rows."""
    noises: Real
    """``kappa_i`` of the same."""
    length: float
    """``|m|**2``."""
    vocab_ratio: float
    sample_ratio: float

    def spike(self) -> tuple[float, float]:
        """Where the outlier is, and the squared overlap of its eigenvector with m."""
        alike = float(np.mean(self.squares) / np.mean(self.noises)) * self.length
        high = 4 * (alike + 1) * float(np.max(self.noises) / np.mean(self.noises))
        # the outlier is the largest solution: walk down to the first place where the condition is met
        low = next((each for each in np.geomspace(high, 1e-3, 60) if self._condition(each) > 1), None)
        if low is None or low == high:
            raise UnresolvedError(HIDDEN)
        x = float(brentq(lambda each: self._condition(each) - 1, low, high, xtol=1e-13))
        ahead, behind = (self._parts(x * (1 + sign * STEP)) for sign in (1, -1))
        _, g, h, z = self._parts(x)
        slope = (ahead[1] * ahead[2] - behind[1] * behind[2]) / (ahead[3] - behind[3])
        if not (ahead[3] > behind[3] and slope < 0):
            raise UnresolvedError(HIDDEN)
        return float(z), float(-(g**2) * h / slope)

    def _condition(self, x: float) -> float:
        _, g, h, _ = self._parts(x)
        return self.length * g * h

    def _parts(self, x: float) -> tuple[float, float, float, float]:
        """``t``, ``g``, ``h`` and ``z`` at x."""
        pull = self.sample_ratio / x * self.noises
        least, mean = float(pull.max()), float(np.mean(self.noises))
        # the mean of kappa/(t - pull) falls from infinity to below one on the way to the mean of kappa above the pole
        t = float(
            brentq(
                lambda each: float(np.mean(self.noises / (each - pull))) - 1,
                least * (1 + 1e-12) + 1e-300,
                least + mean * (1 + 1e-9),
                xtol=1e-15 * (least + mean),
            )
        )
        g = 1 / (t * (x + self.vocab_ratio))
        h = float(np.mean(self.squares / (1 - pull / t)))
        return t, g, h, t * (1 + x) * (x + self.vocab_ratio) / x
