"""The server of the explorer: on this machine alone, on a port that is free, without anything from the network."""

from __future__ import annotations

import logging
import socket
import threading
import webbrowser
from typing import TYPE_CHECKING, Any

from bulkedge.support.domains import Integers
from bulkedge.support.errors import DomainError, MissingPackageError

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

HOST = "127.0.0.1"
PORT = 8052
PORTS = Integers(0, 65535)
TRIED = 20
"""Ports that are tried, from the one asked for on."""
MOST_BODY = 96 * 2**20
"""Bytes of a request at most: an upload of 64 MB in base 64, and room for the rest."""
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self' data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""What pages may load: their own files, and nothing else."""


def make_server(port: int = PORT, *, apart: bool = True) -> BaseWSGIServer:
    """The server, bound to a port but not started."""
    PORTS.check("port", port)
    try:
        from werkzeug.serving import WSGIRequestHandler, make_server

        from bulkedge.lab.explore.app import make_app
    except ImportError as error:
        if error.name and error.name.startswith("bulkedge"):
            raise
        raise MissingPackageError("the explorer needs Dash: pip install 'bulkedge[explore]'") from error

    class Handler(WSGIRequestHandler):
        """One connection for many requests, and no line for each of them."""

        protocol_version = "HTTP/1.1"

        def log_request(self, *_: Any) -> None:
            """Say nothing."""

    app = make_app(apart=apart)
    free = free_port(port)
    guard(app.server, app, free)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
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
    from flask import Response, abort, request

    from bulkedge.lab.gallery.page import environment

    hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
    server.config["MAX_CONTENT_LENGTH"] = MOST_BODY
    hashes = " ".join(f"'{each.strip(chr(39))}'" for each in app.csp_hashes())
    style = environment().get_template("style.css").render()

    @server.before_request
    def only_here() -> None:
        if request.host not in hosts:
            abort(403)

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
