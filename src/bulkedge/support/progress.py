"""Progress of long work, reported to whoever listens: the library counts, the command line draws the bar.

>>> with listen(lambda event: print(event.label, event.done, event.total)):
...     for _ in track(range(2), "draws"):
...         pass
draws 0 2
draws 1 2
draws 2 2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """So many steps done, of so many."""

    label: str
    done: int
    total: int


ProgressListener = Callable[[Progress], None]
_listener: ContextVar[ProgressListener | None] = ContextVar("listener", default=None)


@contextmanager
def listen(listener: ProgressListener) -> Iterator[None]:
    """Send the progress of everything inside to the listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(label: str, done: int, total: int) -> None:
    """Report progress, if anyone listens."""
    listener = _listener.get()
    if listener is not None:
        listener(Progress(label, done, total))


def track(items: Sequence[T], label: str) -> Iterator[T]:
    """Iterate over the items, reporting each that is done."""
    tell(label, 0, len(items))
    for done, item in enumerate(items, start=1):
        yield item
        tell(label, done, len(items))
