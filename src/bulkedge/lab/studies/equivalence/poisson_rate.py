"""How fast attention becomes one-hot and its spectrum Poisson: open question 1 of *equivalence*, answered (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.special import expit, ndtr
from scipy.stats import poisson

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, average, dataset, mean_marks, track
from bulkedge.lab.studies.equivalence.poisson import EquivalencePoisson
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.support.domains import Each, Integers, Interval, parameter

PLACE = "equivalence: Open question 1"
COUNTS = np.arange(40)
SPLIT = 2 * np.log(2) - 1
"""Mean squared distance of a row to the one-hot row, over ``M/beta``: the integral of ``2/(1 + e**x)**2``."""


@dataclass(frozen=True)
class EquivalencePoissonRate(Study):
    """Distances between the spectrum of attention at large beta and the Poisson law, over beta and over T.

    O has one-hot rows at the maxima. ``E|A - O|**2/T`` tends to ``(2 log 2 - 1) M/beta``, which bounds the squared
    Wasserstein-2 distance of the singular values (Hoffman and Wielandt); the distance itself is ``0.141 M/beta``. The
    squared singular values of O are the numbers of rows that attend to a key. Their Wasserstein-1 distance to
    Poisson(1) falls like ``0.775/sqrt(T)``, plus what longer keys, which are chosen more often, add.
    """

    tokens: tuple[int, ...] = parameter(
        Each(Integers(100, 10_000)),
        "tokens and dimensions, one-hot rows",
        (100, 400, 1600),
        ours=(100, 400, 1600, 6400),
    )
    size: int = parameter(Integers(100, 4000), "tokens and dimensions at finite beta", 200, ours=600)
    betas: tuple[float, ...] = parameter(
        Each(Interval(10, 10_000)), "values of beta", (40.0, 80.0, 160.0), ours=(40.0, 80.0, 160.0, 320.0)
    )
    draws: int = parameter(Integers(4, 10_000), "draws of each", 200, ours=100)
    small = {"tokens": (100, 200), "size": 100, "draws": 120}
    caption = """Squared distances between attention and one-hot rows over β (left), and the Wasserstein
    distance between the numbers of rows of one-hot attention and the Poisson law over T (right). Points should lie on
    the lines, whose constants are derived."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Spectra at finite beta beside those of their one-hot rows, and numbers of rows at several sizes."""
        pairs = [self._pair(beta, rng) for beta in track(self.betas, "beta")]
        away = [[_distance(each, rng) for _ in range(self.draws)] for each in track(self.tokens, "tokens")]
        theory = [count_distance(each, self.setting(each).popularity()) for each in self.tokens]
        return dataset(
            frobenius=(("beta", "draw"), [each[0] for each in pairs], "|A - O|^2/T"),
            values=(("beta", "draw", "rank"), [each[1] for each in pairs], "singular values of A, and of O"),
            rate=("beta", self.setting(self.size).largest() / np.array(self.betas), "M/beta"),
            away=(("tokens", "draw"), away, "Wasserstein distance of the numbers of rows to Poisson(1)"),
            predicted=("tokens", theory),
            even=("tokens", [count_distance(each, 1 / each) for each in self.tokens], "the same for keys alike"),
            coords={"beta": list(self.betas), "tokens": list(self.tokens)},
        )

    def setting(self, tokens: int) -> EquivalencePoisson:
        """M and the popularity of keys stand in the study of the atoms."""
        return EquivalencePoisson(tokens=tokens, head_dim=tokens)

    def _pair(self, beta: float, rng: np.random.Generator) -> tuple[Real, Real]:
        model = SoftmaxAttention(self.size, self.size, beta)
        distances, values = [], []
        for _ in range(self.draws):
            matrix = model.sample(rng)
            one_hot = np.eye(self.size)[matrix.argmax(axis=1)]
            distances.append(np.sum((matrix - one_hot) ** 2) / self.size)
            both = np.sort(np.linalg.svd(matrix, compute_uv=False)), np.sort(np.sqrt(one_hot.sum(axis=0)))
            values.append(np.concatenate(both))
        return np.array(distances), np.array(values)

    def statements(self, data: xr.Dataset) -> Claims:
        """Distance of rows, distance of spectra, and distance of counts at each size."""
        rate = data.rate.values
        expansion = SPLIT + second_order() * rate
        text = "|A - O|^2/T over its first two orders in M/beta, mean over beta"
        ratio = average(data.frobenius.transpose("draw", "beta") / (rate * expansion))
        order = float(np.mean(rate**2)) * second_order() ** 2 / SPLIT**2
        reason = "derived: the third order, the square of what the second adds"
        yield Claim(text, PLACE, ratio, 1.0, ("every row split in halves: 1/2", 0.5 / SPLIT), order, reason)
        text = "squared Wasserstein-2 distance of the singular values of A and O over M/beta, mean over beta"
        found = [Estimate.jackknife(_transport, each) for each in data["values"].values]
        value, errors = np.array([each.value for each in found]), np.array([each.error for each in found])
        error = float(np.linalg.norm(errors / rate)) / len(rate)
        mean = Estimate(float(np.mean(value / rate)), error, min(each.freedom for each in found))
        order = transport_constant() * second_order() / SPLIT * float(np.mean(rate))
        reason = "derived: the next order, as large in proportion as that of the distance of rows"
        yield Claim(
            text, PLACE, mean, transport_constant(), ("the bound of Hoffman and Wielandt", SPLIT), order, reason
        )
        for tokens in data.tokens.values.tolist():
            one = data.sel(tokens=tokens)
            text = f"{tokens} tokens: Wasserstein-1 distance of the numbers of rows to Poisson(1), times sqrt(T)"
            root, reason = tokens**0.5, "derived: numbers are whole, and the next order of the normal approximation"
            rival = "independent draws from the Poisson law", root * independent_distance(tokens)
            yield Claim(text, PLACE, root * one.away, root * one.predicted, rival, 0.5 / root, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.6)
        left, right = grid[0]
        fine = np.geomspace(min(self.betas), max(self.betas), 40)
        rate = float(data.rate[0] * data.beta[0]) / fine
        line(left, fine, SPLIT * rate + second_order() * rate**2, label="rows: two orders")
        line(left, fine, transport_constant() * rate, label="singular values: first order", color=COLOURS[3])
        mean_marks(left, data.beta, data.frobenius)
        transport = [_transport(each) for each in data["values"].values]
        marks(left, data.beta, np.array(transport), np.zeros(len(transport)), color=COLOURS[2], fmt="s")
        left.set(xscale="log", yscale="log", xlabel="β", ylabel="squared distance to one-hot rows")
        line(right, data.tokens, data.predicted, label="theory")
        line(right, data.tokens, data.even, label="keys alike", color=COLOURS[-1], ls=":")
        mean_marks(right, data.tokens, data.away)
        right.set(xscale="log", yscale="log", xlabel="tokens", ylabel="Wasserstein distance to Poisson(1)")
        for axes in grid[0]:
            axes.legend(loc="upper right")
        figure.suptitle(f"{self.size} tokens and dimensions (left); {self.draws} draws", fontsize=8)
        return figure


