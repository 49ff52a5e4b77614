"""What is lost when the noise of attention is taken for white noise: optimal shrinkage against its oracle (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.linalg import eigh

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, mean_marks, track
from bulkedge.laws import AttentionLaw, Law, MarchenkoPastur
from bulkedge.laws.spikes.shrinkage import Loss, factor
from bulkedge.plots.style import COLOURS, line, panels
from bulkedge.support.domains import Integers, Interval, parameter

NOISES = ("white noise", "attention")
LOSSES: dict[Loss, float] = {"frobenius": 1.0, "operator": 0.5, "nuclear": 1.0}
"""The norm of the error, and the order in 1/n in which losses at finite size differ from their limit.

Overlaps on the left and on the right are the same in the limit, and differ by ``n**(-1/2)``. The least operator norm is
that of the larger of the two angles, which is not smooth where they are the same; the other losses are.
"""
RULES = ("the law's shrinkage", "white noise's shrinkage", "truncation")
WEAKEST, STRONGEST = 1.4, 3.0
"""Strengths of the signal, in thresholds: from where the outlier stands clear of the fluctuations of the edge."""
LOOK = {
    "truncation": (COLOURS[3], "s"),
    "white noise's shrinkage": (COLOURS[2], "D"),
    "the law's shrinkage": (COLOURS[0], "o"),
}


@dataclass(frozen=True)
class HeadsShrinkage(Study):
    """Loss of estimates of a rank-one signal in noise, relative to the best multiple of the observed vectors.

    The noise is white, or that of attention without its mean. The shrinkage that knows the law of the noise does as
    well as the oracle, which knows the signal; keeping the singular value as observed (truncation) does not. That for
    white noise of the same variance (Gavish and Donoho 2017) comes close, if it is told the rank; if it is not, it
    takes a share of the values of attention's noise for signal, because they lie beyond the edge of white noise.
    """

    size: int = parameter(Integers(60, 4000), "rows, or tokens; half of it is drawn too, even", 240, ours=600)
    beta: float = parameter(Interval(0.1, 1.25), "score scale of attention", 0.5, ours=0.5)
    head_ratio: float = parameter(Interval(0.2, 4), "head dimension over tokens", 0.5, ours=0.5)
    strengths: int = parameter(Integers(2, 50), "strengths of the signal", 4, ours=8)
    draws: int = parameter(Integers(8, 1000), "matrices for each strength", 24, ours=24)
    small = {"size": 160, "strengths": 3, "draws": 16}
    caption = """Loss of estimates of a rank-one signal over that of the oracle, by the signal's strength,
    for each noise and loss. The blue rule, made from the law of the noise, should stay at one, and truncation
    should be far above it at every strength."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Plant a direction of each strength in noise of both kinds and two sizes."""
        # strengths at which the lines of the figure are computed
        relative, fine = (np.linspace(WEAKEST, STRONGEST, count) for count in (self.strengths, 120))
        parts = [self._measure(noise, relative, fine, rng) for noise in NOISES]
        return xr.concat(parts, dim="noise").assign_coords(
            noise=list(NOISES),
            loss=list(LOSSES),
            rule=list(RULES),
            strength=("strength", relative, {"units": "threshold"}),
            fine_strength=("fine_strength", fine, {"units": "threshold"}),
        )

    def _law(self, noise: str) -> Law:
        return MarchenkoPastur(1.0) if noise == NOISES[0] else AttentionLaw(self.beta, self.head_ratio)

    def _draw(self, noise: str, size: int, rng: np.random.Generator) -> Real:
        if noise == NOISES[0]:
            return rng.standard_normal((size, size)) / np.sqrt(size)
        attention = SoftmaxAttention(size, round(self.head_ratio * size), self.beta).sample(rng)
        return np.asarray(np.sqrt(size) * (attention - 1 / size))

    def _measure(self, noise: str, relative: Real, fine: Real, rng: np.random.Generator) -> xr.Dataset:
        law = self._law(noise)
        threshold = law.singular_spike(1.0, ratio=1.0).threshold
        found = np.array(
            [
                [
                    [self._observed(noise, size, threshold * strength, rng) for size in (self.size, self.size // 2)]
                    for _ in range(self.draws)
                ]
                for strength in track(relative.tolist(), noise)
            ]
        )
        x = threshold * relative
        value, left, right, taken, power = np.moveaxis(found, -1, 0)
        excess = _excess(law, x[:, None, None], value, left, right)
        whole, half = excess[..., 0], excess[..., 1]
        order = 2 ** np.array(list(LOSSES.values()))[:, None, None, None]
        dims = "loss", "rule", "strength", "draw"
        predicted, curve = (_predicted(law, threshold * at) for at in (relative, fine))
        return dataset(
            excess=(dims, whole, "loss over that of the oracle"),
            limit=(dims, (order * whole - half) / (order - 1), "the same, extrapolated"),
            predicted=(dims[:-1], predicted, "its limit"),
            curve=(("loss", "rule", "fine_strength"), curve, "its limit"),
            taken=(dims[2:], 2 * taken[..., 0] - taken[..., 1], "share taken for signal"),
            power=(dims[2:], 2 * power[..., 0] - power[..., 1], "their squared length over n"),
            predicted_taken=((), 1 - law.cdf(_white(law).edge)),
            predicted_power=((), _power(law)),
            threshold=((), threshold, "detection threshold"),
        )

    def _observed(self, noise: str, size: int, x: float, rng: np.random.Generator) -> tuple[float, ...]:
        """Largest singular value, squared overlaps of its vectors with the signal's, and what white noise's rule takes.

        That is the share of the values for which it puts something else than zero, and the sum of the squares of what
        it puts over the size.
        """
        left, right = rng.standard_normal((2, size))
        left, right = left / np.linalg.norm(left), right / np.linalg.norm(right)
        matrix = self._draw(noise, size, rng) + x * np.outer(left, right)
        gram = matrix @ matrix.T
        (square,), vectors = eigh(gram, subset_by_index=(size - 1, size - 1))
        ours, value = vectors[:, 0], np.sqrt(square)
        theirs = ours @ matrix / value
        shrunk = _white(self._law(noise)).shrink(eigh(gram, eigvals_only=True), ratio=1.0)
        return value, (ours @ left) ** 2, (theirs @ right) ** 2, np.mean(shrunk > 0), shrunk.sum() / size

    def statements(self, data: xr.Dataset) -> Claims:
        """The law's shrinkage is the oracle's, truncation is not, and white noise's takes noise for signal."""
        ours, _, truncation = RULES
        for noise in NOISES:
            for loss in LOSSES:
                one, setting = data.sel(noise=noise, loss=loss), f"{noise}, {loss} loss"
                yield _claim(one, f"{setting}: that of {ours} over the oracle's", ours, truncation)
                yield _claim(one, f"{setting}: that of {truncation} over the oracle's", truncation, ours)
        attention = data.sel(noise=NOISES[1])
        for name, statement in (
            ("taken", "share of the values that white noise's shrinkage takes for signal"),
            ("power", "squared length of what it takes for signal, over the size"),
        ):
            rival = "the signal alone, as in white noise", data[f"predicted_{name}"][0]
            yield Claim(f"attention: {statement}", "ours", attention[name], attention[f"predicted_{name}"], rival)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(data.sizes["noise"], data.sizes["loss"], width=2.5, height=1.9)
        for row, noise in zip(grid, data.noise.values.tolist(), strict=True):
            for axes, loss in zip(row, data.loss.values.tolist(), strict=True):
                for rule, (colour, symbol) in LOOK.items():
                    one = data.sel(noise=noise, loss=loss, rule=rule)
                    if noise == "white noise" and rule == "white noise's shrinkage":
                        continue  # the same as the law's
                    line(axes, one.fine_strength, one.curve, label="", color=colour)
                    mean_marks(axes, one.strength, one.limit, label=rule, color=colour, fmt=symbol)
                axes.set_title(f"{noise}, {loss} loss")
            row[0].set_ylabel("loss / loss of the oracle")
            lowest, highest = (pick(axes.get_ylim()[end] for axes in row) for end, pick in ((0, min), (1, max)))
            for axes in row:
                axes.set_ylim(lowest, highest)
        for axes in grid[-1]:
            axes.set_xlabel("strength / threshold")
        figure.legend(*grid[-1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        attention = data.sel(noise="attention")
        figure.suptitle(
            f"n = {self.size}, extrapolated with n/2; {self.draws} draws; β = {self.beta:g}, head "
            f"dimension n × {self.head_ratio:g}\nunless told the rank, white noise's shrinkage takes "
            f"{100 * float(attention.taken.mean()):.1f} % of attention's values for signal "
            f"(predicted {100 * float(attention.predicted_taken):.1f} %)",
            fontsize=7,
        )
        return figure


def _claim(data: xr.Dataset, statement: str, rule: str, rival: str) -> Claim:
    """Mean over the strengths; the rival is that the rule does as another."""
    against = f"that of {rival}", data.predicted.sel(rule=rival).mean()
    return Claim(statement, "ours", data.limit.sel(rule=rule), data.predicted.sel(rule=rule).mean(), against)


def _white(law: Law) -> Law:
    """White noise of the variance of a law."""
    return MarchenkoPastur(1.0, law.mean())


def _power(law: Law) -> float:
    """Mean square of what white noise's shrinkage makes of the values of another noise."""
    levels, weights = np.polynomial.legendre.leggauss(400)
    below = law.cdf(_white(law).edge)
    values = law.ppf(below + (1 - below) * (1 + levels) / 2)
    return float((1 - below) / 2 * np.sum(weights * _white(law).shrink(values, ratio=1.0)))


def _predicted(law: Law, x: Real) -> Real:
    """The limits of what :func:`_excess` finds, shape (losses, rules, strengths)."""
    spike = law.singular_spike(x, ratio=1.0)
    return _excess(law, x, spike.singular_value, spike.left_overlap, spike.right_overlap)


def _excess(law: Law, x: Real, value: Real, left: Real, right: Real) -> Real:
    """Losses over that of the oracle, shape (losses, rules, ...), of signals x whose outliers are observed.

    The oracle puts the best multiple of the observed vectors in the place of the signal; it knows x and the overlaps.
    """
    x, white = np.broadcast_to(x, value.shape), _white(law)
    found = []
    for loss in LOSSES:
        oracle = loss_of(x, x * factor(left, right, loss), left, right, loss)
        rules = [np.sqrt(each.shrink(value**2, loss, ratio=1.0)) for each in (law, white)]
        found.append([loss_of(x, each, left, right, loss) / oracle for each in (*rules, value)])
    return np.array(found)


def loss_of(x: Real, estimate: Real, left: Real, right: Real, loss: str) -> Real:
    """The norm of ``x u v' - estimate u~ v~'``, from its two singular values."""
    c, d = np.sqrt(left), np.sqrt(right)
    square = x**2 + estimate**2 - 2 * x * estimate * c * d  # of the Frobenius norm
    product = x * estimate * np.sqrt((1 - left) * (1 - right))  # of the singular values
    if loss == "frobenius":
        return np.sqrt(square)
    total = np.sqrt(square + 2 * product)
    return total if loss == "nuclear" else (total + np.sqrt(np.maximum(square - 2 * product, 0.0))) / 2
