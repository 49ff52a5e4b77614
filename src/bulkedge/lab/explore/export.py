"""Curves as figures of Plotly; the course as a page, and the course and the theory of all rooms as one file.

Figures are plain dictionaries: nothing of Plotly is imported, and little has to be sent. The page of the course holds a
figure for every stop of its sliders, computed beforehand; so does the file, which works without a server. Rooms say
which of their parameters move there (:attr:`Room.exported`). There is no simulation in these, and laws of heads are
those of the table.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from markupsafe import Markup

from bulkedge.lab.explore.course import COURSE, Chapter
from bulkedge.lab.explore.room import LOOKS, Panel, Room, Trace, control_kind
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.lab.explore.rooms.heads import ACCURACY
from bulkedge.support.errors import MissingPackageError, RegimeWarning
from bulkedge.support.files import page_templates, replace_file
from bulkedge.version import __version__

MOST_POINTS = 120  # points of a line, at most
INK, LINE = {False: "#1c1e21", True: "#e6e8eb"}, {False: "#dfe3e8", True: "#343a42"}
HEIGHT, LOW = 360, 300  # pixels of a panel, and of one on a narrow page
FOR_WORDS = 50  # more pixels for words that stand below a panel
BAR = {False: 0.06, True: 0.17}  # share of the width that a bar of colours takes, on a wide and on a narrow page
NARROW = 36  # characters of a line of the legend on a narrow page
# digits of the numbers that a page is sent, of those in the file without a server, and of maps
DIGITS, FEW_DIGITS, MAP_DIGITS = 12, 6, 4
# cividis: a scale of colours that is the same to colour-blind readers, and grows lighter throughout
MAP = ("00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838")
GREY = "%23717880"  # of words beside a bar of colours, on light pages and on dark ones
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
    low = FOR_WORDS if any(each.words for each in panels) else 0
    barred = {each.panel for each in curves if each.shape == "map"}
    layout: dict[str, Any] = PAGE | {
        "meta": meta,
        "font": {"color": INK[dark], "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 70, "r": 14, "t": 40, "b": 54, "autoexpand": True},
        "height": (LOW * rows + 120 if narrow else HEIGHT + 90) + low,
        "legend": {
            "orientation": "h",
            "y": -(0.28 + low / HEIGHT / 2) / rows,
            "x": 0,
            "xanchor": "left",
            "yanchor": "top",
        },
        "annotations": [],
        "images": [],
        "shapes": [],
    }
    for number, panel in enumerate(panels):
        x, y = _axes(number)
        place = _domains(number, len(panels), narrow=narrow, barred=number in barred)
        for kind, axis in _panel_axes(panel, number, place, dark=dark, barred=number in barred).items():
            layout[kind + "axis" + _number(number)] = axis
        words = {"text": f"<b>{panel.title}</b>", "font": {"color": INK[dark], "size": 13}}
        layout["annotations"].append(TITLE | words | {"xref": f"{x} domain", "yref": f"{y} domain"})
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for curve in curves:
        label = "<br>".join(wrap(curve.label, NARROW)) if narrow else curve.label
        own = {"name": label, "showlegend": curve.label not in named}
        colour, dash = LOOKS[curve.look][dark], LOOKS[curve.look][2]
        own |= {"after": curve.after} if curve.after else {}
        if curve.shape == "mark":
            layout["shapes"].append(own | _mark(curve, {"color": colour, "dash": dash, "width": 1.5}))
        elif curve.shape == "map":
            data.append(own | _map(curve))
            layout["images"].append(_bar(curve, _domains(curve.panel, len(panels), narrow=narrow, barred=True)))
        else:
            data.append(own | _trace(curve, colour, dash, digits))
            if curve.shape == "bars" and curve.error is not None:
                data.append(
                    own | {"showlegend": False} | _bar_errors(curve, colour, log="x" in panels[curve.panel].log)
                )
        if curve.shape != "map":
            named.add(curve.label)
    return {"data": data, "layout": layout}


def _number(panel: int) -> str:
    return str(panel + 1) if panel else ""


def _axes(panel: int) -> tuple[str, str]:
    return "x" + _number(panel), "y" + _number(panel)


def _domains(number: int, count: int, *, narrow: bool, barred: bool) -> tuple[list[float], list[float]]:
    """Where a panel is, across and up, as shares of the figure; a map leaves room for its bar of colours."""
    gap = 95 / (LOW * count) if narrow else 0.085
    size = (1 - gap * (count - 1)) / count
    low, high = number * (size + gap), number * (size + gap) + size
    across, up = ([0.0, 1.0], [1 - high, 1 - low]) if narrow else ([low, high], [0.0, 1.0])
    return [across[0], across[1] - barred * BAR[narrow]], up


def _panel_axes(panel: Panel, number: int, place: Any, *, dark: bool, barred: bool) -> dict[str, Any]:
    x, y = _axes(number)
    found = {}
    for kind, text, domain, anchor, ends in (
        ("x", panel.x, place[0], y, panel.across),
        ("y", panel.y, place[1], x, panel.down),
    ):
        title = {"text": text, "standoff": 8, "font": {"size": 12}}
        axis = AXIS | {"title": title, "domain": domain, "anchor": anchor}
        axis |= {"type": "log" if kind in panel.log else "linear", "gridcolor": LINE[dark], "linecolor": LINE[dark]}
        if ends is not None:
            low, high = np.log10(ends).tolist() if kind in panel.log else ends
            axis["range"] = [low, high]
            axis |= {"dtick": max(1, round((high - low) / 6))} if kind in panel.log else {}
        if panel.words and (kind == "x" or barred):
            size = len(panel.words)
            axis |= {"tickvals": list(range(size)), "ticktext": list(panel.words), "tickfont": {"size": 10}}
            axis |= {"range": [-0.5, size - 0.5] if kind == "x" else [size - 0.5, -0.5], "showgrid": False}
            axis |= {"tickangle": -90} if kind == "x" else {}
        found[kind] = axis
    return found


def _map(curve: Trace) -> dict[str, Any]:
    """A map of colours."""
    x, y = _axes(curve.panel)
    heights = [numbers(row, MAP_DIGITS) for row in curve.z]
    heat = {"type": "heatmap", "x": numbers(curve.x), "y": numbers(curve.y), "z": heights, "showscale": False}
    colours = [[k / (len(MAP) - 1), f"#{colour}"] for k, colour in enumerate(MAP)]
    ends = {"zmin": curve.limits[0], "zmax": curve.limits[1], "colorscale": colours}
    return heat | ends | {"xaxis": x, "yaxis": y, "showlegend": False}


def _bar(curve: Trace, place: Any) -> dict[str, Any]:
    """What the colours of a map mean, as a picture: a bar of Plotly's own takes as long to draw as all the rest."""
    across, up = place
    steps = "".join(
        f"<stop offset='{k / (len(MAP) - 1):.3f}' stop-color='%23{colour}'/>" for k, colour in enumerate(MAP)
    )
    low, high = curve.limits
    ticks = "".join(
        f"<text x='13' y='{299 - 290 * part:.0f}'>{low + part * (high - low):g}</text>"
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    picture = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 56 304' preserveAspectRatio='xMinYMin' "
        "font-family='system-ui, sans-serif'>"
        f"<linearGradient id='g' x1='0' y1='1' x2='0' y2='0'>{steps}</linearGradient>"
        f"<rect width='9' height='304' fill='url(%23g)'/><g font-size='10' fill='{GREY}'>{ticks}"
        f"<text transform='rotate(-90)' x='-152' y='52' font-size='11' text-anchor='middle'>{curve.label}</text>"
        "</g></svg>"
    )
    size = {"x": across[1] + 0.006, "y": up[1], "sizex": 0.2, "sizey": up[1] - up[0], "sizing": "contain"}
    return size | {"xref": "paper", "yref": "paper", "source": f"data:image/svg+xml;utf8,{picture}"}


