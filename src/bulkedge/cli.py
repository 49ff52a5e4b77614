"""The command line: ``bulkedge list | reproduce | sweep | law``. Arguments and printing only; the work is elsewhere."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from bulkedge import laws as families
from bulkedge.domains import Each, Instance, Interval, Parameter, Parametric, parameters
from bulkedge.errors import DomainError
from bulkedge.progress import Progress, listening
from bulkedge.records import written
from bulkedge.version import __version__

if TYPE_CHECKING:
    from bulkedge.sweeps import Sweep

INTERRUPTED = 130
PLAIN_SECONDS = 5.0
"""Without a terminal, progress is a line this often."""
NUMBERS = Each(Interval(-1e300, 1e300), most=100_000)

out, err = Console(), Console(stderr=True)
if not out.is_terminal:
    out.width = 140


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="bulkedge")
def main() -> None:
    """Random-matrix theory for transformer attention: laws, studies of the papers' claims, and sweeps."""


# -- options from declarations -----------------------------------------------------------------------------------------


class Declared(click.ParamType[Any]):
    """The values of a declared parameter."""

    def __init__(self, declared: Parameter) -> None:
        self.declared = declared
        self.name = "numbers" if isinstance(declared.domain, Each) else "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read and check."""
        try:
            return self.declared.domain.parse(self.declared.name, str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def option_for(declared: Parameter) -> click.Option:
    """A declared parameter as an option, with its meaning, domain and values as help."""
    values = [("default", declared.default), ("paper", declared.paper)]
    known = "".join(f"; {label} {value}" for label, value in values if value is not MISSING)
    return click.Option(
        [f"--{declared.name.replace('_', '-')}", declared.name],
        type=Declared(declared),
        required=declared.default is MISSING,
        help=f"{declared.doc}, in {declared.domain}{known}.",
    )


class Catalogued(click.Command):
    """A command whose first argument names something with declared parameters; these become options."""

    catalogue: Callable[[], dict[str, type]]
    chosen: type | None = None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Look for a known name among the arguments before they are parsed."""
        known = self.catalogue()
        self.chosen = next((known[each] for each in args if each in known), None)
        return super().make_context(info_name, args, parent, **extra)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the command and of what was named."""
        declared = parameters(self.chosen) if self.chosen else ()
        return super().get_params(ctx) + [option_for(each) for each in declared]


def _studies() -> dict[str, type]:
    from bulkedge.studies.base import studies

    return dict(studies())


class StudyCommand(Catalogued):
    """Names a study."""

    catalogue = staticmethod(_studies)


@cache
def _families() -> dict[str, type]:
    found = (getattr(families, name) for name in families.__all__)
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower(): each
        for each in found
        if isinstance(each, type)
        and issubclass(each, Parametric)
        and issubclass(each, families.Law)
        and _writable(each)
    }


def _writable(family: type) -> bool:
    """Whether all parameters can be given as text."""
    return not any(isinstance(each.domain, Instance) for each in parameters(family))


class LawCommand(Catalogued):
    """Names a family of laws."""

    catalogue = staticmethod(_families)


# -- list --------------------------------------------------------------------------------------------------------------


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_studies(*, as_json: bool) -> None:
    """List the studies."""
    from bulkedge.studies.base import studies

    if as_json:
        click.echo(written({name: study.summary() for name, study in studies().items()}, indent=1))
        return
    table = Table("study", "shows", box=None, pad_edge=False)
    for name, study in studies().items():
        table.add_row(name, escape(study.summary()))
    out.print(table)


# -- reproduce ---------------------------------------------------------------------------------------------------------


