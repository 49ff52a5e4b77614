"""Write down the numbers of every claim and what every figure shows, at the sizes of the tests: none changes unnoticed.

python tools/claims.py [STUDY ...]     # accept what they are now; read the difference before you commit it
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import xarray as xr

from bulkedge.lab.studies.base import Study, studies
from bulkedge.support.files import replace_file

TESTS = Path(__file__).resolve().parent.parent / "tests"
CLAIMS, FIGURES = TESTS / "studies" / "claims.json", TESTS / "studies" / "figures.json"
SEED = 5
Record = dict[str, Any]


def numbers(study: Study, data: xr.Dataset) -> list[dict[str, Any]]:
    """What the claims of a study say, to seven digits."""
    return [
        {
            "statement": claim.statement,
            "relation": claim.relation,
            "verdict": claim.verdict,
            "predicted": float(f"{claim.predicted:.7g}"),
            "measured": float(f"{claim.measured.value:.7g}"),
            "error": float(f"{claim.measured.error:.7g}"),
            "finite_size": float(f"{claim.finite_size:.7g}"),
            "rival": None if isinstance(claim.rival, str) else float(f"{claim.rival.value:.7g}"),
        }
        for claim in study.claims(data)
    ]


def main(names: list[str]) -> None:
    """Run the studies named, or all, and write down what they say and show."""
    sys.path.insert(0, str(TESTS))
    from drawn import described

    claims, figures = Record(), Record()
    for name in names or studies():
        if missing := studies()[name].missing():
            print(f"left as it was: {name} needs {' and '.join(missing)}")
            continue
        family = studies()[name]
        study = family(**family.small)
        data = study.simulate(SEED)
        claims[name], figures[name] = numbers(study, data), described(study.plot(data))
    claims, figures = merged(CLAIMS, claims), merged(FIGURES, figures)
    replace_file(CLAIMS, json.dumps(claims, indent=1, ensure_ascii=False) + "\n")
    lines = [f"{json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in figures.items()]
    replace_file(FIGURES, "{\n" + ",\n".join(lines) + "\n}\n")  # a line for each study


def merged(path: Path, found: Record) -> Record:
    """A record with what was found added to it, and without studies that are gone."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: (before | found)[name] for name in studies() if name in before | found}


if __name__ == "__main__":
    main(sys.argv[1:])
