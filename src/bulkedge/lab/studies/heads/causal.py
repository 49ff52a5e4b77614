"""Heads of decoders: the law of causal attention at the size of real heads (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.equivalence.causal import shifted
from bulkedge.lab.studies.heads.setting import causal_bulk
from bulkedge.laws import CausalHeadLaw, CausalLaw, FiniteHeadLaw
from bulkedge.plots.style import COLOURS, histogram, line, marks, panels
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Choice, Integers, Interval, parameter
from bulkedge.support.estimates import Estimate
from bulkedge.support.progress import track

LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
"""Levels of the law at whose quantiles distribution functions are compared."""
BINS, SHOWN = 36, 8
ENOUGH = 600
"""Tokens from which on the shift of the mean's values by the first rows hardly changes."""
NAMES = {"law": "causal head", "independent": "independent scores", "full": "without a mask"}


@dataclass(frozen=True)
class HeadsCausal(Study):
    """The bulk of a causal head is that of scores of low rank behind a mask, and its outliers are those of the mean.

    Rivals are independent scores behind a mask, and the same head without a mask. The mean is the Cesaro matrix, with a
    family of outliers where attention without a mask has one.
    """

    tokens: int = parameter(Integers(64, 20_000), "tokens", 400, ours=2000)
    head_dim: int = parameter(Integers(32, 4096), "head dimension", 64, ours=64)
    beta: float = parameter(Interval(0.05, 1), "inverse temperature", 0.5, ours=0.5)
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=False, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws", 12, ours=12)
    small: ClassVar = {"tokens": 200, "head_dim": 32, "draws": 8, "qk_norm": True}

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions at the quantiles of the law, histograms, and the largest values of attention."""
        model = SoftmaxAttention(self.tokens, self.head_dim, self.beta, self.qk_norm, mask="causal")
        law = CausalHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)
        independent = CausalLaw(np.expm1(self.beta**2))
        full = FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm)
        points = np.asarray(law.ppf(LEVELS))
        bins = np.linspace(-8, np.log10(law.edge) + 0.5, BINS + 1)
        shown = np.linspace(bins[0], bins[-1], 300)
        masses, counts, top = [], [], []
        for _ in track(range(self.draws), "draws"):
            values = model.spectrum(rng).values
            masses.append(np.searchsorted(values, points, side="right") / self.tokens)
            logs = np.log10(np.maximum(values, 1e-300))
            counts.append(np.histogram(logs, bins)[0] / self.tokens / np.diff(bins))
            top.append(spectrum(model.sample(rng)).values[: -SHOWN - 1 : -1])
        mean = np.sqrt([each.location / self.tokens for each in law.outliers(SHOWN)])
        moved = shifted(min(self.tokens, ENOUGH), self.beta, SHOWN)
        curves = {"law": law, "independent": independent, "full": full}
        return xr.Dataset(
            {
                "mass": (("draw", "level"), masses, {"long_name": "distribution function"}),
                "rival": ("level", independent.cdf(points), {"long_name": "that of independent scores"}),
                "unmasked": ("level", full.cdf(points), {"long_name": "that of the head without a mask"}),
                "simulation": (("draw", "bin"), counts),
                "value": (("draw", "rank"), top, {"long_name": "singular value of A"}),
                "mean": ("rank", mean, {"long_name": "that of the Cesaro matrix"}),
                "shift": ("rank", moved.shift, {"long_name": "its mean shift by the fluctuations of rows"}),
                "next": ("rank", moved.error, {"long_name": "size of the next order"}),
                **{
                    f"density_{name}": ("point", each.pdf(10**shown) * 10**shown * np.log(10))
                    for name, each in curves.items()
                },
                **{f"cdf_{name}": ("point", each.cdf(10**shown)) for name, each in curves.items()},
            },
            coords={"level": LEVELS, "point": shown, "bin_edge": bins, "rank": np.arange(1, SHOWN + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The bulk against both rivals, and the largest value."""
        claims = causal_bulk(data, self.tokens, "a causal head")
        claims.append(
            Claim(
                statement="largest singular value of causal attention",
                place="ours",
                measured=Estimate.of(data.value.sel(rank=1)),
                predicted=float((data["mean"] + data["shift"]).sel(rank=1)),
                rival=Rival("one, as without a mask", 1.0),
                finite_size=float(data.next.sel(rank=1)),
                reason="the next order of the expansion in the fluctuations of rows",
            )
        )
        return claims

    def figure(self, data: xr.Dataset) -> Figure:
        """Density and distribution function on a logarithmic axis, and the largest values with those of the mean."""
        figure, grid = panels(1, 3, width=3.1, height=3.0)
        density, function, top = grid[0]
        histogram(density, 10**data.bin_edge, data.simulation.mean("draw"))
        for (name, label), colour in zip(NAMES.items(), COLOURS[1:], strict=False):
            look = {} if name == "law" else {"lw": 0.9, "ls": "--"}
            line(density, 10**data.point, data[f"density_{name}"], label=label, color=colour, **look)
            line(function, 10**data.point, data[f"cdf_{name}"], label="", color=colour, **look)
        below = data.mass.mean("draw")
        places = 10 ** np.interp(data.level, data.cdf_law, data.point)
        marks(function, places, below, data.mass.std("draw", ddof=1), label="simulation", ms=3)
        highest = 2.4 * float(max(data.simulation.mean("draw").max(), data.density_law.max()))
        density.set(ylabel="density, per decade", ylim=(0, highest))
        function.set(ylabel="distribution function", ylim=(0, 1.02))
        for axes in (density, function):
            axes.set(xscale="log", xlabel="squared singular value")
        marks(
            top, data["rank"], data.value.mean("draw"), data.value.std("draw", ddof=1), label="causal attention", ms=3
        )
        moved = data["mean"] + data["shift"]
        line(top, data["rank"], moved, label="Cesàro, with fluctuations", marker=".", color=COLOURS[1])
        line(top, data["rank"], data["mean"], label="Cesàro matrix", color=COLOURS[2], lw=0.9, ls="--")
        top.set(xlabel="rank", ylabel="singular value", xticks=data["rank"].values, ylim=(0, 1.5 * float(moved.max())))
        for axes, place in ((density, "upper left"), (function, "lower right"), (top, "upper right")):
            axes.legend(loc=place)
        sizes = f"{self.tokens} tokens, {self.head_dim} dimensions"
        figure.suptitle(f"{sizes}, β = {self.beta:g}, {self.draws} draws")
        return figure
