"""The room *heads*: the law of a fresh attention head, against its simulation and against a simpler law.

A law takes longer than a tenth of a second. While a slider moves, the room therefore draws from a table of quantiles,
as polynomials in beta and in the spread of popularity; the law itself follows. Sizes of heads are not interpolated:
each has its own quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace, histogram, mean_error
from bulkedge.support.arrays import Real
from bulkedge.support.domains import FLAG, Choice, Interval, parameter

MOST_SIMULATED = 1024  # tokens up to which heads are simulated: a draw takes a second, and none is interrupted
HEAD_DIMS = (32, 64, 128, 256)
TOKENS = (256, 512, 1024, 2048, 4096, 16384)
FLATTEST, SHARPEST = 0.2, 1.6
# Chebyshev's points between the two: a polynomial through them is right everywhere, or nowhere
BETAS = tuple(np.round(0.9 - 0.7 * np.cos(np.pi * np.arange(8) / 7), 4).tolist())
SPREADS = (0.0, 0.5, 1.0)  # standard deviations of the logarithm of the popularity of keys
LEVELS = 96  # quantiles of each law in the table
ACCURACY, SHOWN_FROM = 0.02, 1e-6
"""Kolmogorov distance that interpolated laws keep from the laws themselves (a test draws some and measures it), and the
value from which on: causal heads have smaller ones, which no figure shows."""
LARGEST = 0.4
"""How far the largest value, at the share of half a value, may be from that of the law, relative to it: 2 % for most
heads, 15 % with popular keys, and this much for causal heads of many tokens, whose edge is thin."""
# what the page says of interpolated laws
INTERPOLATED = (
    f"Interpolated from a table of laws: within {ACCURACY:g} of the law's distribution function, its largest value "
    f"within {LARGEST:.0%}. The law itself follows."
)


def popularity(spread: float, keys: int) -> Any:
    """How much keys are liked: the logarithm is Gaussian, and keys are at even levels of it."""
    from scipy.special import ndtri  # here, because a reader downloads the source of this function

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


def lines(p: Any, label: str, law: Any, look: Any) -> Trace:
    """A law as a line."""
    if p.axes == "density":
        lowest, edge = max(law.ppf(0.02), 1e-6), law.ppf(1 - 0.2 / p.tokens)
        x = np.geomspace(lowest, 1.05 * edge, 400)
        return Trace(label, x, x * law.pdf(x), look=look)
    larger = np.geomspace(0.5 / p.tokens, 0.98, 200)
    return Trace(label, larger, np.maximum(law.ppf(1 - larger), 1e-6), look=look)


@dataclass(frozen=True)
class HeadsRoom(Room):
    """A fresh attention head."""

    name = "heads"
    title = "Heads"
    shows = "The spectrum of a fresh attention head, as its law predicts it and as a simulation finds it."
    not_claimed = "It says nothing of trained heads, whose queries and keys are not random."
    symbols = {  # noqa: RUF012
        "beta": "β",
        "tokens": "tokens T",
        "head_dim": "head dimension d",
        "qk_norm": "QK-norm",
        "popularity": "popularity",
    }
    exported = {  # noqa: RUF012
        "beta": tuple(round(0.2 + 0.1 * k, 1) for k in range(15)),
        "head_dim": HEAD_DIMS[:3],
        "tokens": TOKENS[1::2],
        "qk_norm": (False, True),
        "causal": (False, True),
    }

    beta: float = parameter(
        Interval(FLATTEST, SHARPEST), "how sharp attention is: the standard deviation of the scores", 0.8
    )
    head_dim: int = parameter(Choice(HEAD_DIMS), "length of a query or key vector; scores have rank d", 64)
    tokens: int = parameter(Choice(TOKENS), "words, or pieces of words, that the head reads", 512)
    qk_norm: bool = parameter(FLAG, "give every query and key the same length", default=False)
    causal: bool = parameter(FLAG, "let a token see only those before it, as decoders do", default=False)
    popularity: float = parameter(Interval(0, 1), "how unevenly attention is spread over keys (0 = evenly)", 0.0)
    axes: Literal["density", "quantiles"] = parameter(
        Choice(("density", "quantiles")), "draw the density, or the values sorted by rank", "density"
    )

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        centre = "A − C" if self.causal else "A − 1π′" if self.popularity else "A − uu′"
        values = f"squared singular value of √T ({centre})"
        if self.axes == "density":
            return [Panel("Density, by the logarithm of the value", values, "x · density(x)", "x")]
        return [Panel("Quantiles, from the largest value down", "share of values that are larger", values, "xy")]

    def theory(self) -> list[Trace]:
        """The two laws."""
        name = "causal head law" if self.causal else "finite-head law"
        return [lines(self, name, head_law(self), "theory"), lines(self, rival_name(self), rival_law(self), "rival")]

    def draw(self, rng: np.random.Generator) -> Any:
        """Squared singular values of one fresh head."""
        head = be.SoftmaxAttention(
            self.tokens, self.head_dim, self.beta, self.qk_norm, mask="causal" if self.causal else "full"
        )
        if not self.popularity:
            return head.spectrum(rng).values
        liked = rng.permutation(popularity(self.popularity, self.tokens))
        weights = np.exp(self.beta * head.scores(rng)) * liked * (np.tri(self.tokens) if self.causal else 1.0)
        mean = liked * (np.tri(self.tokens) if self.causal else np.ones((self.tokens, self.tokens)))
        centred = weights / weights.sum(axis=1, keepdims=True) - mean / mean.sum(axis=1, keepdims=True)
        return be.spectrum(np.sqrt(self.tokens) * centred).squared().values

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Simulated values as bars or as points."""
        values = np.maximum(np.sort(np.concatenate(samples)), 1e-6)
        label = f"simulation, {len(samples)} × {self.tokens} tokens"
        if self.axes == "density":
            ends = np.geomspace(np.quantile(values, 0.02), 1.05 * values[-1], 61)
            return [histogram(label, [np.maximum(each, 1e-6) for each in samples], ends, log=True)]
        ranks = np.unique(np.geomspace(1, 0.98 * self.tokens, 60).astype(int))
        middle, error = mean_error([np.maximum(np.sort(each), 1e-6)[-ranks] for each in samples])
        larger = (ranks - 0.5) / self.tokens
        return [Trace(label, larger, middle, look="simulation", shape="points", error=error)]

    def script(self, seed: int = 0) -> str:
        """The head, its law, a draw, and how far they are apart."""
        family, mask = ("CausalHeadLaw", "causal") if self.causal else ("FiniteHeadLaw", "full")
        draw = f"spectrum = head.spectrum(np.random.default_rng({seed}))"
        if self.popularity:
            spread = f"popularity = np.exp({self.popularity} * np.random.default_rng(0).standard_normal(400))"
            draw = f"{spread}\nlaw = law.with_columns(popularity / popularity.mean())"
        shown = "" if self.popularity else "\ncomparison = be.compare(spectrum, law)"
        saved = (
            ""
            if self.popularity
            else '\nprint("distance:", comparison.ks)\ncomparison.plot().figure.savefig("head.png")'
        )
        return f"""import numpy as np

import bulkedge as be

head = be.SoftmaxAttention({self.tokens}, {self.head_dim}, {self.beta}, {self.qk_norm}, mask="{mask}")
law = be.{family}({self.beta}, {self.head_dim}, {self.tokens}, {self.qk_norm})
{draw}{shown}
print("bulk:", law.support, " edge:", law.edge){saved}
"""

    @property
    def draws(self) -> int:
        """As many as make some four thousand values."""
        return 0 if self.tokens > MOST_SIMULATED else max(4096 // self.tokens, 2)

    @property
    def quiet(self) -> str:
        """Large heads take minutes."""
        return f"No simulation beyond {MOST_SIMULATED} tokens: a draw of this size takes minutes."

    def quick(self) -> list[Trace] | None:
        """Both lines; the law's from the table, which has no causal heads with popular keys."""
        shape = Shape(self.head_dim, self.tokens, self.qk_norm, self.causal)
        found = None if self.causal and self.popularity else quantiles(shape, self.beta, self.popularity)
        rival = lines(self, rival_name(self), rival_law(self), "rival")
        return [rival] if found is None else [interpolated_line(self, found), rival]

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Kolmogorov distances of the simulation from both laws."""
        if not samples:
            return {}
        values = np.sort(np.concatenate(samples))
        named = [("causal head law" if self.causal else "finite-head law", head_law), (rival_name(self), rival_law)]
        return {f"Kolmogorov distance to the {name}": f"{distance(values, make(self)):.3f}" for name, make in named}


def interpolated_line(room: HeadsRoom, found: Quantiles) -> Trace:
    """The line of the law, from the table."""
    label = "causal head law" if room.causal else "finite-head law"
    if room.axes == "density":
        x, y = found.density()
        shown = x > max(np.interp(0.02, found.levels, found.values), 1e-6)
        return Trace(f"{label} (interpolated)", x[shown], y[shown])
    # from a share of half a value on, as the law itself
    larger = np.geomspace(0.5 / room.tokens, 0.98, 200)
    values = np.exp(np.interp(1 - larger, found.levels, np.log(found.values)))
    return Trace(f"{label} (interpolated)", larger, np.maximum(values, 1e-6))


def distance(values: Any, law: Any) -> float:
    """Kolmogorov distance of values from a law."""
    below = law.cdf(values)
    steps = np.arange(len(values) + 1) / len(values)
    return float(max(np.max(steps[1:] - below), np.max(below - steps[:-1])))


class Shape(NamedTuple):
    """What of a head is not interpolated."""

    head_dim: int
    tokens: int
    qk_norm: bool
    causal: bool


def levels(head_dim: int, tokens: int) -> Real:
    """Levels of the quantiles: as many for the values of each low degree of the exponential as for all the others.

    The scores themselves make ``head_dim`` large values, their squares the next ``d (d + 1)/2 - 1``, and there may be
    a gap below either: even levels would leave out the few large values that a reader looks at.
    """
    counts = np.cumsum([head_dim, head_dim * (head_dim + 1) // 2 - 1]) / tokens
    ends = [0.0, *(1 - counts[counts < 0.98])[::-1].tolist(), 1.0]
    per_part = LEVELS // (len(ends) - 1)
    within = (1 - np.cos(np.pi * (np.arange(per_part) + 0.5) / per_part)) / 2  # dense beside the ends
    return np.concatenate([low + (high - low) * within for low, high in pairwise(ends)])


class Quantiles(NamedTuple):
    """A distribution by some of its quantiles."""

    levels: Real
    values: Real

    def density(self) -> tuple[Real, Real]:
        """Density by the natural logarithm of the value, at points between the quantiles."""
        logs = np.log(self.values)
        steps = np.maximum(np.diff(logs), 1e-9)
        return np.exp((logs[1:] + logs[:-1]) / 2), np.diff(self.levels) / steps


@cache
def table() -> dict[str, Real]:
    """The table: logarithms of quantiles by the name of the shape, with axes (spread, beta, level)."""
    stored = files("bulkedge.lab.explore").joinpath("tables", "heads.npz").read_bytes()
    with np.load(BytesIO(stored), allow_pickle=False) as found:
        return {name: found[name].astype(float) for name in found.files}


def quantiles(shape: Shape, beta: float, spread: float) -> Quantiles | None:
    """A law of heads, interpolated."""
    logs = table()["-".join(str(int(each)) for each in shape)]
    logs = logs if spread else logs[:1]
    along_beta = np.tensordot(lagrange(np.array(BETAS), beta), logs, axes=(0, 1))
    squares = np.array(SPREADS[: len(logs)]) ** 2
    found = lagrange(squares, spread**2) @ along_beta
    if not np.all(np.isfinite(found)):
        return None
    return Quantiles(levels(shape.head_dim, shape.tokens), np.exp(np.maximum.accumulate(found)))


def lagrange(nodes: Real, x: float) -> Real:
    """Weights of the polynomial through given nodes, at a point.

    >>> lagrange(np.array([0.0, 1.0, 2.0]), 1.5).round(3).tolist()
    [-0.125, 0.75, 0.375]
    """
    apart = np.where(np.eye(len(nodes), dtype=bool), 1.0, nodes[:, None] - nodes)
    reach = np.where(np.eye(len(nodes), dtype=bool), 1.0, x - nodes[None, :])
    return np.prod(reach / apart, axis=1)
