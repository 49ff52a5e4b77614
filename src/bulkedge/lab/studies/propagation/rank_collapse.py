"""*propagation*, Figures 2 and 4: stable rank collapses with the number of tokens, and with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.ensembles.stack import AttentionStack, StackLayer
from bulkedge.lab.studies.base import (
    Claim,
    Claims,
    Estimate,
    Real,
    Study,
    dataset,
    difference,
    mean_marks,
    sign,
    standard_error,
    track,
)
from bulkedge.lab.studies.propagation import MANY, SYMBOLS, decades, integers, sizes_axis
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.support.domains import Choice, Each, Integers, parameter
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import welch

LAYERS = 3
SKIP: dict[str, Any] = {"skip": 1.0, "skip_scaling": "rescaled"}
KEY_QUERY: dict[str, Any] = {"attention": "key-query", "variance": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "Markov": {},
    "Markov + LN": {"layer_norm": True},
    "Markov + skip": SKIP,
    "Markov + skip + LN": SKIP | {"layer_norm": True},
    "orthogonal values": {"values": "orthogonal"},
    "key-query": KEY_QUERY,
    "key-query + LN": KEY_QUERY | {"layer_norm": True},
    "key-query + skip": KEY_QUERY | SKIP,
    "key-query + skip + LN": KEY_QUERY | SKIP | {"layer_norm": True},
    "identity": {"attention": "identity"},
}
PLAIN, ORTHOGONAL, IDENTITY = "Markov", "orthogonal values", "identity"
SHALLOW = 2
"""Layers after which architectures are compared: later the rank is near one whatever is removed."""
LESS = "without its term of order 1/T, as fitted to smaller sizes"
KURTOSIS = {"lognormal": 41.0, "exponential": 9.0, "uniform": 1.8}
"""Fourth central moment over the squared variance."""


@dataclass(frozen=True)
class PropagationRankCollapse(Study):
    """Stable rank of the kernel falls to one as ``T**(1 - 2 l)`` after l layers; without the gap it does not collapse.

    The exponents are fitted to ``log(sr - 1)`` with a correction of order 1/T; the second part follows the stable rank
    with depth, with the gap and without, for the architectures of the paper.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(16, 2000)), "numbers of tokens, four at least", (32, 64, 128, 256), ours=(100, 200, 400, 800)
    )
    draws: int = parameter(
        Integers(10, 10_000), "draws at the smallest size; fewer, by its share, above", 500, ours=400
    )
    entries: str = parameter(
        Choice(("exponential", "uniform", "lognormal")),
        "entries of attention; lognormal ones need a hundred tokens",
        "exponential",
        paper="lognormal",
    )
    tokens: int = parameter(Integers(16, 2000), "tokens of the part on depth", 100, ours=200)
    depth: int = parameter(Integers(4, 50), "layers of the part on depth", 8, ours=15)
    repeats: int = parameter(Integers(4, 1000), "draws of the part on depth, and without the gap", 24, ours=24)
    small = {"sizes": (32, 64, 96, 144), "draws": 200, "tokens": 50, "depth": 4, "repeats": 8}
    caption = """Stable rank of the kernel over tokens with and without the gap, and over depth for every
    architecture. With the gap it falls to one ever faster with depth; without it the rank grows with the number of
    tokens."""

    def __post_init__(self) -> None:
        """Check the parameters, and that a slope and a correction can be fitted."""
        super().__post_init__()
        if len(self.sizes) < 4 or list(self.sizes) != sorted(set(self.sizes)):
            raise DomainError(f"sizes = {self.sizes} must be four different sizes at least, increasing")

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Collapse in width, then in depth."""
        return xr.merge([self._in_width(rng), self._in_depth(rng)])

    def _stack(self, size: int, depth: int = LAYERS, **options: Any) -> AttentionStack:
        variance = 1 / 3 if self.entries == "uniform" else 1.0
        entries: dict[str, Any] = {"entries": self.entries, "variance": variance}
        if options.get("attention", "markov") != "markov":
            entries = {}
        return AttentionStack(depth, size, size, **(entries | options))

    def _in_width(self, rng: np.random.Generator) -> xr.Dataset:
        shape = (len(self.sizes), LAYERS)
        logs, errors, counts = np.empty(shape), np.empty(shape), np.empty(len(self.sizes))
        free = np.empty((*shape, self.repeats))
        for k, size in enumerate(track(list(self.sizes), "widths")):
            counts[k] = max(8, self.draws * self.sizes[0] // size)
            kept = [[each.stable_rank_excess for each in self._stack(size).layers(rng)] for _ in range(int(counts[k]))]
            logs[k], errors[k], _ = Estimate.of(np.log(kept))
            few = [[each.stable_rank for each in self._stack(size, gap=False).layers(rng)] for _ in range(self.repeats)]
            free[k] = np.transpose(few)
        return dataset(
            log_excess=(("size", "layer"), logs, "mean log(stable rank - 1)"),
            log_error=(("size", "layer"), errors),
            count=("size", counts),
            predicted=(("size", "layer"), self._each(gap=True), "predicted stable rank - 1"),
            free=(("size", "layer", "draw"), free, "stable rank without the gap"),
            predicted_free=(("size", "layer"), 1 + self._each(gap=False)),
            values_alone=(("size", "layer"), 1 + self._each(attention="identity")),
            coords={"size": list(self.sizes), "layer": np.arange(1, LAYERS + 1)},
        )

    def _each(self, **options: Any) -> Real:
        stacks = [[self._stack(size, layer, **options) for layer in range(1, LAYERS + 1)] for size in self.sizes]
        return np.array([[stack.predicted_stable_rank_excess() for stack in row] for row in stacks])

    def _in_depth(self, rng: np.random.Generator) -> xr.Dataset:
        ranks = np.empty((len(VARIANTS), 2, self.repeats, self.depth))
        for k, options in enumerate(track(list(VARIANTS.values()), "variants")):
            for j, gap in enumerate((True, False)):
                stack = self._stack(self.tokens, self.depth, gap=gap, **options)
                ranks[k, j] = [[_rank(layer) for layer in stack.layers(rng)] for _ in range(self.repeats)]
        shallow = range(1, min(max(self.tokens // 10, 1), self.depth, 15) + 1)  # beyond, too many layers for the laws
        known = {name: self._expected(options, list(shallow)) for name, options in VARIANTS.items()}
        lines = {name: each for name, each in known.items() if each}
        return dataset(
            rank=(("variant", "gap", "draw", "step"), ranks, "stable rank of the kernel"),
            expected_rank=(("known", "shallow"), list(lines.values()), "predicted, no gap"),
            coords={
                "variant": list(VARIANTS),
                "gap": ["kept", "removed"],
                "step": np.arange(1, self.depth + 1),
                "known": list(lines),
                "shallow": list(shallow),
            },
        )

    def _expected(self, options: dict[str, Any], steps: list[int]) -> list[float]:
        """Stable rank without the gap, where there is a law for it."""
        if not set(options) <= {"values"} | ({"attention"} if options.get("attention") == "identity" else set()):
            return []
        stacks = [self._stack(self.tokens, step, gap=False, **options) for step in steps]
        return [1 + stack.predicted_stable_rank_excess() for stack in stacks]

    def statements(self, data: xr.Dataset) -> Claims:
        """The slopes and constants, the rank without the gap, and which architectures collapse."""
        layers = data.layer.values.tolist()
        for layer in layers:
            yield self._slope(data.sel(layer=layer))
        for layer in layers:
            yield self._constant(data.sel(layer=layer))
        for layer in layers:
            yield self._free(data.sel(layer=layer))
        # what removing the gap does to each architecture after two layers
        logs: xr.DataArray = np.log(data["rank"].sel(step=SHALLOW))  # type: ignore[assignment]
        for variant in VARIANTS:
            if variant != IDENTITY:
                text = f"{variant}: gain of log stable rank after {SHALLOW} layers, the gap removed"
                measured = difference(logs.sel(variant=variant, gap="removed"), logs.sel(variant=variant, gap="kept"))
                yield sign(text, "propagation: Figure 2, Figure 4", measured, "no gain")
        yield from self._inherent(data)

    def _slope(self, one: xr.Dataset) -> Claim:
        layer = int(one.layer)
        return Claim(
            f"slope of log(stable rank - 1) in log T after {layer} layer{'s' if layer > 1 else ''}",
            "propagation: Proposition 3, Theorem 9, Theorem 10",
            fitted_slope(np.array(self.sizes), one.log_excess.values, one.log_error.values, one["count"].values),
            1 - 2 * layer,
            ("-l, a power for each layer", -layer) if layer > 1 else ("no collapse in width", 0.0),
            finite_size=0.35
            * layer
            * (KURTOSIS[self.entries] / self.sizes[0]) ** 2
            / np.log(self.sizes[-1] / self.sizes[0]),
            reason="fitted: at 16 to 128 tokens, exponential entries, slopes are 0.01, 0.09 and 0.16 +- 0.05 steeper; "
            "l (kurtosis/T)^2 at the smallest size, over the logarithm of the sizes' ratio",
        )

    def _less(self, shifts: Real, errors: Real) -> tuple[float, float]:
        """The last of some shifts without its term of order 1/T, which is fitted to those of smaller sizes."""
        design = 1 / np.array(self.sizes[:-1]) / errors[:-1]
        slope, spread = design @ (shifts[:-1] / errors[:-1]) / (design @ design), (design @ design) ** -0.5
        return float(shifts[-1] - slope / self.sizes[-1]), float(np.hypot(errors[-1], spread / self.sizes[-1]))

    def _constant(self, one: xr.Dataset) -> Claim:
        """At the largest size."""
        layer, size = int(one.layer), self.sizes[-1]
        value, error = self._less((one.log_excess - np.log(one.predicted)).values, one.log_error.values)
        text = f"log of (stable rank - 1) over its prediction after {layer} at T = {size}, {LESS}"
        measured = Estimate(value, error, float(one["count"][-1]) - 1)
        rival = "equal eigenvalues after the first", -float(np.log(1 + 2 * layer))
        return Claim(text, "propagation: Proposition 3; ours", measured, 0.0, rival)

    def _free(self, one: xr.Dataset) -> Claim:
        """Without the gap, at the largest size: Frobenius norm over the largest value squared."""
        last, layer, size = one.isel(size=-1), int(one.layer), self.sizes[-1]
        ratio: Any = np.log(one.free / one.predicted_free)
        value, error = self._less(ratio.mean("draw").values, standard_error(ratio).values)
        text = f"gap removed: log of the stable rank over its prediction after {layer} at T = {size}, {LESS}"
        rival = "as if attention kept all angles", np.log(last.values_alone / last.predicted_free)
        return Claim(text, "propagation: Proposition 5", Estimate(value, error, self.repeats - 1), 0.0, rival)

    def _inherent(self, data: xr.Dataset) -> Claims:
        """Collapse in depth is there without any gap; orthogonal values slow it."""
        step = int(data.shallow[-1])
        logs: xr.DataArray = np.log(data["rank"].sel(gap="removed", step=step))  # type: ignore[assignment]
        identity = float(np.log(data.expected_rank.sel(known=IDENTITY, shallow=step)))
        second: xr.DataArray = np.log(data["rank"].sel(gap="removed", step=SHALLOW))  # type: ignore[assignment]
        text = f"identity: log of the stable rank after {step} layers; it collapses without any gap"
        rival = "as after one layer", np.log(data.expected_rank.sel(known=IDENTITY, shallow=1))
        finite_size = step / self.tokens
        reason = "fitted: at 50 tokens and 5 layers it is 0.10 +- 0.03 larger, l/T"
        yield Claim(text, "propagation: Figure 2", logs.sel(variant=IDENTITY), identity, rival, finite_size, reason)
        text = f"orthogonal values: gain of log stable rank after {SHALLOW} layers over Gaussian ones"
        measured = difference(second.sel(variant=ORTHOGONAL), second.sel(variant=PLAIN))
        yield sign(text, "propagation: Figure 2", measured, "no gain")

    def figure(self, data: xr.Dataset) -> Figure:
        figure, grid = panels(1, 4, width=2.5, height=2.6)
        left, middle = grid[0, :2]
        sizes = data["size"].values
        for layer, colour, symbol in zip(data.layer.values.tolist(), COLOURS, SYMBOLS, strict=False):
            one = data.sel(layer=layer)
            slope = fitted_slope(sizes, one.log_excess.values, one.log_error.values, one["count"].values)
            look = {"color": colour, "fmt": symbol}
            line(left, sizes, one.predicted, label="", color=colour)
            value, text = np.exp(one.log_excess), f"ℓ = {layer}: {slope.value:.2f} ± {slope.error:.2f}"
            marks(left, sizes, value, value * one.log_error, label=text, **look)
            line(middle, sizes, one.predicted_free, label="", color=colour)
            mean_marks(middle, sizes, one.free, label=f"ℓ = {layer}", **look)
        left.set(title="Markov, gap kept", ylabel=r"stable rank of $\Sigma_\ell$, minus one")
        middle.set(title="Markov, gap removed", ylabel=r"stable rank of $\Sigma_\ell$")
        decades(left)
        left.set_ylim(float(data.predicted.min()) / 1e7, 3)
        left.legend(loc="lower left", title="fitted slope", title_fontsize=7)
        middle.set_yscale("log", base=2)
        middle.yaxis.set_major_formatter("{x:g}")
        middle.legend(loc="upper left")
        for axes in (left, middle):
            sizes_axis(axes, sizes)
        for axes, gap in zip(grid[0, 2:], ("kept", "removed"), strict=True):
            _ranks(axes, data, gap)
        figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=5)
        title = f"lines: theory. Left: {self.entries} entries, T = d. Right: T = d = {self.tokens}"
        figure.suptitle(f"{title}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def _rank(layer: StackLayer) -> float:
    """Stable rank; nan if nothing is left: without the gap tokens that have become the same are taken away."""
    return layer.stable_rank if layer.singular_values.any() else np.nan


def fitted_slope(sizes: Real, values: Real, errors: Real, counts: Real) -> Estimate:
    """Slope in log T, beside a constant and a term in 1/T, by weighted least squares."""
    design = np.stack([np.ones(len(sizes)), np.log(sizes), 1 / sizes], axis=1) / errors[:, None]
    weights = (np.linalg.inv(design.T @ design) @ design.T)[1]
    freedom = welch(weights**2, counts - 1)
    return Estimate(float(weights @ (values / errors)), float(np.sqrt(np.sum(weights**2))), freedom)


def _ranks(axes: Axes, data: xr.Dataset, gap: str) -> None:
    """Stable rank over depth, a colour for each architecture."""
    for variant, colour, symbol in zip(data.variant.values.tolist(), MANY, SYMBOLS, strict=False):
        one = data["rank"].sel(variant=variant, gap=gap)
        mean_marks(axes, data.step, one, color=colour, fmt=symbol, label=variant)
        if gap == "removed" and variant in data.known.values:
            shown = data.shallow.values <= data.step.values[-1]
            curve = data.expected_rank.sel(known=variant).values
            line(axes, data.shallow.values[shown], curve[shown], label="", color=colour, lw=0.9)
    axes.set(title=f"gap {gap}", ylabel=r"stable rank of $\Sigma_\ell$", yscale="log")
    axes.set_ylim(0.9, 1.4 * float(data["rank"].mean("draw").max()))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    integers(axes, "layer ℓ")
