"""Figure 3, its second panel: the two largest singular values, until rows attend to one token each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Study, average, dataset, mean_marks, track
from bulkedge.lab.studies.equivalence import DRAWS, TOKENS, sizes_title
from bulkedge.lab.studies.equivalence.top import largest
from bulkedge.laws import AttentionLaw, MarchenkoPastur, TracyWidom
from bulkedge.laws.attention.finite_head import heavy_share
from bulkedge.laws.attention.perron import BETA, perron
from bulkedge.laws.law import Law
from bulkedge.plots.style import COLOURS, line, panels, plain_ticks
from bulkedge.support.domains import Integers, Interval, parameter
from bulkedge.visibility import softmax

LARGEST_LAW = 6.0
"""Largest beta for which the law of the linear model is computed; its edge is far beyond the matrix's norm there."""
SAFE, BROKEN = 0.7, 3.0
"""Up to the first beta less than a thousandth of the variance is in large entries from 400 tokens on; from the second
on nearly all of it is, up to 10,000 tokens."""


@dataclass(frozen=True)
class EquivalenceBreakdown(Study):
    """The two largest singular values follow the linear model, leave it, and end at those of one-hot rows.

    The linear model says that the largest stays at one and that the second is the edge of a bulk that grows like
    ``exp(beta**2)``. One-hot rows have the largest numbers of rows that attend to the same token.
    """

    tokens: int = parameter(*TOKENS, 400, paper=1000)
    head_dim: int = parameter(Integers(100, 10_000), "head dimension", 400, paper=1000)
    last: float = parameter(Interval(5, 100), "largest beta", 50.0, ours=50.0)
    steps: int = parameter(Integers(6, 100), "values of beta from 0.5 on, spaced evenly in the logarithm", 20, ours=40)
    draws: int = parameter(*DRAWS, 10, ours=10)
    small = {"tokens": 200, "head_dim": 200, "steps": 10}
    caption = """The two largest squared singular values of attention over β with those of the linear
    model and of one-hot rows (left), and the second one over the model's edge (right). Follow the squares: they
    keep to the edge at small β, rise above it below β = √log T, and fall far short of it beyond."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw scores, and scale them by each beta; then others, whose rows choose their best token."""
        betas = np.geomspace(0.5, self.last, self.steps)
        model = SoftmaxAttention(self.tokens, self.head_dim, 1.0)
        found, counts = [], []
        for _ in track(range(self.draws), "draws"):
            scores = model.scores(rng)
            found.append([largest(softmax(beta * scores, None), 2) for beta in betas.tolist()])
            chosen = np.bincount(model.scores(rng).argmax(axis=1), minlength=self.tokens)
            counts.append(np.sort(chosen)[:-3:-1])
        values = np.array(found)
        theory = [self._theory(beta) for beta in betas.tolist()]
        return dataset(
            first=(("draw", "beta"), values[..., 0], "s_1(A)^2"),
            second=(("draw", "beta"), values[..., 1], "s_2(A)^2"),
            one_hot=(("draw", "rank"), counts, "largest numbers of rows that choose one token"),
            theory=(("beta", "quantity"), theory),
            coords={"beta": betas, "rank": [1, 2], "quantity": ["perron", "edge", "reach", "rival", "heavy"]},
        )

    def _theory(self, beta: float) -> list[float]:
        """Perron value, edge, mean largest value of the bulk and of Marchenko-Pastur, all of A; nan where not known."""
        heavy = heavy_share(beta, self.tokens)
        if beta > LARGEST_LAW:
            return [np.nan, np.nan, np.nan, np.nan, heavy]
        top = perron(min(beta, BETA.high), self.head_dim, self.tokens)
        law = AttentionLaw(beta, self.head_dim / self.tokens)
        rival = MarchenkoPastur(1.0, law.mean())
        values = [law.edge, self._reach(law), self._reach(rival)]
        return [top.square if top.trusted else np.nan, *(value / self.tokens for value in values), heavy]

    def _reach(self, law: Law) -> float:
        return law.edge + law.edge_scale * self.tokens ** (-2 / 3) * TracyWidom(1).mean()

    def statements(self, data: xr.Dataset) -> Claims:
        """At the edge where the linear model holds, far below it where it does not, and at one-hot rows in the end."""
        theory = {name: data.theory.sel(quantity=name) for name in data["quantity"].values.tolist()}
        safe = data.beta <= SAFE
        ratio = data.second / theory["reach"]
        broken = ratio.sel(beta=slice(BROKEN, LARGEST_LAW))
        rivals = (theory["rival"] / theory["reach"]).where(safe, drop=True)
        text = f"second value over the edge of the linear model, up to beta = {SAFE:g}"
        place = "equivalence: Figure 3, Edge bound"
        measured = _over_draws(ratio.where(safe, drop=True))
        finite_size = 1 / self.tokens
        reason = "fitted: at 100 and 200 tokens it is 0.005 +- 0.005 and 0.003 +- 0.004 high: 1/T at most"
        yield Claim(text, place, measured, 1.0, ("the edge of Marchenko-Pastur", rivals.mean()), finite_size, reason)
        text = f"second value over that edge, at most that of one-hot rows, beta = {BROKEN:g} to {LARGEST_LAW:g}"
        place = "equivalence: Figure 3, Threshold"
        predicted = (data.one_hot.sel(rank=2).mean() / theory["edge"]).sel(beta=broken.beta).mean()
        rival = "the linear model holds for all beta", 1.0
        one_sided = "between the linear model and one-hot rows no theory here gives the number"
        yield Claim(text, place, _over_draws(broken), predicted, rival, relation="<=", one_sided=one_sided)
        yield from self._one_hot(data)

    def _one_hot(self, data: xr.Dataset) -> Claims:
        soft = np.sqrt(2 * np.log(self.tokens)) / self.last
        rivals = {1: ("s_1 = 1, as in the linear model", 1.0), 2: ("s_2 < s_1 = 1", 1.0)}
        values = (1, "s_1", "first", "largest number"), (2, "s_2", "second", "second largest number")
        for rank, name, variable, which in values:
            text = f"{name}(A)^2 at beta = {self.last:g}: the rows that choose one token, {which}"
            place = "equivalence: Figure 3, Open question 1"
            predicted = Estimate.of(data.one_hot.sel(rank=rank))
            finite_size = soft * float(data.one_hot.sel(rank=rank).mean())
            reason = "derived: a share sqrt(2 log T)/beta of the rows is not one-hot and lowers the squares as much"
            yield Claim(text, place, data[variable].isel(beta=-1), predicted, rivals[rank], finite_size, reason)

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=3.0)
        left, right = grid[0]
        theory = {name: data.theory.sel(quantity=name) for name in data["quantity"].values.tolist()}
        line(left, data.beta, theory["perron"], label="linear model: largest")
        line(left, data.beta, theory["edge"], label="linear model: edge", color=COLOURS[2])
        for rank, name, colour, symbol in ((1, "first", COLOURS[0], "o"), (2, "second", COLOURS[3], "s")):
            mean_marks(left, data.beta, data[name], label=f"$s_{rank}(A)^2$", color=colour, fmt=symbol)
            end = float(data.one_hot.sel(rank=rank).mean())
            left.axhline(end, color=colour, ls=":", lw=0.9, label=f"one-hot rows, {rank}")
        left.set(yscale="log", ylabel="squared singular value of A", ylim=(0.5 * float(data.second.min()), 20))
        ratio = data.second / theory["edge"]
        label = "$s_2(A)^2$ over the edge"
        mean_marks(right, data.beta, ratio, label=label, fmt="D", mfc="none", color=COLOURS[4])
        line(right, data.beta, 1 - theory["heavy"], label="variance not in large entries", color=COLOURS[-1], ls="--")
        threshold = np.sqrt(np.log(self.tokens))
        right.set(ylabel="fraction of the linear model's value", ylim=(0, 2.4))
        for axes in grid[0]:
            axes.axvline(threshold, color="0.5", ls="-.", lw=0.8, label=r"$\beta=\sqrt{\log T}$")
            axes.set(xscale="log", xlabel="β")
            plain_ticks(axes.xaxis, [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100) if tick <= 1.01 * self.last])
        left.legend(loc="lower right")
        right.legend(loc="upper right")
        figure.suptitle(f"{sizes_title(self)}, {self.draws} draws", fontsize=8)
        return figure


def _over_draws(values: xr.DataArray) -> Estimate:
    """Mean over beta, whose values share their scores, then over draws."""
    return average(values.mean("beta"))
