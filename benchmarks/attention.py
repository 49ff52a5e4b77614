"""Laws of attention, built from nothing, and what sampling a spectrum costs beside the decomposition itself.

The floor of a spectrum is the bare LAPACK call on the same matrix, measured in the same run.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import svdvals

import bulkedge as be
from benchmarks.harness import Table, best, seconds

TITLE = "Benchmarks: attention"
SIZE = 1024


def building() -> Table:
    """Cold build and 1000 densities."""
    table = Table("Building a law and evaluating 1000 points", ["law", "time", "goal"])
    x = np.linspace(0.01, 40, 1000)
    for qk_norm, goal in ((True, "50 ms"), (False, "1 s")):
        for beta, dim, tokens in ((0.25, 32, 2048), (1.0, 64, 2048), (1.25, 128, 4096)):
            name = f"FiniteHeadLaw({beta}, {dim}, {tokens}, qk_norm={qk_norm})"
            took = best(lambda b=beta, d=dim, t=tokens, q=qk_norm: be.FiniteHeadLaw(b, d, t, q).pdf(x), least=3)
            table.add(name, seconds(took), goal)
    return table


def sampling() -> Table:
    """A spectrum against the bare decomposition."""
    model = be.SoftmaxAttention(SIZE, 64, 1.0)
    matrix = np.sqrt(SIZE) * (model.sample(np.random.default_rng(0)) - 1 / SIZE)
    floor = best(lambda: svdvals(matrix), least=3)
    whole = best(lambda: model.spectrum(np.random.default_rng(0)), least=3)
    table = Table(f"A spectrum of {SIZE} tokens", ["what", "time", "ratio", "goal"])
    table.add("LAPACK alone", seconds(floor), "", "")
    table.add("SoftmaxAttention.spectrum", seconds(whole), f"{whole / floor:.2f}", "1.10")
    return table


def tables() -> list[Table]:
    """All of it."""
    return [building(), sampling()]
