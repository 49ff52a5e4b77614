"""The command line, ``bulkedge demo | list | reproduce | scan | sweep | law | explore``: arguments and printing."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from bulkedge.cli.check import check_command
from bulkedge.cli.preflight import preflight_command
from bulkedge.cli.reproduce import COLOURS, RunReporter, reproduce_command
from bulkedge.cli.scan import print_warnings, scan_command, scan_with_options
from bulkedge.cli.terminal import (
    DomainType,
    LawCommand,
    StudyCommand,
    complete_name,
    err,
    explain_errors,
    families,
    fit_width,
    out,
    show_progress,
    tell,
    unknown,
)
from bulkedge.support.domains import Each, Interval, parameters
from bulkedge.support.errors import DomainError
from bulkedge.support.files import to_json
from bulkedge.version import __version__

if TYPE_CHECKING:
    from bulkedge.lab.gallery import Reproduction
    from bulkedge.lab.sweeps import Sweep
    from bulkedge.laws import Law

# study → the claim that is shown of it: the headline figure of each paper
HEADLINES = {
    "equivalence/bulk": "linear model: values beyond 4 (exp(beta^2) - 1)",
    "recovery/outlier": "largest eigenvalue from 1.5 thresholds on",
    "width/distribution": "excess kurtosis of a coordinate, 1 head",
    "propagation/rank-collapse": "slope of log(stable rank - 1) in log T after 2 layers",
}
FOLDER = click.Path(path_type=Path)
NUMBERS = Each(Interval(-1e300, 1e300), most=100_000)
LEVELS = Each(Interval(0, 1), most=100_000)


class Commands(click.Group):
    """The commands; a misspelled one is answered with the nearest, whatever the version of click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names."""
        if args and not args[0].startswith("-") and not ctx.resilient_parsing and args[0] not in self.commands:
            with explain_errors():
                raise unknown("command", args[0], sorted(self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bulkedge")
def main() -> None:
    """Random-matrix theory for transformer attention: scan a model, check a matrix, compute a law, test a paper."""
    fit_width()


main.add_command(reproduce_command)
main.add_command(scan_command)
main.add_command(check_command)
main.add_command(preflight_command)


# -- list --------------------------------------------------------------------------------------------------------------


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_studies(*, as_json: bool) -> None:
    """List the studies and what each one shows."""
    from bulkedge.lab.studies.base import studies

    print_summaries("study", dict(studies()), as_json=as_json)


def print_summaries(kind: str, known: dict[str, type], *, as_json: bool) -> None:
    """Print what there is, with the first paragraph of what it says of itself."""
    first = {name: (inspect.getdoc(each) or "").split("\n\n")[0].replace("\n", " ") for name, each in known.items()}
    shows = {name: re.sub(r"\*(\w+)\*", r"\1", text.replace("``", "")) for name, text in first.items()}  # plain text
    if as_json:
        click.echo(to_json(shows, indent=1))
        return
    table = Table(kind, "shows", box=None, pad_edge=False)
    table.columns[0].no_wrap = True  # names are there to be copied
    for name, sentence in shows.items():
        table.add_row(name, escape(sentence))
    out.print(table)


# -- sweep -------------------------------------------------------------------------------------------------------------


@main.command("sweep", cls=StudyCommand)
@click.argument("name", shell_complete=complete_name)
@click.option("--grid", "axes", multiple=True, metavar="PARAMETER=VALUES", help="first:last:step or a,b,c. Repeatable.")
@click.option("--seeds", "repetitions", default=1, show_default=True, help="Independent repetitions of each point.")
@click.option("--seed", default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--out", "folder", required=True, type=FOLDER, help="Folder of the results.")
@click.option("--paper", is_flag=True, help="Give the other parameters the paper's sizes.")
@click.option("--workers", type=click.IntRange(1), help="Number of processes. Default: one per core.")
@click.option("--cluster", metavar="ADDRESS", help="Address of a Dask scheduler (tcp://...), instead of processes.")
@click.option("--timeout", type=float, metavar="SECONDS", help="A cell fails if it takes longer.")
@click.option("--retry-failed", is_flag=True, help="Run the cells again that raised an error.")
@click.option("--json", "as_json", is_flag=True, help="Print where the sweep stands as JSON.")
def sweep_command(name: str, **given: Any) -> None:
    """Run the study NAME over a grid of its parameters. The same command resumes an interrupted sweep.

    bulkedge sweep laws/edge --grid size=50:200:50 --seeds 4 --out runs/edge
    """
    from bulkedge.lab.sweeps import run
    from bulkedge.lab.sweeps.read import FAILURES, RESULTS

    with explain_errors():
        sweep = _plan_sweep(name, given)
    with (
        explain_errors("the same command goes on from there"),
        show_progress(),
        print_warnings(),
        open_executor(given["workers"], given["cluster"]) as (executor, width),
    ):
        options = {key: given[key] for key in ("retry_failed", "timeout")}
        result = run(sweep, given["folder"], executor, width=width, **options)
    if result.damaged:
        err.print(f"{result.damaged} cells no longer matched their checksums and were run again", soft_wrap=True)
    if given["as_json"]:
        click.echo(to_json(asdict(result)))
    else:
        folder = result.folder
        out.print(f"{result.done} of {result.cells} cells done, {result.failed} failed: {folder}", soft_wrap=True)
        if result.done:  # checked, or as any store of zarr
            plain = f"xarray.open_zarr({str(folder / RESULTS)!r}, consolidated=False)"
            how = f"open it with bulkedge.lab.sweeps.open_sweep({str(folder)!r}), or {plain}"
            out.print(how, soft_wrap=True, markup=False, highlight=False)
        if result.failed:
            out.print(f"errors are in {folder / FAILURES}; --retry-failed runs these cells again", soft_wrap=True)
    if result.failed:
        sys.exit(1)


def _plan_sweep(name: str, given: dict[str, Any]) -> Sweep:
    """The sweep that the options describe."""
    from bulkedge.lab.studies.base import ready, studies
    from bulkedge.lab.sweeps import Sweep, parse_axis

    if name not in studies():
        raise unknown("study", name, list(studies()))
    (family,), _ = ready(name)
    pairs = [text.partition("=") for text in given["axes"]]
    if unclear := [key for key, sign, values in pairs if not (key and sign and values)]:
        raise DomainError(f"--grid {unclear[0]!r} is not PARAMETER=VALUES")
    if len({key for key, _, _ in pairs}) < len(pairs):
        raise DomainError("--grid names a parameter twice")
    axes = {key: parse_axis(family, key, values) for key, _, values in pairs}
    fixed = {each.name: given[each.name] for each in parameters(family) if given.get(each.name) is not None}
    if both := sorted(axes.keys() & fixed.keys()):
        raise DomainError(f"{both[0]} is fixed and an axis of the grid; leave out one of the two")
    study = family.preset("paper" if given["paper"] else "quick", **fixed)
    return Sweep(study, axes, given["repetitions"], given["seed"])


@contextmanager
def open_executor(workers: int | None, cluster: str | None) -> Iterator[tuple[Executor, int]]:
    """Start what cells of a sweep run on, as the options of the command line say, and stop it in the end."""
    from bulkedge.lab.sweeps import SerialExecutor, local_processes, stop

    if cluster:
        try:
            from distributed import Client
        except ImportError:
            raise click.ClickException("--cluster needs Dask: pip install 'bulkedge[cluster]'") from None
        make: Any = Client  # whose stubs type its constructor in some environments and not in others
        logging.disable(logging.ERROR)  # what becomes of the connection is said by us, and not by its own log
        try:
            with make(cluster, timeout=10) as client:
                yield client.get_executor(pure=False), sum(client.nthreads().values())
        finally:
            logging.disable(logging.NOTSET)
    elif workers == 1:
        yield SerialExecutor(), 1
    else:
        pool = local_processes(workers)
        try:
            yield pool, 0
        finally:
            stop(pool)


# -- law ---------------------------------------------------------------------------------------------------------------


@main.command("law", cls=LawCommand)
@click.argument("name", default="", shell_complete=complete_name)
@click.option(
    "--at",
    metavar="X,Y,...",
    type=DomainType("at", NUMBERS),
    help="Print density and distribution function at these points.",
)
@click.option(
    "--quantiles", metavar="P,Q,...", type=DomainType("quantiles", LEVELS), help="Print the quantiles at these levels."
)
@click.option(
    "--spike",
    metavar="THETA,...",
    type=DomainType("spike", NUMBERS),
    help="Print the outliers that rank-one signals of these strengths make: theta u u' added to a symmetric "
    "matrix, or a signal x u v' with singular value x for laws of singular values.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def law_command(name: str, *, at: Any, quantiles: Any, spike: Any, as_json: bool, **given: Any) -> None:
    """Print edges, atoms, moments and values of the law NAME. Without NAME, list the laws.

    bulkedge law marchenko-pastur --ratio 0.5 --at 1,2
    """
    if not name:
        print_summaries("law", families(), as_json=as_json)
        return
    with explain_errors():
        if name not in families():
            raise unknown("law", name, list(families()))
        law = families()[name](**{key: value for key, value in given.items() if value is not None})
        facts: dict[str, Any] = {
            "law": repr(law),
            "support": law.support,
            "atoms": [atom for atom in law.atoms if atom[1] > 1e-12],
            "edge": law.edge,
            "mean": law.mean(),
            "variance": law.var(),
        }
        if at:
            facts |= {"at": at, "pdf": law.pdf(at).tolist(), "cdf": law.cdf(at).tolist()}
        if quantiles:
            facts |= {"levels": quantiles, "quantiles": law.ppf(quantiles).tolist()}
        if spike:
            facts |= spike_facts(law, spike)
    if as_json:
        click.echo(to_json(facts))
        return
    print_facts(facts)


def print_facts(facts: dict[str, Any]) -> None:
    """Print facts about a law: single ones a line each, what was asked at several points in tables."""
    single = Table(box=None, show_header=False, pad_edge=False)
    for key in ("law", "support", "atoms", "edge", "mean", "variance"):
        single.add_row(key, escape(in_words(facts[key])))
    out.print(single)
    prefix = "singular_spike_" if "singular_spike_strength" in facts else "spike_"
    overlaps = ["left_overlap", "right_overlap"] if prefix.startswith("singular") else ["overlap"]
    spikes = [prefix + each for each in ("strength", "location", *overlaps, "detectable")]
    for columns in (["at", "pdf", "cdf"], ["levels", "quantiles"], spikes):
        if columns[0] in facts:
            table = Table(*(each.removeprefix(prefix).replace("_", " ") for each in columns), box=None, pad_edge=False)
            for row in zip(*(facts[each] for each in columns), strict=True):
                table.add_row(*map(in_words, row))
            out.print("", table)
    if spikes[0] in facts:
        out.print(f"signals are detectable from strength {in_words(facts[prefix + 'threshold'])} on")


def in_words(value: Any) -> str:
    """A fact as people write it: six digits, intervals as "a to b", atoms as "mass at place"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):  # atoms
        named = [f"{mass:.6g} at {place:.6g}" for place, mass in value]
        return ", ".join(named[:6] + [f"and {len(named) - 6} more"] * (len(named) > 6)) or "none"
    if isinstance(value, tuple):  # intervals
        return ", ".join(f"{low:.6g} to {high:.6g}" for low, high in value) or "none"
    return value if isinstance(value, str) else f"{value if abs(value) > 1e-14 else 0:.6g}"


