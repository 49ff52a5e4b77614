"""Where cells run: here, in local processes, or on a Dask cluster; any :class:`concurrent.futures.Executor` will do."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class SerialExecutor(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run at once, and return a future that is done.

        Parameters
        ----------
        fn : callable
            What to run.
        *args : object
            Its arguments.
        **kwargs : object
            Its arguments by name.

        Returns
        -------
        Future
            Done: with the result, or with the exception that was raised.
        """
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
        How many; one for each core that this process may use by default.

    Returns
    -------
    ProcessPoolExecutor
        To be ended with :func:`stop`, or with its own ``shutdown``.
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
    executor : Executor
        What to end; processes of a local pool are terminated, others are asked to cancel.
    wait : bool
        Whether to return only when all workers have ended.
    """
    if isinstance(executor, ProcessPoolExecutor):
        for worker in list((executor._processes or {}).values()):
            worker.terminate()
    executor.shutdown(wait=wait, cancel_futures=True)


def within(seconds: float, work: Callable[..., T], *arguments: Any) -> T:
    """Do the work in a thread of its own, and wait for it no longer than so many seconds.

    What takes longer is told to stop. It does at its next step in Python; a call into compiled code that never
    returns stays behind until its process ends, and keeps nobody waiting.
    """
    future: Future[T] = Future()

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
