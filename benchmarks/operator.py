"""The spectrum of attention from products alone, against dense decompositions of the same matrix, in one run.

One head of 64 dimensions and 8192 tokens at beta 1, in single precision. The dense routes are given the matrix; ours is
given queries and keys, and never forms it. The distance is Kolmogorov's to the values of ``svdvals``. Memory is the
peak of what each route allocates beyond queries and keys, as the interpreter traces it. Two threads for everybody.
"""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import bulkedge as be
from benchmarks.harness import Table, seconds

TITLE = "Benchmarks: spectra of operators"
TOKENS, HEAD_DIM = int(os.environ.get("BULKEDGE_TOKENS", "8192")), 64
THREADS = 2
TOLERANCE = 0.01


def once(job: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and its result: these take long enough to be timed once."""
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


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
        own, found = once(ours)
        matrix = TOKENS**0.5 * be.AttentionOperator(query, key).centred().dense()
        gram, squares = once(lambda: np.linalg.eigvalsh(matrix.T @ matrix))
        dense, values = once(lambda: np.linalg.svd(matrix, compute_uv=False))
        memory = traced(ours)
    exact = be.Spectrum.of(values, be.Unit.SINGULAR)
    by_gram = be.Spectrum.of(np.sqrt(np.maximum(squares, 0)), be.Unit.SINGULAR)
    result = Table(
        f"{TOKENS} tokens, {HEAD_DIM} dimensions, beta 1, single precision",
        ["route", "time", "times ours", "Kolmogorov distance to svdvals", "memory, MiB"],
        f"Stated error of ours: {found.error:.4f} at a confidence of 0.9; asked for {TOLERANCE}. The matrix itself has "
        f"{matrix.nbytes / 2**20:.0f} MiB, queries and keys {2 * query.nbytes / 2**20:.0f} MiB.",
    )
    result.add("be.spectrum(operator)", seconds(own), 1.0, f"{be.compare(found, exact).ks:.4f}", f"{memory:.0f}")
    result.add("Gram matrix and eigvalsh", seconds(gram), gram / own, f"{be.compare(by_gram, exact).ks:.4f}", "")
    result.add("svdvals", seconds(dense), dense / own, "0", "")
    return [result]


if __name__ == "__main__":
    for each in tables():
        print(each.text(), file=sys.stdout)
