"""What a scan costs beside what it cannot do without: the forward pass, and one eigensolve a head.

The model is four blocks of GPT-2 small, with random weights. The floor is its forward pass and the eigenvalues of the
Gram matrix of each of its heads, in double precision, one after another with two threads, in the same run.
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
TOKENS, LAYERS, HEADS = 1024, 4, 12
THREADS = 2
"""For the floor and for the scan."""


def once(job: Callable[[], Any]) -> float:
    """Seconds of one call; a scan takes long enough to be timed once."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def floor(model: Any, ids: Any) -> float:
    """The forward pass, and an eigensolve for each head."""

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    forward()
    attention = torch.randn(TOKENS, TOKENS, dtype=torch.float64).softmax(-1)

    def solves() -> None:
        for _ in range(LAYERS * HEADS):
            torch.linalg.eigvalsh(attention @ attention.mT)

    return once(forward) + once(solves)


def tables() -> list[Table]:
    """All of it."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = transformers.GPT2Model(transformers.GPT2Config(n_layer=LAYERS)).eval()
    ids = torch.randint(0, 50_000, (1, TOKENS))
    be.scan(model, ids[:, :32], layers=[0], draws=0, probe=False)  # imports, and tables that are made once
    base = floor(model, ids)
    table = Table(f"{LAYERS} blocks of GPT-2 small, {TOKENS} tokens", ["what", "time", "ratio", "goal"])
    table.add("forward pass and one eigensolve a head", seconds(base), "", "")
    for draws, goal in ((0, "1.3"), (19, "6")):
        took = once(lambda n=draws: be.scan(model, ids, tokens=TOKENS, draws=n, probe=False))
        table.add(f"scan, draws={draws}", seconds(took), f"{took / base:.2f}", goal)
    return [table]
