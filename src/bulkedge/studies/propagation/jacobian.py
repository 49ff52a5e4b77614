"""*propagation*, Proposition 8: the Jacobian of gap-free attention, and what isometry costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.isometry import tradeoff
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.laws.base import Law
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

BINS = 40


@dataclass(frozen=True)
class Jacobian(Study):
    """Squared singular values of ``dX_l/dX_0`` without the gap: products of two independent Fuss-Catalan variables.

    At mean one their variance is ``l (l + 2)`` for any shape of the layers, and no scale brings them close to one.
    """

    tokens: int = parameter(Integers(20, 1000), "number of tokens T", 60, paper=200)
    ratios: tuple[float, ...] = parameter(Each(Interval(0.1, 1)), "ratios T/d", (0.25, 0.5, 1.0))
    depth: int = parameter(Integers(1, 6), "largest number of layers", 3)
    draws: int = parameter(Integers(4, 1000), "draws of each", 8, paper=20)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Both factors of the Kronecker product, layer by layer."""
        stacks = [self._stack(1.0).at_depth(layer) for layer in range(1, self.depth + 1)]
        laws = [stack.jacobian_law() for stack in stacks]  # at mean one, the same for every ratio
        parts = [self._measure(ratio, laws, rng) for ratio in track(list(self.ratios), "ratios")]
        return xr.concat(parts, dim=xr.Variable("ratio", list(self.ratios))).merge(self._isometry(stacks[0]))

    def _isometry(self, stack: AttentionStack) -> xr.Dataset:
        """The trade-off of mean and variance, over the mean and over depth, for T = d."""
        mean, steps = np.linspace(0, 1.2, 61), np.arange(1, 13)
        curves = [tradeoff(stack.at_depth(layer), "jacobian").distortion(mean) for layer in range(1, self.depth + 1)]
        kinds = [(values, of) for of in ("kernel", "jacobian") for values in ("gaussian", "orthogonal")]
        least = [
            [tradeoff(replace(stack, values=values, depth=int(step)), of).least for step in steps]  # type: ignore[arg-type]
            for values, of in kinds
        ]
        return xr.Dataset(
            {
                "distortion": (("layer", "target"), np.array(curves), {"long_name": "E (x - 1)^2"}),
                "least": (("kind", "step"), least, {"long_name": "least E (x - 1)^2 over all scales"}),
            },
            coords={"target": mean, "step": steps, "kind": [f"{of}, {values} values" for values, of in kinds]},
        )

    def _stack(self, ratio: float) -> AttentionStack:
        width = round(self.tokens / ratio)
        return AttentionStack(
            self.depth, self.tokens, width, gap=False, value_variance=self.tokens / width, entries="exponential"
        )

    def _measure(self, ratio: float, laws: list[Law], rng: np.random.Generator) -> xr.Dataset:
        stack = self._stack(ratio)
        edges = np.array([law.edge * np.linspace(0, 1, BINS + 1) ** 3 for law in laws])
        counts = np.zeros((self.depth, BINS))
        moments = np.empty((2, self.depth, self.draws))
        distances = np.empty((self.depth, self.draws))
        for draw in range(self.draws):
            for k, values in enumerate(squared_singular_values(stack, rng)):
                moments[:, k, draw] = values.mean(), np.mean(values**2)
                ranks = (np.arange(len(values)) + 0.5) / len(values)
                every = slice(None, None, max(1, len(values) // 4000))
                distances[k, draw] = np.max(np.abs(laws[k].cdf(values[every]) - ranks[every]))
                counts[k] += np.histogram(values, edges[k])[0] / (len(values) * self.draws)
        x = np.array([law.edge * np.linspace(0.02, 1, 300) ** 3 for law in laws])
        return xr.Dataset(
            {
                "mean": (("layer", "draw"), moments[0], {"long_name": "mean squared singular value"}),
                "second": (("layer", "draw"), moments[1], {"long_name": "second moment"}),
                "distance": (("layer", "draw"), distances, {"long_name": "Kolmogorov distance to the law"}),
                "simulation": (("layer", "bin"), counts / np.diff(edges)),
                "bin_edge": (("layer", "end"), edges),
                "x": (("layer", "point"), x),
                "theory": (("layer", "point"), np.array([law.pdf(at) for law, at in zip(laws, x, strict=True)])),
            },
            coords={"layer": np.arange(1, self.depth + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Mean, second moment and law, for every ratio and depth."""
        return [
            claim
            for ratio in self.ratios
            for layer in range(1, self.depth + 1)
            for claim in self._claims(data.sel(ratio=ratio, layer=layer), f"T/d = {ratio:g}, layer {layer}: ")
        ]

    def _claims(self, one: xr.Dataset, where: str) -> list[Claim]:
        layer = int(one.layer)
        mean, second = standard_error(one["mean"]), standard_error(one.second)
        predicted = float((1 + layer) ** 2)
        return [
            Claim(
                statement=where + "mean squared singular value",
                place="propagation, Proposition 8, equation 17",
                predicted=1.0,
                measured=float(one["mean"].mean()),
                error=mean,
                tolerance=4 * mean + 3 * layer / self.tokens,
                reason="four standard errors; row sums and a lost dimension take 3/T off at each layer",
            ),
            Claim(
                statement=where + "second moment, (1 + l)^2",
                place="propagation, Proposition 8, equation 18",
                predicted=predicted,
                measured=float(one.second.mean()),
                error=second,
                tolerance=4 * second + 6 * layer * predicted / self.tokens,
                reason="four standard errors, and twice that share",
            ),
            Claim(
                statement=where + "Kolmogorov distance to the law",
                place="propagation, proof of Theorem 8; ours for the law",
                predicted=0.0,
                measured=float(one.distance.mean()),
                error=standard_error(one.distance),
                tolerance=(2.5 + layer / 2) / self.tokens,
                reason="a few 1/T, more with each layer",
                relation="<=",
            ),
        ]


def squared_singular_values(stack: AttentionStack, rng: np.random.Generator) -> list[Real]:
    """Squared singular values of ``(W_1 ... W_l)' (x) (A_l ... A_1)`` for every layer l, in increasing order."""
    values, attention = np.eye(stack.width), np.eye(stack.tokens)
    found = []
    for layer in stack.layers(rng):
        values, attention = values @ layer.weights.values, layer.attention @ attention
        of_values, of_attention = (np.linalg.svd(part, compute_uv=False) ** 2 for part in (values, attention))
        found.append(np.sort(np.outer(of_values, of_attention).ravel()))
    return found
