"""Matrices of the page *your matrix*: read from a file or from a head of the embedded model, and fitted.

Files are ``.npy`` and ``.safetensors``. They are read in memory and not trusted: nothing is unpickled and nothing is
written to disk, and sizes that a file claims are held against its length before anything is made of that size.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from math import prod
from typing import Any, NamedTuple

import numpy as np

from bulkedge.lab.explore.fitting import Fit, fit
from bulkedge.lab.explore.room import Panel, Trace
from bulkedge.support.arrays import Real
from bulkedge.support.domains import Integers, shown
from bulkedge.support.errors import DomainError
from bulkedge.version import __version__

NAME, TITLE = "matrix", "Your matrix"
SHOWS = "Which law a matrix looks like, how far it is from it, and which of its singular values stand out."
NOT_CLAIMED = "The nearest of a few laws need not be the right one: the distance says how near it is."
LETTERS = 256
"""Letters of a book that the embedded model reads; a letter is a token."""
LAYERS, HEADS = Integers(0, 2), Integers(0, 3)
"""Layers and heads of the embedded model."""
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


class Report(NamedTuple):
    """What a page shows of a fit: laws as curves, because laws themselves stay in the process that made them."""

    facts: dict[str, str]
    note: str
    laws: list[tuple[str, str]]
    outliers: list[tuple[str, str]]
    values: Any
    panels: list[Panel]
    curves: list[Trace]


def report_fit(found: Fit) -> Report:
    """A fit in numbers and words."""
    facts = {"kind": str(found.kind)}
    if np.isfinite(found.beta):
        told = f"{found.head_dim:.0f}" if np.isfinite(found.head_dim) else "not told from independent scores"
        facts |= {"β": f"{found.beta:.3f}", "dimension": told}
    laws = [(each.name, f"{each.distance:.3f}") for each in found.candidates]
    least = found.candidates[0].least if found.candidates else 0.0
    beyond = [(f"{each.value:.4g}", p_text(each.p_value, least)) for each in found.outliers]
    return Report(facts, found.note, laws, beyond, found.values, *curves_of(found))


def fit_file(name: str, data: bytes, tensor: str | None) -> Report:
    """Read a matrix of a file and fit it."""
    return report_fit(fit(matrix(name, data, tensor)))


@lru_cache(maxsize=1)
def decoder_attention() -> Any:
    """Attention of the embedded decoder on the opening of a book; it is trained when it is first asked for."""
    import torch

    from bulkedge.models.loading.default import default_model
    from bulkedge.models.loading.packaged import sample_text

    model, tokenizer = default_model()
    model.set_attn_implementation("eager")
    ids = torch.tensor([tokenizer(sample_text("alice")[:LETTERS])["input_ids"]])
    with torch.no_grad():
        found = model(ids, output_attentions=True).attentions
    return torch.cat(found).double().numpy()


def fit_head(layer: int, head: int) -> Report:
    """Fit the attention of a head of the embedded decoder."""
    return report_fit(fit(decoder_attention()[LAYERS.check("layer", layer), HEADS.check("head", head)]))


def curves_of(found: Fit) -> tuple[list[Panel], list[Trace]]:
    """The values of a matrix beside its two nearest laws."""
    values = np.maximum(found.values, 1e-9)
    low = max(float(np.quantile(values, 0.02)), 1e-6)
    high = max(values[-1], 2 * low)  # all values of a constant matrix are zero
    ends = np.geomspace(low, 1.05 * high, 61)
    heights = np.histogram(values, ends)[0] / (len(values) * np.diff(np.log(ends)))
    curves = [Trace("the matrix", ends, heights, look="simulation", shape="bars")]
    x = np.geomspace(low, 1.05 * high, 400)
    looks: tuple[Any, ...] = ("theory", "rival")
    for candidate, look in zip(found.candidates, looks, strict=False):
        curves.append(Trace(f"{candidate.name} ({candidate.distance:.3f})", x, x * candidate.law.pdf(x), look=look))
    curves += [Trace("outlier", each.value, look="mark", shape="mark") for each in found.outliers]
    label = f"squared singular value of {found.matrix}"
    return [Panel("Density, by the logarithm of the value", label, "x · density(x)", "x")], curves


def p_text(p: float, least: float = 0.0) -> str:
    """A p-value in words.

    Examples
    --------
    >>> p_text(0.0123), p_text(0.0), p_text(float("nan")), p_text(0.05, 0.05)
    ('0.012', 'below 1e-15', 'not known for this law', 'at most 0.05: none of 19 fresh heads reaches as far')
    """
    if np.isnan(p):
        return "not known for this law"
    if least:
        draws = round(1 / least) - 1
        return f"at most {p:.2g}: none of {draws} fresh heads reaches as far" if p <= least else f"{p:.2g}"
    return "below 1e-15" if p < 1e-15 else f"{p:.2g}"


def script(source: str) -> str:
    """A program that fits the same matrix."""
    return f'''"""{TITLE}: {SHOWS}

{NOT_CLAIMED} Made by bulkedge {__version__}.
"""

{source}
from bulkedge.lab.explore.room import save
from bulkedge.lab.explore.fitting import fit
from bulkedge.lab.explore.matrix import curves_of

found = fit(matrix)
print(found.note)
for candidate in found.candidates:
    print(f"{{candidate.distance:.3f}}  {{candidate.name}}  {{candidate.law}}")
for outlier in found.outliers:
    print(f"{{outlier.value:.4g}}  p = {{outlier.p_value:.2g}}")
save("matrix.png", *curves_of(found))
'''


def loading_code(name: str, tensor: str | None) -> str:
    """Python that reads a file again, from the folder it is in; names are written as Python writes them."""
    if len(name) > 200 or (tensor is not None and len(tensor) > 500):
        raise DomainError("the name of the file or of the tensor is too long")
    return (
        "from pathlib import Path\n\nfrom bulkedge.lab.explore.matrix import matrix as read\n\n"
        f"matrix = read({name!r}, Path({name!r}).read_bytes(), {tensor!r})"
    )


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
