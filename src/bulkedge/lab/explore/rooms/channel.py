"""The room *channel*: a head from the moments of its queries and keys, and its threshold at a² = 1/2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import bulkedge as be
from bulkedge.lab.explore.room import Panel, Room, Trace
from bulkedge.support.domains import Choice, Integers, Interval, parameter


def panels(p: Any) -> list[Panel]:  # noqa: ARG001 - those of other rooms depend on it
    """Axes of the figure."""
    return [
        Panel("Second singular value over the first", "largest coupling a", "s₂/s₁"),
        Panel("First singular value as tokens grow", "tokens T", "s₁", "xy"),
        Panel("Popular keys", "rank of the key", "its share of all attention, times T", "xy"),
    ]


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


def theory(p: Any) -> list[Trace]:
    """What the moments say."""
    channel = head_channel(p)
    a = np.linspace(0.02, 1.2, 150)
    tokens = np.geomspace(32, p.tokens, 30)
    curves = [
        Trace("theory, many tokens", a, [be.heads.Channel([each]).ratio for each in a]),
        Trace("a² = 1/2", 0.5**0.5, look="mark", shape="mark"),
        Trace("these parameters", [p.coupling], [channel.ratio], look="here", shape="points"),
    ]
    if channel.condensed:
        slope = (tokens / tokens[0]) ** channel.growth
        curves.append(Trace("predicted slope (its height is not)", tokens, slope, panel=1, look="rival"))
    else:
        curves.append(Trace("theory, many tokens", tokens, np.full(len(tokens), channel.perron), panel=1))
    shares = np.sort(channel.popularity(keys_of(p)))[::-1] * p.tokens
    ranks = np.arange(1, p.tokens + 1)
    chosen = np.unique(np.geomspace(1, p.tokens, 100).astype(int)) - 1
    return [*curves, Trace("theory, these keys", ranks[chosen], shares[chosen], panel=2)]


def attention(p: Any, size: int, keys: Any, rng: np.random.Generator) -> Any:
    """Weights of so many drawn queries on given keys."""
    channel = head_channel(p)
    scores = (channel.couplings * (rng.standard_normal((size, p.directions)) + channel.mean)) @ keys.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def simulate(p: Any, rng: np.random.Generator) -> dict[str, Any]:
    """One draw: top singular values at several numbers of tokens, the entropy, and shares of the room's own keys."""
    top = []
    for size in sizes_of(p):
        weights = attention(p, size, rng.standard_normal((size, p.directions)), rng)
        top.append(np.sqrt(np.linalg.eigvalsh(weights @ weights.T)[:-3:-1]))
    entropy = -np.mean(np.sum(weights * np.log(np.maximum(weights, 1e-300)), axis=1))
    shares = attention(p, p.tokens, keys_of(p), rng).mean(axis=0)
    return {"top": np.array(top), "shares": shares, "entropy": float(entropy)}


def observations(p: Any, samples: Sequence[Any]) -> list[Trace]:
    """Means over draws, with their standard errors."""
    sizes, count = sizes_of(p), len(samples)
    top = np.array([each["top"] for each in samples])
    ratio, first = top[..., -1, 1] / top[..., -1, 0], top[..., 0]
    error = np.std(first, axis=0) / np.sqrt(max(count - 1, 1))
    shares = np.mean([each["shares"] for each in samples], axis=0)
    order = np.argsort(head_channel(p).popularity(keys_of(p)))[::-1]
    chosen = np.unique(np.geomspace(1, p.tokens, 60).astype(int)) - 1
    look: dict[str, Any] = {"look": "simulation", "shape": "points"}
    spread = [np.std(ratio) / np.sqrt(max(count - 1, 1))]
    label = f"simulation, {count} × {p.tokens} tokens"
    return [
        Trace(label, [p.coupling], [ratio.mean()], error=spread, **look),
        Trace(label, sizes, first.mean(axis=0), panel=1, error=error, **look),
        Trace(label, 1 + chosen, shares[order][chosen] * p.tokens, panel=2, **look),
    ]


@dataclass(frozen=True)
class ChannelRoom(Room):
    """A head as a Gaussian channel."""

    name = "channel"
    title = "Channel"
    shows = "What the moments of queries and keys say of a head: its gap, its popular keys, and what changes at a² = ½."
    not_claimed = "Queries and keys are Gaussian here; past the threshold only the slope is predicted."
    symbols = {"coupling": "coupling a", "mean": "mean query μ"}  # noqa: RUF012
    code = (panels, head_channel, keys_of, sizes_of, theory, attention, simulate, observations)
    exported = {"coupling": tuple(round(0.1 + 0.05 * k, 2) for k in range(23)), "mean": (0.0, 1.0, 2.0)}  # noqa: RUF012

    coupling: float = parameter(Interval(0.05, 1.2), "the largest coupling", 0.5)
    decay: float = parameter(Interval(0.1, 1), "each coupling over the one before", 0.7)
    directions: int = parameter(Integers(1, 16), "directions of queries and keys", 6)
    mean: float = parameter(Interval(0, 3), "mean query along the first, in standard deviations", 0.0)
    tokens: int = parameter(Choice((64, 128, 256, 512, 1024)), "tokens T", 256)

    def facts(self, samples: Sequence[Any]) -> dict[str, str]:
        """Entropy, predicted and found, and on which side of the threshold the head is."""
        channel = head_channel(self)
        found = {
            "spread of the scores β": f"{channel.beta:.2f}",
            "condensed": "yes: a² ≥ ½, s₁ grows with the tokens" if channel.condensed else "no: a² < ½",
            "entropy of a row, predicted": f"{channel.rows(self.tokens).entropy:.3f} nats",
        }
        if samples:
            found["entropy, simulated"] = f"{np.mean([each['entropy'] for each in samples]):.3f} nats"
        return found
