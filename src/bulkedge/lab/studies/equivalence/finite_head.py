"""Which law holds at the size of real heads (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.attention import SoftmaxAttention
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claim, Claims, Study, dataset, mean_marks, sign, track
from bulkedge.lab.studies.equivalence import UNKNOWN, doubling_axis, plain_logarithms, shares
from bulkedge.laws import AttentionLaw, FiniteHeadLaw, QuarterCircle
from bulkedge.plots.style import COLOURS, panels
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Choice, Each, Integers, Interval, parameter

DIMS = ("beta", "head_dim", "tokens")


@dataclass(frozen=True)
class EquivalenceFiniteHead(Study):
    """The bulk at the size of real heads follows the finite-head law, and not the law of the proportional regime.

    Beside the Kolmogorov distances to both stands the finite-size floor: the distance of an i.i.d. log-normal Markov
    matrix of the same size and beta to its own quarter-circle law.
    """

    tokens: tuple[int, ...] = parameter(
        Each(Integers(64, 20_000)), "numbers of tokens", (256, 512), ours=(512, 1024, 2048)
    )
    head_dims: tuple[int, ...] = parameter(Each(Integers(32, 4096)), "head dimensions", (32, 64), ours=(32, 64, 128))
    betas: tuple[float, ...] = parameter(
        Each(Interval(0.01, 4)), "values of beta", (0.5, 1.0), ours=(0.25, 0.5, 0.75, 1.0)
    )
    qk_norm: bool = parameter(
        Choice((False, True)), "whether queries and keys are normalised", default=False, ours=False
    )
    draws: int = parameter(Integers(2, 100), "draws for each cell of the grid", 8, ours=4)
    small = {"tokens": (256,), "head_dims": (32,), "draws": 6}
    caption = """Kolmogorov distance of simulated heads to the finite-head law and to the proportional law
    over tokens, a panel for each β. The blue points should fall with the number of tokens and lie far below the
    orange ones; the black line is how far as many independent scores are from their own law."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Draw each cell of the grid, and the floor, which does not depend on the head dimension."""
        grid = [(beta, dim, size) for beta in self.betas for dim in self.head_dims for size in self.tokens]
        cells = xr.concat([self._cell(*cell, rng) for cell in track(grid, "cells")], dim="cell")
        shape = len(self.betas), len(self.head_dims), len(self.tokens)
        found = xr.Dataset(
            {
                name: ((*DIMS, *values.dims[1:]), values.values.reshape(shape + values.shape[1:]))
                for name, values in cells.items()
            },
            coords={"beta": list(self.betas), "head_dim": list(self.head_dims), "tokens": list(self.tokens)},
        )
        floor = [
            [[_floor(beta, size, rng) for _ in range(self.draws)] for size in self.tokens]
            for beta in track(self.betas, "floor")
        ]
        return found.assign(floor=(("beta", "tokens", "draw"), floor))

    def _cell(self, beta: float, dim: int, size: int, rng: np.random.Generator) -> xr.Dataset:
        model = SoftmaxAttention(size, dim, beta, self.qk_norm)
        law, rival = FiniteHeadLaw(beta, dim, size, self.qk_norm), AttentionLaw(beta, dim / size)
        found = [model.spectrum(rng) for _ in range(self.draws)]
        rest = shares(found, FiniteHeadLaw(beta, dim, size, self.qk_norm, large_entries=True), rival)
        return dataset(
            finite_head=("draw", [compare(each, law).ks for each in found]),
            proportional=("draw", [compare(each, rival).ks for each in found]),
            share=("draw", rest.draws),
            # a perturbation of rank m moves m values past a point at most: m/T, of one sign at all points at worst
            allowed=((), UNKNOWN / size * rest.response),
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """How much of the proportional law is in the distribution functions, and which law is nearer."""
        for beta in self.betas:
            yield Claim(
                f"share of the proportional law in the bulk, beta = {beta:g} (0 is the finite-head law)",
                "ours",
                data.share.sel(beta=beta),
                0.0,
                ("the proportional law", 1.0),
                finite_size=float(data.allowed.sel(beta=beta).mean()),
                reason="derived: rank of what the law with large entries leaves out, over T: the zero of the constant "
                "vector, and the term of norms of keys",
            )
        gain = data.proportional - data.finite_head
        for dim in self.head_dims:
            text = f"distance to the proportional law minus that to the finite-head law, head dimension {dim}"
            yield sign(text, "ours", gain.sel(head_dim=dim), "no nearer")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, data.sizes["beta"], width=2.5, height=2.8)
        symbols = ("o", "s", "^", "D", "v")
        everything = xr.merge([data.finite_head, data.proportional, data.floor]).to_array()
        limits = 0.7 * float(everything.min()), 1.5 * float(everything.max())
        for axes, beta in zip(grid[0], data.beta.values.tolist(), strict=True):
            one = data.sel(beta=beta)
            for k, dim in enumerate(data.head_dim.values.tolist()):
                for name, colour in (("proportional", COLOURS[1]), ("finite_head", COLOURS[0])):
                    look = {
                        "fmt": symbols[k % 5] + "-",
                        "lw": 0.7,
                        "color": colour,
                        "label": f"{name.replace('_', '-')} law, d = {dim}",
                    }
                    mean_marks(axes, data.tokens, one[name].sel(head_dim=dim), **look)
            label = "independent scores, their own law"
            mean_marks(axes, data.tokens, one.floor, fmt=".--", lw=0.8, color=COLOURS[-1], label=label)
            doubling_axis(axes, data.tokens)
            axes.set(yscale="log", ylim=limits, title=f"β = {beta:g}", xlabel="tokens")
            plain_logarithms(axes.yaxis)
        grid[0, 0].set_ylabel("Kolmogorov distance")
        norms = "QK-norm" if self.qk_norm else "Gaussian queries and keys"
        figure.suptitle(f"{norms}, {data.sizes['draw']} draws")
        figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        return figure


def _floor(beta: float, size: int, rng: np.random.Generator) -> float:
    weights = np.exp(beta * rng.standard_normal((size, size)))
    markov = weights / weights.sum(axis=1, keepdims=True)
    law = QuarterCircle(float(np.expm1(beta**2)))
    return compare(spectrum(np.sqrt(size) * (markov - 1 / size)), law).ks
