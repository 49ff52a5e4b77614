"""Shrinking a sample covariance, beside scikit-learn's Ledoit-Wolf and OAS and the analytical formula of 2020.

Losses are ``|estimate - truth|**2/|truth|**2`` in Frobenius norm, in thousandths, on the same draws for everybody.
Draws and dimension are not those that the constants of ``shrink_spectrum`` were chosen on (dimension 60, similar
populations). All estimators know that the mean is zero. Times are processor times of the whole way from the data to the
covariance, the fastest of five. Linear shrinkage needs no eigenvalues, and is faster than anything that does;
nonlinshrink refuses square samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import bulkedge as be
from benchmarks.harness import Table, peer, seconds
from benchmarks.pooled import in_turns

TITLE = "Benchmarks: covariances"
DIM, DRAWS, SEED = 100, 30, 20261119
RATIOS = (0.2, 0.5, 1.0, 2.0)
TIMED = ((100, 200), (400, 800), (400, 300))
REQUIREMENTS = ["scikit-learn==1.9.1", "nonlinshrink==0.7"]


def populations() -> dict[str, list[float]]:
    """Population eigenvalues by name."""
    index = np.arange(DIM)
    found = {
        "identity": np.ones(DIM),
        "1 and 5, equal shares": np.repeat([1.0, 5.0], DIM // 2),
        "1, 3 and 10": np.repeat([1.0, 3.0, 10.0], [20, 40, 40]),
        "1 to 10, evenly": np.linspace(1.0, 10.0, DIM),
        "autoregressive, 0.5": np.linalg.eigvalsh(0.5 ** np.abs(np.subtract.outer(index, index))),
        "autoregressive, 0.8": np.linalg.eigvalsh(0.8 ** np.abs(np.subtract.outer(index, index))),
        "1/k": 10.0 / (index + 1),
        "ones and three spikes": np.append(np.ones(DIM - 3), [8.0, 12.0, 20.0]),
    }
    return {name: values.tolist() for name, values in found.items()}


def ours(data: Any) -> Any:
    """The whole way from data to covariance."""
    values, vectors = np.linalg.eigh(data.T @ data / len(data))
    shrunk = be.shrink_spectrum(np.maximum(values, 0.0), data.shape[1] / len(data))
    return (vectors * shrunk) @ vectors.T


def loss(estimate: Any, population: Any) -> float:
    """Relative squared error."""
    return float(np.sum((estimate - np.diag(population)) ** 2) / np.sum(np.square(population)))


def tables() -> list[Table]:
    """All of it."""
    cells = [
        {"name": name, "population": population, "samples": round(DIM / ratio), "draws": DRAWS, "seed": SEED}
        for name, population in populations().items()
        for ratio in RATIOS
    ]
    answers = peer("covariance", REQUIREMENTS, {"cells": cells, "timed": TIMED})
    return [losses(cells, answers), times(answers)]


def losses(cells: list[dict[str, Any]], answers: list[dict[str, Any]]) -> Table:
    """Our loss beside each rival's, and the paired difference to the best of them in standard errors."""
    names = list(answers[0]["losses"])
    table = Table(
        f"Loss in dimension {DIM}: means of {DRAWS} draws, in thousandths",
        ["population", "ratio", "shrink_spectrum", *names, "minus the best"],
        "The last column is our loss minus that of the best rival, with its standard error over draws.",
    )
    for cell, answer in zip(cells, answers, strict=False):
        rng = np.random.default_rng(cell["seed"])
        mine = []
        for _ in range(cell["draws"]):
            data = rng.standard_normal((cell["samples"], DIM)) * np.sqrt(cell["population"])
            mine.append(loss(ours(data), cell["population"]))
        rivals = {name: np.array(each, dtype=float) for name, each in answer["losses"].items()}
        means = {name: float(np.mean(each)) for name, each in rivals.items()}
        least = min((name for name in means if means[name] == means[name]), key=means.__getitem__)
        gap = 1e3 * (np.array(mine) - rivals[least])
        shown = [f"{1e3 * mean:.1f}" if mean == mean else "refused" for mean in means.values()]  # noqa: PLR0124
        apart = f"{gap.mean():+.2f} ± {gap.std(ddof=1) / np.sqrt(len(gap)):.2f}"
        table.add(cell["name"], DIM / cell["samples"], f"{1e3 * np.mean(mine):.1f}", *shown, apart)
    return table


def times(answers: list[dict[str, Any]]) -> Table:
    """From data to covariance."""
    names = list(answers[-1]["seconds"][0])
    table = Table("Time from data to covariance", ["dimension", "samples", "shrink_spectrum", *names])
    for (dim, samples), taken in zip(TIMED, answers[-1]["seconds"], strict=True):
        data = np.random.default_rng(0).standard_normal((samples, dim)) * np.linspace(1, 3, dim)
        table.add(
            dim, samples, seconds(in_turns(lambda data=data: ours(data))[0]), *(seconds(taken[name]) for name in names)
        )
    return table
