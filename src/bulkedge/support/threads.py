"""How many threads and processes work, and where: one thread rounds sums the same way everywhere.

Work runs here, in threads, in local processes, or on any :class:`concurrent.futures.Executor`.

>>> squares = []
>>> in_order(lambda number: number**2, [1, 2, 3, 4], squares.append)
>>> squares
[1, 4, 9, 16]
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from importlib import import_module
from multiprocessing.connection import wait
from threading import RLock, Thread, get_ident
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


shared_lock = RLock()
_changes: dict[Hashable, tuple[list[object], ExitStack]] = {}
"""Changes of what all threads share: an entry for everybody who needs one, and what takes it back."""


@contextmanager
def shared(key: Hashable, change: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Change what all threads share for the first who needs it, and take the change back after the last."""
    with shared_lock:
        if key not in _changes:
            with ExitStack() as stack:
                stack.enter_context(change())
                _changes[key] = [], stack.pop_all()
        users, undo = _changes[key]
        users.append(key)
    try:
        yield
    finally:
        with shared_lock:
            users.pop()
            if not users:
                del _changes[key]
                undo.close()


_limited: dict[str, tuple[Callable[[int], object], int, bool]] = {}
"""Libraries with one thread: what sets their threads, how many they had, and whether each caller has its own number."""
_inside: Counter[int] = Counter()  # threads that wish it so, and how often


@contextmanager
def one_thread(packages: Sequence[str] = ()) -> Iterator[None]:
    """Let BLAS, OpenMP and torch compute with one thread, whose rounding does not depend on the machine's cores."""
    for package in ("numpy", "scipy.linalg", *packages):
        import_module(package)
    torch, me = sys.modules.get("torch"), get_ident()
    with shared_lock:
        _inside[me] += 1
        found = {
            each.filepath: (each.set_num_threads, each.num_threads, each.user_api == "openmp")
            for each in ThreadpoolController().lib_controllers
        }
        if torch:
            found["torch"] = torch.set_num_threads, torch.get_num_threads(), True
        for name, each in found.items():
            _limited.setdefault(name, each)
            each[0](1)
    try:
        yield
    finally:
        with shared_lock:
            _inside.subtract([me])
            left = not +_inside
            for set_threads, number, own in _limited.values():
                if left or (own and not _inside[me]):
                    set_threads(number)
            if left:
                _limited.clear()
                _inside.clear()


@cache
def _blas() -> ThreadpoolController:
    """The BLAS of NumPy, whose threads can be counted and limited; to look for libraries takes milliseconds."""
    import_module("numpy")
    return ThreadpoolController().select(user_api="blas")


def _blas_threads() -> int:
    # NumPy and SciPy may have one each; SciPy's is loaded later, and then not limited as NumPy's was
    return max((each.num_threads for each in _blas().lib_controllers), default=1)


def in_order(work: Callable[[Item], Result], items: Sequence[Item], collect: Callable[[Result], None]) -> None:
    """Do many pieces of work with NumPy in as many threads as its BLAS may use, and take the results in their order."""
    # NumPy's products use all threads of BLAS, its other functions one: where both take turns, pieces side by side with
    # one thread each are faster. Results are rounded alike on any number of threads, and so is a sum of them in order.
    workers = _blas_threads()
    with thin_products():
        if len(items) < 2 or workers < 2:
            for item in items:
                collect(work(item))
            return
        waiting: deque[Future[Result]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            for item in items:
                # the context carries what NumPy is told to do about overflows
                waiting.append(pool.submit(copy_context().run, work, item))
                if len(waiting) > workers:
                    collect(waiting.popleft().result())
            while waiting:
                collect(waiting.popleft().result())


def thin_products() -> AbstractContextManager[None]:
    """Let NumPy's BLAS compute with one thread: products of thin matrices, and decompositions of small ones."""
    # Threads that share them gain little on an idle machine, and on a busy one they wait for each other: sixty times
    # longer was measured. Other threads' BLAS is limited too, and given back after the last that wants it so.
    return shared("thin products", lambda: _blas().limit(limits=1) if _blas_threads() > 1 else nullcontext())


class SerialExecutor(Executor):
    """Runs what is submitted at once, in this process.

    >>> with SerialExecutor() as executor:
    ...     print(executor.submit(pow, 2, 10).result())
    1024
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run at once, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # whatever it is belongs to the future
            future.set_exception(error)
        return future


def local_processes(workers: int | None = None) -> ProcessPoolExecutor:
    """Processes on this machine, one for each core it may use; they die with the process that started them.

    They are started afresh, not forked: a fork of a process with threads may hang. A script that uses them needs the
    usual ``if __name__ == "__main__":``.

    Parameters
    ----------
    workers : int, optional
        How many processes; as many as there are cores by default.

    Returns
    -------
    concurrent.futures.ProcessPoolExecutor
        To be shut down by :func:`stop`, or as a context manager.

    Examples
    --------
    >>> with local_processes(1) as executor:                           # doctest: +SKIP
    ...     executor.submit(print, 1)
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["bulkedge.lab.sweeps.loop"])
    return ProcessPoolExecutor(workers or available_cores(), mp_context=context, initializer=_prepare_worker)


def stop(executor: Executor, *, wait: bool = True) -> None:
    """End the workers now: what they are still computing is not wanted.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        What to stop.
    wait : bool
        Whether to return only when its work has ended.

    Examples
    --------
    >>> executor = SerialExecutor()
    >>> stop(executor)
    """
    if isinstance(executor, ProcessPoolExecutor):
        for worker in list((executor._processes or {}).values()):
            worker.terminate()
    executor.shutdown(wait=wait, cancel_futures=True)


def within(seconds: float, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do the work in a thread of its own, and wait for it no longer than so many seconds."""
    # What takes longer is told to stop. It does at its next step in Python; a call into compiled code that never
    # returns stays behind until its process ends, and keeps nobody waiting.
    future: Future[Result] = Future()

    def attempt() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to the caller
            future.set_exception(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    try:
        return future.result(timeout=seconds)
    except BaseException as error:
        if future.done():
            raise
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"not done after {seconds:g} s") from None
        raise


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare_worker() -> None:
    # libraries that a cell loads later start with one thread, too
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    # Ctrl-C reaches the whole group: the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Leave when the parent is gone, even if it was killed and could say nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
