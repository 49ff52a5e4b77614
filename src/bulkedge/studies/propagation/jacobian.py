"""*propagation*, Proposition 8: the Jacobian of gap-free attention, and what isometry costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from bulkedge.arrays import Real
from bulkedge.domains import Each, Integers, Interval, parameter
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.laws.base import Law
from bulkedge.progress import track
from bulkedge.propagation.isometry import tradeoff
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim
from bulkedge.studies.propagation.setting import Places, gap_free_claims, gap_free_stack

BINS = 40
PLACES = Places(
    "propagation, Proposition 8, equation 17",
    "propagation, Proposition 8, equation 18",
    "propagation, proof of Theorem 8; ours for the law",
)


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
        stacks = [gap_free_stack(self.depth, self.tokens, 1.0).at_depth(layer) for layer in range(1, self.depth + 1)]
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

    def _measure(self, ratio: float, laws: list[Law], rng: np.random.Generator) -> xr.Dataset:
        stack = gap_free_stack(self.depth, self.tokens, ratio)
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
                "spread": ("layer", [k * (k + 2) for k in range(1, self.depth + 1)], {"long_name": "variance"}),
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
        return gap_free_claims(data, self.tokens, PLACES, slack=2.5)


def squared_singular_values(stack: AttentionStack, rng: np.random.Generator) -> list[Real]:
    """Squared singular values of ``(W_1 ... W_l)' (x) (A_l ... A_1)`` for every layer l, in increasing order.

    Parameters
    ----------
    stack : AttentionStack
        A linear stack.
    rng : numpy.random.Generator
        Draws it, once.

    Returns
    -------
    list of arrays of shape (width * tokens,)
        One for each layer.
    """
    values, attention = np.eye(stack.width), np.eye(stack.tokens)
    found = []
    for layer in stack.layers(rng):
        values, attention = values @ layer.weights.values, layer.attention @ attention
        of_values, of_attention = (np.linalg.svd(part, compute_uv=False) ** 2 for part in (values, attention))
        found.append(np.sort(np.outer(of_values, of_attention).ravel()))
    return found