def _bar_errors(curve: Trace, colour: str, *, log: bool) -> dict[str, Any]:
    """Standard errors in the middle of bars."""
    x, y = _axes(curve.panel)
    ends = np.asarray(curve.x, dtype=float)
    middle = np.sqrt(ends[1:] * ends[:-1]) if log else (ends[1:] + ends[:-1]) / 2
    error = {"array": numbers(curve.error, FEW_DIGITS), "color": colour, "thickness": 1, "width": 0}
    own = {"xaxis": x, "yaxis": y, "legendgroup": curve.label, "type": "scatter", "mode": "markers"}
    place = {"x": numbers(middle, FEW_DIGITS), "y": numbers(curve.y, FEW_DIGITS)}
    return own | place | {"error_y": error, "marker": {"size": 1, "color": colour}, "hoverinfo": "skip"}


def _mark(curve: Trace, line: dict[str, Any]) -> dict[str, Any]:
    (x, y), place = _axes(curve.panel), float(curve.x)
    ends = {"x0": place, "x1": place, "y0": 0, "y1": 1}
    return {"type": "line", "xref": x, "yref": f"{y} domain", "line": line} | ends


def _trace(curve: Trace, colour: str, dash: str, digits: int) -> dict[str, Any]:
    x, y = _axes(curve.panel)
    own: dict[str, Any] = {"xaxis": x, "yaxis": y, "legendgroup": curve.label}
    own |= {"type": "scatter", "x": numbers(curve.x, digits), "y": numbers(curve.y, digits)}
    if curve.shape == "bars":
        step = {"line": {"shape": "hv", "width": 1, "color": colour}, "fill": "tozeroy"}
        return own | step | {"mode": "lines", "y": [*own["y"], own["y"][-1]], "fillcolor": colour + "40"}
    if curve.shape == "points":
        look: dict[str, Any] = {"color": colour, "size": 10 if curve.look == "second" else 6, "symbol": "circle"}
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
    """Write the file: the course, and the theory of all rooms."""
    pages = [*map(chapter_data, COURSE.values()), *map(room_data, ROOMS.values())]
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, course_page(pages, library().read_text(encoding="utf-8")))


