"""The page *your matrix*: where a file is dropped, a head chosen, and what was found is shown."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from threading import Lock
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from bulkedge.domains import shown
from bulkedge.errors import BulkedgeError
from bulkedge.explore.drawing import plotly
from bulkedge.explore.jobs import Jobs
from bulkedge.explore.matrix import (
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
from bulkedge.explore.uploads import LARGEST, MOST_BYTES, SMALLEST, content, fits, tensors

MOST_FITS = 16
"""Results that are kept, for all pages together."""


def page() -> list[Any]:
    """What stands below the header.

    Returns
    -------
    list of dash components
        A place to drop a file, heads to choose, and where results go.
    """
    drop = dcc.Upload(
        html.Div(["Drop an .npy or .safetensors file here, or ", html.Button("choose one", type="button")]),
        id="upload",
        max_size=MOST_BYTES,
        className="drop",
        accept=".npy,.safetensors",
    )
    limits = (
        f"Up to {MOST_BYTES >> 20} MB, a matrix of {SMALLEST} to {LARGEST} rows and columns. "
        "The file is read in memory, and never written to disk."
    )
    shown_here = html.Div(
        [
            html.P("No matrix yet.", id="matrix-status", role="status"),
            dcc.Loading(html.Div(id="matrix-result"), type="dot", delay_show=200),
            html.Div(
                [
                    html.Span("Download:"),
                    html.Button("Data", id="matrix-data", n_clicks=0, type="button"),
                    html.Button("Python", id="matrix-python", n_clicks=0, type="button"),
                ],
                className="downloads",
            ),
        ],
        className="shown",
    )
    return [
        html.H1(TITLE),
        html.P([SHOWS, " ", html.Span(NOT_CLAIMED, className="faint")], className="shows"),
        html.Div(
            [html.Div([drop, html.P(limits, className="doc"), _tensors(), _heads()]), shown_here], className="room"
        ),
        dcc.Store(id="matrix-fit"),
        dcc.Store(id="look"),
        dcc.Download(id="matrix-file"),
    ]


def _tensors() -> Any:
    choice = dcc.Dropdown([], id="tensor", clearable=False, placeholder="tensors of the file")
    return html.Div(
        [html.Label("Tensor", htmlFor="tensor"), choice], className="control", id="tensor-choice", hidden=True
    )


def _heads() -> Any:
    if not (find_spec("torch") and find_spec("transformers")):
        return html.P("With torch installed, a head of a small trained decoder can be chosen here.", className="doc")
    button = html.Button("Take a head of the embedded decoder", id="take-head", n_clicks=0, type="button")
    choices = [
        html.Fieldset(
            [
                html.Legend(name),
                dcc.RadioItems(
                    [{"label": str(each), "value": each} for each in range(domain.high + 1)],
                    0,
                    id=f"head-{name}",
                    inline=True,
                    className="buttons",
                ),
            ],
            className="control",
        )
        for name, domain in (("layer", LAYERS), ("head", HEADS))
    ]
    doc = html.Span("It is trained on this machine when it is first asked for: half a minute.", className="doc")
    return html.Div([*choices, button, doc], className="panel")


def tables(found: Report) -> list[Any]:
    """Facts, laws and outliers.

    Parameters
    ----------
    found : Report
        What was found.

    Returns
    -------
    list of dash components
        Lists and tables.
    """
    beyond = _table(("value", "p-value: noise reaches as far"), found.outliers) if found.outliers else html.P("None.")
    return [
        html.Dl([html.Div([html.Dt(name), html.Dd(value)]) for name, value in found.facts.items()], className="facts"),
        html.P(found.note, className="note"),
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

    def of(self, key: str, source: str, work: Any, *arguments: Any) -> str:
        """Fit something, or find it among the last.

        Parameters
        ----------
        key : str
            What it is known by.
        source : str
            Python that makes the matrix.
        work : callable
            What fits it.
        *arguments : object
            Its arguments.

        Returns
        -------
        str
            The key.
        """
        if key not in self.found:
            made = self.jobs.computed(work, *arguments)
            with self.lock:
                self.found[key] = made, source
                while len(self.found) > MOST_FITS:
                    self.found.pop(next(iter(self.found)))
        return key


def add_callbacks(app: Dash, jobs: Jobs) -> None:
    """Let the page work.

    Parameters
    ----------
    app : Dash
        The app.
    jobs : Jobs
        Where is computed.
    """
    known = Fits(jobs)
    _take_files(app, known)
    _take_heads(app, known)
    _show(app, known)


def _take_files(app: Dash, known: Fits) -> None:
    @app.callback(
        Output("matrix-fit", "data"),
        Output("matrix-status", "children"),
        Output("tensor", "options"),
        Output("tensor", "value"),
        Output("tensor-choice", "hidden"),
        Input("upload", "contents"),
        Input("tensor", "value"),
        State("upload", "filename"),
        prevent_initial_call=True,
    )
    def uploaded(sent: str | None, tensor: str | None, name: str | None) -> Any:
        if not sent or not name:
            return no_update
        again = ctx.triggered_id == "tensor"
        try:
            data = content(sent)
            names = [key for key, shape in tensors(name, data).items() if fits(shape)]
            chosen = tensor if again else (names[0] if names else None)
            key = sha256(data + (chosen or "").encode()).hexdigest()
            found = known.of(key, loading(name, chosen), fit_file, name, data, chosen)
        except BulkedgeError as error:
            return None, f"Refused: {error}", [], None, True
        said = f"{shown(name)}" + (f", tensor {shown(chosen)}" if chosen and len(names) > 1 else "")
        return found, said, names, no_update if again else chosen, len(names) < 2


def _take_heads(app: Dash, known: Fits) -> None:
    @app.callback(
        Output("matrix-fit", "data", allow_duplicate=True),
        Output("matrix-status", "children", allow_duplicate=True),
        Input("take-head", "n_clicks"),
        State("head-layer", "value"),
        State("head-head", "value"),
        prevent_initial_call=True,
    )
    def taken(clicks: int, layer: int, head: int) -> Any:
        if not clicks:
            return no_update, no_update
        try:
            layer, head = LAYERS.check("layer", layer), HEADS.check("head", head)
            make = "from bulkedge.explore.matrix import decoder_attention"
            source = f"{make}\n\nmatrix = decoder_attention()[{layer}, {head}]"
            found = known.of(f"head {layer} {head}", source, fit_head, layer, head)
        except BulkedgeError as error:
            return None, f"Refused: {error}"
        return found, f"Layer {layer}, head {head} of the embedded decoder, on {TOKENS} letters of a book."


def _show(app: Dash, known: Fits) -> None:
    @app.callback(Output("matrix-result", "children"), Input("matrix-fit", "data"), Input("look", "data"))
    def shown_fit(key: str | None, look: dict[str, Any] | None) -> Any:
        if key not in known.found:
            return []
        found, look = known.found[key][0], look or {}
        drawn = plotly(
            found.panels, found.curves, dark=bool(look.get("dark")), narrow=bool(look.get("narrow")), meta=key
        )
        return [dcc.Graph(id="figure", figure=drawn, config={"displaylogo": False, "responsive": True}), *tables(found)]

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
