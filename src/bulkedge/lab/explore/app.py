"""The page as a Dash app: which room an address shows, the figure that a page asks for, and files to take home."""

from __future__ import annotations

import csv
import io
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from bulkedge.lab.explore import layout, matrix, matrix_page
from bulkedge.lab.explore.curves import Curve
from bulkedge.lab.explore.drawing import plotly
from bulkedge.lab.explore.interpolation import INTERPOLATED
from bulkedge.lab.explore.jobs import Job, Jobs, Theory
from bulkedge.lab.explore.room import SEED, SEEDS, Room, read_address
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.support.domains import shown
from bulkedge.support.errors import BulkedgeError, DomainError

FIRST = "heads"
TITLES = [*((room.name, room.title) for room in ROOMS.values()), (matrix.NAME, matrix.TITLE)]
VALUES = Input({"parameter": ALL}, "value")
IDS = State({"parameter": ALL}, "id")


def make_app(*, apart: bool = True) -> Dash:
    """The app, with its callbacks."""
    app = Dash(
        __name__,
        assets_folder=str(Path(__file__).parent / "assets"),
        title="bulkedge explore",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
    )
    app.index_string = app.index_string.replace("{%css%}", '<link rel="stylesheet" href="/style.css">{%css%}')
    app.layout = layout.shell()
    jobs = Jobs(apart=apart)
    _route(app)
    _answer(app, jobs)
    _downloads(app, jobs)
    matrix_page.add_callbacks(app, jobs)
    _in_the_browser(app)
    app.server.config["JOBS"] = jobs
    return app


def _route(app: Dash) -> None:
    @app.callback(Output("page", "children"), Input("address", "pathname"), State("address", "search"))
    def show(path: str | None, search: str | None) -> Any:
        name = (path or "/").strip("/") or FIRST
        if name == matrix.NAME:
            return [layout.header(TITLES, name), html.Main(matrix_page.page(search or ""))]
        seed = 0
        if name not in ROOMS:
            problem = [f"there is no room {shown(name)}; there are {', '.join(each for each, _ in TITLES)}"]
            room, problems = ROOMS[FIRST](), problem
        else:
            room, problems = ROOMS[name].read(search or "")
            seed = read_address(search or "", {SEED: SEEDS})[0].get(SEED, 0)
        session = secrets.token_hex(8)
        content = layout.room_page(room, problems, session, seed)
        return [layout.header(TITLES, room.name), html.Main(content)]


def chosen(asked: Mapping[str, Any]) -> Room:
    """The room that a page asks for."""
    name, values = asked.get("room"), asked.get("values")
    if name not in ROOMS or not isinstance(values, Mapping):
        raise DomainError(f"room = {shown(name)} is unknown")
    family = ROOMS[name]
    known = {each.name: each.domain for each in family.declared()}
    texts = {key: str(value)[:100] for key, value in values.items() if key in known}
    return family(**{key: known[key].parse(key, text) for key, text in texts.items()})


def _answer(app: Dash, jobs: Jobs) -> None:
    @app.callback(
        Output("figure", "figure"),
        Output("facts", "children"),
        Output("status", "children"),
        Output("answered", "data"),
        Input("asked", "data"),
        prevent_initial_call=True,
    )
    def answer(asked: dict[str, Any]) -> Any:
        try:
            return answered(jobs, asked)
        except BulkedgeError as error:
            said = f"No theory here: {error}"
        except Exception as error:  # noqa: BLE001 - told on the page, where it can be seen
            said = f"A fault of this page, {type(error).__name__}: {error}"
        drawn, query = empty(asked)
        return drawn, [], said, {"page": page_of(asked), "version": -1, "running": False, "query": query}


def page_of(asked: Mapping[str, Any]) -> str:
    """The name of the page that asks."""
    return str(asked.get("page", ""))[:40]


def empty(asked: Mapping[str, Any]) -> tuple[Any, str | None]:
    """A figure without curves, and not the one of other parameters."""
    try:
        room = chosen(asked)
    except BulkedgeError:
        return no_update, None
    return plotly(room.panels(), [], dark=bool(asked.get("dark")), meta=room.query()), room.query()


