"""``bulkedge reproduce``: runs studies, reports how that goes, and prints their claims."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.terminal import (
    Heading,
    PaperCommand,
    about,
    complete_name,
    duration,
    explain_errors,
    full_message,
    out,
    show_progress,
    tell,
)
from bulkedge.support.errors import BulkedgeError
from bulkedge.support.files import to_json

if TYPE_CHECKING:
    from bulkedge.lab.gallery import Reproduction
    from bulkedge.lab.gallery.run import StudyStep
    from bulkedge.lab.studies.base import Study

COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow"}


@click.command("reproduce", cls=PaperCommand)
@click.argument("name", default="", shell_complete=complete_name)
@click.option("--paper", is_flag=True, help="Run at the paper's sizes instead of the quick ones.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Seed of every study.")
@click.option(
    "--out", "folder", default="out", show_default=True, type=click.Path(path_type=Path), help="Folder to write."
)
@click.option(
    "--again", is_flag=True, help="Run studies again even if the folder has them from the same code and seed."
)
@click.option("--workers", type=click.IntRange(1), help="Number of processes. Default: one per core.")
@click.option("--claims", "all_claims", is_flag=True, help="Print every claim, also for several studies.")
@click.option("--power", is_flag=True, help="Print the smallest error that the claims detect, item by item.")
@click.option("--json", "as_json", is_flag=True, help="Print the claims of these studies as JSON.")
def reproduce_command(  # noqa: PLR0913
    name: str, *, paper: bool, folder: Path, all_claims: bool, power: bool, as_json: bool, **given: Any
) -> None:
    """Run studies, check their claims, and write their data, figures and a page.

    NAME is a study or a paper; without NAME all studies run. The parameters of a study are options too: see
    bulkedge reproduce laws/edge --help.

    One study prints all its claims. Several studies print a line each, and the claims that do not hold; the page has
    all claims. The folder keeps earlier results. After an interruption, the same command continues.

    The exit code is 1 if a claim fails or a study raises an error. Undecided claims do not count as failures.
    """
    from bulkedge.lab.gallery import page
    from bulkedge.lab.studies.base import ready

    began, options = time.monotonic(), {key: given.pop(key) for key in ("seed", "again", "workers")}
    changes = {key: value for key, value in given.items() if value is not None}
    with explain_errors():
        chosen, left_out = ready(name)
        studies = [study.preset("paper" if paper else "quick", **changes) for study in chosen]
    for sentence in left_out:
        tell(f"left out {sentence}")
    with explain_errors("the same command goes on from there"), show_progress() as head:
        reporter = RunReporter(head)
        results, errors = _run_studies(studies, folder, options | {"watcher": reporter})
    if as_json:
        click.echo(to_json([claim for result in results for claim in result.shown_claims()], indent=1))
    elif results:
        print_claims(results, everything=all_claims or len(results) == 1, values=paper)
        if power:
            out.print(power_table(results))
        click.echo(f"the page is {folder / 'index.html'}")
    found = page.tally(claim for result in results for claim in result.claims)
    tell(
        f"{page.summary(found)}; {page.counted(len(results), 'study', 'studies')}, {reporter.kept} kept, "
        f"{duration(time.monotonic() - began)}"
    )
    for error in errors:
        tell("")
        tell(explanation(error))
    if found["fails"] or errors:
        sys.exit(1)


def _run_studies(
    studies: Sequence[Study], folder: Path, options: dict[str, Any]
) -> tuple[list[Reproduction], list[Exception]]:
    """The results of the studies that did not raise, and what the others raised."""
    from bulkedge.lab.gallery.run import ReproductionError, reproduce

    try:
        return reproduce(studies, folder, **options), []
    except ReproductionError as failed:
        return failed.results, list(failed.errors.values())


def explanation(error: Exception) -> str:
    """What a study raised: a sentence if it is the package's own error, a traceback if it is a fault of the package."""
    if isinstance(error, BulkedgeError):
        return f"Error: {full_message(error)}"
    return "".join(traceback.format_exception(error)).rstrip()


class RunReporter:
    """Reports on stderr how a run of studies goes."""

    def __init__(self, head: Heading) -> None:
        self.head, self.kept = head, 0

    def complain(self, sentence: str) -> None:
        """Something in the folder is damaged, or a study warned."""
        tell(sentence)

    def begin(self, step: StudyStep) -> None:
        """A study begins, beside others or alone."""
        done = step.number - 1
        if step.at_once > 1:
            self.head(f"study {done} of {step.total} done, {step.at_once} running{remaining(step)}", done, step.total)
        else:
            self.head(f"study {step.number} of {step.total}, {step.study}{remaining(step)}")

    def finish(self, step: StudyStep, result: Reproduction) -> None:
        """A study is done, or was there already."""
        from bulkedge.lab.gallery import page

        self.kept += step.kept
        time_taken = "kept, 0.0 s" if step.kept else duration(result.seconds)
        replaced = f", replaces one of other {' and '.join(step.replaces)}" if step.replaces else ""
        verdicts = page.sentence(page.tally(result.claims))
        tell(f"{progress(step)}: {step.study}, {verdicts}, {time_taken}{replaced}")

    def fail(self, step: StudyStep, error: Exception) -> None:
        """A study raised."""
        tell(f"{progress(step)}: {step.study} raised {type(error).__name__}, more at the end")


def progress(step: StudyStep) -> str:
    """How many studies are done, and the time left."""
    return f"study {step.number} of {step.total} done{remaining(step)}"


def remaining(step: StudyStep) -> str:
    """The time left, if there is any and it is known."""
    return f", {about(step.left)} left" if step.left else ""


def print_claims(results: list[Reproduction], *, everything: bool, values: bool = False) -> None:
    """Print claims as a table: every one, or those that do not hold, if there are any."""
    if not everything:
        kept = [(each, tuple(claim for claim in each.claims if claim.verdict != "holds")) for each in results]
        results = [replace(each, claims=claims) for each, claims in kept if claims]
    if results:
        out.print(claims_table(results, values=values))


def power_table(results: list[Reproduction]) -> Table:
    """Of each item, the smallest relative error that one of its claims detects, and what they notice of a tenth."""
    from bulkedge.lab.studies.items import ITEMS, power_of

    table = Table("item", "numbers", "bounds", "signs", "detects", "0.9", "1.1", box=None, pad_edge=False)
    claims = [claim for result in results for claim in result.claims]
    for paper in ITEMS:
        for item, found in power_of(paper, claims).items():
            table.add_row(f"{paper}: {escape(item)}", *found.cells)
    return table


def claims_table(results: list[Reproduction], *, values: bool = False) -> Table:
    """The claims of all studies as a table for a terminal: predicted, measured, what became of the rival, verdict."""
    from bulkedge.lab.gallery import page

    table = Table("claim", "predicted", "measured", "rival", "verdict", box=None, pad_edge=False)
    table.columns[-1].no_wrap = True
    for result in results:
        table.add_row(f"[bold]{escape(result.name)}[/]")
        if values:
            table.add_row("  " + escape(page.values(result.origin.parameters, result.chosen)), style="dim")
        for claim in result.claims:
            rival = ", ".join(filter(None, (page.rival(claim), page.rivalry(claim))))
            table.add_row(
                "  " + escape(claim.statement),
                page.predicted(claim),
                ", ".join(filter(None, (page.measured(claim.measured), page.off(claim), page.allowance(claim)))),
                escape(rival),
                f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]",
            )
    return table
