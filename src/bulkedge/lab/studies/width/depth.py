"""Kernels of deep stacks: the Markov chain of the limit against finite width (the paper's first open question)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, sign, track
from bulkedge.lab.studies.width import BATCHES, RIVAL, sizes_title
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.programs import Attention, Block, Perceptron, equal_correlations, stack
from bulkedge.support.domains import Integers, Interval, parameter

WHERE = ("chain", "finite")


@dataclass(frozen=True)
class WidthDepth(Study):
    """Correlation of positions over depth: its mean and its spread are those of a Markov chain of random kernels.

    Given the kernel of a layer the next scores are Gaussian, so kernels are a Markov chain. Finite stacks are drawn at
    widths n and 2n and extrapolated in 1/n. Attention alone collapses to rank one, residual blocks more slowly; the
    kernel stays random at every depth.
    """

    inputs: int = parameter(Integers(2, 16), "inputs s", 3, ours=4)
    heads: int = parameter(Integers(1, 64), "heads", 1, ours=1)
    depth: int = parameter(Integers(2, 32), "blocks", 4, ours=6)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score at unit norm", 4.0, ours=4.0)
    width: int = parameter(Integers(8, 2048), "width n", 64, ours=128)
    draws: int = parameter(Integers(50, 10**6), "draws", 4000, ours=12_000)
    small = {"draws": 1000, "depth": 2, "width": 32}
    caption = """Mean and variance of the correlation of positions over blocks, for six kinds of block.
    Points should follow the solid lines of the chain; a variance above zero says that the kernel stays random at
    depth."""

    def blocks(self, scaling: str = "sqrt") -> dict[str, Block]:
        """The blocks that are stacked."""
        attention = Attention(self.heads, scaling, score_variance=self.score_variance)
        return {
            "attention": Block(attention, skip=False),
            "residual": Block(attention),
            "residual, ReLU": Block(attention, Perceptron("relu")),
            "LayerNorm first": Block(attention, Perceptron("relu"), norm="pre"),
            "LayerNorm last": Block(attention, Perceptron("relu"), norm="post"),
        }

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """First two moments of the correlation of positions after each block, batch by batch."""
        gram = equal_correlations(self.inputs)
        mean, variance, uniform = [], [], []
        rivals = self.blocks("linear")
        for name, block in track(list(self.blocks().items()), "blocks"):
            program = stack(gram, block, self.depth)
            chain = moments(correlations(program.limit(rng, 4 * self.draws)[:-1]))
            few, more = (
                moments(correlations(program.finite(n, rng, self.draws)[:-1])) for n in (self.width, 2 * self.width)
            )
            # kernels at finite width also fluctuate by 1/sqrt(n) given the scores: variances are extrapolated as well
            finite = 2 * more - few
            mean.append([chain[0], finite[0]])
            uniform.append(correlations(stack(gram, rivals[name], self.depth).limit(rng, 1)[:-1])[:, 0])
            variance.append([chain[1], finite[1]])
        dims = ("block", "where", "batch", "layer")
        return dataset(
            mean=(dims, mean, "mean correlation of two positions"),
            variance=(dims, variance, "variance of that correlation over initialisations"),
            uniform=(("block", "layer"), uniform, "correlation under uniform attention"),
            coords={"block": list(rivals), "where": list(WHERE), "layer": np.arange(1, self.depth + 1)},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Mean and variance of the correlation over all depths, of each block, and the order of collapse."""
        for name in data.block.values.tolist():
            one = data.sel(block=name)
            rivals = {
                "mean": ("uniform attention, of scores over n", float(one.uniform.mean())),
                "variance": ("a kernel that is not random", 0.0),
            }
            for what, rival in rivals.items():
                chain, finite = (Estimate.of(one[what].sel(where=each).mean("layer")) for each in WHERE)
                text = f"{name}: {what} of the correlation over all depths, extrapolated in 1/n"
                yield Claim(text, "width: Open question 1", finite, chain, rival)
        last = data["mean"].sel(where="finite", layer=self.depth)
        text = "correlation after the last block: attention alone, minus the same with residual"
        yield sign(text, "ours", last.sel(block="attention") - last.sel(block="residual"), "no nearer to rank one")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 2, height=3.0)
        for name, colour in zip(data.block.values.tolist(), COLOURS, strict=False):
            one = data.sel(block=name)
            for axes, what in zip(grid[0], ("mean", "variance"), strict=True):
                chain, finite = (Estimate.of(one[what].sel(where=where).values) for where in ("chain", "finite"))
                line(axes, data.layer, chain.value, label=name if what == "mean" else "", color=colour)
                marks(axes, data.layer, finite.value, finite.error, label="", color=colour)
            line(grid[0, 0], data.layer, one.uniform, label="", **(RIVAL | {"color": colour}))
        for axes, title in zip(grid[0], ("mean correlation", "variance of the correlation"), strict=True):
            axes.set(xlabel="blocks", title=title, xticks=data.layer)
        grid[0, 1].set_yscale("symlog", linthresh=1e-3)
        grid[0, 1].axhline(0, **RIVAL)
        grid[0, 1].set_ylim(min(-3e-4, float(data.variance.mean("batch").min()) * 1.5), None)
        grid[0, 1].yaxis.set_minor_formatter(NullFormatter())
        figure.legend(
            *grid[0, 0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            title="lines: chain; points: finite width, extrapolated; dotted: uniform attention, or a fixed kernel",
            title_fontsize=7,
        )
        sizes_title(figure, self, "width", "inputs", "heads", n=f"{self.width} and {2 * self.width}")
        return figure


def correlations(kernels: tuple[Real, ...]) -> Real:
    """Mean correlation of two positions, for each layer and draw."""
    found = []
    for each in kernels:
        scale = np.sqrt(np.einsum("dii->di", each))
        normed = each / (scale[:, :, None] * scale[:, None, :])
        size = each.shape[-1]
        found.append((normed.sum(axis=(1, 2)) - size) / (size * (size - 1)))
    return np.array(found)


def moments(drawn: Real) -> Real:
    """Mean and variance over draws, batch by batch."""
    groups = np.array_split(drawn, BATCHES, axis=1)
    return np.array([[group.mean(axis=1) for group in groups], [group.var(axis=1, ddof=1) for group in groups]])
