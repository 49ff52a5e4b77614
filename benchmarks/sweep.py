"""What the machinery of a sweep costs beside the work itself.

The floor is the same work without any machinery: the studies' ``run`` in a plain loop.
"""

from __future__ import annotations

import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xarray as xr
from threadpoolctl import threadpool_limits

from benchmarks.harness import Table, seconds
from bulkedge.lab.studies.base import Study
from bulkedge.lab.studies.claims import Claim
from bulkedge.lab.sweeps import SerialExecutor, Sweep, local_processes, run
from bulkedge.support.domains import Integers, parameter

TITLE = "Benchmarks: sweeps"
CELLS = 16


@dataclass(frozen=True)
class Busy(Study):
    """About a second of dense linear algebra."""

    place: int = parameter(Integers(0, 10**6), "which", 0)

    def run(self, rng: np.random.Generator) -> xr.Dataset:
        """Eigenvalues, over and over."""
        return xr.Dataset(
            {"value": ((), sum(np.linalg.eigvalsh(rng.standard_normal((400, 400)))[0] for _ in range(110)))}
        )

    def claims(self, data: xr.Dataset) -> list[Claim]:  # noqa: ARG002
        """None."""
        return []


@dataclass(frozen=True)
class Empty(Busy):
    """No work at all."""

    def run(self, rng: np.random.Generator) -> xr.Dataset:  # noqa: ARG002
        """One number."""
        return xr.Dataset({"value": ((), 1.0)})


def timed(sweep: Sweep, workers: int) -> float:
    """Seconds for a sweep, the start of its processes not counted."""
    with tempfile.TemporaryDirectory() as folder:
        if workers == 1:
            start = time.perf_counter()
            run(sweep, Path(folder), SerialExecutor())
            return time.perf_counter() - start
        with local_processes(workers) as executor:
            run(Sweep(Empty(), {}, 64), Path(folder) / "warm", executor)
            start = time.perf_counter()
            run(sweep, Path(folder) / "run", executor)
            return time.perf_counter() - start


def plain(sweep: Sweep) -> float:
    """Seconds for the same cells in a plain loop."""
    start = time.perf_counter()
    with threadpool_limits(1):
        for index in sweep.indices():
            cell = sweep.cell(index)
            cell.configured().run(np.random.default_rng(cell.seed))
    return time.perf_counter() - start


def efficiency() -> Table:
    """Two processes against one."""
    sweep = Sweep(Busy(), {"place": tuple(range(CELLS))})
    floor = plain(sweep)
    table = Table(
        f"{CELLS} cells of about a second",
        ["run by", "time", "share of the ideal", "goal"],
        "The ideal is the plain loop, divided by the number of processes.",
    )
    table.add("plain loop", seconds(floor), "", "")
    table.add("serial", seconds(one := timed(sweep, 1)), f"{floor / one:.2f}", "")
    table.add("2 processes", seconds(two := timed(sweep, 2)), f"{floor / two / 2:.2f}", "0.90")
    return table


def overhead() -> Table:
    """Cells that do nothing."""
    table = Table(
        "Cells without work",
        ["cells", "run by", "time a cell", "goal", "growth of memory"],
        "Growth is that of the largest resident size of the writing process during the run.",
    )
    timed(Sweep(Empty(), {}, 500), 1)
    for cells, workers in ((1000, 1), (10_000, 1), (10_000, 2)):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        took = timed(Sweep(Empty(), {"place": tuple(range(cells // 10))}, 10), workers)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        who = "serial" if workers == 1 else f"{workers} processes"
        table.add(cells, who, f"{1e3 * took / cells:.2f} ms", "1 ms", f"{grown:.1f} MiB")
    return table


def tables() -> list[Table]:
    """All of it."""
    return [efficiency(), overhead()]