def spike_facts(law: Law, strengths: tuple[float, ...]) -> dict[str, Any]:
    """What perturbations of rank one do: the outermost outlier of each, the thresholds, and all outliers."""
    from bulkedge.laws.distribution import Unit

    singular = law.unit in {Unit.SINGULAR, Unit.SQUARED, Unit.SYMMETRISED}
    found: Any = law.singular_spike(strengths) if singular else law.spike(strengths)
    prefix = "singular_spike" if singular else "spike"
    facts: dict[str, Any] = {f"{prefix}_strength": strengths}
    for field in fields(found):
        value = getattr(found, field.name)
        if field.name == "outliers":
            value = [[asdict(each) for each in group] for group in value]
        facts[f"{prefix}_{field.name}"] = value.tolist() if hasattr(value, "tolist") else value
    return facts


# -- demo --------------------------------------------------------------------------------------------------------------


@main.command("demo")
@click.option("--out", "folder", default="out/demo", show_default=True, type=FOLDER, help="Folder of the pages.")
def demo_command(folder: Path) -> None:
    """Scan a small decoder and check one headline claim of each paper, in two minutes.

    The decoder is trained on the spot, so nothing is downloaded. bulkedge reproduce checks all claims.
    """
    from bulkedge.lab.gallery.run import reproduce
    from bulkedge.lab.studies.base import studies

    defaults = scan_command.make_context("scan", []).params
    with explain_errors("the same command goes on from there"), show_progress() as head:
        folder.mkdir(parents=True, exist_ok=True)
        head("training and scanning a small decoder")
        with print_warnings():
            before, found, _ = scan_with_options("", None, defaults)
        found.to_html(folder / "scan.html", before=before)
        click.echo(found.summary())
        chosen = [studies()[name].preset("quick") for name in HEADLINES]
        results = reproduce(chosen, folder, workers=None, watcher=RunReporter(head))  # type: ignore[arg-type]
    out.print(headlines_table(results))
    click.echo(f"claims: {folder / 'index.html'}, scan: {folder / 'scan.html'}")
    if any(claim.verdict == "fails" for result in results for claim in result.claims):
        sys.exit(1)


