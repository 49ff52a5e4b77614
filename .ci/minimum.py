"""Print the oldest versions that pyproject.toml allows, as constraints for pip: ``numpy>=2.0`` becomes ``numpy==2.0``.

Every dependency has to declare such a version; ``make test-minimum`` shows that it is enough.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*>=\s*(?P<version>[0-9][0-9a-z.]*)")


def constraints(requirements: list[str]) -> list[str]:
    """Each requirement at its oldest version."""
    found = []
    for requirement in requirements:
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"the dependency {requirement!r} is not of the form name>=version")
        found.append(f"{match['name']}=={match['version']}")
    return found


if __name__ == "__main__":
    declared = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    sys.stdout.write("\n".join(constraints(declared)) + "\n")
