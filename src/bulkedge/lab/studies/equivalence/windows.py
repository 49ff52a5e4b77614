"""Sliding windows have a law of their own (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claims, Study, dataset, follows, mean_marks, sign, track
from bulkedge.lab.studies.equivalence import UNKNOWN, large_entries
from bulkedge.laws import FiniteHeadLaw, QuarterCircle, WindowLaw
from bulkedge.plots.style import COLOURS, histogram, line, panels
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter
from bulkedge.visibility import Mask

LEVELS = np.array([0.15, 0.3, 0.5, 0.7, 0.9])
"""Levels of the law at whose quantiles distribution functions are compared."""
RIVALS = "the head without a mask, of as many tokens as the window", "independent scores"


@dataclass(frozen=True)
class EquivalenceWindows(Study):
    """The bulk of sliding-window attention follows the law of windows.

    The rivals are the law of full attention over as many tokens as the window has, and the quarter circle, that of
    independent scores, whose mask does not matter far from the ends. A window that looks back has a share of about
    ``width/(2 tokens)`` of singular values next to zero, which neither knows.
    """

    tokens: int = parameter(Integers(128, 10_000), "tokens", 768, ours=2048)
    width: int = parameter(Integers(32, 5000), "tokens that a token sees", 96, ours=256)
    head_dim: int = parameter(Integers(32, 4096), "head dimension", 32, ours=64)
    betas: tuple[float, ...] = parameter(Each(Interval(0.05, 1), most=4), "values of beta", (0.3, 0.5), ours=(0.5, 0.8))
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=True, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws", 10, ours=8)
    small = {"tokens": 512, "width": 64, "betas": (0.3,), "draws": 8}
    caption = """The bulk of attention to a sliding window, its law, and what other laws say. Compare bars and
    orange line in the first panel, and see in the second that both rivals are several times farther away."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Distribution functions, densities and distances for each beta."""
        bins = np.linspace(-6, 4, 41)
        shown = np.linspace(-6, 4, 300)
        parts = []
        for beta in track(self.betas, "betas"):
            mask = Mask.window(self.tokens, self.width)
            model = SoftmaxAttention(self.tokens, self.head_dim, beta, self.qk_norm, mask)
            law = WindowLaw(beta, self.head_dim, self.tokens, self.width, qk_norm=self.qk_norm)
            scale = self.tokens / self.width
            full = FiniteHeadLaw(beta, self.head_dim, self.width, self.qk_norm).scaled(scale)
            laws = law, full, QuarterCircle(scale * float(np.expm1(beta**2))).squared()
            places = law.ppf(LEVELS)
            found = [model.spectrum(rng) for _ in range(self.draws)]
            logs = [np.log10(np.maximum(each.values, 1e-300)) for each in found]
            parts.append(
                dataset(
                    mass=(("draw", "level"), [np.searchsorted(each.values, places, side="right") for each in found]),
                    rival=(("other", "level"), [each.cdf(places) for each in laws[1:]]),
                    simulation=(("draw", "bin"), [np.histogram(row, bins)[0] for row in logs]),
                    density=(("law", "point"), [each.pdf(10**shown) * 10**shown * np.log(10) for each in laws]),
                    distance=(("draw", "law"), [[compare(each, one).ks for one in laws] for each in found]),
                )
            )
        data = xr.concat(parts, dim=xr.Variable("beta", list(self.betas)))
        data["mass"] = data.mass / self.tokens
        data["simulation"] = data.simulation / self.tokens / (bins[1] - bins[0])
        return data.assign_coords(
            level=LEVELS, other=list(RIVALS), law=["windows", *RIVALS], point=shown, bin_edge=bins
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of each rival is in the bulk, and which law is nearest."""
        reason = (
            "derived: rank of what the law leaves out, over T: the zero of the constant vector, the term of norms of "
            "keys, and the expected number of entries whose square exceeds the variance of a row"
        )
        for beta in self.betas:
            one = data.sel(beta=beta)
            left_out = UNKNOWN / self.tokens + large_entries(beta, self.width) / self.width
            for k, name in enumerate(RIVALS):
                text = f"share of {name} in the bulk, beta = {beta:g}"
                rival = name, one.rival.values[k]
                yield follows(text, "ours", one.mass, LEVELS, rival, left_out, reason)
        for name in RIVALS:
            gain = data.distance.sel(law=name) - data.distance.sel(law="windows")
            yield sign(f"distance to {name} minus that to the law of windows", "ours", gain.mean("beta"), "no nearer")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=2.8)
        bulk, distance = grid[0]
        first = data.isel(beta=0)
        histogram(bulk, 10**data.bin_edge, first.simulation.mean("draw"))
        for name, colour in zip(data.law.values.tolist(), COLOURS[1:], strict=False):
            line(bulk, 10**data.point, first.density.sel(law=name), label=name, color=colour, lw=1.0)
            mean_marks(distance, data.beta, data.distance.sel(law=name), label=name, color=colour)
        bulk.set(xscale="log", xlabel="squared singular value", ylabel="density, per decade")
        bulk.set_ylim(0, 2 * float(first.simulation.mean("draw").max()))
        bulk.set_title(f"β = {float(data.beta[0]):g}, {self.tokens} tokens, window {self.width}")
        distance.set(yscale="log", xlabel="β", ylabel="Kolmogorov distance")
        figure.legend(*bulk.get_legend_handles_labels(), loc="outside lower center", ncols=1)
        return figure
