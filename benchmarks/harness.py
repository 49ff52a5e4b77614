"""Timing, tables, and peers in environments of their own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bulkedge.support.files import replace_file

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parent / ".venv-peers"


@dataclass
class Table:
    """Rows under headings, printed to the terminal and written as Markdown."""

    title: str
    headings: list[str]
    note: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Append a row."""
        self.rows.append([_text(cell) for cell in cells])

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        body = "\n".join("| " + " | ".join(row) + " |" for row in lines)
        return f"## {self.title}\n\n{body}\n\n{self.note}".rstrip() + "\n"

    def text(self) -> str:
        """The table for a terminal."""
        widths = [max(len(row[k]) for row in [self.headings, *self.rows]) for k in range(len(self.headings))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows]
        heading = "  ".join(cell.ljust(width) for cell, width in zip(self.headings, widths, strict=True))
        return "\n".join([self.title, heading, "-" * len(heading), *lines, self.note]) + "\n"


def _text(cell: object) -> str:
    return f"{cell:.2g}" if isinstance(cell, float) else str(cell)


def record(tables: list[Table], about: str) -> dict[str, Any]:
    """Tables, the machine and the day, for JSON: what a page is written from where its numbers come from elsewhere."""
    return {"measured": today(), "about": about, "tables": [asdict(each) for each in tables]}


def today() -> str:
    """The day, as 2026-11-16."""
    return datetime.now(tz=UTC).date().isoformat()


def page(title: str, words: str, numbers: dict[str, Any]) -> str:
    """Markdown of a record: what was measured, when and on which machine, and the tables."""
    return "\n\n".join([heading(title, words, numbers), *(Table(**each).markdown() for each in numbers["tables"])])


def heading(title: str, words: str, numbers: dict[str, Any]) -> str:
    """The opening of a page: its title, a docstring as Markdown, the day and the machine."""
    text = words.strip().replace("::\n", ":\n").replace("``", "`")
    return f"# {title}\n\n{text}\n\nMeasured on {numbers['measured']}, on {numbers['about']}."


def command(
    parser: argparse.ArgumentParser,
    measured: Callable[[argparse.Namespace], dict[str, Any]],
    written: Callable[[dict[str, Any]], str],
) -> None:
    """Measure, or read what was measured elsewhere; print the page, and write it and its numbers where asked."""
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--read", type=Path, help="numbers written before, instead of a measurement")
    parser.add_argument("--page", type=Path, help="where to write a page of tables")
    chosen = parser.parse_args()
    numbers = json.loads(chosen.read.read_text()) if chosen.read else measured(chosen)
    print(written(numbers))
    if chosen.json:
        replace_file(chosen.json, json.dumps(numbers, indent=1) + "\n")
    if chosen.page:
        replace_file(chosen.page, written(numbers))


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def unbroken(day: str) -> str:
    """A date that stays in one line of a narrow column."""
    return day.replace("-", "\u2011")


def best(function: Callable[[], Any], budget: float = 1.0, least: int = 5) -> float:
    """Fastest of repeated calls after one unmeasured call, in seconds: the cost without the machine's neighbours."""
    function()
    fastest, began, count = float("inf"), time.perf_counter(), 0
    while count < least or (time.perf_counter() - began < budget and count < 1000):
        start = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - start)
        count += 1
    return fastest


def peer(name: str, requirements: list[str], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Run ``peers/run_<name>.py`` on a job in a virtual environment made for it; its answer, or why there is none."""
    environment = ENVIRONMENTS / name
    python = environment / "bin" / "python"
    stamp = environment / ".requirements"
    if not stamp.exists() or stamp.read_text() != "\n".join(requirements):
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], check=True
        )
        replace_file(stamp, "\n".join(requirements))
    done = subprocess.run(
        [str(python), str(HERE / "peers" / f"run_{name}.py")],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the peer {name} failed:\n{done.stderr[-2000:]}")
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer
