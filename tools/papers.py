"""Write what became of every item of the papers into the documentation, from a folder of reproduced studies.

bulkedge reproduce --paper --out out/paper && python tools/papers.py out/paper   # papers, paper_size and power .md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bulkedge.lab.gallery.folder import Gallery, Reproduction
from bulkedge.lab.gallery.page import in_order, papers_markdown, power_markdown, sizes
from bulkedge.support.errors import StoreError
from bulkedge.support.files import lock_folder, replace_file

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write(folder: Path, docs: Path = DOCS) -> None:
    """Read the records of a folder and write the three documents."""
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; bulkedge reproduce --out {folder} makes one")
    with lock_folder(folder):
        gallery = Gallery.opened(folder)
    if gallery.damaged or not gallery.results:
        raise StoreError(f"{folder} holds no results, or damaged ones: {', '.join(gallery.damaged) or 'none'}")
    results = in_order(gallery.results.values())
    replace_file(docs / "papers.md", papers_markdown(results))
    replace_file(docs / "power.md", power_markdown(results))
    replace_file(docs / "paper_size.md", log(results))


def log(results: Sequence[Reproduction]) -> str:
    """A table of the studies that were run: how long, how many claims, and the least that a rival was excluded by."""
    minutes, claims = sum(each.seconds for each in results) / 60, sum(len(each.claims) for each in results)
    size = sizes(results)
    command = "bulkedge reproduce" + " --paper" * ("paper" in size)
    lines = f"""\
# A run at {size}

`{command}`, {len(results)} studies, {claims} claims, seed {results[0].origin.seed}. Seconds are
for one process, on the machine that it ran on; together {minutes:.0f} minutes. The last column says by how
many standard deviations the hardest rival is excluded. This command says which
values are the paper's and which are ours: `bulkedge reproduce STUDY --help`.

| study | seconds | claims | hold | fail | undecided | least exclusion |
|---|---|---|---|---|---|---|""".splitlines()
    for each in results:
        least = min(claim.exclusion for claim in each.claims)
        verdicts = [claim.verdict for claim in each.claims]
        counts = [verdicts.count(verdict) for verdict in ("holds", "fails", "undecided")]
        numbers = " | ".join(map(str, [len(each.claims), *counts]))
        lines.append(f"| `{each.name}` | {each.seconds:.0f} | {numbers} | {least:.1f} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what bulkedge reproduce --out wrote")
    write(parser.parse_args().folder)
