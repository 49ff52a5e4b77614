"""The results of a sweep, read: verified, labelled, and with no number of a cell that is not done.

To verify a store, every cell that is done is read and compared with its checksum. That is taken of who a cell is and of
the numbers that are *read* in its place, so that it notices a flipped bit, a file that is gone (which reads as nan) and
a file of another cell or sweep. Arrays of cells share one shape, the rest of which is nan; the checksum is therefore
that of the smallest block, from the origin on, that holds every number, and stays the same when the shape grows.

>>> small, large = np.array([1.0, 2.0]), np.array([1.0, 2.0, np.nan, np.nan])
>>> cell_checksum(b"who", {"x": (("k",), small)}) == cell_checksum(b"who", {"x": (("k",), large)})
True
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from bulkedge.lab.sweeps.grid import FORMAT, REPETITION, CellIndex
from bulkedge.support.errors import StoreError

RESULTS, FAILURES, MANIFEST = "results.zarr", "failures.json", "zarr.json"
NO_CHECKSUM = 0  # what stands where no cell was written yet
LOOKS, LOOK_SECONDS = 3, 0.2  # a running sweep may move files while they are read: what looks damaged is read again
PENDING, DONE, FAILED = 0, 1, 2
RECORDS = ("status", "checksum")  # arrays that say what is known of each cell
CHECKED_BY = "bulkedge_checksum"  # the attribute that has the checksum of an array's dimensions, attributes and labels
BLOCK = 2**22  # numbers that are read at a time
# what Zarr, whose own errors are ValueErrors, and its codecs raise on files that are not what they wrote; errors of the
# system are not among them
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError)
CellVariables = dict[str, tuple[tuple[str, ...], NDArray[Any]]]


@dataclass(frozen=True)
class Audit:
    """What was found: cells that are not what was written, cells that have numbers and are not done, and labels."""

    damaged: tuple[CellIndex, ...]
    unfinished: tuple[CellIndex, ...]
    labels: dict[str, list[Any]]


def open_sweep(folder: str | Path, *, verify: bool = True) -> xr.Dataset:
    """The results so far, labelled, nan where a cell is not done; ``status`` is 1 for done and 2 for failed.

    Parameters
    ----------
    folder : path
        The folder of the sweep.
    verify : bool
        Whether to read everything once and compare it with the checksums. Without it, opening is quick and damage
        goes unnoticed.

    Returns
    -------
    xarray.Dataset
        The axes of the grid and ``repetition`` are its first dimensions.

    Raises
    ------
    StoreError
        If there is no sweep, or it cannot be read, or cells do not match their checksums.

    Examples
    --------
    >>> open_sweep("out/sweep")                                        # doctest: +SKIP
    """
    path = Path(folder)
    for _ in range(LOOKS - 1):
        if (path / RESULTS).exists():
            with suppress(StoreError, FileNotFoundError):
                return _open_dataset(path, verify=verify)
            time.sleep(LOOK_SECONDS)
    return _open_dataset(path, verify=verify)


def failures(folder: str | Path) -> dict[str, Any]:
    """The cells that raised, by their index: parameters, error and traceback.

    Parameters
    ----------
    folder : path
        The folder of the sweep.

    Returns
    -------
    dict of str to dict
        Keys are indices as JSON lists: ``"[0, 2, 1]"``.

    Raises
    ------
    StoreError
        If the record of failures cannot be read.

    Examples
    --------
    >>> failures("out/sweep")                                          # doctest: +SKIP
    """
    path = Path(folder) / FAILURES
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise StoreError(f"{path} is damaged ({found}); delete it: the cells that failed are then run again")
    return found


def _open_dataset(path: Path, *, verify: bool) -> xr.Dataset:
    group = read_group(path, "r")
    with unreadable(path), warnings.catch_warnings():
        # a sweep that is still running has files that are not in place yet
        warnings.simplefilter("ignore", ZarrUserWarning)
        if dict(group.attrs["sweep"]).get("format") != FORMAT:  # type: ignore[arg-type]
            raise StoreError(f"{path} was not written by this version of bulkedge, which reads format {FORMAT}")
        audit = audit_store(path, group, failures(path)) if verify else Audit((), (), {})
        # what is stored are plain numbers: units such as "days" are not to make dates of them
        data = xr.open_zarr(path / RESULTS, consolidated=False, chunks=None, decode_cf=False)
        data = data.drop_vars("checksum")
    if audit.damaged:
        raise StoreError(
            f"{path / RESULTS} is damaged: {_cell_names(data, audit.damaged)} not what was written. "
            "The command that made the sweep, run again, computes these cells anew"
        )
    if verify:  # labels of which no cell that is done can say whether they are whole
        inner = {name for name in data.coords if name not in data["status"].dims}
        data = data.drop_vars(inner - audit.labels.keys())
    for variable in data.variables.values():
        variable.attrs.pop(CHECKED_BY, None)
    return _mask_unfinished(data) if audit.unfinished else data


def _mask_unfinished(data: xr.Dataset) -> xr.Dataset:
    """Without the numbers that a killed process left in cells that it did not finish."""
    done = data["status"].values == DONE
    for name in [name for name in data.data_vars if name != "status"]:
        values = np.full(data[name].shape, np.nan)
        for index in map(tuple, np.argwhere(done)):  # what is left of the others may not even be readable
            values[index] = data[name][index].values
        data = data.assign({name: data[name].copy(data=values)})
    return data


def _cell_names(data: xr.Dataset, cells: tuple[tuple[int, ...], ...]) -> str:
    """A few cells, by their coordinates."""
    dims = data["status"].dims
    places = ((f"{dim}={data[dim].values[k]}" for dim, k in zip(dims, index, strict=True)) for index in cells[:3])
    shown = [f"({', '.join(place)})" for place in places]
    more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
    return f"{', '.join(shown)}{more} {'is' if len(cells) == 1 else 'are'}"


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """Files that cannot be understood are a StoreError; errors of the system stay what they are."""
    try:
        yield
    except StoreError:
        raise
    except UNREADABLE as error:
        raise StoreError(
            f"{folder / RESULTS} cannot be read ({type(error).__name__}: {error}): it is damaged, or was written by "
            "other versions of bulkedge or Zarr. No result was changed; put it back from a copy, or choose another "
            "folder"
        ) from error


def read_group(folder: Path, mode: Any) -> zarr.Group:
    """Open the Zarr group that holds the results of a sweep."""
    if not (folder / RESULTS / MANIFEST).exists():
        raise StoreError(f"{folder} holds no sweep")
    with unreadable(folder):
        return zarr.open_group(folder / RESULTS, mode=mode)


def arrays_of(folder: Path, group: zarr.Group) -> dict[str, Any]:
    """All arrays, by name; a folder without description is none, or none yet."""
    names = sorted(path.parent.name for path in (folder / RESULTS).glob(f"*/{MANIFEST}"))
    return {name: _array(group[name]) for name in names}


def _array(node: Any) -> Any:
    if not isinstance(node, zarr.Array):
        raise TypeError(f"{node.path} is not an array")
    return node


def audit_store(folder: Path, group: zarr.Group, failures: Mapping[str, Any], *, complete: bool = True) -> Audit:
    """Compare a store with its manifest and its checksums; nothing is written."""
    manifest: Any = group.attrs["sweep"]
    axes = dict(manifest["axes"]) | {REPETITION: list(range(manifest["repetitions"]))}
    shape = tuple(len(values) for values in axes.values())
    # where no cell was written: PENDING and NO_CHECKSUM are zero
    nothing = np.zeros(shape, dtype=np.uint64), np.zeros(shape, dtype=bool)
    # status before checksums before values: the reverse of the order in which a running sweep writes them
    (status, unread_status), (checksums, unread) = (
        _record(_array(group[name]), shape) if complete or name in group else nothing for name in RECORDS
    )
    arrays = arrays_of(folder, group)
    if complete and (missing := sorted(axes.keys() - arrays.keys())):
        raise LookupError(f"the labels of {', '.join(missing)} are gone")
    done = bool((status == DONE).any())
    for name in arrays if complete else arrays.keys() - axes.keys():
        _require_described(folder, name, arrays, axes, done=done)
    labels = {name: labels_in(each) for name, each in arrays.items() if is_labels(name, each) and name not in axes}
    variables = {name: each for name, each in arrays.items() if name not in (*axes, *labels, *RECORDS)}
    lost = (status == FAILED) & ~_on_record(failures, shape)
    damaged = lost | unread_status | ~np.isin(status, (PENDING, DONE, FAILED)) | (unread & (status == DONE))
    unfinished, who = unread & (status != DONE), identity(manifest)
    for index, values in _cells(variables, shape, status == DONE):
        if status[index] != DONE:
            unfinished[index] = True
        elif values is None or cell_checksum(cell_identity(who, index), values, labels) != int(checksums[index]):
            damaged[index] = True
    return Audit(_places(damaged), _places(unfinished & ~damaged), labels if done else {})


def _places(mask: NDArray[np.bool_]) -> tuple[CellIndex, ...]:
    return tuple(tuple(map(int, index)) for index in np.argwhere(mask))


def _record(array: Any, shape: CellIndex) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Status or checksums, and which of them cannot be read."""
    if array.shape != shape:
        raise ValueError(f"{array.path} has shape {array.shape}; the grid has {shape}")
    unread = np.zeros(shape, dtype=bool)
    try:
        return np.asarray(array[...]), unread
    except UNREADABLE:
        found = np.zeros(shape, dtype=array.dtype)
    for index in np.ndindex(*shape):
        try:
            found[index] = array[index]
        except UNREADABLE:
            unread[index] = True
    return found, unread


