"""Programs: draws of the limit against draws at finite width, and the finite interpreter against code written by hand.

A draw of the limit and a draw at width n have the same variance, so the same error takes as many of either. By hand,
the layer is a dozen lines of torch (or NumPy) on a batch of whole matrices, or of revealed ones, with the interpreter's
batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Table, best, seconds
from bulkedge.programs import attention_layer, equal_correlations
from bulkedge.programs import limit as limit_of
from bulkedge.programs.interpreters import MEMORY

TITLE = "Benchmarks: programs"
INPUTS, HEADS = 4, 8
GRAM = equal_correlations(INPUTS, 0.5)
MILLION = 10**6


def sampling() -> tuple[Table, float]:
    """A million draws of the limit."""
    layer = attention_layer(GRAM, heads=HEADS)
    table = Table(f"A million draws of the limit, {INPUTS} inputs, {HEADS} heads", ["threads", "time", "goal"])
    took = 0.0
    for workers, goal in ((1, ""), (2, "1 s")):

        def draw(workers: int = workers) -> Any:
            rng = np.random.Generator(np.random.SFC64(0))
            return limit_of.run(layer, rng, MILLION // 5, workers=workers)

        took = 5 * best(draw, budget=4.0, least=5)
        table.add(workers, seconds(took), goal)
    return table, took / MILLION


def against_finite(limit: float) -> Table:
    """Time for a draw at width 1024."""
    table = Table(
        "A draw at width 1024 over a draw of the limit on two threads", ["weights", "time a draw", "ratio", "goal"]
    )
    layer = attention_layer(GRAM, heads=HEADS)
    for dense, draws in ((False, 40), (True, 2)):
        each = best(lambda: layer.finite(1024, np.random.default_rng(0), draws, dense=dense), 3.0, 3) / draws  # noqa: B023
        table.add("whole" if dense else "revealed", seconds(each), f"{each / limit:.0f}", "100")
    return table


def by_hand(width: int, draws: int, normal: Callable[..., Any], xp: Any, *, dense: bool) -> Any:
    """One layer on a batch, without a program."""
    size = max(1, MEMORY // (HEADS * (4 * width**2 * dense + 6 * INPUTS * width)))
    factor = xp.asarray(np.linalg.cholesky(GRAM))
    found = []
    for start in range(0, draws, size):
        count = min(size, draws - start)
        noise = normal((count, 1, INPUTS, width))
        gram = noise @ xp.swapaxes(noise, -1, -2) / width
        x = factor @ xp.linalg.inv(xp.linalg.cholesky(gram)) @ noise

        def multiply(vectors: Any, count: int = count) -> Any:
            if dense:
                return vectors @ normal((count, HEADS, width, width)) * width**-0.5
            inner = vectors @ xp.swapaxes(vectors, -1, -2) / width
            return xp.linalg.cholesky(inner) @ normal((count, HEADS, INPUTS, width))

        q, k, v = multiply(x), multiply(x), multiply(x)
        scores = q @ xp.swapaxes(k, -1, -2) / width**0.5
        weights = xp.exp(scores)
        weights = weights / weights.sum(-1)[..., None]
        found.append((multiply(weights @ v) / HEADS**0.5).sum(1)[:, :, 0])
    return found


def interpreter() -> Table:
    """The finite interpreter over code by hand, on both backends."""
    table = Table(
        "The finite interpreter over the same by hand",
        ["backend", "weights", "by hand", "interpreter", "ratio", "goal"],
    )
    layer = attention_layer(GRAM, heads=HEADS)
    for name, backend in _backends().items():
        for dense, width, draws in ((True, 256, 8), (False, 256, 256)):
            rng, normal, xp = backend()
            hand = best(lambda: by_hand(width, draws, normal, xp, dense=dense), 4.0, 5)  # noqa: B023
            ours = best(lambda: layer.finite(width, rng, draws, dense=dense), 4.0, 5)  # noqa: B023
            table.add(
                name, "whole" if dense else "revealed", seconds(hand), seconds(ours), f"{ours / hand:.2f}", "1.20"
            )
    return table


def _backends() -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    def with_numpy() -> tuple[Any, Any, Any]:
        rng = np.random.default_rng(0)
        return rng, rng.standard_normal, np

    def with_torch() -> tuple[Any, Any, Any]:
        import torch

        rng = torch.Generator().manual_seed(0)
        return rng, lambda shape: torch.randn(shape, generator=rng, dtype=torch.float64), torch

    return {"NumPy": with_numpy, "torch": with_torch}


def tables() -> list[Table]:
    """All of it."""
    table, limit = sampling()
    return [table, against_finite(limit), interpreter()]
