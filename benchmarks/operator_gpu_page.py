"""Spectra of attention from products alone, on a GPU: the page of what ``benchmarks.operator_gpu`` has measured.

The measurement needs a GPU and the page does not::

    python -m benchmarks.operator_gpu --json docs/benchmarks/operator_gpu.json
    python -m benchmarks.operator_gpu_page --read docs/benchmarks/operator_gpu.json

Without ``--read`` the page, ``docs/benchmarks/operator_gpu.md``, says that there is no measurement.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.harness import Table, seconds, unbroken
from bulkedge.support.files import replace_file

TITLE = "Benchmarks: spectra of attention from products, on a GPU"
ABOUT = """A head of 64 dimensions, Gaussian queries and keys at β = 1, in single precision. Nothing of the size tokens
by tokens is formed. Written by `python -m benchmarks.operator_gpu_page` from what
`python -m benchmarks.operator_gpu --json` measured; [](../operators.md) says how it works,
[](../tutorials/million_tokens.md) what it is for."""
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "operator_gpu.md"
NOTHING = "It has not been measured yet."
DISTANCES = {
    "distance to the matrix": "to the matrix",
    "distance to law": "to the law",
    "distance to rival": "to the rival",
}
RIVALS = "distance to Marchenko-Pastur", "distance to independent scores"
"""What would be true if scores were independent: without a mask, and behind a causal one."""
SEEN = 5e-4
"""Share of values that is shown, if so many are not placed."""
DENSE = {"Gram seconds, single": "Gram, single", "Gram seconds, double": "Gram, double"}


def number(value: Any) -> str:
    """A cell: nothing where nothing was measured, and words where a law could not be evaluated."""
    if value is None or value != value:  # noqa: PLR0124  # nan, of memory without a GPU
        return ""
    return f"{value:.2g}" if isinstance(value, float) else "not resolved"


def spectra(lines: list[dict[str, Any]]) -> Table:
    """Time, memory, stated error and distances of every spectrum."""
    headings = ["head", "tokens", "time", "memory", "stated error", *DISTANCES.values(), "not placed", "measured"]
    note = (
        "Distances are Kolmogorov distances of the squared singular values; the stated error is at a confidence of "
        "0.9. The matrix itself is decomposed where it fits. The rival takes scores as independent: Marchenko and "
        "Pastur's law with the mean of the law, or for causal heads `CausalLaw`. Values that are not placed are "
        "too close to zero: they are counted and not told apart, and distances are those of the others."
    )
    found = Table("Spectra", headings, note)
    for each in sorted(lines, key=lambda line: line["tokens"]):
        memory = number(each.get("GiB"))
        rival = next((each[name] for name in RIVALS if name in each), None)
        distances = [number((each | {"distance to rival": rival}).get(name)) for name in DISTANCES]
        place = (each["kind"], f"{each['tokens']:,}", seconds(each["seconds"]), memory and f"{memory} GiB")
        found.add(*place, number(each["stated error"]), *distances, not_placed(each), unbroken(each["date"]))
    return found


def not_placed(line: dict[str, Any]) -> str:
    """Share of the values that are counted and not told apart; numbers of before it was kept have it in a warning."""
    if "not placed" in line:
        return f"{line['not placed']:.1%}" if line["not placed"] >= SEEN else ""
    return next((words.split()[0] for words in line.get("warnings", ()) if "not told apart" in words), "")


def dense(lines: list[dict[str, Any]]) -> Table:
    """The same spectra from the matrix."""
    found = Table("The matrix, decomposed", ["head", "tokens", "products", *DENSE.values()])
    for each in lines:
        times = [seconds(each[name]) if name in each else "" for name in DENSE]
        if any(times):
            found.add(each["kind"], f"{each['tokens']:,}", seconds(each["seconds"]), *times)
    return found


def products(lines: dict[str, Any]) -> Table:
    """One product each way, beside flash attention."""
    note = f"Beside torch's flash attention in bfloat16 in the same run: {seconds(lines['flash forward'])} forward, "
    note += f"{seconds(lines['flash backward'])} backward. Errors are relative, against double precision on some rows."
    title = f"One product with {lines['columns']} columns, {lines['tokens']:,} tokens"
    found = Table(title, ["backend", "forward", "over flash", "error", "transpose", "over flash", "error"], note)
    for each in lines["backends"]:
        there = (seconds(each["forward"]), each["forward over flash"], each["forward error"])
        back = (seconds(each["transpose"]), each["transpose over flash backward"], each["transpose error"])
        found.add(each["backend"], *there, *back)
    return found


def page(numbers: dict[str, Any] | None) -> str:
    """Markdown of what was measured, or that nothing was."""
    heading = f"# {TITLE}\n\n{ABOUT}\n\n"
    if numbers is None:
        return f"{heading}{NOTHING}\n"
    where = f"Measured up to {numbers['date']} on one {numbers['device']}, torch {numbers['torch']}."
    tables = [spectra(numbers["spectra"]), dense(numbers["spectra"]), *map(products, numbers["products"])]
    return heading + "\n\n".join([where, *(each.markdown() for each in tables if each.rows)])


def main(arguments: list[str] | None = None) -> None:
    """Print the page, and write it where it is wanted."""
    parser = argparse.ArgumentParser(description=TITLE)
    parser.add_argument("--read", type=Path, help="numbers that were measured; none without")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write the page")
    chosen = parser.parse_args(arguments)
    written = page(json.loads(chosen.read.read_text()) if chosen.read else None)
    print(written)
    replace_file(chosen.page, written)


if __name__ == "__main__":
    main()
