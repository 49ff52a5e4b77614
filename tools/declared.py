"""Write down what the package declares: domains, defaults and large values of parameters, defaults of functions.

The test of declarations compares the package with this record, so that a bound or a default does not change unnoticed.

    python tools/declared.py          # accept what is declared now; read the difference before you commit it
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import Any

import bulkedge
from bulkedge.domains import Parametric, parameters

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "declared.json"
DOMAINS = {"Interval", "Integers", "Choice", "Each", "Numbers", "Instance", "SymmetricMatrix", "Text"}
Record = dict[str, dict[str, Any]]


def declared() -> dict[str, Record]:
    """All that the test compares, by kind."""
    return {"parameters": of_classes(), "defaults": of_functions(), "checks": of_arguments()}


def of_functions() -> Record:
    """Public function → parameter → default, as the source has it."""
    found: Record = {}
    for name, tree in _modules():
        for path, node in _functions(tree, name):
            plain, only = [*node.args.posonlyargs, *node.args.args], node.args.kwonlyargs
            pairs = [*zip(reversed(plain), reversed(node.args.defaults), strict=False)]
            pairs += [*zip(only, node.args.kw_defaults, strict=True)]
            defaults = {each.arg: ast.unparse(value) for each, value in pairs if value is not None}
            if defaults:
                found[path] = dict(sorted(defaults.items()))
    return found


def of_arguments() -> dict[str, Any]:
    """Module → the domains that its functions check arguments against, in order."""
    found = {}
    for name, tree in _modules():
        inside = {id(each) for call in _calls(tree, {"parameter"}) for each in ast.walk(call)}
        domains = [ast.unparse(call) for call in _calls(tree, DOMAINS) if id(call) not in inside]
        if domains:
            found[name] = domains
    return found


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def _calls(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    calls = (each for each in ast.walk(tree) if isinstance(each, ast.Call))
    return [each for each in calls if isinstance(each.func, ast.Name) and each.func.id in names]


def _functions(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Public functions and methods of public classes; ``__init__`` and ``__call__`` are public."""
    for node in tree.body:
        public = isinstance(node, ast.FunctionDef | ast.ClassDef) and (
            not node.name.startswith("_") or node.name in ("__init__", "__call__")
        )
        if public and isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{path}.{node.name}")
        elif public:
            yield f"{path}.{node.name}", node


def of_classes() -> Record:
    """Class → parameter → domain, default and paper's value, as text."""
    found: Record = {}
    for module in pkgutil.walk_packages(bulkedge.__path__, "bulkedge."):
        if module.name.startswith(("bulkedge.nn", "bulkedge.__main__")) or module.name.endswith((".plot", ".kernels")):
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
