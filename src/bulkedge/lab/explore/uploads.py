"""Matrices that a reader drops on the page: ``.npy`` and ``.safetensors``, read in memory, and nothing of them trusted.

Nothing is unpickled and nothing is written to disk. Sizes that a file claims are held against its length before
anything is made of that size.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError

MOST_BYTES = 64 * 2**20
"""Bytes of a file at most."""
SMALLEST, LARGEST = 16, 2048
"""Rows and columns that a matrix may have: with fewer there is no bulk, with more a decomposition takes minutes."""
MOST_TENSORS = 10_000
MOST_HEADER = 4_000_000
FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
INTEGERS = {"I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}
STORED = FLOATS | INTEGERS | {"BOOL": "?"}
"""Types of safetensors that are read; bfloat16 is the upper half of a single."""
MOST_CHOICES = 512
"""Matrices of a file that a reader can choose from."""


def content(sent: str) -> bytes:
    """The bytes of a file as a browser sends it."""
    _, _, text = sent.partition(",")
    if len(text) > MOST_BYTES * 4 / 3 + 8:
        raise DomainError(f"the file is larger than {MOST_BYTES >> 20} MB: send a slice of it")
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError) as error:
        raise DomainError("the file did not arrive whole: send it again") from error


def tensors(name: str, data: bytes) -> dict[str, tuple[int, ...]]:
    """What a file holds."""
    if len(data) > MOST_BYTES:
        raise DomainError(f"the file is larger than {MOST_BYTES >> 20} MB: send a slice of it")
    if name.lower().endswith(".npy"):
        return {name: _npy_header(data)[0]}
    if name.lower().endswith(".safetensors"):
        return {key: tuple(each["shape"]) for key, each in _safetensors(data).items()}
    raise DomainError(f"file = {shown(name)} is neither .npy nor .safetensors: np.save(path, matrix) writes the former")


def matrix(name: str, data: bytes, tensor: str | None = None) -> Real:
    """A matrix of a file."""
    shapes = tensors(name, data)
    within = matrices(shapes)
    chosen = tensor or next(iter(within), next(iter(shapes), ""))
    if chosen not in within:
        if chosen not in shapes:
            raise DomainError(f"tensor = {shown(chosen)} is not in the file")
        raise DomainError(
            f"{shown(chosen)} has shape {shapes[chosen]}; a matrix of {SMALLEST} to {LARGEST} rows and columns is read"
        )
    key, index = within[chosen]
    found = _npy(data) if name.lower().endswith(".npy") else _tensor(data, _safetensors(data)[key])
    found = found.reshape([each for each in shapes[key] if each != 1])[index].astype(float)
    if not np.all(np.isfinite(found)):
        raise DomainError(f"{shown(chosen)} has entries that are NaN or infinite")
    return found


def choices(name: str, data: bytes) -> list[str]:
    """The matrices of a file."""
    return list(matrices(tensors(name, data)))


def matrices(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Matrices of the right size among tensors: those that are one, and slices along all but the last two axes.

    Attention of all heads comes as (batch, heads, tokens, tokens), say.

    Examples
    --------
    >>> list(matrices({"a": (1, 64, 64), "b": (1, 2, 64, 64), "c": (64,)}))
    ['a', 'b[0]', 'b[1]']
    """
    found: dict[str, tuple[str, tuple[int, ...]]] = {key: (key, ()) for key, shape in shapes.items() if fits(shape)}
    for key, shape in shapes.items():
        kept = [each for each in shape if each != 1]
        if len(kept) > 2 and fits(tuple(kept[-2:])):
            for number in range(min(prod(kept[:-2]), MOST_CHOICES)):  # axes may be as long as a file claims
                index = tuple(int(each) for each in np.unravel_index(number, kept[:-2]))
                found.setdefault(f"{key}[{', '.join(map(str, index))}]", (key, index))
    return dict(islice(found.items(), MOST_CHOICES))


def fits(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of a matrix of the right size, but for axes of length one."""
    kept = [each for each in shape if each != 1]
    return len(kept) == 2 and all(SMALLEST <= each <= LARGEST for each in kept)


def _npy_header(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
        shape, _, dtype = read(stream)
    except (KeyError, ValueError, EOFError, OSError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise DomainError(f"the file is no .npy of numbers: {shown(str(error))}") from error
    if dtype.hasobject:
        raise DomainError(f"the file holds {shown(str(dtype))}, not numbers: objects are not read, as that runs code")
    if dtype.kind not in "biuf":
        remedy = ": send the real part, or the modulus" if dtype.kind == "c" else ""
        raise DomainError(f"the file holds {shown(str(dtype))}, which are not real numbers{remedy}")
    if prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise DomainError(f"the file claims the shape {shown(shape)}, which is not what it holds")
    return tuple(int(each) for each in shape), dtype


def _npy(data: bytes) -> Any:
    return np.load(io.BytesIO(data), allow_pickle=False)


def _safetensors(data: bytes) -> dict[str, dict[str, Any]]:
    """The header, checked: types that are read, and places within the file that are as long as the shapes say."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(len(data) - 8, MOST_HEADER):
        raise DomainError("the file is no safetensors: its header is longer than the file")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise DomainError("the file is no safetensors: its header is not JSON") from error
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise DomainError("the file is no safetensors: its header is not a list of tensors")
    found = {}
    for name, said in header.items():
        if name == "__metadata__":
            continue
        if not _sound(said, len(data) - 8 - size):
            raise DomainError(f"tensor {shown(name)} of the file is not where its header says")
        if said["dtype"] in STORED:
            found[str(name)] = {
                "dtype": said["dtype"],
                "shape": said["shape"],
                "at": 8 + size + said["data_offsets"][0],
            }
    if not found:
        raise DomainError(f"the file has no tensor of a type that is read: {', '.join(STORED)}")
    return found


def _sound(said: Any, room: int) -> bool:
    if not isinstance(said, dict):
        return False
    shape, offsets, dtype = said.get("shape"), said.get("data_offsets"), said.get("dtype")
    if not isinstance(shape, list) or not isinstance(offsets, list) or not isinstance(dtype, str) or len(offsets) != 2:
        return False
    if any(type(each) is not int or each < 0 for each in [*shape, *offsets]):
        return False
    size = np.dtype(STORED[dtype]).itemsize if dtype in STORED else None
    return offsets[0] <= offsets[1] <= room and (size is None or offsets[1] - offsets[0] == size * prod(shape))


def _tensor(data: bytes, said: dict[str, Any]) -> Any:
    stored = np.dtype(STORED[said["dtype"]])
    found = np.frombuffer(data, stored, count=prod(said["shape"]), offset=said["at"])
    if said["dtype"] == "BF16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    return found
