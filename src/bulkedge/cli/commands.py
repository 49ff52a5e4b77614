"""The command line, ``bulkedge demo | list | reproduce | scan | sweep | law | explore``: arguments and printing."""

from __future__ import annotations

import inspect
import logging
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

from bulkedge.cli.demo import demo_command
from bulkedge.cli.exploring import explore_command
from bulkedge.cli.options import Declared, LawCommand, StudyCommand, complete_name, families
from bulkedge.cli.reproduction import reproduce_command
from bulkedge.cli.scanning import scan_command
from bulkedge.cli.terminal import err, explained, fit_width, out, shown_progress, unknown
from bulkedge.support.domains import Each, Interval, parameters
from bulkedge.support.errors import DomainError
from bulkedge.support.records import written
from bulkedge.version import __version__

if TYPE_CHECKING:
    from bulkedge.lab.sweeps import Sweep
    from bulkedge.laws import Law

NUMBERS = Each(Interval(-1e300, 1e300), most=100_000)
LEVELS = Each(Interval(0, 1), most=100_000)


class Commands(click.Group):
    """The commands; a misspelled one is answered with the nearest, whatever the version of click."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names."""
        if args and not args[0].startswith("-") and not ctx.resilient_parsing and args[0] not in self.commands:
            with explained():
                raise unknown("command", args[0], sorted(self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bulkedge")
def main() -> None:
    """Random-matrix theory for transformer attention: laws, studies of the papers' claims, and sweeps."""
    fit_width()


main.add_command(demo_command)
main.add_command(reproduce_command)
main.add_command(scan_command)
main.add_command(explore_command)


# -- list --------------------------------------------------------------------------------------------------------------


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_studies(*, as_json: bool) -> None:
    """List the studies."""
    from bulkedge.lab.studies.base import studies

    print_summaries("study", dict(studies()), as_json=as_json)


def print_summaries(kind: str, known: dict[str, type], *, as_json: bool) -> None:
    """Print what there is, with the first paragraph of what it says of itself."""
    shows = {name: (inspect.getdoc(each) or "").split("\n\n")[0].replace("\n", " ") for name, each in known.items()}
    if as_json:
        click.echo(written(shows, indent=1))
        return
    table = Table(kind, "shows", box=None, pad_edge=False)
    table.columns[0].no_wrap = True  # names are there to be copied
    for name, sentence in shows.items():
        table.add_row(name, escape(sentence))
    out.print(table)


# -- sweep -------------------------------------------------------------------------------------------------------------


@main.command("sweep", cls=StudyCommand)
@click.argument("name", shell_complete=complete_name)
@click.option("--grid", "axes", multiple=True, metavar="PARAMETER=VALUES", help="first:last:step or a,b,c; repeatable.")
@click.option("--seeds", "repetitions", default=1, show_default=True, help="Independent repetitions of each point.")
@click.option("--seed", default=0, show_default=True, help="Root of all random streams.")
@click.option("--out", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the results.")
@click.option("--paper", is_flag=True, help="Fixed parameters at the paper's sizes.")
@click.option("--workers", type=click.IntRange(1), help="Processes; 1 runs in this one. Default: one a core.")
@click.option("--cluster", metavar="ADDRESS", help="Address of a Dask scheduler (tcp://...), instead of processes.")
@click.option("--timeout", type=float, metavar="SECONDS", help="A cell that takes longer has failed.")
@click.option("--retry-failed", is_flag=True, help="Run again the cells that raised.")
@click.option("--json", "as_json", is_flag=True, help="Print where the sweep stands as JSON.")
def sweep_command(name: str, **given: Any) -> None:
    """Run the study NAME over a grid of its parameters; the same command resumes an interrupted sweep.

    bulkedge sweep laws/edge --grid size=50:200:50 --seeds 4 --out runs/edge
    """
    from bulkedge.lab.sweeps import run

    with explained():
        sweep = _planned(name, given)
    with (
        explained("the same command goes on from there"),
        shown_progress(),
        chosen_executor(given["workers"], given["cluster"]) as (executor, width),
    ):
        options = {key: given[key] for key in ("retry_failed", "timeout")}
        result = run(sweep, given["folder"], executor, width=width, **options)
    if result.damaged:
        err.print(f"{result.damaged} cells did not match their checksums any more and were run again", soft_wrap=True)
    if given["as_json"]:
        click.echo(written(asdict(result)))
    else:
        out.print(
            f"{result.done} of {result.cells} cells done, {result.failed} failed: {result.folder}", soft_wrap=True
        )
        if result.done:
            out.print(f"open it with {opening(result.folder)}", soft_wrap=True, markup=False, highlight=False)
        if result.failed:
            out.print(
                f"errors are in {result.folder / 'failures.json'}; --retry-failed runs them again", soft_wrap=True
            )
    if result.failed:
        sys.exit(1)


def opening(folder: Path) -> str:
    """How results of a sweep are opened: checked, or as any store of zarr."""
    from bulkedge.lab.sweeps.files import RESULTS

    plain = f"xarray.open_zarr({str(folder / RESULTS)!r}, consolidated=False)"
    return f"bulkedge.lab.sweeps.open_sweep({str(folder)!r}), or {plain}"


def _planned(name: str, given: dict[str, Any]) -> Sweep:
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
def chosen_executor(workers: int | None, cluster: str | None) -> Iterator[tuple[Executor, int]]:
    """Start what cells of a sweep run on, as the options of the command line say, and stop it in the end."""
    from bulkedge.lab.sweeps import SerialExecutor, local_processes, stop

    if cluster:
        try:
            from distributed import Client
        except ImportError:
            raise click.ClickException("--cluster needs Dask: pip install 'bulkedge[cluster]'") from None
        make: Any = Client  # whose stubs type its constructor in some environments and not in others
        logging.disable(logging.ERROR)  # what becomes of the connection is told by us, and not by its own log
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
    type=Declared("at", NUMBERS),
    help="Points at which to give density and distribution function.",
)
@click.option(
    "--quantiles", metavar="P,Q,...", type=Declared("quantiles", LEVELS), help="Levels whose quantiles to give."
)
@click.option(
    "--spike",
    metavar="THETA,...",
    type=Declared("spike", NUMBERS),
    help="Strengths of perturbations of rank one: of theta u u' added to a symmetric matrix; "
    "for laws of singular values, of a signal x u v' with singular value x.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def law_command(name: str, *, at: Any, quantiles: Any, spike: Any, as_json: bool, **given: Any) -> None:
    """Edges, atoms, moments and values of the law NAME; without a name, which laws there are.

    bulkedge law marchenko-pastur --ratio 0.5 --at 1,2
    """
    if not name:
        print_summaries("law", families(), as_json=as_json)
        return
    with explained():
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
        click.echo(written(facts))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), escape(str(value)))
    out.print(table)


def spike_facts(law: Law, strengths: tuple[float, ...]) -> dict[str, Any]:
    """What perturbations of rank one do: the outermost outlier of each, the thresholds, and all outliers.

    Names of what is about singular values begin with ``singular_spike``, and strengths are singular values there.
    """
    from bulkedge.laws.units import Unit

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