def _on_record(failures: Mapping[str, Any], shape: CellIndex) -> NDArray[np.bool_]:
    there = np.zeros(shape, dtype=bool)
    for index in np.ndindex(*shape) if failures else ():
        there[index] = str(list(index)) in failures
    return there


def is_labels(name: str, array: Any) -> bool:
    """Whether an array has the coordinates of a dimension."""
    return tuple(array.metadata.dimension_names or ()) == (name,)


def labels_in(array: Any) -> list[Any]:
    """The labels that an array holds."""
    try:
        found: list[Any] = array[...].tolist()
    except MemoryError as error:
        raise ValueError(f"the labels in {array.path} cannot be decoded") from error
    return found


def _require_described(
    folder: Path, name: str, arrays: dict[str, Any], axes: dict[str, list[Any]], *, done: bool
) -> None:
    """The dimensions, attributes and labels of an array are those with which it was written."""
    array = arrays[name]
    attributes = dict(array.attrs)
    signature = attributes.pop(CHECKED_BY, None)
    dims = tuple(array.metadata.dimension_names or ())
    if name in axes:
        right = is_labels(name, array) and labels_in(array) == axes[name] and not attributes
    elif is_labels(name, array):
        # labels without a cell that is done may be those of a process that was killed before it wrote them
        right = not done or signature == description_checksum(name, str(labels_in(array)), dims, attributes)
    else:
        right = signature == description_checksum(name, array.dtype.str, dims, attributes)
        lengths = {dim: len(values) for dim, values in axes.items()}
        lengths |= {dim: arrays[dim].size for dim in dims if done and dim in arrays and dim not in axes}
        right = (
            right
            and dims[: len(axes)] == tuple(axes)
            and all(length > 0 for length in array.chunks)
            and all(lengths[dim] == size for dim, size in zip(dims, array.shape, strict=True) if dim in lengths)
        )
    if not right:
        raise StoreError(
            f"{folder / RESULTS / name} is damaged: its dimensions, labels or attributes are not those that were "
            "written. No result was changed; put it back from a copy, or choose another folder"
        )


