"""*propagation*, Figure 7: what leaves the bulk of key-query attention in deeper layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.entries import LargeEntries
from bulkedge.ensembles.markov import without_gap
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.inference.comparison import compare
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, difference, mean_marks, sign, track
from bulkedge.laws import AttentionLaw, CorrelatedAttentionLaw, EmpiricalLaw, Law
from bulkedge.plots.style import COLOURS, panels, shared_legend
from bulkedge.spectra import spectrum
from bulkedge.support.domains import Integers, Interval, parameter

SHOWN = 40
ROUNDING = 1e-12
"""Share of the tokens' power below which what they do not have in common is rounding."""
DISTANCE = "Kolmogorov distance to the law of these tokens, nan where they are all the same"
LEVEL = 0.01
"""How often an edge is exceeded by one of the values of its own bulk."""


@dataclass(frozen=True)
class PropagationOutliers(Study):
    """Key-query attention in deeper layers: one more outlier with the gap; without the gap none, but a wider bulk.

    After a layer with the gap, tokens share a direction. Queries along it weigh the keys alike in every row, ``A`` is
    about ``u w'`` with w not constant, and ``A - uu'`` keeps an outlier of size ``sqrt(T (exp(beta**2 c (1 - c)) -
    1))``, c the share of the tokens' power that is common. Without the gap the tokens share no direction. What then
    lies beyond the edge of the first layer, and looks like many outliers, is bulk. The law for tokens with their Gram
    matrix describes it in the second layer. In the third it only bounds the edge: its Kolmogorov distance to the
    bulk is 0.35, 0.27 and 0.19 at 80, 160 and 320 tokens. Tokens are normalised.
    """

    tokens: int = parameter(Integers(50, 2000), "number of tokens and of dimensions", 160, ours=400)
    beta: float = parameter(Interval(0.1, 1), "inverse temperature", 0.5, ours=0.5)
    depth: int = parameter(Integers(2, 6), "layers", 3, ours=5)
    draws: int = parameter(Integers(4, 100), "draws", 10, ours=10)
    small = {"tokens": 120, "draws": 6, "depth": 2}
    caption = """Singular values of key–query attention in three layers with the edges of two laws, with
    the gap (top) and without it (bottom). With the gap a single value leaves the bulk at the cross; without it none
    does, and the bulk itself widens."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Every layer of stacks with and without the gap; two layers without it at half the size."""
        first = AttentionLaw(self.beta, 1.0)
        parts = [
            xr.concat([self._draw(gap, first, rng) for _ in track(range(self.draws), f"gap = {gap}")], dim="draw")
            for gap in (True, False)
        ]
        # draws at half the size for each at full size: they are cheap
        half = [self._half(first, rng) for _ in range(4 * self.draws)]
        return xr.concat(parts, dim=xr.Variable("gap", ["kept", "removed"])).assign(
            first_edge=((), np.sqrt(first.edge), {"long_name": "edge for orthonormal tokens"}),
            half_beyond=("half_draw", half, {"long_name": "beyond_first of layer 2 at half the tokens, gap removed"}),
        )

    def _stack(self, tokens: int, gap: bool) -> AttentionStack:  # noqa: FBT001
        common = {"attention": "key-query", "layer_norm": True, "variance": np.expm1(self.beta**2)}
        return AttentionStack(self.depth, tokens, tokens, gap=gap, **common)

    def _half(self, first: Law, rng: np.random.Generator) -> float:
        stack = self._stack(self.tokens // 2, gap=False)
        _, signal = stack.step(stack.start(), stack.weights(rng))
        attention = stack.attend(signal, stack.weights(rng))
        values = spectrum(np.sqrt(stack.tokens) * without_gap(attention)).squared().values
        return float(np.sum(values > first.edge))

    def _draw(self, gap: bool, first: Law, rng: np.random.Generator) -> xr.Dataset:  # noqa: FBT001
        stack = self._stack(self.tokens, gap)
        signal, rows = stack.start(), []
        for _ in range(self.depth):
            weights = stack.weights(rng)
            rows.append(self._measure(signal, stack.attend(signal, weights), first))
            _, signal = stack.step(signal, weights)
        return xr.concat(rows, dim=xr.Variable("layer", np.arange(1, self.depth + 1)))

    def _measure(self, signal: Real, attention: Real, first: Law) -> xr.Dataset:
        found = spectrum(np.sqrt(self.tokens) * without_gap(attention)).squared()
        apart = signal - signal.mean(axis=0)
        gram = np.maximum(np.linalg.eigvalsh(apart @ apart.T), 0.0)
        share = gram.sum() / np.sum(signal**2)
        own = self._law(gram, share, first)
        # tokens that are the same but for rounding have no bulk to compare with
        comparison = compare(found, own, LEVEL) if share > ROUNDING else None
        tilt = np.sqrt(self.tokens * np.expm1(self.beta**2 * share * (1 - share)))
        return dataset(
            value=("rank", np.sqrt(found.values[::-1][:SHOWN]), "sqrt(T) s_k of A - uu'"),
            edge=((), np.sqrt(own.edge), "edge of the bulk for these tokens"),
            # noise of this variance moves an outlier x to x + variance/x
            tilt=((), tilt + own.mean() / max(tilt, 1e-12), "predicted outlier"),
            share=((), share, "share of the power that tokens do not have in common"),
            beyond_first=((), float(np.sum(found.values > first.edge))),
            beyond_own=((), float(len(comparison.outliers)) if comparison else np.nan),
            distance=((), comparison.ks if comparison else np.nan, DISTANCE),
            distance_first=((), compare(found, first, LEVEL).ks, "to that of orthonormal tokens"),
            coords={"rank": np.arange(1, SHOWN + 1)},
        )

    def _law(self, gram: Real, share: float, first: Law) -> Law:
        """The law for keys and queries that differ as much as these tokens do.

        Where they have collapsed attention is uniform, and the first layer's law, scaled down, stands for no bulk.
        """
        # scale of the scores below which tokens count as collapsed: where the law for their Gram matrix stops
        if np.ptp(gram[1:]) < 1e-9 or self.beta * share < 0.01:
            return first.scaled(share**2)
        return CorrelatedAttentionLaw(self.beta * share, 1.0, EmpiricalLaw(gram / gram.mean()))

    def statements(self, data: xr.Dataset) -> Claims:
        """The first layer, the second with the gap, and the deeper ones without it."""
        kept, removed = data.sel(gap="kept"), data.sel(gap="removed")
        second = removed.sel(layer=2)
        yield self._counted("layer 1: values of A - uu' beyond the edge", data.beyond_own.sel(layer=1), 0, 1)
        one = kept.sel(layer=2)
        ratio = one.value.sel(rank=1) / one.tilt
        text = "layer 2, gap kept: largest value of A - uu' over that predicted from what tokens share"
        rival = "the edge of the bulk, no outlier", (one.edge / one.tilt).mean()
        yield Claim(text, "propagation: Figure 7; ours", ratio, 1.0, rival)
        yield self._counted("layer 2, gap kept: outliers of A - uu'", kept.beyond_own.sel(layer=2), 1, 0)
        text = "layer 2, gap removed: how much nearer the law of these tokens is than that of layer 1"
        yield sign(text, "propagation: Figure 7; ours", second.distance_first - second.distance, "no nearer")
        for layer in (2, 3):
            if layer <= self.depth:
                yield self._bulk(removed.sel(layer=layer))
        if self.depth > 2:
            text = "gap removed: distance to the law of these tokens in layer 3 minus that in layer 2"
            measured = removed.distance.sel(layer=3) - second.distance
            yield sign(text, "propagation: Figure 7; ours", measured, "the law is as near as in layer 2")
        whole, half = (
            Estimate.jackknife(lambda values: float(np.log2(np.mean(values))), each)
            for each in (second.beyond_first.values, data.half_beyond.values)
        )
        text = "layer 2, gap removed: exponent of T in the number of values beyond layer 1's edge: it is a bulk"
        rival = "0, a few outliers", 0.0
        finite_size = 0.5 / float(data.half_beyond.mean()) / np.log(2)
        reason = "derived: half a value of the smaller matrix: where a bulk of so few values ends"
        yield Claim(text, "propagation: Figure 7; ours", difference(whole, half), 1.0, rival, finite_size, reason)

    def _bulk(self, one: xr.Dataset) -> Claim:
        layer = int(one.layer)
        return Claim(
            f"layer {layer}, gap removed: values beyond the edge for these tokens, at most false alarms",
            "propagation: Figure 7; ours",
            _with_alarms(one.beyond_own),
            LEVEL,
            ("outliers, as many as lie beyond layer 1's edge", one.beyond_first.mean()),
            finite_size=self._large_entries(),
            reason="derived: values that single large entries of the softmax make",
            relation="<=",
            one_sided="beyond the second layer the law only bounds the edge",
        )

    def _counted(self, statement: str, found: xr.DataArray, predicted: int, rival: int) -> Claim:
        against = "none" if rival == 0 else "one, as if the gap were kept", rival
        finite_size = LEVEL + self._large_entries()
        reason = "derived: the level of false alarms, and values that single large entries of the softmax make"
        return Claim(
            statement, "propagation: Figure 7; ours", _with_alarms(found), predicted, against, finite_size, reason
        )

    def _large_entries(self) -> float:
        """Expected number of values that single large entries push beyond the edge, in the first layer."""
        edge = AttentionLaw(self.beta, 1.0).finite_edge(self.tokens, LEVEL)
        return LargeEntries(self.beta, self.tokens, self.tokens).beyond(edge)

    def figure(self, data: xr.Dataset) -> Figure:
        layers = data.layer.values.tolist()
        figure, grid = panels(2, len(layers), width=2.2, height=2.0)
        highest = 1.25 * max(float(data.value.mean("draw").max()), float(data.edge.mean("draw").max()))
        for row, gap in zip(grid, data.gap.values.tolist(), strict=True):
            for axes, layer in zip(row, layers, strict=True):
                one = data.sel(gap=gap, layer=layer)
                look: dict[str, Any] = {"label": r"$\sqrt{T} s_k(A - uu')$", "ms": 2.5}
                mean_marks(axes, data["rank"], one.value, **look)
                axes.axhline(float(data.first_edge), color=COLOURS[2], ls=":", label="edge, orthonormal tokens")
                axes.axhline(float(one.edge.mean()), color=COLOURS[1], label="edge, these tokens")
                if gap == "kept" and layer == 2:
                    axes.plot(1, float(one.tilt.mean()), "x", ms=7, color=COLOURS[-1], label="predicted outlier")
                axes.set(title=f"layer {layer}, gap {gap}", xlabel="rank k", ylim=(0, highest))
            row[0].set_ylabel("singular value")
        shared_legend(figure, grid.ravel(), 4)
        title = f"key-query attention: T = d = {self.tokens}, β = {self.beta}"
        figure.suptitle(f"{title}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def _with_alarms(found: xr.DataArray) -> Estimate:
    """Mean of counts; where they hardly scatter, the error is that of one false alarm in a hundred."""
    values = found.values.ravel()
    error = max(values.std(ddof=1), LEVEL**0.5) / len(values) ** 0.5
    return Estimate(float(values.mean()), float(error), float(len(values) - 1))