def answered(jobs: Jobs, asked: Mapping[str, Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """What a page gets for its parameters, at once."""
    room, page, seed = chosen(asked), page_of(asked), SEEDS.check(SEED, asked.get("seed") or 0)
    if asked.get("order") == "again":
        begun = jobs.again(page)
        seed = seed if begun is None else begun
    job = jobs.of(page, room, seed)
    if asked.get("order") == "stop":
        job.cancelled.set()
    steps = job.steps  # before anything is read: what comes in between is told the next time
    address = room.query() + (f"&{SEED}={seed}" if seed else "")
    back = {"page": page, "version": steps, "running": job.running, "query": address, "seed": seed}
    back |= {"simulated": room.draws > 0, "whole": len(job.samples) >= room.draws}
    if asked.get("version") == steps and not asked.get("order"):
        return no_update, no_update, no_update, back
    found, exact = curves_of(jobs, room)
    samples, curves = list(job.samples), found.curves
    if samples:
        curves = curves + room.seen(samples)
    look = {"dark": bool(asked.get("dark")), "narrow": bool(asked.get("narrow"))}
    drawn = plotly(room.panels(), curves, meta=room.query(), **look)
    return drawn, fact_list(job.facts or found.facts), status(room, job, found.cautions, exact=exact), back


def curves_of(jobs: Jobs, room: Room) -> tuple[Theory, bool]:
    """The theory of a room, from a table while it is not there itself."""
    found = jobs.theories.get(room)
    if found is None:
        quick = room.quick()
        if quick is not None:
            return Theory(quick, (), {}), False
        found = jobs.theory(room)
    return found, True


def fact_list(facts: Mapping[str, str]) -> list[Any]:
    """Numbers with their names."""
    return [html.Div([html.Dt(name), html.Dd(value)]) for name, value in facts.items()]


def status(room: Room, job: Job, cautions: Sequence[str] = (), *, exact: bool) -> Any:
    """How far the figure is, in words."""
    if job.problem:
        return f"The computation stopped: {job.problem}"
    said = [] if exact else [INTERPOLATED]
    if not room.draws:
        said.append(room.quiet)
    elif job.running:
        said.append(f"Simulation {len(job.samples)} of {room.draws} …")
    elif len(job.samples) < room.draws:
        said.append(f"Stopped after {len(job.samples)} of {room.draws} simulations.")
    else:
        said.append(f"{room.draws} simulations.")
    warned = [html.Span(f" Caution: {cautions[0]}.", className="outdated")] if cautions else []
    return [" ".join(said), *warned]


def _downloads(app: Dash, jobs: Jobs) -> None:
    @app.callback(
        Output("file", "data"),
        Input("get-data", "n_clicks"),
        Input("get-python", "n_clicks"),
        State("asked", "data"),
        prevent_initial_call=True,
    )
    def fetched(_data: int, _python: int, asked: dict[str, Any] | None) -> Any:
        from dash import ctx

        if asked is None or not (_data or _python):
            return no_update
        room, seed = chosen(asked), SEEDS.check(SEED, asked.get("seed") or 0)
        if ctx.triggered_id == "get-python":
            return dcc.send_string(room.script(seed), f"bulkedge_{room.name}.py")
        samples = list(jobs.of(page_of(asked), room, seed).samples)
        curves = jobs.theory(room).curves + (room.seen(samples) if samples else [])
        return dcc.send_string(as_csv(curves), f"bulkedge_{room.name}.csv")


def as_csv(curves: Sequence[Curve]) -> str:
    """Curves as a table: a row for each point."""
    import numpy as np

    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["curve", "panel", "x", "y", "z"])
    for curve in curves:
        x = np.atleast_1d(np.asarray(curve.x, dtype=float))
        y = np.full(len(x), np.nan) if curve.y is None else np.atleast_1d(np.asarray(curve.y, dtype=float))
        if curve.shape == "map":
            points = [(a, b, curve.z[j][i]) for j, b in enumerate(y) for i, a in enumerate(x)]
        else:
            y = np.append(y, y[-1]) if len(y) < len(x) else y
            points = [(a, b, np.nan) for a, b in zip(x, y, strict=True)]
        rows.writerows(
            [curve.label, curve.panel, *("" if np.isnan(v) else repr(float(v)) for v in row)] for row in points
        )
    return out.getvalue()


def _in_the_browser(app: Dash) -> None:
    def run(name: str, *inputs: Any, target: str = "asking") -> None:
        app.clientside_callback(
            ClientsideFunction("explore", name),
            Output(target, "data", allow_duplicate=True),
            *inputs,
            prevent_initial_call="initial_duplicate" if name == "changed" else True,
        )

    run("opened", Input("page", "children"), target="opened")
    run("changed", VALUES, IDS, State("about", "data"))
    run("answered", Input("answered", "data"))
    run("stop", Input("stop", "n_clicks"))
    run("theme", Input("theme", "n_clicks"))
    run("picture", Input("get-figure", "n_clicks"))
    run("picture", Input("matrix-figure", "n_clicks"), target="look")
    run("located", Input("matrix-where", "data"), target="look")
    run("clicked", Input("figure", "clickData"))
