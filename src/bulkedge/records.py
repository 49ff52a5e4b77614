"""Files that other programs can read and that are never half-written: JSON, replaced in one step, by one process.

JSON has no numbers that are not finite. They are null, or, where they have to come back, the text that ``float`` reads:

>>> written({"edge": float("inf"), "support": ((0.0, 1.5),)})
'{"edge": null, "support": [[0.0, 1.5]]}'
>>> written({"edge": float("inf")}, exact=True)
'{"edge": "inf"}'
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from bulkedge.errors import StoreError

LOCK = ".lock"


def written(value: Any, indent: int | None = None, *, exact: bool = False) -> str:
    """Write a value as JSON.

    Parameters
    ----------
    value : Any
        Dictionaries, lists and tuples of texts and numbers; of anything else, its ``str``.
    indent : int, optional
        Spaces a level; everything on one line by default.
    exact : bool
        Whether numbers that are not finite become the texts "nan", "inf" and "-inf" instead of null.

    Returns
    -------
    str
        The JSON text.
    """
    return json.dumps(_finite(value, exact=exact), indent=indent, allow_nan=False, default=str)


def _finite(value: Any, *, exact: bool) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each, exact=exact) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each, exact=exact) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value)) if exact else None
    return value


def html_table(rows: dict[str, Any], title: str = "") -> str:
    """Names and values as an HTML table, for notebooks; everything is escaped."""
    head = f"<caption>{escape(title)}</caption>" if title else ""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{head}{body}</table>"


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
