"""Run the cells of a sweep that are not done yet, and store each as it finishes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bulkedge.progress import tell
from bulkedge.sweeps.executors import SerialExecutor, available_cores, local_processes, stop
from bulkedge.sweeps.grid import Cell, Index, Sweep
from bulkedge.sweeps.store import DONE, FAILED, PENDING, Store, Values, opened

BATCH_SECONDS, LARGEST_BATCH = 0.1, 256
"""Quick cells travel together, for about this long."""
FLUSH_SECONDS = 0.5
"""Results wait at most this long to be written."""


@dataclass(frozen=True)
class Result:
    """What became of a cell: its values, or why there are none."""

    index: Index
    values: Values | None
    failure: dict[str, Any] | None
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Where a sweep stands: how many cells it has, and how many are done and have failed."""

    folder: Path
    cells: int
    done: int
    failed: int


def run(
    sweep: Sweep, folder: str | Path, executor: Executor | None = None, *, retry_failed: bool = False, width: int = 0
) -> Outcome:
    """Run what is not done yet.

    Parameters
    ----------
    sweep : Sweep
        The grid.
    folder : path
        Where the store is, or will be; the same folder and sweep again resume an interrupted run.
    executor : Executor, optional
        Where cells run; processes on this machine by default.
    retry_failed : bool
        Whether to run again the cells that raised.
    width : int
        How many workers the executor has, where it does not say itself.

    Raises
    ------
    StoreError
        If the folder cannot be used for this sweep.
    BrokenExecutor
        If a worker died; what was finished before is kept.
    """
    own = executor is None
    pool = executor or local_processes()
    try:
        with ThreadpoolController().limit(limits=1), opened(Path(folder), sweep) as store:
            status = store.status
            wanted = (PENDING, FAILED) if retry_failed else (PENDING,)
            todo = (index for index in sweep.indices() if status[index] in wanted)
            open_cells = int(np.isin(status, wanted).sum())
            _Loop(store, pool, todo, open_cells, width or _width_of(pool)).run()
            status = store.status
        return Outcome(Path(folder), sweep.size, int(np.sum(status == DONE)), int(np.sum(status == FAILED)))
    finally:
        if own:
            stop(pool)


def _width_of(executor: Executor) -> int:
    if isinstance(executor, SerialExecutor):
        return 1
    return int(getattr(executor, "_max_workers", available_cores()))


@dataclass
class _Loop:
    """Keeps the executor busy and the store up to date; holds no more than what is in flight."""

    store: Store
    executor: Executor
    todo: Iterator[Index]
    total: int
    width: int
    flying: dict[Future[list[Result]], list[Cell]] = field(default_factory=dict)
    finished: list[Result] = field(default_factory=list)
    submitted: int = 0
    stored: int = 0
    pace: float = BATCH_SECONDS
    flushed: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Until all is done; what is finished is stored, whatever happens."""
        try:
            tell("cells", 0, self.total)
            while self._submit() or self.flying:
                self._collect()
                if not self.flying or time.monotonic() - self.flushed > FLUSH_SECONDS:
                    self._flush()
        finally:
            for future in self.flying:
                future.cancel()
            self._flush()

    def _submit(self) -> bool:
        """Fill up to two batches a worker; whether anything was submitted."""
        before = self.submitted
        room = 1 if isinstance(self.executor, SerialExecutor) else 2 * self.width
        while len(self.flying) < room:
            share = -(-(self.total - self.submitted) // (2 * self.width))
            size = max(1, min(int(BATCH_SECONDS / self.pace), share, LARGEST_BATCH))
            cells = [self.store.sweep.cell(index) for index in islice(self.todo, size)]
            if not cells:
                break
            self.flying[self.executor.submit(run_cells, cells)] = cells
            self.submitted += len(cells)
        return self.submitted > before

    def _collect(self) -> None:
        landed, _ = wait(self.flying, timeout=FLUSH_SECONDS, return_when=FIRST_COMPLETED)
        for future in landed:
            cells = self.flying.pop(future)
            error = future.exception()
            if isinstance(error, BrokenExecutor):
                raise error
            results = _all_failed(cells, error) if error else future.result()
            self.finished.extend(results)
            self.pace = 0.7 * self.pace + 0.3 * max(sum(each.seconds for each in results) / len(results), 1e-6)

    def _flush(self) -> None:
        finished, self.finished, self.flushed = self.finished, [], time.monotonic()
        good = [(each.index, each.values) for each in finished if each.values is not None]
        bad = [(each.index, each.failure) for each in finished if each.failure is not None]
        if finished:
            self.store.write(good, bad)
        self.stored += len(finished)
        tell("cells", self.stored, self.total)


def run_cells(cells: Sequence[Cell]) -> list[Result]:
    """Run cells one after another, with one thread for BLAS.

    So workers do not compete for cores, and the rounding of a cell does not depend on the number of threads.
    """
    _limit_worker()
    return [_run_cell(cell) for cell in cells]


@cache
def _limit_worker() -> None:
    """Once for each process: in a worker nobody else wants the threads, and :func:`run` restores its own."""
    ThreadpoolController().limit(limits=1)


def _run_cell(cell: Cell) -> Result:
    start = time.perf_counter()
    try:
        data = cell.configured().run(np.random.default_rng(cell.seed))
        values = {
            str(name): (tuple(map(str, each.dims)), _numbers(str(name), each.values, each.dims), dict(each.attrs))
            for name, each in sorted(data.variables.items(), key=lambda item: str(item[0]))
        }
    except Exception as error:  # noqa: BLE001  # a cell may fail in any way; the others go on
        return Result(cell.index, None, _failure(cell, error), time.perf_counter() - start)
    return Result(cell.index, values, None, time.perf_counter() - start)


def _numbers(name: str, values: Any, dims: Sequence[Any]) -> Any:
    """Values as floats, which can be missing; labels as they are."""
    if name in dims:
        return np.asarray(values)
    if np.asarray(values).dtype.kind not in "biuf":
        raise TypeError(f"the variable {name} holds {np.asarray(values).dtype}; a sweep stores real numbers")
    return np.asarray(values, dtype=float)


def _failure(cell: Cell, error: BaseException) -> dict[str, Any]:
    return {
        "parameters": cell.study.parameters() | cell.changes,
        "repetition": cell.index[-1],
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }


def _all_failed(cells: Sequence[Cell], error: BaseException) -> list[Result]:
    return [Result(cell.index, None, _failure(cell, error), BATCH_SECONDS) for cell in cells]
