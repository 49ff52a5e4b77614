"""Kernels of deep stacks: the Markov chain of the limit against finite width (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Integers, Interval, parameter
from bulkedge.programs import Attention, Block, Perceptron, equal_correlations, stack
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error


@dataclass(frozen=True)
class Depth(Study):
    """Correlation of positions over depth: attention alone collapses to rank one, residual blocks more slowly.

    Given the kernel of a layer the next scores are Gaussian, so kernels are a Markov chain. Finite stacks are drawn at
    width n and 2n and extrapolated in 1/n.
    """

    inputs: int = parameter(Integers(2, 16), "inputs s", 3, paper=4)
    heads: int = parameter(Integers(1, 64), "heads", 2)
    depth: int = parameter(Integers(2, 32), "blocks", 4, paper=6)
    score_variance: float = parameter(Interval(0.01, 20), "variance of a score at unit norm", 1.0)
    width: int = parameter(Integers(8, 2048), "width n", 32, paper=128)
    draws: int = parameter(Integers(50, 10**6), "draws", 300, paper=4000)

    def blocks(self) -> dict[str, Block]:
        """The blocks that are stacked."""
        attention = Attention(self.heads, score_variance=self.score_variance)
        return {
            "attention": Block(attention, skip=False),
            "residual": Block(attention),
            "residual, ReLU": Block(attention, Perceptron("relu")),
            "LayerNorm first": Block(attention, Perceptron("relu"), norm="pre"),
            "LayerNorm last": Block(attention, Perceptron("relu"), norm="post"),
        }

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Correlations of positions after each block."""
        gram = equal_correlations(self.inputs)
        chain, finite, scatter = [], [], []
        for block in track(list(self.blocks().values()), "blocks"):
            program = stack(gram, block, self.depth)
            limit = correlations(program.limit(rng, 4 * self.draws)[:-1])
            few, many = (correlations(program.finite(n, rng, self.draws)[:-1]) for n in (self.width, 2 * self.width))
            chain.append([limit.mean(axis=1), [standard_error(each) for each in limit]])
            error = [np.hypot(2 * standard_error(b), standard_error(a)) for a, b in zip(few, many, strict=True)]
            finite.append([2 * many.mean(axis=1) - few.mean(axis=1), error])
            # finite kernels also fluctuate by 1/sqrt(n) given the scores: variances are extrapolated as well
            scatter.append([limit.std(axis=1), np.sqrt(np.maximum(2 * many.var(axis=1) - few.var(axis=1), 0.0))])
        dims = ("block", "statistic", "layer")
        return xr.Dataset(
            {
                "chain": (dims, chain, {"long_name": "mean correlation, Markov chain"}),
                "finite": (dims, finite, {"long_name": "mean correlation, extrapolated in 1/n"}),
                "spread": (
                    ("block", "where", "layer"),
                    scatter,
                    {"long_name": "standard deviation of the correlation"},
                ),
            },
            coords={
                "block": list(self.blocks()),
                "statistic": ["value", "error"],
                "where": ["chain", "finite"],
                "layer": np.arange(1, self.depth + 1),
            },
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Root mean square deviation over depths, in standard errors; and the order of collapse."""
        difference = (data.chain - data.finite).sel(statistic="value")
        error = np.hypot(data.chain.sel(statistic="error"), data.finite.sel(statistic="error"))
        remainder = 4 / self.width**2
        claims = [
            Claim(
                statement=f"{name}: chain against finite width, in standard errors, over depths",
                place="ours; theory/width",
                predicted=2.0,
                measured=float(np.sqrt((difference**2 / (error**2 + remainder**2)).sel(block=name).mean())),
                error=0.0,
                tolerance=0.5,
                reason="depths are correlated, so they are all off together by up to 2.5 errors, one time in a hundred",
                relation="<=",
            )
            for name in data.block.values.tolist()
        ]
        last = data.chain.sel(statistic="value").isel(layer=-1)
        claims.append(
            Claim(
                statement="correlation at the end: attention alone above the same with residual",
                place="ours; propagation says that attention alone collapses",
                predicted=float(last.sel(block="residual")),
                measured=float(last.sel(block="attention")),
                error=float(data.chain.sel(block="attention", statistic="error").isel(layer=-1)),
                tolerance=0.0,
                reason="the residual keeps each position's own part",
                relation=">=",
            )
        )
        return claims


def correlations(kernels: tuple[Real, ...]) -> Real:
    """Mean correlation of two positions, for each layer and draw.

    Parameters
    ----------
    kernels : tuple of arrays of shape (draws, positions, positions)
        The kernels after each layer.

    Returns
    -------
    array of shape (layers, draws)
        Mean over all pairs of different positions.
    """
    found = []
    for each in kernels:
        scale = np.sqrt(np.einsum("dii->di", each))
        normed = each / (scale[:, :, None] * scale[:, None, :])
        size = each.shape[-1]
        found.append((normed.sum(axis=(1, 2)) - size) / (size * (size - 1)))
    return np.array(found)
