"""The room *width*: a coordinate of a wide attention layer is no Gaussian; beside it, the Gaussian one would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace
from bulkedge.support.domains import Choice, Integers, Interval, parameter


def panels(p: Any) -> list[Panel]:  # noqa: ARG001 - those of other rooms depend on it
    """Axes of the figure."""
    return [
        Panel("Density of a coordinate", "y, in standard deviations", "density"),
        Panel("Its tail", "x, in standard deviations", "P(|y| > x)", "y"),
    ]


def gram_of(p: Any) -> Any:
    """Inputs of unit norm, any two equally correlated."""
    return be.programs.equal_correlations(p.inputs, p.correlation)


def deviation(p: Any) -> float:
    """Standard deviation of the coordinate in the limit of large width."""
    if p.scaling == "linear":
        return float(np.sqrt(gram_of(p).mean()))  # scores vanish, and attention is uniform
    return float(np.sqrt(be.programs.HeadMixture(gram_of(p), p.heads, score_variance=p.score_variance).variance()))


def theory(p: Any) -> list[Trace]:
    """The mixture, and the Gaussian of the same variance."""
    from scipy.special import ndtr

    y, x, size = np.linspace(-4.5, 4.5, 181), np.linspace(0, 5.5, 111), deviation(p)
    bell, tail = np.exp(-(y**2) / 2) / np.sqrt(2 * np.pi), 2 * ndtr(-x)
    if p.scaling == "linear":
        return [Trace("Gaussian limit", y, bell), Trace("Gaussian limit", x, tail, panel=1)]
    mixture = be.programs.HeadMixture(gram_of(p), p.heads, score_variance=p.score_variance)
    return [
        Trace("mixture over random scores", y, size * mixture.pdf(size * y)),
        Trace("Gaussian of the same variance", y, bell, look="rival"),
        Trace("mixture over random scores", x, np.maximum(2 * mixture.sf(size * x), 1e-12), panel=1),
        Trace("Gaussian of the same variance", x, tail, panel=1, look="rival"),
    ]


def simulate(p: Any, rng: np.random.Generator) -> Any:
    """A coordinate at the first position of layers of finite width, each with its own weights."""
    layer = be.programs.attention_layer(gram_of(p), p.heads, p.scaling, score_variance=p.score_variance)
    return layer.finite(p.width, rng, 2000)[:, 0] / deviation(p)


def observations(p: Any, samples: Sequence[Any]) -> list[Trace]:
    """All coordinates, as a density and as a tail."""
    y = np.concatenate(samples)
    ends, x = np.linspace(-4.5, 4.5, 61), np.linspace(0, 5, 41)
    label = f"simulation, width {p.width}"
    beyond = np.mean(np.abs(y)[:, None] > x, axis=0)
    heights = np.histogram(y, ends)[0] / (len(y) * np.diff(ends))
    found = beyond * len(y) >= 3
    error = np.sqrt(beyond * (1 - beyond) / len(y))[found]
    tail: dict[str, Any] = {"look": "simulation", "shape": "points", "error": error}
    return [
        Trace(label, ends, heights, look="simulation", shape="bars"),
        Trace(label, x[found], beyond[found], panel=1, **tail),
    ]


@dataclass(frozen=True)
class WidthRoom(Room):
    """An attention layer at large width."""

    name = "width"
    title = "Width"
    shows = (
        "A coordinate of an attention layer of infinite width: a mixture of Gaussians, beside its Gaussian impostor."
    )
    not_claimed = "It is one layer at initialisation; finite width adds tails of its own."
    symbols = {"correlation": "correlation of inputs", "scaling": "scores over", "width": "width n, simulated"}  # noqa: RUF012
    code = (panels, gram_of, deviation, theory, simulate, observations)
    exported = {  # noqa: RUF012
        "heads": (1, 2, 4, 8, 16, 64),
        "score_variance": (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
        "correlation": (0.0, 0.3, 0.6),
    }

    heads: int = parameter(Choice((1, 2, 4, 8, 16, 64)), "heads H", 1)
    inputs: int = parameter(Integers(2, 4), "inputs", 4)
    correlation: float = parameter(Interval(0, 0.95), "cosine of any two inputs", 0.0)
    score_variance: float = parameter(Interval(0.1, 6), "variance of a score", 4.0)
    scaling: Literal["sqrt", "linear"] = parameter(Choice(("sqrt", "linear")), "the root of the width, or it", "sqrt")
    width: int = parameter(Choice((16, 64, 256)), "of the layers that are drawn", 64)

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Excess kurtosis: zero for a Gaussian."""
        mixture = be.programs.HeadMixture(gram_of(self), self.heads, score_variance=self.score_variance)
        predicted = 0.0 if self.scaling == "linear" else mixture.excess_kurtosis()
        found = {"excess kurtosis, in the limit": f"{predicted:.3f}"}
        if samples:
            y = np.concatenate(samples)
            found["excess kurtosis, simulated"] = f"{np.mean(y**4) / np.mean(y**2) ** 2 - 3:.3f}"
        return found
