"""Many draws in blocks: small enough for memory, each block with a random stream of its own.

>>> import numpy as np
>>> job = lambda rng, count: (rng.standard_normal((count, 3)),)
>>> one, two = (in_blocks(job, np.random.default_rng(0), 10, size=4, workers=workers) for workers in (1, 2))
>>> one.shape, bool(np.all(one == two))
((10, 3), True)
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from bulkedge.support.domains import Integers

Job = Callable[[Any, int], tuple[Any, ...]]


def in_blocks(job: Job, rng: Any, draws: int, size: int, workers: int = 1) -> Any:
    """Call ``job(rng, count)`` until there are enough draws; join its arrays, or its only array, along the first axis.

    Numbers do not depend on the number of workers, which are threads: NumPy lets go of the interpreter while it draws.
    """
    Integers(1, 10**10).check("draws", draws)
    Integers(1, 1024).check("workers", workers)
    counts = [min(size, draws - start) for start in range(0, draws, size)]
    if isinstance(rng, np.random.Generator):
        with ThreadPoolExecutor(workers) as pool:
            found = list(pool.map(job, rng.spawn(len(counts)), counts))
    else:
        found = [job(rng, count) for count in counts]
    joined = tuple(array_namespace(parts[0]).concat(parts, axis=0) for parts in zip(*found, strict=True))
    return joined[0] if len(joined) == 1 else joined


def draw_last(array: Any) -> Any:
    """Move the draw from the first axis to the last."""
    return array_namespace(array).moveaxis(array, 0, -1)


def draw_first(array: Any) -> Any:
    """Move the draw from the last axis to the first."""
    return array_namespace(array).moveaxis(array, -1, 0)


def returned(scalars: Any, copies: int, draws: int) -> Any:
    """Scalars as they are returned: the draw first, and the axis of copies only if there are several."""
    whole = array_namespace(scalars).broadcast_to(scalars, (copies, *scalars.shape[1:-1], draws))
    return draw_first(whole[0] if copies == 1 else whole)
