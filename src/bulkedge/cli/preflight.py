"""``bulkedge preflight``: what a configuration does at initialisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bulkedge.cli.scan import require_room
from bulkedge.cli.terminal import explain_errors, out
from bulkedge.support.files import to_json

SHOWN = {
    "layer": "layer", "beta": "β", "entropy": "entropy", "largest": "largest", "margin": "margin", "gap": "gap",
    "rank": "rank", "cosine": "cosine", "power": "power", "gradient": "gradient", "scaled_gradient": "scaled",
    "score_change": "step", "entropy_long": "entropy", "largest_long": "largest",
}  # fmt: skip
MOST = 16  # layers that are printed; of more, some


@click.command("preflight")
@click.argument("config")
@click.option("--tokens", default=8192, show_default=True, help="Length of the context.")
@click.option("--rate", type=float, help="Learning rate of Adam's first step: adds by how much it changes the scores.")
@click.option("--warmup", type=int, help="Steps of a linear warm-up; the first step has the rate over these.")
@click.option("--compare", "other", metavar="CONFIG", help="Print another configuration beside it.")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page for the browser.")
@click.option("--save", "store", type=click.Path(path_type=Path, dir_okay=False), help="Write everything as JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def preflight_command(  # noqa: PLR0913
    config: str, other: str | None, page: Path | None, store: Path | None, *, warmup: int | None, as_json: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Predict what CONFIG does at initialisation, layer by layer, and warn of what will go wrong.

    CONFIG is a config.json, its folder, or a hub id, of which nothing but the configuration is fetched. No weights are
    made or read.

    bulkedge preflight ./config.json --tokens 4096
    """
    with explain_errors(kept=False):
        from bulkedge.models.initialisation.report import preflight

        require_room(page, store)
        found = preflight(config, steps=warmup, **given)
        second = None if other is None else preflight(other, steps=warmup, **given)
        if store is not None:
            found.save(store)
        if page is not None:
            found.to_html(page)
    if as_json:
        reports = [found.facts()] if second is None else [found.facts(), second.facts()]
        click.echo(to_json(reports[0] if second is None else reports))
        return
    for each in (found,) if second is None else (found, second):
        click.echo(each.summary())
        out.print(_table(each))
        for warning in each.warnings:
            click.echo(f"Warning: {warning}")
        if not each.warnings:
            click.echo("No warnings.")
        for note in each.notes:
            click.echo(note)
    if page is not None:
        click.echo(f"the page is {page}")


def _table(found: Any) -> Table:
    """Some layers of a report, first and last ones included."""
    rows = found.records()
    every = -(-len(rows) // MOST)
    chosen = [row for row in rows if row["layer"] % every == 0 or row is rows[-1]]
    names = [name for name in SHOWN if name in rows[0]]
    titles = [SHOWN[name] + (f", {found.longer}" if name.endswith("_long") else "") for name in names]
    table = Table(*titles, box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for row in chosen:
        table.add_row(*(str(row[name]) if name == "layer" else f"{row[name]:.3g}" for name in names))
    return table
