"""``bulkedge explore``: rooms to move sliders in, in a browser on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from bulkedge.cli.terminal import explained, tell


@click.command("explore")
@click.option("--port", default=8052, show_default=True, type=click.IntRange(0, 65535), help="Where to listen.")
@click.option("--no-browser", is_flag=True, help="Only serve; do not open a browser.")
@click.option(
    "--export",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the theory of all rooms into one HTML file that needs no server, and stop.",
)
def explore_command(port: int, path: Path | None, *, no_browser: bool) -> None:
    """Move β, and watch bulk, edge and outlier: rooms of theory and simulation in a browser.

    The page is served on this machine alone and needs no network. If the port is taken, the next free one is used.

    bulkedge explore
    """
    if path is not None:
        with explained(kept=False):
            from bulkedge.lab.explore.export import export

            export(path)
        tell(f"wrote {path}")
        return
    with explained("bulkedge explore opens it again", kept=False):
        from bulkedge.lab.explore.app import serve

        serve(port, browser=not no_browser, tell=lambda address: tell(f"{address} (Ctrl-C stops it)"))
