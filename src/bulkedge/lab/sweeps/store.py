"""The results of a sweep: one Zarr store, labelled by the grid, written by one process, cell by cell.

A folder holds ``results.zarr`` and ``failures.json``. Every write replaces whole files: first a cell's values, then its
``checksum``, then its ``status``, so that a process killed at any moment leaves nothing half-written behind that is
called done. The files are the same in whatever order the cells arrive: the lengths of chunks follow from the largest
cell, and an array keeps the attributes on which all of its cells agree.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from bulkedge.lab.sweeps import read
from bulkedge.lab.sweeps.grid import FORMAT, REPETITION, CellIndex, Sweep
from bulkedge.support.errors import StoreError
from bulkedge.support.files import lock_folder, remove_folder, replace_file, to_json

FLOATS = "<f8"  # every number of a cell is a float, so that nan can say "not there"
CELLS_PER_CHUNK = 256  # cells whose single numbers share a file
LARGEST_CHUNK = 2**22  # numbers of one cell's array that share a file: 32 MB before compression
# names that are files everywhere, and that Zarr does not keep for itself
STORABLE = re.compile(r'(?!\.|__|zarr\.json$)[^/\\:*?"<>|\x00-\x1f]+(?<![. ])')
DRAFTS, NEW, OLD = "drafts", ".new", ".old"
# variables and coordinates of a cell's dataset: dimensions, values and attributes
Values = dict[str, tuple[tuple[str, ...], NDArray[Any], dict[str, Any]]]


@dataclass
class Store:
    """An open store; made by :func:`open_store`."""

    folder: Path
    sweep: Sweep  # with the axes in the order of the store
    group: zarr.Group
    failures: dict[str, Any]
    who: bytes
    # cells whose numbers did not match their checksum when the store was opened: they count as not done
    damaged: tuple[CellIndex, ...] = ()
    labels: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def status(self) -> NDArray[np.int8]:
        """What is known of each cell."""
        return np.asarray(self._arrays["status"][...], dtype=np.int8)

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        return read.arrays_of(self.folder, self.group)

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
        self._fill(self._arrays["status"], [(index, np.array(read.DONE)) for index, _ in finished])
        self._fill(self._arrays["status"], [(index, np.array(read.FAILED)) for index, _ in failed])
        mended = {str(list(index)) for index, _ in finished}
        self._record({key: record for key, record in self.failures.items() if key not in mended})

    def _checksum(self, index: CellIndex, values: Values) -> NDArray[Any]:
        variables = {name: (dims, array) for name, (dims, array, _) in values.items() if name not in dims}
        return np.array(
            read.cell_checksum(read.cell_identity(self.who, index), variables, self.labels), dtype=np.uint64
        )

    def _record(self, failed: dict[str, Any]) -> None:
        if failed != self.failures:
            replace_file(self.folder / read.FAILURES, to_json(failed, indent=1))
            self.failures = failed

    # -- does a cell fit beside the others? ----------------------------------------------------------------------------

    def _require_name(self, name: str, dims: tuple[str, ...]) -> None:
        if set(dims) & set(self.sweep.dims) or name in (*self.sweep.dims, *read.RECORDS):
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
            self._arrays[name] = self._create(self.folder / read.RESULTS / name, name, dims, array.shape, attributes)
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
            for index in zip(*np.nonzero(self.status == read.DONE), strict=True):
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
        arrays = [each for name, each in self._arrays.items() if not read.is_labels(name, each)]
        for array in arrays if cells else ():
            for index in cells:
                self._remove_chunks(array, index)
            if array.ndim == len(self.sweep.shape):
                self._fill(array, [(index, np.array(array.fill_value)) for index in cells])
        if not (self.status == read.DONE).any():  # room that was made for cells which never came binds nobody
            for name in self._arrays.keys() - {*self.sweep.dims, *read.RECORDS}:
                del self.group[name], self._arrays[name]
            self.labels.clear()

    def _remove_chunks(self, array: Any, index: CellIndex) -> None:
        """Remove the files of a cell's array; one that many cells share only if it cannot be read."""
        cells = len(self.sweep.shape)
        if array.ndim == cells:
            with suppress(*read.UNREADABLE):
                array[index]
                return
        start = tuple(place // chunk for place, chunk in zip(index, array.chunks, strict=False))
        inner = (-(-length // chunk) for length, chunk in zip(array.shape[cells:], array.chunks[cells:], strict=True))
        for rest in np.ndindex(*inner):
            key = array.metadata.encode_chunk_key((*start, *rest))
            (self.folder / read.RESULTS / array.path / key).unlink(missing_ok=True)


def clear_drafts(folder: Path) -> None:
    """Finish or undo what a killed process was about to rename."""
    for partial in (folder / read.RESULTS).rglob("*.partial"):
        partial.unlink()
    _finish_replacements(folder)


def _finish_replacements(folder: Path) -> None:
    results, drafts = folder / read.RESULTS, folder / DRAFTS
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
    new, old, place = drafts / f"{name}{NEW}", drafts / f"{name}{OLD}", folder / read.RESULTS / name
    yield new
    place.rename(old)
    new.rename(place)
    remove_folder(drafts)


def require_manifest(folder: Path) -> bool:
    """Whether the folder has a store; one that lost its manifest is refused: nobody knows whose numbers it holds."""
    results = folder / read.RESULTS
    if (results / read.MANIFEST).exists():
        return True
    if results.exists() and any(path.is_file() for path in results.rglob("*")):
        raise StoreError(
            f"{results} has lost its {read.MANIFEST}, which says what sweep its numbers belong to; "
            "put it back from a copy, or choose another folder"
        )
    return False


@contextmanager
def open_store(folder: Path, sweep: Sweep) -> Iterator[Store]:
    """Open the store of a sweep for writing, or make it; only one process at a time may."""
    with lock_folder(folder):
        clear_drafts(folder)
        if not require_manifest(folder):
            zarr.create_group(folder / read.RESULTS, attributes={"sweep": sweep.manifest()}, zarr_format=3)
        group = read.read_group(folder, "r+")
        arranged, manifest = _require_same(folder, group, sweep)
        known = read.failures(folder)
        with read.unreadable(folder):
            found = read.audit_store(folder, group, known, complete=False)
            _label_axes(group, arranged)
            store = Store(folder, arranged, group, known, read.identity(manifest), found.damaged, found.labels)
            store.forget((*found.damaged, *found.unfinished))
        yield store


def _require_same(folder: Path, group: zarr.Group, sweep: Sweep) -> tuple[Sweep, dict[str, Any]]:
    """The sweep with its axes in the order of the store, if it is the same, and the manifest of the store."""
    found: Any = group.attrs.get("sweep")
    if not isinstance(found, dict):
        raise StoreError(f"{folder / read.RESULTS} was not made by a sweep")
    if found.get("format") != FORMAT:
        raise StoreError(
            f"{folder} was written in format {found.get('format', 1)}, and this version writes format {FORMAT}; "
            "choose another folder"
        )
    arranged = sweep.with_axes_in_order(found.get("axes"))
    wanted = arranged.manifest()
    others = [key for key in wanted if found.get(key) != wanted[key]]
    differ = {key: f"{key} = {found.get(key)!r} there, {wanted[key]!r} here" for key in others}
    there, here = (str(each.get("bulkedge")).split(".dev")[0] for each in (found, wanted))
    if differ.keys() == {"bulkedge"} and there == here:  # commits on the way to one release
        warnings.warn(
            f"{folder} was begun at another commit ({differ['bulkedge']}), and goes on: if the study was changed in"
            " between, choose another folder",
            stacklevel=2,
        )
    elif differ:
        raise StoreError(f"{folder} holds another sweep ({'; '.join(differ.values())}); choose another folder")
    return arranged, found


def _label_axes(group: zarr.Group, sweep: Sweep) -> None:
    """Labels, checksums and status."""
    for name, values in (sweep.axes | {REPETITION: tuple(range(sweep.repetitions))}).items():
        _write_labels(group, name, np.array(values), {})
    for name, dtype, empty, meaning in (
        ("checksum", "uint64", read.NO_CHECKSUM, "of the numbers of each cell"),
        ("status", "int8", read.PENDING, "0 not done, 1 done, 2 failed"),
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
    there = array is not None and read.is_labels(name, array) and dict(array.attrs) == signed
    if not there or read.labels_in(array) != labels.tolist():
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


def _with_checksum(name: str, kind: str, dims: Sequence[str], attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes in one order, with the checksum of all that is not a number of a cell."""
    return dict(sorted(attributes.items())) | {read.CHECKED_BY: read.description_checksum(name, kind, dims, attributes)}


def _plain(attributes: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(attributes).items() if key != read.CHECKED_BY}


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
