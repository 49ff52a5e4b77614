"""Write down what every declared parameter says: its domain, default, and the paper's value or ours.

The test of declarations compares the package with this record, so that a bound or a default does not change unnoticed.

    python tools/declared.py          # accept what is declared now; read the difference before you commit it
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Any

import bulkedge
from bulkedge.domains import Parametric, parameters

RECORD = Path(__file__).resolve().parent.parent / "tests" / "declared.json"


def declared() -> dict[str, dict[str, list[str]]]:
    """Class → parameter → domain, default, and the paper's value and ours, as text."""
    found: dict[str, dict[str, list[str]]] = {}
    for module in pkgutil.walk_packages(bulkedge.__path__, "bulkedge."):
        if module.name.startswith(("bulkedge.nn", "bulkedge.__main__")) or module.name.endswith(".plot"):
            continue
        for _, member in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if member.__module__ == module.name and issubclass(member, Parametric) and is_dataclass(member):
                found[f"{module.name}.{member.__name__}"] = {
                    each.name: [str(each.domain), _text(each.default), _text(each.paper), _text(each.ours)]
                    for each in parameters(member)
                }
    return {name: found[name] for name in sorted(found) if found[name]}


def _text(value: Any) -> str:
    return "" if value is MISSING else repr(value)


if __name__ == "__main__":
    RECORD.write_text(json.dumps(declared(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
