"""``bulkedge scan``: reads the heads of a model and says what they do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.terminal import explained, out, shown_progress, tell
from bulkedge.errors import MissingPackageError
from bulkedge.records import written

if TYPE_CHECKING:
    from bulkedge.models.results import Scan

SHOWN = {
    "layer": "layer",
    "head": "head",
    "kinds": "kind",
    "beta": "β",
    "entropy": "entropy",
    "sink_mass": "sink",
    "offset": "offset",
    "offset_mass": "mass",
    "near_mass": "near",
    "column_energy": "columns",
    "effective_rank": "rank",
    "distance": "distance",
    "null_distance": "null",
    "q": "q",
}
"""Columns of the terminal's table, and what stands above them."""


@click.command("scan")
@click.argument("model", default="")
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text to read, in UTF-8; repeatable. Default: the opening of a book.",
)
@click.option("--tokens", default=512, show_default=True, help="Tokens of each text that are read.")
@click.option("--layers", metavar="0,5,...", help="Attention modules, in the order of their calls. Default: all.")
@click.option("--draws", default=19, show_default=True, help="Fresh random heads a layer; 0 for no p-values.")
@click.option("--no-probe", is_flag=True, help="Do not look for induction heads on repeated random tokens.")
@click.option("--device", help="Where to run: cpu, cuda, mps.")
@click.option("--seed", default=0, show_default=True, help="Seed of the random weights.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page to look at.")
@click.option("--save", "store", type=click.Path(path_type=Path), help="Save everything, for bulkedge.load_scan.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model of a hub.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def scan_command(model: str, *, page: Path | None, store: Path | None, as_json: bool, **given: Any) -> None:
    """Read every head of MODEL: what it does, which are idle, and how sure we are.

    MODEL is a folder, a checkpoint with its config.json, a GGUF file, a hub id, or minilm; without one, a small decoder
    is trained on the spot and read before and after.

    bulkedge scan minilm --html heads.html
    """
    with explained(), shown_progress(), warnings.catch_warnings(record=True) as heard:
        before, found = _scanned(model, given)
    for each in heard:
        tell(f"warning: {each.message}")
    with explained():
        if store is not None:
            found.save(store)
        if page is not None:
            found.to_html(page, before=before)
    if as_json:
        click.echo(written(found.records()))
        return
    out.print(heads_table(found))
    for sentence in (*found.summary().splitlines(), *found.warnings):
        click.echo(sentence)
    if page is not None:
        click.echo(f"the page is {page}")


def _scanned(name: str, given: dict[str, Any]) -> tuple[Scan | None, Scan]:
    """The scan, and for the default model one from before its training."""
    try:
        from bulkedge.models import load_model, scan
    except ImportError as error:
        raise MissingPackageError(
            f"a scan needs torch and transformers: pip install 'bulkedge[torch]' ({error})"
        ) from None
    texts = [path.read_text(encoding="utf-8") for path in given["texts"]] or None
    layers = None if given["layers"] is None else [int(each) for each in given["layers"].split(",")]
    options: dict[str, Any] = {
        "tokens": given["tokens"],
        "layers": layers,
        "draws": given["draws"],
        "probe": not given["no_probe"],
        "device": given["device"],
        "rng": given["seed"],
    }
    before = None
    if not name:
        from bulkedge.models import default_model

        fresh, tokenizer = default_model(trained=False)
        before = scan(fresh, texts, tokenizer=tokenizer, **options)
    model, tokenizer, _ = load_model(name, trust_remote_code=given["trust_remote_code"])
    return before, scan(model, texts, tokenizer=tokenizer, **options)


def heads_table(scan: Scan) -> Table:
    """The heads as a table for a terminal.

    Parameters
    ----------
    scan : Scan
        A scan.

    Returns
    -------
    rich.table.Table
        A row a head.
    """
    table = Table(*SHOWN.values(), box=None, pad_edge=False)
    for row in scan.records():
        table.add_row(*(_cell(row[name]) for name in SHOWN))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.3g}"  # noqa: PLR0124 - nan
    return escape(str(value))
