"""The room *heads*: the law of a fresh attention head, against its simulation and against a simpler law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.curves import Curve, Panel
from bulkedge.lab.explore.grid import FLATTEST, HEAD_DIMS, SHARPEST, TOKENS, Shape
from bulkedge.lab.explore.interpolation import Quantiles, quantiles
from bulkedge.lab.explore.room import Room
from bulkedge.support.domains import Choice, Interval, parameter

MOST_SIMULATED = 1024
"""Tokens up to which heads are simulated: a draw takes a second, and a simulation is stopped between draws."""
FLAG = Choice((False, True))


def panels(p: Any) -> list[Panel]:
    """Axes of the figure."""
    centre = "A − C" if p.causal else "A − 1π′" if p.popularity else "A − uu′"
    values = f"squared singular value of √T ({centre})"
    if p.axes == "density":
        return [Panel("Density, by the logarithm of the value", values, "x · density(x)", "x")]
    return [Panel("Quantiles, from the largest value down", "share of values that are larger", values, "xy")]


def popularity(spread: float, keys: int) -> Any:
    """How much keys are liked: the logarithm is Gaussian, and keys are at even levels of it."""
    from scipy.special import ndtri

    liked = np.exp(spread * ndtri((np.arange(keys) + 0.5) / keys))
    return liked / liked.mean()


def head_law(p: Any) -> Any:
    """The law of the head."""
    family = be.CausalHeadLaw if p.causal else be.FiniteHeadLaw
    law = family(p.beta, p.head_dim, p.tokens, p.qk_norm)
    return law.with_columns(popularity(p.popularity, 400)) if p.popularity else law


def rival_law(p: Any) -> Any:
    """What one would take without it: the limit of many dimensions, where scores are taken as independent in part."""
    if p.causal:
        return be.CausalLaw(1.0).scaled(np.expm1(p.beta**2))
    return be.AttentionLaw(p.beta, p.head_dim / p.tokens)


def rival_name(p: Any) -> str:
    """What the legend calls it."""
    name = "independent scores" if p.causal else "limit of many dimensions"
    return f"{name} (keys alike)" if p.popularity else name


def lines(p: Any, label: str, law: Any, look: Any) -> Curve:
    """A law as a line."""
    if p.axes == "density":
        lowest, edge = max(law.ppf(0.02), 1e-6), law.ppf(1 - 0.2 / p.tokens)
        x = np.geomspace(lowest, 1.05 * edge, 400)
        return Curve(label, x, x * law.pdf(x), look=look)
    larger = np.geomspace(0.5 / p.tokens, 0.98, 200)
    return Curve(label, larger, np.maximum(law.ppf(1 - larger), 1e-6), look=look)


def theory(p: Any) -> list[Curve]:
    """The two laws."""
    name = "causal head law" if p.causal else "finite-head law"
    return [lines(p, name, head_law(p), "theory"), lines(p, rival_name(p), rival_law(p), "rival")]


def simulate(p: Any, rng: np.random.Generator) -> Any:
    """Squared singular values of one fresh head."""
    head = be.SoftmaxAttention(p.tokens, p.head_dim, p.beta, p.qk_norm, mask="causal" if p.causal else "full")
    if not p.popularity:
        return head.spectrum(rng).values
    liked = rng.permutation(popularity(p.popularity, p.tokens))
    weights = np.exp(p.beta * head.scores(rng)) * liked * (np.tri(p.tokens) if p.causal else 1.0)
    mean = liked * (np.tri(p.tokens) if p.causal else np.ones((p.tokens, p.tokens)))
    centred = weights / weights.sum(axis=1, keepdims=True) - mean / mean.sum(axis=1, keepdims=True)
    return be.spectrum(np.sqrt(p.tokens) * centred).squared().values


def seen(p: Any, samples: Sequence[Any]) -> list[Curve]:
    """Simulated values as bars or as points."""
    values = np.maximum(np.sort(np.concatenate(samples)), 1e-6)
    label = f"simulation, {len(samples)} × {p.tokens} tokens"
    if p.axes == "density":
        ends = np.geomspace(np.quantile(values, 0.02), 1.05 * values[-1], 61)
        heights = np.histogram(values, ends)[0] / (len(values) * np.diff(np.log(ends)))
        return [Curve(label, ends, heights, look="simulation", shape="bars")]
    larger = (np.arange(len(values), 0, -1) - 0.5) / len(values)
    chosen = np.unique(np.geomspace(1, 0.98 * len(values), 120).astype(int))
    return [Curve(label, larger[-chosen], values[-chosen], look="simulation", shape="points")]


@dataclass(frozen=True)
class Heads(Room):
    """A fresh attention head."""

    name = "heads"
    title = "Heads"
    shows = "The spectrum of a fresh attention head, as its law predicts it and as a simulation finds it."
    not_claimed = "It says nothing of trained heads, whose queries and keys are not random."
    symbols = {"beta": "β", "head_dim": "head dimension", "qk_norm": "QK-norm", "popularity": "popularity"}  # noqa: RUF012
    exported = {  # noqa: RUF012
        "beta": tuple(round(0.2 + 0.1 * k, 1) for k in range(15)),
        "head_dim": HEAD_DIMS[:3],
        "tokens": TOKENS[1::2],
        "qk_norm": (False, True),
        "causal": (False, True),
    }

    beta: float = parameter(Interval(FLATTEST, SHARPEST), "inverse temperature: spread of the scores", 0.8)
    head_dim: int = parameter(Choice(HEAD_DIMS), "dimension of queries and keys", 64)
    tokens: int = parameter(Choice(TOKENS), "tokens T of the sequence", 512)
    qk_norm: bool = parameter(FLAG, "whether queries and keys are normalised", default=False)
    causal: bool = parameter(FLAG, "whether tokens see earlier ones alone", default=False)
    popularity: float = parameter(Interval(0, 1), "spread of the logarithm of how much keys are liked", 0.0)
    axes: Literal["density", "quantiles"] = parameter(Choice(("density", "quantiles")), "axes of the figure", "density")

    @classmethod
    def code(cls) -> Sequence[Callable[..., Any]]:
        """The functions above."""
        return (panels, popularity, head_law, rival_law, rival_name, lines, theory, simulate, seen)

    @property
    def draws(self) -> int:
        """As many as make some four thousand values."""
        return 0 if self.tokens > MOST_SIMULATED else max(4096 // self.tokens, 2)

    @property
    def quiet(self) -> str:
        """Large heads take minutes."""
        return f"No simulation beyond {MOST_SIMULATED} tokens: a draw of this size takes minutes."

    def quick(self) -> list[Curve] | None:
        """Both lines; the law's from the table, which has no causal heads with popular keys."""
        shape = Shape(self.head_dim, self.tokens, self.qk_norm, self.causal)
        found = None if self.causal and self.popularity else quantiles(shape, self.beta, self.popularity)
        rival = lines(self, rival_name(self), rival_law(self), "rival")
        if found is None:
            return [rival]
        return [interpolated(self, found), rival]

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Kolmogorov distances of the simulation from both laws."""
        if not samples:
            return {}
        values = np.sort(np.concatenate(samples))
        named = [("causal head law" if self.causal else "finite-head law", head_law), (rival_name(self), rival_law)]
        return {f"Kolmogorov distance to the {name}": f"{distance(values, make(self)):.3f}" for name, make in named}


def interpolated(room: Heads, found: Quantiles) -> Curve:
    """The line of the law, from the table."""
    label = "causal head law" if room.causal else "finite-head law"
    if room.axes == "density":
        x, y = found.density()
        shown = x > max(np.interp(0.02, found.levels, found.values), 1e-6)
        return Curve(f"{label} (interpolated)", x[shown], y[shown])
    # from a share of half a value on, as the law itself
    larger = np.geomspace(0.5 / room.tokens, 0.98, 200)
    values = np.exp(np.interp(1 - larger, found.levels, np.log(found.values)))
    return Curve(f"{label} (interpolated)", larger, np.maximum(values, 1e-6))


def distance(values: Any, law: Any) -> float:
    """Kolmogorov distance of values from a law."""
    below = law.cdf(values)
    steps = np.arange(len(values) + 1) / len(values)
    return float(max(np.max(steps[1:] - below), np.max(below - steps[:-1])))
