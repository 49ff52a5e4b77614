"""What the channel of heads costs beside their attention: moments, couplings and popularity from queries and keys.

The floor is the attention forward of the same heads, torch's `scaled_dot_product_attention`, in the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import bulkedge as be
from benchmarks.harness import Table, best, seconds
from bulkedge.heads import rows

TITLE = "Benchmarks: the channel of a head"
HEADS, TOKENS, DIM = 32, 4096, 64


def inputs(device: str = "cpu") -> tuple[Any, Any, Any]:
    """Queries, keys and values of a layer, in single precision."""
    made = torch.Generator().manual_seed(0)
    return tuple(torch.randn(1, HEADS, TOKENS, DIM, generator=made).to(device) for _ in range(3))


def channel() -> Table:
    """Channel and popularity against the attention forward."""
    q, k, v = inputs()
    narrow = [each.numpy() for each in (q, k)]
    known = be.heads.Channel.from_qk(q, k)
    floor = best(lambda: scaled_dot_product_attention(q, k, v), least=3)
    table = Table(
        f"{HEADS} heads of {TOKENS} tokens and dimension {DIM}, single precision",
        ["what", "time", "share of the forward", "goal"],
    )
    table.add("attention forward (torch)", seconds(floor), "", "")
    jobs: list[tuple[str, Callable[[], Any], str]] = [
        ("Channel.from_qk, torch", lambda: be.heads.Channel.from_qk(q, k), ""),
        ("popularity, torch", lambda: known.popularity(k), ""),
        ("both, torch", lambda: be.heads.Channel.from_qk(q, k).popularity(k), "10 %"),
        ("both, NumPy", lambda: be.heads.Channel.from_qk(*narrow).popularity(narrow[1]), "10 %"),
    ]
    for name, job, goal in jobs:
        took = best(job, least=3)
        table.add(name, seconds(took), f"{100 * took / floor:.1f} %", goal)
    return table


def rows_of_heads() -> Table:
    """Entropy and participation: with a new number of tokens, and with a known one."""
    q, k, _ = inputs()
    known = be.heads.Channel.from_qk(q, k)

    def anew() -> None:
        rows.forget()
        known.rows(TOKENS)

    table = Table(f"Entropy and participation of {HEADS} heads", ["what", "time", "goal"])
    table.add("first call for a number of tokens", seconds(best(anew, least=5)), "50 ms")
    table.add("further calls", seconds(best(lambda: known.rows(TOKENS))), "")
    return table


def tables() -> list[Table]:
    """All of it."""
    return [channel(), rows_of_heads()]
