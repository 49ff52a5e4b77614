"""Taking out one direction of key-query attention, a few, or all beyond the edge (ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.entries import LargeEntries
from bulkedge.ensembles.markov import without_gap, without_outliers
from bulkedge.ensembles.stack import AttentionStack, Repair
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Study, dataset, mean_marks, sign, track
from bulkedge.lab.studies.propagation import SYMBOLS, decades, integers, row_variance
from bulkedge.laws import AttentionLaw, Law, MarchenkoPastur, QuarterCircle, free_mul
from bulkedge.plots.style import COLOURS, marks, panels
from bulkedge.support.domains import Integers, Interval, parameter

NOTHING, MEAN, TOP, ALL = "nothing", "the mean", "the top ones", "all beyond the edge"
LEVEL = 0.01
"""False alarms of the edge."""
OPEN = "propagation: Multiple outliers; ours"
SHOWN = 30
"""Singular values in the figure of all outliers."""


@dataclass(frozen=True)
class PropagationAllOutliers(Study):
    """Rank of a deep key-query stack when its attention loses nothing, its mean, its top k directions, or all outliers.

    The edge is that of attention on orthonormal tokens. Tokens are normalised, so that scores keep their size.
    """

    tokens: int = parameter(Integers(40, 1000), "number of tokens and of dimensions", 150, ours=300)
    beta: float = parameter(Interval(0.1, 1.5), "inverse temperature", 0.5, ours=0.5)
    depth: int = parameter(Integers(3, 20), "layers", 5, ours=8)
    top: int = parameter(Integers(1, 100), "directions taken out where a number is", 5, ours=5)
    draws: int = parameter(Integers(4, 100), "draws", 36, ours=36)
    small = {"tokens": 80, "depth": 3, "draws": 12}
    caption = """Singular values of the first two layers, stable rank, and values beyond the edge in a
    deep stack from which different parts are removed. Every removal raises the rank of the first layer, and in all
    of them it falls back towards one within five layers."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """The same stack under each repair."""
        variance = float(np.expm1(self.beta**2))
        stack = AttentionStack(
            self.depth, self.tokens, self.tokens, attention="key-query", layer_norm=True, variance=variance
        )
        repairs: dict[str, Repair] = {
            NOTHING: lambda attention: attention,
            MEAN: without_gap,
            TOP: lambda attention: without_outliers(attention, count=self.top).matrix,
            ALL: lambda attention: without_outliers(attention, edge=stack.attention_edge).matrix,
        }
        seeds = rng.integers(2**63, size=self.draws).tolist()  # the same weights for every repair
        shape = (len(repairs), self.draws, self.depth)
        rank, beyond, share = (np.empty(shape) for _ in range(3))
        values = np.empty((*shape, self.tokens))
        for k, repair in enumerate(track(list(repairs.values()), "repairs")):
            for draw, seed in enumerate(seeds):
                layers = list(stack.layers(np.random.default_rng(seed), repair))
                rank[k, draw] = [layer.stable_rank for layer in layers]
                share[k, draw] = [layer.distinct_share for layer in layers]
                signals = [stack.start(), *(layer.signal for layer in layers[:-1])]
                whole = [stack.attend(signal, each.weights) for signal, each in zip(signals, layers, strict=True)]
                values[k, draw] = [np.linalg.svd(a, compute_uv=False) for a in whole]
                beyond[k, draw] = np.sum(values[k, draw] > stack.attention_edge, axis=-1)
        own = row_variance(self.beta, self.tokens)
        dims = ("removed", "draw", "layer")
        return dataset(
            rank=(dims, rank, "stable rank of the kernel"),
            share=(dims, share, "share of the signal that tokens do not have in common"),
            beyond=(dims, beyond, "singular values of A beyond the edge"),
            value=(("removed", "layer", "index"), values.mean(axis=1), "singular values of A"),
            edge=((), stack.attention_edge, "edge of layer 1"),
            predicted_rank=((), self._rank(AttentionLaw(self.beta, 1.0)), "layer 1, no mean"),
            markov_rank=((), self._rank(QuarterCircle(variance).squared()), "if it were Markov"),
            predicted_share=((), own / (1 + own), "layer 1, nothing removed"),
            coords={"removed": list(repairs), "layer": np.arange(1, self.depth + 1)},
        )

    def _rank(self, law: Law) -> float:
        """Stable rank after a layer whose attention has this law: ``T m_2`` over the largest eigenvalue squared."""
        kernel = free_mul(law, MarchenkoPastur(1.0))
        return float(self.tokens * kernel.moment(2) / kernel.finite_edge(self.tokens, 0.5) ** 2)

    def statements(self, data: xr.Dataset) -> Claims:
        """One outlier and known ranks at first; what each repair keeps of the rank at last."""
        yield from self._first(data.sel(layer=1))
        # rank gained in layers 2 and 3, before the product of so many matrices loses it anyway
        deep: xr.DataArray = np.log(data["rank"].sel(layer=[2, 3])).mean("layer")  # type: ignore[arg-type]
        by_mean = deep.sel(removed=MEAN) - deep.sel(removed=NOTHING)
        by_rest = deep.sel(removed=ALL) - deep.sel(removed=MEAN)
        text = "log of the stable rank, mean of layers 2 and 3: gained by removing the mean"
        yield sign(text, "propagation: Proposition 5, Figure 2", by_mean, "no gain")
        text = "the same, gained by removing all beyond the edge instead of the mean alone"
        yield sign(text, OPEN, by_rest, "no gain")
        text = "the first gain minus the second: the mean matters most"
        yield sign(text, OPEN, by_mean - by_rest, "as much again")

    def _first(self, data: xr.Dataset) -> Claims:
        """The first layer, where theory has numbers."""
        counts = data.beyond.sel(removed=NOTHING).values
        alarms = LEVEL + LargeEntries(self.beta, self.tokens, self.tokens).beyond(self.tokens * float(data.edge) ** 2)
        ratio: xr.DataArray = np.log(data["rank"].sel(removed=MEAN) / data.predicted_rank)
        place = "propagation: Theorem 2, Figure 7"
        spread = float(max(counts.std(ddof=1), LEVEL**0.5))
        found = Estimate(float(counts.mean()), spread / len(counts) ** 0.5, len(counts) - 1)
        reason = "derived: false alarms, and values that single large entries of the softmax make"
        text = "layer 1: singular values of A beyond the edge"
        yield Claim(text, place, found, 1.0, ("none, no gap", 0.0), alarms, reason)
        text = "layer 1, nothing removed: share of the signal that is not common to all tokens"
        place, share = "propagation: Figure 2; ours", data.share.sel(removed=NOTHING)
        rival = "a half, as of Markov attention of variance one", 0.5
        yield Claim(text, place, share, data.predicted_share, rival)
        yield Claim(
            "layer 1, the mean removed: log of the stable rank over its prediction",
            "propagation: Proposition 5; ours",
            ratio,
            0.0,
            ("if attention were Markov", np.log(data.markov_rank / data.predicted_rank)),
            finite_size=12 / self.tokens,
            reason="derived: LayerNorm takes from the tokens' squared lengths a relative variance of 2/T each from "
            "queries, keys and values, which widens the law; the edge enters squared",
        )

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 4, width=2.3)
        kinds = data.removed.values.tolist()
        for axes, layer in zip(grid[0, :2], (1, 2), strict=True):
            for kind, colour, symbol in zip(kinds, COLOURS, SYMBOLS, strict=False):
                one = data.value.sel(removed=kind, layer=layer)[:SHOWN]
                if layer > 1 or kind == kinds[0]:
                    rank = np.arange(1, len(one) + 1)
                    marks(axes, rank, one, label=kind, color=colour, fmt=symbol, ms=2.5)
            axes.axhline(float(data.edge), color=COLOURS[-1], ls=":", label="edge of layer 1")
            decades(axes)
            axes.set(title=f"layer {layer}", xlabel="rank k", ylabel="singular value of A")
            axes.set(xlim=(0, SHOWN), ylim=(0.004, 2))
        ranks, counts = grid[0, 2:]
        for axes, name, label in ((ranks, "rank", "stable rank"), (counts, "beyond", "values beyond the edge")):
            for kind, colour, symbol in zip(kinds, COLOURS, SYMBOLS, strict=False):
                one = data[name].sel(removed=kind)
                look = {"color": colour, "fmt": symbol + "-", "lw": 0.8, "label": kind}
                mean_marks(axes, data.layer, one, **look)
            axes.set_ylabel(label)
            integers(axes, "layer")
        ranks.hlines(float(data.predicted_rank), 0.7, 1.3, color=COLOURS[-1], lw=1.5, zorder=4)
        ranks.annotate("theory", (1.3, float(data.predicted_rank)), fontsize=6, va="bottom")
        ranks.set_yscale("log", base=2)
        ranks.yaxis.set_major_formatter("{x:g}")
        counts.axhline(1.0, color=COLOURS[-1], ls="--", lw=0.8, label="theory of layer 1")
        handles, labels = ranks.get_legend_handles_labels()
        figure.legend(handles, [f"removed: {each}" for each in labels], loc="outside lower center", ncols=4)
        title = f"key-query attention with LayerNorm: T = d = {self.tokens}, β = {self.beta}"
        title = f"{title}, {data.sizes['draw']} draws; dotted: edge of layer 1; dashed: one outlier"
        figure.suptitle(title, fontsize=8)
        return figure
