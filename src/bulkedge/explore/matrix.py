"""The page *your matrix*: a file, or a head of the embedded model, beside the laws that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from bulkedge.domains import Integers, shown
from bulkedge.errors import BulkedgeError, DomainError
from bulkedge.explore.curves import Curve, Panel
from bulkedge.explore.drawing import plotly
from bulkedge.explore.fitting import Fit, fit
from bulkedge.explore.jobs import Jobs
from bulkedge.explore.uploads import LARGEST, MOST_BYTES, SMALLEST, content, fits, matrix, tensors
from bulkedge.version import __version__

NAME, TITLE = "matrix", "Your matrix"
SHOWS = "Which law a matrix looks like, how far it is from it, and which of its singular values stand out."
NOT_CLAIMED = "The nearest of a few laws need not be the right one: the distance says how near it is."
TOKENS = 256
LAYERS, HEADS = Integers(0, 2), Integers(0, 3)
"""Layers and heads of the embedded model."""
MOST_FITS = 16


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
        html.Div([html.Div([drop, html.P(limits, className="doc"), _tensors(), _heads()]), shown_here], className="room"),
        dcc.Store(id="matrix-fit"),
        dcc.Store(id="look"),
        dcc.Download(id="matrix-file"),
    ]


def _tensors() -> Any:
    choice = dcc.Dropdown([], id="tensor", clearable=False, placeholder="tensors of the file")
    return html.Div([html.Label("Tensor", htmlFor="tensor"), choice], className="control", id="tensor-choice", hidden=True)


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


# -- work, in the process apart ----------------------------------------------------------------------------------------


class Report(NamedTuple):
    """What a page shows of a :class:`~bulkedge.explore.fitting.Fit`: laws as curves, because laws stay in the process."""

    facts: dict[str, str]
    note: str
    laws: list[tuple[str, str]]
    outliers: list[tuple[str, str]]
    values: Any
    panels: list[Panel]
    curves: list[Curve]


def reported(found: Fit) -> Report:
    """A fit in numbers and words.

    Parameters
    ----------
    found : Fit
        What was found.

    Returns
    -------
    Report
        That can be sent to another process.
    """
    facts = {"kind": str(found.kind)}
    if np.isfinite(found.beta):
        facts |= {"β": f"{found.beta:.3f}", "dimension": f"{found.head_dim:.0f}"}
    laws = [(each.name, f"{each.distance:.3f}") for each in found.candidates]
    beyond = [(f"{each.value:.4g}", p_text(each.p_value)) for each in found.outliers]
    return Report(facts, found.note, laws, beyond, found.values, *curves_of(found))


def fit_file(name: str, data: bytes, tensor: str | None) -> Report:
    """Read a matrix of a file and fit it.

    Parameters
    ----------
    name : str
        Name of the file.
    data : bytes
        The file.
    tensor : str, optional
        Which of its tensors.

    Returns
    -------
    Report
        What was found.
    """
    return reported(fit(matrix(name, data, tensor)))


@lru_cache(maxsize=1)
def _attention() -> Any:
    """Attention of the embedded decoder on the opening of a book: (layers, heads, tokens, tokens)."""
    import torch

    from bulkedge.models.default import default_model
    from bulkedge.models.packaged import sample_text

    model, tokenizer = default_model()
    model.set_attn_implementation("eager")
    ids = torch.tensor([tokenizer(sample_text("alice"))["input_ids"][:TOKENS]])
    with torch.no_grad():
        found = model(ids, output_attentions=True).attentions
    return torch.cat(found).double().numpy()


def fit_head(layer: int, head: int) -> Report:
    """Fit the attention of a head of the embedded decoder.

    Parameters
    ----------
    layer, head : int
        Which one, from zero on.

    Returns
    -------
    Report
        What was found.
    """
    return reported(fit(_attention()[LAYERS.check("layer", layer), HEADS.check("head", head)]))


# -- what is shown -----------------------------------------------------------------------------------------------------


def curves_of(found: Fit) -> tuple[list[Panel], list[Curve]]:
    """The values of a matrix beside its two nearest laws.

    Parameters
    ----------
    found : Fit
        What was found.

    Returns
    -------
    panels : list of Panel
        One.
    curves : list of Curve
        Bars, lines, and a mark for every outlier.
    """
    values = np.maximum(found.values, 1e-9)
    low, high = max(np.quantile(values, 0.02), 1e-6), values[-1]
    ends = np.geomspace(low, 1.05 * high, 61)
    heights = np.histogram(values, ends)[0] / (len(values) * np.diff(np.log(ends)))
    curves = [Curve("the matrix", ends, heights, look="simulation", shape="bars")]
    x = np.geomspace(low, 1.05 * high, 400)
    looks: tuple[Any, ...] = ("theory", "rival")
    for candidate, look in zip(found.candidates, looks, strict=False):
        curves.append(Curve(f"{candidate.name} ({candidate.distance:.3f})", x, x * candidate.law.pdf(x), look=look))
    curves += [Curve("outlier", each.value, look="mark", shape="mark") for each in found.outliers]
    label = f"squared singular value of {found.matrix}"
    return [Panel("Density, by the logarithm of the value", label, "x · density(x)", "x")], curves


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


def p_text(p: float) -> str:
    """A p-value in words.

    Parameters
    ----------
    p : float
        Between zero and one, or NaN.

    Returns
    -------
    str
        Two digits.

    Examples
    --------
    >>> p_text(0.0123), p_text(0.0), p_text(float("nan"))
    ('0.012', 'below 1e-15', 'not known for this law')
    """
    if np.isnan(p):
        return "not known for this law"
    return "below 1e-15" if p < 1e-15 else f"{p:.2g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    body = [html.Tr([html.Td(cell, **{"data-label": name}) for name, cell in zip(head, row, strict=True)]) for row in rows]
    return html.Table([html.Thead(html.Tr([html.Th(each) for each in head])), html.Tbody(body)])


def script(source: str) -> str:
    """A program that fits the same matrix.

    Parameters
    ----------
    source : str
        Python that makes ``matrix``.

    Returns
    -------
    str
        The program.
    """
    return f'''"""{TITLE}: {SHOWS}

