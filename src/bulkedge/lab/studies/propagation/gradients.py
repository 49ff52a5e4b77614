"""*propagation*, Figures 4, 5 and 9: gradients explode with the gap, and grow linearly without it."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies.base import Claim, Claims, Estimate, Real, Study, dataset, difference, mean_marks, sign, track
from bulkedge.lab.studies.propagation import MANY, SYMBOLS, decades, integers, row_variance, sizes_axis
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.propagation.gradients import estimated_gradient_norms, gradient_norms
from bulkedge.support.domains import Each, Integers, parameter

SKIP: dict[str, Any] = {"skip": 1.0, "skip_scaling": "rescaled"}
MARKOV: dict[str, Any] = {"entries": "exponential"}
KEY_QUERY: dict[str, Any] = {"attention": "key-query"}
VARIANTS: dict[str, dict[str, Any]] = {
    "Markov": MARKOV,
    "Markov + LN": MARKOV | {"layer_norm": True},
    "Markov + skip": MARKOV | SKIP,
    "Markov + skip + LN": MARKOV | SKIP | {"layer_norm": True},
    "key-query": KEY_QUERY,
    "key-query + LN": KEY_QUERY | {"layer_norm": True},
    "key-query + skip": KEY_QUERY | SKIP,
    "key-query + skip + LN": KEY_QUERY | SKIP | {"layer_norm": True},
}
GAPS = ("kept", "removed")
PROBES = 8


@dataclass(frozen=True)
class PropagationGradients(Study):
    """Squared gradient norms of the first layer's values: ``T**L`` with the gap, linear in T without it.

    Of one layer over the number of tokens for every architecture; of a few layers for Markov attention, whose
    expectation is known exactly; and over depth for every architecture, by reverse-mode differentiation where the stack
    is not linear. Key-query attention grows with depth whether its gap is removed or not; under LayerNorm it grows only
    if it is.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(8, 1000)), "numbers of tokens, increasing", (24, 48, 96), ours=(50, 100, 200, 400)
    )
    depths: tuple[int, ...] = parameter(Each(Integers(1, 6)), "depths of Markov attention", (1, 2, 3), ours=(1, 2, 3))
    draws: int = parameter(Integers(4, 1000), "draws of each", 24, ours=24)
    tokens: int = parameter(Integers(8, 500), "tokens of the part on depth", 64, ours=100)
    deepest: int = parameter(Integers(2, 20), "largest depth there", 5, ours=8)
    small = {"sizes": (24, 48), "depths": (1, 2), "draws": 12, "tokens": 32, "deepest": 3}
    caption = """Squared gradient norms of the first layer's values over tokens and depth, with the gap
    (top) and without it (bottom). With the gap the slopes of the middle panel grow with depth; without it they stay
    the same."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """One layer, a few layers, and over depth."""
        return xr.merge([self._one_layer(rng), self._few_layers(rng), self._over_depth(rng)])

    def _one_layer(self, rng: np.random.Generator) -> xr.Dataset:
        norms = np.empty((2, len(VARIANTS), len(self.sizes), self.draws))
        for k, size in enumerate(track(list(self.sizes), "widths, one layer")):
            for i, gap in enumerate((True, False)):
                for j, options in enumerate(VARIANTS.values()):
                    norms[i, j, k] = _estimated(AttentionStack(1, size, size, gap=gap, **options), self.draws, rng)
        return dataset(
            one_layer=(("gap", "variant", "size", "draw"), norms, "squared gradient norm, L = 1"),
            coords={"gap": list(GAPS), "variant": list(VARIANTS), "size": list(self.sizes)},
        )

    def _few_layers(self, rng: np.random.Generator) -> xr.Dataset:
        shape = (2, len(self.depths), len(self.sizes))
        norms, predicted = np.empty((*shape, self.draws)), np.empty(shape)
        for k, size in enumerate(track(list(self.sizes), "widths")):
            for i, gap in enumerate((True, False)):
                for j, depth in enumerate(self.depths):
                    stack = AttentionStack(depth, size, size, gap=gap, **MARKOV)
                    norms[i, j, k] = [gradient_norms(stack, stack.layers(rng))[0] for _ in range(self.draws)]
                    predicted[i, j, k] = stack.predicted_gradient()
        dims = ("gap", "depth", "size")
        return dataset(
            norm=((*dims, "draw"), norms, "squared gradient norm of the first layer"),
            predicted=(dims, predicted, "its expectation"),
            coords={"depth": list(self.depths)},
        )

    def _over_depth(self, rng: np.random.Generator) -> xr.Dataset:
        steps = np.arange(1, self.deepest + 1)
        found = np.empty((2, len(VARIANTS), len(steps), self.draws))
        for j, options in enumerate(track(list(VARIANTS.values()), "variants")):
            for i, gap in enumerate((True, False)):
                for k, depth in enumerate(steps.tolist()):
                    stack = AttentionStack(depth, self.tokens, self.tokens, gap=gap, **options)
                    found[i, j, k] = _estimated(stack, self.draws, rng)
        stacks = [[AttentionStack(depth, self.tokens, self.tokens, gap=gap, **MARKOV) for depth in steps.tolist()]
                  for gap in (True, False)]  # fmt: skip
        return dataset(
            over_depth=(("gap", "variant", "step", "draw"), found, "squared gradient norm"),
            expected=(("gap", "step"), [[stack.predicted_gradient() for stack in row] for row in stacks]),
            coords={"step": steps},
        )

    def statements(self, data: xr.Dataset) -> Claims:
        """Expectations, growth with T, and with depth."""
        yield from self._one_claims(data)
        for gap in GAPS:
            one = data.sel(gap=gap)
            # a few layers of Markov attention: constants and exponents
            span, depth = log(self.sizes[-1] / self.sizes[0]), self.depths[-1]
            place = "propagation: Proposition 4" if gap == "kept" else "propagation: Proposition 6"
            ends = one.norm.sel(depth=depth).isel(size=[0, -1]).values
            limits = one.predicted.sel(depth=depth).isel(size=[0, -1]).values
            for each in self.depths:
                text = f"gap {gap}, depth {each}: gradient over its expectation, all sizes"
                measured = (one.norm / one.predicted).sel(depth=each)
                yield Claim(text, f"{place}; ours", measured, 1.0, _other_gap(each, gap, self.sizes))
            text = f"gap {gap}: exponent of T at depth {depth}, whose limit is {depth if gap == 'kept' else 1}"
            rival = ("linear", 1.0) if gap == "kept" else ("as with the gap", depth)
            yield Claim(text, place, _growth(ends, span), log(limits[1] / limits[0]) / span, rival)
        yield from self._depth_claims(data)

    def _one_claims(self, data: xr.Dataset) -> Claims:
        """One layer: linear in T for all, and what the gap does to the slope."""
        ends = data.one_layer.isel(size=[0, -1])
        span = log(self.sizes[-1] / self.sizes[0])
        for variant in VARIANTS:
            for gap in GAPS:
                text = f"{variant}, gap {gap}: exponent of T in the gradient of one layer, whose limit is 1"
                place = "propagation: Figure 4" if gap == "kept" else "propagation: Figure 4, Proposition 6"
                measured = _growth(ends.sel(gap=gap, variant=variant).values, span)
                predicted = 1 + log(_level(variant, gap, self.sizes[-1]) / _level(variant, gap, self.sizes[0])) / span
                bent = variant.endswith("skip + LN")
                finite_size = bent / self.sizes[0] / span
                reason = "derived: squared lengths behind the skip fluctuate by 2/T, which q/(1 + q) bends" * bent
                yield Claim(text, place, measured, predicted, ("2, as of two layers", 2.0), finite_size, reason)
        for each in (("Markov", 2), ("Markov + LN", 1)):
            yield self._slope(data, *each)

    def _slope(self, data: xr.Dataset, variant: str, rounded: int) -> Claim:
        """What the gap multiplies the gradient of one layer with: under LayerNorm nothing at all."""
        size = self.sizes[-1]
        kept, removed = (data.one_layer.sel(gap=gap, variant=variant, size=size).values for gap in GAPS)
        other = 1 + (size + 1) / (size - 1)
        text = f"{variant}: gradient of one layer with the gap over that without it, whose limit is {rounded}"
        place = "propagation: Figure 4, Proposition 4; ours"
        rival = ("1, no effect", 1.0) if rounded == 2 else ("2, as without LayerNorm", other)
        return Claim(text, place, _quotient(kept, removed), other if rounded == 2 else 1.0, rival)

    def _depth_claims(self, data: xr.Dataset) -> Claims:
        """Powers of T that a layer brings."""
        reach, bound = (self.deepest - 1) * log(self.tokens), log(2) / log(self.tokens)
        for gap, other in (("kept", "controlled, no growth"), ("removed", "T a layer")):
            expected = data.expected.sel(gap=gap).values
            text = f"Markov, gap {gap}: powers of T in the gradient for each layer, up to {self.deepest}"
            measured = _growth(data.over_depth.sel(gap=gap, variant="Markov").isel(step=[0, -1]).values, reach)
            rival = other, 0.0 if gap == "kept" else 1.0
            yield Claim(text, "propagation: Figure 5", measured, log(expected[-1] / expected[0]) / reach, rival)
        controlled = [("Markov + LN", "kept"), ("Markov + LN", "removed"), ("key-query + LN", "kept")]
        for variant, gap in controlled:
            one = data.over_depth.sel(gap=gap, variant=variant).isel(step=[0, -1]).values
            text = f"{variant}, gap {gap}: powers of T for each layer, at most a factor of two"
            rival = "T a layer, as without LayerNorm", 1.0
            reason = "a factor that does not grow with T is no power of it, and no theory here gives the factor"
            measured, place = _growth(one, reach), "propagation: Figure 5"
            yield Claim(text, place, measured, bound, rival, relation="<=", one_sided=reason)
        yield from self._key_query(data)

    def _key_query(self, data: xr.Dataset) -> Claims:
        """Key-query attention grows faster than the bound, and without its gap too."""
        # depth up to which gradients of key-query attention are compared: deeper ones freeze, and their gradients
        # vanish
        step = min(3, self.deepest)
        logs: xr.DataArray = np.log(data.over_depth.sel(step=[1, step]))
        kept = logs.sel(gap="kept", variant="key-query", step=step)
        bound = log(float(data.expected.sel(gap="kept", step=step)))
        places = ("propagation: Figure 5, Figure 9, Multiple outliers", "propagation: Figure 9; ours")
        removed = [logs.sel(gap="removed", variant=name) for name in ("key-query", "key-query + LN")]
        text = f"key-query, gap kept, depth {step}: log of the gradient over that of Markov attention"
        yield sign(text, "propagation: Figure 5, Figure 9", kept.values - bound, "no faster")
        for one, place in zip(removed, places, strict=True):
            text = f"{one.variant.item()}, gap removed: log of the gradient, layer 1 to {step}: it still grows"
            yield sign(text, place, difference(one.sel(step=step), one.sel(step=1)), "controlled, as Markov attention")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(2, 3, width=2.8, height=2.3)
        sizes, variants = data["size"].values, data.variant.values.tolist()
        for row, gap in zip(grid, ("kept", "removed"), strict=True):
            one_layer, few, deep = row
            for k, (variant, colour, symbol) in enumerate(zip(variants, MANY, SYMBOLS, strict=False)):
                look = {"color": colour, "fmt": symbol, "label": variant}
                one = data.one_layer.sel(gap=gap, variant=variant) / data["size"]
                mean_marks(one_layer, sizes * 1.03 ** (k - 3), one, **look)  # beside each other: many are equal
                one = data.over_depth.sel(gap=gap, variant=variant)
                logs = Estimate.of(np.log(one.transpose("draw", "step").values))
                middle = np.exp(logs.value)
                marks(deep, data.step, middle, middle * logs.error, **(look | {"fmt": symbol + "--", "lw": 0.6}))
            for depth, colour, symbol in zip(data.depth.values.tolist(), COLOURS, SYMBOLS, strict=False):
                one = data.sel(gap=gap, depth=depth)
                line(few, sizes, one.predicted, label="", color=colour)
                mean_marks(few, sizes, one.norm, label=f"L = {depth}", color=colour, fmt=symbol)
            one_layer.set(title=f"one layer, gap {gap}", ylabel=r"$\|\partial X_1/\partial W_1\|_F^2/T$", ylim=(0, 2.5))
            few.set(title=f"Markov, gap {gap}", ylabel=r"$\|\partial X_L/\partial W_1\|_F^2$")
            decades(few)
            few.set_ylim(float(data.norm.min()) / 3, 30 * float(data.norm.max()))
            few.legend(loc="upper left", ncols=3, columnspacing=0.6, handletextpad=0.1)
            line(deep, data.step, data.expected.sel(gap=gap), label="theory, Markov", color=COLOURS[-1], lw=0.9)
            decades(deep)
            deep.set(title=f"over depth, gap {gap}", ylabel=r"$\|\partial X_L/\partial W_1\|_F^2$")
            deep.set_ylim(float(data.over_depth.min()) / 3, 3 * float(data.over_depth.max()))
            integers(deep, "depth L")
            for axes in (one_layer, few):
                sizes_axis(axes, sizes)
        figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        figure.suptitle(f"T = d; over depth T = {self.tokens}; {data.sizes['draw']} draws; lines: theory", fontsize=8)
        return figure


def _level(variant: str, gap: str, size: int) -> float:
    """Expected squared gradient norm of one layer, over T: that of rows of attention, which LayerNorm divides by."""
    if variant.endswith("LN") and "skip" not in variant:
        return (size - 2) / (size - 3)
    row = row_variance(log(2) ** 0.5, size) if "key-query" in variant else (size - 1) / (size + 1)
    row += gap == "kept"
    return row / (1 + row) if "LN" in variant else row


def _estimated(stack: AttentionStack, draws: int, rng: np.random.Generator) -> list[float]:
    """Squared gradient norms of the first layer, one for each draw: random probes, without bias."""
    return [estimated_gradient_norms(stack, stack.layers(rng), rng, PROBES)[0][0] for _ in range(draws)]


def _growth(ends: Real, span: float) -> Estimate:
    """Growth of the logarithm of the mean between two sets of draws (end, draw), over a span."""
    first, last = (Estimate.jackknife(lambda draws: log(np.mean(draws)) / span, draws) for draws in ends)
    return difference(last, first)


def _quotient(upper: Real, lower: Real) -> Estimate:
    """Quotient of the means of two independent sets of draws."""
    ratio = float(np.mean(upper) / np.mean(lower))
    logs = _growth(np.array([lower, upper]), 1.0)
    return Estimate(ratio, ratio * logs.error, logs.freedom)


def _other_gap(depth: int, gap: str, sizes: tuple[int, ...]) -> tuple[str, float]:
    """What the ratio to the expectation would be if the gap made no difference: mean over the sizes."""
    pairs = [
        [AttentionStack(depth, size, size, gap=each, **MARKOV).predicted_gradient() for each in (True, False)]
        for size in sizes
    ]
    ratios = [without / with_gap if gap == "kept" else with_gap / without for with_gap, without in pairs]
    return (f"as with the gap {'removed' if gap == 'kept' else 'kept'}", float(np.mean(ratios)))
