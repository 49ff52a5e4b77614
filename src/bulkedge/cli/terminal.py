"""What the command line shows while it works and when it stops: consoles, errors, progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from bulkedge.support.errors import BulkedgeError, DomainError
from bulkedge.support.progress import Progress, listen

INTERRUPTED = 130
PLAIN_SECONDS, LONGEST_SECONDS = 5.0, 60.0
"""Seconds before the first line of progress without a terminal; each later one waits twice as long, up to the last."""
PLAIN_WIDTH = 140
"""Without a terminal, tables are this wide, unless COLUMNS says otherwise."""

out, err = Console(), Console(stderr=True)


def fit_width() -> None:
    """Let tables be as wide as the terminal, or COLUMNS, or without either :data:`PLAIN_WIDTH`."""
    columns = os.environ.get("COLUMNS", "")
    if not out.is_terminal:
        out.width = int(columns) if columns.isdigit() else PLAIN_WIDTH


class Heading(Protocol):
    """Says what the progress that follows is part of."""

    def __call__(self, text: str, done: int = 0, total: int | None = None, /) -> None:
        """Show a text before the bar, and so many steps of so many done until other progress is told."""


def tell(sentence: str) -> None:
    """Print a line for people, as it is, on stderr."""
    err.print(sentence, soft_wrap=True, markup=False, highlight=False, emoji=False)


def unknown(kind: str, given: str, known: list[str]) -> DomainError:
    """The error for a name that is not known: with those that are spelled almost so, or else with all."""
    near = get_close_matches(given, known)
    if near:
        return DomainError(f"{kind} = {given!r} is unknown; did you mean {' or '.join(near)}?")
    return DomainError(f"{kind} = {given!r} is unknown; there are {', '.join(known)}")


def duration(seconds: float) -> str:
    """A time in words and numbers, as precise as people need it.

    Examples
    --------
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

    Examples
    --------
    >>> about(3.21), about(75), about(7300)
    ('about 3 s', 'about 1 min', 'about 2 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 0.75 * size:
            return f"about {max(round(seconds / size), 1)} {unit}"
    return f"about {max(round(seconds), 1)} s"


@contextmanager
def explain_errors(after_ctrl_c: str = "run the command again for the rest", *, kept: bool = True) -> Iterator[None]:
    """Errors that a user can mend, without a traceback; Ctrl-C says what is kept, and how to go on.

    An exception that is not the package's own, nor the machine's, is a fault of the package, and keeps its traceback.
    """
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
            f"a worker or the scheduler is gone, perhaps for want of memory ({error}); what was finished is kept: "
            "run the same command again, with fewer --workers"
        ) from error
    except KeyboardInterrupt:
        err.print(f"stopped; what was finished is kept: {after_ctrl_c}" if kept else "stopped; nothing was written")
        sys.exit(INTERRUPTED)


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
        self.began = self.told = time.monotonic()
        self.heading, self.pause = "", PLAIN_SECONDS

    def head(self, text: str, done: int = 0, total: int | None = None, /) -> None:  # noqa: ARG002  # for bars
        """Say what the lines that follow are part of."""
        self.heading = text + ": "

    def __call__(self, event: Progress) -> None:
        """Print, if the last line is long ago."""
        now = time.monotonic()
        if event.done == 0:
            self.began = now
        if now - self.told > self.pause and event.done:
            rate = event.done / max(now - self.began, 1e-9)
            left = (event.total - event.done) / rate
            err.print(
                f"{self.heading}{event.label}: {event.done} of {event.total}, {rate:.3g}/s, {left:.0f} s left",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
            self.told, self.pause = now, min(2 * self.pause, LONGEST_SECONDS)