{NOT_CLAIMED} Made by bulkedge {__version__}.
"""

{source}
from bulkedge.explore.curves import save
from bulkedge.explore.fitting import fit
from bulkedge.explore.matrix import curves_of

found = fit(matrix)
print(found.note)
for candidate in found.candidates:
    print(f"{{candidate.distance:.3f}}  {{candidate.name}}  {{candidate.law}}")
for outlier in found.outliers:
    print(f"{{outlier.value:.4g}}  p = {{outlier.p_value:.2g}}")
save("matrix.png", *curves_of(found))
'''


# -- callbacks ---------------------------------------------------------------------------------------------------------


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
            found = known.of(key, _loading(name, chosen), fit_file, name, data, chosen)
        except BulkedgeError as error:
            return None, f"Refused: {error}", [], None, True
        said = f"{shown(name)}" + (f", tensor {shown(chosen)}" if chosen and len(names) > 1 else "")
        return found, said, names, no_update if again else chosen, len(names) < 2

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
            source = f"from bulkedge.explore.matrix import _attention\n\nmatrix = _attention()[{layer}, {head}]"
            found = known.of(f"head {layer} {head}", source, fit_head, layer, head)
        except BulkedgeError as error:
            return None, f"Refused: {error}"
        return found, f"Layer {layer}, head {head} of the embedded decoder, on {TOKENS} letters of a book."

    @app.callback(Output("matrix-result", "children"), Input("matrix-fit", "data"), Input("look", "data"))
    def shown_fit(key: str | None, look: dict[str, Any] | None) -> Any:
        if key not in known.found:
            return []
        found, look = known.found[key][0], look or {}
        drawn = plotly(found.panels, found.curves, dark=bool(look.get("dark")), narrow=bool(look.get("narrow")), meta=key)
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


def _loading(name: str, tensor: str | None) -> str:
    """Python that reads the file again, from the folder it is in; names are written as Python writes them."""
    if len(name) > 200 or (tensor is not None and len(tensor) > 500):
        raise DomainError("the name of the file or of the tensor is too long")
    return (
        "from pathlib import Path\n\nfrom bulkedge.explore.uploads import matrix as read\n\n"
        f"matrix = read({name!r}, Path({name!r}).read_bytes(), {tensor!r})"
    )
