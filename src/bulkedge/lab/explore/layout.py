"""What a page of the explorer is made of: the navigation, the controls of a room, its figure, and downloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from bulkedge.lab.explore.controls import kind, place, stops
from bulkedge.lab.explore.room import Room
from bulkedge.support.domains import Parameter


def shell() -> Any:
    """The page before it is known which room it shows."""
    return html.Div([dcc.Location(id="address", refresh="callback-nav"), dcc.Store(id="opened"), html.Div(id="page")])


def header(names: Sequence[tuple[str, str]], current: str) -> Any:
    """Title and navigation."""
    links = [
        html.A(title, href=f"/{name}", className="here" if name == current else "", **_current(name == current))
        for name, title in names
    ]
    theme = html.Button("Dark or light", id="theme", n_clicks=0, type="button")
    return html.Header([html.A("bulkedge explore", href="/", className="brand"), html.Nav(links), theme])


def _current(here: bool) -> dict[str, str]:  # noqa: FBT001 - a question, not an option
    return {"aria-current": "page"} if here else {}


def room_page(room: Room, problems: Sequence[str], session: str, seed: int = 0) -> list[Any]:
    """A room with its controls."""
    scales = {
        each.name: stops(each.domain, getattr(room, each.name))
        for each in room.declared()
        if kind(each.domain) == "slider"
    }
    clicks = [each.click for each in room.panels()]
    about = {"room": room.name, "page": session, "seed": seed, "stops": scales, "clicks": clicks}
    return [
        html.H1(room.title),
        html.P([room.shows, " ", html.Span(room.not_claimed, className="faint")], className="shows"),
        *([problem_list(problems)] if problems else []),
        html.Div(
            [
                html.Form([control(room, each) for each in room.declared()], className="panel", id="controls"),
                html.Div([_figure(), html.Dl(id="facts"), _downloads()], className="shown"),
            ],
            className="room",
        ),
        dcc.Store(id="about", data=about),
        dcc.Store(id="asked"),
        dcc.Store(id="answered"),
        dcc.Store(id="asking"),
        dcc.Download(id="file"),
    ]


def problem_list(problems: Sequence[str]) -> Any:
    """A message about an address."""
    said = [html.Li(each) for each in problems]
    return html.Div(
        [
            "Some of this address was not understood, and is left out; what it leaves out has its default:",
            html.Ul(said),
        ],
        role="alert",
        className="problem",
        id="problems",
    )


def _figure() -> Any:
    config = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
    return html.Div(
        [
            dcc.Graph(id="figure", figure={"data": [], "layout": {"height": 450}}, config=config),
            html.P(id="status", role="status"),
        ],
        id="frame",
    )


def _downloads() -> Any:
    return html.Div(
        [
            html.Button("Stop", id="stop", n_clicks=0, type="button"),
            html.Span("Download:"),
            html.Button("Figure", id="get-figure", n_clicks=0, type="button"),
            html.Button("Data", id="get-data", n_clicks=0, type="button"),
            html.Button("Python", id="get-python", n_clicks=0, type="button"),
        ],
        className="downloads",
    )


def control(room: Room, declared: Parameter) -> Any:
    """What sets one parameter."""
    name, value = declared.name, getattr(room, declared.name)
    said, own = room.symbols.get(name, name.replace("_", " ")), {"parameter": name}
    doc = html.Span(declared.doc, className="doc")
    if kind(declared.domain) == "box":
        box = dcc.Checklist(
            [{"label": said, "value": "True"}], ["True"] if value else [], id=own, persistence=False, className="box"
        )
        return html.Div([box, doc], className="control")
    if kind(declared.domain) == "buttons":
        options = [{"label": str(each), "value": str(each)} for each in declared.domain.options]  # type: ignore[attr-defined]
        buttons = dcc.RadioItems(options, str(value), id=own, persistence=False, className="buttons", inline=True)
        return html.Fieldset([html.Legend(said), buttons, doc], className="control")
    scale = stops(declared.domain, value)
    slider = dcc.Input(
        id=own, type="range", min=0, max=len(scale) - 1, step=1, value=place(scale, value), persistence=False
    )
    label = html.Label(
        [html.Span(said), html.Output(str(value), id=f"value-{name}")], htmlFor=json.dumps(own, separators=(",", ":"))
    )
    return html.Div([label, slider, doc], className="control")
