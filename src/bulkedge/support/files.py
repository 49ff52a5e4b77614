"""Results on the disk, whole or not there: every writer of the package goes through here.

A file or folder is drafted under a name of its own in the same folder and renamed when it is complete and on the disk.
What is read back has a checksum, and a result that is not what was written is refused. Results for other programs are
JSON, which has no numbers that are not finite: they are null, or, where they have to come back, text for ``float``:

>>> to_json({"edge": float("inf"), "support": ((0.0, 1.5),)})
'{"edge": null, "support": [[0.0, 1.5]]}'
>>> to_json({"edge": float("inf")}, exact=True)
'{"edge": "inf"}'
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bulkedge.support.errors import StoreError

DRAFT = ".bulkedge-draft"  # how the names of folders end that are still being written
CHECKSUM = "bulkedge_checksum"
PATIENCE = 5.0  # seconds in which a call that was interrupted, whose threads still write, has let go of a folder


def to_json(value: Any, indent: int | None = None, *, exact: bool = False) -> str:
    """Write a value as JSON."""
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
    """Names and values as an HTML table, for notebooks; everything is escaped.

    >>> html_table({"edge": 4.0}, "MP")
    '<table><caption>MP</caption><tr><th>edge</th><td>4.0</td></tr></table>'
    """
    head = f"<caption>{escape(title)}</caption>" if title else ""
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table>{head}{body}</table>"


def page_templates(package: str) -> Any:
    """The templates of pages of a package, with those that all pages share behind them."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("bulkedge")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


# -- files and folders -------------------------------------------------------------------------------------------------


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file in one step: whoever reads it, and whatever ends the process, it is the old one or the new."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with draft.open("xb") as file:  # "x" makes a new file, and follows no symbolic link
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)  # noqa: PTH105  # the point is the name: atomic


def remove_folder(folder: Path) -> None:
    """Remove a folder and all that is in it."""
    # Zarr writes on threads: after a Ctrl-C in a notebook they finish the files they had begun, and these come and go
    # while the next call tidies up.
    last = time.monotonic() + PATIENCE
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            moved = isinstance(error, FileNotFoundError) or error.errno == errno.ENOTEMPTY
            if not moved or time.monotonic() > last:
                raise
            time.sleep(0.01)


def make_draft(folder: Path) -> Path:
    """An empty folder beside the one that it is to become."""
    draft = folder.with_name(f".{folder.name}{DRAFT}")
    remove_folder(draft)
    draft.mkdir(parents=True)
    return draft


def seal(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Write the JSON record of a folder with the checksum of record and files: the last step of a draft."""
    for path in _files_of(folder, name, record):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    # Zarr allows what it does not know among the attributes alone
    record.get("attributes", record)[CHECKSUM] = _checksum(folder, name, record)
    replace_file(folder / name, json.dumps(record, indent=1, allow_nan=False))


def unseal(folder: Path, name: str) -> dict[str, Any]:
    """The record of a folder, if record and files are what :func:`seal` saw; a StoreError says what is wrong."""
    if not os.path.isfile(folder / name):  # noqa: PTH113 - which never raises; a pipe would be waited for
        raise StoreError(f"{name} is missing")
    try:
        record: dict[str, Any] = json.loads((folder / name).read_bytes())
        checksum = record.get("attributes", record).pop(CHECKSUM)
        intact = checksum == _checksum(folder, name, record)
    except KeyError as error:
        raise StoreError(f"{name} has no checksum: it is damaged, or from an older version") from error
    except (TypeError, ValueError, AttributeError, OSError, RecursionError) as error:
        raise StoreError(f"{name} is not readable: {type(error).__name__}: {error}") from error
    if not intact:
        raise StoreError("its files are not those that were written")
    return record


def _files_of(folder: Path, name: str, record: dict[str, Any]) -> list[Path]:
    """The files that a checksum covers; hidden ones are those of file managers."""
    parts = [folder / each for each in record.get("files", ())] or [folder]
    inside = [path for part in parts for path in (part.rglob("*") if part.is_dir() else [part])]
    found = sorted(each for each in inside if not each.is_dir() and each.name[0] != "." and each != folder / name)
    if odd := next((each.name for each in found if not each.is_file()), ""):
        raise StoreError(f"{odd} is missing, or a pipe")
    return found


def _checksum(folder: Path, name: str, record: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for path in _files_of(folder, name, record):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()


# -- datasets ----------------------------------------------------------------------------------------------------------


def write_zarr(data: Any, folder: Path) -> None:
    """Write an xarray.Dataset as a Zarr store."""
    # texts of any length are in the specification of Zarr, those of fixed length are not
    texts = {name: each.astype(object) for name, each in data.variables.items() if each.dtype.kind == "U"}
    data.assign(texts).to_zarr(folder, mode="w", zarr_format=3, consolidated=False)


def save_dataset(data: Any, path: Path) -> None:
    """Write an xarray.Dataset as a sealed Zarr store in one step, at a path where nothing is."""
    if path.exists():
        raise StoreError(f"{path} is there already; choose another name, or remove it")
    draft = make_draft(path)
    try:
        write_zarr(data, draft)
        seal(draft, "zarr.json", json.loads((draft / "zarr.json").read_bytes()))
        draft.rename(path)
    except BaseException:
        remove_folder(draft)
        raise


def load_dataset(path: str | Path, what: str) -> Any:
    """The xarray.Dataset that :func:`save_dataset` wrote; a StoreError says that it is not ``what``, and the remedy."""
    import xarray as xr

    try:
        unseal(Path(path), "zarr.json")
        data = xr.open_zarr(path, consolidated=False, chunks=None).load()
    except (StoreError, OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is not {what} ({error}); save it again, or put it back from a copy") from None
    del data.attrs[CHECKSUM]
    texts = [name for name, each in data.variables.items() if each.dtype.kind in "TO"]
    return data.assign({name: data[name].copy(data=np.array(data[name].to_numpy().tolist())) for name in texts})


# -- one writer at a time ----------------------------------------------------------------------------------------------


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make a folder, if it is not there, and keep other processes that ask for the same lock out of it."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    if path.is_symlink():  # filelock refuses it too, where the system can; this says why
        raise StoreError(f"{path} is a symbolic link; remove it, or choose another folder")
    try:
        lock = FileLock(path).acquire(timeout=0)
    except Timeout:
        raise StoreError(f"{folder} is being written by another process; wait for it, or choose another") from None
    with lock:
        yield
