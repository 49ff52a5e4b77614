"""Files of a sweep's folder: arrays that are replaced as a whole, drafts of a killed process, and checksums of cells.

A checksum is taken of who a cell is and of the numbers that are *read* in its place, so that it notices a flipped bit,
a file that is gone (which reads as nan) and a file of another cell or sweep. Arrays of cells share one shape, the rest
of which is nan; the checksum is therefore that of the smallest block, from the origin on, that holds every number, and
stays the same when the shape grows.

>>> small, large = np.array([1.0, 2.0]), np.array([1.0, 2.0, np.nan, np.nan])
>>> cell_checksum(b"who", {"x": (("k",), small)}) == cell_checksum(b"who", {"x": (("k",), large)})
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bulkedge.support.errors import StoreError
from bulkedge.support.files import remove_folder

RESULTS, FAILURES, DRAFTS = "results.zarr", "failures.json", "drafts"
MANIFEST = "zarr.json"
NEW, OLD = ".new", ".old"
NO_CHECKSUM = 0
"""What stands where no cell was written yet."""


def clear_drafts(folder: Path) -> None:
    """Finish or undo what a killed process was about to rename."""
    for partial in (folder / RESULTS).rglob("*.partial"):
        partial.unlink()
    _finish_replacements(folder)


def _finish_replacements(folder: Path) -> None:
    results, drafts = folder / RESULTS, folder / DRAFTS
    if drafts.is_symlink():
        drafts.unlink()
    if drafts.is_dir():
        for old in drafts.glob(f"*{OLD}"):
            name = old.name.removesuffix(OLD)
            new = drafts / f"{name}{NEW}"
            if not (results / name).exists():  # the old one is moved away only when the new one is complete
                (new if new.exists() else old).rename(results / name)
        remove_folder(drafts)


@contextmanager
def replacement(folder: Path, name: str) -> Iterator[Path]:
    """A path at which to build the successor of an array; it takes the array's place when all is well."""
    _finish_replacements(folder)
    drafts = folder / DRAFTS
    drafts.mkdir()
    new, old, place = drafts / f"{name}{NEW}", drafts / f"{name}{OLD}", folder / RESULTS / name
    yield new
    place.rename(old)
    new.rename(place)
    remove_folder(drafts)


def require_manifest(folder: Path) -> bool:
    """Whether the folder has a store; one that lost its manifest is refused: nobody knows whose numbers it holds."""
    results = folder / RESULTS
    if (results / MANIFEST).exists():
        return True
    if results.exists() and any(path.is_file() for path in results.rglob("*")):
        raise StoreError(
            f"{results} has lost its {MANIFEST}, which says what sweep its numbers belong to; "
            "put it back from a copy, or choose another folder"
        )
    return False


def identity(manifest: Mapping[str, Any]) -> bytes:
    """What tells a sweep from all others, as bytes."""
    return hashlib.sha256(_text(manifest)).digest()


def cell_identity(sweep: bytes, index: Iterable[int]) -> bytes:
    """What tells a cell of that sweep from all others."""
    return sweep + repr(tuple(int(k) for k in index)).encode()


def cell_checksum(
    who: bytes, variables: Mapping[str, tuple[tuple[str, ...], NDArray[Any]]], labelled: Collection[str] = ()
) -> int:
    """The checksum of a cell, between 1 and 2**64 - 1."""
    digest = hashlib.blake2b(who, digest_size=8)
    for name in sorted(variables):
        dims, array = variables[name]
        block = _filled_block(np.asarray(array, dtype="<f8"))
        if block.size:
            digest.update(f"{name}{dims}{[dim in labelled for dim in dims]}{block.shape}".encode())
            digest.update(np.where(np.isnan(block), np.nan, block).astype("<f8").tobytes())
    return int.from_bytes(digest.digest(), "little") or 1


def description_checksum(name: str, kind: str, dims: Iterable[str], attributes: Mapping[str, Any]) -> str:
    """The checksum of what stands beside the numbers of an array: its name, their kind, dimensions and attributes.

    For labels, which are a description themselves, the kind is the labels.
    """
    return hashlib.blake2b(_text([name, kind, list(dims), dict(attributes)]), digest_size=8).hexdigest()


def _filled_block(array: NDArray[Any]) -> NDArray[Any]:
    """The smallest block from the origin on that holds all that is not nan; a single number that is nan is no block."""
    there = ~np.isnan(array)
    if not there.any():
        return array.reshape(-1)[:0]
    lengths = (int(np.nonzero(where)[0].max()) + 1 for where in _projections(there))
    return array[tuple(slice(length) for length in lengths)]


def _projections(there: NDArray[np.bool_]) -> Iterable[NDArray[np.bool_]]:
    axes = range(there.ndim)
    return (np.asarray(there.any(axis=tuple(other for other in axes if other != axis))) for axis in axes)


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
