"""How many threads: one, so that sums are rounded the same way everywhere, or a thread for each of many pieces of work.

>>> squares = []
>>> in_order(lambda number: number**2, [1, 2, 3, 4], squares.append)
>>> squares
[1, 4, 9, 16]
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from importlib import import_module
from threading import Lock
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread(packages: Sequence[str] = ()) -> Iterator[None]:
    """Let BLAS, OpenMP and torch compute with one thread, whose rounding does not depend on the machine's cores."""
    for package in ("numpy", "scipy.linalg", *packages):
        import_module(package)
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    with ThreadpoolController().limit(limits=1):
        try:
            if torch:
                torch.set_num_threads(1)
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


_LENT = Lock()
"""Held by whoever has limited the threads of NumPy's BLAS: a second one would give back one thread for many."""


@cache
def _blas() -> ThreadpoolController:
    """The BLAS of NumPy, whose threads can be counted and limited; to look for libraries takes milliseconds."""
    import_module("numpy")
    return ThreadpoolController().select(user_api="blas")


def in_order(work: Callable[[Item], Result], items: Sequence[Item], collect: Callable[[Result], None]) -> None:
    """Do many pieces of work with NumPy in as many threads as its BLAS may use, and take the results in their order.

    NumPy's products use all threads that BLAS may use, its other functions one. So where products of matrices and
    other work take turns, pieces of work side by side, each with a BLAS of one thread, are faster. A result is rounded
    in the same way whatever the number of threads, and so is a sum over the results, because they come in order.
    """
    with _borrow() as workers:
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


@contextmanager
def thin_products() -> Iterator[None]:
    """Let NumPy's BLAS compute with one thread: products of thin matrices, and decompositions of small ones.

    Threads that share them gain little on an idle machine, and on a busy one they wait for each other: sixty times
    longer was measured. Other threads' BLAS is limited too, and given back.
    """
    with _borrow():
        yield


@contextmanager
def _borrow() -> Iterator[int]:
    """NumPy's BLAS limited to one thread; how many it had, or one if somebody else has limited it."""
    if not _LENT.acquire(blocking=False):
        yield 1
        return
    try:
        libraries = _blas()
        # NumPy and SciPy may have one each; SciPy's is loaded later, and then not limited as NumPy's was
        threads = max((each.num_threads for each in libraries.lib_controllers), default=1)
        if threads < 2:
            yield 1
            return
        with libraries.limit(limits=1):
            yield threads
    finally:
        _LENT.release()
