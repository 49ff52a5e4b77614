r"""The page of a scan: every head of a model on a map, and each with its attention, spectrum and numbers; one file.

What the page shows of a scan is text and numbers and never markup: names of models, modules and texts are escaped, and
the page's own policy lets no other script run and nothing be fetched.

Its script reads the scan from compact JSON: medians over texts, four digits, long arrays in base 64. Numbers that are
missing are null, infinite ones the texts "Infinity" and "-Infinity", which JavaScript's ``Number`` reads; the JSON has
no character that could end the element of HTML around it.

>>> digits([0.123456, float("nan"), 12.0, float("inf")])
[0.1235, None, 12, 'Infinity']
>>> embed_json({"name": "</script>"})
'{"name":"\\u003c/script\\u003e"}'
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import xarray as xr
from markupsafe import Markup
from numpy.typing import NDArray

from bulkedge.models.scanning.glossary import COLUMNS, GROUPS, KINDS, describe, kind_of
from bulkedge.models.scanning.removal import EFFECTS, cost_curve
from bulkedge.models.scanning.results import over_texts
from bulkedge.support.arrays import Real
from bulkedge.support.errors import DomainError
from bulkedge.support.files import page_templates
from bulkedge.version import __version__

PICTURES = 4_200_000
"""Characters that all pictures may take together: 1024 of 48 x 48, and room for everything else below 8 MB."""
STRIPS = ("token_stable_rank", "token_cosine")  # numbers of a layer


def scan_page(  # noqa: PLR0913  # four of them by name
    data: xr.Dataset,
    title: str,
    *,
    summary: Sequence[str] = (),
    warnings: Sequence[str] = (),
    before: xr.Dataset | None = None,
    measured: Sequence[tuple[float, float, float]] = (),
    labels: tuple[str, str] = ("before", "after"),
) -> str:
    """A scan as one HTML page that needs no other file and no network."""
    check_scan(data)
    scans = [data] if before is None else [data, reorder(before, data)]
    script = page_templates("bulkedge.models").get_template("scan.js").render()
    page = page_templates("bulkedge.models").get_template("scan.html")
    text = page.render(
        title=title,
        facts=_facts(data),
        summary=summary,
        warnings=warnings,
        paired=before is not None,
        texts=[str(each) for each in data["title"].values] if "title" in data.coords else [],
        medians=", medians over texts" if data.sizes.get("text", 1) > 1 else "",
        version=__version__,
        data=Markup(embed_json(_page_data(scans, labels) | {"worth": _worth(data, measured)})),  # noqa: S704  # embed_json() leaves nothing that HTML reads
        script=Markup(script),  # noqa: S704  # a file of this package
        digest=Markup("sha256-" + b64encode(sha256(script.encode()).digest()).decode()),  # noqa: S704  # base 64
    )
    # names of files can hold halves of characters, which no encoding writes
    return text.encode("utf-8", "replace").decode("utf-8")


def _facts(data: xr.Dataset) -> dict[str, Any]:
    """What was read, in words; what the scan does not say is left out."""
    names = {"model": "model", "architecture": "architecture", "tokens": "tokens a text"}
    found = {title: data.attrs[name] for name, title in names.items() if name in data.attrs}
    found["texts"] = data.sizes.get("text", 1)
    found["layers"] = len(set(data["layer"].values.tolist()))
    found["heads"] = data.sizes["item"]
    if "draws" in data.attrs:
        draws = int(data.attrs["draws"])
        found["null"] = f"{draws} random heads a layer" if draws else "none: nothing was tested"
    return found


def _page_data(scans: Sequence[xr.Dataset], labels: tuple[str, str]) -> dict[str, Any]:
    """What the page's script reads: the heads, what their columns mean, and the numbers of every scan."""
    data, step = scans[0], coarseness(scans)
    carried = [pack_scan(each, step) for each in scans]
    names = list(dict.fromkeys(name for each in carried for name in each["values"]))
    kinds = legend(kinds for each in carried for kinds in each["kinds"])
    modules = [str(each) for each in data["module"].values] if "module" in data.coords else []
    paths = list(dict.fromkeys(modules))
    place = {path: number for number, path in enumerate(paths)}
    return {
        "labels": list(reversed(labels)) if len(scans) > 1 else ["this scan"],
        "heads": {
            "layer": data["layer"].values.tolist(),
            "head": data["head"].values.tolist(),
            "module": [place[each] for each in modules] or [0] * data.sizes["item"],
        },
        "modules": paths,
        "kinds": kinds,
        "groups": GROUPS,
        "columns": _columns([*(["kind"] if kinds else []), *sorted(names, key=_place)]),
        "strips": {name: COLUMNS[name]._asdict() for name in STRIPS},
        "levels": digits(data["level"].values) if "level" in data else [],
        "factors": digits(data["factor"].values) if "factor" in data else [],
        "scans": carried,
    }


