"""One thread for BLAS, OpenMP and torch: sums are rounded the same way on every machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread(packages: Sequence[str] = ()) -> Iterator[None]:
    """Let BLAS, OpenMP and torch compute with one thread, whose rounding does not depend on the machine's cores.

    Parameters
    ----------
    packages : sequence of str
        Packages that will be used inside; they are imported first, as libraries that are loaded later are not limited.

    Yields
    ------
    None
        Inside the ``with``, for this process; afterwards there are as many threads as before.
    """
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
