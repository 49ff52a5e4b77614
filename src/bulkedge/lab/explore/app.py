"""The explorer as a Dash app, and its server: on this machine alone, on a free port, without the network.

The app answers with the room that an address shows, the figure that a page asks for, and files to take home. The course
is a page of its own, whose figures are computed a chapter at a time.
"""

from __future__ import annotations

import csv
import io
import logging
import secrets
import socket
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bulkedge.lab.explore.course import COURSE
from bulkedge.lab.explore.export import (
    chapter_json,
    chapter_words,
    course_page,
    course_script,
    library,
    plotly,
)
from bulkedge.lab.explore.jobs import Jobs, PageJob, Theory
from bulkedge.lab.explore.room import SEED, SEEDS, Room, Trace, read_address
from bulkedge.lab.explore.rooms import ROOMS
from bulkedge.lab.explore.rooms.heads import INTERPOLATED
from bulkedge.support.domains import Integers, shown
from bulkedge.support.errors import BulkedgeError, DomainError, MissingPackageError
from bulkedge.support.files import page_templates

try:
    from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
except ImportError as error:
    raise MissingPackageError("the explorer needs Dash: pip install 'bulkedge[explore]'") from error

from bulkedge.lab.explore import matrix, pages

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer


FIRST = "heads"
OWN_ROOMS = [*((room.name, room.title) for room in ROOMS.values()), (matrix.NAME, matrix.TITLE)]
TITLES = [("course", "Course"), *OWN_ROOMS]
VALUES = Input({"parameter": ALL}, "value")
IDS = State({"parameter": ALL}, "id")
HOST = "127.0.0.1"
PORT = 8052
PORTS = Integers(0, 65535)
TRIED = 20  # ports that are tried, from the one asked for on
MOST_BODY = 96 * 2**20  # bytes of a request at most: an upload of 64 MB in base 64, and room for the rest
# what pages may load: their own files, and nothing else
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self' data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


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
    app.layout = pages.shell()
    jobs = Jobs(apart=apart)
    _route(app)
    _answer(app, jobs)
    _downloads(app, jobs)
    pages.add_callbacks(app, jobs)
    _in_the_browser(app)
    _course(app.server, jobs)
    app.server.config["JOBS"] = jobs
    return app


def _route(app: Dash) -> None:
    @app.callback(Output("page", "children"), Input("address", "pathname"), State("address", "search"))
    def show(path: str | None, search: str | None) -> Any:
        name = (path or "/").strip("/") or FIRST
        if name == matrix.NAME:
            return [pages.header(TITLES, name), html.Main(pages.matrix_page(search or ""))]
        if name in ROOMS:
            room, problems = ROOMS[name].read(search or "")
            seed = read_address(search or "", {SEED: SEEDS})[0].get(SEED, 0)
        else:
            problems = [f"there is no room {shown(name)}; there are {', '.join(each for each, _ in OWN_ROOMS)}"]
            room, seed = ROOMS[FIRST](), 0
        content = pages.room_page(room, problems, secrets.token_hex(8), seed)
        return [pages.header(TITLES, room.name), html.Main(content)]


def _course(server: Any, jobs: Jobs) -> None:
    """The pages of the course: one page, its scripts, and a file for each chapter."""
    from flask import Response, abort, send_file

    links = [{"name": name, "title": title, "link": f"/{name}"} for name, title in OWN_ROOMS]
    page, script = course_page([]), course_script([*map(chapter_words, COURSE.values()), *links])

    @server.route("/course")
    def course() -> Response:
        return Response(page, mimetype="text/html")

    @server.route("/course.js")
    def scripts() -> Response:
        return Response(script, mimetype="text/javascript")

    @server.route("/plotly.js")
    def drawing() -> Response:
        return send_file(library(), mimetype="text/javascript", max_age=3600)

    @server.route("/course/<name>.json")
    def chapter(name: str) -> Response:
        if name not in COURSE:
            abort(404)
        return Response(jobs.compute(chapter_json, name, bench="course"), mimetype="application/json")


def room_of(asked: Mapping[str, Any]) -> Room:
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
            return answer_page(jobs, asked)
        except BulkedgeError as error:
            said = f"No theory here: {error}"
        except Exception as error:  # noqa: BLE001 - shown on the page
            said = f"A fault of this page, {type(error).__name__}: {error}"
        drawn, query = empty_figure(asked)
        return drawn, [], said, {"page": page_of(asked), "version": -1, "running": False, "query": query}


def page_of(asked: Mapping[str, Any]) -> str:
    """The name of the page that asks."""
    return str(asked.get("page", ""))[:40]


def seed_of(asked: Mapping[str, Any]) -> int:
    """The seed of the first simulation that a page asks for."""
    return SEEDS.check(SEED, asked.get("seed") or 0)


