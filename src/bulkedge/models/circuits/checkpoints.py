"""Tensors of a checkpoint by name, read in slices from the disk: no model, and never more in memory than a slice.

A checkpoint is a folder with ``config.json`` and ``model.safetensors``, its shards, or PyTorch's ``.bin`` files. A
safetensors file is the length of its header (8 bytes, little-endian), a header in JSON that says of every tensor its
type, its shape and where it is, and the numbers. That is read here with NumPy alone, because bfloat16, which NumPy does
not have, is then a shift of bits. PyTorch's files go through ``torch.load(weights_only=True, mmap=True)``.

Whoever made the files is not trusted: nothing is unpickled, sizes are checked against the file before anything is read,
and an index cannot name files of other folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from bulkedge.support.arrays import Real
from bulkedge.support.domains import shown
from bulkedge.support.errors import DomainError, StoreError, need

MOST_JSON = 100_000_000  # bytes of a header, an index or a configuration at most; the limit of safetensors itself
# size of an entry, for every type of the format that fills whole bytes
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
STORED = {"F16": "<f2", "BF16": "<u2", "F32": "<f4", "F64": "<f8"}  # types that are read, and as what NumPy sees them
INDEX_OF = {".safetensors": "model.safetensors.index.json", ".bin": "pytorch_model.bin.index.json"}


class StoredTensor(NamedTuple):
    """Where a tensor is: its shape and type, and the file and byte that it starts at."""

    shape: tuple[int, ...]
    dtype: str
    file: Path
    start: int = 0


@dataclass(frozen=True)
class ModelCheckpoint:
    """Named tensors on a disk: of one file, or of the shards of an index."""

    path: Path  # the folder or file that was opened
    config: Mapping[str, Any]  # the model's ``config.json``
    tensors: Mapping[str, StoredTensor] = field(repr=False)  # what there is, in the order of the files
    _mapped: dict[Path, dict[str, Any]] = field(default_factory=dict, repr=False)  # one file of PyTorch at a time

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which must have two axes, or one."""
        tensor = self.tensors[name]
        if len(tensor.shape) not in {1, 2} or not prod(tensor.shape):
            raise DomainError(f"the tensor {name!r} has the shape {tensor.shape}: weights are matrices, biases vectors")
        if tensor.dtype not in STORED:
            raise DomainError(
                f"the tensor {name!r} holds {tensor.dtype}, and {', '.join(STORED)} are read: quantised weights have "
                "to be dequantised before"
            )
        return tensor.shape

    def read(self, name: str, rows: slice = slice(None), columns: slice = slice(None)) -> Real:
        """Part of a tensor, as an array of its own."""
        part, tensor = (rows, columns)[: len(self.shape(name))], self.tensors[name]
        array = _entries(tensor, part) if tensor.file.suffix == ".safetensors" else self._torch_entries(name, part)
        if not np.isfinite(array).all():
            raise DomainError(f"the tensor {name!r} of {tensor.file} has entries that are not finite")
        return array

    def _torch_entries(self, name: str, part: tuple[slice, ...]) -> Real:
        """Part of a tensor of PyTorch's files, which torch maps into memory without running what is in them."""
        tensor = self.tensors[name]
        if tensor.file not in self._mapped:
            self._mapped.clear()
            self._mapped[tensor.file] = _load_state(tensor.file)
        kept = self._mapped[tensor.file][name][part]
        return np.array((kept if tensor.dtype == "F64" else kept.float()).numpy())


def _entries(tensor: StoredTensor, part: tuple[slice, ...]) -> Real:
    """Part of a tensor of a safetensors file: a copy, so that the pages of the file can go."""
    entries = np.array(np.memmap(tensor.file, STORED[tensor.dtype], "r", tensor.start, tensor.shape)[part])
    if tensor.dtype == "BF16":  # the upper half of a float32
        return (entries.astype(np.uint32) << 16).view(np.float32)
    return entries.astype(float if tensor.dtype == "F64" else np.float32, copy=False)


def open_checkpoint(path: str | Path) -> ModelCheckpoint:
    """Find the tensors of a checkpoint; nothing but headers is read."""
    path = Path(path)
    files, places = weight_files(path)
    config = (path if path.is_dir() else path.parent) / "config.json"
    if not config.is_file():
        raise StoreError(f"{config.parent} has no config.json, which says how many heads there are")
    ours = files[0].suffix == ".safetensors"
    if not ours:
        need(files[0].name, "torch", install="'bulkedge[torch]'; safetensors need nothing")
    tensors = _all_tensors(files, _header if ours else _torch_header, places)
    return ModelCheckpoint(path, read_json(config), tensors)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    if path.stat().st_size > MOST_JSON:
        raise StoreError(f"{path} has more than {MOST_JSON} bytes: no configuration is that long")
    return _parse_object(path.read_bytes(), path)


