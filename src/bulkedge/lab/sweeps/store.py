"""The results of a sweep: one Zarr store, labelled by the grid, written by one process, cell by cell.

A folder holds ``results.zarr`` and ``failures.json``. Every write replaces whole files: first a cell's values, then its
``checksum``, then its ``status``, so that a process killed at any moment leaves nothing half-written behind that is
called done. The files are the same in whatever order the cells arrive: the lengths of chunks follow from the largest
cell, and an array keeps the attributes on which all of its cells agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bulkedge.lab.sweeps.files import (
    FAILURES,
    NO_CHECKSUM,
    RESULTS,
    cell_checksum,
    cell_identity,
    clear_drafts,
    description_checksum,
    identity,
    replacement,
    require_manifest,
)
from bulkedge.lab.sweeps.grid import FORMAT, REPETITION, CellIndex, Sweep
from bulkedge.lab.sweeps.read import (
    CHECKED_BY,
    DONE,
    FAILED,
    PENDING,
    RECORDS,
    UNREADABLE,
    arrays_of,
    audit_store,
    failures,
    is_labels,
    labels_in,
    read_group,
    unreadable,
)
from bulkedge.support.errors import StoreError
from bulkedge.support.files import lock_folder, replace_text
from bulkedge.support.records import to_json

FLOATS = "<f8"
"""Every number of a cell is a float, so that nan can say "not there"."""
CELLS_PER_CHUNK = 256
"""Cells whose single numbers share a file."""
LARGEST_CHUNK = 2**22
"""Numbers of one cell's array that share a file: 32 MB before compression."""
STORABLE = re.compile(r'(?!\.|__|zarr\.json$)[^/\\:*?"<>|\x00-\x1f]+(?<![. ])')
"""Names that are files everywhere, and that Zarr does not keep for itself."""

Values = dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]]
"""Variables and coordinates of a cell's dataset: dimensions, values and attributes."""


