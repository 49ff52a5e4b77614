"""Sharp heads: independent scores at any beta, between the bulk law and one-hot rows, and keys and queries (ours)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bulkedge.ensembles import SoftmaxAttention
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claim, Claims, Real, Study, dataset, follows, track
from bulkedge.laws import CausalHeadLaw, FiniteHeadLaw, HeadLaw, MarchenkoPastur, PoissonLaw, SharpHeadLaw
from bulkedge.laws.attention.finite_head import finite_size
from bulkedge.laws.distribution import Distribution
from bulkedge.plots.style import COLOURS, line, marks, panels, plain_ticks
from bulkedge.spectra import Spectrum, spectrum
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.support.errors import RegimeWarning
from bulkedge.visibility import softmax

LEVELS = np.linspace(0.02, 0.98, 49)
"""Distribution functions are compared at these quantiles of the law of sharp heads."""
LAWS = {"sharp": "the law of sharp heads", "quarter": "the quarter-circle law", "poisson": "the Poisson law"}
ACCURACY, RANK = 0.005, 2
"""Stated accuracy of the law; and the rank of what it leaves out, the mean of small and of large entries of a row."""
STATED = "fitted: what the law says of its accuracy, from other sizes; and 1/T for each of two terms of rank one"
HEAD_BETA, HEAD_DIM = 3.0, 64
"""Heads of keys and queries that are drawn besides."""
LEAST_LEVEL = 0.06
"""Values of causal heads below this quantile are lost in rounding."""
LOOKS: dict[str, dict[str, Any]] = {
    "sharp": {"label": "law of sharp heads"},
    "quarter": {"label": "quarter circle, same mean", "color": COLOURS[2], "ls": "--", "lw": 1.0},
    "poisson": {"label": "T × Poisson(1)", "color": COLOURS[3], "ls": ":", "lw": 1.2},
}
SYMBOLS = {"sharp": "o", "quarter": "s", "poisson": "^"}
SHOWN = 5
"""Panels of distribution functions at most; the last panel has the distances."""


@dataclass(frozen=True)
class HeadsSharp(Study):
    """Squared singular values of attention with independent scores follow the law of sharp heads at every beta.

    Small beta has the quarter-circle law of a random Markov matrix, and large beta has one-hot rows and the Poisson
    law: Figures 3 and 4 of *equivalence* show the two ends. In between neither is near, also with the variance that the
    matrix really has. Heads of keys and queries, full and causal, follow the law of heads where flat ones do not.
    """

    tokens: int = parameter(Integers(100, 20_000), "tokens", 400, ours=1500)
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.1, 50)),
        "values of beta",
        (0.5, 1.0, 2.0, 3.0, 5.0, 10.0),
        ours=(0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0),
    )
    draws: int = parameter(Integers(2, 1000), "draws for each beta", 12, ours=12)
    masks: tuple[str, ...] = parameter(
        Each(Choice(("full", "causal"))),
        "masks of heads of keys and queries, at beta = 3 and 64 dimensions",
        ("full", "causal"),
        ours=("full", "causal"),
    )
    small = {"tokens": 200, "betas": (3.0,), "draws": 8, "masks": ("causal",)}
    caption = """Distribution functions of squared singular values at several β with three laws, and
    distances to all three over β. The law of sharp heads should follow the simulation at every β, while each of the
    other two works at one end only."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw matrices for each beta, and hold their values against three laws."""
        cells = [self._cell(beta, rng) for beta in track(self.betas, "beta")]
        found = xr.concat(cells, dim="beta").assign_coords(beta=list(self.betas), level=LEVELS)
        heads = [self._head(mask, rng) for mask in track(self.masks, "mask")]
        return xr.merge([found, xr.concat(heads, dim="mask").assign_coords(mask=list(self.masks))])

    def _head(self, mask: str, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions of drawn heads of keys and queries, with the law of heads and that of flat ones."""
        model = SoftmaxAttention(self.tokens, HEAD_DIM, HEAD_BETA, mask=mask)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RegimeWarning)
            flat = (CausalHeadLaw if mask == "causal" else FiniteHeadLaw)(HEAD_BETA, HEAD_DIM, self.tokens)
        law = head_law(mask, self.tokens)
        x = law.ppf(np.maximum(LEVELS, LEAST_LEVEL))
        mass = [np.searchsorted(model.spectrum(rng).values, x, side="right") / self.tokens for _ in range(self.draws)]
        return dataset(
            head_mass=(("draw", "level"), mass, "distribution function"),
            head=("level", law.cdf(x), "law of heads"),
            flat=("level", flat.cdf(x), "law of flat heads"),
            coords={"level": LEVELS},
        )

    def _cell(self, beta: float, rng: np.random.Generator) -> xr.Dataset:
        drawn = [spectrum(sharp_attention(beta, self.tokens, rng)).squared() for _ in range(self.draws)]
        laws = rivals(beta, self.tokens)
        x = np.asarray(laws["sharp"].ppf(LEVELS))
        mass = [np.searchsorted(each.values, x, side="right") / self.tokens for each in drawn]
        distance = [[compare(each, law).ks for each in drawn] for law in laws.values()]
        together = Spectrum.of(np.concatenate([each.values for each in drawn]), drawn[0].unit)
        return dataset(
            x=("level", x, "squared singular value"),
            mass=(("draw", "level"), mass, "distribution function"),
            theory=(("law", "level"), [law.cdf(x) for law in laws.values()]),
            distance=(("law", "draw"), distance, "Kolmogorov distance"),
            pooled=("law", [compare(together, law).ks for law in laws.values()], "all draws together"),
            mean=("draw", [each.values.mean() for each in drawn], "mean squared singular value"),
            expected=((), SharpHeadLaw(beta, self.tokens).mean()),
            coords={"law": list(laws)},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of either limit is in the distribution functions, and the mean."""
        for beta in self.betas:
            one = data.sel(beta=beta)
            for name in ("quarter", "poisson"):
                theory, other = (one.theory.sel(law=law).values for law in ("sharp", name))
                # a rival that is nearer to the law than this, in Kolmogorov distance, is its limit and not a rival
                if np.abs(other - theory).max() >= 0.05:
                    text = f"share of {LAWS[name]} in the distribution functions, beta = {beta:g}"
                    off = ACCURACY + RANK / self.tokens
                    yield follows(text, "ours", one.mass, theory, (LAWS[name], other), off, STATED)
            # from this beta on a matrix has visibly less variance than one with infinitely many tokens
            if beta >= 1.5:
                # no matrix of T tokens has more variance than one with one-hot rows
                rival = ("infinitely many tokens", float(np.expm1(beta**2)))
                if rival[1] > self.tokens - 1:
                    rival = ("one-hot rows", self.tokens - 1)
                text = f"mean squared singular value at a finite number of tokens, beta = {beta:g}"
                yield Claim(text, "ours", one["mean"], one.expected, rival)

        for mask in self.masks:
            one, law = data.sel(mask=mask), head_law(mask, self.tokens)
            text = f"share of the law of flat heads in the distribution functions of {mask} heads of keys and queries"
            off = law.accuracy - finite_size(self.tokens)
            yield follows(text, "ours", one.head_mass, one["head"].values, ("flat heads", one.flat.values), off, STATED)

    def figure(self, data: xr.Dataset) -> Figure:
        betas = data.beta.values[np.unique(np.linspace(0, data.sizes["beta"] - 1, SHOWN).round().astype(int))].tolist()
        columns = min(3, len(betas) + 1)
        figure, grid = panels(-(-(len(betas) + 1) // columns), columns, width=2.5, height=2.3)
        places = grid.ravel()
        for axes, beta in zip(places, betas, strict=False):
            _functions(axes, data.sel(beta=beta), float(beta), self.tokens)
        for axes in grid[:, 0]:
            axes.set_ylabel("share of values up to x")
        _distances(places[len(betas)], data)
        for axes in places[len(betas) + 1 :]:
            axes.set_visible(False)
        figure.legend(*places[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(f"independent scores, {self.tokens} tokens, {data.sizes['draw']} draws for each β")
        return figure


def sharp_attention(beta: float, tokens: int, rng: np.random.Generator) -> Real:
    """``sqrt(T) (A - 1/T)`` for A the softmax of independent normal scores."""
    scores = beta * rng.standard_normal((tokens, tokens))
    return np.asarray(tokens**0.5 * (softmax(scores, None) - 1 / tokens))


def head_law(mask: str, tokens: int) -> HeadLaw:
    """The law of heads of keys and queries behind a mask."""
    return HeadLaw(HEAD_BETA, HEAD_DIM, tokens, causal=mask == "causal")


def rivals(beta: float, tokens: int) -> dict[str, Distribution]:
    """The law of sharp heads and its two limits, with the mean that the matrix has at its size."""
    law = SharpHeadLaw(beta, tokens)
    return {"sharp": law, "quarter": MarchenkoPastur(1.0, law.mean()), "poisson": PoissonLaw(1.0).scaled(tokens)}


def _functions(axes: Axes, one: xr.Dataset, beta: float, tokens: int) -> None:
    low, high = float(one.x[0]), max(float(one.x[-1]), 4.0 * float(one.expected))
    x = np.geomspace(low, 1.5 * high, 400)
    for name, law in rivals(beta, tokens).items():
        line(axes, x, law.cdf(x), **LOOKS[name])
    every = slice(None, None, 3)
    marks(axes, one.x[every], one.mass.mean("draw")[every], one.mass.std("draw", ddof=1)[every], ms=2.5)
    axes.set(xscale="log", ylim=(0, 1.03), title=f"β = {beta:g}", xlabel="squared singular value x")
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _distances(axes: Axes, data: xr.Dataset) -> None:
    for name, symbol in SYMBOLS.items():
        distance = data.distance.sel(law=name)
        colour = LOOKS[name].get("color", "#D55E00")
        look = {"label": "_" + name, "fmt": symbol + "-", "lw": 0.8, "color": colour}
        marks(axes, data.beta, distance.mean("draw"), distance.std("draw", ddof=1), **look)
    line(axes, data.beta, data.pooled.sel(law="sharp"), label="all draws together", ls=":", lw=0.9, marker=".", ms=3)
    axes.legend(loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="β", ylabel="Kolmogorov distance", title="distance to each law")
    plain_ticks(axes.xaxis, data.beta)
    axes.yaxis.set_minor_formatter(NullFormatter())