def empty_figure(asked: Mapping[str, Any]) -> tuple[Any, str | None]:
    """A figure without curves, and not the one of other parameters."""
    with suppress(BulkedgeError):
        room = room_of(asked)
        return plotly(room.panels(), [], dark=bool(asked.get("dark")), meta=room.query()), room.query()
    return no_update, None


def answer_page(jobs: Jobs, asked: Mapping[str, Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """What a page gets for its parameters, at once."""
    room, page, seed = room_of(asked), page_of(asked), seed_of(asked)
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
    samples = list(job.samples)
    curves = found.curves + (room.observations(samples) if samples else [])
    look = {"dark": bool(asked.get("dark")), "narrow": bool(asked.get("narrow"))}
    drawn = plotly(room.panels(), curves, meta=room.query(), **look)
    return drawn, pages.fact_list(job.facts or found.facts), status(room, job, found.cautions, exact=exact), back


def curves_of(jobs: Jobs, room: Room) -> tuple[Theory, bool]:
    """The theory of a room, from a table while it is not there itself."""
    quick = None if jobs.theories.get(room) else room.quick()
    return (jobs.theory(room), True) if quick is None else (Theory(quick, (), {}), False)


def status(room: Room, job: PageJob, cautions: Sequence[str] = (), *, exact: bool) -> Any:
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
        if asked is None or not (_data or _python):
            return no_update
        room, seed = room_of(asked), seed_of(asked)
        if ctx.triggered_id == "get-python":
            return dcc.send_string(room.script(seed), f"bulkedge_{room.name}.py")
        samples = list(jobs.of(page_of(asked), room, seed).samples)
        curves = jobs.theory(room).curves + (room.observations(samples) if samples else [])
        return dcc.send_string(as_csv(curves), f"bulkedge_{room.name}.csv")


def as_csv(curves: Sequence[Trace]) -> str:
    """Curves as a table: a row for each point."""
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
    for name, target, *inputs in (
        ("opened", "opened", Input("page", "children")),
        ("changed", "asking", VALUES, IDS, State("about", "data")),
        ("answered", "asking", Input("answered", "data")),
        ("stop", "asking", Input("stop", "n_clicks")),
        ("theme", "asking", Input("theme", "n_clicks")),
        ("picture", "asking", Input("get-figure", "n_clicks")),
        ("picture", "look", Input("matrix-figure", "n_clicks")),
        ("located", "look", Input("matrix-where", "data")),
        ("clicked", "asking", Input("figure", "clickData")),
        ("training", "look", Input("take-head", "n_clicks")),
    ):
        app.clientside_callback(
            ClientsideFunction("explore", name),
            Output(target, "data", allow_duplicate=True),
            *inputs,
            prevent_initial_call="initial_duplicate" if name in {"changed", "training"} else True,
        )


def make_server(port: int = PORT, *, apart: bool = True) -> BaseWSGIServer:
    """The server, bound to a port but not started."""
    PORTS.check("port", port)
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        """One connection for many requests."""

        protocol_version = "HTTP/1.1"

    app = make_app(apart=apart)
    free = free_port(port)
    guard(app.server, app, free)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    return make_server(HOST, free, app.server, threaded=True, request_handler=Handler)


def free_port(port: int) -> int:
    """A port on which nothing listens."""
    for each in range(port, min(port + TRIED, PORTS.high + 1)) if port else (0,):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HOST, each))
            except OSError:
                continue
            return int(tried.getsockname()[1])
    raise DomainError(f"port = {port} is taken, and the next {TRIED} as well: choose another")


def guard(server: Any, app: Any, port: int) -> None:
    """Let only pages of this server talk to it, and let them load nothing else.

    A page of another site can make a browser ask this address under another name (DNS rebinding): requests whose host
    is not this one are refused.
    """
    from flask import Response, abort, redirect, request

    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    server.config["MAX_CONTENT_LENGTH"] = MOST_BODY
    hashes = " ".join(f"'{each.strip(chr(39))}'" for each in app.csp_hashes())
    style = page_templates("bulkedge.lab.explore").get_template("style.css").render()

    @server.before_request
    def only_here() -> Any:
        if request.host not in hosts:
            abort(403)
        return redirect("/course") if request.path == "/" else None

    @server.after_request
    def policy(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY.format(hashes=hashes)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    @server.route("/alive")
    def alive() -> Response:
        return Response("yes", mimetype="text/plain")

    @server.route("/style.css")
    def shared_style() -> Response:
        return Response(style, mimetype="text/css")


def serve(port: int = PORT, *, browser: bool = True, tell: Any = print) -> None:
    """Serve until Ctrl-C."""
    server = make_server(port)
    address = f"http://{HOST}:{server.port}/"
    tell(address)
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.serve_forever()
    finally:
        server.server_close()
        server.app.config["JOBS"].stop()