def library() -> Path:
    """The script of Plotly."""
    try:
        import plotly
    except ImportError as error:
        raise MissingPackageError("the page carries Plotly: pip install 'bulkedge[explore]'") from error
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def course_page(pages: Sequence[Any], script: str = "") -> str:
    """The page of the course: a whole file if it is given the script of Plotly, or one whose scripts a server has."""
    template = page_templates("bulkedge.lab.explore").get_template("course.html")
    # the library's own script, those of this package, and data in which nothing can end the script
    texts = {"library": script, "style": _own("assets", "explore.css"), "script": course_script(pages)}
    safe = {name: Markup(text) for name, text in texts.items()}  # noqa: S704
    return template.render(version=__version__, points=MOST_POINTS, accuracy=ACCURACY, **safe)


def course_script(pages: Sequence[Any]) -> str:
    """What the page of the course runs: its data, and the script that shows them."""
    # lines alone change their colours by name: the diamond of "here" is black and white on any page
    colours = {light: dark for look, (light, dark, _) in LOOKS.items() if look != "here"}
    colours |= {each[False]: each[True] for each in (INK, LINE)}
    data = json.dumps(pages, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"const PAGES = {data}, DARK = {json.dumps(colours)};\n{_own('templates', 'course.js')}"


def _own(folder: str, name: str) -> str:
    return files("bulkedge.lab.explore").joinpath(folder, name).read_text(encoding="utf-8")


def chapter_words(chapter: type[Chapter]) -> dict[str, Any]:
    """A chapter without its figures."""
    number = list(COURSE).index(chapter.name) + 1
    story = [" ".join(each.split()) for each in chapter.story.strip().split("\n\n")]
    known = {
        "number": number,
        "short": chapter.name.replace("-", " ").capitalize(),
        "story": story,
        "questions": [each._asdict() for each in chapter.questions],
    }
    return _page_words(chapter) | known


@cache
def chapter_json(name: str) -> str:
    """The figures of a chapter, for its page."""
    return json.dumps(chapter_data(COURSE[name]), allow_nan=False, separators=(",", ":"))


def chapter_data(chapter: type[Chapter]) -> dict[str, Any]:
    """A chapter as the page's script reads it, with what it says at every stop."""
    return chapter_words(chapter) | room_data(chapter, chapter.stops())


def _page_words(family: type[Room]) -> dict[str, str]:
    names = ("name", "title", "shows", "not_claimed")
    return {name: getattr(family, name) for name in names} | {"script": family().script()}


def room_data(family: type[Room], moved: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Any]:
    """A room as the page's script reads it."""
    declared = {each.name: each for each in family.declared()}
    moved = family.exported if moved is None else moved
    controls = [
        {
            "name": name,
            "title": family.symbols.get(name, name.replace("_", " ")),
            "doc": declared[name].doc,
            "kind": control_kind(declared[name].domain),
            "values": [str(each) for each in values],
            "start": list(values).index(declared[name].default) if declared[name].default in values else 0,
        }
        for name, values in moved.items()
    ]
    parts: dict[str, int] = {}
    figures = []

    def part_number(part: Any) -> int:
        """The number of a part of a figure; figures share most of theirs."""
        return parts.setdefault(json.dumps(part, allow_nan=False, separators=(",", ":")), len(parts))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RegimeWarning)
        for values in product(*moved.values()):
            room = family(**dict(zip(moved, values, strict=True)))
            curves = room.quick() or room.theory()
            drawn = plotly(room.panels(), [thin(each) for each in curves], digits=FEW_DIGITS)
            own = {key: drawn["layout"].pop(key) for key in ("shapes", "meta")} | {"meta": room.query()}
            figure = [[part_number(each) for each in drawn["data"]], part_number(drawn["layout"]), own]
            if isinstance(room, Chapter):
                places = [room.place(number) for number in range(len(room.questions))]
                figure.append({"remark": room.remark(), "final": room.final_remark(), "places": places})
            figures.append(figure)
    return _page_words(family) | {
        "controls": controls,
        "figures": figures,
        "parts": [json.loads(each) for each in parts],
    }


def thin(curve: Trace) -> Trace:
    """A line with fewer points; what is no line is as it was."""
    if curve.shape != "line" or len(curve.x) <= MOST_POINTS:
        return curve
    chosen = np.unique(np.linspace(0, len(curve.x) - 1, MOST_POINTS).round().astype(int))
    return replace(curve, x=np.asarray(curve.x)[chosen], y=np.asarray(curve.y)[chosen])
