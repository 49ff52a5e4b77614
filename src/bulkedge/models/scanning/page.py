"""The page of a scan: every head of a model on a map, and each with its attention, spectrum and numbers; one file.

What the page shows of a scan is text and numbers and never markup: names of models, modules and texts are escaped, and
the page's own policy lets no other script run and nothing be fetched.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import xarray as xr
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bulkedge.models.scanning.glossary import COLUMNS, GROUPS, canonical, describe
from bulkedge.models.scanning.page_json import STRIPS, alike, checked, digits, embedded, legend, packed
from bulkedge.version import __version__

PICTURES = 4_200_000
"""Characters that all pictures may take together: 1024 of 48 x 48, and room for everything else below 8 MB."""

NULLS = {"weights": "fresh random query and key weights"}
"""What a scan's null is to people; other names speak for themselves."""


@cache
def environment() -> Environment:
    """The templates of this room, with those that all pages share behind them."""
    return Environment(
        loader=ChoiceLoader([PackageLoader("bulkedge.models"), PackageLoader("bulkedge")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def scan_page(  # noqa: PLR0913  # four of them by name
    data: xr.Dataset,
    title: str,
    *,
    summary: Sequence[str] = (),
    warnings: Sequence[str] | None = None,
    before: xr.Dataset | None = None,
    labels: tuple[str, str] = ("before", "after"),
) -> str:
    """A scan as one HTML page that needs no other file and no network."""
    data = checked(data)
    scans = [data] if before is None else [data, alike(data, before)]
    script = environment().get_template("scan.js").render()
    page = environment().get_template("scan.html")
    text = page.render(
        title=title,
        facts=_facts(data),
        summary=summary,
        warnings=json.loads(data.attrs.get("warnings", "[]")) if warnings is None else warnings,
        paired=before is not None,
        texts=[str(each) for each in data["title"].values] if "title" in data.coords else [],
        medians=", medians over texts" if data.sizes.get("text", 1) > 1 else "",
        version=__version__,
        data=Markup(embedded(_carried(scans, labels))),  # noqa: S704  # embedded() leaves nothing that HTML reads
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
        found["null"] = f"{draws} draws of {_null(data)}" if draws else "none: nothing was tested"
    return found | {name: data.attrs[name] for name in ("seed",) if name in data.attrs}


def _null(data: xr.Dataset) -> str:
    name = str(data.attrs.get("null", "weights"))
    return NULLS.get(name, name)


def _carried(scans: Sequence[xr.Dataset], labels: tuple[str, str]) -> dict[str, Any]:
    """What the page's script reads: the heads, what their columns mean, and the numbers of every scan."""
    data, step = scans[0], coarseness(scans)
    carried = [packed(each, step) for each in scans]
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
        "null": _null(data),
        "kinds": kinds,
        "groups": GROUPS,
        "columns": _columns([*(["kind"] if kinds else []), *sorted(names, key=_place)]),
        "strips": {name: COLUMNS[name]._asdict() for name in STRIPS},
        "levels": digits(data["level"].values) if "level" in data else [],
        "factors": digits(data["factor"].values) if "factor" in data else [],
        "scans": carried,
    }


def _columns(names: Sequence[str]) -> list[dict[str, str]]:
    """What every column means; scores also say of which kind they are."""
    found = [{"name": name} | describe(name)._asdict() for name in names]
    for column in found:
        start, _, rest = column["name"].partition("_")
        if start == "score":
            column["kind"] = canonical(rest)
    return found


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
