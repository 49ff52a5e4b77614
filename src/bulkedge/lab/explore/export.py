"""The theory of all rooms as one file, without a server: a figure for every stop of its sliders, computed beforehand.

Rooms say which of their parameters move there (:attr:`Room.exported`). There is no simulation, and laws of heads are
those of the table.
"""

from __future__ import annotations

import json
import warnings
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bulkedge.lab.explore.controls import kind
from bulkedge.lab.explore.curves import LOOKS, Curve
from bulkedge.lab.explore.drawing import DARK, FEW_DIGITS, INK, LINE, plotly
from bulkedge.lab.explore.interpolation import ACCURACY
from bulkedge.lab.explore.room import Room
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.support.errors import MissingPackageError, RegimeWarning
from bulkedge.support.files import replace_text
from bulkedge.version import __version__

MOST_POINTS = 120
"""Points of a line, at most."""


@cache
def environment() -> Environment:
    """The templates of this room, with the style that all pages share behind them."""
    return Environment(
        loader=ChoiceLoader([PackageLoader("bulkedge.lab.explore"), PackageLoader("bulkedge")]),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )


def export(path: str | Path) -> None:
    """Write the page."""
    try:
        import plotly.offline as package
    except ImportError as error:
        raise MissingPackageError("the page carries Plotly: pip install 'bulkedge[explore]'") from error
    script = files("bulkedge.lab.explore").joinpath("templates", "export.js").read_text(encoding="utf-8")
    data = json.dumps([room_data(room) for room in ROOMS.values()], allow_nan=False, separators=(",", ":"))
    # lines alone change their colours by name: the diamond of "here" is black and white on any page
    colours = {LOOKS[look][0]: DARK[look] for look in LOOKS if look != "here"}
    colours |= {each[False]: each[True] for each in (INK, LINE)}
    text = (
        environment()
        .get_template("export.html")
        .render(
            version=__version__,
            points=MOST_POINTS,
            accuracy=ACCURACY,
            library=Markup(package.get_plotlyjs()),  # noqa: S704 - the library's own script
            script=Markup(script),  # noqa: S704 - a file of this package
            data=Markup(data.replace("<", "\\u003c")),  # noqa: S704 - nothing in it can end the script
            colours=Markup(json.dumps(colours)),  # noqa: S704 - numbers of colours
        )
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, text)


def room_data(family: type[Room]) -> dict[str, Any]:
    """A room as the page's script reads it."""
    declared = {each.name: each for each in family.declared()}
    controls = [
        {
            "name": name,
            "title": family.symbols.get(name, name.replace("_", " ")),
            "doc": declared[name].doc,
            "kind": kind(declared[name].domain),
            "values": [str(each) for each in values],
            "start": list(values).index(declared[name].default) if declared[name].default in values else 0,
        }
        for name, values in family.exported.items()
    ]
    parts: dict[str, int] = {}
    figures = []

    def kept(part: Any) -> int:
        """The number of a part of a figure; figures share most of theirs."""
        return parts.setdefault(json.dumps(part, allow_nan=False, separators=(",", ":")), len(parts))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)
        for values in product(*family.exported.values()):
            room = family(**dict(zip(family.exported, values, strict=True)))
            curves = room.quick() or room.theory()
            drawn = plotly(room.panels(), [thinned(each) for each in curves], digits=FEW_DIGITS)
            own = {key: drawn["layout"].pop(key) for key in ("shapes", "meta")} | {"meta": room.query()}
            figures.append([[kept(each) for each in drawn["data"]], kept(drawn["layout"]), own])
    words = {"name": family.name, "title": family.title, "shows": family.shows, "not_claimed": family.not_claimed}
    return words | {"controls": controls, "figures": figures, "parts": [json.loads(each) for each in parts]}


def thinned(curve: Curve) -> Curve:
    """A line with fewer points; what is no line is as it was."""
    import numpy as np

    if curve.shape != "line" or len(curve.x) <= MOST_POINTS:
        return curve
    chosen = np.unique(np.linspace(0, len(curve.x) - 1, MOST_POINTS).round().astype(int))
    return Curve(curve.label, np.asarray(curve.x)[chosen], np.asarray(curve.y)[chosen], curve.panel, curve.look)
