"""The spectrum of attention from products alone, against dense decompositions of the same matrix, in one run.

One head of 64 dimensions and 8192 tokens at beta 1, in single precision. The dense routes are given the matrix; ours is
given queries and keys, and never forms it. The distance is Kolmogorov's to the values of ``svdvals``. Memory is the
peak of what our route allocates beyond queries and keys, as the interpreter traces it.

Ours is called before each dense route, and the mean of the two calls is shown; each dense route is called once. CPU
time is that of all threads. On a machine with neighbours it is the one to read, with one thread for everybody
(``BULKEDGE_THREADS=1``; there are two by default): threads of BLAS wait for each other by computing nothing.
"""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import bulkedge as be
from benchmarks.harness import Table, seconds

TITLE = "Benchmarks: spectra of operators"
TOKENS, HEAD_DIM = int(os.environ.get("BULKEDGE_TOKENS", "8192")), 64
THREADS = int(os.environ.get("BULKEDGE_THREADS", "2"))
TOLERANCE = 0.01


@dataclass(frozen=True)
class Timed:
    """A call that takes long enough to be timed once: its result, its seconds, and those of the processor."""

    result: Any
    wall: float
    processor: float

    @classmethod
    def of(cls, job: Callable[[], Any]) -> Timed:
        """Call it."""
        wall, processor = time.perf_counter(), time.process_time()
        result = job()
        found = cls(result, time.perf_counter() - wall, time.process_time() - processor)
        print(f"{seconds(found.wall)}, {seconds(found.processor)} of the processor", file=sys.stderr, flush=True)
        return found


def traced(job: Callable[[], Any]) -> float:
    """Largest memory that a call holds, in MiB; slower than the call alone, so in a call of its own."""
    tracemalloc.start()
    job()
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return peak


def tables() -> list[Table]:
    query, key = np.random.default_rng(0).standard_normal((2, TOKENS, HEAD_DIM)).astype(np.float32)

    def ours() -> Any:
        return be.spectrum(TOKENS**0.5 * be.AttentionOperator(query, key).centred(), tolerance=TOLERANCE)

    with threadpool_limits(THREADS):
        matrix = TOKENS**0.5 * be.AttentionOperator(query, key).centred().dense()
        calls = [Timed.of(ours)]
        gram = Timed.of(lambda: np.linalg.eigvalsh(matrix.T @ matrix))
        calls.append(Timed.of(ours))
        dense = Timed.of(lambda: np.linalg.svd(matrix, compute_uv=False))
        memory = traced(ours)
    own = Timed(calls[0].result, *(sum(each) / 2 for each in zip(*((c.wall, c.processor) for c in calls), strict=True)))
    found, exact = own.result, be.Spectrum.of(dense.result, be.Unit.SINGULAR)
    by_gram = be.Spectrum.of(np.sqrt(np.maximum(gram.result, 0)), be.Unit.SINGULAR)
    result = Table(
        f"{TOKENS} tokens, {HEAD_DIM} dimensions, beta 1, single precision, {THREADS} thread{'s' * (THREADS > 1)}",
        ["route", "time", "over ours", "CPU time", "over ours", "Kolmogorov distance to svdvals", "memory, MiB"],
        f"Stated error of ours: {found.error:.4f} at a confidence of 0.9; asked for {TOLERANCE}. Goals at 8192 tokens: "
        "a third of the time of the Gram matrix, a tenth of that of svdvals. The matrix itself has "
        f"{matrix.nbytes / 2**20:.0f} MiB, queries and keys {2 * query.nbytes / 2**20:.0f} MiB.",
    )
    distances = f"{be.compare(found, exact).ks:.4f}", f"{be.compare(by_gram, exact).ks:.4f}", "0"
    routes = {"be.spectrum(operator)": own, "Gram matrix and eigvalsh": gram, "svdvals": dense}
    for (name, each), distance in zip(routes.items(), distances, strict=True):
        ratios = f"{each.wall / own.wall:.1f}", f"{each.processor / own.processor:.1f}"
        held = f"{memory:.0f}" if each is own else ""
        result.add(name, seconds(each.wall), ratios[0], seconds(each.processor), ratios[1], distance, held)
    return [result]


if __name__ == "__main__":
    for each in tables():
        print(each.text(), file=sys.stdout)