@main.command("reproduce", cls=StudyCommand)
@click.argument("name", default="")
@click.option("--paper", is_flag=True, help="Run at the paper's sizes instead of the quick ones.")
@click.option("--seed", default=0, show_default=True, help="Seed of every study.")
@click.option(
    "--out", "folder", default="out", show_default=True, type=click.Path(path_type=Path), help="Folder to write."
)
@click.option("--json", "as_json", is_flag=True, help="Print the claims as JSON.")
def reproduce_command(name: str, *, paper: bool, seed: int, folder: Path, as_json: bool, **changes: Any) -> None:
    """Run studies, write their data, figures and a page, and check their claims.

    NAME is a study, a paper, or nothing for all of them; with a study, its parameters are options too
    (bulkedge reproduce laws/edge --help). Exits with 1 if a claim fails.
    """
    from bulkedge.report import Reproduction, reproduce
    from bulkedge.studies.base import ready

    given = {key: value for key, value in changes.items() if value is not None}
    with explained():
        families, left_out = ready(name)
        chosen = [study.preset("paper" if paper else "quick", **given) for study in families]
    for sentence in left_out:
        err.print(f"left out {sentence}", soft_wrap=True, markup=False, highlight=False)

    def report(result: Reproduction) -> None:
        failed = sum(not claim.holds for claim in result.claims)
        verdict = "[red]fail[/]" if failed else "[green]hold[/]"
        err.print(f"{result.study.name()}: {len(result.claims) - failed} of {len(result.claims)} claims {verdict}")

    with explained(), shown_progress():
        results = reproduce(chosen, folder, seed, report)
    if as_json:
        click.echo((folder / "claims.json").read_text(encoding="utf-8"))
    else:
        out.print(claims_table(results))
        out.print(f"the page is {folder / 'index.html'}", soft_wrap=True)
    if not all(result.holds for result in results):
        sys.exit(1)


def claims_table(results: list[Any]) -> Table:
    """The claims of all studies for a terminal."""
    table = Table("claim", "predicted", "measured", "tolerance", "verdict", box=None, pad_edge=False)
    for result in results:
        table.add_row(f"[bold]{result.study.name()}[/]")
        for claim in result.claims:
            sign = "" if claim.relation == "=" else claim.relation + " "
            error = f" ± {claim.error:.1g}" if claim.error else ""
            table.add_row(
                "  " + escape(claim.statement),
                f"{sign}{claim.predicted:.5g}",
                f"{claim.measured:.5g}{error}",
                f"{claim.tolerance:.2g}" if claim.tolerance else "",
                "[green]holds[/]" if claim.holds else "[red]fails[/]",
            )
    return table


# -- sweep -------------------------------------------------------------------------------------------------------------


@main.command("sweep", cls=StudyCommand)
@click.argument("name")
@click.option("--grid", "axes", multiple=True, metavar="PARAMETER=VALUES", help="first:last:step or a,b,c; repeatable.")
@click.option("--seeds", "repetitions", default=1, show_default=True, help="Independent repetitions of each point.")
@click.option("--seed", default=0, show_default=True, help="Root of all random streams.")
@click.option("--out", "folder", required=True, type=click.Path(path_type=Path), help="Folder of the results.")
@click.option("--paper", is_flag=True, help="Fixed parameters at the paper's sizes.")
@click.option("--workers", type=click.IntRange(1), help="Processes; 1 runs in this one. Default: one a core.")
@click.option("--cluster", metavar="ADDRESS", help="Address of a Dask scheduler (tcp://...), instead of processes.")
@click.option("--retry-failed", is_flag=True, help="Run again the cells that raised.")
@click.option("--json", "as_json", is_flag=True, help="Print where the sweep stands as JSON.")
def sweep_command(name: str, **given: Any) -> None:
    """Run the study NAME over a grid of its parameters; the same command resumes an interrupted sweep.

    bulkedge sweep laws/edge --grid size=50:200:50 --seeds 4 --out runs/edge
    """
    from bulkedge.sweeps import run

    with explained():
        sweep = _planned(name, given)
    with (
        explained("the same command goes on from there"),
        shown_progress(),
        chosen_executor(given["workers"], given["cluster"]) as (executor, width),
    ):
        result = run(sweep, given["folder"], executor, retry_failed=given["retry_failed"], width=width)
    if given["as_json"]:
        click.echo(written(asdict(result)))
    else:
        out.print(
            f"{result.done} of {result.cells} cells done, {result.failed} failed: {result.folder}", soft_wrap=True
        )
        if result.failed:
            out.print(
                f"errors are in {result.folder / 'failures.json'}; --retry-failed runs them again", soft_wrap=True
            )
    if result.failed:
        sys.exit(1)


