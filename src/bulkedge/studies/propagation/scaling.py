"""*propagation*, "Scaling discussion": skip connections, values, and Xavier's queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from bulkedge.domains import Each, Integers, parameter
from bulkedge.ensembles.markov import without_gap
from bulkedge.ensembles.stack import AttentionStack
from bulkedge.progress import track
from bulkedge.studies.base import Study
from bulkedge.studies.claims import Claim, standard_error

SCALINGS: tuple[Literal["plain", "rescaled"], ...] = ("plain", "rescaled")


@dataclass(frozen=True)
class Scaling(Study):
    """Beside a plain skip connection attention weighs 1/sqrt(T); with values rescaled by sqrt(d) it holds its own.

    Also: how the size of the kernel changes with depth for three variances of the values, and how Xavier's scaling of
    queries and keys leaves nothing of attention once its gap is removed.
    """

    sizes: tuple[int, ...] = parameter(
        Each(Integers(16, 2000)), "numbers of tokens, increasing", (32, 64, 128, 256), paper=(100, 200, 400, 800)
    )
    draws: int = parameter(Integers(3, 100), "draws of each", 6, paper=20)
    tokens: int = parameter(Integers(16, 1000), "tokens of the part on values", 100, paper=300)
    depth: int = parameter(Integers(2, 20), "layers there", 6, paper=10)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Branches, then sizes, then Xavier."""
        return xr.merge([self._branches(rng), self._values(rng)])

    def _branches(self, rng: np.random.Generator) -> xr.Dataset:
        share = np.empty((2, 2, len(self.sizes), self.draws))
        leftover = np.empty((len(self.sizes), self.draws))
        for k, size in enumerate(track(list(self.sizes), "sizes")):
            for i, scaling in enumerate(SCALINGS):
                for j, gap in enumerate((True, False)):
                    stack = AttentionStack(
                        1, size, size, gap=gap, skip=1.0, skip_scaling=scaling, entries="exponential"
                    )
                    share[i, j, k] = [
                        np.linalg.norm(stack.sample(rng) - stack.start()) / np.sqrt(size) for _ in range(self.draws)
                    ]
            xavier = AttentionStack(1, size, size, attention="xavier")
            leftover[k] = [np.sum(without_gap(next(xavier.layers(rng)).attention) ** 2) for _ in range(self.draws)]
        sizes = np.array(self.sizes)
        plain = np.stack([np.sqrt(2 / sizes), np.sqrt(1 / sizes)])
        return xr.Dataset(
            {
                "branch": (
                    ("skip_scaling", "gap", "size", "draw"),
                    share,
                    {"long_name": "norm of the attention branch over that of the skip"},
                ),
                "predicted_branch": (("skip_scaling", "gap", "size"), np.stack([plain, plain * np.sqrt(sizes)])),
                "xavier": (("size", "draw"), leftover, {"long_name": "variance of attention, T |A - uu'|_F^2/T"}),
                "predicted_xavier": ("size", np.log(2) / sizes**2),
            },
            coords={"skip_scaling": list(SCALINGS), "gap": ["kept", "removed"], "size": sizes},
        )

    def _values(self, rng: np.random.Generator) -> xr.Dataset:
        width = 2 * self.tokens
        powers = {"1/d": 1 / width, "gamma/sigma^2": self.tokens / width, "1": 1.0}
        means, predicted = (np.empty((len(powers), self.depth)) for _ in range(2))
        for k, power in enumerate(powers.values()):
            stack = AttentionStack(
                self.depth, self.tokens, width, gap=False, value_variance=power, entries="exponential"
            )
            drawn = [[np.mean(layer.singular_values**2) for layer in stack.layers(rng)] for _ in range(self.draws)]
            means[k] = np.mean(drawn, axis=0)
            predicted[k] = [stack.at_depth(depth).mean_eigenvalue for depth in range(1, self.depth + 1)]
        return xr.Dataset(
            {
                "mean": (("values", "layer"), means, {"long_name": "mean eigenvalue of the kernel"}),
                "predicted_mean": (("values", "layer"), predicted),
            },
            coords={"values": list(powers), "layer": np.arange(1, self.depth + 1)},
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """Weights of the branch, size of the kernel, and what Xavier leaves."""
        last = data.isel(size=-1)
        xavier = last.xavier / last.predicted_xavier
        error = standard_error(xavier)
        kept = data["mean"].sel(values="gamma/sigma^2").isel(layer=-1)
        return [
            *(
                self._branch(last.sel(skip_scaling=scaling, gap=gap))
                for scaling in SCALINGS
                for gap in ("kept", "removed")
            ),
            Claim(
                statement=f"Xavier's scaling: variance of attention over beta^2/d^2 at T = {self.sizes[-1]}",
                place="propagation, Proposition 1; ours for the rate",
                predicted=1.0,
                measured=float(xavier.mean()),
                error=error,
                tolerance=4 * error + 2 / self.sizes[-1],
                reason="four standard errors, and the mean of each row, 1/T, which softmax does not see",
            ),
            Claim(
                statement=f"values of variance gamma/sigma^2: mean eigenvalue after {self.depth} layers",
                place="propagation, Proposition 7",
                predicted=1.0,
                measured=float(kept),
                error=0.0,
                tolerance=3 * self.depth / self.tokens + 4 * (3 * self.depth / self.draws) ** 0.5 / self.tokens,
                reason="3/T off at each layer; the mean fluctuates by about sqrt(3 L)/T",
            ),
        ]

    def _branch(self, one: xr.Dataset) -> Claim:
        ratio = one.branch / one.predicted_branch
        error = standard_error(ratio)
        return Claim(
            statement=f"{one.skip_scaling.item()} skip, gap {one.gap.item()}: weight of attention over its prediction",
            place="propagation, section 3, scaling discussion",
            predicted=1.0,
            measured=float(ratio.mean()),
            error=error,
            tolerance=4 * error + 2 / self.sizes[-1],
            reason="four standard errors, and 2/T of the variance for row sums",
        )
