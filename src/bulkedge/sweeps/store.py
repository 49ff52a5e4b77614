"""The results of a sweep: one Zarr store, labelled by the grid, written by one process, cell by cell.

A folder holds ``results.zarr`` and ``failures.json``. Every write replaces whole files, and a cell's ``status`` is
written after its values, so that a process killed at any moment leaves nothing half-written behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from bulkedge.errors import StoreError
from bulkedge.records import written
from bulkedge.sweeps.grid import REPETITION, Index, Sweep

PENDING, DONE, FAILED = 0, 1, 2
CELLS_PER_CHUNK = 256
"""Cells whose single numbers share a file."""
RESULTS, FAILURES, LOCK = "results.zarr", "failures.json", ".lock"

Values = dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]]
"""Variables and coordinates of a cell's dataset: dimensions, values and attributes."""


@dataclass
class Store:
    """An open store; made by :func:`opened`."""

    folder: Path
    sweep: Sweep
    group: zarr.Group
    failures: dict[str, Any]
    labels: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> NDArray[np.int8]:
        """What is known of each cell."""
        return np.asarray(self._arrays["status"][...], dtype=np.int8)

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return dict(self.group.arrays())

    def write(self, finished: Sequence[tuple[Index, Values]], failed: Sequence[tuple[Index, dict[str, Any]]]) -> None:
        """Add finished and failed cells."""
        by_name: dict[str, list[tuple[Index, NDArray[Any]]]] = {}
        for index, values in finished:
            for name, (dims, array, attributes) in values.items():
                if name in dims:
                    self._label(name, array, attributes)
                else:
                    self._prepare(name, dims, array, attributes)
                    by_name.setdefault(name, []).append((index, array))
        for name, cells in by_name.items():
            self._fill(self._arrays[name], cells)
        # what failed is on record before the status says so, and until the status says otherwise
        self._record(self.failures | {str(list(index)): record for index, record in failed})
        self._fill(self._arrays["status"], [(index, np.array(DONE)) for index, _ in finished])
        self._fill(self._arrays["status"], [(index, np.array(FAILED)) for index, _ in failed])
        mended = {str(list(index)) for index, _ in finished}
        self._record({key: record for key, record in self.failures.items() if key not in mended})

    def _record(self, failures: dict[str, Any]) -> None:
        if failures != self.failures:
            _replace(self.folder / FAILURES, written(failures, indent=1))
            self.failures = failures

    def _prepare(self, name: str, dims: tuple[str, ...], array: NDArray[Any], attributes: dict[str, Any]) -> None:
        """Make room for a variable; an inner dimension without labels may grow."""
        if set(dims) & set(self.sweep.dims) or name in (*self.sweep.dims, "status"):
            raise StoreError(f"the study has a variable or dimension of the name of an axis: {name}{dims}")
        if name not in self._arrays:
            chunks = _grid_chunks(self.sweep.shape, 1 if dims else CELLS_PER_CHUNK)
            self._arrays[name] = self.group.create_array(
                name,
                shape=(*self.sweep.shape, *array.shape),
                chunks=(*chunks, *(max(length, 1) for length in array.shape)),
                dtype="float64",
                fill_value=np.nan,
                dimension_names=[*self.sweep.dims, *dims],
                attributes=attributes,
            )
        known = self._arrays[name]
        inner = known.shape[len(self.sweep.shape) :]
        if len(inner) != array.ndim:
            raise StoreError(f"the variable {name} has {array.ndim} dimensions in one cell and {len(inner)} in another")
        if any(new > old for new, old in zip(array.shape, inner, strict=True)):
            known.resize((*self.sweep.shape, *np.maximum(inner, array.shape).tolist()))

    def _label(self, name: str, labels: NDArray[Any], attributes: dict[str, Any]) -> None:
        """Coordinates of an inner dimension: the same in all cells."""
        if name not in self.labels:
            if not (self.status == DONE).any():  # else they were written before the first cell was called done
                self._arrays[name] = _write_labels(self.group, name, labels, attributes)
            self.labels[name] = self._arrays[name][...].tolist()
        if labels.tolist() != self.labels[name]:
            raise StoreError(
                f"the dimension {name} has other labels in another cell; leave them out, or sweep another parameter"
            )

    def _fill(self, array: Any, cells: Sequence[tuple[Index, NDArray[Any]]]) -> None:
        if array.ndim == len(self.sweep.shape):
            if cells:
                places = tuple(np.array([index for index, _ in cells]).T)
                array.vindex[places] = np.array([value for _, value in cells], dtype=array.dtype)
            return
        for index, value in cells:
            array[(*index, *(slice(0, length) for length in value.shape))] = value


