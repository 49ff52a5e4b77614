"""Taking out one direction of key-query attention, a few, or all beyond the edge (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from bulkedge.domains import Integers, Interval, parameter
from bulkedge.ensembles.markov import without_gap, without_outliers
from bulkedge.ensembles.stack import AttentionStack, Repair
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

NOTHING, MEAN, TOP, ALL = "nothing", "the mean", "the top ones", "all beyond the edge"


@dataclass(frozen=True)
class AllOutliers(Study):
    """Rank of a deep key-query stack when its attention loses nothing, its mean, its top k directions, or all outliers.

    The edge is that of attention on orthonormal tokens. Tokens are normalised, so that scores keep their size.
    """

    tokens: int = parameter(Integers(40, 1000), "number of tokens and of dimensions", 120, paper=400)
    beta: float = parameter(Interval(0.1, 1.5), "inverse temperature", 0.5)
    depth: int = parameter(Integers(3, 20), "layers", 5, paper=8)
    top: int = parameter(Integers(1, 100), "directions taken out where a number is", 5)
    draws: int = parameter(Integers(4, 100), "draws", 8, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """The same stack under each repair."""
        stack = AttentionStack(
            self.depth,
            self.tokens,
            self.tokens,
            attention="key-query",
            layer_norm=True,
            variance=np.expm1(self.beta**2),
        )
        repairs: dict[str, Repair] = {
            NOTHING: lambda attention: attention,
            MEAN: without_gap,
            TOP: lambda attention: without_outliers(attention, count=self.top).matrix,
            ALL: lambda attention: without_outliers(attention, edge=stack.attention_edge).matrix,
        }
        seeds = rng.integers(2**63, size=self.draws).tolist()  # the same weights for every repair
        rank, removed, share = (np.empty((len(repairs), self.draws, self.depth)) for _ in range(3))
        for k, repair in enumerate(track(list(repairs.values()), "repairs")):
            for draw, seed in enumerate(seeds):
                layers = list(stack.layers(np.random.default_rng(seed), repair))
                rank[k, draw] = [layer.stable_rank for layer in layers]
                share[k, draw] = [layer.distinct_share for layer in layers]
                signals = [stack.start(), *(layer.signal for layer in layers[:-1])]
                whole = [stack.attend(signal, each.weights) for signal, each in zip(signals, layers, strict=True)]
                removed[k, draw] = [np.sum(np.linalg.svd(a, compute_uv=False) > stack.attention_edge) for a in whole]
        dims = ("removed", "draw", "layer")
        return xr.Dataset(
            {
                "rank": (dims, rank, {"long_name": "stable rank of the kernel"}),
                "share": (dims, share, {"long_name": "share of the signal that tokens do not have in common"}),
                "beyond": (dims, removed, {"long_name": "singular values of A beyond the edge"}),
            },
            coords={"removed": list(repairs), "layer": np.arange(1, self.depth + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """One outlier at first; what each repair keeps of the rank at last."""
        first, last = data.beyond.sel(layer=1), data.share.sel(removed=NOTHING).isel(layer=-1)
        return [
            Claim(
                statement="layer 1: singular values of A beyond the edge",
                place="propagation, Theorem 2",
                predicted=1.0,
                measured=float(first.mean()),
                error=standard_error(first),
                tolerance=3 * standard_error(first) + 0.1,
                reason="three standard errors; one false alarm in a hundred, and single large entries of the softmax",
            ),
            Claim(
                statement="share of the signal that is not common to all tokens at last, nothing removed",
                place="propagation, Figure 2",
                predicted=0.0,
                measured=float(last.mean()),
                error=standard_error(last),
                tolerance=0.05,
                reason="it falls by the factor theta_1/T and more at each layer",
                relation="<=",
            ),
            *self._gains(data),
        ]

    def _gains(self, data: xr.Dataset) -> list[Claim]:
        """Rank gained in layers 2 and 3, before the product of so many matrices loses it anyway."""
        deep: xr.DataArray = np.log(data["rank"].sel(layer=[2, 3])).mean("layer")  # type: ignore[arg-type]
        by_mean = deep.sel(removed=MEAN) - deep.sel(removed=NOTHING)
        by_rest = deep.sel(removed=ALL) - deep.sel(removed=MEAN)
        return [
            Claim(
                statement="log of the stable rank, mean of layers 2 and 3: gained by removing the mean",
                place="propagation, Proposition 5 and Figure 4",
                predicted=0.0,
                measured=float(by_mean.mean()),
                error=standard_error(by_mean),
                tolerance=-3 * standard_error(by_mean),
                reason="more than three standard errors above nothing",
                relation=">=",
            ),
            Claim(
                statement="the same, gained by removing all beyond the edge instead of the mean alone",
                place="ours; propagation leaves it open",
                predicted=0.0,
                measured=float(by_rest.mean()),
                error=standard_error(by_rest),
                tolerance=3 * standard_error(by_rest),
                reason="not a loss, at three standard errors",
                relation=">=",
            ),
            Claim(
                statement="the second gain over the first",
                place="ours: what lies beyond the edge in deeper layers is bulk (propagation/outliers)",
                predicted=0.5,
                measured=float(by_rest.mean() / by_mean.mean()),
                error=standard_error(by_rest) / float(by_mean.mean()),
                tolerance=2 * standard_error(by_rest) / float(by_mean.mean()),
                reason="less than half: the mean is most of the matter; two standard errors",
                relation="<=",
            ),
        ]
