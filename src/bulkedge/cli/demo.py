"""``bulkedge demo``: scans a small decoder and checks one headline claim of each paper, in twenty lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.reproduction import COLOURS, Teller
from bulkedge.cli.scanning import scan_command, scan_with_options, told_warnings
from bulkedge.cli.terminal import explained, out, shown_progress

if TYPE_CHECKING:
    from bulkedge.lab.gallery import Reproduction

HEADLINES = {
    "equivalence/bulk": "linear model: values beyond 4 (exp(beta^2) - 1)",
    "recovery/outlier": "largest eigenvalue from 1.5 thresholds on",
    "width/distribution": "excess kurtosis of a coordinate, 1 head",
    "propagation/rank-collapse": "slope of log(stable rank - 1) in log T after 2 layers",
}
"""Study → the claim that is shown of it: the headline figure of each paper."""


@click.command("demo")
@click.option(
    "--out",
    "folder",
    default="out/demo",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of the pages.",
)
def demo_command(folder: Path) -> None:
    """Scan a small decoder and check one headline claim of each paper, in two minutes.

    The decoder is trained on the spot, so nothing is downloaded. All claims of the four papers: bulkedge reproduce.
    """
    from bulkedge.lab.gallery.run import reproduce
    from bulkedge.lab.studies.base import studies

    defaults = scan_command.make_context("scan", []).params
    with explained("the same command goes on from there"), shown_progress() as head:
        folder.mkdir(parents=True, exist_ok=True)
        head("training and scanning a small decoder")
        with told_warnings():
            before, found = scan_with_options("", None, defaults)
        found.to_html(folder / "scan.html", before=before)
        click.echo(found.summary())
        chosen = [studies()[name].preset("quick") for name in HEADLINES]
        results = reproduce(chosen, folder, workers=None, watcher=Teller(head))
    out.print(headlines_table(results))
    click.echo(f"the page of the claims is {folder / 'index.html'}, that of the scan {folder / 'scan.html'}")
    if any(claim.verdict == "fails" for result in results for claim in result.claims):
        sys.exit(1)


def headlines_table(results: list[Reproduction]) -> Table:
    """The headline claim of each study: predicted, measured, verdict."""
    from bulkedge.lab.gallery import page

    table = Table("study", "headline claim", "predicted", "measured", "verdict", box=None, pad_edge=False)
    for result in results:
        claim = next(each for each in result.claims if each.statement == HEADLINES[result.name])
        verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]"
        measured = page.measured(claim.measured)
        table.add_row(result.name, escape(claim.statement), page.predicted(claim), measured, verdict)
    return table
