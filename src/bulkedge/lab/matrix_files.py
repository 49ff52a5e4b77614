r"""Matrices of files: ``.npy``, ``.npz``, ``.csv`` and ``.safetensors``.

Files are read in memory and not trusted: nothing is unpickled and nothing is written to disk, and sizes that a file
claims are held against its length before anything is made of that size.

>>> read_matrix("a.csv", b"1, 2\n3, 4", limits=Limits(1000, 2, 10)).tolist()
[[1.0, 2.0], [3.0, 4.0]]
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from itertools import islice
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np

from bulkedge.models.circuits.checkpoints import STORED as FLOATS
from bulkedge.models.circuits.checkpoints import StoredTensor, stored_tensors
from bulkedge.support.arrays import Real
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError, StoreError

INTEGERS = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
STORED = FLOATS | INTEGERS | {"BOOL": "?"}  # types of safetensors that are read; bfloat16 is the upper half of a single
MOST_CHOICES = 512  # matrices of a file that a reader can choose from
UNPARSED = (SyntaxError, RecursionError, TypeError, TokenError)  # what NumPy lets through of a header that is no Python
SUFFIXES = (".npy", ".npz", ".csv", ".safetensors")


class Limits(NamedTuple):
    """What is read: bytes of a file, and rows and columns of a matrix."""

    bytes: int
    smallest: int
    largest: int


# of a page, where others wait: with fewer rows there is no bulk, with more it takes minutes
PAGE = Limits(64 * 2**20, 16, 2048)


def tensors(name: str, data: bytes, limits: Limits = PAGE) -> dict[str, tuple[int, ...]]:
    """What a file holds."""
    if len(data) > limits.bytes:
        raise DomainError(f"the file is larger than {limits.bytes >> 20} MB: send a slice of it")
    kind = Path(name.lower()).suffix
    if kind == ".npy":
        return {name: _npy_header(data)[0]}
    if kind == ".npz":
        return {key: _npy_header(each)[0] for key, each in _archive(data, limits).items()}
    if kind == ".csv":
        return {name: _table(name, data).shape}
    if kind == ".safetensors":
        return {key: each.shape for key, each in _safetensors(name, data).items()}
    raise DomainError(
        f"file = {shown(name)} is none of {', '.join(SUFFIXES)}: np.save(path, matrix) writes the first of them"
    )


def read_matrix(name: str, data: bytes, tensor: str | None = None, limits: Limits = PAGE) -> Real:
    """A matrix of a file; the first one if none is named."""
    shapes = tensors(name, data, limits)
    within = matrices(shapes, limits)
    chosen = tensor or next(iter(within), next(iter(shapes), ""))
    if chosen not in within:
        if chosen not in shapes:
            raise DomainError(f"tensor = {shown(chosen)} is not in the file")
        raise DomainError(
            f"{shown(chosen)} has shape {shapes[chosen]}; a matrix of {limits.smallest} to {limits.largest} rows "
            "and columns is read"
        )
    key, index = within[chosen]
    kind = Path(name.lower()).suffix
    if kind == ".csv":
        found = _table(name, data)
    elif kind == ".safetensors":
        found = _tensor(data, _safetensors(name, data)[key])
    else:
        found = np.load(io.BytesIO(data if kind == ".npy" else _archive(data, limits)[key]), allow_pickle=False)
    found = found.reshape([each for each in shapes[key] if each != 1])[index].astype(float)
    if not np.all(np.isfinite(found)):
        raise DomainError(f"{shown(chosen)} has entries that are NaN or infinite")
    return found


def choices(name: str, data: bytes, limits: Limits = PAGE) -> list[str]:
    """The matrices of a file."""
    return list(matrices(tensors(name, data, limits), limits))


def matrices(shapes: Mapping[str, tuple[int, ...]], limits: Limits = PAGE) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Matrices of the right size among tensors: those that are one, and slices along all but the last two axes.

    Attention of all heads comes as (batch, heads, tokens, tokens), say.

    >>> list(matrices({"a": (1, 64, 64), "b": (1, 2, 64, 64), "c": (64,)}))
    ['a', 'b[0]', 'b[1]']
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        key: (key, ()) for key, shape in shapes.items() if fits(shape, limits)
    }
    for key, shape in shapes.items():
        kept = [each for each in shape if each != 1]
        if len(kept) > 2 and fits(tuple(kept[-2:]), limits):
            for number in range(min(prod(kept[:-2]), MOST_CHOICES)):  # axes may be as long as a file claims
                index = tuple(int(each) for each in np.unravel_index(number, kept[:-2]))
                found.setdefault(f"{key}[{', '.join(map(str, index))}]", (key, index))
    return dict(islice(found.items(), MOST_CHOICES))


def fits(shape: tuple[int, ...], limits: Limits = PAGE) -> bool:
    """Whether a shape is that of a matrix of the right size, but for axes of length one."""
    kept = [each for each in shape if each != 1]
    return len(kept) == 2 and all(limits.smallest <= each <= limits.largest for each in kept)


def _archive(data: bytes, limits: Limits) -> dict[str, bytes]:
    """The arrays of an archive of NumPy by name, as files."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [each for each in archive.infolist() if each.filename.endswith(".npy")]
            if sum(each.file_size for each in members) > limits.bytes:
                raise DomainError(f"the arrays of the file are larger than {limits.bytes >> 20} MB: save fewer")
            found = {}
            for each in members:
                with archive.open(each) as stream:
                    found[each.filename.removesuffix(".npy")] = stream.read(each.file_size)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error) as error:
        if isinstance(error, DomainError):
            raise
        raise DomainError(f"the file is no .npz: {shown(str(error))}") from error
    if not found:
        raise DomainError("the file has no array: np.savez(path, name=matrix) writes one")
    return found


