"""Is key-query attention a random Markov matrix (*propagation*, Proposition 1)? Only if heads are wider than long."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.ensembles.markov import RandomMarkov
from bulkedge.inference.comparison import separation
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, difference, mean_marks, track
from bulkedge.lab.studies.propagation import POSITIVE, RIGID, RIVAL, decades, rigidity, sizes_axis
from bulkedge.laws import AttentionLaw, FiniteHeadLaw, Law, QuarterCircle
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.support.domains import Each, Integers, Interval, parameter

LAWS = ("quarter circle", "finite head", "proportional")
BOTH = "propagation: Proposition 1; equivalence: Theorem 3.2"
NARROW, WIDE = 1.0, 8.0
"""Heads up to so many dimensions for each token differ from random Markov matrices; from so many on they are like
them."""
LENGTHS = (
    "1/sqrt(d T), as mean squared lengths of T queries and T keys fluctuate by sqrt(2/(d T)) each and scale the bulk"
)
RAGGED = 0.33
"""By how much of :func:`rigidity` spectra are farther from the quarter circle than their law is."""


@dataclass(frozen=True)
class PropagationKeyQuery(Study):
    """Key-query attention of the first layer differs from random Markov matrices unless d is far above T.

    Scores of one query, or of one key, are independent; all of them are a matrix of rank d. *propagation*, Proposition
    1, takes them as independent, and then the bulk is a quarter circle. *equivalence*, Theorem 3.2, has its law at d/T
    fixed, and the finite-head law at any d. The Kolmogorov distance to the quarter circle is that of the two laws: at d
    = T it does not fall with the number of tokens.
    """

    tokens: int = parameter(Integers(100, 5000), "number of tokens T", 320, ours=512)
    head_dims: tuple[int, ...] = parameter(
        Each(Integers(32, 4096)),
        "head dimensions d",
        (32, 64, 128, 320, 1000, 4000),
        ours=(32, 64, 128, 512, 2048, 4096),
    )
    beta: float = parameter(Interval(0.1, 1), "standard deviation of the scores", 0.5, ours=0.5)
    draws: int = parameter(Integers(4, 1000), "draws of each", 10, ours=12)
    small = {"tokens": 200, "head_dims": (64, 200, 2000), "draws": 8}
    caption = """Distances of key–query attention to three laws over the head dimension, the density of a
    narrow and of a wide head, and the distance at d = T over tokens. The distance to the quarter circle falls only
    when the head dimension is far above the number of tokens."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every head dimension, a random Markov matrix of the same variance, and d = T at fewer tokens."""
        parts = [self._measure(dim, rng) for dim in track(list(self.head_dims), "head dimensions")]
        markov = RandomMarkov(self.tokens, self.variance)
        floor = [distance(markov.spectrum(rng).values, self.circle) for _ in range(self.draws)]
        # the part at d = T compares T with T over this
        few = self.tokens // 4
        square = []
        for size in (few, self.tokens):
            head = SoftmaxAttention(size, size, self.beta)
            square.append([distance(head.spectrum(rng).values, self.circle) for _ in range(self.draws)])
        found = xr.concat(parts, dim=xr.Variable("head_dim", list(self.head_dims)))
        return found.assign(
            markov=("draw", floor, {"long_name": "distance of a random Markov matrix to the quarter circle"}),
            square=(("size", "draw"), square, {"long_name": "distance to the quarter circle at d = T"}),
            square_limit=((), separation(AttentionLaw(self.beta, 1.0), self.circle)),
        ).assign_coords(size=[few, self.tokens], law=list(LAWS))

    @property
    def variance(self) -> float:
        """That of the weights, ``exp(beta**2) - 1``."""
        return float(np.expm1(self.beta**2))

    @property
    def circle(self) -> Law:
        """What the bulk would be if scores were independent."""
        return QuarterCircle(self.variance).squared()

    def _measure(self, dim: int, rng: np.random.Generator) -> xr.Dataset:
        laws = (self.circle, FiniteHeadLaw(self.beta, dim, self.tokens), AttentionLaw(self.beta, dim / self.tokens))
        drawn = [SoftmaxAttention(self.tokens, dim, self.beta).spectrum(rng).values for _ in range(self.draws)]
        edge = 1.05 * np.sqrt(max(law.edge for law in laws[:2]))
        edges = np.linspace(0, edge, 41)
        x = np.linspace(0, edge, 200)[1:]
        counts = np.histogram(np.sqrt(np.concatenate(drawn)), edges)[0]
        distances = [[distance(values, law) for values in drawn] for law in laws]
        return dataset(
            distance=(("law", "draw"), distances, "Kolmogorov distance of the squared bulk"),
            apart=((), separation(laws[1], laws[0]), "distance of the two laws"),
            simulation=("bin", counts / (self.draws * self.tokens) / np.diff(edges)),
            x=("point", x),
            finite=("point", laws[1].sqrt().pdf(x)),
            circle=("point", laws[0].sqrt().pdf(x)),
            bin_edge=("end", edges),
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Where it is a random Markov matrix, where it is not, and what it is then."""
        narrow = [dim for dim in self.head_dims if dim <= NARROW * self.tokens]
        wide = [dim for dim in self.head_dims if dim >= WIDE * self.tokens]
        for dim in narrow:
            one = data.sel(head_dim=dim)
            text = f"d = {dim}: distance to the quarter circle is that of the finite-head law"
            rival = "a random Markov matrix", data.markov.mean()
            reason = f"{RIGID}; {LENGTHS}"
            finite_size = self._floor(dim)
            yield Claim(text, BOTH, one.distance.sel(law=LAWS[0]), one.apart, rival, finite_size, reason)
            yield Claim(
                f"d = {dim}: distance to the finite-head law, at most that of a draw from it",
                "equivalence: Theorem 3.2; ours",
                one.distance.sel(law=LAWS[1]),
                0.0,
                ("a random Markov matrix", one.apart),
                finite_size=self._floor(dim),
                reason=f"{RIGID}; {LENGTHS}",
                relation="<=",
                one_sided=POSITIVE,
            )
        for dim in wide:
            one = data.sel(head_dim=dim)
            yield Claim(
                f"d = {dim}, far above T: distance to the quarter circle, at most that of a draw from the law",
                "propagation: Proposition 1",
                one.distance.sel(law=LAWS[0]),
                0.0,
                ("as far as at d = T", data.square_limit),
                finite_size=self._floor(dim) + float(one.apart),
                reason=f"{RIGID}; what the finite-head law keeps at d/T = {dim / self.tokens:g}",
                relation="<=",
                one_sided=POSITIVE,
            )
        span, limit = np.log(data["size"].values[1] / data["size"].values[0]), float(data.square_limit)
        logs = np.log(data.square.values)
        text = "d = T: exponent of T in the distance to the quarter circle, whose limit is 0"
        measured = difference(logs[1] / span, logs[0] / span)
        rival = "-1, as that of random Markov matrices", -1.0
        apart = [separation(FiniteHeadLaw(self.beta, size, size), self.circle) for size in data["size"].values.tolist()]
        whole = [each + RAGGED * rigidity(size) for each, size in zip(apart, data["size"].values.tolist(), strict=True)]
        predicted = float(np.log(whole[1] / whole[0]) / span)
        reason = f"fitted: at 50 to 200 tokens spectra are farther from it than laws, by {RAGGED:g} +- 0.03 of rigidity"
        finite_size = 0.1 * RAGGED * rigidity(int(data["size"][0])) / limit / span
        yield Claim(text, BOTH, measured, predicted, rival, finite_size, reason)

    def _floor(self, dim: int) -> float:
        """How far from its law a spectrum may be at this size."""
        return rigidity(self.tokens) + (dim * self.tokens) ** -0.5

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 4, width=2.4)
        left, narrow, wide, right = grid[0]
        tokens = int(data["size"][-1])
        line(left, data.head_dim, data.apart, label="finite-head law to quarter circle")
        for name, colour, symbol in zip(LAWS, (COLOURS[0], COLOURS[2], COLOURS[3]), "os^", strict=True):
            values = data.distance.sel(law=name)
            mean_marks(left, data.head_dim, values, label=f"to {name}", color=colour, fmt=symbol)
        left.axhline(float(data.markov.mean()), label="Markov to quarter circle", **RIVAL)
        left.axvline(tokens, color="0.7", lw=0.8, zorder=0, label="d = T")
        decades(left)
        left.set(ylabel="Kolmogorov distance", ylim=(0.004, 1))
        sizes_axis(left, data.head_dim, "head dimension d")
        left.tick_params(axis="x", labelrotation=45)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=6, fontsize=6)
        for axes, index in ((narrow, min(1, data.sizes["head_dim"] - 1)), (wide, -1)):
            one = data.isel(head_dim=index)
            histogram(axes, one.bin_edge, one.simulation)
            line(axes, one.x, one.finite, label="finite-head law")
            line(axes, one.x, one.circle, label="quarter circle", **RIVAL)
            top = max(1.6 * float(one.circle.max()), 1.1 * float(one.simulation.max()))
            axes.set(title=f"d = {int(one.head_dim)}", xlabel=r"$\sqrt{T} s_k(A - uu')$", ylim=(0, top))
            axes.set_ylabel("density")
        narrow.legend(loc="upper right", fontsize=6)
        mean_marks(right, data["size"], data.square, label="d = T")
        right.axhline(float(data.square_limit), color=COLOURS[1], label="limit at d = T")
        falling = float(data.square.isel(size=0).mean()) * data["size"].values[0] / data["size"].values
        line(right, data["size"], falling, label="were it Markov: 1/T", **RIVAL)
        right.set(ylabel="distance to quarter circle", ylim=(0, 0.25))
        sizes_axis(right, data["size"])
        right.legend(loc="upper right", fontsize=6)
        title = f"key-query attention, layer 1: T = {tokens}, β = {self.beta}, {data.sizes['draw']} draws"
        figure.suptitle(title, fontsize=8)
        return figure


def distance(values: Real, law: Law) -> float:
    """Kolmogorov distance of all values to a law, those beyond its edge among them."""
    below = np.arange(len(values)) / len(values)
    at = law.cdf(np.sort(values))
    return float(np.max(np.maximum(np.abs(at - below), np.abs(at - below - 1 / len(values)))))
