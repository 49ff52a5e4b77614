"""*propagation*, Figures 2 and 4: stable rank collapses with the number of tokens, and with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Choice, Each, Integers, parameter
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.errors import DomainError
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

LAYERS = 3
VARIANTS: dict[str, dict[str, Any]] = {
    "attention": {},
    "+ LayerNorm": {"layer_norm": True},
    "+ skip": {"skip": 1.0, "skip_scaling": "rescaled"},
    "+ skip + LayerNorm": {"skip": 1.0, "skip_scaling": "rescaled", "layer_norm": True},
    "orthogonal values": {"values": "orthogonal"},
    "identity": {"attention": "identity"},
}


@dataclass(frozen=True)
class RankCollapse(Study):
    """Stable rank of the kernel falls to one as ``T**(1 - 2 l)`` after l layers; without the gap it does not collapse.

    The exponents are fitted to ``log(sr - 1)`` with a correction of order 1/T; the second part follows the stable rank
    with depth, with the gap and without, for the architectures of the paper.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(16, 2000)), "numbers of tokens, four at least", (32, 64, 128, 256), paper=(100, 200, 400, 800)
    )
    draws: int = parameter(
        Integers(10, 10_000), "draws at the smallest size; fewer, by its share, above", 150, paper=400
    )
    entries: str = parameter(
        Choice(("exponential", "uniform", "lognormal")),
        "entries of attention; lognormal ones, the paper's, need a hundred tokens",
        "exponential",
        paper="lognormal",
    )
    tokens: int = parameter(Integers(16, 2000), "tokens of the part on depth", 60, paper=200)
    depth: int = parameter(Integers(4, 50), "layers of the part on depth", 8, paper=15)

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
        return AttentionStack(depth, size, size, **(entries | options))

    def _in_width(self, rng: np.random.Generator) -> xr.Dataset:
        layer = np.arange(1, LAYERS + 1)
        logs, errors, free = (np.empty((len(self.sizes), LAYERS)) for _ in range(3))
        for k, size in enumerate(track(list(self.sizes), "widths")):
            count = max(8, self.draws * self.sizes[0] // size)
            drawn = np.log([[each.stable_rank_excess for each in self._stack(size).layers(rng)] for _ in range(count)])
            logs[k], errors[k] = drawn.mean(axis=0), drawn.std(axis=0, ddof=1) / np.sqrt(count)
            few = [[each.stable_rank for each in self._stack(size, gap=False).layers(rng)] for _ in range(6)]
            free[k] = np.median(few, axis=0)
        stacks = [[self._stack(size).at_depth(int(each)) for each in layer] for size in self.sizes]
        without = [[self._stack(size, gap=False).at_depth(int(each)) for each in layer] for size in self.sizes]
        fits = np.array([_slope(np.array(self.sizes), logs[:, k], errors[:, k]) for k in range(LAYERS)])
        return xr.Dataset(
            {
                "log_excess": (("size", "layer"), logs, {"long_name": "mean log(stable rank - 1)"}),
                "log_error": (("size", "layer"), errors),
                "predicted": (("size", "layer"), _each(stacks), {"long_name": "predicted stable rank - 1"}),
                "free": (("size", "layer"), free, {"long_name": "stable rank without the gap, median of six"}),
                "predicted_free": (("size", "layer"), _each(without) + 1),
                "slope": ("layer", fits[:, 0]),
                "slope_error": ("layer", fits[:, 1]),
            },
            coords={"size": list(self.sizes), "layer": layer},
        )

    def _in_depth(self, rng: np.random.Generator) -> xr.Dataset:
        ranks = np.empty((len(VARIANTS), 2, self.depth))
        for k, options in enumerate(track(list(VARIANTS.values()), "variants")):
            for j, gap in enumerate((True, False)):
                stack = self._stack(self.tokens, self.depth, gap=gap, **options)
                drawn = [[layer.stable_rank for layer in stack.layers(rng)] for _ in range(5)]
                ranks[k, j] = np.median(drawn, axis=0)
        return xr.Dataset(
            {"rank": (("variant", "gap", "step"), ranks, {"long_name": "stable rank of the kernel, median of five"})},
            coords={"variant": list(VARIANTS), "gap": ["kept", "removed"], "step": np.arange(1, self.depth + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The slopes, the constant without the gap, and which architectures collapse."""
        slopes = [
            Claim(
                statement=f"slope of log(stable rank - 1) in log T after {layer} layer{'s' if layer > 1 else ''}",
                place="propagation, Proposition 3",
                predicted=1 - 2 * layer,
                measured=float(data.slope.sel(layer=layer)),
                error=float(data.slope_error.sel(layer=layer)),
                tolerance=3 * float(data.slope_error.sel(layer=layer)),
                reason="three standard errors, as three slopes of one set of draws are tested together",
            )
            for layer in data.layer.values.tolist()
        ]
        return [*slopes, *self._constants(data), *self._depths(data)]

    def _constants(self, data: xr.Dataset) -> list[Claim]:
        last = data.isel(size=-1)
        ratio = (last.free / last.predicted_free).values
        shift = last.log_excess - np.log(last.predicted)
        return [
            Claim(
                statement=f"without the gap, stable rank over its prediction at T = {self.sizes[-1]}",
                place="propagation, Proposition 5; ours for the value",
                predicted=1.0,
                measured=float(ratio.mean()),
                error=standard_error(ratio),
                tolerance=4 * self.sizes[-1] ** (-2 / 3) + 0.05,
                reason="the largest value, squared, fluctuates by T^(-2/3); six draws of each",
            ),
            Claim(
                statement=f"with the gap, log of (stable rank - 1) over its prediction at T = {self.sizes[-1]}",
                place="ours: the constant of Proposition 3",
                predicted=0.0,
                measured=float(shift.isel(layer=0)),
                error=float(last.log_error[0]),
                tolerance=4 * float(last.log_error[0]) + 20 / self.sizes[-1],
                reason="four standard errors, and a bias of kurtosis/T",
            ),
        ]

    def _depths(self, data: xr.Dataset) -> list[Claim]:
        second = data["rank"].sel(step=2, variant=["attention", "+ LayerNorm"])
        free = 1 + self._stack(self.tokens, 2, gap=False).predicted_stable_rank_excess()
        return [
            Claim(
                statement="stable rank less one after two layers with the gap, with LayerNorm or without",
                place="propagation, Figures 2 and 4",
                predicted=0.0,
                measured=float(second.sel(gap="kept").max()) - 1,
                error=0.0,
                tolerance=0.05,
                reason="T^(-3) predicted, times a constant of order ten",
                relation="<=",
            ),
            Claim(
                statement="the same without the gap, smallest",
                place="propagation, Figures 2 and 4",
                predicted=free,
                measured=float(second.sel(gap="removed").min()),
                error=0.0,
                tolerance=free / 3,
                reason="a median of five of a ratio to a largest value squared",
                relation=">=",
            ),
        ]


def _each(stacks: list[list[AttentionStack]]) -> Real:
    return np.array([[stack.predicted_stable_rank_excess() for stack in row] for row in stacks])


def _slope(sizes: Real, values: Real, errors: Real) -> tuple[float, float]:
    """Slope in log T, beside a constant and a term in 1/T, by weighted least squares; and its standard error."""
    design = np.stack([np.ones(len(sizes)), np.log(sizes), 1 / sizes], axis=1) / errors[:, None]
    covariance = np.linalg.inv(design.T @ design)
    return float((covariance @ design.T @ (values / errors))[1]), float(np.sqrt(covariance[1, 1]))
