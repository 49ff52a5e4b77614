"""Pages of the explorer: the navigation, the controls of a room, its figure and downloads, and *your matrix*."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from bulkedge.lab.explore.export import plotly
from bulkedge.lab.explore.jobs import Jobs, RecentResults
from bulkedge.lab.explore.matrix import (
    HEADS,
    LARGEST,
    LAYERS,
    LETTERS,
    MOST_BYTES,
    NOT_CLAIMED,
    SHOWS,
    SMALLEST,
    TITLE,
    Report,
    choices,
    content,
    fit_file,
    fit_head,
    loading_code,
    script,
)
from bulkedge.lab.explore.room import Room, control_kind, read_address, slider_place, stops
from bulkedge.support.domains import Parameter, shown
from bulkedge.support.errors import BulkedgeError


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
        if control_kind(each.domain) == "slider"
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
    if control_kind(declared.domain) == "box":
        box = dcc.Checklist(
            [{"label": said, "value": "True"}], ["True"] if value else [], id=own, persistence=False, className="box"
        )
        return html.Div([box, doc], className="control")
    if control_kind(declared.domain) == "buttons":
        options = [{"label": str(each), "value": str(each)} for each in declared.domain.options]  # type: ignore[attr-defined]
        buttons = dcc.RadioItems(options, str(value), id=own, persistence=False, className="buttons", inline=True)
        return html.Fieldset([html.Legend(said), buttons, doc], className="control")
    scale = stops(declared.domain, value)
    slider = dcc.Input(
        id=own, type="range", min=0, max=len(scale) - 1, step=1, value=slider_place(scale, value), persistence=False
    )
    label = html.Label(
        [html.Span(said), html.Output(str(value), id=f"value-{name}")], htmlFor=json.dumps(own, separators=(",", ":"))
    )
    return html.Div([label, slider, doc], className="control")


def matrix_page(search: str = "") -> list[Any]:
    """The page *your matrix*: where a file is dropped or a head chosen, and what was fitted is shown."""
    chosen, problems = read_address(search, {"layer": LAYERS, "head": HEADS})
    drop = dcc.Upload(
        html.Div(["Drop an .npy or .safetensors file here, or ", html.Button("choose one", type="button")]),
        id="upload",
        max_size=MOST_BYTES,
        className="drop",
        accept=".npy,.safetensors",
    )
    limits = (
        f"Up to {MOST_BYTES >> 20} MB, a matrix of {SMALLEST} to {LARGEST} rows and columns, or several. "
        "The file is read in memory, and never written to disk."
    )
    doc = html.P(limits, className="doc", id="drop-limits", **{"data-most": str(MOST_BYTES)})
    return [
        html.H1(TITLE),
        html.P([SHOWS, " ", html.Span(NOT_CLAIMED, className="faint")], className="shows"),
        *([problem_list(problems)] if problems else []),
        html.Div([html.Div([drop, doc, _tensors(), _heads(chosen)]), _shown()], className="room"),
        dcc.Store(id="matrix-fit"),
        dcc.Store(id="matrix-where"),
        dcc.Store(id="look"),
        dcc.Download(id="matrix-file"),
    ]


def _shown() -> Any:
    names = {"matrix-figure": "Figure", "matrix-data": "Data", "matrix-python": "Python"}
    buttons = [html.Button(name, id=key, n_clicks=0, type="button") for key, name in names.items()]
    return html.Div(
        [
            html.P("No matrix yet.", id="matrix-status", role="status"),
            dcc.Loading(html.Div(id="matrix-result"), type="dot", delay_show=200),
            html.Div([html.Span("Download:"), *buttons], className="downloads", id="matrix-downloads", hidden=True),
        ],
        className="shown",
    )


def _tensors() -> Any:
    choice = dcc.Dropdown([], id="tensor", clearable=False, placeholder="tensors of the file")
    return html.Div(
        [html.Label("Tensor", htmlFor="tensor"), choice], className="control", id="tensor-choice", hidden=True
    )


def _heads(chosen: Mapping[str, int]) -> Any:
    if not (find_spec("torch") and find_spec("transformers")):
        return html.P("With torch installed, a head of a small trained decoder can be chosen here.", className="doc")
    # an address that names a head has pressed the button
    pressed = 1 if set(chosen) == {"layer", "head"} else 0
    button = html.Button("Take this head", id="take-head", n_clicks=pressed, type="button")
    choices = [
        html.Fieldset(
            [
                html.Legend(name),
                dcc.RadioItems(
                    [{"label": str(each), "value": each} for each in range(domain.high + 1)],
                    chosen.get(name, 0),
                    id=f"head-{name}",
                    inline=True,
                    className="buttons",
                ),
            ],
            className="control",
        )
        for name, domain in (("layer", LAYERS), ("head", HEADS))
    ]
    when = "It is trained on this machine when it is first asked for: half a minute, if nothing else is running."
    doc = html.Span(when, className="doc")
    return html.Div([html.Strong("A head of the embedded decoder"), *choices, button, doc], className="panel")


def tables(found: Report) -> list[Any]:
    """Facts, laws and outliers."""
    facts = [html.Div([html.Dt(name), html.Dd(value)]) for name, value in found.facts.items()]
    listed = [html.Dl(facts, className="facts"), html.P(found.note, className="note")]
    if not found.laws:
        return listed
    beyond = _table(("value", "p-value: noise reaches as far"), found.outliers) if found.outliers else html.P("None.")
    return [
        *listed,
        html.H2("Laws, nearest first"),
        _table(("law", "Kolmogorov distance"), found.laws),
        html.H2("Values beyond the edge of the nearest law, as if it had not been fitted"),
        beyond,
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    body = [
        html.Tr([html.Td(cell, **{"data-label": name}) for name, cell in zip(head, row, strict=True)]) for row in rows
    ]
    return html.Table([html.Thead(html.Tr([html.Th(each) for each in head])), html.Tbody(body)])


class Fits:
    """The last results of all pages, by what they are of; the matrices themselves are not kept."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs
        self.results: RecentResults[str, tuple[Report, str]] = RecentResults(16)

    def of(self, key: str, source: str, bench: str, work: Any, *arguments: Any) -> str:
        """Fit something, or find it among the last."""
        if self.results.get(key) is None:
            self.results.put(key, (self.jobs.compute(work, *arguments, bench=bench), source))
        return key


