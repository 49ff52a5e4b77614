"""Write down the numbers of every claim at the sizes of the tests, so that none changes unnoticed.

python tools/claims.py [STUDY ...]     # accept what they are now; read the difference before you commit it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bulkedge.studies.base import studies

TESTS = Path(__file__).resolve().parent.parent / "tests"
RECORD = TESTS / "studies" / "claims.json"
SEED = 5


def numbers(name: str, sizes: dict[str, Any]) -> list[dict[str, Any]]:
    """What the claims of a study say at these sizes, to seven digits."""
    study = studies()[name].preset("quick", **sizes)
    return [
        {
            "statement": claim.statement,
            "predicted": float(f"{claim.predicted:.7g}"),
            "measured": float(f"{claim.measured.value:.7g}"),
            "error": float(f"{claim.measured.error:.7g}"),
            "finite_size": float(f"{claim.finite_size:.7g}"),
            "rival": None if isinstance(claim.rival, str) else float(f"{claim.rival.value:.7g}"),
        }
        for claim in study.claims(study.simulate(SEED))
    ]


def main(names: list[str]) -> None:
    """Run the studies named, or all, and write their numbers."""
    sys.path[:0] = [str(TESTS), str(TESTS / "studies")]
    from test_studies import SMALL

    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    found = {name: numbers(name, SMALL[name]) for name in names or SMALL}
    numbered = {name: (known | found)[name] for name in sorted(SMALL) if name in known | found}
    text = json.dumps(numbered, indent=1, ensure_ascii=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