def headlines_table(results: list[Reproduction]) -> Table:
    """The headline claim of each study: predicted, measured, verdict."""
    from bulkedge.lab.gallery import page

    table = Table("study", "headline claim", "predicted", "measured", "verdict", box=None, pad_edge=False)
    for result in results:
        claim = next(each for each in result.claims if each.statement == HEADLINES[result.name])
        verdict = f"[{COLOURS[claim.verdict]}]{claim.verdict}[/]"
        measured = f"{page.measured(claim.measured)}, {page.off(claim)}"
        table.add_row(result.name, escape(claim.statement), page.predicted(claim), measured, verdict)
    return table


# -- explore -----------------------------------------------------------------------------------------------------------


@main.command("explore")
@click.option("--port", default=8052, show_default=True, type=click.IntRange(0, 65535), help="Port to serve on.")
@click.option("--no-browser", is_flag=True, help="Serve the page without opening a browser.")
@click.option(
    "--export",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the course and the theory of all rooms into one HTML file that needs no server, and stop.",
)
def explore_command(port: int, path: Path | None, *, no_browser: bool) -> None:
    """Open the explorer in a browser: a course of six chapters, and rooms of theory and simulation.

    The page is served only on this machine and needs no network. If the port is taken, the next free one is used.

    bulkedge explore
    """
    if path is not None:
        with explain_errors(kept=False):
            from bulkedge.lab.explore.export import export

            export(path)
        tell(f"wrote {path}")
        return
    with explain_errors("bulkedge explore opens it again", kept=False):
        from bulkedge.lab.explore.app import serve

        serve(port, browser=not no_browser, tell=lambda address: tell(f"{address} (Ctrl-C stops it)"))
