"""Where cells run: here, in local processes, or on a Dask cluster; any :class:`concurrent.futures.Executor` will do."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing.connection import wait
from threading import Thread
from typing import Any


class SerialExecutor(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run, and return what is already done."""
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
    """
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["bulkedge.sweeps.loop"])
    return ProcessPoolExecutor(workers or available_cores(), mp_context=context, initializer=_prepare_worker)


def stop(executor: Executor) -> None:
    """End the workers now: what they are still computing is not wanted."""
    if isinstance(executor, ProcessPoolExecutor):
        for worker in list((executor._processes or {}).values()):
            worker.terminate()
    executor.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare_worker() -> None:
    # Ctrl-C reaches the whole group: the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """Leave when the parent is gone, even if it was killed and could say nothing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
