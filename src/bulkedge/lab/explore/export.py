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
from dataclasses import replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from markupsafe import Markup

from bulkedge.lab.explore.room import LOOKS, Panel, Room, Trace, control_kind
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.lab.explore.rooms.heads import ACCURACY
from bulkedge.support.errors import MissingPackageError, RegimeWarning
from bulkedge.support.files import page_templates, replace_file
from bulkedge.version import __version__

MOST_POINTS = 120  # points of a line, at most
INK, LINE = {False: "#1c1e21", True: "#e6e8eb"}, {False: "#dfe3e8", True: "#343a42"}
HEIGHT, LOW = 360, 300  # pixels of a panel, and of one on a narrow page
NARROW = 36  # characters of a line of the legend on a narrow page
DIGITS, FEW_DIGITS = 12, 6  # of the numbers that a page is sent, and of those in the file without a server and of maps
MAP = "Cividis"  # scale of colours that is the same to colour-blind readers, and grows lighter throughout
CLEAR = "rgba(0,0,0,0)"
PAGE = {"paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR, "hovermode": "closest", "uirevision": "page"}
AXIS = {"zeroline": False, "showline": True, "exponentformat": "power", "nticks": 6, "tickfont": {"size": 11}}
TITLE = {"x": 0, "y": 1.0, "yshift": 24, "yanchor": "top", "showarrow": False}


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
    layout: dict[str, Any] = PAGE | {
        "meta": meta,
        "font": {"color": INK[dark], "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 70, "r": 14, "t": 40, "b": 54, "autoexpand": True},
        "height": (LOW * rows + 120) if narrow else HEIGHT + 90,
        "legend": {"orientation": "h", "y": -0.28 / rows, "x": 0, "xanchor": "left", "yanchor": "top"},
        "annotations": [],
        "shapes": [],
    }
    for number, panel in enumerate(panels):
        x, y = _axes(number)
        for kind, axis in _panel_axes(panel, number, len(panels), dark=dark, narrow=narrow).items():
            layout[kind + "axis" + _number(number)] = axis
        words = {"text": f"<b>{panel.title}</b>", "font": {"color": INK[dark], "size": 13}}
        layout["annotations"].append(TITLE | words | {"xref": f"{x} domain", "yref": f"{y} domain"})
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for curve in curves:
        label = "<br>".join(wrap(curve.label, NARROW)) if narrow else curve.label
        own = {"name": label, "showlegend": curve.label not in named}
        colour, dash = LOOKS[curve.look][dark], LOOKS[curve.look][2]
        if curve.shape == "mark":
            layout["shapes"].append(own | _mark(curve, {"color": colour, "dash": dash, "width": 1.5}))
        else:
            data.append(own | _trace(curve, colour, dash, digits))
        named.add(curve.label)
    return {"data": data, "layout": layout}


def _number(panel: int) -> str:
    return str(panel + 1) if panel else ""


def _axes(panel: int) -> tuple[str, str]:
    return "x" + _number(panel), "y" + _number(panel)


def _panel_axes(panel: Panel, number: int, count: int, *, dark: bool, narrow: bool) -> dict[str, Any]:
    gap = 95 / (LOW * count) if narrow else 0.085
    size = (1 - gap * (count - 1)) / count
    place = [number * (size + gap), number * (size + gap) + size]
    across, down = ([0, 1], [1 - place[1], 1 - place[0]]) if narrow else (place, [0, 1])
    x, y = _axes(number)
    return {
        kind: AXIS
        | {"title": {"text": text, "standoff": 8, "font": {"size": 12}}, "domain": domain, "anchor": anchor}
        | {"type": "log" if kind in panel.log else "linear", "gridcolor": LINE[dark], "linecolor": LINE[dark]}
        for kind, text, domain, anchor in (("x", panel.x, across, y), ("y", panel.y, down, x))
    }


def _mark(curve: Trace, line: dict[str, Any]) -> dict[str, Any]:
    (x, y), place = _axes(curve.panel), float(curve.x)
    ends = {"x0": place, "x1": place, "y0": 0, "y1": 1}
    return {"type": "line", "xref": x, "yref": f"{y} domain", "line": line} | ends


def _trace(curve: Trace, colour: str, dash: str, digits: int) -> dict[str, Any]:
    x, y = _axes(curve.panel)
    own: dict[str, Any] = {"xaxis": x, "yaxis": y, "legendgroup": curve.label}
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
    line = {"mode": "lines", "line": {"color": colour, "dash": dash, "width": 2.2}}
    if len(own["x"]) == 1:  # no line goes through one point
        short = {"color": colour, "size": 10, "symbol": "line-ew-open", "line": {"width": 3}}
        line |= {"mode": "markers", "marker": short}
    return own | line


def export(path: str | Path) -> None:
    """Write the page."""
    try:
        import plotly.offline as package
    except ImportError as error:
        raise MissingPackageError("the page carries Plotly: pip install 'bulkedge[explore]'") from error
    script = files("bulkedge.lab.explore").joinpath("templates", "export.js").read_text(encoding="utf-8")
    data = json.dumps([room_data(room) for room in ROOMS.values()], allow_nan=False, separators=(",", ":"))
    # lines alone change their colours by name: the diamond of "here" is black and white on any page
    colours = {light: dark for look, (light, dark, _) in LOOKS.items() if look != "here"}
    colours |= {each[False]: each[True] for each in (INK, LINE)}
    # the library's own script, one of this package, data in which nothing can end the script, and numbers of colours
    parts = {"library": package.get_plotlyjs(), "script": script, "colours": json.dumps(colours)}
    safe = {name: Markup(text) for name, text in (parts | {"data": data.replace("<", "\\u003c")}).items()}  # noqa: S704
    page = page_templates("bulkedge.lab.explore").get_template("export.html")
    text = page.render(version=__version__, points=MOST_POINTS, accuracy=ACCURACY, **safe)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, text)


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

    def part_number(part: Any) -> int:
        """The number of a part of a figure; figures share most of theirs."""
        return parts.setdefault(json.dumps(part, allow_nan=False, separators=(",", ":")), len(parts))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)
        for values in product(*family.exported.values()):
            room = family(**dict(zip(family.exported, values, strict=True)))
            curves = room.quick() or room.theory()
            drawn = plotly(room.panels(), [thin(each) for each in curves], digits=FEW_DIGITS)
            own = {key: drawn["layout"].pop(key) for key in ("shapes", "meta")} | {"meta": room.query()}
            figures.append([[part_number(each) for each in drawn["data"]], part_number(drawn["layout"]), own])
    words = {"name": family.name, "title": family.title, "shows": family.shows, "not_claimed": family.not_claimed}
    return words | {"controls": controls, "figures": figures, "parts": [json.loads(each) for each in parts]}


def thin(curve: Trace) -> Trace:
    """A line with fewer points; what is no line is as it was."""
    if curve.shape != "line" or len(curve.x) <= MOST_POINTS:
        return curve
    chosen = np.unique(np.linspace(0, len(curve.x) - 1, MOST_POINTS).round().astype(int))
    return replace(curve, x=np.asarray(curve.x)[chosen], y=np.asarray(curve.y)[chosen])