def _table(name: str, data: bytes) -> Real:
    """Numbers in lines, between commas, semicolons, tabs or spaces."""
    try:
        lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DomainError(f"{shown(name)} is not text in UTF-8") from error
    if not lines:
        raise DomainError(f"{shown(name)} is empty")
    separator = next((each for each in (",", ";", "\t") if each in lines[0]), None)
    rows = []
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in line.strip().split(separator)]
        for column, cell in enumerate(cells, 1):
            try:
                float(cell)
            except ValueError:
                raise DomainError(
                    f"line {number}, column {column} of {shown(name)} is {shown(cell)}, not a number: leave out "
                    "headings and names"
                ) from None
        rows.append([float(cell) for cell in cells])
    if len({len(row) for row in rows}) > 1:
        odd = next(number for number, row in enumerate(rows, 1) if len(row) != len(rows[0]))
        raise DomainError(f"line {odd} of {shown(name)} has {len(rows[odd - 1])} numbers, the first {len(rows[0])}")
    return np.array(rows)


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
        shape, _, dtype = read(stream)
    except (LookupError, ValueError, OSError, EOFError, MemoryError, *UNPARSED) as error:
        raise DomainError(f"the file is no .npy of numbers: {shown(str(error))}") from error
    if dtype.hasobject:
        raise DomainError(f"the file holds {shown(str(dtype))}, not numbers: objects are not read, as that runs code")
    if dtype.kind not in "biuf":
        remedy = ": send the real part, or the modulus" if dtype.kind == "c" else ""
        raise DomainError(f"the file holds {shown(str(dtype))}, which are not real numbers{remedy}")
    if prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise DomainError(f"the file claims the shape {shown(shape)}, which is not what it holds")
    return tuple(int(each) for each in shape), dtype


def _safetensors(name: str, data: bytes) -> dict[str, StoredTensor]:
    """The tensors of types that are read."""
    try:
        found = stored_tensors(io.BytesIO(data), len(data), Path(name), most=4_000_000)
    except StoreError as error:
        raise DomainError(str(error)) from error
    found = {key: each for key, each in found.items() if each.dtype in STORED}
    if not found:
        raise DomainError(f"the file has no tensor of a type that is read: {', '.join(STORED)}")
    return found


def _tensor(data: bytes, tensor: StoredTensor) -> Any:
    found = np.frombuffer(data, STORED[tensor.dtype], count=prod(tensor.shape), offset=tensor.start)
    return (found.astype(np.uint32) << 16).view(np.float32) if tensor.dtype == "BF16" else found