def _worth(data: xr.Dataset, measured: Sequence[tuple[float, float, float]]) -> dict[str, Any] | None:
    """What removing the cheapest heads is predicted to cost, and what was measured: numbers of heads, costs, errors."""
    if not any(name in data for name in EFFECTS):
        return None
    names = ("heads", "cost", "error")
    found: dict[str, Any] = dict(zip(names, map(digits, cost_curve(data)), strict=True))
    return found | {"measured": [dict(zip(names, digits(each), strict=True)) for each in measured]}


def _columns(names: Sequence[str]) -> list[dict[str, str]]:
    """What every column means; scores also say of which kind they are."""
    found = [{"name": name} | describe(name)._asdict() for name in names]
    return [
        each | ({"kind": name[6:]} if name.startswith("score_") else {})
        for name, each in zip(names, found, strict=True)
    ]


def _place(name: str) -> tuple[int, int]:
    """Where a column stands: by its group, then as in the list of columns, what is derived from these after them."""
    order = list(COLUMNS)
    return GROUPS.index(describe(name).group), order.index(name) if name in COLUMNS else len(order)


def coarseness(scans: Sequence[xr.Dataset]) -> int:
    """How many rows and columns of a picture become one, so that the pictures of all heads fit in the page."""
    sizes = [each["picture"].sizes for each in scans if "picture" in each]
    characters = sum(size["item"] * size["row"] * size["column"] for size in sizes) * 4 / 3
    largest = min((min(size["row"], size["column"]) for size in sizes), default=1)
    steps = [
        step
        for step in range(1, largest + 1)
        if all(size["row"] % step == size["column"] % step == 0 for size in sizes)
    ]
    return next((step for step in steps if characters / step**2 <= PICTURES), steps[-1])


# -- the JSON ----------------------------------------------------------------------------------------------------------


def embed_json(value: Any) -> str:
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


def check_scan(data: xr.Dataset) -> None:
    """Refuse a scan whose heads do not have a layer and a number of their own."""
    missing = [name for name in ("layer", "head") if name not in data.coords or data[name].dims != ("item",)]
    if missing:
        raise DomainError(f"a scan has coordinates layer and head along its dimension item; {missing} missing")
    places = _places(data)
    if not places or len(set(places)) != len(places):
        raise DomainError(f"a scan has at least one head, and each (layer, head) once; got {len(places)} heads")


def reorder(other: xr.Dataset, data: xr.Dataset) -> xr.Dataset:
    """Another scan with its heads in the order of the first."""
    check_scan(other)
    order = {place: number for number, place in enumerate(_places(other))}
    places = _places(data)
    if set(order) != set(places):
        raise DomainError(
            f"two scans side by side need the same heads; {len(set(order) ^ set(places))} of them are in one only"
        )
    return other.isel(item=[order[place] for place in places])


def _places(data: xr.Dataset) -> list[tuple[int, int]]:
    return list(zip(data["layer"].values.tolist(), data["head"].values.tolist(), strict=True))


def pack_scan(data: xr.Dataset, step: int) -> dict[str, Any]:
    """One scan's numbers."""
    values = numbers(data)
    several = data.sizes.get("text", 1) > 1
    images = pictures(data, step) if "picture" in data else np.zeros((0, 0, 0), dtype=np.uint8)
    ranges = {name: data[name] for name in values if several and _has_range(data, name)}
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
        "shownTokens": json.loads(data.attrs.get("shown_tokens", "[]")),
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
    names = ("spectrum", "null_low", "null_middle", "null_high")
    found = {name: data[name].transpose(..., "item", "level") for name in names if name in data}
    medians = {name: over_texts(each) for name, each in found.items()}
    return {name: base64(each) for name, each in medians.items() if not np.all(np.isnan(each))}


def _has_range(data: xr.Dataset, name: str) -> bool:
    derived = name.startswith(("p_", "null_", "score_", "q"))
    return name in data and "text" in data[name].dims and not derived


def _extreme(variable: xr.DataArray, which: np.ufunc) -> Real:
    """The smallest or largest over texts; ``fmin`` and ``fmax`` pass over nan."""
    values = np.asarray(variable.transpose("text", "item"), dtype=float)
    if variable.name == "sink_position":
        values = np.where(values < 0, np.nan, values)
    return which.reduce(values, axis=0)