@dataclass
class Store:
    """An open store; made by :func:`opened`.

    ``sweep`` has the axes in the order of the store, and ``damaged`` the cells whose numbers did not match their
    checksum when the store was opened: they count as not done.
    """

    folder: Path
    sweep: Sweep
    group: zarr.Group
    failures: dict[str, Any]
    damaged: tuple[CellIndex, ...] = ()
    labels: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def status(self) -> NDArray[np.int8]:
        """What is known of each cell."""
        return np.asarray(self._arrays["status"][...], dtype=np.int8)

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return arrays_of(self.folder, self.group)

    @cached_property
    def _who(self) -> bytes:
        return identity(self.sweep.manifest())

    def admit(self, values: Values) -> None:
        """Make room in the store for the variables of a cell."""
        for name, (dims, array, _) in values.items():
            self._require_name(name, dims)
            if name in dims:
                self._require_labels(name, array)
            else:
                self._require_dims(name, dims, values)
        for name, (dims, array, attributes) in values.items():
            if name in dims:
                self._label(name, array, attributes)
            else:
                self._prepare(name, dims, array, attributes)

    def write(
        self, finished: Sequence[tuple[CellIndex, Values]], failed: Sequence[tuple[CellIndex, dict[str, Any]]]
    ) -> None:
        """Add finished cells, which were admitted, and failed ones."""
        by_name: dict[str, list[tuple[CellIndex, NDArray[Any]]]] = {}
        for index, values in finished:
            for name, (dims, array, _) in values.items():
                if name not in dims:
                    by_name.setdefault(name, []).append((index, array))
        for name, cells in by_name.items():
            self._fill(self._arrays[name], cells)
        self._fill(self._arrays["checksum"], [(index, self._checksum(index, values)) for index, values in finished])
        # what failed is on record before the status says so, and until the status says otherwise
        self._record(self.failures | {str(list(index)): record for index, record in failed})
        self._fill(self._arrays["status"], [(index, np.array(DONE)) for index, _ in finished])
        self._fill(self._arrays["status"], [(index, np.array(FAILED)) for index, _ in failed])
        mended = {str(list(index)) for index, _ in finished}
        self._record({key: record for key, record in self.failures.items() if key not in mended})

    def _checksum(self, index: CellIndex, values: Values) -> NDArray[Any]:
        variables = {name: (dims, array) for name, (dims, array, _) in values.items() if name not in dims}
        return np.array(cell_checksum(cell_identity(self._who, index), variables, self.labels), dtype=np.uint64)

    def _record(self, failed: dict[str, Any]) -> None:
        if failed != self.failures:
            replace_text(self.folder / FAILURES, to_json(failed, indent=1))
            self.failures = failed

    # -- does a cell fit beside the others? ----------------------------------------------------------------------------

    def _require_name(self, name: str, dims: tuple[str, ...]) -> None:
        if set(dims) & set(self.sweep.dims) or name in (*self.sweep.dims, *RECORDS):
            raise StoreError(f"the study has a variable or dimension of the name of an axis or record: {name}{dims}")
        if not STORABLE.fullmatch(name):
            raise StoreError(f"the variable {name!r} cannot be the name of a file; give it another")

    def _require_labels(self, name: str, labels: NDArray[Any]) -> None:
        if labels.tolist() != self.labels.get(name, labels.tolist()):
            raise StoreError(
                f"the dimension {name} has other labels in another cell; leave them out, or sweep another parameter"
            )

    def _require_dims(self, name: str, dims: tuple[str, ...], values: Values) -> None:
        known = self._arrays.get(name)
        if known is not None:
            inner = tuple(known.metadata.dimension_names[len(self.sweep.dims) :])
            if len(inner) != len(dims):
                raise StoreError(f"the variable {name} has {len(dims)} dimensions here, and {len(inner)} elsewhere")
            if inner != dims:
                raise StoreError(f"the variable {name} has the dimensions {dims} here, and {inner} elsewhere")
        for dim in dims:
            if dim in self.labels and dim not in values:
                raise StoreError(f"the dimension {dim} has no labels here, and some in another cell")
            if dim in values and dim not in self.labels and known is not None:
                raise StoreError(f"the dimension {dim} has labels here, and none in another cell")

    # -- room for what it has ------------------------------------------------------------------------------------------

    def _prepare(self, name: str, dims: tuple[str, ...], array: NDArray[Any], attributes: dict[str, Any]) -> None:
        """Make room for a variable; an inner dimension without labels may grow, and takes its chunks with it."""
        if name not in self._arrays:
            self._arrays[name] = self._create(self.folder / RESULTS / name, name, dims, array.shape, attributes)
            return
        known = self._arrays[name]
        self._agree(name, FLOATS, attributes)
        cells = len(self.sweep.shape)
        inner = tuple(np.maximum(known.shape[cells:], array.shape).tolist())
        if inner == known.shape[cells:]:
            return
        if _inner_chunks(inner) == known.chunks[cells:]:
            known.resize((*self.sweep.shape, *inner))
            return
        with replacement(self.folder, name) as path:
            larger = self._create(path, name, dims, inner, _plain(known.attrs))
            for index in zip(*np.nonzero(self.status == DONE), strict=True):
                self._fill(larger, [(index, np.asarray(known[index]))])
        self._arrays[name] = self.group[name]

    def _create(
        self, path: Path, name: str, dims: tuple[str, ...], inner: CellIndex, attributes: dict[str, Any]
    ) -> Any:
        names = (*self.sweep.dims, *dims)
        return zarr.create_array(
            path,
            shape=(*self.sweep.shape, *inner),
            chunks=(*_grid_chunks(self.sweep.shape, 1 if dims else CELLS_PER_CHUNK), *_inner_chunks(inner)),
            dtype=FLOATS,
            fill_value=np.nan,
            dimension_names=names,
            attributes=_with_checksum(name, FLOATS, names, attributes),
            zarr_format=3,
            overwrite=True,  # chunks without their description may be left there, of nobody knows which shape
        )

    def _agree(self, name: str, kind: str, attributes: dict[str, Any]) -> None:
        """Keep the attributes that all cells share, whoever came first."""
        known = self._arrays[name]
        before = _plain(known.attrs)
        shared = {key: value for key, value in before.items() if key in attributes and attributes[key] == value}
        if shared != before:
            known.attrs.put(_with_checksum(name, kind, known.metadata.dimension_names, shared))

    def _label(self, name: str, labels: NDArray[Any], attributes: dict[str, Any]) -> None:
        """Coordinates of an inner dimension: the same in all cells."""
        if name not in self.labels:
            self._arrays[name] = _write_labels(self.group, name, labels, attributes)
            self.labels[name] = labels.tolist()
        self._agree(name, str(labels.tolist()), attributes)

    def _fill(self, array: Any, cells: Sequence[tuple[CellIndex, NDArray[Any]]]) -> None:
        if array.ndim == len(self.sweep.shape):
            if cells:
                places = tuple(np.array([index for index, _ in cells]).T)
                array.vindex[places] = np.array([value for _, value in cells], dtype=array.dtype)
            return
        for index, value in cells:
            array[(*index, *(slice(0, length) for length in value.shape))] = value

    def forget(self, cells: Sequence[CellIndex]) -> None:
        """Take back what is known of cells, and remove what is left of them: nothing is written into damaged files."""
        arrays = [each for name, each in self._arrays.items() if not is_labels(name, each)]
        for array in arrays if cells else ():
            for index in cells:
                self._remove_chunks(array, index)
            if array.ndim == len(self.sweep.shape):
                self._fill(array, [(index, np.array(array.fill_value)) for index in cells])
        if not (self.status == DONE).any():  # room that was made for cells which never came binds nobody
            for name in self._arrays.keys() - {*self.sweep.dims, *RECORDS}:
                del self.group[name], self._arrays[name]
            self.labels.clear()

    def _remove_chunks(self, array: Any, index: CellIndex) -> None:
        """Remove the files of a cell's array; one that many cells share only if it cannot be read."""
        cells = len(self.sweep.shape)
        if array.ndim == cells and _can_read(array, index):
            return
        start = tuple(place // chunk for place, chunk in zip(index, array.chunks, strict=False))
        inner = (-(-length // chunk) for length, chunk in zip(array.shape[cells:], array.chunks[cells:], strict=True))
        for rest in np.ndindex(*inner):
            key = array.metadata.encode_chunk_key((*start, *rest))
            (self.folder / RESULTS / array.path / key).unlink(missing_ok=True)


def _can_read(array: Any, index: CellIndex) -> bool:
    try:
        array[index]
    except UNREADABLE:
        return False
    return True


@contextmanager
def open_store(folder: Path, sweep: Sweep) -> Iterator[Store]:
    """Open the store of a sweep for writing, or make it; only one process at a time may.

    Cells whose numbers do not match their checksums are not done any more.
    """
    with lock_folder(folder):
        clear_drafts(folder)
        if not require_manifest(folder):
            zarr.create_group(folder / RESULTS, attributes={"sweep": sweep.manifest()}, zarr_format=3)
        group = read_group(folder, "r+")
        arranged = _require_same(folder, group, sweep)
        known = failures(folder)
        with unreadable(folder):
            found = audit_store(folder, group, known, complete=False)
            _label_axes(group, arranged)
            store = Store(folder, arranged, group, known, found.damaged, found.labels)
            store.forget((*found.damaged, *found.unfinished))
        yield store


def _require_same(folder: Path, group: zarr.Group, sweep: Sweep) -> Sweep:
    """The sweep with its axes in the order of the store, if it is the same."""
    found: Any = group.attrs.get("sweep")
    if not isinstance(found, dict):
        raise StoreError(f"{folder / RESULTS} was not made by a sweep")
    if found.get("format") != FORMAT:
        raise StoreError(
            f"{folder} was written in format {found.get('format', 1)}, and this version writes format {FORMAT}; "
            "choose another folder"
        )
    arranged = sweep.with_axes_in_order(found.get("axes"))
    wanted = arranged.manifest()
    differ = [
        f"{key} = {found.get(key)!r} there, {wanted[key]!r} here" for key in wanted if found.get(key) != wanted[key]
    ]
    if differ:
        raise StoreError(f"{folder} holds another sweep ({'; '.join(differ)}); choose another folder")
    return arranged


def _label_axes(group: zarr.Group, sweep: Sweep) -> None:
    """Labels, checksums and status."""
    for name, values in (sweep.axes | {REPETITION: tuple(range(sweep.repetitions))}).items():
        _write_labels(group, name, np.array(values), {})
    for name, dtype, empty, meaning in (
        ("checksum", "uint64", NO_CHECKSUM, "of the numbers of each cell"),
        ("status", "int8", PENDING, "0 not done, 1 done, 2 failed"),
    ):
        if name not in group:
            group.create_array(
                name,
                shape=sweep.shape,
                chunks=_grid_chunks(sweep.shape, CELLS_PER_CHUNK),
                dtype=dtype,
                fill_value=empty,
                dimension_names=sweep.dims,
                attributes=_with_checksum(name, np.dtype(dtype).str, sweep.dims, {"long_name": meaning}),
            )


def _write_labels(group: zarr.Group, name: str, labels: NDArray[Any], attributes: dict[str, Any]) -> Any:
    """Write labels, unless they are there; a process that was killed may have left them empty."""
    array: Any = group.get(name)
    signed = _with_checksum(name, str(labels.tolist()), [name], attributes)
    if array is None or not _has_labels(name, array, labels, signed):
        text = labels.dtype.kind in "UOT"
        array = group.create_array(
            name,
            shape=labels.shape,
            chunks=tuple(max(length, 1) for length in labels.shape),
            dtype="string" if text else labels.dtype,
            dimension_names=[name],
            attributes=signed,
            overwrite=True,
        )
        array[...] = labels.astype(object) if text else labels
    return array


def _has_labels(name: str, array: Any, labels: NDArray[Any], attributes: dict[str, Any]) -> bool:
    return is_labels(name, array) and labels_in(array) == labels.tolist() and dict(array.attrs) == attributes


def _with_checksum(name: str, kind: str, dims: Sequence[str], attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes in one order, with the checksum of all that is not a number of a cell."""
    return dict(sorted(attributes.items())) | {CHECKED_BY: description_checksum(name, kind, dims, attributes)}


def _plain(attributes: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(attributes).items() if key != CHECKED_BY}


def _grid_chunks(shape: CellIndex, cells: int) -> CellIndex:
    """Chunks of about so many cells, along the last axes."""
    chunks: list[int] = []
    for length in reversed(shape):
        chunks.insert(0, max(1, min(length, cells)))
        cells //= chunks[0]
    return tuple(chunks)


def _inner_chunks(inner: CellIndex) -> CellIndex:
    """Chunks of a cell's array: the next powers of two, so that an array that grows is seldom copied."""
    chunks = [1 << max(length - 1, 0).bit_length() for length in inner]
    while np.prod(chunks, dtype=float) > LARGEST_CHUNK:
        chunks[int(np.argmax(chunks))] //= 2
    return tuple(chunks)
