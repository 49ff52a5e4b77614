"""The spectrum of a head at the length of real contexts (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, sign, track
from bulkedge.lab.studies.equivalence import UNKNOWN, large_entries, shares
from bulkedge.laws import AttentionLaw, FiniteHeadLaw
from bulkedge.laws.distribution import Unit
from bulkedge.plots.style import BARS, COLOURS, histogram, line, panels
from bulkedge.spectra import Spectrum
from bulkedge.support.domains import Choice, Integers, Interval, parameter

LARGE = 4096
"""Tokens from which on a GPU is worth the import of torch."""
LAWS = ("finite-head law", "proportional law")
POINTS = 400
COLOUR = {"finite-head law": COLOURS[1], "proportional law": COLOURS[2]}


@dataclass(frozen=True)
class HeadsLongContext(Study):
    """A head of 64 dimensions that reads thousands of tokens follows the finite-head law in its whole spectrum.

    The law of *equivalence* takes the dimension of a head as proportional to the context; at thousands of tokens that
    misplaces a third of the values. With a GPU, ``--tokens 16384`` takes minutes.
    """

    tokens: int = parameter(Integers(256, 2**16), "number of tokens", 1024, ours=4096)
    head_dim: int = parameter(Integers(32, 1024), "head dimension", 64, ours=64)
    beta: float = parameter(Interval(0.1, 1.25), "inverse temperature", 1.0, ours=1.0)
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=False, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws", 8, ours=6)
    small = {"tokens": 512, "draws": 6}
    caption = """The spectrum of a 64-dimensional head over thousands of tokens with the finite-head law
    and the quarter circle, and the differences of the distribution functions. The bars should follow the
    finite-head law over all decades, where the rival is off by orders of magnitude."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw heads, and hold distances, mass above the noise and distribution functions against laws."""
        model = SoftmaxAttention(self.tokens, self.head_dim, self.beta, self.qk_norm)
        source = generator(rng, self.tokens)
        law, rival = self._laws()
        found = [squared_values(model, source) for _ in track(range(self.draws), "draws")]
        rest = shares(found, law, rival)
        # a perturbation of rank m moves m values past a point at most
        moved = (UNKNOWN + large_entries(self.beta, self.tokens)) / self.tokens
        x = np.geomspace(law.ppf(0.02), 1.3 * max(law.edge, rival.edge), POINTS)
        noise = rival.support[0][1]
        return dataset(
            mass=(("draw", "x"), [_mass(each, x) for each in found], "share of values up to x"),
            predicted=(("law", "x"), [law.cdf(x), rival.cdf(x)], "mass of the law up to x"),
            ks=(("draw", "law"), [[compare(each, which).ks for which in (law, rival)] for each in found]),
            share=("draw", rest.draws, "share of the proportional law"),
            allowed=((), moved * rest.response),
            moved=((), moved, "share of values that no law knows"),
            beyond=("draw", [1 - _mass(each, noise) for each in found], "share beyond the noise"),
            predicted_beyond=("law", [1 - law.cdf(noise), 1 - rival.cdf(noise)]),
            coords={"x": ("x", x, {"long_name": "squared singular value of √T(A − uu′)"}), "law": list(LAWS)},
        )

    def _laws(self) -> tuple[FiniteHeadLaw, AttentionLaw]:
        return (
            FiniteHeadLaw(self.beta, self.head_dim, self.tokens, self.qk_norm),
            AttentionLaw(self.beta, self.head_dim / self.tokens),
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of the proportional law there is, what lies beyond its edge, and which law is nearer."""
        reason = (
            "derived: rank of what the law leaves out, over T: the zero of the constant vector, the term of norms, "
            "and the expected number of entries whose square exceeds the variance of a row"
        )
        text = "share of the proportional law in the distribution function"
        rival = "the proportional law", 1.0
        yield Claim(text, "ours", data.share, 0.0, rival, finite_size=float(data.allowed), reason=reason)
        text = "share of values above the noise, where the proportional law has its first interval end"
        predicted = data.predicted_beyond.sel(law=LAWS[0])
        rival = "the proportional law", data.predicted_beyond.sel(law=LAWS[1])
        yield Claim(text, "ours", data.beyond, predicted, rival, finite_size=float(data.moved), reason=reason)
        text = "distance to the proportional law minus that to the finite-head law"
        yield sign(text, "ours", data.ks.sel(law=LAWS[1]) - data.ks.sel(law=LAWS[0]), "no nearer")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, (axes,) = panels(1, 2, width=3.6, height=2.7)
        density, difference = axes
        x, logs = data.x.values, np.log10(data.x.values)
        every = slice(None, None, 8)
        bins = logs[every]
        histogram(density, x[every], np.diff(data.mass.mean("draw")[every]) / np.diff(bins), label="simulation")
        middle = (x[1:] * x[:-1]) ** 0.5
        for name, colour in COLOUR.items():
            line(
                density, middle, np.diff(data.predicted.sel(law=name)) / np.diff(logs), label=name, color=colour, lw=1.1
            )
            gap = data.mass - data.predicted.sel(law=name)
            ks = float(data.ks.sel(law=name).mean())
            line(difference, x, gap.mean("draw"), label=f"{name}, distance {ks:.3f}", color=colour, lw=1.1)
            difference.fill_between(x, gap.min("draw"), gap.max("draw"), color=colour, alpha=0.25, lw=0)
        difference.axhline(0, color=BARS, lw=0.8, zorder=1)
        label = data.x.attrs["long_name"]
        density.set(xscale="log", xlabel=label, ylabel=r"density of $\log_{10}$ of the value", ylim=(0, None))
        difference.set(xscale="log", xlabel=label, ylabel="simulated − predicted mass up to x")
        density.legend(loc="upper left")
        difference.legend(loc="best")
        norms = "QK-norm" if self.qk_norm else "Gaussian queries and keys"
        figure.suptitle(
            f"{self.tokens} tokens, head dimension {self.head_dim}, β = {self.beta:g}, {norms}, {self.draws} draws"
        )
        return figure


def _mass(found: Spectrum, x: Any) -> Any:
    return np.searchsorted(found.values, x, side="right") / found.size


def generator(rng: np.random.Generator, tokens: int) -> Any:
    """A generator for attention of so many tokens: on the GPU, if they are many and there is one, else as it came."""
    if tokens < LARGE or find_spec("torch") is None:
        return rng
    import torch

    if not torch.cuda.is_available():
        return rng
    return torch.Generator("cuda").manual_seed(int(rng.integers(2**62)))


def squared_values(model: SoftmaxAttention, source: Any) -> Spectrum:
    """The spectrum of a draw of attention without its mean."""
    if isinstance(source, np.random.Generator):
        return model.spectrum(source)
    import torch

    weights = model.sample(source)
    rest = model.tokens**0.5 * (weights - model.mask.mean(weights))
    values = torch.linalg.eigvalsh(rest @ rest.mT).clamp(min=0)
    return Spectrum.of(
        values.cpu().numpy(), unit=Unit.SQUARED, rounding=model.tokens**0.5 * 2e-16 * float(values.max())
    )
