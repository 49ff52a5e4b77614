"""Report which packages of this environment differ from the lock: ``python tools/newer.py constraints.txt``."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)")


def locked(text: str) -> dict[str, set[str]]:
    """Package → its versions in the lock, one for each set of Pythons."""
    found: dict[str, set[str]] = {}
    for match in LINE.finditer(text):
        found.setdefault(match["name"].lower(), set()).add(match["version"])
    return found


def main(path: str) -> None:
    """Print a line for each package that differs."""
    for name, versions in locked(Path(path).read_text(encoding="utf-8")).items():
        try:
            here = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if here not in versions:
            print(f"not as locked: {name} {here} (locked: {', '.join(sorted(versions))})")


if __name__ == "__main__":
    main(sys.argv[1])
