"""Sampling pooled sequences: the time of the covariance beside its two matrix products, and the memory.

The floor is what no implementation avoids: the sparse product that pools the table, and the Gram matrix of the pooled
rows, on the same numbers. The two take turns, and each counts its fastest turn in processor time, so that neighbours on
the machine weigh on both alike. Memory is the peak of the arrays that NumPy allocates, measured in a run of
its own.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

import bulkedge as be
from benchmarks.harness import Table, best, seconds

TITLE = "Benchmarks: pooled sequences"
DIM, VOCAB, SAMPLES, LENGTH = 2000, 4000, 6000, 64
RESOLUTION = 200
TURNS = 5


def covariance(model: be.PooledSequences) -> object:
    """Draw the rows and form ``Y'Y/N``."""
    rows = model.sample(np.random.default_rng(0))
    return rows.T @ rows / model.samples


def products(model: be.PooledSequences) -> Callable[[], object]:
    """The two products alone, on a table and tokens drawn before."""
    draw = model.draw(np.random.default_rng(0))
    ends = np.arange(0, draw.tokens.size + 1, LENGTH)
    spread = csr_array((np.tile(model.weights, SAMPLES), draw.tokens.ravel(), ends), shape=(SAMPLES, VOCAB))

    def run() -> object:
        rows = spread @ draw.table
        return rows.T @ rows

    return run


def in_turns(*functions: Callable[[], object]) -> list[float]:
    """Fastest of a few turns of each function, in seconds of processor time."""
    fastest = [float("inf")] * len(functions)
    for _ in range(TURNS):
        for k, function in enumerate(functions):
            start = time.process_time()
            function()
            fastest[k] = min(fastest[k], time.process_time() - start)
    return fastest


def sampling() -> Table:
    """Time over the floor, and memory beside the array that is never made."""
    correlation = be.recovery.prefix_correlation(LENGTH, 16, 0.5)
    model = be.PooledSequences(DIM, VOCAB, SAMPLES, 1.0, be.recovery.causal_weights(LENGTH), correlation)
    floor, whole = in_turns(products(model), lambda: covariance(model))
    tracemalloc.start()
    covariance(model)
    peak = tracemalloc.get_traced_memory()[1] / 2**30
    tracemalloc.stop()
    table = Table(
        f"A covariance: d = {DIM}, V = {VOCAB}, N = {SAMPLES}, L = {LENGTH}",
        ["what", "time", "ratio", "goal", "peak memory", "goal"],
        f"All embedded sequences at once would take {SAMPLES * LENGTH * DIM * 8 / 2**30:.1f} GiB.",
    )
    table.add("the two products", seconds(floor), "", "", "", "")
    table.add("PooledSequences", seconds(whole), f"{whole / floor:.2f}", "1.50", f"{peak:.2f} GiB", "4 GiB")
    return table


def theory() -> Table:
    """A phase diagram from theory."""
    from bulkedge.ensembles.pooled import critical_strength, spectral_alignment

    signal, ratio = np.linspace(0.02, 3.5, RESOLUTION), np.linspace(0.02, 2.0, RESOLUTION)[:, None]

    def diagram() -> object:
        return spectral_alignment(2.8 * (signal**2 + ratio), ratio, 1 / 3), critical_strength(ratio, 1 / 3)

    table = Table(f"A phase diagram of {RESOLUTION} x {RESOLUTION} points from theory", ["what", "time", "goal"])
    table.add("alignment and boundary", seconds(best(diagram)), "1 s")
    return table


def tables() -> list[Table]:
    """All of it."""
    return [sampling(), theory()]
