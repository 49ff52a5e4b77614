"""The page *your matrix*: where a file is dropped, a head chosen, and what was found is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from threading import Lock
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from bulkedge.lab.explore.drawing import plotly
from bulkedge.lab.explore.jobs import Jobs
from bulkedge.lab.explore.layout import problem_list
from bulkedge.lab.explore.matrix import (
    HEADS,
    LAYERS,
    NOT_CLAIMED,
    SHOWS,
    TITLE,
    TOKENS,
    Report,
    fit_file,
    fit_head,
    loading,
    script,
)
from bulkedge.lab.explore.room import read_address
from bulkedge.lab.explore.uploads import LARGEST, MOST_BYTES, SMALLEST, choices, content
from bulkedge.support.domains import shown
from bulkedge.support.errors import BulkedgeError

MOST_FITS = 16
"""Results that are kept, for all pages together."""


def page(search: str = "") -> list[Any]:
    """What stands below the header."""
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
        self.jobs, self.lock = jobs, Lock()
        self.found: dict[str, tuple[Report, str]] = {}

    def of(self, key: str, source: str, bench: str, work: Any, *arguments: Any) -> str:
        """Fit something, or find it among the last."""
        if key not in self.found:
            made = self.jobs.computed(work, *arguments, bench=bench)
            with self.lock:
                self.found[key] = made, source
                while len(self.found) > MOST_FITS:
                    self.found.pop(next(iter(self.found)))
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
        return took_file(known, sent, name, tensor if ctx.triggered_id == "tensor" else None)


def took_file(known: Fits, sent: str, name: str, tensor: str | None) -> tuple[Any, ...]:
    """Fit a matrix of a file that a page sent."""
    try:
        data = content(sent)
        names = choices(name, data)
        chosen = tensor or (names[0] if names else None)
        key = sha256(data + (chosen or "").encode()).hexdigest()
        found = known.of(key, loading(name, chosen), "files", fit_file, name, data, chosen)
    except Exception as error:  # noqa: BLE001 - told on the page, where it can be seen
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
        except Exception as error:  # noqa: BLE001 - told on the page, where it can be seen
            return None, refusal(error), no_update
        said = f"Layer {layer}, head {head} of the embedded decoder, on {TOKENS} letters of a book."
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
        if key not in known.found:
            return [], True
        found, look = known.found[key][0], look or {}
        drawn = plotly(
            found.panels, found.curves, dark=bool(look.get("dark")), narrow=bool(look.get("narrow")), meta=key
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
        if key not in known.found:
            return no_update
        found, source = known.found[key]
        if ctx.triggered_id == "matrix-python":
            return dcc.send_string(script(source), "bulkedge_matrix.py")
        return dcc.send_string("\n".join(["value", *map(repr, found.values.tolist())]) + "\n", "bulkedge_matrix.csv")
