"""Curves as a figure of Plotly, in plain dictionaries: nothing of Plotly is imported, and little has to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from bulkedge.lab.explore.curves import LOOKS, Curve, Panel

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
    curves: Sequence[Curve],
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


def _mark(curve: Curve, colour: str, *, shown: bool) -> dict[str, Any]:
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


def _trace(curve: Curve, colour: str, *, shown: bool, digits: int) -> dict[str, Any]:
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
