"""The room *collapse*: what depth does to the rank of a signal and to gradients, with the gap and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace
from bulkedge.support.domains import FLAG, Choice, Integers, Interval, parameter


def panels(p: Any) -> list[Panel]:
    """Axes of the figure."""
    return [
        Panel("Rank of the signal", "layer", "stable rank of X X′, less one", "y"),
        Panel(f"Gradients of layer {p.depth}", "layer ℓ of the weights", "|∂X/∂W of layer ℓ|²", "y"),
    ]


def stack_of(p: Any, **changed: Any) -> Any:
    """As many dimensions as tokens."""
    given = {"gap": p.gap, "skip": p.skip, "layer_norm": p.layer_norm, "variance": p.variance} | changed
    return be.AttentionStack(p.depth, p.tokens, p.tokens, **given)


def theory(p: Any) -> list[Trace]:
    """Stable rank and gradients, known without skip and LayerNorm; drawn with the gap and without it."""
    layers, curves = np.arange(1, p.depth + 1), []
    plain = not p.skip and not p.layer_norm
    for gap in (p.gap, not p.gap):
        stack = stack_of(p, gap=gap, skip=0.0, layer_norm=False)
        label = ("with its gap" if gap else "without the gap") + ("" if plain else ", plain")
        look: Any = "theory" if gap == p.gap and plain else "rival" if gap != p.gap else "second"
        rank = [stack.at_depth(int(each)).predicted_stable_rank_excess() for each in layers]
        curves += [
            Trace(label, layers, rank, look=look),
            Trace(label, layers, np.full(p.depth, stack.predicted_gradient()), panel=1, look=look),
        ]
    return curves


def simulate(p: Any, rng: np.random.Generator) -> dict[str, Any]:
    """One stack: stable rank after every layer, and gradients by the weights of every layer."""
    stack = stack_of(p)
    layers = list(stack.layers(rng))
    rank = [each.stable_rank_excess for each in layers]
    if stack.linear and not stack.skip:
        return {"rank": rank, "gradient": be.propagation.gradient_norms(stack, layers)}
    return {"rank": rank, "gradient": be.propagation.estimated_gradient_norms(stack, layers, rng, probes=4)[0]}


def observations(p: Any, samples: Sequence[Any]) -> list[Trace]:
    """Means over stacks: of the logarithm for the rank, whose draws differ by factors; plain ones for gradients."""
    layers, count = np.arange(1, p.depth + 1), len(samples)
    rank = np.exp(np.mean([np.log(np.maximum(each["rank"], 1e-300)) for each in samples], axis=0))
    gradient = np.array([each["gradient"] for each in samples])
    error = np.std(gradient, axis=0) / np.sqrt(max(count - 1, 1))
    look: dict[str, Any] = {"look": "simulation", "shape": "points"}
    return [
        Trace(f"simulation, {count} stacks", layers, rank, **look),
        Trace(f"simulation, {count} stacks", layers, gradient.mean(axis=0), panel=1, error=error, **look),
    ]


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
    code = (panels, stack_of, theory, simulate, observations)
    exported = {"depth": tuple(range(1, 11)), "gap": (True, False), "variance": (0.25, 0.5, 1.0)}  # noqa: RUF012

    depth: int = parameter(Integers(1, 10), "layers", 6)
    tokens: int = parameter(Choice((32, 64, 128, 256)), "tokens, and dimensions", 128)
    gap: bool = parameter(FLAG, "attention as it is, or less its mean", default=True)
    skip: float = parameter(Interval(0, 1), "weight of the layer's input in its output", 0.0)
    layer_norm: bool = parameter(FLAG, "whether tokens are normalised", default=False)
    variance: float = parameter(Interval(0.1, 2), "exp(β²) − 1 for scores", 1.0)

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