def _cells(
    variables: dict[str, Any], shape: CellIndex, done: NDArray[np.bool_]
) -> Iterator[tuple[CellIndex, CellVariables | None]]:
    """The cells that are done or have numbers, block by block; None for what cannot be read."""
    inner = {name: tuple(array.metadata.dimension_names[len(shape) :]) for name, array in variables.items()}
    size = sum(prod(array.shape[len(shape) :]) for array in variables.values()) or 1
    depth = next((k for k in range(len(shape)) if size * prod(shape[k:]) <= BLOCK), len(shape))
    for prefix in product(*map(range, shape[:depth])):
        block = _read(variables, prefix)
        wanted = done[prefix] if block is None else done[prefix] | _cells_with_numbers(block, shape[depth:])
        for rest in np.ndindex(*shape[depth:]):
            if block is None:
                values = _read(variables, (*prefix, *rest))
                if values is not None and not (wanted[rest] or _cells_with_numbers(values, ())):
                    continue
            elif wanted[rest]:
                values = {name: each[rest] for name, each in block.items()}
            else:
                continue
            cell = None if values is None else {name: (inner[name], each) for name, each in values.items()}
            yield (*prefix, *rest), cell


def _cells_with_numbers(block: dict[str, NDArray[Any]], shape: CellIndex) -> NDArray[np.bool_]:
    """Which cells of a block have any number."""
    found = np.zeros(shape, dtype=bool)
    for array in block.values():
        found |= (~np.isnan(array)).any(axis=tuple(range(len(shape), array.ndim)))
    return found


def _read(variables: dict[str, Any], place: CellIndex) -> dict[str, NDArray[Any]] | None:
    try:
        return {name: np.asarray(array[place], dtype=float) for name, array in variables.items()}
    except UNREADABLE:
        return None


# -- checksums ---------------------------------------------------------------------------------------------------------


def identity(manifest: Mapping[str, Any]) -> bytes:
    """What distinguishes a sweep from all others, as bytes."""
    return hashlib.sha256(_text(manifest)).digest()


def cell_identity(sweep: bytes, index: Iterable[int]) -> bytes:
    """What distinguishes a cell of that sweep from all others."""
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
    """The checksum of what stands beside the numbers of an array: its name, their kind, dimensions and attributes."""
    return hashlib.blake2b(_text([name, kind, list(dims), dict(attributes)]), digest_size=8).hexdigest()


def _filled_block(array: NDArray[Any]) -> NDArray[Any]:
    """The smallest block from the origin on that holds all that is not nan; a single number that is nan is no block."""
    there = ~np.isnan(array)
    if not there.any():
        return array.reshape(-1)[:0]
    axes = range(array.ndim)
    along = (there.any(axis=tuple(other for other in axes if other != axis)) for axis in axes)
    return array[tuple(slice(int(np.nonzero(each)[0].max()) + 1) for each in along)]


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
