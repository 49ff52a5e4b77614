"""What every command reads and shows: options made from declared parameters, consoles, errors, progress."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import MISSING
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bulkedge.support.domains import Choice, Domain, Each, Instance, Parameter, Parametric, parameters
from bulkedge.support.errors import BulkedgeError, DomainError
from bulkedge.support.progress import Progress, listen

# seconds before the first line of progress without a terminal; each later one waits twice as long, up to the last
PLAIN_SECONDS, LONGEST_SECONDS = 5.0, 60.0
PLAIN_WIDTH = 140  # without a terminal, tables are this wide, unless COLUMNS says otherwise

# says what the progress that follows is part of: a text before the bar, and so many steps of so many done until then
Heading = Callable[..., None]
out, err = Console(), Console(stderr=True)


def fit_width() -> None:
    """Let tables be as wide as the terminal, or COLUMNS, or without either :data:`PLAIN_WIDTH`."""
    columns = os.environ.get("COLUMNS", "")
    if not out.is_terminal:
        out.width = int(columns) if columns.isdigit() else PLAIN_WIDTH


def tell(sentence: str) -> None:
    """Print a line for people, as it is, on stderr."""
    err.print(sentence, soft_wrap=True, markup=False, highlight=False, emoji=False)


def unknown(kind: str, given: str, known: list[str]) -> DomainError:
    """The error for a name that is not known: with those that are spelled almost so, or else with all."""
    near = get_close_matches(given, known)
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return DomainError(f"{kind} = {given!r} is unknown; {remedy}")


def duration(seconds: float) -> str:
    """A time in words and numbers, as precise as people need it.

    >>> duration(3.21), duration(75), duration(7300)
    ('3.2 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def about(seconds: float) -> str:
    """A time that is not known well: whole seconds, minutes or hours.

    >>> about(3.21), about(75), about(7300)
    ('about 3 s', 'about 1 min', 'about 2 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 0.75 * size:
            return f"about {max(round(seconds / size), 1)} {unit}"
    return f"about {max(round(seconds), 1)} s"


@contextmanager
def explain_errors(after_ctrl_c: str = "run the command again for the rest", *, kept: bool = True) -> Iterator[None]:
    """Errors that a user can mend, without a traceback; Ctrl-C says what is kept, and how to go on."""
    try:
        yield
    except DomainError as error:
        raise click.UsageError(full_message(error)) from error
    except BulkedgeError as error:
        raise click.ClickException(full_message(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error}; what was finished before is kept" if kept else str(error)) from error
    except BrokenExecutor as error:
        raise click.ClickException(
            f"a worker or the scheduler stopped, perhaps because memory ran out ({error}); what was finished is kept: "
            "run the same command again, with fewer --workers"
        ) from error
    except KeyboardInterrupt:
        err.print(f"stopped; what was finished is kept: {after_ctrl_c}" if kept else "stopped; nothing was written")
        sys.exit(130)  # what shells say of Ctrl-C


def full_message(error: BaseException) -> str:
    """What an error says, with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@contextmanager
def show_progress() -> Iterator[Heading]:
    """A bar on a terminal, a line now and then elsewhere; yields what sets the words before it."""
    if not err.is_terminal:
        plain = PlainProgress()
        with listen(plain):
            yield plain.head
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=err, transient=True) as bar:
        task, heading = bar.add_task("", total=None, rate=""), ""

        def head(text: str, done: int = 0, total: int | None = None, /) -> None:
            nonlocal heading
            heading = text + ": "
            bar.reset(task, total=total, completed=done, description=text, rate="")

        def show(event: Progress) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.3g}/s" if speed else ""
            if event.done == 0:
                bar.reset(task)
            bar.update(task, description=heading + event.label, completed=event.done, total=event.total, rate=rate)

        with listen(show):
            yield head


class PlainProgress:
    """Lines on stderr, not too many."""

    def __init__(self) -> None:
        self.began = self.printed = time.monotonic()
        self.heading, self.pause = "", PLAIN_SECONDS

    def head(self, text: str, done: int = 0, total: int | None = None, /) -> None:  # noqa: ARG002  # for bars
        """Say what the lines that follow are part of."""
        self.heading = text + ": "

    def __call__(self, event: Progress) -> None:
        """Print, if the last line is long ago."""
        now = time.monotonic()
        if event.done == 0:
            self.began = now
        if now - self.printed > self.pause and event.done:
            rate = event.done / max(now - self.began, 1e-9)
            left = (event.total - event.done) / rate
            tell(f"{self.heading}{event.label}: {event.done} of {event.total}, {rate:.3g}/s, {left:.0f} s left")
            self.printed, self.pause = now, min(2 * self.pause, LONGEST_SECONDS)