def _distance(tokens: int, rng: np.random.Generator) -> float:
    """Wasserstein-1 distance to Poisson(1) of the numbers of rows whose largest score is at a key."""
    query, key = rng.standard_normal((2, tokens, tokens), dtype=np.float32)
    counts = np.bincount((query @ key.T).argmax(axis=1), minlength=tokens)
    found = np.searchsorted(np.sort(counts), COUNTS, side="right") / tokens
    return float(np.abs(found - poisson.cdf(COUNTS, 1)).sum())


def _transport(pairs: Real) -> float:
    """Squared Wasserstein-2 distance of all singular values of A (first half of a row) and of O (second half)."""
    first, second = np.split(np.atleast_2d(pairs), 2, axis=1)
    return float(np.mean((np.sort(first, axis=None) - np.sort(second, axis=None)) ** 2))


def count_distance(tokens: int, uneven: float) -> float:
    """Expected Wasserstein-1 distance of the counts to Poisson(1); ``uneven = E (T p)**2 - 1`` over keys."""
    # shares of columns with at most k rows have the variance (G(1 - G) - p_k**2)/T, and the mean of random rates
    share, below = poisson.pmf(COUNTS, 1), poisson.cdf(COUNTS, 1)
    deviation = np.sqrt(np.maximum(below * (1 - below) - share**2, 1e-300) / tokens)
    shift = (uneven - 1 / tokens) / 2 * np.diff(share, prepend=0.0)
    return float(np.sum(_folded(shift, deviation)))


