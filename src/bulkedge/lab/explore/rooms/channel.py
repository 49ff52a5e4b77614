"""The room *channel*: a head from the moments of its queries and keys, and its threshold at a² = 1/2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace, mean_error
from bulkedge.support.domains import Choice, Integers, Interval, parameter

THEORY, BEYOND = "theory, many tokens", "past a² = ½: limit and slope, no height"


def head_channel(p: Any) -> Any:
    """The head: couplings that fall geometrically, and a mean query along the first direction."""
    couplings = p.coupling * p.decay ** np.arange(p.directions)
    return be.heads.Channel(couplings, p.mean * np.eye(1, p.directions)[0])


def keys_of(p: Any) -> Any:
    """Keys whose popularity is shown: the same ones in theory and in all draws."""
    return np.random.default_rng(0).standard_normal((p.tokens, p.directions))


def sizes_of(p: Any) -> Any:
    """Numbers of tokens that are drawn, up to that of the room."""
    return 2 ** np.arange(5, int(np.log2(p.tokens)) + 1)


def attention(p: Any, size: int, keys: Any, rng: np.random.Generator) -> Any:
    """Weights of so many drawn queries on given keys."""
    channel = head_channel(p)
    scores = (channel.couplings * (rng.standard_normal((size, p.directions)) + channel.mean)) @ keys.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class ChannelRoom(Room):
    """A head as a Gaussian channel."""

    name = "channel"
    title = "Channel"
    shows = "What the moments of queries and keys say of a head: its gap, its popular keys, and what changes at a² = ½."
    not_claimed = "Queries and keys are Gaussian here; past the threshold only the slope is predicted."
    symbols = {"tokens": "tokens T", "coupling": "coupling a", "mean": "mean query μ"}  # noqa: RUF012
    exported = {"coupling": tuple(round(0.1 + 0.05 * k, 2) for k in range(23)), "mean": (0.0, 1.0, 2.0)}  # noqa: RUF012

    coupling: float = parameter(Interval(0.05, 1.2), "how strongly queries meet keys in the first direction", 0.5)
    decay: float = parameter(Interval(0.1, 1), "coupling of each direction, divided by the one before", 0.7)
    directions: int = parameter(Integers(1, 16), "directions in which queries and keys vary", 6)
    mean: float = parameter(Interval(0, 3), "how far queries lean to one side of the first direction", 0.0)
    tokens: int = parameter(Choice((64, 128, 256, 512, 1024)), "tokens of the simulated text", 256)

    def panels(self) -> list[Panel]:
        """Axes of the figure."""
        return [
            Panel("Second singular value over the first", "largest coupling a", "s₂/s₁"),
            Panel("First singular value as tokens grow", "tokens T", "s₁", "xy"),
            Panel("Popular keys", "rank of the key", "its share of all attention, times T", "xy"),
        ]

    def theory(self) -> list[Trace]:
        """What the moments say."""
        channel = head_channel(self)
        low, high = np.linspace(0.02, 0.5**0.5, 90), np.linspace(0.5**0.5, 1.2, 60)
        tokens = np.geomspace(32, self.tokens, 30)
        curves = [
            Trace(THEORY, low, [be.heads.Channel([each]).ratio for each in low]),
            Trace(BEYOND, high, np.ones(len(high)), look="rival"),
            Trace("a² = 1/2", 0.5**0.5, look="mark", shape="mark"),
            Trace("these parameters", [self.coupling], [channel.ratio], look="here", shape="points"),
        ]
        if channel.condensed:
            slope = (tokens / tokens[0]) ** channel.growth
            curves.append(Trace(BEYOND, tokens, slope, panel=1, look="rival"))
        else:
            curves.append(Trace(THEORY, tokens, np.full(len(tokens), channel.perron), panel=1))
        shares = np.sort(channel.popularity(keys_of(self)))[::-1] * self.tokens
        ranks = np.arange(1, self.tokens + 1)
        chosen = np.unique(np.geomspace(1, self.tokens, 100).astype(int)) - 1
        return [*curves, Trace(THEORY, ranks[chosen], shares[chosen], panel=2)]

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """One draw: top singular values at several numbers of tokens, entropy, and shares of the room's keys."""
        top = []
        for size in sizes_of(self):
            weights = attention(self, size, rng.standard_normal((size, self.directions)), rng)
            top.append(np.sqrt(np.linalg.eigvalsh(weights @ weights.T)[:-3:-1]))
        entropy = -np.mean(np.sum(weights * np.log(np.maximum(weights, 1e-300)), axis=1))
        shares = attention(self, self.tokens, keys_of(self), rng).mean(axis=0)
        return {"top": np.array(top), "shares": shares, "entropy": float(entropy)}

    def observations(self, samples: Sequence[Any]) -> list[Trace]:
        """Means over draws, with their standard errors."""
        top = np.array([each["top"] for each in samples])
        ratio, first = mean_error(top[:, -1:, 1] / top[:, -1:, 0]), mean_error(top[..., 0])
        order = np.argsort(head_channel(self).popularity(keys_of(self)))[::-1]
        chosen = np.unique(np.geomspace(1, self.tokens, 60).astype(int)) - 1
        shares = mean_error([self.tokens * each["shares"][order][chosen] for each in samples])
        look: dict[str, Any] = {"look": "simulation", "shape": "points"}
        label = f"simulation, {len(samples)} × {self.tokens} tokens"
        return [
            Trace(label, [self.coupling], ratio[0], error=ratio[1], **look),
            Trace(label, sizes_of(self), first[0], panel=1, error=first[1], **look),
            Trace(label, 1 + chosen, shares[0], panel=2, error=shares[1], **look),
        ]

    def script(self, seed: int = 0) -> str:
        """The channel, its numbers, and a drawn head beside them."""
        return f"""import numpy as np

import bulkedge as be

couplings = {self.coupling} * {self.decay} ** np.arange({self.directions})
channel = be.heads.Channel(couplings, {self.mean} * np.eye(1, {self.directions})[0])
print("s2/s1 of infinitely many tokens:", channel.ratio, " condensed:", channel.condensed)
print("entropy of a row, in nats:", channel.rows({self.tokens}).entropy)

query, key = np.random.default_rng({seed}).standard_normal((2, {self.tokens}, {self.directions}))
attention = np.exp(couplings * (query + channel.mean) @ key.T)
first, second = np.linalg.svd(attention / attention.sum(axis=1, keepdims=True), compute_uv=False)[:2]
print("s2/s1 of a drawn head:", second / first)
"""

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Entropy, predicted and found, and on which side of the threshold the head is."""
        channel = head_channel(self)
        found = {
            "spread of the scores β": f"{channel.beta:.2f}",
            "condensed": "yes: a² ≥ ½, s₁ grows with the tokens" if channel.condensed else "no: a² < ½",
            "entropy of a row, predicted": f"{channel.rows(self.tokens).entropy:.3f} nats",
        }
        if channel.condensed:
            found["s₂/s₁"] = "nears 1 as the text grows, but every head stays a random share below it"
        if samples:
            ratios = np.array([each["top"][-1, 1] / each["top"][-1, 0] for each in samples])
            found["s₂/s₁, simulated"] = f"{ratios.min():.2f} to {ratios.max():.2f} in {len(ratios)} heads"
            found["entropy, simulated"] = f"{np.mean([each['entropy'] for each in samples]):.3f} nats"
        return found
