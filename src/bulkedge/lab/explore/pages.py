"""Pages of the explorer: the navigation, the controls of a room, its figure and downloads, and *your matrix*."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from bulkedge.lab.explore import matrix
from bulkedge.lab.explore.export import plotly
from bulkedge.lab.explore.jobs import Jobs, RecentResults
from bulkedge.lab.explore.room import Room, control_kind, read_address, slider_place, stops
from bulkedge.lab.matrix_files import PAGE, SUFFIXES, choices
from bulkedge.support.domains import Parameter, shown
from bulkedge.support.errors import BulkedgeError

GRAPH = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
HEADS = {"layer": matrix.LAYERS, "head": matrix.HEADS}


def shell() -> Any:
    """The page before it is known which room it shows."""
    return html.Div([dcc.Location(id="address", refresh="callback-nav"), dcc.Store(id="opened"), html.Div(id="page")])


def header(names: Sequence[tuple[str, str]], current: str) -> Any:
    """Title and navigation."""
    links = [
        html.A(title, href=f"/{name}", **({"className": "here", "aria-current": "page"} if name == current else {}))
        for name, title in names
    ]
    theme = html.Button("Dark or light", id="theme", n_clicks=0, type="button")
    return html.Header([html.A("bulkedge explore", href="/", className="brand"), html.Nav(links), theme])


def room_page(room: Room, problems: Sequence[str], session: str, seed: int = 0) -> list[Any]:
    """A room with its controls."""
    scales = {
        each.name: stops(each.domain, getattr(room, each.name))
        for each in room.declared()
        if control_kind(each.domain) == "slider"
    }
    clicks = [each.click for each in room.panels()]
    controls = [control(room, each) for each in room.declared()]
    graph = dcc.Graph(id="figure", figure={"data": [], "layout": {"height": 450}}, config=GRAPH)
    stop, *others = _buttons({"stop": "Stop", "get-figure": "Figure", "get-data": "Data", "get-python": "Python"})
    shown = [
        html.Div([graph, html.P(id="status", role="status")], id="frame"),
        html.Dl(id="facts"),
        html.Div([stop, html.Span("Download:"), *others], className="downloads"),
    ]
    about = {"room": room.name, "page": session, "seed": seed, "stops": scales, "clicks": clicks}
    return [
        *_opening(room.title, room.shows, room.not_claimed, problems),
        html.Div(
            [html.Form(controls, className="panel", id="controls"), html.Div(shown, className="shown")],
            className="room",
        ),
        dcc.Store(id="about", data=about),
        *(dcc.Store(id=each) for each in ("asked", "answered", "asking")),
        dcc.Download(id="file"),
    ]


def _opening(title: str, shows: str, not_claimed: str, problems: Sequence[str]) -> list[Any]:
    """What a page is about, and what was not understood of its address."""
    about = html.P([shows, " ", html.Span(not_claimed, className="faint")], className="shows")
    said = "Some of this address was not understood, and is left out; what it leaves out has its default:"
    told = [said, html.Ul([html.Li(each) for each in problems])]
    alert = [html.Div(told, role="alert", className="problem", id="problems")] if problems else []
    return [html.H1(title), about, *alert]


def _buttons(names: Mapping[str, str]) -> list[Any]:
    return [html.Button(name, id=key, n_clicks=0, type="button") for key, name in names.items()]


def control(room: Room, declared: Parameter) -> Any:
    """What sets one parameter."""
    name, value = declared.name, getattr(room, declared.name)
    said, own = room.symbols.get(name, name.replace("_", " ")), {"parameter": name}
    doc = html.Span(declared.doc, className="doc")
    if control_kind(declared.domain) == "box":
        box = dcc.Checklist([{"label": said, "value": "True"}], ["True"] if value else [], id=own, className="box")
        return html.Div([box, doc], className="control")
    if control_kind(declared.domain) == "buttons":
        return _choice(said, own, map(str, declared.domain.options), str(value), doc)  # type: ignore[attr-defined]
    scale = stops(declared.domain, value)
    slider = dcc.Input(id=own, type="range", min=0, max=len(scale) - 1, step=1, value=slider_place(scale, value))
    words = [html.Span(said), html.Output(str(value), id=f"value-{name}")]
    label = html.Label(words, htmlFor=json.dumps(own, separators=(",", ":")))
    return html.Div([label, slider, doc], className="control")


def _choice(said: str, own: Any, values: Iterable[Any], value: Any, *doc: Any) -> Any:
    """Buttons of which one is chosen."""
    options = [{"label": str(each), "value": each} for each in values]
    buttons = dcc.RadioItems(options, value, id=own, className="buttons", inline=True)
    return html.Fieldset([html.Legend(said), buttons, *doc], className="control")


def matrix_page(search: str = "") -> list[Any]:
    """The page *your matrix*: where a file is dropped or a head chosen, and what was fitted is shown."""
    chosen, problems = read_address(search, HEADS)
    drop = dcc.Upload(
        html.Div(["Drop an .npy, .npz, .csv or .safetensors file here, or ", html.Button("choose one", type="button")]),
        id="upload",
        max_size=PAGE.bytes,
        className="drop",
        accept=",".join(SUFFIXES),
    )
    limits = (
        f"Up to {PAGE.bytes >> 20} MB, a matrix of {PAGE.smallest} to {PAGE.largest} rows and columns, or "
        "several. The file is read in memory, and never written to disk."
    )
    doc = html.P(limits, className="doc", id="drop-limits", **{"data-most": str(PAGE.bytes)})
    tensor = dcc.Dropdown([], id="tensor", clearable=False, placeholder="tensors of the file")
    parts = [html.Label("Tensor", htmlFor="tensor"), tensor]
    choice = html.Div(parts, className="control", id="tensor-choice", hidden=True)
    buttons = _buttons({"matrix-figure": "Figure", "matrix-data": "Data", "matrix-python": "Python"})
    result = [
        html.P("No matrix yet.", id="matrix-status", role="status"),
        dcc.Loading(html.Div(id="matrix-result"), type="dot", delay_show=200),
        html.Div([html.Span("Download:"), *buttons], className="downloads", id="matrix-downloads", hidden=True),
    ]
    return [
        *_opening(matrix.TITLE, matrix.SHOWS, matrix.NOT_CLAIMED, problems),
        html.Div(
            [html.Div([drop, doc, choice, _heads(chosen)]), html.Div(result, className="shown")], className="room"
        ),
        *(dcc.Store(id=each) for each in ("matrix-fit", "matrix-where", "look")),
        dcc.Download(id="matrix-file"),
    ]


def _heads(chosen: Mapping[str, int]) -> Any:
    if not (find_spec("torch") and find_spec("transformers")):
        return html.P("With torch installed, a head of a small trained decoder can be chosen here.", className="doc")
    # an address that names a head has pressed the button
    pressed = 1 if set(chosen) == {"layer", "head"} else 0
    button = html.Button("Take this head", id="take-head", n_clicks=pressed, type="button")
    choices = [
        _choice(name, f"head-{name}", range(domain.high + 1), chosen.get(name, 0)) for name, domain in HEADS.items()
    ]
    when = "It is trained on this machine when it is first asked for: half a minute, if nothing else is running."
    doc = html.Span(when, className="doc")
    return html.Div([html.Strong("A head of the embedded decoder"), *choices, button, doc], className="panel")


def fact_list(facts: Mapping[str, str]) -> list[Any]:
    """Numbers with their names."""
    return [html.Div([html.Dt(name), html.Dd(value)]) for name, value in facts.items()]


def tables(found: matrix.Report) -> list[Any]:
    """Facts, laws and outliers."""
    listed = [html.Dl(fact_list(found.facts), className="facts")]
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
        self.results: RecentResults[str, tuple[matrix.Report, str]] = RecentResults(16)

    def of(self, key: str, source: str, bench: str, work: Any, *arguments: Any) -> str:
        """Fit something, or find it among the last."""
        if self.results.get(key) is None:
            self.results.put(key, (self.jobs.compute(work, *arguments, bench=bench), source))
        return key


def refusal(error: Exception) -> str:
    """Why something was not fitted, for the page."""
    known = isinstance(error, BulkedgeError)
    return f"Refused: {error}" if known else f"A fault of this page, {type(error).__name__}: {error}"


def fit_upload(known: Fits, sent: str, name: str, tensor: str | None) -> tuple[Any, ...]:
    """Fit a matrix of a file that a page sent."""
    try:
        data = matrix.content(sent)
        names = choices(name, data)
        chosen = tensor or (names[0] if names else None)
        key = sha256(data + (chosen or "").encode()).hexdigest()
        found = known.of(key, matrix.loading_code(name, chosen), "files", matrix.fit_file, name, data, chosen)
    except Exception as error:  # noqa: BLE001 - shown on the page
        if tensor:  # another tensor of the file may do
            return None, refusal(error), no_update, no_update, no_update, ""
        return None, refusal(error), [], None, True, ""
    said = f"{shown(name)}" + (f", {shown(chosen)}" if chosen and len(names) > 1 else "")
    return found, said, names, no_update if tensor else chosen, len(names) < 2, ""


def fit_chosen(known: Fits, layer: int, head: int) -> tuple[Any, ...]:
    """Fit a head of the embedded decoder that a page asked for."""
    try:
        layer, head = HEADS["layer"].check("layer", layer), HEADS["head"].check("head", head)
        make = "from bulkedge.lab.explore.matrix import decoder_attention"
        source = f"{make}\n\nmatrix = decoder_attention()[{layer}, {head}]"
        found = known.of(f"head {layer} {head}", source, "decoder", matrix.fit_head, layer, head)
    except Exception as error:  # noqa: BLE001 - shown on the page
        return None, refusal(error), no_update
    said = f"Layer {layer}, head {head} of the embedded decoder, on {matrix.LETTERS} letters of a book."
    return found, said, f"layer={layer}&head={head}"


def add_callbacks(app: Dash, jobs: Jobs) -> None:
    """Let the page work."""
    known = Fits(jobs)

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
        return fit_chosen(known, layer, head) if clicks else (no_update, no_update, no_update)

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
        found, page = known_fit[0], {name: bool((look or {}).get(name)) for name in ("dark", "narrow")}
        drawn = plotly(found.panels, found.curves, meta=key or "", **page)
        graph = dcc.Graph(id="figure", figure=drawn, config={"displaylogo": False, "responsive": True})
        return [html.P(found.note, className="said"), graph, *tables(found)], False

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
            return dcc.send_string(matrix.script(source), "bulkedge_matrix.py")
        return dcc.send_string("\n".join(["value", *map(repr, found.values.tolist())]) + "\n", "bulkedge_matrix.csv")
