r"""A scan as the compact JSON that its page carries: medians over texts, four digits, long arrays in base 64.

Numbers that are missing are null, infinite ones the texts "Infinity" and "-Infinity", which JavaScript's ``Number``
reads; the text has no character that could end the element of HTML around it.

>>> digits([0.123456, float("nan"), 12.0, float("inf")])
[0.1235, None, 12, 'Infinity']
>>> embedded({"name": "</script>"})
'{"name":"\\u003c/script\\u003e"}'
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from bulkedge.models.scanning.assembly import over_texts
from bulkedge.models.scanning.glossary import GROUPS, KINDS, describe, kind_of
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError

BANDS = ("spectrum", "null_low", "null_middle", "null_high")
STRIPS = ("token_stable_rank", "token_cosine")
DERIVED = ("p_", "null_", "score_", "q")
"""How the names of columns begin whose range over texts is left out."""


def embedded(value: Any) -> str:
    """JSON for a ``<script>`` element: ASCII, on one line, without angle brackets and ampersands."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.translate({ord(each): f"\\u{ord(each):04x}" for each in "<>&"})


def digits(values: Iterable[float]) -> list[float | int | str | None]:
    """Numbers with four significant digits, as JSON has them."""
    return [_digits(float(each)) for each in values]


def _digits(value: float) -> float | int | str | None:
    if np.isnan(value):
        return None
    if np.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    short = float(f"{value:.4g}")
    if np.isinf(short):  # the largest numbers of all round up to none
        return value
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def checked(data: xr.Dataset) -> xr.Dataset:
    """A scan whose heads have a layer and a number of their own."""
    missing = [name for name in ("layer", "head") if name not in data.coords or data[name].dims != ("item",)]
    if missing:
        raise DomainError(f"a scan has coordinates layer and head along its dimension item; {missing} missing")
    places = _places(data)
    if not places or len(set(places)) != len(places):
        raise DomainError(f"a scan has at least one head, and each (layer, head) once; got {len(places)} heads")
    return data


def alike(data: xr.Dataset, other: xr.Dataset) -> xr.Dataset:
    """Another scan with its heads in the order of the first."""
    order = {place: number for number, place in enumerate(_places(checked(other)))}
    places = _places(data)
    if set(order) != set(places):
        raise DomainError(
            f"two scans side by side need the same heads; {len(set(order) ^ set(places))} of them are in one only"
        )
    return other.isel(item=[order[place] for place in places])


def _places(data: xr.Dataset) -> list[tuple[int, int]]:
    return list(zip(data["layer"].values.tolist(), data["head"].values.tolist(), strict=True))


def packed(data: xr.Dataset, step: int) -> dict[str, Any]:
    """One scan's numbers."""
    values = numbers(data)
    several = data.sizes.get("text", 1) > 1
    images = pictures(data, step) if "picture" in data else np.zeros((0, 0, 0), dtype=np.uint8)
    ranges = {name: data[name] for name in values if several and _measured(data, name)}
    return {
        "tokens": int(data.attrs.get("tokens", 0)),
        "draws": int(data.attrs.get("draws", 0)),
        "causal": bool(data.attrs.get("causal", 0)),
        "texts": int(data.sizes.get("text", 1)),
        "values": {name: digits(each) for name, each in values.items()},
        "low": {name: digits(_extreme(each, np.fmin)) for name, each in ranges.items()},
        "high": {name: digits(_extreme(each, np.fmax)) for name, each in ranges.items()},
        "kinds": kinds(data),
        "bands": _bands(data),
        "pictures": base64(images),
        "shape": images.shape[1:],
        "strips": {name: digits(over_texts(data[name])) for name in STRIPS if name in data},
    }


def numbers(data: xr.Dataset) -> dict[str, Real]:
    """Every column of numbers, a value a head, in the order of the groups."""
    found = {}
    for name, variable in data.data_vars.items():
        if set(variable.dims) in ({"item"}, {"text", "item"}) and variable.dtype.kind in "fiub":
            found[str(name)] = over_texts(variable)
        elif set(variable.dims) == {"item", "factor"}:
            columns = np.asarray(variable.transpose("factor", "item"), dtype=float)
            factors = [f"{each:g}" for each in data["factor"].values.tolist()]
            found |= {f"{name}_{factor}": each for factor, each in zip(factors, columns, strict=True)}
    if "sink_position" in found:  # -1 says that there is none
        found["sink_position"] = np.where(found["sink_position"] < 0, np.nan, found["sink_position"])
    kept = {name: each for name, each in found.items() if not np.all(np.isnan(each))}
    return dict(sorted(kept.items(), key=lambda each: GROUPS.index(describe(each[0]).group)))


def kinds(data: xr.Dataset) -> list[list[str]]:
    """The kinds of every head, the one that it is called by first."""
    empty = [""] * data.sizes["item"]
    first = [str(each) for each in data["kind"].values] if "kind" in data else empty
    every = [str(each).split(", ") for each in data["kinds"].values] if "kinds" in data else [[]] * len(first)
    return [
        list(dict.fromkeys(each for each in (main, *others) if each)) for main, others in zip(first, every, strict=True)
    ]


def legend(found: Iterable[list[str]]) -> list[dict[str, str]]:
    """The kinds that heads have, in the order of ``KINDS``, others after them."""
    names = dict.fromkeys(each for head in found for each in head)
    order = [*(name for name in KINDS if name in names), *(name for name in names if name not in KINDS)]
    return [{"name": name} | kind_of(name)._asdict() for name in order]


def pictures(data: xr.Dataset, step: int) -> NDArray[np.uint8]:
    """The pictures of attention with fewer, larger blocks."""
    images = np.asarray(data["picture"].transpose("item", "row", "column"), dtype=np.uint8)
    if step == 1:
        return images
    count, rows, columns = (size // unit for size, unit in zip(images.shape, (1, step, step), strict=True))
    squares = images.astype(np.float32).reshape(count, rows, step, columns, step) ** 2
    means = np.sqrt(squares.mean(axis=(2, 4)))
    largest = means.max(axis=(1, 2), keepdims=True)
    return np.rint(means * (255 / np.where(largest > 0, largest, 1))).astype(np.uint8)


def base64(values: NDArray[Any]) -> str:
    """Bytes of an array, in the machine order of all browsers."""
    kind = np.uint8 if values.dtype == np.uint8 else np.dtype("<f4")
    return b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode("ascii")


def _bands(data: xr.Dataset) -> dict[str, str]:
    """The spectrum and the null's band, ``(item, level)`` each; without the null where no draw was made."""
    found = {name: data[name].transpose(..., "item", "level") for name in BANDS if name in data}
    medians = {name: over_texts(each) for name, each in found.items()}
    return {name: base64(each) for name, each in medians.items() if not np.all(np.isnan(each))}


def _measured(data: xr.Dataset, name: str) -> bool:
    return name in data and "text" in data[name].dims and not name.startswith(DERIVED)


def _extreme(variable: xr.DataArray, which: np.ufunc) -> Real:
    """The smallest or largest over texts; ``fmin`` and ``fmax`` pass over nan."""
    values = np.asarray(variable.transpose("text", "item"), dtype=float)
    if variable.name == "sink_position":
        values = np.where(values < 0, np.nan, values)
    return which.reduce(values, axis=0)