def independent_distance(tokens: int) -> float:
    """The same for T independent Poisson numbers, whose sum is not fixed."""
    below = poisson.cdf(COUNTS, 1)
    return float(np.sum(np.sqrt(2 / np.pi * below * (1 - below) / tokens)))


def _folded(mean: Real, deviation: Real) -> Real:
    """Mean absolute value of normal variables."""
    ratio = mean / np.maximum(deviation, 1e-12)
    return np.asarray(deviation * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + mean * (1 - 2 * ndtr(-ratio)))


@cache
def second_order() -> float:
    """Coefficient of ``(M/beta)**2`` in ``E|A - O|**2/T``."""
    # scores below the largest come, at x/beta, with the rate eps E exp(eps x), E exponential, eps = M/beta: the growth
    # adds int x f(x), and pairs add int int f(x, y) - f(x) - f(y), as E E**2/2 = 1
    nodes, weights = np.polynomial.legendre.leggauss(200)
    x, weights = 20 * (nodes + 1), 20 * weights
    single = 2 * expit(-x) ** 2
    first, second = np.exp(-x)[:, None], np.exp(-x)[None, :]
    total = 1 + first + second
    pair = ((first + second) ** 2 + first**2 + second**2) / total**2
    return float(weights @ (x * single) + weights @ (pair - single[:, None] - single[None, :]) @ weights)


@cache
def transport_constant() -> float:
    """Squared Wasserstein-2 distance between the singular values of A and O, over ``M/beta``, to first order."""
    # a split row, w and 1 - w, joins two keys of m and n other rows to a block with two eigenvalues (see poisson.py);
    # between two atoms quantiles move to the upper one where the distribution function exceeds that of O, else lower
    others = np.arange(14)
    x, step = (np.arange(1500) + 0.5) / 60, 1 / 60
    w, m, n = np.meshgrid(expit(-x), others, others, indexing="ij")
    middle, half = (m + w**2 + n + (1 - w) ** 2) / 2, (m + w**2 - n - (1 - w) ** 2) / 2
    half = np.sqrt(half**2 + (w * (1 - w)) ** 2)
    mass = np.tile((poisson.pmf(m, 1) * poisson.pmf(n, 1) * step).ravel(), 2)
    found = np.concatenate([(middle - half).ravel(), (middle + half).ravel()])
    # x > 0 and w < 1/2: the row belongs to the key with n others
    before = np.concatenate([m.ravel(), (n + 1).ravel()])
    order = np.argsort(found)
    cost, place, share = 0.0, found[order], mass[order]
    for k in others:
        inside = (place > k + 1e-12) & (place < k + 1)
        surplus = share[place <= k + 1e-12].sum() - mass[before <= k].sum() + np.cumsum(share[inside])
        root = np.sqrt(place[inside])
        upper = surplus - share[inside] / 2 > 0
        cost += float(share[inside] @ np.where(upper, np.sqrt(k + 1) - root, root - np.sqrt(k)) ** 2)
    return cost
