"""The room *collapse*: what depth does to the rank of a signal and to gradients, with the gap and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace, mean_error
from bulkedge.support.domains import FLAG, Choice, Integers, Interval, parameter


def stack_of(p: Any, **changed: Any) -> Any:
    """As many dimensions as tokens."""
    given = {"gap": p.gap, "skip": p.skip, "layer_norm": p.layer_norm, "variance": p.variance} | changed
    return be.AttentionStack(p.depth, p.tokens, p.tokens, **given)


@dataclass(frozen=True)
class CollapseRoom(Room):
    """A stack of attention layers."""

    name = "collapse"
    title = "Collapse"
    shows = "How the rank of a signal falls and gradients grow with depth, and what removing the gap does to both."
    not_claimed = (
        "Attention is a random Markov matrix; with skip or LayerNorm there is no theory here, only simulation."
    )
    symbols = {"gap": "keep the gap", "layer_norm": "LayerNorm", "variance": "variance of attention"}  # noqa: RUF012
    exported = {"depth": tuple(range(1, 11)), "gap": (True, False), "variance": (0.25, 0.5, 1.0)}  # noqa: RUF012

    depth: int = parameter(Integers(1, 10), "attention layers on top of each other", 6)
    tokens: int = parameter(Choice((32, 64, 128, 256)), "tokens T, and as many dimensions", 128)
    gap: bool = parameter(FLAG, "off: subtract the mean from attention in every layer", default=True)
    skip: float = parameter(Interval(0, 1), "how much of its input a layer adds to its output", 0.0)
    layer_norm: bool = parameter(FLAG, "normalise every token after each layer", default=False)
    variance: float = parameter(Interval(0.1, 2), "how uneven attention is: exp(β²) − 1 for scores of spread β", 1.0)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("Rank of the signal", "layer", "stable rank of X X′, minus 1", "y"),
            Panel(f"Gradients of layer {self.depth}", "layer ℓ of the weights", "|∂X/∂W of layer ℓ|²", "y"),
        ]

    def theory(self) -> list[Trace]:
        """Stable rank and gradients, known without skip and LayerNorm; drawn with the gap and without it."""
        layers, curves = np.arange(1, self.depth + 1), []
        plain = not self.skip and not self.layer_norm
        for gap in (self.gap, not self.gap):
            stack = stack_of(self, gap=gap, skip=0.0, layer_norm=False)
            label = ("with its gap" if gap else "without the gap") + ("" if plain else ", plain")
            look: Any = "theory" if gap == self.gap and plain else "rival" if gap != self.gap else "second"
            rank = [stack.at_depth(int(each)).predicted_stable_rank_excess() for each in layers]
            curves += [
                Trace(label, layers, rank, look=look),
                Trace(label, layers, np.full(self.depth, stack.predicted_gradient()), panel=1, look=look),
            ]
        return curves

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """One stack: stable rank after every layer, and gradients by the weights of every layer."""
        stack = stack_of(self)
        layers = list(stack.layers(rng))
        rank = [each.stable_rank_excess for each in layers]
        if stack.linear and not stack.skip:
            return {"rank": rank, "gradient": be.propagation.gradient_norms(stack, layers)}
        return {"rank": rank, "gradient": be.propagation.estimated_gradient_norms(stack, layers, rng, probes=4)[0]}

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Means over stacks: of the logarithm for the rank, whose draws differ by factors; plain ones for gradients."""
        layers = np.arange(1, self.depth + 1)
        rank, spread = mean_error([np.log(np.maximum(each["rank"], 1e-300)) for each in samples])
        gradient, error = mean_error([each["gradient"] for each in samples])
        look: dict[str, Any] = {"look": "simulation", "shape": "points"}
        label = f"simulation, {len(samples)} stacks"
        return [
            Trace(label, layers, np.exp(rank), error=np.exp(rank) * spread, **look),
            Trace(label, layers, gradient, panel=1, error=error, **look),
        ]

    def script(self, seed: int = 0) -> str:
        """The stack: its stable rank as predicted and as drawn."""
        given = f"gap={self.gap}, skip={self.skip}, layer_norm={self.layer_norm}, variance={self.variance}"
        told = 'print("predicted after the last layer:", stack.predicted_stable_rank_excess())\n'
        return f"""import numpy as np

import bulkedge as be

stack = be.AttentionStack({self.depth}, {self.tokens}, {self.tokens}, {given})
for number, layer in enumerate(stack.layers(np.random.default_rng({seed})), 1):
    print(f"layer {{number}}: stable rank 1 + {{layer.stable_rank_excess:.3g}}")
{told if not self.skip and not self.layer_norm else "# no theory with skip or LayerNorm"}"""

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """The stable rank after the last layer."""
        found = {}
        if not self.skip and not self.layer_norm:
            excess = stack_of(self).predicted_stable_rank_excess()
            found["stable rank after the last layer, predicted"] = f"1 + {excess:.3g}"
        if samples:
            last = np.exp(np.mean([np.log(max(each["rank"][-1], 1e-300)) for each in samples]))
            found["simulated"] = f"1 + {last:.3g}"
        return found