def _parse_object(text: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON where it should be: {error}") from None
    if not isinstance(found, dict):
        raise StoreError(f"{path} holds {shown(found)} where an object is expected")
    return found


def _main_file(folder: Path) -> Path:
    """The file of a folder to begin with."""
    usual = ("model.safetensors", INDEX_OF[".safetensors"], "pytorch_model.bin", INDEX_OF[".bin"])
    alone = sorted(each for each in folder.glob("*.safetensors") if each.is_file())
    found = [folder / name for name in usual if (folder / name).is_file()]
    if found or len(alone) == 1:
        return [*found[:1], *alone][0]
    others = ", ".join(sorted(each.name for each in folder.iterdir())[:20]) or "nothing"
    raise StoreError(f"{folder} has none of {', '.join(usual)}, nor one other .safetensors file; it has {others}")


def weight_files(path: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files with tensors at a path, and for an index the one in which each tensor has to be."""
    require_regular(path)
    file = _main_file(path) if path.is_dir() else path
    if file.suffix in INDEX_OF:
        return [file], {}
    if file.suffix != ".json":
        raise StoreError(f"{file} is no checkpoint: its name ends neither with .safetensors, .bin nor .index.json")
    places = shards_of(file)
    for shard in places.values():
        if not shard.is_file():
            raise StoreError(f"{file} names the file {shown(shard.name)}, which is not there: download it, too")
    return list(dict.fromkeys(places.values())), places


def require_regular(path: Path) -> None:
    """Refuse what is neither a file nor a folder of files and folders: a pipe, say, would be waited for."""
    if not path.exists():
        raise StoreError(f"{path} does not exist: give the folder of a checkpoint, or its file")
    for each in (path, *(path.iterdir() if path.is_dir() else ())):
        if each.exists() and not each.is_file() and not each.is_dir():
            raise StoreError(f"{each} is a pipe, socket or device, not a file: refused; remove it, or give a file")


def shards_of(index: Path) -> dict[str, Path]:
    """The file of each tensor that an index names; names that lead out of the index's folder are refused.

    The name is judged and not where links lead: caches of downloads keep links to files elsewhere.
    """
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise StoreError(f"{index} has no 'weight_map' from the names of tensors to files")
    for shard in dict.fromkeys(map(str, places.values())):
        for kind in (PurePosixPath(shard), PureWindowsPath(shard)):
            if kind.anchor or ".." in kind.parts or "\x00" in shard:
                raise StoreError(f"{index} names the file {shown(shard)}, which is outside its folder: refused")
        if Path(shard).suffix not in INDEX_OF:
            raise StoreError(f"{index} names the file {shown(shard)}, which is neither .safetensors nor .bin")
    if len({Path(str(shard)).suffix for shard in places.values()}) > 1:
        raise StoreError(f"{index} names files of several formats")
    return {name: index.parent / str(shard) for name, shard in places.items()}


def _all_tensors(files: list[Path], header: Any, places: Mapping[str, Path]) -> dict[str, StoredTensor]:
    inside = ((file, name, each) for file in files for name, each in header(file).items())
    found = {name: each for file, name, each in inside if places.get(name, file) == file}
    missing = [name for name in places if name not in found]
    if missing:
        raise StoreError(f"{len(missing)} tensors of the index are not in its files, among them {shown(missing[0])}")
    return found


def _header(file: Path) -> dict[str, StoredTensor]:
    with file.open("rb") as stream:
        return stored_tensors(stream, file.stat().st_size, file)


def stored_tensors(stream: BinaryIO, size: int, file: Path, most: int = MOST_JSON) -> dict[str, StoredTensor]:
    """The tensors of a stream in the format of safetensors, each checked to lie inside its length."""
    length = int.from_bytes(stream.read(8), "little")
    if size < 8 or not 2 <= length <= min(most, size - 8):
        raise StoreError(f"{file} is no safetensors file: it has {size} bytes and announces {length} of header")
    header = _parse_object(stream.read(length), file)
    header.pop("__metadata__", None)
    return {name: _stored_tensor(file, name, each, 8 + length, size) for name, each in header.items()}


def _stored_tensor(file: Path, name: str, said: Any, base: int, size: int) -> StoredTensor:
    try:
        dtype, shape, (start, stop) = str(said["dtype"]), said["shape"], said["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise StoreError(f"{file}: the tensor {shown(name)} is described as {shown(said)}") from None
    whole = isinstance(shape, list) and all(type(each) is int and each >= 0 for each in (*shape, start, stop))
    if not whole or not start <= stop <= size - base:
        raise StoreError(f"{file}: the tensor {shown(name)} lies at {shown([start, stop])} of {size - base} bytes")
    if dtype in BYTES and prod(shape) * BYTES[dtype] != stop - start:
        raise StoreError(f"{file}: the tensor {shown(name)}, {dtype} of shape {shape}, has {stop - start} bytes")
    return StoredTensor(tuple(shape), dtype, file, base + start)


def _torch_header(file: Path) -> dict[str, StoredTensor]:
    import torch

    names = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}
    return {
        name: StoredTensor(tuple(each.shape), names.get(each.dtype, str(each.dtype)), file)
        for name, each in _load_state(file).items()
        if isinstance(each, torch.Tensor)
    }


def _load_state(file: Path) -> dict[str, Any]:
    """The state of a PyTorch file, its tensors mapped and not read."""
    import torch

    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # noqa: BLE001 - pickle's errors, torch's and Python's, for files it does not like
        raise StoreError(f"{file} cannot be read without running code or without mapping it: {shown(error)}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise StoreError(f"{file} holds {shown(type(found))}, not tensors by their names")
    return found
