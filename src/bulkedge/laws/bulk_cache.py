"""Bulks that were resolved before: equal laws of a process share theirs."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from bulkedge.laws.engine.measure.continuum import Continuum

if TYPE_CHECKING:
    from bulkedge.laws.law import Law

REMEMBERED = 256
"""Resolved laws that a process keeps; the one used longest ago goes first."""


class Resolutions:
    """Resolved bulks by law; bounded in number, and safe to use from threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[Law, Continuum | None] = OrderedDict()
        self._lock = Lock()

    def get(self, law: Law) -> Continuum | None:
        """The bulk of a law, resolved now if that of no equal law is known."""
        with self._lock:
            if law in self._known:
                self._known.move_to_end(law)
                return self._known[law]
        found = law._resolve()
        with self._lock:
            self._known[law] = found
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found

    def forget(self) -> None:
        """Forget all of them, for measurements of what they cost; laws that exist keep theirs."""
        with self._lock:
            self._known.clear()


RESOLVED = Resolutions()
"""Those of this process."""
