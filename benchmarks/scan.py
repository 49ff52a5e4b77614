"""What a scan costs beside what it cannot do without: the forward pass, and one eigensolve a head.

The model has the shapes of GPT-2 small, with random weights. The floor is its forward pass and the eigenvalues of the
Gram matrix of each of its heads, in double precision, in the same run. Two of its twelve layers are read: time is
proportional to their number, and the forward pass of the floor is scaled with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import bulkedge as be
from benchmarks.harness import Table, seconds

TITLE = "Benchmarks: scan"
TOKENS, LAYERS, HEADS = 1024, 12, 12
READ = (0, 6)


def once(job: Callable[[], Any]) -> float:
    """Seconds of one call; a scan takes long enough to be timed once."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def floor(model: Any, ids: Any) -> float:
    """The forward pass's share, and an eigensolve for each head that is read."""

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    forward()
    attention = torch.randn(TOKENS, TOKENS, dtype=torch.float64).softmax(-1)

    def solves() -> None:
        for _ in range(len(READ) * HEADS):
            torch.linalg.eigvalsh(attention @ attention.mT)

    return once(forward) * len(READ) / LAYERS + once(solves)


def tables() -> list[Table]:
    """All of it."""
    torch.manual_seed(0)
    model = transformers.GPT2Model(transformers.GPT2Config()).eval()
    ids = torch.randint(0, 50_000, (1, TOKENS))
    base = floor(model, ids)
    table = Table(
        f"{len(READ)} of {LAYERS} layers of a GPT-2 small, {TOKENS} tokens", ["what", "time", "ratio", "goal"]
    )
    table.add("forward pass and one eigensolve a head", seconds(base), "", "")
    for draws, goal in ((0, "1.3"), (19, "6")):
        took = once(lambda n=draws: be.scan(model, ids, tokens=TOKENS, layers=READ, draws=n, probe=False))
        table.add(f"scan, draws={draws}", seconds(took), f"{took / base:.2f}", goal)
    return [table]
