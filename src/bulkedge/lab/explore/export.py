"""Curves as figures of Plotly, and the theory of all rooms as one file without a server.

Figures are plain dictionaries: nothing of Plotly is imported, and little has to be sent. The file holds a figure for
every stop of its sliders, computed beforehand.

Rooms say which of their parameters move there (:attr:`Room.exported`). There is no simulation, and laws of heads are
those of the table.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bulkedge.lab.explore.room import LOOKS, Panel, Room, Trace, control_kind
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.lab.explore.rooms.heads import ACCURACY
from bulkedge.support.errors import MissingPackageError, RegimeWarning
from bulkedge.support.files import replace_text
from bulkedge.version import __version__

MOST_POINTS = 120
"""Points of a line, at most."""
DARK = {
    "theory": "#f0a35e",
    "rival": "#5fcea6",
    "second": "#e3a6c8",
    "simulation": "#56b4e9",
    "mark": "#a0a8b1",
    "here": "#e6e8eb",
}
"""Lighter relatives of the colours, for a dark page."""
INK, LINE = {False: "#1c1e21", True: "#e6e8eb"}, {False: "#dfe3e8", True: "#343a42"}
HEIGHT, LOW = 360, 300
"""Pixels of a panel, and of one on a narrow page."""
NARROW = 36
"""Characters of a line of the legend on a narrow page."""
DIGITS, FEW_DIGITS = 12, 6
"""Digits of the numbers that a page is sent, and of those in the file without a server and of maps."""
MAP = "Cividis"
"""Scale of colours that is the same to colour-blind readers, and grows lighter throughout."""


def numbers(values: Any, digits: int = DIGITS) -> list[float | None]:
    """An array for JSON; what is not finite is left out of lines."""
    array = np.atleast_1d(np.asarray(values, dtype=float))
    return [float(f"{each:.{digits}g}") if np.isfinite(each) else None for each in array]


def plotly(  # noqa: PLR0913 - a figure has that many sides
    panels: Sequence[Panel],
    curves: Sequence[Trace],
    *,
    dark: bool = False,
    narrow: bool = False,
    meta: str = "",
    digits: int = DIGITS,
) -> dict[str, Any]:
    """A figure of Plotly."""
    rows = len(panels) if narrow else 1
    layout: dict[str, Any] = {
        "meta": meta,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK[dark], "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 70, "r": 14, "t": 40, "b": 54, "autoexpand": True},
        "height": (LOW * rows + 120) if narrow else HEIGHT + 90,
        "legend": {"orientation": "h", "y": -0.28 / rows, "x": 0, "xanchor": "left", "yanchor": "top"},
        "hovermode": "closest",
        "annotations": [],
        "shapes": [],
        "uirevision": "page",
    }
    for number, panel in enumerate(panels):
        _add_axes(layout, panels, number, dark=dark, narrow=narrow)
        layout["annotations"].append(_title(panel, number, dark=dark))
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for curve in curves:
        label = "<br>".join(wrap(curve.label, NARROW)) if narrow else curve.label
        colour = DARK[curve.look] if dark else LOOKS[curve.look][0]
        if curve.shape == "mark":
            layout["shapes"].append(_mark(curve, colour, shown=curve.label not in named) | {"name": label})
        else:
            data.append(_trace(curve, colour, shown=curve.label not in named, digits=digits) | {"name": label})
        named.add(curve.label)
    return {"data": data, "layout": layout}


def _axis(kind: str, number: int) -> str:
    return kind + (str(number + 1) if number else "")


def _add_axes(layout: dict[str, Any], panels: Sequence[Panel], number: int, *, dark: bool, narrow: bool) -> None:
    count, panel = len(panels), panels[number]
    gap = 95 / (LOW * count) if narrow else 0.085
    size = (1 - gap * (count - 1)) / count
    place = [number * (size + gap), number * (size + gap) + size]
    across, down = ([0, 1], [1 - place[1], 1 - place[0]]) if narrow else (place, [0, 1])
    for kind, text, domain in (("x", panel.x, across), ("y", panel.y, down)):
        layout[_axis(f"{kind}axis", number)] = {
            "title": {"text": text, "standoff": 8, "font": {"size": 12}},
            "domain": domain,
            "anchor": _axis("y" if kind == "x" else "x", number),
            "type": "log" if kind in panel.log else "linear",
            "gridcolor": LINE[dark],
            "zeroline": False,
            "linecolor": LINE[dark],
            "showline": True,
            "exponentformat": "power",
            "nticks": 6,
            "tickfont": {"size": 11},
        }


def _title(panel: Panel, number: int, *, dark: bool) -> dict[str, Any]:
    return {
        "text": f"<b>{panel.title}</b>",
        "xref": f"{_axis('x', number)} domain",
        "yref": f"{_axis('y', number)} domain",
        "x": 0,
        "y": 1.0,
        "yshift": 24,
        "yanchor": "top",
        "showarrow": False,
        "font": {"color": INK[dark], "size": 13},
    }


def _mark(curve: Trace, colour: str, *, shown: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": _axis("x", curve.panel),
        "yref": f"{_axis('y', curve.panel)} domain",
        "x0": float(curve.x),
        "x1": float(curve.x),
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "dash": LOOKS[curve.look][1], "width": 1.5},
        "name": curve.label,
        "showlegend": shown,
    }


def _trace(curve: Trace, colour: str, *, shown: bool, digits: int) -> dict[str, Any]:
    own: dict[str, Any] = {
        "name": curve.label,
        "xaxis": _axis("x", curve.panel),
        "yaxis": _axis("y", curve.panel),
        "legendgroup": curve.label,
        "showlegend": shown,
    }
    if curve.shape == "map":
        heights = [numbers(row, FEW_DIGITS) for row in curve.z]
        heat = {"type": "heatmap", "x": numbers(curve.x), "y": numbers(curve.y), "z": heights}
        # a bar of colours takes Plotly as long as a panel: titles say what is bright
        return own | heat | {"colorscale": MAP, "zmin": 0, "zmax": 1, "showscale": False, "showlegend": False}
    own |= {"type": "scatter", "x": numbers(curve.x, digits), "y": numbers(curve.y, digits)}
    if curve.shape == "bars":
        step = {"line": {"shape": "hv", "width": 1, "color": colour}, "fill": "tozeroy"}
        return own | step | {"mode": "lines", "y": [*own["y"], own["y"][-1]], "fillcolor": colour + "40"}
    if curve.shape == "points":
        look: dict[str, Any] = {"color": colour, "size": 6, "symbol": "circle"}
        if curve.look == "here":  # black and white, to be seen on any map
            look = {"color": "#fff", "size": 12, "symbol": "diamond", "line": {"width": 2, "color": "#000"}}
        bars = {}
        if curve.error is not None:
            bars = {"error_y": {"array": numbers(curve.error), "color": colour, "thickness": 1.5, "width": 3}}
        return own | {"mode": "markers", "marker": look} | bars
    line = {"mode": "lines", "line": {"color": colour, "dash": LOOKS[curve.look][1], "width": 2.2}}
    if len(own["x"]) == 1:  # no line goes through one point
        dash = {"color": colour, "size": 10, "symbol": "line-ew-open", "line": {"width": 3}}
        line |= {"mode": "markers", "marker": dash}
    return own | line


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
            "kind": control_kind(declared[name].domain),
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
            drawn = plotly(room.panels(), [thin(each) for each in curves], digits=FEW_DIGITS)
            own = {key: drawn["layout"].pop(key) for key in ("shapes", "meta")} | {"meta": room.query()}
            figures.append([[kept(each) for each in drawn["data"]], kept(drawn["layout"]), own])
    words = {"name": family.name, "title": family.title, "shows": family.shows, "not_claimed": family.not_claimed}
    return words | {"controls": controls, "figures": figures, "parts": [json.loads(each) for each in parts]}


def thin(curve: Trace) -> Trace:
    """A line with fewer points; what is no line is as it was."""
    import numpy as np

    if curve.shape != "line" or len(curve.x) <= MOST_POINTS:
        return curve
    chosen = np.unique(np.linspace(0, len(curve.x) - 1, MOST_POINTS).round().astype(int))
    return Trace(curve.label, np.asarray(curve.x)[chosen], np.asarray(curve.y)[chosen], curve.panel, curve.look)