def add_callbacks(app: Dash, jobs: Jobs) -> None:
    """Let the page work."""
    known = Fits(jobs)
    _take_files(app, known)
    _take_heads(app, known)
    _show(app, known)


def refusal(error: Exception) -> str:
    """Why something was not fitted, for the page."""
    known = isinstance(error, BulkedgeError)
    return f"Refused: {error}" if known else f"A fault of this page, {type(error).__name__}: {error}"


def _take_files(app: Dash, known: Fits) -> None:
    @app.callback(
        Output("matrix-fit", "data"),
        Output("matrix-status", "children"),
        Output("tensor", "options"),
        Output("tensor", "value"),
        Output("tensor-choice", "hidden"),
        Output("matrix-where", "data"),
        Input("upload", "contents"),
        Input("tensor", "value"),
        State("upload", "filename"),
        prevent_initial_call=True,
    )
    def uploaded(sent: str | None, tensor: str | None, name: str | None) -> Any:
        if not sent or not name:
            return no_update
        return fit_upload(known, sent, name, tensor if ctx.triggered_id == "tensor" else None)


def fit_upload(known: Fits, sent: str, name: str, tensor: str | None) -> tuple[Any, ...]:
    """Fit a matrix of a file that a page sent."""
    try:
        data = content(sent)
        names = choices(name, data)
        chosen = tensor or (names[0] if names else None)
        key = sha256(data + (chosen or "").encode()).hexdigest()
        found = known.of(key, loading_code(name, chosen), "files", fit_file, name, data, chosen)
    except Exception as error:  # noqa: BLE001 - shown on the page
        if tensor:  # another tensor of the file may do
            return None, refusal(error), no_update, no_update, no_update, ""
        return None, refusal(error), [], None, True, ""
    said = f"{shown(name)}" + (f", {shown(chosen)}" if chosen and len(names) > 1 else "")
    return found, said, names, no_update if tensor else chosen, len(names) < 2, ""


def _take_heads(app: Dash, known: Fits) -> None:
    @app.callback(
        Output("matrix-fit", "data", allow_duplicate=True),
        Output("matrix-status", "children", allow_duplicate=True),
        Output("matrix-where", "data", allow_duplicate=True),
        Input("take-head", "n_clicks"),
        State("head-layer", "value"),
        State("head-head", "value"),
        prevent_initial_call="initial_duplicate",
    )
    def taken(clicks: int | None, layer: int, head: int) -> Any:
        if not clicks:
            return no_update, no_update, no_update
        try:
            layer, head = LAYERS.check("layer", layer), HEADS.check("head", head)
            make = "from bulkedge.lab.explore.matrix import decoder_attention"
            source = f"{make}\n\nmatrix = decoder_attention()[{layer}, {head}]"
            found = known.of(f"head {layer} {head}", source, "decoder", fit_head, layer, head)
        except Exception as error:  # noqa: BLE001 - shown on the page
            return None, refusal(error), no_update
        said = f"Layer {layer}, head {head} of the embedded decoder, on {LETTERS} letters of a book."
        return found, said, f"layer={layer}&head={head}"

    app.clientside_callback(
        ClientsideFunction("explore", "training"),
        Output("look", "data", allow_duplicate=True),
        Input("take-head", "n_clicks"),
        prevent_initial_call="initial_duplicate",
    )


def _show(app: Dash, known: Fits) -> None:
    @app.callback(
        Output("matrix-result", "children"),
        Output("matrix-downloads", "hidden"),
        Input("matrix-fit", "data"),
        Input("look", "data"),
    )
    def shown_fit(key: str | None, look: dict[str, Any] | None) -> Any:
        known_fit = known.results.get(key or "")
        if known_fit is None:
            return [], True
        found, look = known_fit[0], look or {}
        drawn = plotly(
            found.panels, found.curves, dark=bool(look.get("dark")), narrow=bool(look.get("narrow")), meta=key or ""
        )
        graph = dcc.Graph(id="figure", figure=drawn, config={"displaylogo": False, "responsive": True})
        return [graph, *tables(found)], False

    @app.callback(
        Output("matrix-file", "data"),
        Input("matrix-data", "n_clicks"),
        Input("matrix-python", "n_clicks"),
        State("matrix-fit", "data"),
        prevent_initial_call=True,
    )
    def fetched(_data: int, _python: int, key: str | None) -> Any:
        known_fit = known.results.get(key or "")
        if known_fit is None:
            return no_update
        found, source = known_fit
        if ctx.triggered_id == "matrix-python":
            return dcc.send_string(script(source), "bulkedge_matrix.py")
        return dcc.send_string("\n".join(["value", *map(repr, found.values.tolist())]) + "\n", "bulkedge_matrix.csv")
