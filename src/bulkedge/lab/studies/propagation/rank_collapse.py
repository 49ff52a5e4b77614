"""*propagation*, Figures 2 and 4: stable rank collapses with the number of tokens, and with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bulkedge.ensembles.stack import AttentionStack
from bulkedge.lab.studies.base import Study, mean_marks
from bulkedge.lab.studies.claims import Claim, Rival
from bulkedge.lab.studies.propagation.setting import SYMBOLS, decades, integers, sizes_axis
from bulkedge.plots.style import COLOURS, line, marks, panels
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Choice, Each, Integers, parameter
from bulkedge.support.errors import DomainError
from bulkedge.support.estimates import Estimate, welch
from bulkedge.support.progress import track

LAYERS = 3
SKIP: dict[str, Any] = {"skip": 1.0, "skip_scaling": "rescaled"}
KEY_QUERY: dict[str, Any] = {"attention": "key-query", "variance": 1.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "Markov": {},
    "Markov + LN": {"layer_norm": True},
    "Markov + skip": SKIP,
    "Markov + skip + LN": SKIP | {"layer_norm": True},
    "orthogonal values": {"values": "orthogonal"},
    "key-query + LN": KEY_QUERY | {"layer_norm": True},
    "key-query + skip + LN": KEY_QUERY | SKIP | {"layer_norm": True},
    "identity": {"attention": "identity"},
}
PLAIN, ORTHOGONAL, IDENTITY = "Markov", "orthogonal values", "identity"
SHALLOW = 2
"""Layers after which architectures are compared: later the rank is near one whatever is removed."""
KURTOSIS = {"lognormal": 41.0, "exponential": 9.0, "uniform": 1.8}
"""Fourth central moment over the squared variance."""
MANY = (*COLOURS, "0.5")


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
    repeats: int = parameter(Integers(4, 1000), "draws of the part on depth, and without the gap", 16, ours=16)
    small: ClassVar = {"sizes": (32, 64, 96, 144), "draws": 200, "tokens": 50, "depth": 4, "repeats": 8}

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
        return xr.Dataset(
            {
                "log_excess": (("size", "layer"), logs, {"long_name": "mean log(stable rank - 1)"}),
                "log_error": (("size", "layer"), errors),
                "count": ("size", counts),
                "predicted": (("size", "layer"), self._each(gap=True), {"long_name": "predicted stable rank - 1"}),
                "free": (("size", "layer", "draw"), free, {"long_name": "stable rank without the gap"}),
                "predicted_free": (("size", "layer"), 1 + self._each(gap=False)),
                "values_alone": (("size", "layer"), 1 + self._each(attention="identity")),
            },
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
                ranks[k, j] = [[layer.stable_rank for layer in stack.layers(rng)] for _ in range(self.repeats)]
        shallow = range(1, min(max(self.tokens // 10, 1), self.depth, 15) + 1)  # beyond, too many layers for the laws
        known = {name: self._expected(options, list(shallow)) for name, options in VARIANTS.items()}
        lines = {name: each for name, each in known.items() if each}
        return xr.Dataset(
            {
                "rank": (("variant", "gap", "draw", "step"), ranks, {"long_name": "stable rank of the kernel"}),
                "expected_rank": (("known", "shallow"), list(lines.values()), {"long_name": "predicted, no gap"}),
            },
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

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The slopes and constants, the rank without the gap, and which architectures collapse."""
        layers = data.layer.values.tolist()
        return [
            *(self._slope(data.sel(layer=layer)) for layer in layers),
            *(self._constant(data.sel(layer=layer)) for layer in layers),
            *(self._free(data.sel(layer=layer)) for layer in layers),
            *self._gains(data),
            *self._inherent(data),
        ]

    def _slope(self, one: xr.Dataset) -> Claim:
        layer = int(one.layer)
        return Claim(
            statement=f"slope of log(stable rank - 1) in log T after {layer} layer{'s' if layer > 1 else ''}",
            place="propagation: Proposition 3, Theorem 9, Theorem 10",
            measured=fitted_slope(
                np.array(self.sizes), one.log_excess.values, one.log_error.values, one["count"].values
            ),
            predicted=1 - 2 * layer,
            rival=Rival("-l, a power for each layer", -layer) if layer > 1 else Rival("no collapse in width", 0.0),
            finite_size=(KURTOSIS[self.entries] / self.sizes[0]) ** 2 / np.log(self.sizes[-1] / self.sizes[0]),
            reason="what a correction of order 1/T leaves to the next order, (kurtosis/T)^2 at the smallest size",
        )

    def _constant(self, one: xr.Dataset) -> Claim:
        """At the largest size."""
        last, layer, size = one.isel(size=-1), int(one.layer), self.sizes[-1]
        second, shift = 1 + 2 * layer, last.log_excess - np.log(last.predicted)
        return Claim(
            statement=f"log of (stable rank - 1) over its prediction after {layer} at T = {size}",
            place="propagation: Proposition 3; ours",
            measured=Estimate(float(shift), float(last.log_error), float(last["count"]) - 1),
            predicted=0.0,
            rival=Rival("equal eigenvalues beside the first", -float(np.log(second))),
            finite_size=(KURTOSIS[self.entries] + 4 * layer) / size,
            reason="kurtosis/T for the row sums, and 4/T a layer for the logarithm of what fluctuates",
        )

    def _free(self, one: xr.Dataset) -> Claim:
        """Without the gap, at the largest size: Frobenius norm over the largest value squared."""
        last, layer, size = one.isel(size=-1), int(one.layer), self.sizes[-1]
        ratio: Any = np.log(last.free / last.predicted_free)
        return Claim(
            statement=f"gap removed: log of the stable rank over its prediction after {layer} at T = {size}",
            place="propagation: Proposition 5",
            measured=Estimate.of(ratio),
            predicted=0.0,
            rival=Rival("as if attention kept all angles", float(np.log(last.values_alone / last.predicted_free))),
            finite_size=(KURTOSIS[self.entries] + 4 * layer) / size,
            reason="kurtosis/T at the edge, and 2/T for each of 2 l factors, the next order of the edge's place",
        )

    def _gains(self, data: xr.Dataset) -> list[Claim]:
        """What removing the gap does to each architecture after two layers."""
        logs: xr.DataArray = np.log(data["rank"].sel(step=SHALLOW))  # type: ignore[assignment]
        return [
            Claim(
                statement=f"{variant}: gain of log stable rank after {SHALLOW} layers, the gap removed",
                place="propagation: Figure 2, Figure 4",
                measured=_difference(logs.sel(variant=variant, gap="removed"), logs.sel(variant=variant, gap="kept")),
                predicted=0.0,
                rival=Rival("no gain", 0.0),
                relation=">=",
            )
            for variant in VARIANTS
            if variant != IDENTITY
        ]

    def _inherent(self, data: xr.Dataset) -> list[Claim]:
        """Collapse in depth is there without any gap; orthogonal values slow it."""
        step = int(data.shallow[-1])
        logs: xr.DataArray = np.log(data["rank"].sel(gap="removed", step=step))  # type: ignore[assignment]
        identity = float(np.log(data.expected_rank.sel(known=IDENTITY, shallow=step)))
        second: xr.DataArray = np.log(data["rank"].sel(gap="removed", step=SHALLOW))  # type: ignore[assignment]
        return [
            Claim(
                statement=f"identity: log of the stable rank after {step} layers; it collapses without any gap",
                place="propagation: Figure 2",
                measured=Estimate.of(logs.sel(variant=IDENTITY)),
                predicted=identity,
                rival=Rival("as after one layer", float(np.log(data.expected_rank.sel(known=IDENTITY, shallow=1)))),
                finite_size=4 * step / self.tokens,
                reason="4/T a layer, the next order of the edge's place",
            ),
            Claim(
                statement=f"orthogonal values: gain of log stable rank after {SHALLOW} layers over Gaussian ones",
                place="propagation: Figure 2",
                measured=_difference(second.sel(variant=ORTHOGONAL), second.sel(variant=PLAIN)),
                predicted=0.0,
                rival=Rival("no gain", 0.0),
                relation=">=",
            ),
        ]

    def figure(self, data: xr.Dataset) -> Figure:
        """Collapse in width with the gap, the rank without it, and both over depth."""
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
        left.set(title="Markov, gap kept", ylabel=r"stable rank of $\Sigma_\ell$, less one")
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
        figure.legend(*grid[0, 2].get_legend_handles_labels(), loc="outside lower center", ncols=8)
        title = f"lines: theory. Left: {self.entries} entries, T = d. Right: T = d = {self.tokens}"
        figure.suptitle(f"{title}, {data.sizes['draw']} draws", fontsize=8)
        return figure


def _difference(first: xr.DataArray, second: xr.DataArray) -> Estimate:
    """Difference of the means of two independent sets of draws."""
    return Estimate.mean([Estimate.of(2 * first.values), Estimate.of(-2 * second.values)])


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