@contextmanager
def opened(folder: Path, sweep: Sweep) -> Iterator[Store]:
    """Open the store of a sweep for writing, or make it; only one process at a time may.

    Raises
    ------
    StoreError
        If the folder holds another sweep, is in use, or is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                f"{folder} is being written by another sweep; wait for it, or choose another folder"
            ) from None
        for draft in (folder / RESULTS).rglob("*.partial"):  # what a killed process was about to rename
            draft.unlink()
        if not (folder / RESULTS / "zarr.json").exists():
            zarr.create_group(folder / RESULTS, attributes={"sweep": sweep.manifest()}, zarr_format=3)
        group = _group(folder, "r+")
        _require_same(folder, group, sweep)
        _label_axes(group, sweep)
        yield Store(folder, sweep, group, _read_failures(folder))


def open_sweep(folder: str | Path) -> xr.Dataset:
    """The results so far, labelled, nan where a cell is not done; ``status`` is 1 for done and 2 for failed."""
    path = Path(folder)
    _group(path, "r")
    try:
        with warnings.catch_warnings():
            # a sweep that is still running has files that are not in place yet
            warnings.simplefilter("ignore", ZarrUserWarning)
            return xr.open_zarr(path / RESULTS, consolidated=False, chunks=None)
    except Exception as error:
        raise StoreError(f"{path / RESULTS} is damaged ({error}); delete it and run the sweep again") from error


def failures(folder: str | Path) -> dict[str, Any]:
    """The cells that raised, by their index: parameters, error and traceback."""
    return _read_failures(Path(folder))


def _group(folder: Path, mode: Any) -> zarr.Group:
    if not (folder / RESULTS / "zarr.json").exists():
        raise StoreError(f"{folder} holds no sweep")
    try:
        group = zarr.open_group(folder / RESULTS, mode=mode)
        if "status" in group:
            group["status"][...]  # type: ignore[index]
    except Exception as error:
        raise StoreError(f"{folder / RESULTS} is damaged ({error}); delete it and run the sweep again") from error
    return group


def _require_same(folder: Path, group: zarr.Group, sweep: Sweep) -> None:
    found, wanted = group.attrs.get("sweep"), sweep.manifest()
    if not isinstance(found, dict):
        raise StoreError(f"{folder / RESULTS} was not made by a sweep")
    differ = [
        f"{key} = {found.get(key)!r} there, {wanted[key]!r} here" for key in wanted if found.get(key) != wanted[key]
    ]
    if differ:
        raise StoreError(f"{folder} holds another sweep ({'; '.join(differ)}); choose another folder")


def _label_axes(group: zarr.Group, sweep: Sweep) -> None:
    """Labels and status."""
    for name, values in (sweep.axes | {REPETITION: tuple(range(sweep.repetitions))}).items():
        _write_labels(group, name, np.array(values), {})
    if "status" not in group:
        group.create_array(
            "status",
            shape=sweep.shape,
            chunks=_grid_chunks(sweep.shape, CELLS_PER_CHUNK),
            dtype="int8",
            fill_value=PENDING,
            dimension_names=sweep.dims,
            attributes={"long_name": "0 not done, 1 done, 2 failed"},
        )


def _write_labels(group: zarr.Group, name: str, labels: NDArray[Any], attributes: dict[str, Any]) -> Any:
    """Write labels, unless they are there; a process that was killed may have left them empty."""
    text = labels.dtype.kind in "UOT"
    array: Any = group.get(name)
    if array is None:
        array = group.create_array(
            name,
            shape=labels.shape,
            chunks=labels.shape,
            dtype="string" if text else labels.dtype,
            dimension_names=[name],
            attributes=attributes,
        )
    if array[...].tolist() != labels.tolist():
        array[...] = labels.astype(object) if text else labels
    return array


def _grid_chunks(shape: Index, cells: int) -> Index:
    """Chunks of about so many cells, along the last axes."""
    chunks: list[int] = []
    for length in reversed(shape):
        chunks.insert(0, max(1, min(length, cells)))
        cells //= chunks[0]
    return tuple(chunks)


def _read_failures(folder: Path) -> dict[str, Any]:
    path = folder / FAILURES
    try:
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise StoreError(f"{path} is damaged ({error}); delete it") from error
    return found


def _replace(path: Path, text: str) -> None:
    """Write a file in one step: it is there whole, or as it was before."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, path)  # noqa: PTH105  # the point is the name: atomic
