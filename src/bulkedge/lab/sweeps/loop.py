"""Run the cells of a sweep that are not done yet, and store each as it finishes."""

from __future__ import annotations

import json
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bulkedge.lab.sweeps.grid import Cell, CellIndex, Sweep
from bulkedge.lab.sweeps.read import DONE, FAILED, PENDING
from bulkedge.lab.sweeps.store import Store, Values, open_store
from bulkedge.support.domains import Interval
from bulkedge.support.errors import StoreError
from bulkedge.support.progress import listen, tell
from bulkedge.support.threads import SerialExecutor, available_cores, local_processes, one_thread, stop, within

BATCH_SECONDS, LARGEST_BATCH = 0.1, 256  # quick cells travel together, for about this long
FLUSH_SECONDS = 0.5  # results wait at most this long to be written


@dataclass(frozen=True)
class Result:
    """What became of a cell: its values, or why there are none."""

    index: CellIndex
    values: Values | None
    failure: dict[str, Any] | None
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Where a sweep stands: how many cells it has, and how many are done and have failed.

    ``damaged`` is how many were done before and did not match their checksums any more; they were run again.
    """

    folder: Path
    cells: int
    done: int
    failed: int
    damaged: int = 0


def run(  # noqa: PLR0913  # four of them by name
    sweep: Sweep,
    folder: str | Path,
    executor: Executor | None = None,
    *,
    retry_failed: bool = False,
    width: int = 0,
    timeout: float | None = None,
) -> Outcome:
    """Run the cells of a sweep that are not done yet, and store each as it finishes.

    Parameters
    ----------
    sweep : Sweep
        The grid.
    folder : path
        Where the store is, or will be; the same folder and sweep again resume an interrupted run.
    executor : Executor, optional
        Where cells run; processes on this machine by default. Ctrl-C ends the processes of a pool that are still busy
        with cells, so that a cell that hangs does not; threads cannot be ended.
    retry_failed : bool
        Whether to run again the cells that raised.
    width : int
        How many workers the executor has, where it does not say itself.
    timeout : float, optional
        Seconds that a cell may take; one that takes longer has failed, and the rest goes on.

    Returns
    -------
    Outcome
        How many cells there are, how many are done and how many failed.

    Raises
    ------
    StoreError
        If the folder cannot be used for this sweep.
    BrokenExecutor
        If a worker or the scheduler of a cluster is gone; what was finished before is kept.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from bulkedge.lab.studies.laws.edge import LawsEdge
    >>> from bulkedge.lab.sweeps import open_sweep
    >>> grid = Sweep(LawsEdge(draws=100), {"size": (50, 60)}, repetitions=2)
    >>> folder = TemporaryDirectory()
    >>> outcome = run(grid, folder.name, SerialExecutor())
    >>> outcome.cells, outcome.done, dict(open_sweep(folder.name).status.sizes)
    (4, 4, {'size': 2, 'repetition': 2})
    >>> folder.cleanup()
    """
    limit = None if timeout is None else Interval(0, 1e9, "(]").check("timeout", timeout)
    own = executor is None
    pool = executor or local_processes()
    try:
        with one_thread(), open_store(Path(folder), sweep) as store:
            status = store.status
            wanted = (PENDING, FAILED) if retry_failed else (PENDING,)
            todo = (index for index in store.sweep.indices() if status[index] in wanted)
            open_cells = int(np.isin(status, wanted).sum())
            _Loop(store, pool, todo, open_cells, width or _width_of(pool), limit).run()
            status = store.status
        done, failed = int(np.sum(status == DONE)), int(np.sum(status == FAILED))
        return Outcome(Path(folder), sweep.size, done, failed, len(store.damaged))
    finally:
        if own:
            stop(pool)


def _width_of(executor: Executor) -> int:
    return 1 if isinstance(executor, SerialExecutor) else int(getattr(executor, "_max_workers", available_cores()))


@dataclass
class _Loop:
    """Keeps the executor busy and the store up to date; holds no more than what is in flight."""

    store: Store
    executor: Executor
    todo: Iterator[CellIndex]
    total: int
    width: int
    timeout: float | None = None
    flying: dict[Future[list[Result]], list[Cell]] = field(default_factory=dict)
    finished: list[Result] = field(default_factory=list)
    submitted: int = 0
    stored: int = 0
    pace: float = BATCH_SECONDS
    flushed: float = field(default_factory=time.monotonic)
    diaries: TemporaryDirectory[str] | None = None

    def run(self) -> None:
        """Until all is done; what is finished is stored, whatever happens."""
        try:
            if isinstance(self.executor, ProcessPoolExecutor):
                self.diaries = TemporaryDirectory(ignore_cleanup_errors=True)
            tell("cells", 0, self.total)
            while self._submit() or self.flying:
                self._collect()
                if not self.flying or time.monotonic() - self.flushed > FLUSH_SECONDS:
                    self._flush()
        finally:
            busy = [future for future in self.flying if not (future.cancel() or future.done())]
            self._salvage()
            try:
                self._flush()
            finally:
                if busy and isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
                    stop(self.executor, wait=False)
                if self.diaries:
                    self.diaries.cleanup()

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
            self.flying[self._send(cells)] = cells
            self.submitted += len(cells)
        return self.submitted > before

    def _send(self, cells: list[Cell]) -> Future[list[Result]]:
        try:
            return self.executor.submit(run_cells, cells, self.timeout, self._diary(cells))
        except BrokenExecutor:
            raise
        except Exception as error:
            raise BrokenExecutor(f"the executor takes no cells: {type(error).__name__}: {error}") from error

    def _diary(self, cells: list[Cell]) -> Path | None:
        """Where a process of this machine writes down the cells of a batch that it has finished, for when it dies."""
        if self.diaries is None or len(cells) < 2:
            return None
        return Path(self.diaries.name) / "-".join(map(str, cells[0].index))

    def _collect(self) -> None:
        landed, _ = wait(self.flying, timeout=FLUSH_SECONDS, return_when=FIRST_COMPLETED)
        for future in landed:
            cells = self.flying[future]
            if future.cancelled():  # not by us: a Dask client does so when it loses its scheduler
                raise BrokenExecutor("the executor gave up its cells: it was shut down, or lost its scheduler")
            error = future.exception()
            if isinstance(error, BrokenExecutor):
                raise error
            del self.flying[future]
            if error:
                results = [Result(each.index, None, _failure(each, error), BATCH_SECONDS) for each in cells]
            else:
                results = future.result()
            self.finished.extend(results)
            self.pace = 0.7 * self.pace + 0.3 * max(sum(each.seconds for each in results) / len(results), 1e-6)

    def _salvage(self) -> None:
        """Take what landed beside a batch that broke the executor, and what was finished of batches that did not."""
        for future, cells in self.flying.items():
            diary = self._diary(cells)
            if future.done() and not future.cancelled() and future.exception() is None:
                self.finished.extend(future.result())
            elif diary and diary.exists():
                with diary.open("rb") as file, suppress(EOFError, pickle.UnpicklingError):
                    while True:
                        self.finished.append(pickle.load(file))  # noqa: S301  # a folder of this process alone

    def _flush(self) -> None:
        """Store what is finished; if that fails it is kept, to be tried once more at the end."""
        good, bad = [], []
        for each in self.finished:
            try:
                if each.values is not None:
                    self.store.admit(each.values)
                    good.append((each.index, each.values))
            except StoreError as error:
                bad.append((each.index, _failure(self.store.sweep.cell(each.index), error)))
            if each.failure is not None:
                bad.append((each.index, each.failure))
        if self.finished:
            self.store.write(good, bad)
        self.stored += len(self.finished)
        self.finished, self.flushed = [], time.monotonic()
        tell("cells", self.stored, self.total)


def run_cells(cells: Sequence[Cell], timeout: float | None = None, diary: Path | None = None) -> list[Result]:
    """Run cells one after another with one thread: rounding does not depend on threads, nor do workers compete."""
    with listen(lambda _: None):  # a study's own count of its steps is not that of the cells
        results = []
        for cell in cells:
            results.append(_run_cell(cell, timeout))
            if diary:
                with diary.open("ab") as file:
                    pickle.dump(results[-1], file)
        return results


@cache
def _limit_threads(_thread: int) -> None:
    """Once for each thread of a worker, because OpenMP counts by thread; :func:`run` restores its own."""
    ThreadpoolController().limit(limits=1)


def _run_cell(cell: Cell, timeout: float | None = None) -> Result:
    start = time.perf_counter()
    try:
        values = _simulate(cell) if timeout is None else within(timeout, _simulate, cell)
    except Exception as error:  # noqa: BLE001  # a cell may fail in any way; the others go on
        return Result(cell.index, None, _failure(cell, error), time.perf_counter() - start)
    return Result(cell.index, values, None, time.perf_counter() - start)


def _simulate(cell: Cell) -> Values:
    _limit_threads(threading.get_ident())
    data = cell.make_study().run(np.random.default_rng(cell.seed))
    return {
        str(name): (tuple(map(str, each.dims)), _numbers(str(name), each.values, each.dims), _attributes(each.attrs))
        for name, each in sorted(data.variables.items(), key=lambda item: str(item[0]))
    }


def _attributes(attributes: Any) -> dict[str, Any]:
    """Attributes as JSON has them."""
    plain = {str(key): value.item() if isinstance(value, np.generic) else value for key, value in attributes.items()}
    return dict(json.loads(json.dumps(plain)))


def _numbers(name: str, values: Any, dims: Sequence[Any]) -> Any:
    """Values as floats, which can be missing; labels as they are."""
    array = np.asarray(values)
    if name in dims:
        if array.dtype.kind not in "biufUT" and not all(isinstance(each, str) for each in array.tolist()):
            raise TypeError(f"the labels of {name} are {array.dtype}; a sweep stores numbers and text")
        return array
    if array.dtype.kind not in "biuf":
        raise TypeError(f"the variable {name} holds {array.dtype}; a sweep stores real numbers")
    # up to here, floats have all whole numbers
    if array.dtype.kind in "iu" and array.size and max(int(array.max()), -int(array.min())) > 2**53:
        raise OverflowError(f"the variable {name} has whole numbers over 2**53, which a sweep's floats do not resolve")
    return np.asarray(array, dtype=float)


def _failure(cell: Cell, error: BaseException) -> dict[str, Any]:
    return {
        "parameters": cell.study.parameters() | cell.changes,
        "repetition": cell.index[-1],
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }
