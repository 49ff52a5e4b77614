"""Files that are never half-written, and folders that one process writes at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bulkedge.errors import StoreError

LOCK = ".lock"


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step: whoever reads it, and whatever ends the process, it is the old one or the new."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105  # the point is the name: atomic


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder, if it is not there, and keep other processes that ask for the same lock out of it.

    Parameters
    ----------
    folder : Path
        The folder; the lock is a file in it, and is released when the process ends, however it ends.

    Raises
    ------
    StoreError
        If another process holds the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(f"{folder} is being written by another process; wait for it, or choose another") from None
        yield
