"""The gap of a head from its couplings, and what grows past the threshold (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from scipy.sparse.linalg import svds
from scipy.special import ndtr

from bulkedge.heads import Channel
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, mean_marks, standard_error, track
from bulkedge.plots.style import BARS, COLOURS, line, marks, panels
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.visibility import softmax

CURVE = (0.2, 0.3, 0.4, 0.5, 0.6, 0.65)
"""Couplings of the figure."""


@dataclass(frozen=True)
class HeadsGap(Study):
    """The gap of a head follows from its largest coupling, whatever the mean query, and closes where that is 1/sqrt(2).

    Attention of Gaussian queries and keys with a few couplings: ``s_2/s_1`` tends to ``r(a_max)``. Past the threshold
    ``s_1`` grows as a power of the number of tokens that is neither that of a bounded operator nor of one key for all.
    """

    coupling: float = parameter(Interval(0.3, 0.59), "the largest coupling, below the threshold", 0.5, ours=0.5)
    directions: int = parameter(Integers(1, 8), "directions that have it", 2, ours=2)
    mean: float = parameter(Interval(0.5, 2), "mean query in the first direction, in deviations", 1.5, ours=1.5)
    below: float = parameter(Interval(0.2, 0.5), "the largest coupling with a mean query", 0.3, ours=0.3)
    tokens: int = parameter(Integers(100, 20_000), "tokens below the threshold", 1000, ours=2500)
    past: float = parameter(Interval(0.75, 3), "squared coupling past the threshold", 2.0, ours=2.0)
    smallest: int = parameter(Integers(32, 4096), "fewest tokens past it", 128, ours=256)
    doublings: int = parameter(Integers(1, 6), "how often they are doubled", 3, ours=3)
    draws: int = parameter(Integers(8, 10_000), "draws", 80, ours=160)
    small = {"tokens": 300, "draws": 40, "smallest": 64, "doublings": 2}
    caption = """The ratio of the two largest singular values over the coupling at two sizes (left), and
    the largest one over tokens past the threshold (right). Below a coupling of 0.6 the points follow the curve;
    closer to the threshold they approach it slowly from below as tokens are added, and on the right the slope lies
    between both rivals."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens past the threshold."""
        return tuple(self.smallest * 2**k for k in range(self.doublings + 1))

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw heads below the threshold, with and without a mean query, and past it at growing sizes."""
        equal = np.full(self.directions, self.coupling)
        shift = self.mean * (np.arange(self.directions) == 0)
        few = max(self.draws // 4, 8)
        still = [self._top(equal, 0.0, self.tokens, rng) for _ in track(range(self.draws), "without a mean")]
        below = np.full(self.directions, self.below)
        moved = [self._top(below, shift, self.tokens, rng) for _ in track(range(few), "with a mean")]
        curve = [
            [self._top(np.array([each]), 0.0, self.tokens, rng)[1] for each in CURVE]
            for _ in track(range(8), "couplings")
        ]
        past = [
            [self._top(np.sqrt([self.past]), 0.0, size, rng) for size in self.sizes]
            for _ in track(range(self.draws), "past the threshold")
        ]
        fewer = [
            [self._top(np.array([each]), 0.0, self.tokens // 4, rng)[1] for each in CURVE]
            for _ in track(range(32), "fewer tokens")
        ]
        a = np.linspace(0.05, 0.5**0.5, 200)
        return dataset(
            ratio=("draw", np.array(still)[:, 1], "s₂/s₁"),
            moved_first=("few", np.array(moved)[:, 0], "s₁ with a mean query"),
            moved_ratio=("few", np.array(moved)[:, 1], "s₂/s₁ with a mean query"),
            curve=(("eighth", "coupling"), curve, "s₂/s₁"),
            fewer=(("quarter", "coupling"), fewer, "s₂/s₁ at a quarter of the tokens"),
            predicted=("a", np.array([Channel([each]).ratio for each in a])),
            first=(("draw", "tokens"), np.array(past)[..., 0], "s₁"),
            second=(("draw", "tokens"), np.array(past)[..., 1], "s₂/s₁"),
            coords={"coupling": list(CURVE), "a": a, "tokens": list(self.sizes)},
        )

    @staticmethod
    def _top(couplings: Real, mean: float | Real, tokens: int, rng: np.random.Generator) -> tuple[float, float]:
        """The largest singular value, and the mean of those that are equal in the limit over it."""
        queries, keys = rng.standard_normal((2, tokens, len(couplings)))
        weights = softmax((couplings * (queries + mean)) @ keys.T)
        values = np.sort(svds(weights, k=len(couplings) + 1, v0=np.ones(tokens), return_singular_vectors=False))[::-1]
        return float(values[0]), float(values[1:].mean() / values[0])

    def statements(self, data: xr.Dataset) -> Claims:
        """The ratio, with and without a mean query, the largest value, and how it grows."""
        still = Channel(np.full(self.directions, self.coupling))
        below = Channel(np.full(self.directions, self.below))
        moved = Channel(below.couplings, self.mean * (np.arange(self.directions) == 0))
        channel = Channel(np.sqrt([self.past]))
        slopes = _slopes(np.log(data.first.values), self.sizes)
        keys = 0.5 * _slopes(np.array([[_longest(size) for size in self.sizes]]), self.sizes)[0]
        growth = {
            "place": "ours",
            "measured": Estimate.of(slopes),
            "predicted": channel.growth,
            "finite_size": 2 * self.past / (1 + 2 * self.past) * abs(1 - keys),
            "reason": "derived: the longest of T keys is shorter than sqrt(2 log T), by its exact mean square",
        }
        noise = "derived: indices of Mehler's series past those counted are noise of their squared norm N: s + N/(T s)"
        text = f"s₂/s₁ at a coupling of {self.coupling:g}"
        rival = "the coupling itself", self.coupling
        yield Claim(text, "ours", data.ratio, still.ratio, rival, finite_size=_noise(still, self.tokens), reason=noise)
        text = "s₂/s₁ with a mean query"
        rival = "s₂ as without it", below.ratio * below.perron / moved.perron
        finite_size = _noise(moved, self.tokens)
        yield Claim(text, "ours", data.moved_ratio.rename(few="draw"), moved.ratio, rival, finite_size, noise)
        text = "s₁ with a mean query"
        rival = "one, as for any eigenvalue of a stochastic matrix", 1.0
        finite_size = moved.squared_norm / (self.tokens * moved.perron)
        yield Claim(text, "ours", data.moved_first.rename(few="draw"), moved.perron, rival, finite_size, noise)
        yield Claim(f"s₁ grows past the threshold: exponent at a² = {self.past:g}", rival=("bounded", 0.0), **growth)
        yield Claim(f"and slowly: exponent at a² = {self.past:g}", rival=("one key for all rows", 0.5), **growth)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, ((ratio, growth),) = panels(1, 2, height=2.8)
        line(ratio, data.a, data.predicted, label=r"$r(a)$")
        line(ratio, data.a, data.a, label="rival: the coupling itself", color=COLOURS[2], ls="--", lw=1)
        quarter: Any = {"mfc": "none", "ms": 5, "color": COLOURS[3], "label": f"{self.tokens // 4} tokens"}
        mean_marks(ratio, data.coupling, data.fewer.rename(quarter="draw"), **quarter)
        whole = data.curve.rename(eighth="draw")
        mean_marks(ratio, data.coupling, whole, label=f"{self.tokens} tokens")
        ratio.axvline(0.5**0.5, color=BARS, lw=1)
        ratio.set(xlabel="coupling a", ylabel="$s_2/s_1$", xlim=(0, 0.75), ylim=(0, 1.02))
        ratio.set_title("one direction; threshold at $a^2 = 1/2$")
        sizes = data.tokens.values
        logs = np.log(data.first)
        spread = standard_error(logs)
        middle = np.exp(logs.mean("draw"))
        marks(growth, sizes, middle, middle * spread)
        exponent = Channel([self.past**0.5]).growth
        reach = sizes / np.exp(np.log(sizes).mean())
        centre = float(np.exp(logs.mean()))
        rivals = (
            (exponent, f"tokens$^{{{exponent:.2g}}}$", "-"),
            (0.0, "rival: bounded", "--"),
            (0.5, "rival: one key for all rows", ":"),
        )
        for k, (power, label, dash) in enumerate(rivals):
            colour = COLOURS[1] if k == 0 else COLOURS[2]
            line(growth, sizes, centre * reach**power, label=label, color=colour, ls=dash, lw=1.1)
        growth.set(xscale="log", yscale="log", xlabel="tokens", ylabel="$s_1$, geometric mean")
        growth.set_title(f"past the threshold: $a^2 = {self.past:g}$, {self.draws} draws")
        growth.set_xticks(sizes)
        for axis in (growth.xaxis, growth.yaxis):
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())
        low, high = growth.get_ylim()
        growth.set_yticks([each for each in (0.5, 1, 2, 4, 8, 16) if low <= each <= high])
        for axes in (ratio, growth):
            axes.legend(loc="upper left")
        return figure


def _noise(channel: Channel, tokens: int) -> float:
    """By how much noise raises ``s_2/s_1``: each singular value by the squared norm over tokens times itself."""
    first, ratio = channel.perron, channel.ratio
    shifts = channel.squared_norm / tokens / np.array([first, ratio * first]) ** 2
    return float(ratio * (shifts[1] - shifts[0]))


def _slopes(logs: Real, sizes: tuple[int, ...]) -> Real:
    """Slopes of rows against the logarithms of the sizes, by least squares."""
    x = np.log(sizes) - np.mean(np.log(sizes))
    return np.asarray(logs @ x / (x @ x))


def _longest(tokens: int) -> float:
    """Mean square of the longest of so many standard Gaussian numbers."""
    x = np.linspace(0, 12, 24_001)
    return float(np.trapezoid(2 * x * (1 - (2 * ndtr(x) - 1) ** tokens), x))