def _planned(name: str, given: dict[str, Any]) -> Sweep:
    """The sweep that the options describe."""
    from bulkedge.studies.base import ready, studies
    from bulkedge.sweeps import Sweep, parse_axis

    if name not in studies():
        raise DomainError(f"study = {name!r} is unknown; there are {', '.join(studies())}")
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
    """Where cells run, and how many at a time."""
    from bulkedge.sweeps import SerialExecutor, local_processes, stop

    if cluster:
        try:
            from distributed import Client
        except ImportError:
            raise click.ClickException("--cluster needs Dask: pip install 'bulkedge[cluster]'") from None
        make: Any = Client  # whose stubs type its constructor in some environments and not in others
        with make(cluster, timeout=10) as client:
            yield client.get_executor(pure=False), sum(client.nthreads().values())
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
@click.argument("name")
@click.option("--at", metavar="X,Y,...", help="Points at which to give density and distribution function.")
@click.option("--quantiles", metavar="P,Q,...", help="Levels whose quantiles to give.")
@click.option(
    "--spike",
    metavar="THETA,...",
    help="Strengths of perturbations of rank one: of theta u u' added to a symmetric matrix; "
    "for laws of singular values, of a signal x u v' with singular value x.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def law_command(name: str, *, at: str, quantiles: str, spike: str, as_json: bool, **given: Any) -> None:
    """Edges, atoms, moments and values of the law NAME.

    bulkedge law marchenko-pastur --ratio 0.5 --at 1,2
    """
    with explained():
        if name not in _families():
            raise DomainError(f"law = {name!r} is unknown; there are {', '.join(_families())}")
        law = _families()[name](**{key: value for key, value in given.items() if value is not None})
        facts: dict[str, Any] = {
            "law": repr(law),
            "support": law.support,
            "atoms": [atom for atom in law.atoms if atom[1] > 1e-12],
            "edge": law.edge,
            "mean": law.mean(),
            "variance": law.var(),
        }
        if at:
            points = NUMBERS.parse("at", at)
            facts |= {"at": points, "pdf": law.pdf(points).tolist(), "cdf": law.cdf(points).tolist()}
        if quantiles:
            levels = NUMBERS.parse("quantiles", quantiles)
            facts |= {"levels": levels, "quantiles": law.ppf(levels).tolist()}
        if spike:
            facts |= spike_facts(law, NUMBERS.parse("spike", spike))
    if as_json:
        click.echo(written(facts))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), escape(str(value)))
    out.print(table)


def spike_facts(law: families.Law, strengths: tuple[float, ...]) -> dict[str, Any]:
    """What perturbations of rank one do: the outermost outlier of each, the thresholds, and all outliers.

    Names of what is about singular values begin with ``singular_spike``, and strengths are singular values there.
    """
    singular = law.unit in {families.Unit.SINGULAR, families.Unit.SQUARED, families.Unit.SYMMETRISED}
    found: Any = law.singular_spike(strengths) if singular else law.spike(strengths)
    prefix = "singular_spike" if singular else "spike"
    facts: dict[str, Any] = {f"{prefix}_strength": strengths}
    for field in fields(found):
        value = getattr(found, field.name)
        if field.name == "outliers":
            value = [[asdict(each) for each in group] for group in value]
        facts[f"{prefix}_{field.name}"] = value.tolist() if hasattr(value, "tolist") else value
    return facts


# -- errors and progress -----------------------------------------------------------------------------------------------


@contextmanager
def explained(after_ctrl_c: str = "run the command again for the rest") -> Iterator[None]:
    """Errors that a user can mend, without a traceback; Ctrl-C says what is kept, and how to go on."""
    from bulkedge.sweeps import StoreError

    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error}; what was finished before is kept") from error
    except BrokenExecutor as error:
        raise click.ClickException(
            f"a worker died, perhaps for want of memory ({error}); what was finished is kept: "
            "run the same command again, with fewer --workers"
        ) from error
    except KeyboardInterrupt:
        err.print(f"stopped; what was finished is kept: {after_ctrl_c}")
        sys.exit(INTERRUPTED)


@contextmanager
def shown_progress() -> Iterator[None]:
    """A bar on a terminal, a line now and then elsewhere."""
    if not err.is_terminal:
        with listening(PlainProgress()):
            yield
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task("", total=None, rate="")

        def show(event: Progress) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.3g}/s" if speed else ""
            if event.done == 0:
                bar.reset(task)
            bar.update(task, description=event.label, completed=event.done, total=event.total, rate=rate)

        with listening(show):
            yield


class PlainProgress:
    """Lines on stderr, not too many."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()

    def __call__(self, event: Progress) -> None:
        """Print, if the last line is long ago."""
        now = time.monotonic()
        if event.done == 0:
            self.began = now
        if now - self.told > PLAIN_SECONDS and event.done:
            rate = event.done / (now - self.began)
            left = (event.total - event.done) / rate
            err.print(f"{event.label}: {event.done} of {event.total}, {rate:.3g}/s, {left:.0f} s left", highlight=False)
            self.told = now