if TYPE_CHECKING:
    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # which takes no argument before click 8.4


class DomainType(AnyParamType):
    """The values of a domain, under the name of a parameter."""

    def __init__(self, parameter: str, domain: Domain) -> None:
        self.parameter, self.domain = parameter, domain
        self.name = "numbers" if isinstance(domain, Each) else "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read and check a value; click calls this for every option of this type."""
        try:
            return self.domain.parse(self.parameter, str(value))
        except DomainError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Values that a shell completes: those of a choice."""
        options = self.domain.options if isinstance(self.domain, Choice) else ()
        return [CompletionItem(str(each)) for each in options if str(each).startswith(incomplete)]


def option_for(declared: Parameter) -> click.Option:
    """A declared parameter as an option, with its meaning, domain and values as help."""
    known = "" if declared.default is MISSING else f"; default {declared.default}"
    if declared.large is not MISSING:
        known += f"; with --paper {declared.large} ({'of the paper' if declared.source == 'paper' else 'ours'})"
    return click.Option(
        [f"--{declared.name.replace('_', '-')}", declared.name],
        type=DomainType(declared.name, declared.domain),
        required=declared.default is MISSING,
        help=f"{declared.doc}, in {declared.domain}{known}.",
    )


class CatalogueCommand(click.Command):
    """A command whose first argument names something with declared parameters; these become options."""

    kind: str
    catalogue: Callable[[], dict[str, type]]
    chosen: type | None = None

    def groups(self) -> list[str]:
        """Names that stand for several entries of the catalogue."""
        return []

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Look for a known name among the arguments before they are parsed."""
        known, words = self.catalogue(), self._words(args)
        every = [*known, *self.groups()]
        if words and words[0] == args[0] and words[0] not in every:
            with explain_errors():  # say so, and not that the options after it are unknown
                raise unknown(self.kind, words[0], every)
        self.chosen = next((known[each] for each in words if each in known), None)
        return super().make_context(info_name, args, parent, **extra)

    def _words(self, args: list[str]) -> list[str]:
        """The arguments that may be the name: neither options nor values of the options that every name has."""
        options = [each for each in self.params if isinstance(each, click.Option) and not each.is_flag]
        own = {word for each in options for word in each.opts}
        pairs = zip(["", *args], args, strict=False)
        return [each for before, each in pairs if not each.startswith("-") and before not in own]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options of the command and of what was named."""
        declared = parameters(self.chosen) if self.chosen else ()
        return super().get_params(ctx) + [option_for(each) for each in declared]


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names that a shell completes for the first argument of a :class:`CatalogueCommand` command."""
    command = ctx.command
    if not isinstance(command, CatalogueCommand):
        return []
    known = command.catalogue()
    names = sorted(name for name in {*known, *command.groups()} if name.startswith(incomplete))
    said = {name: (each.__doc__ or "").split("\n")[0] for name, each in known.items()}
    return [CompletionItem(name, help=said.get(name)) for name in names]


def _studies() -> dict[str, type]:
    from bulkedge.lab.studies.base import studies

    return dict(studies())


class StudyCommand(CatalogueCommand):
    """Names a study."""

    kind = "study"
    catalogue = staticmethod(_studies)


class PaperCommand(StudyCommand):
    """Names a study, or a paper for all of its studies."""

    def groups(self) -> list[str]:
        """The papers."""
        return sorted({name.split("/")[0] for name in self.catalogue()})


@cache
def families() -> dict[str, type]:
    """The families of laws whose parameters can be given as text, by the name they have on the command line."""
    from bulkedge import laws

    found = (getattr(laws, name) for name in laws.__all__)
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower(): each
        for each in found
        if isinstance(each, type)
        and issubclass(each, Parametric)
        and issubclass(each, laws.Law)
        and not any(isinstance(declared.domain, Instance) for declared in parameters(each))
    }


class LawCommand(CatalogueCommand):
    """Names a family of laws."""

    kind = "law"
    catalogue = staticmethod(families)
