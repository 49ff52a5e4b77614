"""The room *width*: a coordinate of a wide attention layer is no Gaussian; beside it, the Gaussian one would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace, histogram
from bulkedge.support.domains import Choice, Integers, Interval, parameter


def gram_of(p: Any) -> Any:
    """Inputs of unit norm, any two equally correlated."""
    return be.programs.equal_correlations(p.inputs, p.correlation)


def deviation(p: Any) -> float:
    """Standard deviation of the coordinate in the limit of large width."""
    if p.scaling == "linear":
        return float(np.sqrt(gram_of(p).mean()))  # scores vanish, and attention is uniform
    return float(np.sqrt(be.programs.HeadMixture(gram_of(p), p.heads, score_variance=p.score_variance).variance()))


@dataclass(frozen=True)
class WidthRoom(Room):
    """An attention layer at large width."""

    name = "width"
    title = "Width"
    shows = "A coordinate of an infinitely wide attention layer is a mixture of Gaussians, not a Gaussian."
    not_claimed = "It is one layer at initialisation; finite width adds tails of its own."
    symbols = {"correlation": "correlation of inputs", "scaling": "scores over", "width": "width n, simulated"}  # noqa: RUF012
    exported = {  # noqa: RUF012
        "heads": (1, 2, 4, 8, 16, 64),
        "score_variance": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        "correlation": (0.0, 0.3, 0.6),
    }

    heads: int = parameter(Choice((1, 2, 4, 8, 16, 64)), "heads H whose outputs are added; many make a Gaussian", 1)
    inputs: int = parameter(Integers(2, 4), "tokens that the layer reads", 4)
    correlation: float = parameter(Interval(0, 0.95), "cosine of the angle between any two tokens", 0.0)
    score_variance: float = parameter(Interval(0.1, 6), "how much a score varies; large is sharp", 4.0)
    scaling: Literal["sqrt", "linear"] = parameter(
        Choice(("sqrt", "linear")), "what the scores are divided by: √n, or n", "sqrt"
    )
    width: int = parameter(Choice((16, 64, 256)), "neurons of the layers that are simulated", 64)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("Density of a coordinate", "y, in standard deviations", "density"),
            Panel("Its tail", "x, in standard deviations", "P(|y| > x)", "y"),
        ]

    def theory(self) -> list[Trace]:
        """The mixture, and the Gaussian of the same variance."""
        from scipy.special import ndtr

        y, x, size = np.linspace(-4.5, 4.5, 181), np.linspace(0, 5.5, 111), deviation(self)
        bell, tail = np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi), 2 * ndtr(-x)
        if self.scaling == "linear":
            return [Trace("Gaussian limit", y, bell), Trace("Gaussian limit", x, tail, panel=1)]
        mixture = be.programs.HeadMixture(gram_of(self), self.heads, score_variance=self.score_variance)
        return [
            Trace("mixture over random scores", y, size * mixture.pdf(size * y)),
            Trace("Gaussian of the same variance", y, bell, look="rival"),
            Trace("mixture over random scores", x, np.maximum(2 * mixture.sf(size * x), 1e-12), panel=1),
            Trace("Gaussian of the same variance", x, tail, panel=1, look="rival"),
        ]

    def draw(self, rng: np.random.Generator) -> Any:
        """A coordinate at the first position of layers of finite width, each with its own weights."""
        layer = be.programs.attention_layer(gram_of(self), self.heads, self.scaling, score_variance=self.score_variance)
        return layer.finite(self.width, rng, 2000)[:, 0] / deviation(self)

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """All coordinates, as a density and as a tail."""
        y = np.concatenate(samples)
        ends, x = np.linspace(-4.5, 4.5, 61), np.linspace(0, 5, 41)
        label = f"simulation, width {self.width}"
        beyond = np.mean(np.abs(y)[:, None] > x, axis=0)
        found = beyond * len(y) >= 3
        error = np.sqrt(beyond * (1 - beyond) / len(y))[found]
        tail: dict[str, Any] = {"look": "simulation", "shape": "points", "error": error}
        return [
            histogram(label, samples, ends),
            Trace(label, x[found], beyond[found], panel=1, **tail),
        ]

    def script(self, seed: int = 0) -> str:
        """The layer at a finite width, and the mixture that it tends to."""
        limit = (
            ""
            if self.scaling == "linear"
            else f"""
limit = be.programs.HeadMixture(gram, {self.heads}, score_variance={self.score_variance})
print("P(|y| > 3 sd), limit:", 2 * limit.sf(3 * limit.variance() ** 0.5), " Gaussian: 0.0027")"""
        )
        return f"""import numpy as np

import bulkedge as be

gram = be.programs.equal_correlations({self.inputs}, {self.correlation})
layer = be.programs.attention_layer(gram, {self.heads}, "{self.scaling}", score_variance={self.score_variance})
y = layer.finite({self.width}, np.random.default_rng({seed}), 16000)[:, 0]
print("P(|y| > 3 sd), simulated:", np.mean(np.abs(y) > 3 * y.std())){limit}
"""

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Excess kurtosis: zero for a Gaussian."""
        mixture = be.programs.HeadMixture(gram_of(self), self.heads, score_variance=self.score_variance)
        predicted = 0.0 if self.scaling == "linear" else mixture.excess_kurtosis()
        found = {"excess kurtosis, in the limit": f"{predicted:.3f}"}
        if samples:
            y = np.concatenate(samples)
            found["excess kurtosis, simulated"] = f"{np.mean(y**4) / np.mean(y**2) ** 2 - 3:.3f}"
        return found
