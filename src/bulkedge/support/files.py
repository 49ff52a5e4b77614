"""Files that are never half-written, and folders that one process writes at a time."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bulkedge.support.errors import StoreError

LOCK = ".lock"
PATIENCE = 5.0
"""Seconds in which a call that was interrupted, whose threads still write, has let go of a folder."""


def replace_text(path: Path, text: str) -> None:
    """Write a text file in one step: whoever reads it, and whatever ends the process, it is the old one or the new."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with draft.open("x", encoding="utf-8") as file:  # "x" makes a new file, and follows no symbolic link
        file.write(text)
    os.replace(draft, path)  # noqa: PTH105  # the point is the name: atomic


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it.

    Zarr writes on threads: after a Ctrl-C in a notebook they finish the files they had begun, and these come and go
    while the next call tidies up.
    """
    last = time.monotonic() + PATIENCE
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            moved = isinstance(error, FileNotFoundError) or error.errno == errno.ENOTEMPTY
            if not moved or time.monotonic() > last:
                raise
            time.sleep(0.01)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder, if it is not there, and keep other processes that ask for the same lock out of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    if path.is_symlink():  # filelock refuses it too, where the system can; this says why
        raise StoreError(f"{path} is a symbolic link; remove it, or choose another folder")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(f"{folder} is being written by another process; wait for it, or choose another") from None
    try:
        yield
    finally:
        lock.release()
