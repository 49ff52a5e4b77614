"""Write down which tests are slow: ``make test`` leaves them to ``make test-slow``.

    pytest -n auto -m '' --junitxml=out/times.xml         # on an idle machine
    python tools/slow_tests.py out/times.xml              # read the difference before you commit it

A test that has to stay although it is slow, because nothing cheaper notices what it notices, has the mark ``always``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from bulkedge.support.files import replace_file

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "slow_tests.txt"
LIMIT = 0.5
"""Seconds that a test may take, with its fixtures."""
STUDY = 10.0
"""Seconds for the test of a study, which is often the only one of a whole file."""


def slow(report: Path) -> list[str]:
    """Tests over the limit, as pytest names them."""
    found = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - a file that pytest wrote
        path, name = case.get("classname", "").replace(".", "/") + ".py", case.get("name", "")
        limit = STUDY if name.startswith("test_study[") else LIMIT
        if path.startswith("tests/") and (ROOT / path).exists() and float(case.get("time", 0)) > limit:
            found.append(f"{path}::{name}")
    return sorted(found)


if __name__ == "__main__":
    replace_file(RECORD, "".join(f"{each}\n" for each in slow(Path(sys.argv[1]))))
